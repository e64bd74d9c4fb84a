// SPDX-License-Identifier: GPL-2.0
/*
 * A task that waits for several CQEs at once, in one call of io_uring_enter(),
 * while io-wq's workers complete requests one by one: it gets them all, and
 * isn't left asleep.
 */
#include <poll.h>
#include <pthread.h>

#include "ring.h"

#define ASYNC		IOSQE_ASYNC
#define LINK		IOSQE_IO_LINK

#define MAX_CQES	64

static const struct __kernel_timespec hour = { .tv_sec = 3600 };

/* What most requests begin with can't go on before the FIFO is opened. */
struct bed {
	struct ring ring;
	struct fifo fifo;
	struct fifo later;
	/* what is going to be waited for, by user_data */
	int res[MAX_CQES];
	unsigned int nr;
	unsigned int first_message;
	unsigned int messages;
	pid_t tid;
	/* by the thread that opens the FIFO, and writes to the pipes */
	int pipes[2][2];
	unsigned int nr_pipes;
	int opened;
	int error;
};

#include "bed.h"

static void bed_init(struct __test_metadata *_metadata, struct bed *bed)
{
	ASSERT_EQ(0, fifo_make(&bed->fifo));
	ASSERT_EQ(0, fifo_make(&bed->later));
	bed->tid = gettid();
}

FIXTURE_TEARDOWN(io_uring)
{
	fifo_remove(&self->bed.fifo);
	fifo_remove(&self->bed.later);
	ring_exit(&self->bed.ring);
}

/* The next request has such a CQE. Any descriptor is as good as any other. */
static __u64 expect(struct bed *bed, int res)
{
	if (bed->nr == MAX_CQES)
		abort();
	bed->res[bed->nr] = res;
	return bed->nr++;
}

/*
 * Each letter is a request:
 *
 *   o: async, waits until the FIFO is opened
 *   a: async
 *   n: not async
 *   s: async, has no CQE
 *   b: async, fails
 *   x, y: async or not, canceled because of that
 *   t: a timeout for the one before, canceled
 */
static void prep(struct bed *bed, char what, unsigned int flags)
{
	struct ring *ring = &bed->ring;

	switch (what) {
	case 'o':
		ring_open(ring, bed->fifo.path, O_RDONLY | O_CLOEXEC,
			  flags | ASYNC, expect(bed, 0));
		break;
	case 'a':
		ring_nop(ring, flags | ASYNC, expect(bed, 0));
		break;
	case 'n':
		ring_nop(ring, flags, expect(bed, 0));
		break;
	case 's':
		ring_nop(ring, flags | ASYNC | IOSQE_CQE_SKIP_SUCCESS,
			 MAX_CQES);
		break;
	case 'b':
		ring_bad(ring, flags | ASYNC, expect(bed, -EBADF));
		break;
	case 'x':
		ring_nop(ring, flags | ASYNC, expect(bed, -ECANCELED));
		break;
	case 'y':
		ring_nop(ring, flags, expect(bed, -ECANCELED));
		break;
	case 't':
		ring_link_timeout(ring, &hour, flags, expect(bed, -ECANCELED));
		break;
	default:
		abort();
	}
}

static void prep_link(struct bed *bed, const char *link)
{
	for (; *link; link++)
		prep(bed, *link, link[1] ? LINK : 0);
}

static void prep_links(struct bed *bed, const char *link, unsigned int nr)
{
	while (nr--)
		prep_link(bed, link);
}

/* Not waited for, as its FIFO is opened later. */
static void prep_later(struct bed *bed)
{
	ring_open(&bed->ring, bed->later.path, O_RDONLY | O_CLOEXEC, ASYNC,
		  MAX_CQES);
}

/* As many CQEs as that have been posted, whatever they are. */
static void prep_timeout(struct bed *bed, unsigned int count)
{
	ring_prep(&bed->ring, IORING_OP_TIMEOUT, -1, &hour, 1, 0,
		  expect(bed, 0))->off = count;
}

/* Of another ring, half of them before the FIFO is opened. */
static void prep_messages(struct bed *bed, unsigned int nr)
{
	bed->first_message = bed->nr;
	bed->messages = nr;
	while (nr--)
		expect(bed, 0);
}

static int send_messages(struct bed *bed, struct ring *ring, unsigned int nr)
{
	while (nr--) {
		ring_prep(ring, IORING_OP_MSG_RING, bed->ring.fd, NULL, 0, 0, 0)
			->off = bed->first_message++;
		bed->messages--;
	}
	return ring_submit(ring);
}

static void *release(void *arg)
{
	__u64 end = now_ms() + SETTLE_MS;
	struct bed *bed = arg;
	struct ring ring;
	unsigned int i;

	bed->error = ring_init(&ring, 0);
	if (bed->error)
		return NULL;
	/* it is meant to sleep, but has to get its CQEs if it doesn't, too */
	while (!is_asleep(bed->tid) && now_ms() < end)
		usleep(50);
	bed->error = send_messages(bed, &ring, bed->messages / 2);
	bed->opened = fifo_release(&bed->fifo);
	for (i = 0; i < bed->nr_pipes; i++)
		if (write(bed->pipes[i][1], "x", 1) != 1)
			bed->error = -EIO;
	if (!bed->error)
		bed->error = send_messages(bed, &ring, bed->messages);
	ring_exit(&ring);
	return NULL;
}

static void wait_for(struct __test_metadata *_metadata, struct ring *ring,
		     unsigned int nr)
{
	__u64 end = now_ms() + DEADLINE_MS;

	ASSERT_EQ(0, ring_wait(ring, nr, DEADLINE_MS));
	EXPECT_GT(end, now_ms()) {
		TH_LOG("nobody woke the task that waits for %u CQEs", nr);
	}
}

static void check_cqe(struct __test_metadata *_metadata, struct bed *bed,
		      bool *seen)
{
	struct cqe cqe;
	int res;

	ASSERT_EQ(0, ring_next(&bed->ring, &cqe));
	ASSERT_GT(bed->nr, cqe.user_data);
	EXPECT_FALSE(seen[cqe.user_data]);
	seen[cqe.user_data] = true;
	res = bed->res[cqe.user_data];
	if (!res && cqe.res > 0)
		close(cqe.res);
	else
		EXPECT_EQ(res, cqe.res);
}

/* All CQEs are there when the task goes on, or a counted timeout has fired. */
static void run(struct __test_metadata *_metadata, struct bed *bed)
{
	bool seen[MAX_CQES] = {};
	pthread_t thread;
	unsigned int i;

	ASSERT_EQ(0, ring_submit(&bed->ring));
	ASSERT_EQ(0, pthread_create(&thread, NULL, release, bed));
	wait_for(_metadata, &bed->ring, bed->nr);
	for (i = 0; i < bed->nr; i++)
		check_cqe(_metadata, bed, seen);
	ASSERT_EQ(0, pthread_join(thread, NULL));
	EXPECT_EQ(0, bed->error);
	EXPECT_EQ(0U, ring_ready(&bed->ring));
	close(bed->opened);
	bed->nr = 0;
}

/* Each a link of its own, some times over: how many CQEs to wait for. */
static const unsigned int counts[] = { 2, 3, 8, 32 };

static void run_counts(struct __test_metadata *_metadata, struct bed *bed,
		       const char *link)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(counts); i++) {
		do {
			prep_link(bed, link);
		} while (bed->nr < counts[i]);
		run(_metadata, bed);
	}
}

TEST_F(io_uring, unlinked)
{
	run_counts(_metadata, &self->bed, "o");
}

/* The worker goes on with the link up to its end. */
TEST_F(io_uring, links)
{
	run_counts(_metadata, &self->bed, "oa");
	run_counts(_metadata, &self->bed, "oaaaaaaa");
}

/* One request from a worker stands for all CQEs of the link. */
TEST_F(io_uring, links_that_the_task_goes_on_with)
{
	run_counts(_metadata, &self->bed, "on");
	run_counts(_metadata, &self->bed, "onnn");
	run_counts(_metadata, &self->bed, "oannann");
}

TEST_F(io_uring, links_that_fail)
{
	run_counts(_metadata, &self->bed, "obx");
	run_counts(_metadata, &self->bed, "oabxyxy");
	run_counts(_metadata, &self->bed, "byyy");
}

TEST_F(io_uring, links_with_timeouts)
{
	run_counts(_metadata, &self->bed, "ot");
	run_counts(_metadata, &self->bed, "otaat");
	run_counts(_metadata, &self->bed, "oatnnt");
}

/* More requests are done than there are CQEs. */
TEST_F(io_uring, skipped_cqes)
{
	run_counts(_metadata, &self->bed, "osssa");
	run_counts(_metadata, &self->bed, "ossnsn");
}

/* What is drained is issued by the task, once all others are done. */
TEST_F(io_uring, drained)
{
	struct bed *bed = &self->bed;
	unsigned int i;

	for (i = 1; i < 6; i++) {
		prep_links(bed, i % 2 ? "o" : "oaa", i);
		prep(bed, 'n', IOSQE_IO_DRAIN);
		prep_links(bed, "a", i);
		run(_metadata, bed);
	}
}

/* The timeout is done when there are so many CQEs, and has one itself. */
TEST_F(io_uring, counted_timeout)
{
	struct bed *bed = &self->bed;
	unsigned int i;

	for (i = 1; i < 6; i++) {
		prep_links(bed, "o", i);
		prep_timeout(bed, i);
		run(_metadata, bed);
	}
}

/* The next request of the link has no CQE for now. */
TEST_F(io_uring, counted_timeout_within_link)
{
	struct bed *bed = &self->bed;
	unsigned int i;
	struct cqe cqe;
	int later;

	for (i = 1; i < 6; i++) {
		prep(bed, 'o', LINK);
		prep(bed, 'a', LINK);
		prep_later(bed);
		prep_timeout(bed, 2);
		run(_metadata, bed);
		later = fifo_release(&bed->later);
		ASSERT_EQ(0, ring_next(&bed->ring, &cqe));
		EXPECT_EQ((__u64)MAX_CQES, cqe.user_data);
		close(cqe.res);
		close(later);
	}
}

/* No worker takes part in that, but each poll may wait for the next. */
TEST_F(io_uring, counted_timeout_and_polls)
{
	struct bed *bed = &self->bed;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(bed->pipes); i++) {
		ASSERT_EQ(0, pipe2(bed->pipes[i], O_CLOEXEC));
		ring_prep(&bed->ring, IORING_OP_POLL_ADD, bed->pipes[i][0],
			  NULL, 0, 0, expect(bed, POLLIN))
			->poll32_events = POLLIN;
	}
	bed->nr_pipes = i;
	prep_timeout(bed, i);
	run(_metadata, bed);
	for (i = 0; i < ARRAY_SIZE(bed->pipes); i++) {
		close(bed->pipes[i][0]);
		close(bed->pipes[i][1]);
	}
}

TEST_F(io_uring, messages)
{
	struct bed *bed = &self->bed;

	prep_links(bed, "o", 8);
	prep_messages(bed, 8);
	run(_metadata, bed);

	prep_links(bed, "oaa", 4);
	prep_links(bed, "onn", 4);
	prep_messages(bed, 31);
	run(_metadata, bed);
}

TEST_F(io_uring, everything)
{
	static const char * const links[] = {
		"o", "oa", "on", "obx", "byy", "ossa", "ota", "a", "oann",
	};
	struct bed *bed = &self->bed;
	unsigned int i, round;

	for (round = 0; round < 20; round++) {
		for (i = 0; i < 8; i++)
			prep_link(bed, links[(round * 3 + i * 7) %
					     ARRAY_SIZE(links)]);
		if (round % 3)
			prep_messages(bed, round % 8);
		if (round % 4 == 3)
			prep_timeout(bed, round % 5 + 1);
		run(_metadata, bed);
	}
}

TEST_HARNESS_MAIN
