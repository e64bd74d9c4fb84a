// SPDX-License-Identifier: GPL-2.0
/*
 * A ring that is closed, and a process that ends or calls execve(), leave
 * nothing behind, whatever requests and links there are on io-wq: the process
 * can be reaped, its workers are gone, and nobody holds its files.
 */
#include <sys/prctl.h>
#include <sys/uio.h>

#include "ring.h"
#include "uffd.h"

#define ASYNC	IOSQE_ASYNC
#define SOFT	(IOSQE_ASYNC | IOSQE_IO_LINK)
#define HARD	(IOSQE_ASYNC | IOSQE_IO_HARDLINK)

/* Makes this program do nothing but wait for its input to end. */
#define WAIT_ARG	"wait-for-end-of-input"
#define END_ARG		"end"

#define ROUNDS		20

/*
 * The parent has an end of each of the first two pipes, the child's requests
 * have the other. In the others it is the parent that has the write end of
 * "go", and the child that of "ready".
 */
struct bed {
	struct fifo fifo;
	int to_parent[2];
	int from_parent[2];
	int ready[2];
	int go[2];
	int file;
};

FIXTURE(io_uring)
{
	struct bed bed;
};

#include "ring_variants.h"

FIXTURE_SETUP(io_uring)
{
	struct bed *bed = &self->bed;
	struct ring ring;

	ring_setup(_metadata, &ring, variant->flags);
	if (_metadata->exit_code)
		return;
	ring_exit(&ring);
	ASSERT_EQ(0, fifo_make(&bed->fifo));
	ASSERT_EQ(0, pipe2(bed->to_parent, O_CLOEXEC));
	ASSERT_EQ(0, pipe2(bed->from_parent, O_CLOEXEC));
	ASSERT_EQ(0, pipe2(bed->ready, O_CLOEXEC));
	ASSERT_EQ(0, pipe2(bed->go, O_CLOEXEC));
	bed->file = memfd_create("exit_test", MFD_CLOEXEC);
	ASSERT_LE(0, bed->file);
}

FIXTURE_TEARDOWN(io_uring)
{
	fifo_remove(&self->bed.fifo);
}

/*
 * Work that is never going to end by itself, and links behind it. The hard ones
 * go on with more of it at the end, see blocking_work().
 */
static void stuck_work(struct ring *ring, struct bed *bed)
{
	const unsigned int hard = kernel_before(7, 3) ? SOFT : HARD;
	static char full[1 << 16], buf[8];
	int empty[2], out[2], size;
	unsigned int i;

	size = fcntl(bed->to_parent[1], F_SETPIPE_SZ, 4096);
	if (size < 0 || pipe2(empty, O_CLOEXEC) || pipe2(out, O_CLOEXEC) ||
	    write(bed->to_parent[1], full, size) != size)
		_exit(1);

	/* not async: these have looked up their file once submitted */
	ring_write(ring, bed->to_parent[1], full, 1, 0, IOSQE_IO_LINK, 0);
	ring_nop(ring, SOFT, 1);
	ring_nop(ring, ASYNC, 2);
	ring_read(ring, bed->from_parent[0], buf, 1, IOSQE_IO_HARDLINK, 3);
	ring_nop(ring, ASYNC, 4);

	for (i = 0; i < 4; i++) {
		ring_open(ring, bed->fifo.path, O_RDONLY | O_CLOEXEC,
			  i % 2 ? hard : SOFT, 10);
		ring_nop(ring, SOFT, 11);
		ring_open(ring, bed->fifo.path, O_RDONLY | O_CLOEXEC, ASYNC,
			  12);
		ring_nop(ring, SOFT, 13);
		ring_splice(ring, empty[0], out[1], 1, i % 2 ? hard : SOFT, 14);
		ring_read(ring, empty[0], buf, 1, ASYNC, 15);
	}
}

/* Work that is being done all the time. */
static void busy_work(struct ring *ring, struct bed *bed)
{
	static char data[4096];
	unsigned int i, j;

	for (i = 0; i < 8; i++) {
		for (j = 0; j < 16; j++)
			ring_nop(ring, i % 2 ? HARD : SOFT, j);
		ring_nop(ring, ASYNC, j);
		ring_nop(ring, SOFT, 0);
		ring_write(ring, bed->file, data, sizeof(data), 0, SOFT, 1);
		ring_write(ring, bed->file, data, sizeof(data), 0, ASYNC, 2);
	}
}

/*
 * Work that is soon going to be stuck, in the middle of a link. Kernels before
 * 7.3 don't reach what a worker starts after it was told that the end is near,
 * which leaves behind a process that nobody gets rid of.
 */
static void blocking_work(struct ring *ring, struct bed *bed)
{
	unsigned int i, j;

	if (kernel_before(7, 3))
		return;
	for (i = 0; i < 16; i++) {
		for (j = 0; j < i; j++)
			ring_nop(ring, SOFT, j);
		ring_open(ring, bed->fifo.path, O_RDONLY | O_CLOEXEC,
			  i % 2 ? HARD : SOFT, j);
		ring_nop(ring, ASYNC, j + 1);
	}
}

static void child_init(struct ring *ring, unsigned int flags)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(2 * DEADLINE_MS / 1000);
	if (ring_init(ring, flags))
		_exit(1);
}

/* From here on nobody but requests, or the parent, has the pipes open. */
static void close_pipes(struct bed *bed)
{
	close(bed->to_parent[0]);
	close(bed->to_parent[1]);
	close(bed->from_parent[0]);
	close(bed->from_parent[1]);
	close(bed->ready[0]);
	close(bed->go[1]);
}

/* In the child, this returns with work of both kinds just submitted. */
static pid_t fork_busy(struct __test_metadata *_metadata, struct bed *bed,
		       struct ring *ring, unsigned int flags)
{
	struct pollfd held[] = {
		{ .fd = bed->to_parent[0] },
		{ .fd = bed->from_parent[1] },
	};
	pid_t pid = fork();
	char c;

	if (!pid) {
		child_init(ring, flags);
		stuck_work(ring, bed);
		if (ring_submit(ring))
			_exit(1);
		close_pipes(bed);
		ring_settle(ring);
		if (write(bed->ready[1], "", 1) != 1 ||
		    read(bed->go[0], &c, 1) != 1)
			_exit(1);
		busy_work(ring, bed);
		if (ring_submit(ring))
			_exit(1);
		return 0;
	}
	close(bed->to_parent[1]);
	close(bed->from_parent[0]);
	close(bed->ready[1]);
	close(bed->go[0]);
	EXPECT_LT(0, pid);
	EXPECT_EQ(1, read(bed->ready[0], &c, 1));
	EXPECT_EQ(0, poll(held, 2, 0)) {
		TH_LOG("the child isn't stuck");
	}
	EXPECT_EQ(1, write(bed->go[1], "", 1));
	return pid;
}

/* The other ends of the pipes are closed. */
static void expect_released(struct __test_metadata *_metadata, struct bed *bed)
{
	struct pollfd to = { .fd = bed->to_parent[0] };
	struct pollfd from = { .fd = bed->from_parent[1] };

	EXPECT_EQ(1, poll(&to, 1, DEADLINE_MS));
	EXPECT_TRUE(to.revents & POLLHUP);
	EXPECT_EQ(1, poll(&from, 1, DEADLINE_MS));
	EXPECT_TRUE(from.revents & POLLERR);
}

/* An open() that waited would be found by the other side. */
static void expect_no_opener(struct __test_metadata *_metadata,
			     struct bed *bed)
{
	EXPECT_EQ(-1, open(bed->fifo.path, O_WRONLY | O_NONBLOCK));
	EXPECT_EQ(ENXIO, errno);
}

/* The process goes on, and has to be rid of the ring nevertheless. */
TEST_F(io_uring, close_ring)
{
	struct bed *bed = &self->bed;
	struct ring ring;
	pid_t pid;
	char c;

	pid = fork_busy(_metadata, bed, &ring, variant->flags);
	if (!pid) {
		ring_exit(&ring);
		_exit(read(bed->go[0], &c, 1));
	}
	expect_released(_metadata, bed);
	close(bed->go[1]);
	EXPECT_EQ(0, child_wait(pid));
	expect_no_opener(_metadata, bed);
}

TEST_F(io_uring, exit)
{
	struct bed *bed = &self->bed;
	struct ring ring;
	pid_t pid;

	pid = fork_busy(_metadata, bed, &ring, variant->flags);
	if (!pid)
		_exit(0);
	EXPECT_EQ(0, child_wait(pid));
	expect_released(_metadata, bed);
	expect_no_opener(_metadata, bed);
}

TEST_F(io_uring, kill)
{
	struct bed *bed = &self->bed;
	struct ring ring;
	pid_t pid;
	char c;

	pid = fork_busy(_metadata, bed, &ring, variant->flags);
	if (!pid)
		_exit(read(bed->go[0], &c, 1));
	EXPECT_EQ(0, kill(pid, SIGKILL));
	EXPECT_EQ(SIGKILL, child_wait(pid));
	expect_released(_metadata, bed);
	expect_no_opener(_metadata, bed);
}

/* It waits for completions that don't come. */
TEST_F(io_uring, kill_waiter)
{
	struct bed *bed = &self->bed;
	struct ring ring;
	pid_t pid;

	pid = fork_busy(_metadata, bed, &ring, variant->flags);
	if (!pid)
		_exit(!ring_wait(&ring, UINT_MAX, DEADLINE_MS));
	sleep_ms(SETTLE_MS);
	EXPECT_EQ(0, kill(pid, SIGKILL));
	EXPECT_EQ(SIGKILL, child_wait(pid));
	expect_released(_metadata, bed);
	expect_no_opener(_metadata, bed);
}

/* The program that comes next is the only thread, and has no files. */
TEST_F(io_uring, exec)
{
	struct bed *bed = &self->bed;
	__u64 end = now_ms() + DEADLINE_MS;
	struct ring ring;
	pid_t pid;
	char c;

	pid = fork_busy(_metadata, bed, &ring, variant->flags);
	if (!pid) {
		dup2(bed->go[0], STDIN_FILENO);
		execl("/proc/self/exe", "exit_test", WAIT_ARG, NULL);
		_exit(1);
	}
	/* closed by exec */
	EXPECT_EQ(0, read(bed->ready[0], &c, 1));
	expect_released(_metadata, bed);
	while (nr_threads(pid, "") != 1 && now_ms() < end)
		sleep_ms(1);
	EXPECT_EQ(1, nr_threads(pid, ""));
	expect_no_opener(_metadata, bed);
	close(bed->go[1]);
	EXPECT_EQ(0, child_wait(pid));
}

/* No pause between the submission and the end. */
TEST_F(io_uring, exit_at_once)
{
	struct bed *bed = &self->bed;
	struct ring ring;
	unsigned int i;
	pid_t pid;

	for (i = 0; i < ROUNDS; i++) {
		pid = fork();
		ASSERT_LE(0, pid);
		if (!pid) {
			child_init(&ring, variant->flags);
			busy_work(&ring, bed);
			blocking_work(&ring, bed);
			_exit(ring_submit(&ring) ? 1 : 0);
		}
		ASSERT_EQ(0, child_wait(pid));
	}
}

static void busy_for_ever(struct ring *ring, struct bed *bed)
{
	struct cqe cqe;

	do {
		busy_work(ring, bed);
		if (ring_submit(ring))
			_exit(1);
		while (!ring_next_timeout(ring, &cqe, 1))
			;
	} while (1);
}

TEST_F(io_uring, kill_while_busy)
{
	struct bed *bed = &self->bed;
	struct ring ring;
	unsigned int i;
	pid_t pid;

	for (i = 0; i < ROUNDS; i++) {
		pid = fork();
		ASSERT_LE(0, pid);
		if (!pid) {
			child_init(&ring, variant->flags);
			busy_for_ever(&ring, bed);
		}
		usleep(i * 1000);
		EXPECT_EQ(0, kill(pid, SIGKILL));
		ASSERT_EQ(SIGKILL, child_wait(pid));
	}
}

/* The next ring of the process uses the workers of the last one. */
TEST_F(io_uring, close_while_busy)
{
	struct bed *bed = &self->bed;
	struct ring ring;
	unsigned int i;
	pid_t pid;

	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		for (i = 0; i < ROUNDS; i++) {
			child_init(&ring, variant->flags);
			busy_work(&ring, bed);
			blocking_work(&ring, bed);
			if (ring_submit(&ring))
				_exit(1);
			if (i % 2)
				usleep(i * 100);
			ring_exit(&ring);
		}
		_exit(0);
	}
	ASSERT_EQ(0, child_wait(pid));
}

/* Returns in the child with a write that is stuck, and others behind it. */
static pid_t fork_writer(struct __test_metadata *_metadata, struct bed *bed,
			 struct ring *ring, unsigned int flags)
{
	struct uffd uffd = { .fd = -1 };
	static char data[4096];
	unsigned int i;
	pid_t pid;
	char c;

	pid = fork();
	if (!pid) {
		child_init(ring, flags);
		if (uffd_init(&uffd))
			_exit(KSFT_SKIP);
		ring_nop(ring, SOFT, 0);
		ring_write(ring, bed->file, uffd.page, 1, 0, SOFT, 1);
		ring_write(ring, bed->file, data, 1, 0, ASYNC, 2);
		if (ring_submit(ring))
			_exit(1);
		ring_settle(ring);
		if (uffd_wait(&uffd))
			_exit(1);
		for (i = 0; i < 64; i++) {
			ring_nop(ring, i % 2 ? HARD : SOFT, 3);
			ring_write(ring, bed->file, data, sizeof(data), 0,
				   ASYNC, 4);
			ring_write(ring, bed->file, data, sizeof(data), 0,
				   ASYNC, 5);
		}
		if (ring_submit(ring))
			_exit(1);
		ring_settle(ring);
		if (write(bed->ready[1], "", 1) != 1)
			_exit(1);
		return 0;
	}
	close(bed->ready[1]);
	EXPECT_LT(0, pid);
	/* without userfaultfd it has ended already */
	if (read(bed->ready[0], &c, 1) != 1) {
		ASSERT_EQ(KSFT_SKIP, WEXITSTATUS(child_wait(pid)));
		SKIP(exit(KSFT_SKIP), "no userfaultfd");
	}
	return pid;
}

TEST_F(io_uring, exit_while_writing)
{
	struct ring ring;
	pid_t pid;

	pid = fork_writer(_metadata, &self->bed, &ring, variant->flags);
	if (!pid)
		_exit(0);
	EXPECT_EQ(0, child_wait(pid));
}

TEST_F(io_uring, kill_while_writing)
{
	struct bed *bed = &self->bed;
	struct ring ring;
	pid_t pid;
	char c;

	pid = fork_writer(_metadata, bed, &ring, variant->flags);
	if (!pid)
		_exit(read(bed->go[0], &c, 1));
	EXPECT_EQ(0, kill(pid, SIGKILL));
	EXPECT_EQ(SIGKILL, child_wait(pid));
}

/*
 * The call of execve() has to wait for a write, which it can't cancel, and has
 * to find what may come behind it in a link and would wait for an hour. The end
 * of the write may be the last thing that wakes it up.
 */
static void exec_while_writing(struct bed *bed, unsigned int flags, bool linked)
{
	static const struct __kernel_timespec hour = { .tv_sec = 3600 };
	static char data[1 << 17];
	struct iovec iov[64];
	struct ring ring;
	unsigned int i;
	char *map;

	child_init(&ring, flags);
	memset(data, 'x', sizeof(data));
	for (i = 0; i < ARRAY_SIZE(iov); i++) {
		iov[i].iov_base = data;
		iov[i].iov_len = sizeof(data);
	}
	if (ftruncate(bed->file, 0) || ftruncate(bed->file, 1))
		_exit(1);
	map = mmap(NULL, 1, PROT_READ, MAP_SHARED, bed->file, 0);
	if (map == MAP_FAILED)
		_exit(1);
	ring_prep(&ring, IORING_OP_WRITEV, bed->file, iov, ARRAY_SIZE(iov),
		  linked ? SOFT : ASYNC, 0);
	if (linked)
		ring_prep(&ring, IORING_OP_TIMEOUT, -1, &hour, 1, ASYNC, 1);
	if (ring_submit(&ring))
		_exit(1);
	while (!__atomic_load_n(map, __ATOMIC_RELAXED))
		;
	execl("/proc/self/exe", "exit_test", END_ARG, NULL);
	_exit(1);
}

TEST_F(io_uring, exec_while_writing)
{
	struct bed *bed = &self->bed;
	unsigned int i;
	pid_t pid;

	for (i = 0; i < ROUNDS; i++) {
		pid = fork();
		ASSERT_LE(0, pid);
		if (!pid)
			exec_while_writing(bed, variant->flags, i % 2);
		ASSERT_EQ(0, child_wait(pid));
	}
}

int main(int argc, char **argv)
{
	char c;

	if (argc == 2 && !strcmp(argv[1], END_ARG))
		return 0;
	if (argc == 2 && !strcmp(argv[1], WAIT_ARG))
		return read(STDIN_FILENO, &c, 1);
	return test_harness_run(argc, argv);
}
