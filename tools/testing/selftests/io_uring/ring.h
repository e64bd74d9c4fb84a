/* SPDX-License-Identifier: GPL-2.0 */
/*
 * An io_uring on the raw system calls, and what the tests of this directory
 * share. No wait is without a limit, so that a lost completion fails a test
 * rather than hanging it.
 */
#ifndef IO_URING_SELFTEST_RING_H
#define IO_URING_SELFTEST_RING_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <linux/io_uring.h>

#include "kselftest_harness.h"

/* What should happen soon has this long to do so, on a loaded machine too. */
#define DEADLINE_MS	10000

/* Long enough for a worker to get going. Nothing fails if it isn't. */
#define SETTLE_MS	50

#define RING_ENTRIES	512

#define RING_DEFER	(IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN)

struct ring {
	int fd;
	unsigned int flags;
	unsigned int *sq_head;
	unsigned int *sq_tail;
	unsigned int *sq_flags;
	unsigned int sq_mask;
	/* what has been prepared, *sq_tail is what has been submitted */
	unsigned int sqe_tail;
	unsigned int *cq_head;
	unsigned int *cq_tail;
	unsigned int cq_mask;
	unsigned int cqe_shift;
	struct io_uring_sqe *sqes;
	struct io_uring_cqe *cqes;
	void *ring_map;
	size_t ring_size;
	size_t sqes_size;
};

/* A copy of a CQE, of which the ring doesn't know any more. */
struct cqe {
	__u64 user_data;
	int res;
	unsigned int flags;
};

static inline __u64 now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000ULL + ts.tv_nsec / 1000000;
}

static inline void sleep_ms(unsigned int ms)
{
	usleep(ms * 1000);
}

/* For what is known not to work there. */
static inline bool kernel_before(unsigned int major, unsigned int minor)
{
	unsigned int has_major, has_minor;
	struct utsname uts;

	if (uname(&uts) ||
	    sscanf(uts.release, "%u.%u", &has_major, &has_minor) != 2)
		return false;
	return has_major < major || (has_major == major && has_minor < minor);
}

/*
 * The result of a request that is cancelled, be it on a worker. Kernels before
 * 7.3 let an internal error code out.
 */
static inline bool was_cancelled(int res)
{
	return res == -ECANCELED || res == -EINTR ||
	       (res == -512 && kernel_before(7, 3));
}

static inline int ring_enter(struct ring *ring, unsigned int to_submit,
			     unsigned int min_complete, unsigned int flags,
			     void *arg, size_t size)
{
	int ret;

	ret = syscall(__NR_io_uring_enter, ring->fd, to_submit, min_complete,
		      flags, arg, size);
	return ret < 0 ? -errno : ret;
}

static inline int ring_register(struct ring *ring, unsigned int op, void *arg,
				unsigned int nr)
{
	int ret;

	ret = syscall(__NR_io_uring_register, ring->fd, op, arg, nr);
	return ret < 0 ? -errno : ret;
}

static inline int ring_map(struct ring *ring, struct io_uring_params *p)
{
	size_t sq_size, cq_size;
	unsigned int i, *array;

	ring->cqe_shift = !!(p->flags & IORING_SETUP_CQE32);
	sq_size = p->sq_off.array + p->sq_entries * sizeof(unsigned int);
	cq_size = p->cq_off.cqes +
		  ((size_t)p->cq_entries << ring->cqe_shift) *
		  sizeof(struct io_uring_cqe);
	ring->ring_size = sq_size > cq_size ? sq_size : cq_size;
	ring->sqes_size = p->sq_entries * sizeof(struct io_uring_sqe);

	ring->ring_map = mmap(NULL, ring->ring_size, PROT_READ | PROT_WRITE,
			      MAP_SHARED, ring->fd, IORING_OFF_SQ_RING);
	if (ring->ring_map == MAP_FAILED)
		return -errno;
	ring->sqes = mmap(NULL, ring->sqes_size, PROT_READ | PROT_WRITE,
			  MAP_SHARED, ring->fd, IORING_OFF_SQES);
	if (ring->sqes == MAP_FAILED) {
		munmap(ring->ring_map, ring->ring_size);
		return -ENOMEM;
	}
	/* a child makes a ring of its own */
	madvise(ring->ring_map, ring->ring_size, MADV_DONTFORK);
	madvise(ring->sqes, ring->sqes_size, MADV_DONTFORK);

	ring->sq_head = ring->ring_map + p->sq_off.head;
	ring->sq_tail = ring->ring_map + p->sq_off.tail;
	ring->sq_flags = ring->ring_map + p->sq_off.flags;
	ring->sq_mask = p->sq_entries - 1;
	ring->cq_head = ring->ring_map + p->cq_off.head;
	ring->cq_tail = ring->ring_map + p->cq_off.tail;
	ring->cq_mask = p->cq_entries - 1;
	ring->cqes = ring->ring_map + p->cq_off.cqes;

	array = ring->ring_map + p->sq_off.array;
	for (i = 0; i < p->sq_entries; i++)
		array[i] = i;
	return 0;
}

static inline int ring_init(struct ring *ring, unsigned int flags)
{
	const unsigned int needed = IORING_FEAT_SINGLE_MMAP |
				    IORING_FEAT_EXT_ARG;
	struct io_uring_params p = {
		.flags		= flags,
		.sq_thread_idle	= 20,
	};
	int ret;

	memset(ring, 0, sizeof(*ring));
	ring->flags = flags;
	ring->fd = syscall(__NR_io_uring_setup, RING_ENTRIES, &p);
	if (ring->fd < 0)
		return -errno;
	ret = -EOPNOTSUPP;
	if ((p.features & needed) == needed)
		ret = ring_map(ring, &p);
	if (ret)
		close(ring->fd);
	return ret;
}

/* For a fixture's setup: what the kernel doesn't have can't be tested. */
static inline void ring_setup(struct __test_metadata *_metadata,
			      struct ring *ring, unsigned int flags)
{
	int ret = ring_init(ring, flags);

	if (ret)
		SKIP(return, "no ring with flags %#x: %s", flags,
		     strerror(-ret));
}

static inline void ring_exit(struct ring *ring)
{
	munmap(ring->sqes, ring->sqes_size);
	munmap(ring->ring_map, ring->ring_size);
	close(ring->fd);
}

static inline unsigned int ring_sq_pending(struct ring *ring)
{
	return ring->sqe_tail -
	       __atomic_load_n(ring->sq_head, __ATOMIC_ACQUIRE);
}

static inline unsigned int ring_ready(struct ring *ring)
{
	return __atomic_load_n(ring->cq_tail, __ATOMIC_ACQUIRE) -
	       *ring->cq_head;
}

/* A test that prepares more than the ring takes is broken. */
static inline struct io_uring_sqe *ring_get_sqe(struct ring *ring)
{
	struct io_uring_sqe *sqe;

	if (ring_sq_pending(ring) > ring->sq_mask)
		abort();
	sqe = &ring->sqes[ring->sqe_tail++ & ring->sq_mask];
	memset(sqe, 0, sizeof(*sqe));
	return sqe;
}

/* Once this is back, the SQ thread has submitted everything as well. */
static inline int ring_submit_sqpoll(struct ring *ring)
{
	__u64 end = now_ms() + DEADLINE_MS;
	int ret;

	while (ring_sq_pending(ring)) {
		if (now_ms() > end)
			return -ETIME;
		/* pairs with the barrier of the SQ thread going to sleep */
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
		if (!(__atomic_load_n(ring->sq_flags, __ATOMIC_RELAXED) &
		      IORING_SQ_NEED_WAKEUP)) {
			usleep(10);
			continue;
		}
		ret = ring_enter(ring, 1, 0, IORING_ENTER_SQ_WAKEUP, NULL, 0);
		if (ret < 0 && ret != -EINTR)
			return ret;
	}
	return 0;
}

static inline int ring_submit(struct ring *ring)
{
	unsigned int nr;
	int ret;

	__atomic_store_n(ring->sq_tail, ring->sqe_tail, __ATOMIC_RELEASE);
	if (ring->flags & IORING_SETUP_SQPOLL)
		return ring_submit_sqpoll(ring);

	while ((nr = ring_sq_pending(ring))) {
		ret = ring_enter(ring, nr, 0, 0, NULL, 0);
		if (ret < 0 && ret != -EINTR)
			return ret;
	}
	return 0;
}

/* Wait for @nr CQEs to be there, running what the kernel left for us. */
static inline int ring_wait(struct ring *ring, unsigned int nr,
			    unsigned int ms)
{
	__u64 now, end = now_ms() + ms;
	struct __kernel_timespec ts;
	struct io_uring_getevents_arg arg = {
		.ts = (unsigned long)&ts,
	};
	int ret;

	while (ring_ready(ring) < nr) {
		now = now_ms();
		if (now >= end)
			return -ETIME;
		ts.tv_sec = (end - now) / 1000;
		ts.tv_nsec = (end - now) % 1000 * 1000000;
		ret = ring_enter(ring, 0, nr,
				 IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG,
				 &arg, sizeof(arg));
		if (ret < 0 && ret != -EINTR && ret != -ETIME)
			return ret;
	}
	return 0;
}

static inline int ring_next_timeout(struct ring *ring, struct cqe *cqe,
				    unsigned int ms)
{
	unsigned int head = *ring->cq_head;
	struct io_uring_cqe *src;
	int ret;

	ret = ring_wait(ring, 1, ms);
	if (ret)
		return ret;
	src = &ring->cqes[(head & ring->cq_mask) << ring->cqe_shift];
	cqe->user_data = src->user_data;
	cqe->res = src->res;
	cqe->flags = src->flags;
	__atomic_store_n(ring->cq_head, head + 1, __ATOMIC_RELEASE);
	return 0;
}

static inline int ring_next(struct ring *ring, struct cqe *cqe)
{
	return ring_next_timeout(ring, cqe, DEADLINE_MS);
}

/* Let requests make progress, those included that need us for it. */
static inline void ring_settle(struct ring *ring)
{
	ring_wait(ring, UINT_MAX, SETTLE_MS);
}

static inline struct io_uring_sqe *
ring_prep(struct ring *ring, unsigned int opcode, int fd, const void *addr,
	  unsigned int len, unsigned int flags, __u64 user_data)
{
	struct io_uring_sqe *sqe = ring_get_sqe(ring);

	sqe->opcode = opcode;
	sqe->fd = fd;
	sqe->addr = (unsigned long)addr;
	sqe->len = len;
	sqe->flags = flags;
	sqe->user_data = user_data;
	return sqe;
}

static inline void ring_nop(struct ring *ring, unsigned int flags,
			    __u64 user_data)
{
	ring_prep(ring, IORING_OP_NOP, -1, NULL, 0, flags, user_data);
}

/* Fails with -EBADF once it is issued. */
static inline void ring_bad(struct ring *ring, unsigned int flags,
			    __u64 user_data)
{
	static char c;

	ring_prep(ring, IORING_OP_READ, -1, &c, 1, flags, user_data);
}

static inline void ring_read(struct ring *ring, int fd, void *buf,
			     unsigned int len, unsigned int flags,
			     __u64 user_data)
{
	ring_prep(ring, IORING_OP_READ, fd, buf, len, flags, user_data);
}

static inline void ring_write(struct ring *ring, int fd, const void *buf,
			      unsigned int len, __u64 off,
			      unsigned int flags, __u64 user_data)
{
	ring_prep(ring, IORING_OP_WRITE, fd, buf, len, flags, user_data)->off =
		off;
}

static inline struct io_uring_sqe *
ring_open(struct ring *ring, const char *path, int open_flags,
	  unsigned int flags, __u64 user_data)
{
	struct io_uring_sqe *sqe;

	sqe = ring_prep(ring, IORING_OP_OPENAT, AT_FDCWD, path, 0, flags,
			user_data);
	sqe->open_flags = open_flags;
	return sqe;
}

static inline void ring_cancel(struct ring *ring, __u64 target,
			       unsigned int cancel_flags, __u64 user_data)
{
	struct io_uring_sqe *sqe;

	sqe = ring_prep(ring, IORING_OP_ASYNC_CANCEL, -1, NULL, 0, 0,
			user_data);
	sqe->addr = target;
	sqe->cancel_flags = cancel_flags;
}

static inline void ring_link_timeout(struct ring *ring,
				     const struct __kernel_timespec *ts,
				     unsigned int flags, __u64 user_data)
{
	ring_prep(ring, IORING_OP_LINK_TIMEOUT, -1, ts, 1, flags, user_data);
}

/*
 * Unlike a read this doesn't leave the worker for a poll handler, it sits in
 * the pipe until there is something to move.
 */
static inline void ring_splice(struct ring *ring, int from, int to,
			       unsigned int len, unsigned int flags,
			       __u64 user_data)
{
	struct io_uring_sqe *sqe;

	sqe = ring_prep(ring, IORING_OP_SPLICE, to, NULL, len, flags,
			user_data);
	sqe->splice_fd_in = from;
	sqe->splice_off_in = -1;
	sqe->off = -1;
}

static inline int ring_max_workers(struct ring *ring, unsigned int bound,
				   unsigned int unbound)
{
	unsigned int nr[2] = { bound, unbound };

	return ring_register(ring, IORING_REGISTER_IOWQ_MAX_WORKERS, nr, 2);
}

/* For files of the kernel that take a word at a time: 0 or an error. */
static inline int write_file(const char *path, const char *value, int flags)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC | flags);
	ssize_t ret;

	if (fd < 0)
		return -errno;
	ret = write(fd, value, strlen(value));
	if (ret < 0)
		ret = -errno;
	close(fd);
	return ret < 0 ? ret : 0;
}

static inline bool is_asleep(pid_t tid)
{
	char path[64], line[256], *state;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	file = fopen(path, "r");
	if (!file)
		return false;
	state = fgets(line, sizeof(line), file);
	fclose(file);
	state = state ? strrchr(line, ')') : NULL;
	return state && state[1] && state[2] == 'S';
}

/*
 * How many threads of a process have a name that begins with @comm, and the
 * first of them.
 */
static inline int find_threads(pid_t pid, const char *comm, pid_t *first)
{
	char path[300], name[32];
	struct dirent *entry;
	int nr = 0;
	FILE *file;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/task", pid);
	dir = opendir(path);
	if (!dir)
		return -errno;
	while ((entry = readdir(dir))) {
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof(path), "/proc/%d/task/%s/comm", pid,
			 entry->d_name);
		file = fopen(path, "r");
		if (!file)
			continue;
		if (fgets(name, sizeof(name), file) &&
		    !strncmp(name, comm, strlen(comm)) && !nr++)
			*first = atoi(entry->d_name);
		fclose(file);
	}
	closedir(dir);
	return nr;
}

static inline int nr_threads(pid_t pid, const char *comm)
{
	pid_t first;

	return find_threads(pid, comm, &first);
}

static inline int nr_workers(void)
{
	return nr_threads(getpid(), "iou-wrk-");
}

/* The child's status. A child that doesn't end is killed. */
static inline int child_wait(pid_t pid)
{
	__u64 end = now_ms() + DEADLINE_MS;
	int ret, status;

	while ((ret = waitpid(pid, &status, WNOHANG)) == 0) {
		if (now_ms() > end) {
			kill(pid, SIGKILL);
			return -ETIME;
		}
		usleep(500);
	}
	return ret < 0 ? -errno : status;
}

/* A FIFO in a directory of its own. An open() of one end waits for another. */
struct fifo {
	char dir[32];
	char path[48];
};

static inline int fifo_make(struct fifo *fifo)
{
	snprintf(fifo->dir, sizeof(fifo->dir), "/tmp/io_uring_test.XXXXXX");
	if (!mkdtemp(fifo->dir))
		return -errno;
	snprintf(fifo->path, sizeof(fifo->path), "%s/fifo", fifo->dir);
	if (mkfifo(fifo->path, 0600)) {
		rmdir(fifo->dir);
		return -errno;
	}
	return 0;
}

static inline void fifo_remove(struct fifo *fifo)
{
	unlink(fifo->path);
	rmdir(fifo->dir);
}

/* Lets in everyone who waits, and doesn't wait itself. */
static inline int fifo_release(struct fifo *fifo)
{
	return open(fifo->path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
}

/* There, what is freed isn't used again at once. */
static inline bool has_kasan(void)
{
	char line[256], name[128];
	FILE *file = fopen("/proc/kallsyms", "r");
	bool found = false;

	if (!file)
		return false;
	while (!found && fgets(line, sizeof(line), file))
		found = sscanf(line, "%*s %*c %127s", name) == 1 &&
			!strcmp(name, "kasan_report");
	fclose(file);
	return found;
}

#endif
