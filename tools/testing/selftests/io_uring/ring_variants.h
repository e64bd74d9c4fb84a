/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The kinds of rings that differ in how they complete requests, as variants of
 * a fixture with the name "io_uring".
 */

FIXTURE_VARIANT(io_uring)
{
	unsigned int flags;
};

FIXTURE_VARIANT_ADD(io_uring, plain) {
	.flags = 0,
};

FIXTURE_VARIANT_ADD(io_uring, coop) {
	.flags = IORING_SETUP_COOP_TASKRUN,
};

FIXTURE_VARIANT_ADD(io_uring, defer) {
	.flags = RING_DEFER,
};

FIXTURE_VARIANT_ADD(io_uring, sqpoll) {
	.flags = IORING_SETUP_SQPOLL,
};
