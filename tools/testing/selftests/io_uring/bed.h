/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A fixture with a ring of each kind, and with what else a test needs: that
 * defines struct bed, of which the ring is a member, and bed_init().
 */
#include "ring.h"

FIXTURE(io_uring)
{
	struct bed bed;
};

#include "ring_variants.h"

static void bed_init(struct __test_metadata *_metadata, struct bed *bed);

FIXTURE_SETUP(io_uring)
{
	ring_setup(_metadata, &self->bed.ring, variant->flags);
	if (!_metadata->exit_code)
		bed_init(_metadata, &self->bed);
}
