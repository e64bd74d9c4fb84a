// SPDX-License-Identifier: GPL-2.0
/*
 * An async read of a pipe or a socket that has no data leaves its worker for a
 * poll handler, and is queued to another worker when data arrives. That may be
 * before the first one is done with it. However the two meet, there is one CQE,
 * the link goes on behind it, and the file is neither closed as long as it is
 * open here nor kept open afterwards.
 */
#include <sys/socket.h>

#include "ring.h"
#include "trace_delay.h"

#define ASYNC		IOSQE_ASYNC
#define SOFT		(IOSQE_ASYNC | IOSQE_IO_LINK)

#define ROUNDS		64
#define READS		4U

/* user_data: that of a read is below READS, its link is READS further on */
#define CANCEL		(2 * READS)
#define NR_IDS		(CANCEL + 1)

/* no CQE so far */
#define NONE		INT_MIN

/* What a test does besides reading. */
#define LINKED		1
#define RECV		2
#define CANCELS		4
#define CLOSES		8

struct bed {
	struct ring ring;
	unsigned int how;
	unsigned int round;
	int file[READS];
	int peer[READS];
	int null;
	char data[READS];
	int res[NR_IDS];
	unsigned int pending;
};

FIXTURE(io_uring)
{
	struct bed bed;
};

#include "ring_variants.h"

FIXTURE_SETUP(io_uring)
{
	ring_setup(_metadata, &self->bed.ring, variant->flags);
	self->bed.null = open("/dev/null", O_WRONLY | O_CLOEXEC);
	ASSERT_LE(0, self->bed.null);
}

FIXTURE_TEARDOWN(io_uring)
{
	ring_exit(&self->bed.ring);
}

static void make_pairs(struct __test_metadata *_metadata, struct bed *bed)
{
	unsigned int i;
	int ret, pair[2];

	for (i = 0; i < READS; i++) {
		if (bed->how & RECV)
			ret = socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
		else
			ret = pipe(pair);
		ASSERT_EQ(0, ret);
		bed->file[i] = pair[0];
		bed->peer[i] = pair[1];
	}
}

static void prep_reads(struct bed *bed)
{
	__u8 opcode = bed->how & RECV ? IORING_OP_RECV : IORING_OP_READ;
	unsigned int i, flags = bed->how & LINKED ? SOFT : ASYNC;

	for (i = 0; i < READS; i++) {
		ring_prep(&bed->ring, opcode, bed->file[i], bed->data + i, 1,
			  flags, i);
		bed->pending++;
		if (bed->how & LINKED) {
			ring_nop(&bed->ring, ASYNC, READS + i);
			bed->pending++;
		}
	}
}

static void spin_us(unsigned int us)
{
	struct timespec from, ts;

	clock_gettime(CLOCK_MONOTONIC, &from);
	do {
		clock_gettime(CLOCK_MONOTONIC, &ts);
	} while ((ts.tv_sec - from.tv_sec) * 1000000 +
		 (ts.tv_nsec - from.tv_nsec) / 1000 < us);
}

/* The data comes at any time while the reads are on their way. */
static void write_data(struct __test_metadata *_metadata, struct bed *bed)
{
	char c = bed->round;
	unsigned int i;

	spin_us(bed->round % 32 * 16);
	for (i = 0; i < READS; i++)
		ASSERT_EQ(1, write(bed->peer[i], &c, 1)) {
			TH_LOG("it was closed: %s", strerror(errno));
		}
}

static void reap(struct __test_metadata *_metadata, struct bed *bed)
{
	struct cqe cqe;
	unsigned int i;

	for (i = 0; i < NR_IDS; i++)
		bed->res[i] = NONE;
	for (; bed->pending; bed->pending--) {
		ASSERT_EQ(0, ring_next(&bed->ring, &cqe)) {
			TH_LOG("%u more were expected", bed->pending);
		}
		ASSERT_GT(NR_IDS, cqe.user_data);
		if (cqe.user_data == CANCEL)
			continue;
		EXPECT_EQ(NONE, bed->res[cqe.user_data]);
		if (cqe.user_data >= READS)
			EXPECT_NE(NONE, bed->res[cqe.user_data - READS]);
		bed->res[cqe.user_data] = cqe.res;
	}
}

static void check_reads(struct __test_metadata *_metadata, struct bed *bed)
{
	bool cancelled;
	unsigned int i;

	for (i = 0; i < READS; i++) {
		cancelled = bed->how & CANCELS &&
			    was_cancelled(bed->res[i]);
		if (!cancelled) {
			EXPECT_EQ(1, bed->res[i]);
			EXPECT_EQ((char)bed->round, bed->data[i]);
		}
		if (bed->how & LINKED)
			EXPECT_EQ(cancelled ? -ECANCELED : 0,
				  bed->res[READS + i]);
	}
}

/* Before 6.5, RWF_NOWAIT is for neither of these files. */
static ssize_t drop_byte(struct bed *bed, int file)
{
	char c;

	if (bed->how & RECV)
		return recv(file, &c, 1, MSG_DONTWAIT);
	return splice(file, NULL, bed->null, NULL, 1, SPLICE_F_NONBLOCK);
}

/* A read of a closed ring may still be there to take the data first. */
static void drain(struct bed *bed)
{
	unsigned int i;

	for (i = 0; i < READS; i++)
		while (drop_byte(bed, bed->file[i]) == 1)
			;
}

static void run_round(struct __test_metadata *_metadata, struct bed *bed)
{
	prep_reads(bed);
	ASSERT_EQ(0, ring_submit(&bed->ring));
	write_data(_metadata, bed);
	if (bed->how & CANCELS) {
		ring_cancel(&bed->ring, bed->round % READS, 0, CANCEL);
		bed->pending++;
		ASSERT_EQ(0, ring_submit(&bed->ring));
	}
	if (bed->how & CLOSES) {
		bed->pending = 0;
		ring_exit(&bed->ring);
		ASSERT_EQ(0, ring_init(&bed->ring, bed->ring.flags));
	} else {
		reap(_metadata, bed);
		check_reads(_metadata, bed);
	}
	drain(bed);
}

/* The other side sees that no one has it open any more. */
static void expect_closed(struct __test_metadata *_metadata, struct bed *bed)
{
	__u64 end = now_ms() + DEADLINE_MS;
	struct pollfd pfd = {};
	unsigned int i;
	int ret;

	for (i = 0; i < READS; i++) {
		close(bed->file[i]);
		pfd.fd = bed->peer[i];
		while (!(ret = poll(&pfd, 1, 1)) && now_ms() < end)
			ring_wait(&bed->ring, 1, 1);
		EXPECT_EQ(1, ret) {
			TH_LOG("it's still open");
		}
	}
}

static void run(struct __test_metadata *_metadata, struct bed *bed,
		unsigned int how)
{
	bed->how = how;
	make_pairs(_metadata, bed);
	for (bed->round = 0; bed->round < ROUNDS; bed->round++)
		run_round(_metadata, bed);
	expect_closed(_metadata, bed);
}

TEST_F(io_uring, read)
{
	run(_metadata, &self->bed, 0);
}

TEST_F(io_uring, read_linked)
{
	run(_metadata, &self->bed, LINKED);
}

TEST_F(io_uring, recv)
{
	run(_metadata, &self->bed, RECV);
}

TEST_F(io_uring, recv_linked)
{
	run(_metadata, &self->bed, RECV | LINKED);
}

TEST_F(io_uring, cancel)
{
	run(_metadata, &self->bed, CANCELS);
}

TEST_F(io_uring, cancel_linked)
{
	run(_metadata, &self->bed, CANCELS | RECV | LINKED);
}

TEST_F(io_uring, close)
{
	run(_metadata, &self->bed, CLOSES | RECV);
}

TEST_F(io_uring, close_linked)
{
	run(_metadata, &self->bed, CLOSES | LINKED);
}

int main(int argc, char **argv)
{
	int ret;

	signal(SIGPIPE, SIG_IGN);
	/* the first worker has armed poll, and has yet to return */
	trace_delay("io_uring/io_uring_poll_arm", "mask!=0");
	ret = test_harness_run(argc, argv);
	trace_delay_end();
	return ret;
}
