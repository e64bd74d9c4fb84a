// SPDX-License-Identifier: GPL-2.0
/*
 * Senders and targets that are closed, or whose task ends, with messages on
 * their way: what was sent arrives as long as there is somebody to reap it, and
 * rings, files and memory are given back.
 *
 * That a ring has been freed is seen by the reader of a pipe, as the ring has
 * the only write end of it in its table of files.
 */
#include <sys/mount.h>
#include <sys/prctl.h>

#define TARGETS_WAIT
#include "msg.h"

#define ASYNC		IOSQE_ASYNC
#define LINK		IOSQE_IO_LINK

/* Makes this program do nothing but wait for its input to end. */
#define WAIT_ARG	"wait-for-end-of-input"

#define NR_SLOTS	8

FIXTURE(target)
{
	int unused;
};

#include "msg_variants.h"

FIXTURE_SETUP(target)
{
	if (!msg_ring_supported(variant->flags))
		SKIP(return, "no such ring");
}

FIXTURE_TEARDOWN(target)
{
	if (_metadata->exit_code == KSFT_FAIL && sender_name)
		TH_LOG("the sender was %s", sender_name);
}

/* A ring, and what tells that it is gone. */
static int init_watched(struct ring *ring, unsigned int flags, int *watch)
{
	int ret, i, pipes[2], fds[NR_SLOTS];

	ret = msg_ring_init(ring, flags, RING_ENTRIES, 0);
	if (ret)
		return ret;
	if (pipe2(pipes, O_CLOEXEC))
		return -errno;
	fds[0] = pipes[1];
	for (i = 1; i < NR_SLOTS; i++)
		fds[i] = -1;
	ret = ring_register(ring, IORING_REGISTER_FILES, fds, NR_SLOTS);
	close(pipes[1]);
	*watch = pipes[0];
	return ret;
}

static bool is_gone(int watch, unsigned int ms)
{
	struct pollfd pfd = { .fd = watch };

	return poll(&pfd, 1, ms) == 1 && pfd.revents & POLLHUP;
}

static void expect_gone(struct __test_metadata *_metadata, int watch)
{
	EXPECT_TRUE(is_gone(watch, DEADLINE_MS)) {
		TH_LOG("still there");
	}
	close(watch);
}

/* Mixed, in the ways that a message can take. */
static void send_some(struct __test_metadata *_metadata, struct ring *ring,
		      int target, unsigned int nr)
{
	unsigned int i, flags;

	for (i = 0; i < nr; i++) {
		flags = i % 5 == 4 ? ASYNC : 0;
		if (i % 16 < 6 && i < nr - 1)
			flags |= LINK;
		msg_number(ring, target, i, flags);
	}
	submit(_metadata, ring);
}

/* Some of them may have been too late. */
static void expect_results(struct __test_metadata *_metadata, struct ring *ring,
			   unsigned int nr)
{
	struct msg_cqe cqe;

	while (nr--) {
		ASSERT_EQ(0, msg_next(ring, &cqe));
		if (cqe.res != -EBADF && cqe.res != -ECANCELED &&
		    cqe.res != -EOWNERDEAD)
			EXPECT_EQ(0, cqe.res);
	}
}

static void close_unreaped(struct __test_metadata *_metadata,
			   unsigned int flags, unsigned int sender_flags,
			   bool sender_first)
{
	struct ring sender, target;
	int watch, sender_watch;

	ASSERT_EQ(0, init_watched(&sender, sender_flags, &sender_watch));
	ASSERT_EQ(0, init_watched(&target, flags, &watch));
	send_some(_metadata, &sender, target.fd, 300);
	if (sender_first) {
		ring_exit(&sender);
		ring_exit(&target);
	} else {
		ring_exit(&target);
		expect_results(_metadata, &sender, 300);
		ring_exit(&sender);
	}
	expect_gone(_metadata, watch);
	expect_gone(_metadata, sender_watch);
}

TEST_F(target, closed_with_messages_in_flight)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(sender_types); i++) {
		sender_name = sender_types[i].name;
		close_unreaped(_metadata, variant->flags, sender_types[i].flags,
			       false);
		close_unreaped(_metadata, variant->flags, sender_types[i].flags,
			       true);
	}
}

/* Nothing but messages is left when this is back, and no CQE either. */
static void send_and_forget(struct __test_metadata *_metadata,
			    struct ring *ring, int target, unsigned int nr)
{
	unsigned int i;

	for (i = 0; i < nr; i++)
		msg_number(ring, target, i, IOSQE_CQE_SKIP_SUCCESS);
	submit(_metadata, ring);
}

/*
 * Each has messages of the other, and some of its own. Unlike a request to send
 * one, a message doesn't keep its target open.
 */
TEST_F(target, closed_with_messages_to_each_other)
{
	struct ring a, b;
	int watch_a, watch_b;
	unsigned int i;

	for (i = 0; i < 6; i++) {
		ASSERT_EQ(0, init_watched(&a, variant->flags, &watch_a));
		ASSERT_EQ(0, init_watched(&b, i % 2 ? RING_DEFER : 0,
					  &watch_b));
		send_and_forget(_metadata, &a, b.fd, 200);
		send_and_forget(_metadata, &b, a.fd, 200);
		send_and_forget(_metadata, &a, a.fd, 200);
		send_and_forget(_metadata, &b, b.fd, 200);
		if (i < 3) {
			ring_exit(&a);
			expect_gone(_metadata, watch_a);
		}
		ring_exit(&b);
		expect_gone(_metadata, watch_b);
		if (i >= 3) {
			ring_exit(&a);
			expect_gone(_metadata, watch_a);
		}
	}
}

/*
 * Rings that have talked to each other for a while don't keep each other, in
 * whatever order they go.
 */
TEST_F(target, closed_in_any_order)
{
	static const unsigned char orders[][3] = {
		{ 0, 1, 2 }, { 0, 2, 1 }, { 1, 0, 2 }, { 1, 2, 0 },
		{ 2, 0, 1 }, { 2, 1, 0 },
	};
	struct ring rings[3];
	unsigned int i, j, round;
	int watches[3];

	for (i = 0; i < ARRAY_SIZE(orders); i++) {
		ASSERT_EQ(0, init_watched(&rings[0], variant->flags,
					  &watches[0]));
		ASSERT_EQ(0, init_watched(&rings[1], RING_DEFER, &watches[1]));
		ASSERT_EQ(0, init_watched(&rings[2], variant->flags,
					  &watches[2]));
		for (round = 0; round < 2; round++)
			for (j = 0; j < 6; j++) {
				struct ring *from = &rings[orders[j][0]];
				struct ring *to = &rings[orders[j][1]];

				send_numbers(_metadata, from, to->fd, 0, 150);
				expect_numbers(_metadata, to, 0, 150);
			}
		for (j = 0; j < 3; j++) {
			ring_exit(&rings[orders[i][j]]);
			expect_gone(_metadata, watches[orders[i][j]]);
		}
	}
}

/* What the sender's task does once it has submitted. */
enum end {
	CLOSES,
	EXITS,
	IS_KILLED,
	EXECS,
	NR_ENDS,
};

static void end_here(struct ring *ring, enum end end)
{
	switch (end) {
	case CLOSES:
		ring_exit(ring);
		pause();
		break;
	case IS_KILLED:
		kill(getpid(), SIGKILL);
		break;
	case EXECS:
		execl("/proc/self/exe", "msg_release_test", WAIT_ARG, NULL);
		break;
	default:
		break;
	}
	_exit(0);
}

static pid_t fork_child(struct __test_metadata *_metadata)
{
	pid_t pid = fork();

	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		alarm(2 * DEADLINE_MS / 1000);
	}
	ASSERT_LE(0, pid);
	return pid;
}

static void end_child(struct __test_metadata *_metadata, pid_t pid)
{
	int status;

	kill(pid, SIGKILL);
	kill(pid, SIGCONT);
	status = child_wait(pid);
	EXPECT_TRUE(status == SIGKILL || !status) {
		TH_LOG("status %d", status);
	}
}

static pid_t fork_sender(struct __test_metadata *_metadata, int target,
			 unsigned int flags, unsigned int sqe_flags,
			 unsigned int nr, enum end end)
{
	struct ring ring;
	unsigned int i;
	pid_t pid;

	pid = fork_child(_metadata);
	if (pid)
		return pid;
	if (msg_ring_init(&ring, flags, RING_ENTRIES, 0))
		_exit(1);
	for (i = 0; i < nr; i++)
		msg_number(&ring, target, i, sqe_flags);
	if (ring_submit(&ring))
		_exit(1);
	end_here(&ring, end);
	return 0;
}

/* They were sent before it was back from its system call. */
TEST_F(target, sender_ends_at_once)
{
	const unsigned int nr = 400;
	struct ring target;
	unsigned int i, end;
	pid_t pid;
	int watch;

	for (i = 0; i < ARRAY_SIZE(sender_types); i++) {
		sender_name = sender_types[i].name;
		for (end = 0; end < NR_ENDS; end++) {
			ASSERT_EQ(0, init_watched(&target, variant->flags,
						  &watch));
			pid = fork_sender(_metadata, target.fd,
					  sender_types[i].flags, 0, nr, end);
			expect_numbers(_metadata, &target, 0, nr);
			end_child(_metadata, pid);
			expect_nothing(_metadata, &target);
			ring_exit(&target);
			expect_gone(_metadata, watch);
		}
	}
}

/* What is left to workers may or may not be sent, but not twice. */
TEST_F(target, sender_ends_with_workers)
{
	const unsigned int nr = 200;
	bool seen[200];
	struct ring target;
	struct msg_cqe cqe;
	unsigned int end;
	pid_t pid;
	int watch;

	for (end = 0; end < NR_ENDS; end++) {
		memset(seen, 0, sizeof(seen));
		ASSERT_EQ(0, init_watched(&target, variant->flags, &watch));
		pid = fork_sender(_metadata, target.fd,
				  end % 2 ? RING_DEFER : 0, ASYNC, nr, end);
		usleep(1000);
		end_child(_metadata, pid);
		while (!msg_next_timeout(&target, &cqe, 1)) {
			ASSERT_GT(nr, cqe.user_data);
			EXPECT_FALSE(seen[cqe.user_data]);
			seen[cqe.user_data] = true;
			EXPECT_EQ((int)cqe.user_data, cqe.res);
		}
		ring_exit(&target);
		expect_gone(_metadata, watch);
	}
}

struct sender_thread {
	int target;
	unsigned int flags;
	bool close;
	struct ring ring;
	int ret;
};

static void *sender_thread(void *arg)
{
	struct sender_thread *sender = arg;
	unsigned int i;

	sender->ret = msg_ring_init(&sender->ring, sender->flags, 256, 0);
	if (sender->ret)
		return NULL;
	for (i = 0; i < 200; i++)
		msg_number(&sender->ring, sender->target, i, 0);
	sender->ret = ring_submit(&sender->ring);
	if (sender->close)
		ring_exit(&sender->ring);
	return NULL;
}

TEST_F(target, sender_thread_ends)
{
	struct sender_thread sender = {};
	pthread_t thread;
	struct ring target;
	unsigned int i;
	int watch;

	ASSERT_EQ(0, init_watched(&target, variant->flags, &watch));
	sender.target = target.fd;
	for (i = 0; i < 2 * ARRAY_SIZE(sender_types); i++) {
		sender_name = sender_types[i / 2].name;
		sender.flags = sender_types[i / 2].flags;
		sender.close = i % 2;
		ASSERT_EQ(0, pthread_create(&thread, NULL, sender_thread,
					    &sender));
		ASSERT_EQ(0, pthread_join(thread, NULL));
		ASSERT_EQ(0, sender.ret);
		expect_numbers(_metadata, &target, 0, 200);
		if (!sender.close)
			ring_exit(&sender.ring);
	}
	expect_nothing(_metadata, &target);
	ring_exit(&target);
	expect_gone(_metadata, watch);
}

static int join_cgroup(const char *procs)
{
	return write_file(procs, "0", 0);
}

/* What the child with the target does, until it ends by itself or is killed. */
enum life {
	SLEEPS,
	WAITS,
	REAPS,
	LEAVES,
	STARTS_ANEW,
	NR_LIVES,
};

struct target_child {
	pid_t pid;
	/* the child's ring, and the pipe in its table */
	int ring_fd;
	int watch;
	/* the child goes on when this has been closed */
	int go;
};

static void target_main(struct ring *ring, int go, enum life life)
{
	struct msg_cqe cqe;
	char c;

	switch (life) {
	case WAITS:
		ring_wait(ring, UINT_MAX, DEADLINE_MS);
		break;
	case REAPS:
		while (!msg_next(ring, &cqe))
			;
		break;
	case LEAVES:
		_exit(read(go, &c, 1));
	case STARTS_ANEW:
		dup2(go, STDIN_FILENO);
		execl("/proc/self/exe", "msg_release_test", WAIT_ARG, NULL);
		break;
	default:
		pause();
	}
	_exit(1);
}

/*
 * Returns false if there's no way to its ring. @procs is of the cgroup to be
 * in, if any.
 */
static bool fork_target_in(struct __test_metadata *_metadata,
			   struct target_child *child, unsigned int flags,
			   enum life life, const char *procs)
{
	int fd, pidfd, go[2], info[2];
	struct ring ring;

	ASSERT_EQ(0, pipe2(go, O_CLOEXEC));
	ASSERT_EQ(0, pipe2(info, O_CLOEXEC));
	child->pid = fork_child(_metadata);
	if (!child->pid) {
		close(go[1]);
		if ((procs && join_cgroup(procs)) ||
		    init_watched(&ring, flags, &fd) ||
		    write(info[1], &ring.fd, sizeof(fd)) != sizeof(fd) ||
		    write(info[1], &fd, sizeof(fd)) != sizeof(fd))
			_exit(1);
		/* until the parent has got both */
		if (read(go[0], &fd, 1) != 1)
			_exit(1);
		target_main(&ring, go[0], life);
	}
	close(go[0]);
	close(info[1]);
	pidfd = syscall(__NR_pidfd_open, child->pid, 0);
	ASSERT_LE(0, pidfd);
	ASSERT_EQ((int)sizeof(fd), read(info[0], &fd, sizeof(fd)));
	child->ring_fd = syscall(__NR_pidfd_getfd, pidfd, fd, 0);
	ASSERT_EQ((int)sizeof(fd), read(info[0], &fd, sizeof(fd)));
	child->watch = syscall(__NR_pidfd_getfd, pidfd, fd, 0);
	child->go = go[1];
	close(info[0]);
	close(pidfd);
	ASSERT_EQ(1, write(go[1], "", 1));
	if (child->ring_fd >= 0 && child->watch >= 0)
		return true;
	end_child(_metadata, child->pid);
	return false;
}

static bool fork_target(struct __test_metadata *_metadata,
			struct target_child *child, unsigned int flags,
			enum life life)
{
	return fork_target_in(_metadata, child, flags, life, NULL);
}

/* The parent has the ring for longer than that, but nobody serves it. */
TEST_F(target, target_task_ends)
{
	struct target_child child;
	struct ring sender;
	unsigned int life;

	for (life = 0; life < NR_LIVES; life++) {
		ASSERT_EQ(0, msg_ring_init(&sender, life % 2 ? RING_DEFER : 0,
					   RING_ENTRIES, 0));
		if (!fork_target(_metadata, &child, variant->flags, life))
			SKIP(return, "no pidfd_getfd()");
		send_some(_metadata, &sender, child.ring_fd, 100);
		expect_results(_metadata, &sender, 100);
		send_some(_metadata, &sender, child.ring_fd, 100);
		/* one that leaves does so now, and others are killed */
		close(child.go);
		if (life != LEAVES)
			kill(child.pid, SIGKILL);
		send_some(_metadata, &sender, child.ring_fd, 100);
		child_wait(child.pid);
		send_some(_metadata, &sender, child.ring_fd, 100);
		expect_results(_metadata, &sender, 300);
		EXPECT_FALSE(is_gone(child.watch, 0));
		close(child.ring_fd);
		/* a request may keep its target for longer than its CQE says */
		ring_exit(&sender);
		expect_gone(_metadata, child.watch);
	}
}

static void *owner_thread(void *arg)
{
	struct sender_thread *owner = arg;

	owner->ret = init_watched(&owner->ring, owner->flags, &owner->target);
	return NULL;
}

/* Likewise, but the ring stays open in the same process. */
TEST_F(target, target_thread_ends)
{
	struct sender_thread owner = { .flags = variant->flags };
	struct ring sender;
	pthread_t thread;
	unsigned int i;

	for (i = 0; i < 5; i++) {
		ASSERT_EQ(0, msg_ring_init(&sender, i % 2 ? RING_DEFER : 0,
					   RING_ENTRIES, 0));
		ASSERT_EQ(0, pthread_create(&thread, NULL, owner_thread,
					    &owner));
		while (!__atomic_load_n(&owner.ring.fd, __ATOMIC_RELAXED))
			usleep(10);
		ASSERT_EQ(0, pthread_join(thread, NULL));
		ASSERT_EQ(0, owner.ret);
		send_some(_metadata, &sender, owner.ring.fd, 300);
		expect_results(_metadata, &sender, 300);
		ring_exit(&owner.ring);
		ring_exit(&sender);
		expect_gone(_metadata, owner.target);
		owner.ring.fd = 0;
	}
}

/* Pipes whose write ends are on their way, and nowhere else. */
static void load_slots(struct __test_metadata *_metadata, struct ring *ring,
		       int watches[NR_SLOTS])
{
	int i, fds[NR_SLOTS], pipes[2];

	for (i = 0; i < NR_SLOTS; i++) {
		ASSERT_EQ(0, pipe2(pipes, O_CLOEXEC));
		watches[i] = pipes[0];
		fds[i] = pipes[1];
	}
	ASSERT_EQ(0, ring_register(ring, IORING_REGISTER_FILES, fds, NR_SLOTS));
	for (i = 0; i < NR_SLOTS; i++)
		close(fds[i]);
}

static void stop_child(struct __test_metadata *_metadata, pid_t pid)
{
	int status;

	ASSERT_EQ(0, kill(pid, SIGSTOP));
	ASSERT_EQ(pid, waitpid(pid, &status, WUNTRACED));
	ASSERT_TRUE(WIFSTOPPED(status));
}

/*
 * Descriptors for a target that is stopped: a DEFER_TASKRUN ring doesn't get
 * them until it goes on, or their senders hear that it won't.
 */
static void send_to_stopped(struct __test_metadata *_metadata,
			    unsigned int flags, unsigned int sender_flags,
			    bool goes_on)
{
	bool waits = flags & IORING_SETUP_DEFER_TASKRUN && !kernel_before(6, 2);
	struct target_child child;
	int watches[NR_SLOTS], i;
	struct msg_cqe cqe;
	struct ring sender;

	ASSERT_EQ(0, msg_ring_init(&sender, sender_flags, 64, 0));
	load_slots(_metadata, &sender, watches);
	if (!fork_target(_metadata, &child, flags, SLEEPS))
		SKIP(return, "no pidfd_getfd()");
	stop_child(_metadata, child.pid);
	for (i = 0; i < NR_SLOTS; i++)
		msg_prep_fd(&sender, child.ring_fd, i, i, i, 0, i);
	submit(_metadata, &sender);
	if (waits)
		expect_nothing(_metadata, &sender);
	else
		expect_any_sent(_metadata, &sender, 0, NR_SLOTS);
	/* data don't wait */
	send_numbers(_metadata, &sender, child.ring_fd, 100, 20);

	ASSERT_EQ(0, ring_register(&sender, IORING_UNREGISTER_FILES, NULL, 0));
	kill(child.pid, goes_on ? SIGCONT : SIGKILL);
	for (i = 0; i < NR_SLOTS && waits; i++) {
		ASSERT_EQ(0, msg_next(&sender, &cqe));
		EXPECT_GT(NR_SLOTS, (int)cqe.user_data);
		EXPECT_EQ(goes_on ? 0 : -EOWNERDEAD, cqe.res);
	}
	if (goes_on) {
		/* its own went when it got another into its slot */
		EXPECT_TRUE(is_gone(child.watch, DEADLINE_MS));
		for (i = 0; i < NR_SLOTS; i++)
			EXPECT_FALSE(is_gone(watches[i], 0));
	}
	end_child(_metadata, child.pid);
	close(child.ring_fd);
	close(child.go);
	ring_exit(&sender);
	expect_gone(_metadata, child.watch);
	for (i = 0; i < NR_SLOTS; i++)
		expect_gone(_metadata, watches[i]);
}

TEST_F(target, target_is_stopped)
{
	send_to_stopped(_metadata, variant->flags, 0, true);
	send_to_stopped(_metadata, variant->flags, RING_DEFER, true);
	send_to_stopped(_metadata, variant->flags, IORING_SETUP_SQPOLL, true);
}

TEST_F(target, target_is_stopped_and_killed)
{
	send_to_stopped(_metadata, variant->flags, 0, false);
	send_to_stopped(_metadata, variant->flags, RING_DEFER, false);
	send_to_stopped(_metadata, variant->flags, IORING_SETUP_SQPOLL, false);
}

static int send_slots(struct ring *ring, int target, unsigned int nr)
{
	unsigned int i, flags;

	for (i = 0; i < nr; i++) {
		flags = i % 3 ? 0 : ASYNC;
		if (i % 8 < 4 && i < nr - 1)
			flags |= LINK;
		if (i % 4)
			msg_prep_fd(ring, target, i % NR_SLOTS,
				    (i + 1) % NR_SLOTS, i, flags, i);
		else
			msg_number(ring, target, i, flags);
	}
	return ring_submit(ring);
}

/* Descriptors and data for and from those who are being killed. */
TEST_F(target, sender_and_target_killed)
{
	int i, round, watches[NR_SLOTS];
	struct target_child child;
	struct ring sender;
	pid_t pid;

	for (round = 0; round < 12; round++) {
		ASSERT_EQ(0, msg_ring_init(&sender, 0, 64, 0));
		load_slots(_metadata, &sender, watches);
		ring_exit(&sender);
		if (!fork_target(_metadata, &child, variant->flags,
				 round % 3))
			SKIP(return, "no pidfd_getfd()");
		pid = fork_child(_metadata);
		if (!pid) {
			if (msg_ring_init(&sender, round % 2 ? RING_DEFER : 0,
					  64, 0))
				_exit(1);
			load_slots(_metadata, &sender, watches);
			do {
				if (send_slots(&sender, child.ring_fd, 64))
					_exit(1);
				ring_wait(&sender, 32, 1);
				*sender.cq_head = *sender.cq_tail;
			} while (1);
		}
		close(child.ring_fd);
		usleep(round * 500);
		kill(round % 2 ? pid : child.pid, SIGKILL);
		usleep(round * 200);
		end_child(_metadata, pid);
		end_child(_metadata, child.pid);
		close(child.go);
		expect_gone(_metadata, child.watch);
		for (i = 0; i < NR_SLOTS; i++)
			expect_gone(_metadata, watches[i]);
	}
}

/* In KB, of what the kernel has for objects that it can't drop at will. */
static long slab_size(void)
{
	char line[128];
	long size = -1;
	FILE *file;

	file = fopen("/proc/meminfo", "r");
	if (!file)
		return -1;
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "SUnreclaim: %ld kB", &size) == 1)
			break;
	fclose(file);
	return size;
}

/* Freeing takes a while, and other things change as well. */
static void expect_slab_size(struct __test_metadata *_metadata, long most)
{
	__u64 end = now_ms() + DEADLINE_MS;

	while (slab_size() > most && now_ms() < end)
		sleep_ms(10);
	EXPECT_GE(most, slab_size());
}

#define NR_LEAKED	64000U

/* Half of what they need at least, which is 32 bytes each in overflow. */
#define SLACK_KB	(NR_LEAKED * 32 / 1024 / 2)

static void send_bulk(struct __test_metadata *_metadata, struct ring *sender,
		      int target, unsigned int nr)
{
	unsigned int i;

	for (; nr; nr -= 500) {
		for (i = 0; i < 500; i++)
			msg_number(sender, target, i, 0);
		submit(_metadata, sender);
		expect_sent_range(_metadata, sender, 0, 500);
	}
}

TEST_F(target, unreaped_memory_is_given_back)
{
	struct ring sender, target;
	long before, during = 0;
	unsigned int i;
	int watch;

	if (has_kasan())
		SKIP(return, "KASAN holds what is freed");
	before = slab_size();
	if (before < 0)
		SKIP(return, "no SUnreclaim in /proc/meminfo");
	ASSERT_EQ(0, msg_ring_init(&sender, RING_DEFER, RING_ENTRIES, 0));
	for (i = 0; i < 4; i++) {
		ASSERT_EQ(0, init_watched(&target, variant->flags, &watch));
		send_bulk(_metadata, &sender, target.fd, NR_LEAKED / 4);
		during = slab_size();
		ring_exit(&target);
		expect_gone(_metadata, watch);
	}
	/* they must have been somewhere, or this is no test */
	EXPECT_LT(before + SLACK_KB / 8, during);
	expect_slab_size(_metadata, before + SLACK_KB);
	ring_exit(&sender);
}

TEST_F(target, reaped_memory_is_given_back)
{
	struct ring sender, target;
	unsigned int i;
	long before;
	int watch;

	if (!(variant->flags & IORING_SETUP_DEFER_TASKRUN))
		SKIP(return, "no memory is needed for messages");
	if (has_kasan())
		SKIP(return, "KASAN holds what is freed");
	before = slab_size();
	if (before < 0)
		SKIP(return, "no SUnreclaim in /proc/meminfo");
	ASSERT_EQ(0, msg_ring_init(&sender, RING_DEFER, RING_ENTRIES, 0));
	ASSERT_EQ(0, init_watched(&target, variant->flags, &watch));
	for (i = 0; i < NR_LEAKED / 500; i++) {
		send_bulk(_metadata, &sender, target.fd, 500);
		expect_numbers(_metadata, &target, 0, 500);
	}
	expect_slab_size(_metadata, before + SLACK_KB);

	/* a backlog is no reason to keep anything, either */
	send_bulk(_metadata, &sender, target.fd, NR_LEAKED / 4);
	for (i = 0; i < NR_LEAKED / 4 / 500; i++)
		expect_numbers(_metadata, &target, 0, 500);
	expect_slab_size(_metadata, before + SLACK_KB);
	ring_exit(&sender);
	ring_exit(&target);
	expect_gone(_metadata, watch);
}

/*
 * Senders and targets in memory cgroups of their own. Which of the two is
 * charged for a message is up to the kernel, but one of them is as long as the
 * message is on its way.
 */
struct cgroup {
	char dir[64];
	char procs[96];
};

FIXTURE(memcg)
{
	char mount[32];
	struct cgroup sender;
	struct cgroup target;
	bool mounted;
	bool made;
};

FIXTURE_VARIANT(memcg)
{
	unsigned int flags;
};

FIXTURE_VARIANT_ADD(memcg, plain) {
	.flags = 0,
};

FIXTURE_VARIANT_ADD(memcg, defer) {
	.flags = RING_DEFER,
};

static int write_in(const char *dir, const char *name, const char *text)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	return write_file(path, text, 0);
}

/* The value after @key, or the file's only one; or -1. */
static long read_value(const char *dir, const char *name, const char *key)
{
	char path[128], line[256];
	long value = -1;
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	file = fopen(path, "r");
	if (!file)
		return -1;
	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, key, strlen(key)) &&
		    sscanf(line + strlen(key), "%ld", &value) == 1)
			break;
	fclose(file);
	return value;
}

static long charged(const struct cgroup *group)
{
	return read_value(group->dir, "memory.stat", "slab ");
}

static int make_cgroup(struct cgroup *group, const char *mount,
		       const char *name)
{
	snprintf(group->dir, sizeof(group->dir), "%s/%s.%d", mount, name,
		 getpid());
	snprintf(group->procs, sizeof(group->procs), "%s/cgroup.procs",
		 group->dir);
	if (mkdir(group->dir, 0700))
		return -errno;
	return charged(group) < 0 ? -ENOENT : 0;
}

FIXTURE_SETUP(memcg)
{
	if (!msg_ring_supported(variant->flags))
		SKIP(return, "no such ring");
	snprintf(self->mount, sizeof(self->mount), "/tmp/io_uring_test.XXXXXX");
	ASSERT_NE(NULL, mkdtemp(self->mount));
	self->made = true;
	if (unshare(CLONE_NEWNS) ||
	    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) ||
	    mount("cgroup2", self->mount, "cgroup2", 0, NULL))
		SKIP(return, "can't mount cgroup2: %s", strerror(errno));
	self->mounted = true;
	write_in(self->mount, "cgroup.subtree_control", "+memory");
	if (make_cgroup(&self->sender, self->mount, "sender") ||
	    make_cgroup(&self->target, self->mount, "target"))
		SKIP(return, "no memory controller");
}

FIXTURE_TEARDOWN(memcg)
{
	if (self->mounted) {
		rmdir(self->sender.dir);
		rmdir(self->target.dir);
		umount2(self->mount, MNT_DETACH);
	}
	if (self->made)
		rmdir(self->mount);
}

/* Sends, tells how it went, and stays. */
static pid_t fork_charged(struct __test_metadata *_metadata,
			  const struct cgroup *group, int target,
			  unsigned int nr, int report)
{
	struct msg_cqe cqe = {};
	unsigned int sent, i;
	struct ring ring;
	pid_t pid;

	pid = fork_child(_metadata);
	if (pid)
		return pid;
	if (join_cgroup(group->procs) ||
	    msg_ring_init(&ring, RING_DEFER, RING_ENTRIES, 0))
		_exit(1);
	for (sent = 0; sent < nr && !cqe.res; sent += i) {
		for (i = 0; i < 100; i++)
			msg_number(&ring, target, i, 0);
		if (ring_submit(&ring))
			_exit(1);
		for (i = 0; i < 100 && !cqe.res; i++)
			if (msg_next(&ring, &cqe))
				_exit(1);
	}
	close(target);
	if (write(report, &cqe.res, sizeof(cqe.res)) != sizeof(cqe.res))
		_exit(1);
	pause();
	return 0;
}

static void expect_charged(struct __test_metadata *_metadata,
			   const struct cgroup *group, long most)
{
	__u64 end = now_ms() + DEADLINE_MS;

	while (charged(group) > most && now_ms() < end)
		sleep_ms(10);
	EXPECT_GE(most, charged(group));
}

#define NR_CHARGED	20000

/* What a process itself has, and may leave behind. */
#define CHARGE_SLACK	(NR_CHARGED * 32 / 2)

TEST_F(memcg, charged_while_in_flight)
{
	struct target_child child;
	long sender, target;
	int res, report[2];
	pid_t pid;

	if (!fork_target_in(_metadata, &child, variant->flags, SLEEPS,
			    self->target.procs))
		SKIP(return, "no pidfd_getfd()");
	ASSERT_EQ(0, pipe2(report, O_CLOEXEC));
	pid = fork_charged(_metadata, &self->sender, child.ring_fd, NR_CHARGED,
			   report[1]);
	ASSERT_EQ((int)sizeof(res), read(report[0], &res, sizeof(res)));
	EXPECT_EQ(0, res);
	sender = charged(&self->sender);
	target = charged(&self->target);
	EXPECT_LT(NR_CHARGED * 32, sender + target) {
		TH_LOG("%ld for the sender, %ld for the target", sender,
		       target);
	}
	/* it goes with the target, however long the sender lives */
	close(child.go);
	close(child.ring_fd);
	end_child(_metadata, child.pid);
	expect_gone(_metadata, child.watch);
	expect_charged(_metadata, &self->sender, CHARGE_SLACK);
	expect_charged(_metadata, &self->target, CHARGE_SLACK);
	end_child(_metadata, pid);
}

/* Neither keeps what the other is charged for. */
TEST_F(memcg, not_charged_once_reaped)
{
	struct target_child child;
	int res, i, report[2];
	pid_t pid;

	if (!fork_target_in(_metadata, &child, variant->flags, REAPS,
			    self->target.procs))
		SKIP(return, "no pidfd_getfd()");
	ASSERT_EQ(0, pipe2(report, O_CLOEXEC));
	for (i = 0; i < 3; i++) {
		pid = fork_charged(_metadata, &self->sender, child.ring_fd,
				   NR_CHARGED, report[1]);
		ASSERT_EQ((int)sizeof(res), read(report[0], &res, sizeof(res)));
		EXPECT_EQ(0, res);
		expect_charged(_metadata, &self->sender, CHARGE_SLACK);
		expect_charged(_metadata, &self->target, CHARGE_SLACK);
		end_child(_metadata, pid);
		expect_charged(_metadata, &self->sender, CHARGE_SLACK);
	}
	close(child.go);
	close(child.ring_fd);
	end_child(_metadata, child.pid);
	expect_gone(_metadata, child.watch);
	expect_charged(_metadata, &self->target, CHARGE_SLACK);
}

/*
 * A target that never reaps doesn't make the kernel give out more than the
 * sender may have: it is told so, or killed.
 */
TEST_F(memcg, limited)
{
	const unsigned int nr = 1000000;
	struct pollfd pfd = { .events = POLLIN };
	struct target_child child;
	int res = -1, report[2];
	pid_t pid;

	ASSERT_EQ(0, write_in(self->sender.dir, "memory.max", "6M"));
	write_in(self->sender.dir, "memory.swap.max", "0");
	if (!fork_target_in(_metadata, &child, variant->flags, SLEEPS,
			    self->target.procs))
		SKIP(return, "no pidfd_getfd()");
	ASSERT_EQ(0, pipe2(report, O_CLOEXEC));
	pid = fork_charged(_metadata, &self->sender, child.ring_fd, nr,
			   report[1]);
	close(report[1]);
	pfd.fd = report[0];
	ASSERT_EQ(1, poll(&pfd, 1, 2 * DEADLINE_MS));
	if (read(report[0], &res, sizeof(res)) == sizeof(res)) {
		EXPECT_TRUE(res == -ENOMEM || res == -EOVERFLOW) {
			TH_LOG("the sender was told %d", res);
		}
		end_child(_metadata, pid);
	} else {
		EXPECT_EQ(SIGKILL, child_wait(pid));
	}
	close(child.go);
	close(child.ring_fd);
	end_child(_metadata, child.pid);
	expect_gone(_metadata, child.watch);
	expect_charged(_metadata, &self->sender, CHARGE_SLACK);
}

int main(int argc, char **argv)
{
	char c;

	if (argc == 2 && !strcmp(argv[1], WAIT_ARG))
		return read(STDIN_FILENO, &c, 1);
	return test_harness_run(argc, argv);
}
