// SPDX-License-Identifier: GPL-2.0
/*
 * The first call that may fail does so, then only the second one, and so on
 * until there are no more: allocations and copies from and to user space.
 * Whatever fails, each request has its CQE with an error or without, a message
 * is delivered if its sender is told so, and the ring can be used and closed.
 */
#include <sys/mount.h>

#include "msg.h"

#define ASYNC		IOSQE_ASYNC
#define LINK		IOSQE_IO_LINK

#define DEBUGFS		"/sys/kernel/debug"
#define MAX_NTH		1000U
#define NR		8U

struct bed {
	struct ring ring;
	struct ring target;
	int file;
	char data[64];
	/* how many calls have failed */
	unsigned int faults;
};

FIXTURE(io_uring)
{
	struct bed bed;
};

#include "ring_variants.h"

static bool set_option(const char *name, const char *value)
{
	char path[100];

	snprintf(path, sizeof(path), "%s/%s", DEBUGFS, name);
	return !write_file(path, value, 0);
}

/* By default only what can't wait fails. */
static const char *enable_faults(void)
{
	if (access("/proc/thread-self/fail-nth", W_OK))
		return "no /proc/thread-self/fail-nth";
	if (access(DEBUGFS "/failslab", F_OK) &&
	    mount("debugfs", DEBUGFS, "debugfs", 0, NULL))
		return "no debugfs";
	if (!set_option("failslab/ignore-gfp-wait", "N"))
		return "no fault injection of allocations";
	set_option("failslab/verbose", "0");
	set_option("fail_page_alloc/verbose", "0");
	set_option("fail_usercopy/verbose", "0");
	set_option("fail_page_alloc/ignore-gfp-wait", "N");
	set_option("fail_page_alloc/min-order", "0");
	return NULL;
}

static int fault_open(pid_t tid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/task/%d/fail-nth", tid);
	return open(path, O_RDWR | O_CLOEXEC);
}

static void fault_set(struct __test_metadata *_metadata, int fd,
		      unsigned int nth)
{
	char text[16];
	int len = snprintf(text, sizeof(text), "%u", nth);

	/* it may be this one that fails, if the last one is still to come */
	if (pwrite(fd, text, len, 0) != len)
		ASSERT_EQ(len, pwrite(fd, text, len, 0));
}

/* Has it failed? Reading this may be what does, and counts as a no. */
static bool fault_clear(struct __test_metadata *_metadata, int fd)
{
	char text[16] = "";
	ssize_t len = pread(fd, text, sizeof(text) - 1, 0);

	fault_set(_metadata, fd, 0);
	return len > 0 && !atoi(text);
}

static bool is_failure(int res)
{
	return res == -ENOMEM || res == -EFAULT || res == -EAGAIN ||
	       res == -ECANCELED;
}

/* Returns how many SQEs there are, each of which has a CQE. */
typedef unsigned int (*prep_fn)(struct bed *bed);

static unsigned int prep_link(struct bed *bed)
{
	unsigned int i;

	for (i = 0; i < NR; i++)
		ring_nop(&bed->ring, i < NR - 1 ? LINK : 0, i);
	return NR;
}

static unsigned int prep_async_link(struct bed *bed)
{
	unsigned int i;

	for (i = 0; i < NR; i++)
		ring_nop(&bed->ring, ASYNC | (i < NR - 1 ? LINK : 0), i);
	return NR;
}

/* Nothing waits for so long: the timeout ends with what it belongs to. */
static unsigned int prep_link_timeout(struct bed *bed)
{
	static const struct __kernel_timespec hour = { .tv_sec = 3600 };

	ring_nop(&bed->ring, ASYNC | LINK, 0);
	ring_link_timeout(&bed->ring, &hour, LINK, 1);
	ring_nop(&bed->ring, ASYNC, 2);
	return 3;
}

static unsigned int prep_writes(struct bed *bed)
{
	unsigned int i;

	for (i = 0; i < NR; i++)
		ring_write(&bed->ring, bed->file, bed->data, sizeof(bed->data),
			   i << 16, i % 4 == 3 ? ASYNC : ASYNC | LINK, i);
	return NR;
}

static unsigned int prep_inline_writes(struct bed *bed)
{
	unsigned int i;

	for (i = 0; i < NR; i++)
		ring_write(&bed->ring, bed->file, bed->data, sizeof(bed->data),
			   i << 16, 0, i);
	return NR;
}

static unsigned int prep_messages(struct bed *bed)
{
	unsigned int i;

	for (i = 0; i < NR; i++)
		msg_number(&bed->ring, bed->target.fd, i,
			   i % 4 == 3 ? 0 : LINK);
	return NR;
}

static unsigned int prep_async_messages(struct bed *bed)
{
	unsigned int i;

	for (i = 0; i < NR; i++)
		msg_number(&bed->ring, bed->target.fd, i,
			   i % 4 == 3 ? ASYNC : ASYNC | LINK);
	return NR;
}

/*
 * What was sent is there, nothing else is. A link that was submitted in parts
 * isn't one, hence any order will do.
 */
static void expect_sent_only(struct __test_metadata *_metadata,
			     struct ring *target, bool *sent)
{
	unsigned int i, nr = 0;
	struct msg_cqe cqe;

	for (i = 0; i < NR; i++)
		nr += sent[i];
	while (nr--) {
		ASSERT_EQ(0, msg_next(target, &cqe)) {
			TH_LOG("%u messages are missing", nr + 1);
		}
		ASSERT_GT(NR, cqe.user_data);
		EXPECT_TRUE(sent[cqe.user_data]) {
			TH_LOG("message %llu wasn't sent", cqe.user_data);
		}
		sent[cqe.user_data] = false;
	}
	expect_nothing(_metadata, target);
}

static void finish(struct __test_metadata *_metadata, struct bed *bed,
		   unsigned int nr, bool messages)
{
	bool seen[NR] = {}, sent[NR] = {};
	struct msg_cqe cqe;
	unsigned int i;

	for (i = 0; i < nr; i++) {
		ASSERT_EQ(0, msg_next(&bed->ring, &cqe)) {
			TH_LOG("%u of %u CQEs are missing", nr - i, nr);
		}
		ASSERT_GT(nr, cqe.user_data);
		EXPECT_FALSE(seen[cqe.user_data]);
		seen[cqe.user_data] = true;
		sent[cqe.user_data] = !cqe.res;
		EXPECT_TRUE(cqe.res >= 0 || is_failure(cqe.res)) {
			TH_LOG("request %llu has %d", cqe.user_data, cqe.res);
		}
	}
	expect_nothing(_metadata, &bed->ring);
	if (messages)
		expect_sent_only(_metadata, &bed->target, sent);
}

/* The task itself submits. */
static bool task_fails(struct __test_metadata *_metadata, struct bed *bed,
		       int fd, unsigned int nth, prep_fn prep)
{
	struct ring *ring = &bed->ring;
	bool messages = prep == prep_messages || prep == prep_async_messages;
	unsigned int nr = prep(bed);
	bool failed;
	int ret;

	__atomic_store_n(ring->sq_tail, ring->sqe_tail, __ATOMIC_RELEASE);
	fault_set(_metadata, fd, nth);
	ret = ring_enter(ring, nr, 0, IORING_ENTER_GETEVENTS, NULL, 0);
	failed = fault_clear(_metadata, fd);
	EXPECT_TRUE(ret >= 0 || is_failure(ret)) {
		TH_LOG("failure %u: submission has %d", nth, ret);
	}
	ASSERT_EQ(0, ring_submit(ring));
	finish(_metadata, bed, nr, messages);
	return failed;
}

/* Somebody else does, or runs what was submitted. */
static bool helper_fails(struct __test_metadata *_metadata, struct bed *bed,
			 int fd, unsigned int nth, prep_fn prep)
{
	bool messages = prep == prep_messages || prep == prep_async_messages;
	unsigned int nr = prep(bed);

	fault_set(_metadata, fd, nth);
	ASSERT_EQ(0, ring_submit(&bed->ring));
	finish(_metadata, bed, nr, messages);
	return fault_clear(_metadata, fd);
}

/* A new thread may not have its name yet. */
static pid_t find_thread(const char *comm)
{
	__u64 end = now_ms() + DEADLINE_MS;
	pid_t tid = 0;

	while (find_threads(getpid(), comm, &tid) <= 0 && now_ms() < end)
		sleep_ms(1);
	return tid;
}

/* There is a worker once it has something to do, and for seconds after that. */
static pid_t find_worker(struct __test_metadata *_metadata, struct bed *bed)
{
	ring_write(&bed->ring, bed->file, bed->data, 1, 0, ASYNC, 0);
	ASSERT_EQ(0, ring_submit(&bed->ring));
	expect_sent(_metadata, &bed->ring, 0, 1);
	return find_thread("iou-wrk-");
}

static void with_every_task_fault(struct __test_metadata *_metadata,
				  struct bed *bed, prep_fn prep)
{
	bool sqpoll = bed->ring.flags & IORING_SETUP_SQPOLL;
	pid_t tid = sqpoll ? find_thread("iou-sqp-") : getpid();
	unsigned int nth;
	bool failed;
	int fd;

	fd = fault_open(tid);
	ASSERT_LE(0, fd);
	for (nth = 1; nth < MAX_NTH; nth++) {
		failed = sqpoll ?
			helper_fails(_metadata, bed, fd, nth, prep) :
			task_fails(_metadata, bed, fd, nth, prep);
		if (!failed)
			break;
	}
	EXPECT_GT(MAX_NTH, nth);
	bed->faults += nth - 1;
	close(fd);
}

static void with_every_worker_fault(struct __test_metadata *_metadata,
				    struct bed *bed, prep_fn prep)
{
	unsigned int nth;
	bool failed;
	int fd;

	ring_max_workers(&bed->ring, 1, 1);
	for (nth = 1; nth < MAX_NTH; nth++) {
		fd = fault_open(find_worker(_metadata, bed));
		ASSERT_LE(0, fd);
		failed = helper_fails(_metadata, bed, fd, nth, prep);
		close(fd);
		if (!failed)
			break;
	}
	EXPECT_GT(MAX_NTH, nth);
	bed->faults += nth - 1;
}

FIXTURE_SETUP(io_uring)
{
	struct bed *bed = &self->bed;
	const char *reason = enable_faults();

	if (reason)
		SKIP(return, "%s", reason);
	ring_setup(_metadata, &bed->ring, variant->flags);
	if (_metadata->exit_code)
		return;
	ASSERT_EQ(0, msg_ring_init(&bed->target, variant->flags, 4, 64));
	bed->file = memfd_create("fault_test", MFD_CLOEXEC);
	ASSERT_LE(0, bed->file);
	memset(bed->data, 'x', sizeof(bed->data));
}

FIXTURE_TEARDOWN(io_uring)
{
	ring_exit(&self->bed.ring);
	ring_exit(&self->bed.target);
}

static void test_both(struct __test_metadata *_metadata, struct bed *bed,
		      prep_fn prep)
{
	with_every_task_fault(_metadata, bed, prep);
	with_every_worker_fault(_metadata, bed, prep);
	TH_LOG("%u failures", bed->faults);
}

TEST_F_TIMEOUT(io_uring, link, 120)
{
	with_every_task_fault(_metadata, &self->bed, prep_link);
	test_both(_metadata, &self->bed, prep_async_link);
}

TEST_F_TIMEOUT(io_uring, link_timeout, 120)
{
	test_both(_metadata, &self->bed, prep_link_timeout);
}

TEST_F_TIMEOUT(io_uring, hashed_writes, 120)
{
	with_every_task_fault(_metadata, &self->bed, prep_inline_writes);
	test_both(_metadata, &self->bed, prep_writes);
}

TEST_F_TIMEOUT(io_uring, messages, 120)
{
	with_every_task_fault(_metadata, &self->bed, prep_messages);
	test_both(_metadata, &self->bed, prep_async_messages);
	EXPECT_LT(0U, self->bed.faults);
}

TEST_F_TIMEOUT(io_uring, messages_without_ring, 120)
{
	struct bed *bed = &self->bed;
	struct msg msg = { .user_data = 1, .res = 1 };
	unsigned int nth;
	bool failed;
	int fd, ret;

	if (!msg_sync_supported())
		SKIP(return, "no messages without a ring");
	fd = fault_open(getpid());
	ASSERT_LE(0, fd);
	for (nth = 1; nth < MAX_NTH; nth++) {
		fault_set(_metadata, fd, nth);
		ret = msg_sync(bed->target.fd, &msg);
		failed = fault_clear(_metadata, fd);
		if (!ret)
			expect_msg(_metadata, &bed->target, &msg);
		else
			EXPECT_TRUE(is_failure(ret));
		expect_nothing(_metadata, &bed->target);
		if (!failed)
			break;
	}
	EXPECT_EQ(0, ret);
	EXPECT_LT(1U, nth);
	close(fd);
}

/* Those for which there was no room come when there is some. */
static unsigned int drain_small(struct ring *ring)
{
	unsigned int nr = 0, seen;

	do {
		/* told once if a CQE was dropped, hence don't look at it */
		ring_enter(ring, 0, 0, IORING_ENTER_GETEVENTS, NULL, 0);
		seen = ring_ready(ring);
		__atomic_store_n(ring->cq_head, *ring->cq_head + seen,
				 __ATOMIC_RELEASE);
		nr += seen;
	} while (seen || sq_flag(ring, IORING_SQ_CQ_OVERFLOW));
	return nr;
}

/* What the senders were told, other than that there was no room. */
static unsigned int reap_failures(struct __test_metadata *_metadata,
				  struct ring *ring)
{
	unsigned int i, nr = 0;
	struct msg_cqe cqe;

	for (i = 0; i < NR; i++) {
		ASSERT_EQ(0, msg_next(ring, &cqe));
		EXPECT_TRUE(!cqe.res || cqe.res == -EOVERFLOW ||
			    is_failure(cqe.res));
		nr += cqe.res < 0 && cqe.res != -EOVERFLOW;
	}
	return nr;
}

/* A CQE for which there is no room may be dropped, but is counted then. */
TEST_F_TIMEOUT(io_uring, overflow, 120)
{
	struct bed *bed = &self->bed;
	unsigned int nth, i, got, dropped, failures, *overflow;
	struct io_uring_params p;
	struct ring small;
	bool failed;
	int fd;

	fd = fault_open(getpid());
	ASSERT_LE(0, fd);
	for (nth = 1; nth < MAX_NTH; nth++) {
		p = (struct io_uring_params){
			.flags		= variant->flags | IORING_SETUP_CQSIZE,
			.cq_entries	= 2,
		};
		ASSERT_EQ(0, msg_ring_init_params(&small, 2, &p));
		overflow = small.ring_map + p.cq_off.overflow;
		for (i = 0; i < NR; i++)
			msg_number(&bed->ring, small.fd, i, 0);
		__atomic_store_n(bed->ring.sq_tail, bed->ring.sqe_tail,
				 __ATOMIC_RELEASE);
		fault_set(_metadata, fd, nth);
		ring_enter(&bed->ring, NR, 0, IORING_ENTER_SQ_WAKEUP, NULL, 0);
		ring_enter(&small, 0, 0, IORING_ENTER_GETEVENTS, NULL, 0);
		failed = fault_clear(_metadata, fd);
		ASSERT_EQ(0, ring_submit(&bed->ring));
		failures = reap_failures(_metadata, &bed->ring);
		got = drain_small(&small);
		dropped = __atomic_load_n(overflow, __ATOMIC_ACQUIRE);
		EXPECT_EQ(NR, got + dropped + failures) {
			TH_LOG("failure %u: %u there, %u dropped, %u failed",
			       nth, got, dropped, failures);
		}
		ring_exit(&small);
		if (!failed)
			break;
	}
	EXPECT_GT(MAX_NTH, nth);
	TH_LOG("%u failures", nth - 1);
	close(fd);
}

/* A ring that is there in the end is as good as any. */
TEST_F_TIMEOUT(io_uring, new_ring, 120)
{
	struct ring ring;
	unsigned int nth;
	bool failed;
	int fd, ret;

	fd = fault_open(getpid());
	ASSERT_LE(0, fd);
	for (nth = 1; nth < MAX_NTH; nth++) {
		fault_set(_metadata, fd, nth);
		ret = ring_init(&ring, variant->flags);
		failed = fault_clear(_metadata, fd);
		EXPECT_TRUE(!ret || is_failure(ret) || ret == -EMFILE ||
			    ret == -ENFILE) {
			TH_LOG("failure %u: %d", nth, ret);
		}
		if (!ret) {
			ring_nop(&ring, ASYNC, 0);
			ASSERT_EQ(0, ring_submit(&ring));
			expect_sent(_metadata, &ring, 0, 0);
			ring_exit(&ring);
		}
		if (!failed)
			break;
	}
	EXPECT_GT(MAX_NTH, nth);
	TH_LOG("%u failures", nth - 1);
	close(fd);
}

TEST_F_TIMEOUT(io_uring, resize, 120)
{
	struct bed *bed = &self->bed;
	struct ring *ring = &bed->target;
	struct io_uring_params p;
	unsigned int nth;
	bool failed;
	int fd, ret;

	if (!msg_ring_can_resize(ring) || msg_ring_resize(ring, 4, 64))
		SKIP(return, "this ring can't be resized");
	fd = fault_open(getpid());
	ASSERT_LE(0, fd);
	for (nth = 1; nth < MAX_NTH; nth++) {
		send_numbers(_metadata, &bed->ring, ring->fd, 0, NR);
		p = (struct io_uring_params){
			.flags		= IORING_SETUP_CQSIZE,
			.sq_entries	= 4,
			.cq_entries	= nth % 2 ? 32 : 64,
		};
		fault_set(_metadata, fd, nth);
		ret = ring_register(ring, IORING_REGISTER_RESIZE_RINGS, &p, 1);
		failed = fault_clear(_metadata, fd);
		EXPECT_TRUE(!ret || is_failure(ret)) {
			TH_LOG("failure %u: %d", nth, ret);
		}
		/* the old rings stay if there are no others */
		if (!ret) {
			munmap(ring->sqes, ring->sqes_size);
			munmap(ring->ring_map, ring->ring_size);
			p.flags = ring->flags;
			ASSERT_EQ(0, ring_map(ring, &p));
		}
		expect_numbers(_metadata, ring, 0, NR);
		if (!failed)
			break;
	}
	EXPECT_EQ(0, ret);
	TH_LOG("%u failures", nth - 1);
	close(fd);
}

TEST_HARNESS_MAIN
