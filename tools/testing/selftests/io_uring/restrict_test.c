// SPDX-License-Identifier: GPL-2.0
/*
 * A ring that is restricted to some opcodes and flags: a link with a request
 * that isn't allowed fails before any of its requests is issued.
 */
#include "ring.h"

#define ASYNC		IOSQE_ASYNC
#define LINK		IOSQE_IO_LINK
#define HARDLINK	IOSQE_IO_HARDLINK

#define NR		5

struct bed {
	struct ring ring;
	int file;
};

FIXTURE(io_uring)
{
	struct bed bed;
};

#include "ring_variants.h"

FIXTURE_SETUP(io_uring)
{
	ring_setup(_metadata, &self->bed.ring,
		   variant->flags | IORING_SETUP_R_DISABLED);
	self->bed.file = memfd_create("restrict_test", MFD_CLOEXEC);
	ASSERT_LE(0, self->bed.file);
}

FIXTURE_TEARDOWN(io_uring)
{
	ring_exit(&self->bed.ring);
}

/* Writes and nops, with the flags @allowed, and @required ones. */
static void restrict_ring(struct __test_metadata *_metadata, struct bed *bed,
			  unsigned int allowed, unsigned int required)
{
	struct io_uring_restriction res[] = {
		{
			.opcode		= IORING_RESTRICTION_SQE_OP,
			.sqe_op		= IORING_OP_NOP,
		}, {
			.opcode		= IORING_RESTRICTION_SQE_OP,
			.sqe_op		= IORING_OP_WRITE,
		}, {
			.opcode		= IORING_RESTRICTION_SQE_FLAGS_ALLOWED,
			.sqe_flags	= allowed,
		}, {
			.opcode		= IORING_RESTRICTION_SQE_FLAGS_REQUIRED,
			.sqe_flags	= required,
		},
	};

	ASSERT_EQ(0, ring_register(&bed->ring, IORING_REGISTER_RESTRICTIONS,
				   res, ARRAY_SIZE(res)));
	ASSERT_EQ(0, ring_register(&bed->ring, IORING_REGISTER_ENABLE_RINGS,
				   NULL, 0));
}

static void prep_write(struct bed *bed, unsigned int flags, __u64 user_data)
{
	ring_write(&bed->ring, bed->file, "x", 1, user_data, flags, user_data);
}

static off_t written(struct bed *bed)
{
	struct stat st;

	return fstat(bed->file, &st) ? -1 : st.st_size;
}

/* Writes @nr requests have made, or none as number @bad has been refused. */
static void expect_link(struct __test_metadata *_metadata, struct bed *bed,
			unsigned int nr, unsigned int bad)
{
	unsigned int i, seen = 0;
	struct cqe cqe;
	int res;

	ASSERT_EQ(0, ring_submit(&bed->ring));
	for (i = 0; i < nr; i++) {
		ASSERT_EQ(0, ring_next(&bed->ring, &cqe));
		ASSERT_GT(nr, cqe.user_data);
		EXPECT_FALSE(seen & 1 << cqe.user_data);
		seen |= 1 << cqe.user_data;
		res = 1;
		if (bad < nr)
			res = cqe.user_data == bad ? -EACCES : -ECANCELED;
		EXPECT_EQ(res, cqe.res) {
			TH_LOG("number %u isn't allowed, result of %llu", bad,
			       (unsigned long long)cqe.user_data);
		}
	}
	ring_settle(&bed->ring);
	EXPECT_EQ(0U, ring_ready(&bed->ring));
	EXPECT_EQ(bad < nr ? 0 : (off_t)nr, written(bed));
	ASSERT_EQ(0, ftruncate(bed->file, 0));
}

/* What is allowed goes on to work. */
static void expect_allowed(struct __test_metadata *_metadata, struct bed *bed,
			   unsigned int flags)
{
	unsigned int i;

	for (i = 0; i < NR; i++)
		prep_write(bed, i < NR - 1 ? flags :
			   flags & ~(LINK | HARDLINK), i);
	expect_link(_metadata, bed, NR, UINT_MAX);
}

/* A read is between writes. */
static void run_opcodes(struct __test_metadata *_metadata, struct bed *bed,
			unsigned int flags)
{
	unsigned int i, bad, now;
	char c;

	for (bad = 0; bad < NR; bad++) {
		for (i = 0; i < NR; i++) {
			now = i < NR - 1 ? flags : flags & ASYNC;
			if (i == bad)
				ring_read(&bed->ring, bed->file, &c, 1, now, i);
			else
				prep_write(bed, now, i);
		}
		expect_link(_metadata, bed, NR, bad);
	}
	expect_allowed(_metadata, bed, flags);
}

TEST_F(io_uring, opcode)
{
	struct bed *bed = &self->bed;

	restrict_ring(_metadata, bed, ASYNC | LINK | HARDLINK, 0);
	run_opcodes(_metadata, bed, LINK);
	run_opcodes(_metadata, bed, HARDLINK);
	run_opcodes(_metadata, bed, ASYNC | LINK);
	run_opcodes(_metadata, bed, ASYNC | HARDLINK);
}

/* Number @bad of each link has the flags @wrong instead. */
static void run_flags(struct __test_metadata *_metadata, struct bed *bed,
		      unsigned int flags, unsigned int wrong)
{
	unsigned int i, bad, now;

	for (bad = 0; bad < NR; bad++) {
		for (i = 0; i < NR; i++) {
			now = i == bad ? wrong : flags;
			if (i == NR - 1)
				now &= ~LINK;
			prep_write(bed, now, i);
		}
		expect_link(_metadata, bed, NR, bad);
	}
	expect_allowed(_metadata, bed, flags);
}

TEST_F(io_uring, flag_not_allowed)
{
	struct bed *bed = &self->bed;

	restrict_ring(_metadata, bed, ASYNC | LINK, 0);
	run_flags(_metadata, bed, ASYNC | LINK, ASYNC | LINK | HARDLINK);
	run_flags(_metadata, bed, LINK, LINK | IOSQE_IO_DRAIN);
}

TEST_F(io_uring, async_not_allowed)
{
	restrict_ring(_metadata, &self->bed, LINK, 0);
	run_flags(_metadata, &self->bed, LINK, ASYNC | LINK);
}

TEST_F(io_uring, flag_required)
{
	restrict_ring(_metadata, &self->bed, LINK, ASYNC);
	run_flags(_metadata, &self->bed, ASYNC | LINK, LINK);
}

TEST_HARNESS_MAIN
