// SPDX-License-Identifier: GPL-2.0
/*
 * What users do, or did when they reported a bug: a reply and the close of its
 * socket in one link, an end among many opens and messages, and much work for
 * few workers.
 */
#include <sys/prctl.h>
#include <sys/socket.h>

#include "ring.h"

#define ASYNC		IOSQE_ASYNC
#define SOFT		(IOSQE_ASYNC | IOSQE_IO_LINK)
#define SILENT		IOSQE_CQE_SKIP_SUCCESS

struct bed {
	struct ring ring;
	struct fifo fifo;
	int file;
};

#include "bed.h"

static void bed_init(struct __test_metadata *_metadata, struct bed *bed)
{
	ASSERT_EQ(0, fifo_make(&bed->fifo));
	bed->file = memfd_create("report_test", MFD_CLOEXEC);
	ASSERT_LE(0, bed->file);
}

FIXTURE_TEARDOWN(io_uring)
{
	fifo_remove(&self->bed.fifo);
	ring_exit(&self->bed.ring);
}

/* All of @size bytes and then the end, while the sender waits for CQEs. */
static void expect_reply(struct __test_metadata *_metadata, struct ring *ring,
			 int peer, size_t size)
{
	__u64 end = now_ms() + DEADLINE_MS;
	struct pollfd pfd = {
		.fd	= peer,
		.events	= POLLIN,
	};
	static char buf[1 << 16];
	ssize_t ret = -1;

	while (ret && now_ms() < end) {
		ring_wait(ring, 1, 1);
		if (poll(&pfd, 1, 1) != 1)
			continue;
		ret = read(peer, buf, sizeof(buf));
		ASSERT_LE(0, ret);
		ASSERT_GE(size, (size_t)ret);
		size -= ret;
	}
	EXPECT_EQ(0, ret) {
		TH_LOG("not closed");
	}
	EXPECT_EQ(0U, size) {
		TH_LOG("data is missing");
	}
}

static void reply_and_close(struct __test_metadata *_metadata, struct bed *bed,
			    unsigned int nr, unsigned int size)
{
	static char data[1 << 16];
	struct ring *ring = &bed->ring;
	int socks[2];
	unsigned int i;

	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, socks));
	for (i = 0; i < nr; i++)
		ring_prep(ring, IORING_OP_SEND, socks[0], data, size,
			  SOFT | SILENT, i)->msg_flags = MSG_WAITALL;
	ring_prep(ring, IORING_OP_CLOSE, socks[0], NULL, 0, ASYNC | SILENT, i);
	ASSERT_EQ(0, ring_submit(ring));
	expect_reply(_metadata, ring, socks[1], (size_t)nr * size);
	EXPECT_EQ(0U, ring_ready(ring));
	close(socks[1]);
}

TEST_F(io_uring, reply_and_close)
{
	unsigned int i;

	for (i = 1; i < 50; i++)
		reply_and_close(_metadata, &self->bed, i, 100);
}

/* More than the socket takes, so that sends wait for their peer. */
TEST_F(io_uring, long_reply_and_close)
{
	unsigned int i;

	for (i = 0; i < 5; i++)
		reply_and_close(_metadata, &self->bed, 32, 1 << 16);
}

static void send_fd(struct ring *ring, struct ring *target, unsigned int flags,
		    unsigned int slot)
{
	struct io_uring_sqe *sqe;

	sqe = ring_prep(ring, IORING_OP_MSG_RING, target->fd, NULL, 0, flags,
			slot);
	sqe->addr = IORING_MSG_SEND_FD;
	sqe->addr3 = 0;
	sqe->file_index = slot + 1;
}

static int register_slots(struct ring *ring, int first)
{
	int fds[64];
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(fds); i++)
		fds[i] = -1;
	fds[0] = first;
	return ring_register(ring, IORING_REGISTER_FILES, fds,
			     ARRAY_SIZE(fds));
}

/* Opens that wait for each other's end, and descriptors on their way. */
static void open_and_send(struct bed *bed, unsigned int flags)
{
	struct ring ring, target;
	unsigned int i, round;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(2 * DEADLINE_MS / 1000);
	if (ring_init(&ring, flags) || ring_init(&target, flags) ||
	    register_slots(&ring, bed->file) || register_slots(&target, -1))
		_exit(1);
	for (round = 0; round < 4; round++) {
		for (i = 0; i < 16; i++)
			ring_open(&ring, bed->fifo.path, O_RDONLY, ASYNC, i);
		for (i = 1; i < 64; i++)
			send_fd(&ring, &target, i % 2 ? ASYNC : 0, i);
		for (i = 1; i < 64; i++)
			send_fd(&ring, &target, i < 63 ? SOFT : ASYNC, i);
		if (ring_submit(&ring))
			_exit(1);
	}
}

TEST_F(io_uring, exit_with_opens_and_messages)
{
	struct bed *bed = &self->bed;
	unsigned int i;
	pid_t pid;

	for (i = 0; i < 10; i++) {
		pid = fork();
		ASSERT_LE(0, pid);
		if (!pid) {
			open_and_send(bed, variant->flags);
			_exit(0);
		}
		ASSERT_EQ(0, child_wait(pid));
	}
}

TEST_F(io_uring, kill_with_opens_and_messages)
{
	struct bed *bed = &self->bed;
	unsigned int i;
	pid_t pid;

	for (i = 0; i < 10; i++) {
		pid = fork();
		ASSERT_LE(0, pid);
		if (!pid) {
			open_and_send(bed, variant->flags);
			do {
				pause();
			} while (1);
		}
		usleep(i * 2000);
		EXPECT_EQ(0, kill(pid, SIGKILL));
		ASSERT_EQ(SIGKILL, child_wait(pid));
	}
}

/* user_data is the expected result. */
static void prep_item(struct bed *bed, unsigned int nr, unsigned int flags)
{
	static char data[512];
	struct ring *ring = &bed->ring;

	switch (nr % 5) {
	case 0:
		ring_write(ring, bed->file, data, sizeof(data), 0, flags,
			   sizeof(data));
		break;
	case 1:
		ring_prep(ring, IORING_OP_FSYNC, bed->file, NULL, 0, flags, 0);
		break;
	case 2:
		ring_write(ring, bed->file, data, 1, sizeof(data) + nr, flags,
			   1);
		break;
	default:
		ring_nop(ring, flags, 0);
	}
}

/* Links of one to eight members. */
static unsigned int prep_items(struct bed *bed)
{
	unsigned int i, length, nr = 0;

	for (length = 1; nr + length < RING_ENTRIES; length = length % 8 + 1)
		for (i = 0; i < length; i++)
			prep_item(bed, nr++, i < length - 1 ? SOFT : ASYNC);
	return nr;
}

TEST_F(io_uring, much_work_for_one_worker)
{
	struct bed *bed = &self->bed;
	unsigned int round, nr;
	struct cqe cqe;

	if (ring_max_workers(&bed->ring, 1, 1))
		SKIP(return, "can't limit workers");
	for (round = 0; round < 10; round++) {
		nr = prep_items(bed);
		ASSERT_EQ(0, ring_submit(&bed->ring));
		while (nr--) {
			ASSERT_EQ(0, ring_next(&bed->ring, &cqe)) {
				TH_LOG("%u more were expected", nr + 1);
			}
			EXPECT_EQ(cqe.user_data, (__u64)cqe.res);
		}
	}
	EXPECT_GE(2, nr_workers());
}

TEST_HARNESS_MAIN
