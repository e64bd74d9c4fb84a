// SPDX-License-Identifier: GPL-2.0
/*
 * Two async writes to one file don't run at once, and that includes those that
 * are members of links.
 *
 * It shows if the first one doesn't end: the second one is still in the queue
 * then, where a cancellation can remove it. If it had been started, then it
 * would wait for the lock of the inode, for which there is no cancellation.
 *
 * Up to 7.3, a member of a link isn't known to write to the file, unless it is
 * issued by the task: all but the tests of single writes, and mostly those of
 * rings with IORING_SETUP_DEFER_TASKRUN, fail there.
 */
#include "ring.h"
#include "uffd.h"

#define ASYNC		IOSQE_ASYNC
#define SOFT		(IOSQE_ASYNC | IOSQE_IO_LINK)

#define SIZE		16

/* user_data: each of the two has a request before and one behind it */
#define FIRST		1
#define SECOND		4
#define CANCEL		6
#define NR_IDS		7U

/* no CQE so far */
#define NONE		INT_MIN

/* How a write is submitted. */
#define LINKED		1
#define FIXED		2
/* a request that isn't a write but is treated alike */
#define FALLOCATE	4
/* what comes before it in its link is a write as well */
#define BEHIND		8

struct bed {
	struct ring ring;
	struct uffd uffd;
	int file;
	int res[NR_IDS];
	unsigned int pending;
};

#include "bed.h"

static void bed_init(struct __test_metadata *_metadata, struct bed *bed)
{
	unsigned int i;
	int ret;

	if (kernel_before(7, 3))
		SKIP(return, "kernel before 7.3 doesn't hash async writes");
	ret = uffd_init(&bed->uffd);
	if (ret)
		SKIP(return, "no userfaultfd: %s", strerror(-ret));
	bed->file = memfd_create("hash_link_test", MFD_CLOEXEC);
	ASSERT_LE(0, bed->file);
	ASSERT_EQ(0, ring_register(&bed->ring, IORING_REGISTER_FILES,
				   &bed->file, 1));
	for (i = 0; i < NR_IDS; i++)
		bed->res[i] = NONE;
}

FIXTURE_TEARDOWN(io_uring)
{
	uffd_exit(&self->bed.uffd);
	ring_exit(&self->bed.ring);
}

static void prep_write(struct bed *bed, const char *data, unsigned int how,
		       unsigned int id)
{
	unsigned int flags = how & LINKED ? SOFT : ASYNC;
	struct ring *ring = &bed->ring;
	int fd = bed->file;

	if (how & FIXED) {
		flags |= IOSQE_FIXED_FILE;
		fd = 0;
	}
	if (how & BEHIND)
		ring_write(ring, fd, "before", 6, 0, flags, id - 1);
	else if (how & LINKED)
		ring_nop(ring, SOFT, id - 1);
	if (how & FALLOCATE)
		ring_prep(ring, IORING_OP_FALLOCATE, fd, NULL, 0, flags,
			  id)->addr = SIZE;
	else
		ring_write(ring, fd, data, SIZE, 0, flags, id);
	if (how & LINKED)
		ring_nop(ring, ASYNC, id + 1);
	bed->pending += how & LINKED ? 3 : 1;
}

static void submit(struct __test_metadata *_metadata, struct bed *bed)
{
	ASSERT_EQ(0, ring_submit(&bed->ring));
	ring_settle(&bed->ring);
}

static void reap_one(struct __test_metadata *_metadata, struct bed *bed)
{
	struct cqe cqe;

	ASSERT_EQ(0, ring_next(&bed->ring, &cqe)) {
		TH_LOG("%u more were expected", bed->pending);
	}
	ASSERT_GT(NR_IDS, cqe.user_data);
	EXPECT_EQ(NONE, bed->res[cqe.user_data]);
	bed->res[cqe.user_data] = cqe.res;
	bed->pending--;
}

/* It isn't found as long as the request before it in its link hasn't ended. */
static void cancel_second(struct __test_metadata *_metadata, struct bed *bed)
{
	__u64 end = now_ms() + DEADLINE_MS;

	do {
		bed->res[CANCEL] = NONE;
		ring_cancel(&bed->ring, SECOND, 0, CANCEL);
		bed->pending++;
		submit(_metadata, bed);
		while (bed->res[CANCEL] == NONE)
			reap_one(_metadata, bed);
	} while (bed->res[CANCEL] == -ENOENT && bed->res[SECOND] == NONE &&
		 now_ms() < end);
}

static void run_two(struct __test_metadata *_metadata, struct bed *bed,
		    unsigned int first, unsigned int second)
{
	static const char data[SIZE] = "not at once";

	prep_write(bed, bed->uffd.page, first, FIRST);
	submit(_metadata, bed);
	ASSERT_EQ(0, uffd_wait(&bed->uffd));

	prep_write(bed, data, second, SECOND);
	submit(_metadata, bed);
	cancel_second(_metadata, bed);

	ASSERT_EQ(0, uffd_release(&bed->uffd));
	while (bed->pending)
		reap_one(_metadata, bed);
	EXPECT_EQ(SIZE, bed->res[FIRST]);
	EXPECT_EQ(0, bed->res[CANCEL]) {
		TH_LOG("both were running at once");
	}
	EXPECT_EQ(-ECANCELED, bed->res[SECOND]);
	if (second & LINKED)
		EXPECT_EQ(-ECANCELED, bed->res[SECOND + 1]);
}

TEST_F(io_uring, two_singles)
{
	run_two(_metadata, &self->bed, 0, 0);
}

TEST_F(io_uring, two_singles_fixed)
{
	run_two(_metadata, &self->bed, FIXED, FIXED);
}

TEST_F(io_uring, single_then_member)
{
	run_two(_metadata, &self->bed, 0, LINKED);
}

TEST_F(io_uring, member_then_single)
{
	run_two(_metadata, &self->bed, LINKED, 0);
}

TEST_F(io_uring, two_members)
{
	run_two(_metadata, &self->bed, LINKED, LINKED);
}

TEST_F(io_uring, two_members_fixed)
{
	run_two(_metadata, &self->bed, LINKED | FIXED, LINKED | FIXED);
}

TEST_F(io_uring, fixed_and_normal)
{
	run_two(_metadata, &self->bed, LINKED | FIXED, LINKED);
}

TEST_F(io_uring, member_then_fallocate)
{
	run_two(_metadata, &self->bed, LINKED, LINKED | FALLOCATE);
}

TEST_F(io_uring, behind_then_single)
{
	run_two(_metadata, &self->bed, LINKED | BEHIND, 0);
}

TEST_F(io_uring, behind_then_member)
{
	run_two(_metadata, &self->bed, LINKED | BEHIND, LINKED);
}

/* Once the first one has ended, those that waited run in their order. */
TEST_F(io_uring, order_after_wait)
{
	struct bed *bed = &self->bed;
	static const char data[] = "abc";
	struct cqe cqe;
	unsigned int i;
	char c;

	prep_write(bed, bed->uffd.page, LINKED, FIRST);
	submit(_metadata, bed);
	ASSERT_EQ(0, uffd_wait(&bed->uffd));
	for (i = 0; i < 3; i++)
		ring_write(&bed->ring, bed->file, data + i, 1, 0,
			   i < 2 ? SOFT : ASYNC, i);
	submit(_metadata, bed);
	ASSERT_EQ(0, uffd_release(&bed->uffd));
	for (i = 0; i < 6; i++)
		ASSERT_EQ(0, ring_next(&bed->ring, &cqe));
	ASSERT_EQ(1, pread(bed->file, &c, 1, 0));
	EXPECT_EQ('c', c);
}

/*
 * A link gets in line behind what was queued for its next file before. Should
 * one of these files have the hash of the first one, it has that already.
 */
TEST_F(io_uring, link_waits_its_turn)
{
	unsigned int i, nr = 4, in_turn = 0;
	struct bed *bed = &self->bed;
	struct ring *ring = &bed->ring;
	struct cqe cqe;
	int file[4];
	char c;

	if (ring_max_workers(ring, 1, 1))
		SKIP(return, "can't limit workers");
	ring_write(ring, bed->file, bed->uffd.page, 1, 0, SOFT, 0);
	for (i = 0; i < nr; i++) {
		file[i] = memfd_create("hash_link_test", MFD_CLOEXEC);
		ASSERT_LE(0, file[i]);
		ring_write(ring, file[i], "l", 1, 0, i < nr - 1 ? SOFT : ASYNC,
			   0);
	}
	submit(_metadata, bed);
	ASSERT_EQ(0, uffd_wait(&bed->uffd));
	for (i = 0; i < nr; i++)
		ring_write(ring, file[i], "s", 1, 0, ASYNC, 0);
	submit(_metadata, bed);
	ASSERT_EQ(0, uffd_release(&bed->uffd));
	for (i = 0; i < 2 * nr + 1; i++)
		ASSERT_EQ(0, ring_next(ring, &cqe));
	for (i = 0; i < nr; i++) {
		ASSERT_EQ(1, pread(file[i], &c, 1, 0));
		in_turn += c == 'l';
	}
	EXPECT_LT(nr / 2, in_turn);
}

TEST_HARNESS_MAIN
