// SPDX-License-Identifier: GPL-2.0
/*
 * A cancellation finds a request wherever io-wq has it: queued behind others,
 * taken off the queue by a worker that is busy with an earlier one, running,
 * or next in a link. Whatever it finds, each request has exactly one CQE.
 */
#include "ring.h"
#include "uffd.h"

#define ASYNC	IOSQE_ASYNC
#define SOFT	(IOSQE_ASYNC | IOSQE_IO_LINK)

/* user_data of a cancellation, those of its targets are below */
#define CANCEL	63
#define NR_IDS	64U

/* no CQE so far */
#define NONE	INT_MIN

static const struct __kernel_timespec hour = { .tv_sec = 3600 };

struct bed {
	struct ring ring;
	struct fifo fifo;
	struct uffd uffd;
	int pipe[2];
	int out[2];
	int file;
	int res[NR_IDS];
};

#include "bed.h"

static void bed_init(struct __test_metadata *_metadata, struct bed *bed)
{
	unsigned int i;

	ASSERT_EQ(0, fifo_make(&bed->fifo));
	ASSERT_EQ(0, pipe(bed->pipe));
	ASSERT_EQ(0, pipe(bed->out));
	bed->file = memfd_create("cancel_test", MFD_CLOEXEC);
	ASSERT_LE(0, bed->file);
	for (i = 0; i < NR_IDS; i++)
		bed->res[i] = NONE;
}

FIXTURE_TEARDOWN(io_uring)
{
	fifo_remove(&self->bed.fifo);
	ring_exit(&self->bed.ring);
}

/* Nobody is left out and nobody comes twice. */
static void reap(struct __test_metadata *_metadata,
		 struct bed *bed, unsigned int nr)
{
	struct cqe cqe;
	unsigned int i;

	for (i = 0; i < nr; i++) {
		ASSERT_EQ(0, ring_next(&bed->ring, &cqe)) {
			TH_LOG("only %u of %u CQEs", i, nr);
		}
		ASSERT_LT(cqe.user_data, NR_IDS);
		EXPECT_EQ(NONE, bed->res[cqe.user_data]) {
			TH_LOG("another CQE of %llu", cqe.user_data);
		}
		bed->res[cqe.user_data] = cqe.res;
	}
}

static void submit(struct __test_metadata *_metadata,
		   struct bed *bed)
{
	ASSERT_EQ(0, ring_submit(&bed->ring));
}

static void one_worker(struct __test_metadata *_metadata,
		       struct bed *bed)
{
	int ret = ring_max_workers(&bed->ring, 1, 1);

	if (ret)
		SKIP(exit(KSFT_SKIP), "can't limit workers: %s",
		     strerror(-ret));
}

static void need_uffd(struct __test_metadata *_metadata,
		      struct bed *bed)
{
	int ret = uffd_init(&bed->uffd);

	if (ret)
		SKIP(exit(KSFT_SKIP), "no userfaultfd: %s", strerror(-ret));
}

static void release_fifo(struct __test_metadata *_metadata,
			 struct bed *bed)
{
	ASSERT_LE(0, fifo_release(&bed->fifo));
}

/* On a ring with an SQ thread they couldn't tell what they had found either. */
static void expect_found(struct __test_metadata *_metadata, int res)
{
	EXPECT_TRUE(res == 0 || res == -EALREADY ||
		    (res == -ENOENT && kernel_before(7, 3))) {
		TH_LOG("cancellation: %d", res);
	}
}

static void expect_cancelled(struct __test_metadata *_metadata,
			     struct bed *bed, unsigned int first,
			     unsigned int last)
{
	unsigned int i;

	for (i = first; i <= last; i++) {
		EXPECT_TRUE(was_cancelled(bed->res[i])) {
			TH_LOG("%u: %d", i, bed->res[i]);
		}
	}
}

static void expect_res(struct __test_metadata *_metadata,
		       struct bed *bed, unsigned int first,
		       unsigned int last, int res)
{
	unsigned int i;

	for (i = first; i <= last; i++) {
		EXPECT_EQ(res, bed->res[i]) {
			TH_LOG("result of %u", i);
		}
	}
}

TEST_F(io_uring, queued)
{
	struct bed *bed = &self->bed;
	struct ring *ring = &bed->ring;
	unsigned int i;

	one_worker(_metadata, bed);
	ring_open(ring, bed->fifo.path, O_RDONLY, ASYNC, 0);
	for (i = 1; i <= 8; i++)
		ring_nop(ring, ASYNC, i);
	ring_cancel(ring, 5, 0, CANCEL);
	submit(_metadata, bed);
	reap(_metadata, bed, 2);
	EXPECT_EQ(0, bed->res[CANCEL]);
	EXPECT_EQ(-ECANCELED, bed->res[5]);

	release_fifo(_metadata, bed);
	reap(_metadata, bed, 8);
	EXPECT_LE(0, bed->res[0]);
	expect_res(_metadata, bed, 1, 4, 0);
	expect_res(_metadata, bed, 6, 8, 0);
}

/* An entry of the queue may be the head of a link. */
TEST_F(io_uring, queued_link)
{
	struct bed *bed = &self->bed;
	struct ring *ring = &bed->ring;
	unsigned int i;

	one_worker(_metadata, bed);
	ring_open(ring, bed->fifo.path, O_RDONLY, ASYNC, 0);
	for (i = 1; i < 4; i++)
		ring_nop(ring, SOFT, i);
	ring_nop(ring, ASYNC, 4);
	ring_cancel(ring, 1, 0, CANCEL);
	submit(_metadata, bed);
	reap(_metadata, bed, 5);
	EXPECT_EQ(0, bed->res[CANCEL]);
	expect_res(_metadata, bed, 1, 4, -ECANCELED);

	release_fifo(_metadata, bed);
	reap(_metadata, bed, 1);
	EXPECT_LE(0, bed->res[0]);
}

/* Five writes to a file, of which the first doesn't end until it may. */
static void hashed_writes(struct bed *bed, unsigned int first,
			  unsigned int last)
{
	static char data[4096];
	unsigned int i;

	memset(data, 'x', sizeof(data));
	for (i = first; i <= last; i++)
		ring_write(&bed->ring, bed->file,
			   i == 1 ? bed->uffd.page : data, sizeof(data),
			   i * sizeof(data), ASYNC, i);
}

static void expect_writes(struct __test_metadata *_metadata,
			  struct bed *bed)
{
	char c = 0;

	expect_res(_metadata, bed, 1, 2, 4096);
	EXPECT_EQ(-ECANCELED, bed->res[3]);
	expect_res(_metadata, bed, 4, 5, 4096);
	EXPECT_EQ(1, pread(bed->file, &c, 1, 3 * 4096));
	EXPECT_EQ(0, c);
	EXPECT_EQ(1, pread(bed->file, &c, 1, 4 * 4096));
	EXPECT_EQ('x', c);
}

/* Queued, and has to stay there as the file is being written to. */
TEST_F(io_uring, hashed_queued)
{
	struct bed *bed = &self->bed;

	if (kernel_before(7, 3))
		SKIP(return, "kernel before 7.3 doesn't hash async writes");
	need_uffd(_metadata, bed);
	hashed_writes(bed, 1, 1);
	submit(_metadata, bed);
	ASSERT_EQ(0, uffd_wait(&bed->uffd));

	hashed_writes(bed, 2, 5);
	submit(_metadata, bed);
	ring_settle(&bed->ring);
	ring_cancel(&bed->ring, 3, 0, CANCEL);
	submit(_metadata, bed);
	reap(_metadata, bed, 2);
	EXPECT_EQ(0, bed->res[CANCEL]);
	EXPECT_EQ(-ECANCELED, bed->res[3]);

	ASSERT_EQ(0, uffd_release(&bed->uffd));
	reap(_metadata, bed, 4);
	expect_writes(_metadata, bed);
	uffd_exit(&bed->uffd);
}

/*
 * The one worker is held back until all writes are queued. It takes them off
 * the queue together then, and gets stuck in the first one.
 */
TEST_F(io_uring, hashed_taken)
{
	struct bed *bed = &self->bed;
	struct ring *ring = &bed->ring;

	need_uffd(_metadata, bed);
	one_worker(_metadata, bed);
	ring_open(ring, bed->fifo.path, O_RDONLY, ASYNC, 0);
	hashed_writes(bed, 1, 5);
	submit(_metadata, bed);
	release_fifo(_metadata, bed);
	ASSERT_EQ(0, uffd_wait(&bed->uffd));

	ring_cancel(ring, 3, 0, CANCEL);
	submit(_metadata, bed);
	ring_settle(ring);
	ASSERT_EQ(0, uffd_release(&bed->uffd));
	reap(_metadata, bed, 7);
	uffd_exit(&bed->uffd);
	if (bed->res[CANCEL] == -ENOENT && kernel_before(7, 3))
		SKIP(return, "kernel before 7.3 loses sight of the write");
	expect_found(_metadata, bed->res[CANCEL]);
	expect_writes(_metadata, bed);
}

/* Queued behind the first one, of which the worker goes on with the second. */
TEST_F(io_uring, hashed_running)
{
	struct uffd second = { .fd = -1 };
	struct bed *bed = &self->bed;
	struct ring *ring = &bed->ring;

	need_uffd(_metadata, bed);
	ASSERT_EQ(0, uffd_init(&second));
	ring_write(ring, bed->file, bed->uffd.page, 1, 0, ASYNC, 1);
	submit(_metadata, bed);
	ASSERT_EQ(0, uffd_wait(&bed->uffd));
	ring_write(ring, bed->file, second.page, 1, 0, ASYNC, 2);
	submit(_metadata, bed);
	ring_settle(ring);
	ASSERT_EQ(0, uffd_release(&bed->uffd));
	ASSERT_EQ(0, uffd_wait(&second));

	ring_cancel(ring, 2, 0, CANCEL);
	submit(_metadata, bed);
	ring_settle(ring);
	ASSERT_EQ(0, uffd_release(&second));
	reap(_metadata, bed, 3);
	uffd_exit(&second);
	uffd_exit(&bed->uffd);
	EXPECT_EQ(1, bed->res[1]);
	if (bed->res[CANCEL] == -ENOENT && kernel_before(7, 3))
		SKIP(return, "kernel before 7.3 loses sight of the write");
	EXPECT_EQ(-EALREADY, bed->res[CANCEL]);
}

static void cancel_running(struct __test_metadata *_metadata,
			   struct bed *bed)
{
	submit(_metadata, bed);
	ring_settle(&bed->ring);
	ring_cancel(&bed->ring, 0, 0, CANCEL);
	submit(_metadata, bed);
	reap(_metadata, bed, 2);
	expect_found(_metadata, bed->res[CANCEL]);
	expect_cancelled(_metadata, bed, 0, 0);
}

TEST_F(io_uring, running_open)
{
	struct bed *bed = &self->bed;

	ring_open(&bed->ring, bed->fifo.path, O_RDONLY, ASYNC, 0);
	cancel_running(_metadata, bed);
}

TEST_F(io_uring, running_splice)
{
	struct bed *bed = &self->bed;

	ring_splice(&bed->ring, bed->pipe[0], bed->out[1], 1, ASYNC, 0);
	cancel_running(_metadata, bed);
}

/* This one waits for the pipe without a worker. */
TEST_F(io_uring, running_read)
{
	struct bed *bed = &self->bed;
	char c;

	ring_read(&bed->ring, bed->pipe[0], &c, 1, ASYNC, 0);
	cancel_running(_metadata, bed);
}

static void link_behind_open(struct bed *bed)
{
	ring_open(&bed->ring, bed->fifo.path, O_RDONLY, SOFT, 0);
	ring_nop(&bed->ring, SOFT, 1);
	ring_nop(&bed->ring, ASYNC, 2);
}

TEST_F(io_uring, head_of_link)
{
	struct bed *bed = &self->bed;

	link_behind_open(bed);
	submit(_metadata, bed);
	ring_settle(&bed->ring);
	ring_cancel(&bed->ring, 0, 0, CANCEL);
	submit(_metadata, bed);
	reap(_metadata, bed, 4);
	expect_found(_metadata, bed->res[CANCEL]);
	expect_cancelled(_metadata, bed, 0, 0);
	expect_res(_metadata, bed, 1, 2, -ECANCELED);
}

/*
 * What waits for the head of its link isn't looked at, but if it was, then
 * finding it and cancelling it are the same.
 */
TEST_F(io_uring, member_that_waits)
{
	struct bed *bed = &self->bed;

	link_behind_open(bed);
	submit(_metadata, bed);
	ring_settle(&bed->ring);
	ring_cancel(&bed->ring, 1, 0, CANCEL);
	submit(_metadata, bed);
	ring_settle(&bed->ring);
	release_fifo(_metadata, bed);
	reap(_metadata, bed, 4);
	EXPECT_LE(0, bed->res[0]);
	if (bed->res[CANCEL] == -ENOENT) {
		expect_res(_metadata, bed, 1, 2, 0);
	} else {
		expect_found(_metadata, bed->res[CANCEL]);
		expect_res(_metadata, bed, 1, 2, -ECANCELED);
	}
}

TEST_F(io_uring, member_that_runs)
{
	struct bed *bed = &self->bed;
	struct ring *ring = &bed->ring;

	ring_nop(ring, SOFT, 3);
	link_behind_open(bed);
	submit(_metadata, bed);
	reap(_metadata, bed, 1);
	EXPECT_EQ(0, bed->res[3]);
	ring_settle(ring);
	ring_cancel(ring, 0, 0, CANCEL);
	submit(_metadata, bed);
	reap(_metadata, bed, 4);
	expect_found(_metadata, bed->res[CANCEL]);
	expect_cancelled(_metadata, bed, 0, 0);
	expect_res(_metadata, bed, 1, 2, -ECANCELED);
}

/* Of everything one that runs or waits elsewhere, and some behind it. */
TEST_F(io_uring, all)
{
	struct bed *bed = &self->bed;
	const unsigned int nr = 18;
	struct ring *ring = &bed->ring;
	struct io_uring_sqe *sqe;
	unsigned int i;
	char c[4];

	one_worker(_metadata, bed);
	ring_open(ring, bed->fifo.path, O_RDONLY, ASYNC, 0);
	ring_open(ring, bed->fifo.path, O_RDONLY, ASYNC, 1);
	for (i = 2; i < 6; i++)
		ring_nop(ring, ASYNC, i);
	ring_splice(ring, bed->pipe[0], bed->out[1], 1, ASYNC, 6);
	ring_splice(ring, bed->pipe[0], bed->out[1], 1, ASYNC, 7);
	ring_read(ring, bed->out[0], c, 1, ASYNC, 8);
	ring_read(ring, bed->out[0], c + 1, 1, 0, 9);
	ring_open(ring, bed->fifo.path, O_RDONLY, SOFT, 10);
	ring_nop(ring, SOFT, 11);
	ring_nop(ring, ASYNC, 12);
	ring_read(ring, bed->out[0], c + 2, 1, IOSQE_IO_LINK, 13);
	ring_nop(ring, ASYNC, 14);
	sqe = ring_prep(ring, IORING_OP_POLL_ADD, bed->out[0], NULL, 0, 0, 15);
	sqe->poll32_events = POLLIN;
	ring_prep(ring, IORING_OP_TIMEOUT, -1, &hour, 1, IOSQE_IO_LINK, 16);
	ring_nop(ring, ASYNC, 17);
	submit(_metadata, bed);
	ring_settle(ring);

	ring_cancel(ring, 0, IORING_ASYNC_CANCEL_ALL | IORING_ASYNC_CANCEL_ANY,
		    CANCEL);
	submit(_metadata, bed);
	reap(_metadata, bed, nr + 1);
	if (bed->res[CANCEL] == -EINVAL)
		SKIP(return, "no IORING_ASYNC_CANCEL_ALL");
	EXPECT_LT(0, bed->res[CANCEL]);
	expect_cancelled(_metadata, bed, 0, nr - 1);
}

static void flood(struct bed *bed, unsigned int round)
{
	static char data[4096];
	struct ring *ring = &bed->ring;
	unsigned int i;

	for (i = 0; i < 48; i++) {
		if (i % 3)
			ring_write(ring, bed->file, data, sizeof(data),
				   i * sizeof(data), ASYNC, i);
		else
			ring_nop(ring, i % 2 ? SOFT : ASYNC, i);
		/* a cancellation would become a member of a link */
		if (i % 6 == 2)
			ring_cancel(ring, (i + round) % 48, 0, 48 + i / 6);
	}
	ring_cancel(ring, round % 48,
		    round % 4 ? 0 : IORING_ASYNC_CANCEL_ANY, CANCEL);
}

/*
 * Who is found when is left to chance. A write that was cancelled may be one
 * that a worker had taken off the queue together with the one that it runs.
 */
TEST_F(io_uring, flood)
{
	struct bed *bed = &self->bed;
	unsigned int i, round;

	for (round = 0; round < 200; round++) {
		flood(bed, round);
		submit(_metadata, bed);
		reap(_metadata, bed, 48 + 8 + 1);
		for (i = 0; i < 48; i++) {
			EXPECT_TRUE(bed->res[i] == (i % 3 ? 4096 : 0) ||
				    was_cancelled(bed->res[i])) {
				TH_LOG("%u: %d", i, bed->res[i]);
			}
		}
		for (i = 0; i < NR_IDS; i++)
			bed->res[i] = NONE;
	}
	ring_settle(&bed->ring);
	EXPECT_EQ(0U, ring_ready(&bed->ring));
}

TEST_HARNESS_MAIN
