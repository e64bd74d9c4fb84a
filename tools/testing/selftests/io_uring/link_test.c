// SPDX-License-Identifier: GPL-2.0
/*
 * Links of requests that run on io-wq: order, failures, what a link does to
 * timeouts, skipped CQEs, drain and files that a link makes for itself.
 */
#include "ring.h"

#define ASYNC		IOSQE_ASYNC
#define SOFT		(IOSQE_ASYNC | IOSQE_IO_LINK)
#define HARD		(IOSQE_ASYNC | IOSQE_IO_HARDLINK)
#define SKIP_CQE	IOSQE_CQE_SKIP_SUCCESS

static const struct __kernel_timespec hour = { .tv_sec = 3600 };
static const struct __kernel_timespec soon = { .tv_nsec = 100000000 };

FIXTURE(io_uring)
{
	struct ring ring;
	int pipe[2];
};

#include "ring_variants.h"

FIXTURE_SETUP(io_uring)
{
	ASSERT_EQ(0, pipe(self->pipe));
	ring_setup(_metadata, &self->ring, variant->flags);
}

FIXTURE_TEARDOWN(io_uring)
{
	ring_exit(&self->ring);
	close(self->pipe[0]);
	close(self->pipe[1]);
}

/* The next CQE is that of @user_data. */
static void expect_cqe(struct __test_metadata *_metadata, struct ring *ring,
		       __u64 user_data, int res)
{
	struct cqe cqe;

	ASSERT_EQ(0, ring_next(ring, &cqe)) {
		TH_LOG("no CQE for %llu", (unsigned long long)user_data);
	}
	EXPECT_EQ(user_data, cqe.user_data);
	EXPECT_EQ(res, cqe.res) {
		TH_LOG("result of %llu", (unsigned long long)user_data);
	}
}

/* The next @nr CQEs are those of 0 to @nr - 1 in any order. */
static void expect_any(struct __test_metadata *_metadata, struct ring *ring,
		       const int *res, unsigned int nr)
{
	bool seen[16] = {};
	struct cqe cqe;
	unsigned int i;

	for (i = 0; i < nr; i++) {
		ASSERT_EQ(0, ring_next(ring, &cqe));
		ASSERT_LT(cqe.user_data, nr);
		EXPECT_FALSE(seen[cqe.user_data]);
		seen[cqe.user_data] = true;
		EXPECT_EQ(res[cqe.user_data], cqe.res) {
			TH_LOG("result of %llu",
			       (unsigned long long)cqe.user_data);
		}
	}
}

/* Nothing but what the test has seen already was ever going to come. */
static void expect_idle(struct __test_metadata *_metadata, struct ring *ring)
{
	ring_nop(ring, 0, 999);
	ASSERT_EQ(0, ring_submit(ring));
	expect_cqe(_metadata, ring, 999, 0);
	ring_wait(ring, 1, 10);
	EXPECT_EQ(0U, ring_ready(ring));
}

static void submit(struct __test_metadata *_metadata, struct ring *ring)
{
	ASSERT_EQ(0, ring_submit(ring));
}

static void nop_chain(struct __test_metadata *_metadata, struct ring *ring,
		      unsigned int flags)
{
	unsigned int i, nr = 100;

	for (i = 0; i < nr - 1; i++)
		ring_nop(ring, flags, i);
	ring_nop(ring, ASYNC, i);
	submit(_metadata, ring);
	for (i = 0; i < nr; i++)
		expect_cqe(_metadata, ring, i, 0);
	expect_idle(_metadata, ring);
}

TEST_F(io_uring, soft_in_order)
{
	nop_chain(_metadata, &self->ring, SOFT);
}

TEST_F(io_uring, hard_in_order)
{
	nop_chain(_metadata, &self->ring, HARD);
}

TEST_F(io_uring, async_and_inline_in_order)
{
	struct ring *ring = &self->ring;
	unsigned int i, nr = 99;

	for (i = 0; i < nr; i++)
		ring_nop(ring, i % 3 ? SOFT : IOSQE_IO_LINK, i);
	ring_nop(ring, 0, i);
	submit(_metadata, ring);
	for (i = 0; i <= nr; i++)
		expect_cqe(_metadata, ring, i, 0);
	expect_idle(_metadata, ring);
}

TEST_F(io_uring, many_at_once)
{
	const unsigned int chains = 32, length = 8;
	unsigned int next[32] = {}, i, j, round;
	struct ring *ring = &self->ring;
	struct cqe cqe;

	for (round = 0; round < 10; round++) {
		memset(next, 0, sizeof(next));
		for (i = 0; i < chains; i++)
			for (j = 0; j < length; j++)
				ring_nop(ring, j < length - 1 ? SOFT : ASYNC,
					 i << 8 | j);
		submit(_metadata, ring);
		for (i = 0; i < chains * length; i++) {
			ASSERT_EQ(0, ring_next(ring, &cqe));
			EXPECT_EQ(0, cqe.res);
			EXPECT_EQ(next[cqe.user_data >> 8]++,
				  cqe.user_data & 0xff);
		}
	}
	expect_idle(_metadata, ring);
}

/* The data tells about the requests themselves, not just about their CQEs. */
TEST_F(io_uring, effects_in_order)
{
	static const char data[] = "abcdefghijklmnopqrstuvwxyz";
	const unsigned int nr = sizeof(data) - 1;
	struct ring *ring = &self->ring;
	char buf[sizeof(data)] = {};
	unsigned int i;

	for (i = 0; i < nr; i++)
		ring_write(ring, self->pipe[1], data + i, 1, 0,
			   i < nr - 1 ? SOFT : ASYNC, i);
	submit(_metadata, ring);
	for (i = 0; i < nr; i++)
		expect_cqe(_metadata, ring, i, 1);
	ASSERT_EQ(nr, read(self->pipe[0], buf, nr));
	EXPECT_STREQ(data, buf);
}

TEST_F(io_uring, waits_for_its_head)
{
	struct ring *ring = &self->ring;
	char c;

	ring_read(ring, self->pipe[0], &c, 1, SOFT, 0);
	ring_nop(ring, SOFT, 1);
	ring_nop(ring, ASYNC, 2);
	submit(_metadata, ring);
	ring_settle(ring);
	EXPECT_EQ(0U, ring_ready(ring));

	ASSERT_EQ(1, write(self->pipe[1], "", 1));
	expect_cqe(_metadata, ring, 0, 1);
	expect_cqe(_metadata, ring, 1, 0);
	expect_cqe(_metadata, ring, 2, 0);
	expect_idle(_metadata, ring);
}

/*
 * What isn't async waits without a worker, as it's for the task to issue it. Up
 * to 7.3 it's for the worker if that is the last one to put the request before.
 */
TEST_F(io_uring, waits_without_a_worker)
{
	struct ring *ring = &self->ring;
	char c;

	if (!(variant->flags & IORING_SETUP_DEFER_TASKRUN))
		SKIP(return, "the worker issues what comes next");
	if (kernel_before(7, 3))
		SKIP(return, "before 7.3, the worker may issue what comes next");
	if (ring_max_workers(ring, 1, 1))
		SKIP(return, "can't limit workers");
	ring_nop(ring, SOFT, 0);
	ring_read(ring, self->pipe[0], &c, 1, IOSQE_IO_LINK, 1);
	ring_nop(ring, 0, 2);
	submit(_metadata, ring);
	expect_cqe(_metadata, ring, 0, 0);
	ring_settle(ring);
	ring_nop(ring, ASYNC, 3);
	submit(_metadata, ring);
	expect_cqe(_metadata, ring, 3, 0);

	ASSERT_EQ(1, write(self->pipe[1], "", 1));
	expect_cqe(_metadata, ring, 1, 1);
	expect_cqe(_metadata, ring, 2, 0);
	expect_idle(_metadata, ring);
}

TEST_F(io_uring, soft_failure_cancels_the_rest)
{
	struct ring *ring = &self->ring;

	ring_nop(ring, SOFT, 0);
	ring_bad(ring, SOFT, 1);
	ring_nop(ring, SOFT, 2);
	ring_nop(ring, ASYNC, 3);
	submit(_metadata, ring);
	expect_cqe(_metadata, ring, 0, 0);
	expect_cqe(_metadata, ring, 1, -EBADF);
	expect_cqe(_metadata, ring, 2, -ECANCELED);
	expect_cqe(_metadata, ring, 3, -ECANCELED);
	expect_idle(_metadata, ring);
}

TEST_F(io_uring, hard_failure_goes_on)
{
	struct ring *ring = &self->ring;

	ring_nop(ring, HARD, 0);
	ring_bad(ring, HARD, 1);
	ring_nop(ring, HARD, 2);
	ring_nop(ring, ASYNC, 3);
	submit(_metadata, ring);
	expect_cqe(_metadata, ring, 0, 0);
	expect_cqe(_metadata, ring, 1, -EBADF);
	expect_cqe(_metadata, ring, 2, 0);
	expect_cqe(_metadata, ring, 3, 0);
	expect_idle(_metadata, ring);
}

TEST_F(io_uring, head_fails)
{
	struct ring *ring = &self->ring;

	ring_bad(ring, SOFT, 0);
	ring_nop(ring, SOFT, 1);
	ring_nop(ring, ASYNC, 2);
	submit(_metadata, ring);
	expect_cqe(_metadata, ring, 0, -EBADF);
	expect_cqe(_metadata, ring, 1, -ECANCELED);
	expect_cqe(_metadata, ring, 2, -ECANCELED);

	ring_bad(ring, HARD, 0);
	ring_nop(ring, SOFT, 1);
	ring_nop(ring, ASYNC, 2);
	submit(_metadata, ring);
	expect_cqe(_metadata, ring, 0, -EBADF);
	expect_cqe(_metadata, ring, 1, 0);
	expect_cqe(_metadata, ring, 2, 0);
	expect_idle(_metadata, ring);
}

/* A failure of one link is none of the others' business. */
TEST_F(io_uring, failure_stays_in_its_link)
{
	static const int res[] = { -EBADF, -ECANCELED, 0, 0, 0, -EBADF };
	struct ring *ring = &self->ring;

	ring_bad(ring, SOFT, 0);
	ring_nop(ring, ASYNC, 1);
	ring_nop(ring, SOFT, 2);
	ring_nop(ring, ASYNC, 3);
	ring_nop(ring, SOFT, 4);
	ring_bad(ring, ASYNC, 5);
	submit(_metadata, ring);
	expect_any(_metadata, ring, res, ARRAY_SIZE(res));
	expect_idle(_metadata, ring);
}

TEST_F(io_uring, short_read_severs)
{
	struct ring *ring = &self->ring;
	char buf[8];

	ASSERT_EQ(3, write(self->pipe[1], "abc", 3));
	ring_read(ring, self->pipe[0], buf, sizeof(buf), SOFT, 0);
	ring_nop(ring, SOFT, 1);
	ring_nop(ring, ASYNC, 2);
	submit(_metadata, ring);
	expect_cqe(_metadata, ring, 0, 3);
	expect_cqe(_metadata, ring, 1, -ECANCELED);
	expect_cqe(_metadata, ring, 2, -ECANCELED);

	ASSERT_EQ(3, write(self->pipe[1], "abc", 3));
	ring_read(ring, self->pipe[0], buf, sizeof(buf), HARD, 0);
	ring_nop(ring, ASYNC, 1);
	submit(_metadata, ring);
	expect_cqe(_metadata, ring, 0, 3);
	expect_cqe(_metadata, ring, 1, 0);
	expect_idle(_metadata, ring);
}

TEST_F(io_uring, skip_success)
{
	struct ring *ring = &self->ring;

	ring_nop(ring, SOFT | SKIP_CQE, 0);
	ring_nop(ring, SOFT | SKIP_CQE, 1);
	ring_nop(ring, SOFT, 2);
	ring_nop(ring, HARD | SKIP_CQE, 3);
	ring_nop(ring, ASYNC, 4);
	submit(_metadata, ring);
	expect_cqe(_metadata, ring, 2, 0);
	expect_cqe(_metadata, ring, 4, 0);
	expect_idle(_metadata, ring);
}

/*
 * A request that fails has its CQE. If it asked for none in case of success,
 * then it stands for the requests that are cancelled because of it as well.
 */
TEST_F(io_uring, skip_success_failing)
{
	struct ring *ring = &self->ring;

	ring_nop(ring, SOFT | SKIP_CQE, 0);
	ring_bad(ring, SOFT | SKIP_CQE, 1);
	ring_nop(ring, SOFT | SKIP_CQE, 2);
	ring_nop(ring, ASYNC, 3);
	submit(_metadata, ring);
	expect_cqe(_metadata, ring, 1, -EBADF);
	expect_idle(_metadata, ring);

	ring_bad(ring, SOFT, 0);
	ring_nop(ring, SOFT | SKIP_CQE, 1);
	ring_nop(ring, ASYNC | SKIP_CQE, 2);
	submit(_metadata, ring);
	expect_cqe(_metadata, ring, 0, -EBADF);
	expect_cqe(_metadata, ring, 1, -ECANCELED);
	expect_cqe(_metadata, ring, 2, -ECANCELED);
	expect_idle(_metadata, ring);

	ring_bad(ring, HARD | SKIP_CQE, 0);
	ring_nop(ring, SOFT | SKIP_CQE, 1);
	ring_nop(ring, ASYNC, 2);
	submit(_metadata, ring);
	expect_cqe(_metadata, ring, 0, -EBADF);
	expect_cqe(_metadata, ring, 2, 0);
	expect_idle(_metadata, ring);
}

TEST_F(io_uring, timeout_not_reached)
{
	static const int res[] = { 0, -ECANCELED, 0, -ECANCELED, 0 };
	struct ring *ring = &self->ring;

	ring_nop(ring, SOFT, 0);
	ring_link_timeout(ring, &hour, IOSQE_IO_LINK, 1);
	ring_nop(ring, SOFT, 2);
	ring_link_timeout(ring, &hour, IOSQE_IO_LINK, 3);
	ring_nop(ring, ASYNC, 4);
	submit(_metadata, ring);
	expect_any(_metadata, ring, res, ARRAY_SIZE(res));
	expect_idle(_metadata, ring);
}

TEST_F(io_uring, timeout_fires)
{
	static const int res[] = { 0, -ECANCELED, -ETIME, -ECANCELED };
	struct ring *ring = &self->ring;
	char c;

	ring_nop(ring, SOFT, 0);
	ring_read(ring, self->pipe[0], &c, 1, SOFT, 1);
	ring_link_timeout(ring, &soon, IOSQE_IO_LINK, 2);
	ring_nop(ring, ASYNC, 3);
	submit(_metadata, ring);
	expect_any(_metadata, ring, res, ARRAY_SIZE(res));
	expect_idle(_metadata, ring);
}

TEST_F(io_uring, timeout_fires_hard)
{
	static const int res[] = { -ECANCELED, -ETIME, 0 };
	struct ring *ring = &self->ring;
	char c;

	ring_read(ring, self->pipe[0], &c, 1, HARD, 0);
	ring_link_timeout(ring, &soon, IOSQE_IO_HARDLINK, 1);
	ring_nop(ring, ASYNC, 2);
	submit(_metadata, ring);
	expect_any(_metadata, ring, res, ARRAY_SIZE(res));
	expect_idle(_metadata, ring);
}

TEST_F(io_uring, drain_after)
{
	struct ring *ring = &self->ring;
	unsigned int i, nr = 16;
	struct cqe cqe;

	for (i = 0; i < nr; i++)
		ring_nop(ring, i < nr - 1 ? SOFT : ASYNC, i);
	ring_nop(ring, IOSQE_IO_DRAIN, nr);
	ring_nop(ring, ASYNC, nr + 1);
	submit(_metadata, ring);
	for (i = 0; i < nr; i++)
		expect_cqe(_metadata, ring, i, 0);
	ASSERT_EQ(0, ring_next(ring, &cqe));
	if (cqe.user_data == nr + 1 && kernel_before(7, 3))
		SKIP(return, "kernel before 7.3 starts what follows at once");
	EXPECT_EQ(nr, cqe.user_data);
	EXPECT_EQ(0, cqe.res);
	expect_cqe(_metadata, ring, nr + 1, 0);
	expect_idle(_metadata, ring);
}

TEST_F(io_uring, drain_within)
{
	struct ring *ring = &self->ring;
	unsigned int i, nr = 8;
	char c;

	ring_read(ring, self->pipe[0], &c, 1, SOFT, 0);
	ring_nop(ring, ASYNC, 1);
	for (i = 2; i < nr; i++)
		ring_nop(ring, (i < nr - 1 ? SOFT : ASYNC) |
			 (i == 4 ? IOSQE_IO_DRAIN : 0), i);
	submit(_metadata, ring);
	ring_settle(ring);
	EXPECT_EQ(0U, ring_ready(ring));
	ASSERT_EQ(1, write(self->pipe[1], "", 1));
	expect_cqe(_metadata, ring, 0, 1);
	for (i = 1; i < nr; i++)
		expect_cqe(_metadata, ring, i, 0);
	expect_idle(_metadata, ring);
}

/* The file of the later members is there only once the head is done. */
TEST_F(io_uring, file_made_by_the_link)
{
	int fds[] = { -1, -1 };
	struct ring *ring = &self->ring;
	char buf[16];
	int ret;

	ret = ring_register(ring, IORING_REGISTER_FILES, fds, 2);
	ASSERT_EQ(0, ret);

	memset(buf, 1, sizeof(buf));
	ring_open(ring, "/dev/zero", O_RDONLY, SOFT, 0)->file_index = 2;
	ring_read(ring, 1, buf, sizeof(buf), SOFT | IOSQE_FIXED_FILE, 1);
	ring_prep(ring, IORING_OP_CLOSE, 0, NULL, 0, SOFT, 2)->file_index = 2;
	ring_read(ring, 1, buf, sizeof(buf), ASYNC | IOSQE_FIXED_FILE, 3);
	submit(_metadata, ring);
	expect_cqe(_metadata, ring, 0, 0);
	expect_cqe(_metadata, ring, 1, sizeof(buf));
	expect_cqe(_metadata, ring, 2, 0);
	expect_cqe(_metadata, ring, 3, -EBADF);
	EXPECT_EQ(0, buf[sizeof(buf) - 1]);
	expect_idle(_metadata, ring);
}

TEST_F(io_uring, fixed_files)
{
	struct ring *ring = &self->ring;
	char buf[8] = {};
	unsigned int i;

	ASSERT_EQ(0, ring_register(ring, IORING_REGISTER_FILES, self->pipe, 2));
	for (i = 0; i < 4; i++) {
		ring_write(ring, 1, "hello", 5, 0, SOFT | IOSQE_FIXED_FILE,
			   2 * i);
		ring_read(ring, 0, buf, 5,
			  (i < 3 ? SOFT : ASYNC) | IOSQE_FIXED_FILE, 2 * i + 1);
	}
	submit(_metadata, ring);
	for (i = 0; i < 8; i++)
		expect_cqe(_metadata, ring, i, 5);
	EXPECT_STREQ("hello", buf);

	ASSERT_EQ(0, ring_register(ring, IORING_UNREGISTER_FILES, NULL, 0));
	expect_idle(_metadata, ring);
}

/* Rings whose CQEs are of another size, or are not found by waiting. */
FIXTURE(nop_ring)
{
	struct ring ring;
};

FIXTURE_VARIANT(nop_ring)
{
	unsigned int flags;
};

FIXTURE_VARIANT_ADD(nop_ring, cqe32) {
	.flags = IORING_SETUP_CQE32,
};

FIXTURE_VARIANT_ADD(nop_ring, cqe32_defer) {
	.flags = IORING_SETUP_CQE32 | RING_DEFER,
};

FIXTURE_VARIANT_ADD(nop_ring, iopoll) {
	.flags = IORING_SETUP_IOPOLL,
};

FIXTURE_VARIANT_ADD(nop_ring, iopoll_defer) {
	.flags = IORING_SETUP_IOPOLL | RING_DEFER,
};

FIXTURE_SETUP(nop_ring)
{
	ring_setup(_metadata, &self->ring, variant->flags);
}

FIXTURE_TEARDOWN(nop_ring)
{
	ring_exit(&self->ring);
}

TEST_F(nop_ring, soft_in_order)
{
	nop_chain(_metadata, &self->ring, SOFT);
}

TEST_F(nop_ring, hard_in_order)
{
	nop_chain(_metadata, &self->ring, HARD);
}

TEST_HARNESS_MAIN
