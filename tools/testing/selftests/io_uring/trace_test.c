// SPDX-License-Identifier: GPL-2.0
/*
 * What trace events tell of task work, io-wq and messages is what has happened.
 * Each test does something whose outcome is known, in an instance of tracefs of
 * its own, and compares.
 *
 * Pointers are printed as they are, for which it takes root, as they can't be
 * told apart before the kernel has random numbers to hash them with.
 */
#include <pthread.h>
#include <sys/mount.h>

#include "msg.h"
#include "uffd.h"

#define ASYNC		IOSQE_ASYNC
#define SOFT		(IOSQE_ASYNC | IOSQE_IO_LINK)
#define SILENT		IOSQE_CQE_SKIP_SUCCESS

#define TRACEFS		"/sys/kernel/tracing"
#define INSTANCE	TRACEFS "/instances/io_uring_trace_test"
#define EVENTS		TRACEFS "/events/io_uring"

#define RUN_FILTER	"/events/io_uring/io_uring_task_work_run/filter"

#define MAX_TEXT	0x100000
#define MAX_EVENTS	256U
#define MAX_FILES	16U

/* user_data of what tells the address of its ring */
#define PROBE		0x7072006f6265ULL
#define HASH_PROBE	0x686173680000ULL

/* What a ring allocates at once, none of which may be used up by the setup. */
#define REQ_BATCH	8

struct event {
	char name[40];
	char body[200];
};

struct bed {
	struct ring ring;
	struct uffd uffd;
	/* the ring's address in the kernel */
	__u64 ctx;
	int file[MAX_FILES];
	unsigned int nr_files;
	struct event event[MAX_EVENTS];
	unsigned int nr_events;
};

#include "bed.h"

static char *trace_text(struct __test_metadata *_metadata, const char *path)
{
	static char text[MAX_TEXT];
	size_t len = 0;
	ssize_t ret;
	int fd;

	fd = open(path, O_RDONLY | O_CLOEXEC);
	ASSERT_LE(0, fd) {
		TH_LOG("%s: %s", path, strerror(errno));
	}
	do {
		ret = read(fd, text + len, sizeof(text) - 1 - len);
		if (ret > 0)
			len += ret;
	} while (ret > 0);
	ASSERT_EQ(0, ret);
	close(fd);
	text[len] = '\0';
	return text;
}

/* Where it isn't mounted, only this process sees that it is. */
static bool tracefs_mounted(void)
{
	if (!access(TRACEFS "/events", F_OK))
		return true;
	return !unshare(CLONE_NEWNS) &&
	       !mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
	       !mount("tracefs", TRACEFS, "tracefs", 0, NULL) &&
	       !access(TRACEFS "/events", F_OK);
}

static void need_event(struct __test_metadata *_metadata, const char *name)
{
	char path[128];

	snprintf(path, sizeof(path), EVENTS "/%s", name);
	if (!access(path, F_OK))
		return;
	rmdir(INSTANCE);
	SKIP(exit(KSFT_SKIP), "no event %s", name);
}

static void trace_add(struct __test_metadata *_metadata, const char *name)
{
	char event[64];

	need_event(_metadata, name);
	snprintf(event, sizeof(event), "io_uring:%s", name);
	ASSERT_EQ(0, write_file(INSTANCE "/set_event", event, O_APPEND));
}

/* Forgets all events so far, and is for this one from now on. */
static void trace_only(struct __test_metadata *_metadata, const char *name)
{
	ASSERT_EQ(0, write_file(INSTANCE "/events/enable", "0", 0));
	ASSERT_EQ(0, write_file(INSTANCE "/trace", "", O_TRUNC));
	trace_add(_metadata, name);
}

/* The value of a field, or NULL. */
static const char *event_text(const struct event *event, const char *field)
{
	size_t len = strlen(field);
	const char *pos = event->body;

	while (strncmp(pos, field, len) || pos[len] != ' ') {
		pos = strstr(pos, ", ");
		if (!pos)
			return NULL;
		pos += 2;
	}
	return pos + len + 1;
}

static __u64 event_number(const struct event *event, const char *field,
			  int base)
{
	const char *text = event_text(event, field);

	return text ? strtoull(text, NULL, base) : ~0ULL;
}

static __u64 event_hex(const struct event *event, const char *field)
{
	return event_number(event, field, 16);
}

static int event_int(const struct event *event, const char *field)
{
	return event_number(event, field, 10);
}

static bool event_is(const struct event *event, const char *field,
		     const char *value)
{
	const char *text = event_text(event, field);
	size_t len = strlen(value);

	return text && !strncmp(text, value, len) &&
	       (!text[len] || text[len] == ',');
}

static void expect_text(struct __test_metadata *_metadata,
			const struct event *event, const char *field,
			const char *value)
{
	EXPECT_TRUE(event_is(event, field, value)) {
		TH_LOG("not %s %s: %s", field, value, event->body);
	}
}

/*
 * Those called @name so far, with a field of that value. A worker may be on its
 * way to them, so wait for @nr of them, which may be less than there will be.
 */
static void expect_events(struct __test_metadata *_metadata, struct bed *bed,
			  const char *name, const char *field, __u64 value,
			  unsigned int nr)
{
	__u64 end = now_ms() + DEADLINE_MS;
	struct event *event;
	char *line, *pos;

	do {
		bed->nr_events = 0;
		pos = trace_text(_metadata, INSTANCE "/trace");
		while ((line = strsep(&pos, "\n"))) {
			line = *line == '#' ? NULL : strstr(line, ": io_uring_");
			if (!line)
				continue;
			ASSERT_GT(MAX_EVENTS, bed->nr_events);
			event = &bed->event[bed->nr_events];
			if (sscanf(line, ": %39[^:]: %199[^\n]", event->name,
				   event->body) == 2 &&
			    !strcmp(event->name, name) &&
			    event_hex(event, field) == value)
				bed->nr_events++;
		}
		if (bed->nr_events >= nr)
			return;
		usleep(500);
	} while (now_ms() < end);
	ASSERT_EQ(nr, bed->nr_events) {
		TH_LOG("%s", name);
	}
}

/* No less and no more. */
static void expect_exactly(struct __test_metadata *_metadata, struct bed *bed,
			   const char *name, __u64 ctx, unsigned int nr)
{
	unsigned int i;

	expect_events(_metadata, bed, name, "ring", ctx, nr);
	ASSERT_EQ(nr, bed->nr_events) {
		for (i = 0; i < bed->nr_events; i++)
			TH_LOG("%s: %s", name, bed->event[i].body);
	}
}

static void reap(struct __test_metadata *_metadata, struct ring *ring,
		 unsigned int nr)
{
	struct cqe cqe;

	while (nr--) {
		ASSERT_EQ(0, ring_next(ring, &cqe)) {
			TH_LOG("%u more were expected", nr + 1);
		}
		EXPECT_LE(0, cqe.res) {
			TH_LOG("result of %llx", cqe.user_data);
		}
	}
}

static void submit_and_reap(struct __test_metadata *_metadata,
			    struct ring *ring, unsigned int nr)
{
	ASSERT_EQ(0, ring_submit(ring));
	reap(_metadata, ring, nr);
}

static __u64 ctx_of(struct __test_metadata *_metadata, struct bed *bed,
		    __u64 user_data)
{
	expect_events(_metadata, bed, "io_uring_submit_req", "user_data",
		      user_data, 1);
	return event_hex(&bed->event[0], "ring");
}

static __u64 probe(struct __test_metadata *_metadata, struct bed *bed,
		   struct ring *ring)
{
	trace_only(_metadata, "io_uring_submit_req");
	ring_nop(ring, 0, PROBE);
	submit_and_reap(_metadata, ring, 1);
	return ctx_of(_metadata, bed, PROBE);
}

static void bed_init(struct __test_metadata *_metadata, struct bed *bed)
{
	if (geteuid())
		SKIP(return, "not root");
	if (!tracefs_mounted())
		SKIP(return, "no tracefs");
	if (uffd_init(&bed->uffd))
		SKIP(return, "no userfaultfd");
	rmdir(INSTANCE);
	if (mkdir(INSTANCE, 0700))
		SKIP(return, "no instance of tracefs: %s", strerror(errno));
	ASSERT_EQ(0, write_file(INSTANCE "/trace_options", "nohash-ptr", 0));
	/* the order across CPUs */
	ASSERT_EQ(0, write_file(INSTANCE "/trace_clock", "counter", 0));
	bed->ctx = probe(_metadata, bed, &bed->ring);
}

FIXTURE_TEARDOWN(io_uring)
{
	uffd_exit(&self->bed.uffd);
	ring_exit(&self->bed.ring);
	rmdir(INSTANCE);
}

static int new_file(struct __test_metadata *_metadata, struct bed *bed)
{
	int fd = memfd_create("trace_test", MFD_CLOEXEC);

	ASSERT_LE(0, fd);
	ASSERT_GT(MAX_FILES, bed->nr_files);
	bed->file[bed->nr_files++] = fd;
	return fd;
}

/* The hash of the writes to a file is only known from a write to it. */
static int hash_of(struct __test_metadata *_metadata, struct bed *bed, int fd)
{
	__u64 user_data = HASH_PROBE + fd;

	trace_only(_metadata, "io_uring_wq_pull");
	ring_write(&bed->ring, fd, "", 1, 0, ASYNC, user_data);
	submit_and_reap(_metadata, &bed->ring, 1);
	expect_events(_metadata, bed, "io_uring_wq_pull", "user_data",
		      user_data, 1);
	EXPECT_EQ(bed->ctx, event_hex(&bed->event[0], "ring"));
	return event_int(&bed->event[0], "hash");
}

/* Two files whose writes don't have the same hash. */
static void two_files(struct __test_metadata *_metadata, struct bed *bed,
		      int fd[2], int hash[2])
{
	fd[0] = new_file(_metadata, bed);
	hash[0] = hash_of(_metadata, bed, fd[0]);
	do {
		fd[1] = new_file(_metadata, bed);
		hash[1] = hash_of(_metadata, bed, fd[1]);
	} while (hash[0] == hash[1]);
	EXPECT_LE(0, hash[0]);
	EXPECT_LE(0, hash[1]);
	/* for the worker to give up the last hash */
	ring_settle(&bed->ring);
}

/* A write that doesn't end before the page is there, and has been started. */
static void start_held_write(struct __test_metadata *_metadata, struct bed *bed,
			     int fd, unsigned int flags)
{
	ring_write(&bed->ring, fd, bed->uffd.page, 1, 0, flags, 0);
	ASSERT_EQ(0, ring_submit(&bed->ring));
	ASSERT_EQ(0, uffd_wait(&bed->uffd));
}

static void one_worker(struct __test_metadata *_metadata, struct bed *bed)
{
	if (!ring_max_workers(&bed->ring, 1, 1))
		return;
	rmdir(INSTANCE);
	SKIP(exit(KSFT_SKIP), "can't limit workers");
}

/*
 * The trigger is the test's own write to a pipe. A default ring's task runs its
 * queue when it is back from that, a DEFER_TASKRUN ring's when it waits, and
 * the SQ thread whenever it likes.
 */
static void expect_adds(struct __test_metadata *_metadata, struct bed *bed,
			unsigned int nr)
{
	unsigned int flags = bed->ring.flags, i;
	const char *wake;
	struct event *event;
	__u64 tctx;

	expect_exactly(_metadata, bed, "io_uring_task_work_add", bed->ctx, nr);
	tctx = event_hex(&bed->event[0], "tctx");
	EXPECT_EQ(!(flags & IORING_SETUP_DEFER_TASKRUN), !!tctx);
	for (i = 0; i < nr; i++) {
		event = &bed->event[i];
		EXPECT_EQ(tctx, event_hex(event, "tctx"));
		if (i)
			EXPECT_NE(event_hex(event - 1, "work"),
				  event_hex(event, "work"));
		if (flags & IORING_SETUP_DEFER_TASKRUN)
			wake = "none";
		else if (!event_int(event, "empty"))
			wake = "pending";
		else if (flags & IORING_SETUP_SQPOLL)
			wake = "sqpoll";
		else
			wake = "task";
		expect_text(_metadata, event, "wake", wake);
		if (!i || !(flags & IORING_SETUP_SQPOLL))
			EXPECT_EQ(!i, event_int(event, "empty"));
	}
}

static void expect_runs(struct __test_metadata *_metadata, struct bed *bed,
			unsigned int nr)
{
	unsigned int i, sum = 0;
	__u64 tctx;

	if (bed->ring.flags & IORING_SETUP_DEFER_TASKRUN) {
		expect_exactly(_metadata, bed, "io_uring_local_work_run",
			       bed->ctx, 1);
		EXPECT_EQ((int)nr, event_int(&bed->event[0], "count"));
		EXPECT_EQ(1, event_int(&bed->event[0], "loops"));
		return;
	}
	tctx = event_hex(&bed->event[0], "tctx");
	expect_events(_metadata, bed, "io_uring_task_work_run", "tctx", tctx,
		      1);
	for (i = 0; i < bed->nr_events; i++)
		sum += event_int(&bed->event[i], "count");
	EXPECT_EQ(nr, sum);
}

TEST_F(io_uring, add_and_run)
{
	struct bed *bed = &self->bed;
	struct ring *ring = &bed->ring;
	unsigned int i, nr = 5;
	int fds[2];

	ASSERT_EQ(0, pipe(fds));
	for (i = 0; i < nr; i++)
		ring_prep(ring, IORING_OP_POLL_ADD, fds[0], NULL, 0, 0, i)
			->poll32_events = POLLIN;
	ASSERT_EQ(0, ring_submit(ring));
	trace_only(_metadata, "io_uring_task_work_add");
	trace_add(_metadata, "io_uring_local_work_run");
	/* the SQ thread tells of each time that there is nothing to run */
	ASSERT_EQ(0, write_file(INSTANCE RUN_FILTER, "count > 0", 0));
	trace_add(_metadata, "io_uring_task_work_run");
	ASSERT_EQ(1, write(fds[1], "", 1));
	reap(_metadata, ring, nr);
	expect_adds(_metadata, bed, nr);
	expect_runs(_metadata, bed, nr);
}

/* Sleeps in io_uring_enter() of a ring of its own. */
struct waiter {
	struct ring ring;
	pthread_t thread;
	pid_t tid;
	unsigned int wants;
	/* where it sends a message when it has got what it wants, or -1 */
	int answer;
	int ready;
	int ret;
};

static void *waiter_thread(void *arg)
{
	struct waiter *waiter = arg;

	waiter->tid = gettid();
	waiter->ret = ring_init(&waiter->ring, RING_DEFER);
	__atomic_store_n(&waiter->ready, 1, __ATOMIC_RELEASE);
	if (waiter->ret)
		return NULL;
	waiter->ret = ring_wait(&waiter->ring, waiter->wants, DEADLINE_MS);
	if (waiter->answer >= 0) {
		msg_number(&waiter->ring, waiter->answer, PROBE, SILENT);
		ring_submit(&waiter->ring);
	}
	return NULL;
}

static void waiter_start(struct __test_metadata *_metadata,
			 struct waiter *waiter)
{
	__u64 end = now_ms() + DEADLINE_MS;

	ASSERT_EQ(0, pthread_create(&waiter->thread, NULL, waiter_thread,
				    waiter));
	while (!__atomic_load_n(&waiter->ready, __ATOMIC_ACQUIRE) ||
	       !is_asleep(waiter->tid)) {
		ASSERT_GT(end, now_ms());
		usleep(500);
	}
	/* on its way to sleep, it doesn't count yet */
	sleep_ms(SETTLE_MS);
}

static void waiter_join(struct __test_metadata *_metadata,
			struct waiter *waiter)
{
	ASSERT_EQ(0, pthread_join(waiter->thread, NULL));
	EXPECT_EQ(0, waiter->ret);
	ring_exit(&waiter->ring);
}

/* The last one that it waits for wakes it, the others are counted. */
TEST_F(io_uring, waiter)
{
	struct waiter waiter = { .wants = 3, .answer = -1 };
	struct bed *bed = &self->bed;
	unsigned int i;
	__u64 target;

	waiter_start(_metadata, &waiter);
	trace_only(_metadata, "io_uring_task_work_add");
	trace_add(_metadata, "io_uring_msg_send");
	for (i = 0; i < waiter.wants; i++) {
		msg_number(&bed->ring, waiter.ring.fd, i, 0);
		submit_and_reap(_metadata, &bed->ring, 1);
	}
	waiter_join(_metadata, &waiter);
	expect_exactly(_metadata, bed, "io_uring_msg_send", bed->ctx,
		       waiter.wants);
	target = event_hex(&bed->event[0], "target");
	expect_exactly(_metadata, bed, "io_uring_task_work_add", target,
		       waiter.wants);
	for (i = 0; i < waiter.wants; i++) {
		EXPECT_EQ(!i, event_int(&bed->event[i], "empty"));
		EXPECT_EQ(0ULL, event_hex(&bed->event[i], "tctx"));
		expect_text(_metadata, &bed->event[i], "wake",
			    i < waiter.wants - 1 ? "counted" : "waiter");
	}
}

/* Whether the waiter is woken here or elsewhere is up to the scheduler. */
TEST_F(io_uring, sender_that_waits)
{
	struct __kernel_timespec ts = { .tv_sec = DEADLINE_MS / 1000 };
	struct io_uring_getevents_arg arg = { .ts = (unsigned long)&ts };
	struct bed *bed = &self->bed;
	struct waiter waiter = { .wants = 1, .answer = bed->ring.fd };
	struct ring *ring = &bed->ring;
	struct event *event = &bed->event[0];
	__u64 target;

	if (variant->flags & IORING_SETUP_SQPOLL)
		SKIP(return, "the SQ thread sends");
	waiter_start(_metadata, &waiter);
	trace_only(_metadata, "io_uring_task_work_add");
	trace_add(_metadata, "io_uring_msg_send");
	msg_number(ring, waiter.ring.fd, 1, SILENT);
	__atomic_store_n(ring->sq_tail, ring->sqe_tail, __ATOMIC_RELEASE);
	ASSERT_EQ(1, ring_enter(ring, 1, 1, IORING_ENTER_GETEVENTS |
				IORING_ENTER_EXT_ARG, &arg, sizeof(arg)));
	reap(_metadata, ring, 1);
	waiter_join(_metadata, &waiter);
	expect_exactly(_metadata, bed, "io_uring_msg_send", bed->ctx, 1);
	target = event_hex(event, "target");
	expect_exactly(_metadata, bed, "io_uring_task_work_add", target, 1);
	EXPECT_TRUE(event_is(event, "wake", "waiter") ||
		    event_is(event, "wake", "waiter here")) {
		TH_LOG("%s", event->body);
	}
}

static void check_next(struct __test_metadata *_metadata, struct event *event,
		       __u64 user_data, const char *opcode, const char *next)
{
	EXPECT_EQ(user_data, event_hex(event, "user_data"));
	expect_text(_metadata, event, "opcode", opcode);
	expect_text(_metadata, event, "next", next);
}

/* Each event is about the one that comes next, the first being @first. */
static void expect_next(struct __test_metadata *_metadata, struct bed *bed,
			unsigned int first, unsigned int nr, const char *opcode,
			const char *next)
{
	unsigned int i;

	expect_exactly(_metadata, bed, "io_uring_link_next", bed->ctx, nr);
	for (i = 0; i < nr; i++)
		check_next(_metadata, &bed->event[i], first + i, opcode, next);
}

TEST_F(io_uring, link_not_hashed)
{
	struct bed *bed = &self->bed;
	unsigned int i, nr = 4;

	trace_only(_metadata, "io_uring_link_next");
	for (i = 0; i < nr; i++)
		ring_nop(&bed->ring, i < nr - 1 ? SOFT : ASYNC, i);
	submit_and_reap(_metadata, &bed->ring, nr);
	expect_next(_metadata, bed, 1, nr - 1, "NOP", "worker, not hashed");
}

TEST_F(io_uring, link_not_async)
{
	struct bed *bed = &self->bed;

	trace_only(_metadata, "io_uring_link_next");
	ring_nop(&bed->ring, SOFT, 1);
	ring_nop(&bed->ring, 0, 2);
	submit_and_reap(_metadata, &bed->ring, 2);
	expect_next(_metadata, bed, 2, 1, "NOP",
		    variant->flags & IORING_SETUP_DEFER_TASKRUN ?
		    "task, not async" : "worker, not hashed");
}

TEST_F(io_uring, link_same_hash)
{
	struct bed *bed = &self->bed;
	unsigned int i, nr = 4;
	int fd;

	fd = new_file(_metadata, bed);
	trace_only(_metadata, "io_uring_link_next");
	for (i = 0; i < nr; i++)
		ring_write(&bed->ring, fd, "", 1, 0, i < nr - 1 ? SOFT : ASYNC,
			   i);
	submit_and_reap(_metadata, &bed->ring, nr);
	expect_next(_metadata, bed, 1, nr - 1, "WRITE", "worker, same hash");
}

/* From no hash to one, and from that to another. */
TEST_F(io_uring, link_hash_is_free)
{
	struct bed *bed = &self->bed;
	int fd[2], hash[2];

	two_files(_metadata, bed, fd, hash);
	trace_only(_metadata, "io_uring_link_next");
	ring_nop(&bed->ring, SOFT, 0);
	ring_write(&bed->ring, fd[0], "", 1, 0, SOFT, 1);
	ring_write(&bed->ring, fd[1], "", 1, 0, ASYNC, 2);
	submit_and_reap(_metadata, &bed->ring, 3);
	expect_next(_metadata, bed, 1, 2, "WRITE", "worker, hash is free");
}

TEST_F(io_uring, link_hash_is_busy)
{
	struct bed *bed = &self->bed;
	int fd[2], hash[2];

	two_files(_metadata, bed, fd, hash);
	start_held_write(_metadata, bed, fd[1], ASYNC);
	trace_only(_metadata, "io_uring_link_next");
	ring_write(&bed->ring, fd[0], "", 1, 0, SOFT, 1);
	ring_write(&bed->ring, fd[1], "", 1, 0, ASYNC, 2);
	ASSERT_EQ(0, ring_submit(&bed->ring));
	reap(_metadata, &bed->ring, 1);
	ASSERT_EQ(0, uffd_release(&bed->uffd));
	reap(_metadata, &bed->ring, 2);
	expect_next(_metadata, bed, 2, 1, "WRITE", "queue, hash is busy");
}

/* The worker has another write of the chain to do when it comes to the link. */
TEST_F(io_uring, link_after_hashed_work)
{
	struct bed *bed = &self->bed;
	int fd;

	fd = new_file(_metadata, bed);
	start_held_write(_metadata, bed, fd, ASYNC);
	trace_only(_metadata, "io_uring_link_next");
	ring_write(&bed->ring, fd, "", 1, 0, SOFT, 1);
	ring_nop(&bed->ring, ASYNC, 2);
	ring_write(&bed->ring, fd, "", 1, 0, ASYNC, 3);
	ASSERT_EQ(0, ring_submit(&bed->ring));
	ASSERT_EQ(0, uffd_release(&bed->uffd));
	reap(_metadata, &bed->ring, 4);
	expect_next(_metadata, bed, 2, 1, "NOP", "queue, hashed work first");
}

static void expect_pull(struct __test_metadata *_metadata,
			const struct event *event, __u64 user_data, int hash,
			int count, int again)
{
	EXPECT_EQ(user_data, event_hex(event, "user_data"));
	EXPECT_EQ(hash, event_int(event, "hash"));
	EXPECT_EQ(count, event_int(event, "count"));
	EXPECT_EQ(again, event_int(event, "again"));
}

TEST_F(io_uring, pull_single)
{
	struct bed *bed = &self->bed;

	trace_only(_metadata, "io_uring_wq_pull");
	ring_nop(&bed->ring, ASYNC, 7);
	submit_and_reap(_metadata, &bed->ring, 1);
	expect_exactly(_metadata, bed, "io_uring_wq_pull", bed->ctx, 1);
	expect_pull(_metadata, &bed->event[0], 7, -1, 1, 0);
}

/* What was queued while a worker held the hash is pulled by that worker. */
TEST_F(io_uring, pull_again)
{
	struct bed *bed = &self->bed;
	unsigned int i, nr = 6;
	int fd, hash;

	fd = new_file(_metadata, bed);
	hash = hash_of(_metadata, bed, fd);
	ring_settle(&bed->ring);
	trace_only(_metadata, "io_uring_wq_pull");
	start_held_write(_metadata, bed, fd, ASYNC);
	for (i = 1; i <= nr; i++)
		ring_write(&bed->ring, fd, "", 1, 0, ASYNC, i);
	ASSERT_EQ(0, ring_submit(&bed->ring));
	ASSERT_EQ(0, uffd_release(&bed->uffd));
	reap(_metadata, &bed->ring, nr + 1);
	expect_exactly(_metadata, bed, "io_uring_wq_pull", bed->ctx, 2);
	expect_pull(_metadata, &bed->event[0], 0, hash, 1, 0);
	expect_pull(_metadata, &bed->event[1], 1, hash, nr, 1);
	EXPECT_NE(event_hex(&bed->event[0], "req"),
		  event_hex(&bed->event[1], "req"));
}

/* What was queued while the only worker was busy elsewhere is a batch as well. */
TEST_F(io_uring, pull_chain)
{
	struct bed *bed = &self->bed;
	unsigned int i, nr = 6;
	int fd[2], hash[2];

	one_worker(_metadata, bed);
	two_files(_metadata, bed, fd, hash);
	trace_only(_metadata, "io_uring_wq_pull");
	start_held_write(_metadata, bed, fd[0], ASYNC);
	for (i = 1; i <= nr; i++)
		ring_write(&bed->ring, fd[1], "", 1, 0, ASYNC, i);
	ASSERT_EQ(0, ring_submit(&bed->ring));
	ASSERT_EQ(0, uffd_release(&bed->uffd));
	reap(_metadata, &bed->ring, nr + 1);
	expect_exactly(_metadata, bed, "io_uring_wq_pull", bed->ctx, 2);
	expect_pull(_metadata, &bed->event[0], 0, hash[0], 1, 0);
	expect_pull(_metadata, &bed->event[1], 1, hash[1], nr, 0);
}

/* A DEFER_TASKRUN ring posts its CQEs itself, whatever the requests hold. */
static void check_return(struct __test_metadata *_metadata, struct bed *bed,
			 const struct event *event, const char *how)
{
	if (bed->ring.flags & IORING_SETUP_DEFER_TASKRUN)
		how = "task, posts the CQE";
	expect_text(_metadata, event, "how", how);
}

static void expect_returns(struct __test_metadata *_metadata, struct bed *bed,
			   unsigned int nr, const char *how)
{
	unsigned int i;

	expect_exactly(_metadata, bed, "io_uring_wq_return", bed->ctx, nr);
	for (i = 0; i < nr; i++)
		check_return(_metadata, bed, &bed->event[i], how);
}

TEST_F(io_uring, return_memory)
{
	struct bed *bed = &self->bed;
	unsigned int i, nr = 4;

	trace_only(_metadata, "io_uring_wq_return");
	for (i = 0; i < nr; i++)
		ring_nop(&bed->ring, ASYNC, i);
	submit_and_reap(_metadata, &bed->ring, nr);
	expect_returns(_metadata, bed, nr, "list");
	for (i = 1; i < nr; i++)
		EXPECT_NE(event_hex(&bed->event[0], "req"),
			  event_hex(&bed->event[i], "req"));
}

TEST_F(io_uring, return_fixed_file)
{
	struct bed *bed = &self->bed;
	int fd;

	fd = new_file(_metadata, bed);
	ASSERT_EQ(0, ring_register(&bed->ring, IORING_REGISTER_FILES, &fd, 1));
	trace_only(_metadata, "io_uring_wq_return");
	ring_write(&bed->ring, 0, "", 1, 0, ASYNC | IOSQE_FIXED_FILE, 1);
	submit_and_reap(_metadata, &bed->ring, 1);
	expect_returns(_metadata, bed, 1, "task work, holds a resource");
}

/* The drained request goes to io-wq as well, but after the other one. */
TEST_F(io_uring, return_as_ring_drains)
{
	struct bed *bed = &self->bed;
	int fd;

	fd = new_file(_metadata, bed);
	start_held_write(_metadata, bed, fd, ASYNC);
	trace_only(_metadata, "io_uring_wq_return");
	ring_nop(&bed->ring, IOSQE_IO_DRAIN, 1);
	ASSERT_EQ(0, ring_submit(&bed->ring));
	ASSERT_EQ(0, uffd_release(&bed->uffd));
	reap(_metadata, &bed->ring, 2);
	expect_events(_metadata, bed, "io_uring_wq_return", "ring", bed->ctx,
		      1);
	check_return(_metadata, bed, &bed->event[0], "task work, ring drains");
}

static bool returns_to_list(struct ring *ring)
{
	return !(ring->flags & IORING_SETUP_DEFER_TASKRUN);
}

/* Requests that the ring doesn't know to be done with, and that all are. */
static void return_nops(struct __test_metadata *_metadata, struct bed *bed,
			unsigned int nr)
{
	unsigned int i;

	trace_only(_metadata, "io_uring_wq_return");
	trace_add(_metadata, "io_uring_wq_take");
	for (i = 0; i < nr; i++)
		ring_nop(&bed->ring, ASYNC, i);
	submit_and_reap(_metadata, &bed->ring, nr);
	expect_returns(_metadata, bed, nr, "list");
}

TEST_F(io_uring, take_to_refill)
{
	struct bed *bed = &self->bed;
	unsigned int i, sum = 0, nr = 3 * REQ_BATCH;

	if (!returns_to_list(&bed->ring))
		SKIP(return, "the task gets all requests");
	return_nops(_metadata, bed, nr);
	/* more than are allocated so far */
	for (i = 0; i < nr + 2 * REQ_BATCH; i++)
		ring_nop(&bed->ring, 0, i);
	submit_and_reap(_metadata, &bed->ring, nr + 2 * REQ_BATCH);
	expect_events(_metadata, bed, "io_uring_wq_take", "ring", bed->ctx, 1);
	for (i = 0; i < bed->nr_events; i++) {
		expect_text(_metadata, &bed->event[i], "why", "refill");
		EXPECT_LT(0, event_int(&bed->event[i], "count"));
		sum += event_int(&bed->event[i], "count");
	}
	EXPECT_EQ(nr, sum);
}

TEST_F(io_uring, take_to_drain)
{
	struct bed *bed = &self->bed;
	int nr = REQ_BATCH / 2;

	if (!returns_to_list(&bed->ring))
		SKIP(return, "the task gets all requests");
	return_nops(_metadata, bed, nr);
	ring_nop(&bed->ring, IOSQE_IO_DRAIN, nr);
	submit_and_reap(_metadata, &bed->ring, 1);
	expect_exactly(_metadata, bed, "io_uring_wq_take", bed->ctx, 1);
	EXPECT_EQ(nr, event_int(&bed->event[0], "count"));
	expect_text(_metadata, &bed->event[0], "why", "drain");
}

/* A process with a ring, which it leaves to exec() when it's told to. */
struct leaver {
	unsigned int flags;
	unsigned int nr;
	int done[2];
	int go[2];
};

static int leave(struct leaver *leaver)
{
	struct ring ring;
	unsigned int i;
	char c;

	if (ring_init(&ring, leaver->flags))
		return 1;
	for (i = 0; i < leaver->nr; i++)
		ring_nop(&ring, ASYNC, PROBE);
	if (ring_submit(&ring) || ring_wait(&ring, leaver->nr, DEADLINE_MS) ||
	    write(leaver->done[1], "", 1) != 1 ||
	    read(leaver->go[0], &c, 1) != 1)
		return 2;
	execl("/bin/true", "true", NULL);
	return 3;
}

TEST_F(io_uring, take_to_cancel)
{
	struct bed *bed = &self->bed;
	struct leaver leaver = {
		.flags	= variant->flags,
		.nr	= REQ_BATCH / 2,
	};
	__u64 ctx;
	pid_t pid;
	char c;

	if (!returns_to_list(&bed->ring))
		SKIP(return, "the task gets all requests");
	if (access("/bin/true", X_OK))
		SKIP(return, "no /bin/true");
	ASSERT_EQ(0, pipe(leaver.done));
	ASSERT_EQ(0, pipe(leaver.go));
	trace_only(_metadata, "io_uring_wq_return");
	trace_add(_metadata, "io_uring_wq_take");
	trace_add(_metadata, "io_uring_submit_req");
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid)
		_exit(leave(&leaver));
	close(leaver.done[1]);
	ASSERT_EQ(1, read(leaver.done[0], &c, 1));
	ctx = ctx_of(_metadata, bed, PROBE);
	EXPECT_NE(bed->ctx, ctx);
	expect_exactly(_metadata, bed, "io_uring_wq_return", ctx, leaver.nr);
	expect_exactly(_metadata, bed, "io_uring_wq_take", ctx, 0);
	ASSERT_EQ(1, write(leaver.go[1], "", 1));
	ASSERT_EQ(0, child_wait(pid));
	expect_exactly(_metadata, bed, "io_uring_wq_take", ctx, 1);
	EXPECT_EQ((int)leaver.nr, event_int(&bed->event[0], "count"));
	expect_text(_metadata, &bed->event[0], "why", "cancel");
}

TEST_F(io_uring, take_as_ring_is_closed)
{
	struct bed *bed = &self->bed;
	int nr = REQ_BATCH / 2;

	if (!returns_to_list(&bed->ring))
		SKIP(return, "the task gets all requests");
	return_nops(_metadata, bed, nr);
	close(bed->ring.fd);
	/* the mappings have a reference as well */
	munmap(bed->ring.sqes, bed->ring.sqes_size);
	munmap(bed->ring.ring_map, bed->ring.ring_size);
	expect_exactly(_metadata, bed, "io_uring_wq_take", bed->ctx, 1);
	EXPECT_EQ(nr, event_int(&bed->event[0], "count"));
	EXPECT_TRUE(event_is(&bed->event[0], "why", "cancel") ||
		    event_is(&bed->event[0], "why", "free"));
	/* for the teardown */
	ASSERT_EQ(0, ring_init(&bed->ring, 0));
}

#define NR_MSGS		3U

/* @ctx: the sender, 0 if it isn't known, work: where they are */
static void expect_msgs(struct __test_metadata *_metadata, struct bed *bed,
			__u64 ctx, __u64 target, int recycled,
			__u64 work[NR_MSGS])
{
	struct event *event;
	unsigned int i;

	expect_events(_metadata, bed, "io_uring_msg_send", "target", target,
		      NR_MSGS);
	ASSERT_EQ(NR_MSGS, bed->nr_events);
	for (i = 0; i < NR_MSGS; i++) {
		event = &bed->event[i];
		EXPECT_EQ(ctx, event_hex(event, "ring"));
		EXPECT_EQ(i, event_hex(event, "user_data"));
		EXPECT_EQ(recycled, event_int(event, "recycled"));
		work[i] = event_hex(event, "work");
	}
	expect_exactly(_metadata, bed, "io_uring_task_work_add", target,
		       NR_MSGS);
	for (i = 0; i < NR_MSGS; i++) {
		event = &bed->event[i];
		EXPECT_EQ(0ULL, event_hex(event, "tctx"));
		EXPECT_EQ(work[i], event_hex(event, "work"));
		EXPECT_EQ(!i, event_int(event, "empty"));
		expect_text(_metadata, event, "wake", "none");
	}
}

static void send_msgs(struct __test_metadata *_metadata, struct ring *ring,
		      struct ring *target)
{
	struct msg msg;
	unsigned int i;

	trace_only(_metadata, "io_uring_msg_send");
	trace_add(_metadata, "io_uring_task_work_add");
	for (i = 0; i < NR_MSGS; i++) {
		if (ring) {
			msg_number(ring, target->fd, i, 0);
			continue;
		}
		msg = (struct msg){ .user_data = i, .res = i };
		ASSERT_EQ(0, msg_sync(target->fd, &msg));
	}
	if (ring)
		submit_and_reap(_metadata, ring, NR_MSGS);
}

TEST_F(io_uring, messages)
{
	__u64 ctx, first[NR_MSGS], work[NR_MSGS];
	struct bed *bed = &self->bed;
	unsigned int i, j, found = 0;
	bool kasan = has_kasan();
	struct ring target;

	ASSERT_EQ(0, ring_init(&target, RING_DEFER));
	ctx = probe(_metadata, bed, &target);
	EXPECT_NE(bed->ctx, ctx);

	send_msgs(_metadata, &bed->ring, &target);
	expect_msgs(_metadata, bed, bed->ctx, ctx, 0, first);
	reap(_metadata, &target, NR_MSGS);

	/* by now, the target has put them where the sender finds them */
	send_msgs(_metadata, &bed->ring, &target);
	expect_msgs(_metadata, bed, bed->ctx, ctx, !kasan, work);
	reap(_metadata, &target, NR_MSGS);
	for (i = 0; i < NR_MSGS; i++)
		for (j = 0; j < NR_MSGS; j++)
			found += work[i] == first[j];
	if (!kasan)
		EXPECT_EQ(NR_MSGS, found);

	if (msg_sync_supported()) {
		send_msgs(_metadata, NULL, &target);
		expect_msgs(_metadata, bed, 0, ctx, 0, work);
		reap(_metadata, &target, NR_MSGS);
	}
	ring_exit(&target);
}

/* Others get their CQEs from the sender. */
TEST_F(io_uring, messages_to_others)
{
	bool defer = variant->flags & IORING_SETUP_DEFER_TASKRUN;
	struct bed *bed = &self->bed;
	struct ring sender;

	ASSERT_EQ(0, ring_init(&sender, 0));
	send_msgs(_metadata, &sender, &bed->ring);
	reap(_metadata, &bed->ring, NR_MSGS);
	expect_events(_metadata, bed, "io_uring_msg_send", "target", bed->ctx,
		      0);
	EXPECT_EQ(defer ? NR_MSGS : 0, bed->nr_events);
	expect_exactly(_metadata, bed, "io_uring_task_work_add", bed->ctx,
		       defer ? NR_MSGS : 0);
	ring_exit(&sender);
}

/* Tools read these, and those of before are older than this test. */
struct format {
	const char *name;
	const char *fields;
	const char *print;
};

static const struct format formats[] = {
	{
		"io_uring_complete",
		"void * ctx, void * req, u64 user_data, int res, unsigned cflags, u64 extra1, u64 extra2, ",
		"\"ring %p, req %p, user_data 0x%llx, result %d, cflags 0x%x extra1 %llu extra2 %llu \"",
	},
	{
		"io_uring_task_work_run",
		"void * tctx, unsigned int count, ",
		"\"tctx %p, count %u\"",
	},
	{
		"io_uring_local_work_run",
		"void * ctx, int count, unsigned int loops, ",
		"\"ring %p, count %d, loops %u\"",
	},
	{
		"io_uring_task_work_add",
		"void * ctx, void * tctx, void * work, bool empty, int wake, ",
		"\"ring %p, tctx %p, work %p, empty %d, wake %s\"",
	},
	{
		"io_uring_link_next",
		"void * ctx, void * req, unsigned long long user_data, u8 opcode, int next, __data_loc char[] op_str, ",
		"\"ring %p, req %p, user_data 0x%llx, opcode %s, next %s\"",
	},
	{
		"io_uring_wq_pull",
		"void * ctx, void * req, unsigned long long user_data, int hash, unsigned int count, bool again, ",
		"\"ring %p, req %p, user_data 0x%llx, hash %d, count %u, again %d\"",
	},
	{
		"io_uring_wq_return",
		"void * ctx, void * req, int how, ",
		"\"ring %p, req %p, how %s\"",
	},
	{
		"io_uring_wq_take",
		"void * ctx, unsigned int count, int why, ",
		"\"ring %p, count %u, why %s\"",
	},
	{
		"io_uring_msg_send",
		"void * ctx, void * target, void * work, unsigned long long user_data, bool recycled, ",
		"\"ring %p, target %p, work %p, user_data 0x%llx, recycled %d\"",
	},
};

static void expect_format(struct __test_metadata *_metadata,
			  const struct format *format)
{
	char path[128], fields[512] = "", print[512] = "", *pos, *line, *field;
	size_t len = strlen(format->print);

	snprintf(path, sizeof(path), EVENTS "/%s/format", format->name);
	pos = trace_text(_metadata, path);
	while ((line = strsep(&pos, "\n"))) {
		if (!strncmp(line, "print fmt: ", 11)) {
			snprintf(print, sizeof(print), "%s", line + 11);
			continue;
		}
		field = strstr(line, "field:");
		if (!field || strstr(field, " common_"))
			continue;
		field += strlen("field:");
		snprintf(fields + strlen(fields),
			 sizeof(fields) - strlen(fields), "%.*s, ",
			 (int)strcspn(field, ";"), field);
	}
	EXPECT_STREQ(format->fields, fields);
	EXPECT_EQ(0, strncmp(format->print, print, len)) {
		TH_LOG("%s", print);
	}
}

TEST(event_formats)
{
	unsigned int i, nr = 0;
	char path[128];

	if (geteuid())
		SKIP(return, "not root");
	if (!tracefs_mounted())
		SKIP(return, "no tracefs");
	if (kernel_before(6, 12))
		SKIP(return, "io_uring_task_work_run counted its loops");
	for (i = 0; i < ARRAY_SIZE(formats); i++) {
		snprintf(path, sizeof(path), EVENTS "/%s", formats[i].name);
		if (access(path, F_OK))
			continue;
		expect_format(_metadata, &formats[i]);
		nr++;
	}
	if (!nr)
		SKIP(return, "no events");
}

TEST_HARNESS_MAIN
