// SPDX-License-Identifier: GPL-2.0
/*
 * Whom a message wakes, and when its target is seen to be readable: by those
 * who wait in io_uring_enter(), for an eventfd, in epoll_wait() and ppoll(), or
 * by a poll request of another ring. Waiters sleep without a limit of their
 * own, so that a wake-up that is lost is seen as such by the test's thread.
 */
#include <sys/epoll.h>
#include <sys/eventfd.h>

#define TARGETS_WAIT
#include "msg.h"

#define ASYNC		IOSQE_ASYNC
#define LINK		IOSQE_IO_LINK
#define SILENT		IOSQE_CQE_SKIP_SUCCESS

/* All of a test's threads. */
#define MAX_PEERS	16

static const struct __kernel_timespec hour = { .tv_sec = 3600 };
static const struct __kernel_timespec deadline = {
	.tv_sec = DEADLINE_MS / 1000,
};

static const struct __kernel_timespec soon = { .tv_nsec = 50000000 };
static const struct __kernel_timespec zero = {};

/* Who sends. */
struct sender {
	const char *name;
	unsigned int ring_flags;
	unsigned int sqe_flags;
	bool sync;
};

static const struct sender senders[] = {
	{ .name = "plain" },
	{ .name = "defer", .ring_flags = RING_DEFER },
	{ .name = "sqpoll", .ring_flags = IORING_SETUP_SQPOLL },
	{ .name = "iopoll", .ring_flags = IORING_SETUP_IOPOLL },
	{ .name = "plain, io-wq", .sqe_flags = ASYNC },
	{
		.name		= "defer, io-wq",
		.ring_flags	= RING_DEFER,
		.sqe_flags	= ASYNC,
	},
	{ .name = "no ring", .sync = true },
};

static int sender_send(const struct sender *sender, struct ring *ring,
		       int target, __u64 first, unsigned int nr)
{
	struct msg_cqe cqe;
	struct msg msg;
	unsigned int i;
	int ret;

	for (i = 0; i < nr; i++) {
		if (!sender->sync) {
			msg_number(ring, target, first + i, sender->sqe_flags |
				   (i < nr - 1 ? LINK : 0));
			continue;
		}
		msg = (struct msg){ first + i, first + i, 0 };
		ret = msg_sync(target, &msg);
		if (ret)
			return ret;
	}
	if (sender->sync)
		return 0;
	ret = ring_submit(ring);
	for (i = 0; i < nr && !ret; i++) {
		ret = msg_next(ring, &cqe);
		if (!ret)
			ret = cqe.res;
	}
	return ret;
}

/* A thread with a ring of its own. */
struct peer {
	pthread_t thread;
	void (*run)(struct peer *peer);
	unsigned int ring_flags;
	unsigned int cq_entries;
	int cpu;
	void *arg;
	/* by the thread */
	struct ring ring;
	pid_t tid;
	int ready;
	int done;
	unsigned int rounds;
	int error;
	const char *what;
};

static bool peer_fail(struct peer *peer, int error, const char *what)
{
	if (!error || peer->what)
		return false;
	peer->error = error;
	peer->what = what;
	return true;
}

static int pin(int cpu)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	return sched_setaffinity(0, sizeof(set), &set) ? -errno : 0;
}

static void *peer_thread(void *arg)
{
	struct peer *peer = arg;
	int ret = 0;

	peer->tid = gettid();
	if (peer->cpu >= 0)
		ret = pin(peer->cpu);
	if (!ret)
		ret = msg_ring_init(&peer->ring, peer->ring_flags,
				    peer->cq_entries ? 4 : RING_ENTRIES,
				    peer->cq_entries);
	peer_fail(peer, ret, "no ring");
	__atomic_store_n(&peer->ready, 1, __ATOMIC_RELEASE);
	if (!ret)
		peer->run(peer);
	__atomic_store_n(&peer->done, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* The flag or counter becomes @least in time. */
static bool reached_in(const void *counter, unsigned int least, unsigned int ms)
{
	const unsigned int *value = counter;
	__u64 end = now_ms() + ms;

	while (__atomic_load_n(value, __ATOMIC_ACQUIRE) < least) {
		if (now_ms() > end)
			return false;
		usleep(50);
	}
	return true;
}

static bool reached(const void *counter, unsigned int least)
{
	return reached_in(counter, least, DEADLINE_MS);
}

static void peer_start(struct __test_metadata *_metadata, struct peer *peer)
{
	ASSERT_EQ(0, pthread_create(&peer->thread, NULL, peer_thread, peer));
	ASSERT_TRUE(reached(&peer->ready, 1));
	ASSERT_EQ(NULL, peer->what) {
		TH_LOG("%s: %s", peer->what, strerror(-peer->error));
	}
}

static void peer_join(struct __test_metadata *_metadata, struct peer *peer)
{
	ASSERT_TRUE(reached_in(&peer->done, 1, 2 * DEADLINE_MS)) {
		TH_LOG("thread doesn't end, after %u rounds", peer->rounds);
	}
	ASSERT_EQ(0, pthread_join(peer->thread, NULL));
	EXPECT_EQ(NULL, peer->what) {
		TH_LOG("%s: %d (%s), after %u rounds", peer->what, peer->error,
		       strerror(-peer->error), peer->rounds);
	}
	ring_exit(&peer->ring);
}

/* What follows is meant for a sleeper, but has to work for others, too. */
static void wait_asleep(struct peer *peer)
{
	__u64 end = now_ms() + SETTLE_MS;

	while (!is_asleep(peer->tid) && now_ms() < end)
		usleep(50);
}

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

/* The messages of one round each. */
static const unsigned int counts[] = { 1, 1, 2, 3, 8, 20, 33, 64, 1 };

static int wait_nr(struct ring *ring, unsigned int nr,
		   const struct __kernel_timespec *ts)
{
	struct io_uring_getevents_arg arg = {
		.ts = (unsigned long)ts,
	};
	int ret;

	do {
		ret = ring_enter(ring, 0, nr, IORING_ENTER_GETEVENTS |
				 (ts ? IORING_ENTER_EXT_ARG : 0),
				 ts ? &arg : NULL, ts ? sizeof(arg) : 0);
	} while (ret == -EINTR);
	return ret;
}

static bool receive_one(struct peer *peer, __u64 nr)
{
	struct msg_cqe cqe;

	if (peer_fail(peer, wait_nr(&peer->ring, 1, NULL), "wait failed") ||
	    peer_fail(peer, msg_next_timeout(&peer->ring, &cqe, 0),
		      "woken too early"))
		return false;
	return cqe.user_data == nr ||
	       !peer_fail(peer, -EBADMSG, "wrong message");
}

/* Whoever waits for a number of messages without a limit gets no less. */
static bool receive(struct peer *peer, __u64 first, unsigned int nr)
{
	struct ring *ring = &peer->ring;
	struct msg_cqe cqe;
	unsigned int i;

	if (peer_fail(peer, wait_nr(ring, nr, peer->arg), "wait failed"))
		return false;
	if (ring_ready(ring) < nr)
		return !peer_fail(peer, -EAGAIN, "woken too early");
	for (i = 0; i < nr; i++) {
		if (peer_fail(peer, msg_next(ring, &cqe), "no message"))
			return false;
		if (cqe.user_data != first + i || cqe.res != (int)(first + i))
			return !peer_fail(peer, -EBADMSG, "wrong message");
	}
	return true;
}

static void receive_counts(struct peer *peer)
{
	unsigned int i;
	__u64 nr = 0;

	for (i = 0; i < ARRAY_SIZE(counts); i++) {
		if (!receive(peer, nr, counts[i]))
			return;
		nr += counts[i];
		__atomic_store_n(&peer->rounds, i + 1, __ATOMIC_RELEASE);
	}
}

/* A round is sent in one go, or one by one. */
static void send_counts(struct __test_metadata *_metadata,
			const struct sender *sender, unsigned int flags,
			bool one_by_one, const struct __kernel_timespec *ts)
{
	struct peer peer = {
		.run		= receive_counts,
		.ring_flags	= flags,
		.cpu		= -1,
		.arg		= (void *)ts,
	};
	unsigned int i, j, step;
	struct ring ring;
	__u64 nr = 0;

	ASSERT_EQ(0, msg_ring_init(&ring, sender->ring_flags, RING_ENTRIES,
				   0));
	peer_start(_metadata, &peer);
	for (i = 0; i < ARRAY_SIZE(counts); i++) {
		wait_asleep(&peer);
		step = one_by_one ? 1 : counts[i];
		for (j = 0; j < counts[i]; j += step) {
			ASSERT_EQ(0, sender_send(sender, &ring, peer.ring.fd,
						 nr, step));
			nr += step;
		}
		ASSERT_TRUE(reached(&peer.rounds, i + 1)) {
			TH_LOG("nobody woken by %u messages", counts[i]);
		}
	}
	peer_join(_metadata, &peer);
	ring_exit(&ring);
}

static void with_every_kind(struct __test_metadata *_metadata,
			    unsigned int flags,
			    const struct __kernel_timespec *ts)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(senders); i++) {
		if (senders[i].sync && !msg_sync_supported())
			continue;
		sender_name = senders[i].name;
		send_counts(_metadata, &senders[i], flags, false, ts);
		send_counts(_metadata, &senders[i], flags, true, ts);
	}
}

TEST_F(target, wakes_waiter)
{
	with_every_kind(_metadata, variant->flags, NULL);
}

TEST_F(target, wakes_waiter_with_timeout)
{
	with_every_kind(_metadata, variant->flags, &hour);
}

/* Senders that know nothing of each other, and a waiter who wants all. */
#define CROWD		4
#define CROWD_SENDS	20

struct crowd {
	const struct sender *sender;
	int target;
	unsigned int nr;
	/* counts the rounds that may begin */
	unsigned int *go;
};

static void crowd_send(struct peer *peer)
{
	struct crowd *crowd = peer->arg;
	int ret;

	for (; peer->rounds < CROWD_SENDS; peer->rounds++) {
		if (!reached(crowd->go, peer->rounds)) {
			peer_fail(peer, -ETIME, "round doesn't begin");
			return;
		}
		ret = sender_send(crowd->sender, &peer->ring, crowd->target,
				  peer->rounds, 1);
		if (peer_fail(peer, ret, "can't send"))
			return;
	}
}

static void crowd_receive(struct peer *peer)
{
	struct msg_cqe cqe;
	unsigned int i;

	for (; peer->rounds < CROWD_SENDS;) {
		if (peer_fail(peer, wait_nr(&peer->ring, CROWD, NULL), "wait"))
			return;
		for (i = 0; i < CROWD; i++) {
			if (peer_fail(peer, msg_next_timeout(&peer->ring, &cqe,
							     0),
				      "woken too early"))
				return;
			if (cqe.user_data != peer->rounds) {
				peer_fail(peer, -EBADMSG, "wrong message");
				return;
			}
		}
		__atomic_store_n(&peer->rounds, peer->rounds + 1,
				 __ATOMIC_RELEASE);
	}
}

/* The last of them wakes the waiter, whoever that is. */
TEST_F(target, wakes_waiter_for_many_senders)
{
	struct peer receiver = {
		.run		= crowd_receive,
		.ring_flags	= variant->flags,
		.cpu		= -1,
	};
	struct peer peers[CROWD] = {};
	const struct sender *sender;
	struct crowd crowd[CROWD];
	unsigned int i, j;

	for (i = 0; i + CROWD <= ARRAY_SIZE(senders); i += 3) {
		receiver.ready = 0;
		receiver.done = 0;
		receiver.rounds = 0;
		peer_start(_metadata, &receiver);
		for (j = 0; j < CROWD; j++) {
			sender = &senders[i + j];
			if (sender->sync && !msg_sync_supported())
				sender = &senders[0];
			crowd[j] = (struct crowd){
				.sender	= sender,
				.target	= receiver.ring.fd,
				.go	= &receiver.rounds,
			};
			peers[j] = (struct peer){
				.run		= crowd_send,
				.ring_flags	= sender->ring_flags,
				.cpu		= -1,
				.arg		= &crowd[j],
			};
			peer_start(_metadata, &peers[j]);
		}
		peer_join(_metadata, &receiver);
		for (j = 0; j < CROWD; j++)
			peer_join(_metadata, &peers[j]);
	}
}

/* What there is at the end of the time has been posted. */
TEST_F(target, fewer_than_wanted)
{
	struct ring ring, target;
	unsigned int i;

	ASSERT_EQ(0, msg_ring_init(&ring, 0, 64, 0));
	ASSERT_EQ(0, msg_ring_init(&target, variant->flags, 64, 0));
	for (i = 0; i < 7; i++) {
		send_numbers(_metadata, &ring, target.fd, 1, i);
		EXPECT_EQ(i ? 0 : -ETIME, wait_nr(&target, 8, &soon));
		EXPECT_EQ(i, ring_ready(&target));
		expect_numbers(_metadata, &target, 1, i);

		send_numbers(_metadata, &ring, target.fd, 1, i);
		EXPECT_EQ(i ? 0 : -ETIME, wait_nr(&target, 8, &zero));
		EXPECT_EQ(i, ring_ready(&target));
		expect_numbers(_metadata, &target, 1, i);
	}
	ring_exit(&target);
	ring_exit(&ring);
}

/* They come while it sleeps, and it gives up before it has what it wants. */
static void receive_portions(struct peer *peer)
{
	__u64 end = now_ms() + DEADLINE_MS;
	struct msg_cqe cqe;
	int ret;

	while (peer->rounds < 30) {
		ret = wait_nr(&peer->ring, 8, &soon);
		if (ret != -ETIME && peer_fail(peer, ret, "wait failed"))
			return;
		while (!msg_next_timeout(&peer->ring, &cqe, 0)) {
			if (cqe.user_data != peer->rounds) {
				peer_fail(peer, -EBADMSG, "wrong message");
				return;
			}
			__atomic_store_n(&peer->rounds, peer->rounds + 1,
					 __ATOMIC_RELEASE);
		}
		if (now_ms() > end) {
			peer_fail(peer, -ETIME, "messages are missing");
			return;
		}
	}
}

TEST_F(target, fewer_than_wanted_while_asleep)
{
	struct peer peer = {
		.run		= receive_portions,
		.ring_flags	= variant->flags,
		.cpu		= -1,
	};
	struct ring ring;
	unsigned int i;

	ASSERT_EQ(0, msg_ring_init(&ring, 0, 64, 0));
	peer_start(_metadata, &peer);
	for (i = 0; i < 30; i += 5) {
		wait_asleep(&peer);
		send_numbers(_metadata, &ring, peer.ring.fd, i, 5);
		ASSERT_TRUE(reached(&peer.rounds, i + 5));
	}
	peer_join(_metadata, &peer);
	ring_exit(&ring);
}

static struct io_uring_getevents_arg min_wait_arg(unsigned int usec)
{
	return (struct io_uring_getevents_arg){
		.min_wait_usec	= usec,
		.ts		= (unsigned long)&hour,
	};
}

/*
 * After a while less is enough: what is there then, or the first message that
 * comes later.
 */
static void receive_after_min_wait(struct peer *peer)
{
	struct io_uring_getevents_arg arg = min_wait_arg(20000);
	struct msg_cqe cqe;
	int ret;

	while (peer->rounds < 20) {
		ret = ring_enter(&peer->ring, 0, 8, IORING_ENTER_GETEVENTS |
				 IORING_ENTER_EXT_ARG, &arg, sizeof(arg));
		if (ret != -ETIME && ret != -EINTR &&
		    peer_fail(peer, ret, "wait failed"))
			return;
		while (!msg_next_timeout(&peer->ring, &cqe, 0)) {
			if (cqe.user_data != peer->rounds) {
				peer_fail(peer, -EBADMSG, "wrong message");
				return;
			}
			__atomic_store_n(&peer->rounds, peer->rounds + 1,
					 __ATOMIC_RELEASE);
		}
	}
}

TEST_F(target, min_wait)
{
	struct peer peer = {
		.run		= receive_after_min_wait,
		.ring_flags	= variant->flags,
		.cpu		= -1,
	};
	struct io_uring_params p = {};
	struct ring ring;
	unsigned int i;

	ASSERT_EQ(0, msg_ring_init_params(&ring, 64, &p));
	if (!(p.features & IORING_FEAT_MIN_TIMEOUT))
		SKIP(return, "no IORING_FEAT_MIN_TIMEOUT");
	peer_start(_metadata, &peer);
	for (i = 0; i < 20; i++) {
		wait_asleep(&peer);
		/* half of them find that the first limit is over */
		if (i % 2)
			sleep_ms(30);
		send_numbers(_metadata, &ring, peer.ring.fd, i, 1);
		ASSERT_TRUE(reached(&peer.rounds, i + 1)) {
			TH_LOG("message %u woke nobody", i);
		}
	}
	peer_join(_metadata, &peer);
	ring_exit(&ring);
}

static void ignore_signal(int nr)
{
	(void)nr;
}

static void catch_signal(struct __test_metadata *_metadata)
{
	struct sigaction action = { .sa_handler = ignore_signal };

	ASSERT_EQ(0, sigaction(SIGUSR1, &action, NULL));
}

static void receive_until_signal(struct peer *peer)
{
	const unsigned int *sent = peer->arg;
	unsigned int had;
	int ret;

	do {
		ret = ring_enter(&peer->ring, 0, 8, IORING_ENTER_GETEVENTS,
				 NULL, 0);
		if (ret != -EINTR && peer_fail(peer, ret, "wait failed"))
			return;
		had = __atomic_load_n(sent, __ATOMIC_ACQUIRE);
	} while (!had);
	if (ring_ready(&peer->ring) != had)
		peer_fail(peer, -EBADMSG, "messages are missing");
}

/* A signal ends the wait, and what came before it is there. */
TEST_F(target, signal)
{
	unsigned int i, sent = 0;
	struct peer peer = {
		.run		= receive_until_signal,
		.ring_flags	= variant->flags,
		.cpu		= -1,
		.arg		= &sent,
	};
	struct ring ring;

	catch_signal(_metadata);
	ASSERT_EQ(0, msg_ring_init(&ring, 0, 64, 0));
	for (i = 1; i < 8; i++) {
		peer.ready = 0;
		peer.done = 0;
		sent = 0;
		peer_start(_metadata, &peer);
		wait_asleep(&peer);
		send_numbers(_metadata, &ring, peer.ring.fd, 0, i);
		__atomic_store_n(&sent, i, __ATOMIC_RELEASE);
		/* it may be on its way to sleep */
		do {
			pthread_kill(peer.thread, SIGUSR1);
		} while (!reached_in(&peer.done, 1, SETTLE_MS));
		peer_join(_metadata, &peer);
	}
	ring_exit(&ring);
}

/* A wait for more than the CQ ring holds is one for as many as it holds. */
static void receive_in_small_ring(struct peer *peer)
{
	struct msg_cqe cqe;

	while (peer->rounds < 60) {
		if (peer_fail(peer, wait_nr(&peer->ring, 12, NULL), "wait"))
			return;
		if (ring_ready(&peer->ring) < 4) {
			peer_fail(peer, -EAGAIN, "woken too early");
			return;
		}
		while (peer->rounds < 60 &&
		       !msg_next_timeout(&peer->ring, &cqe, 0)) {
			if (cqe.user_data != peer->rounds) {
				peer_fail(peer, -EBADMSG, "wrong message");
				return;
			}
			__atomic_store_n(&peer->rounds, peer->rounds + 1,
					 __ATOMIC_RELEASE);
		}
	}
}

TEST_F(target, wakes_waiter_that_overflows)
{
	struct peer peer = {
		.run		= receive_in_small_ring,
		.ring_flags	= variant->flags,
		.cpu		= -1,
		.cq_entries	= 4,
	};
	struct ring ring;
	unsigned int i;

	ASSERT_EQ(0, msg_ring_init(&ring, 0, 64, 0));
	peer_start(_metadata, &peer);
	for (i = 0; i < 60; i += 12) {
		wait_asleep(&peer);
		send_numbers(_metadata, &ring, peer.ring.fd, i, 12);
		ASSERT_TRUE(reached(&peer.rounds, i + 12));
	}
	peer_join(_metadata, &peer);
	ring_exit(&ring);
}

struct waiter {
	pthread_t thread;
	struct ring *ring;
	unsigned int nr;
	pid_t tid;
	int ready;
	int done;
	int ret;
};

static void *waiter_thread(void *arg)
{
	struct waiter *waiter = arg;

	waiter->tid = gettid();
	__atomic_store_n(&waiter->ready, 1, __ATOMIC_RELEASE);
	waiter->ret = wait_nr(waiter->ring, waiter->nr, NULL);
	__atomic_store_n(&waiter->done, 1, __ATOMIC_RELEASE);
	return NULL;
}

/* Each goes on when there is enough for it. */
TEST_F(target, several_waiters)
{
	struct waiter waiters[4] = {};
	struct ring ring, target;
	unsigned int i;

	if (variant->flags & IORING_SETUP_DEFER_TASKRUN)
		SKIP(return, "one thread only can wait");
	if (kernel_before(6, 12))
		SKIP(return, "a waiter hides those who came later");
	ASSERT_EQ(0, msg_ring_init(&ring, 0, 64, 0));
	ASSERT_EQ(0, msg_ring_init(&target, variant->flags, 64, 0));
	/* those who want most have come first */
	for (i = 0; i < 4; i++) {
		waiters[i].ring = &target;
		waiters[i].nr = 4 - i;
		ASSERT_EQ(0, pthread_create(&waiters[i].thread, NULL,
					    waiter_thread, &waiters[i]));
		ASSERT_TRUE(reached(&waiters[i].ready, 1));
		while (!is_asleep(waiters[i].tid))
			usleep(50);
	}
	for (i = 0; i < 4; i++) {
		send_numbers(_metadata, &ring, target.fd, i, 1);
		ASSERT_TRUE(reached(&waiters[3 - i].done, 1)) {
			TH_LOG("who waits for %u isn't woken", i + 1);
		}
		EXPECT_EQ(0, waiters[3 - i].ret);
		if (i < 3)
			EXPECT_FALSE(reached_in(&waiters[2 - i].done, 1, 5));
	}
	for (i = 0; i < 4; i++)
		ASSERT_EQ(0, pthread_join(waiters[i].thread, NULL));
	expect_numbers(_metadata, &target, 0, 4);
	ring_exit(&target);
	ring_exit(&ring);
}

static int make_eventfd(struct __test_metadata *_metadata, struct ring *ring,
			unsigned int op)
{
	int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, ring_register(ring, op, &fd, 1));
	return fd;
}

static bool is_readable(int fd, unsigned int ms)
{
	struct pollfd pfd = {
		.fd	= fd,
		.events	= POLLIN,
	};

	return poll(&pfd, 1, ms) == 1 && pfd.revents & POLLIN;
}

static void drain_eventfd(int fd)
{
	__u64 value;

	while (read(fd, &value, sizeof(value)) > 0)
		;
}

/* @fn with every kind of sender, and a target of the test's own thread. */
static void with_target(struct __test_metadata *_metadata, unsigned int flags,
			void (*fn)(struct __test_metadata *_metadata,
				   const struct sender *sender,
				   struct ring *ring, struct ring *target))
{
	struct ring ring, target;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(senders); i++) {
		if (senders[i].sync && !msg_sync_supported())
			continue;
		sender_name = senders[i].name;
		ASSERT_EQ(0, msg_ring_init(&ring, senders[i].ring_flags,
					   RING_ENTRIES, 0));
		ASSERT_EQ(0, msg_ring_init(&target, flags, RING_ENTRIES, 0));
		fn(_metadata, &senders[i], &ring, &target);
		ring_exit(&target);
		ring_exit(&ring);
	}
}

/*
 * It is readable once the message was sent, the target needs to do nothing for
 * that. Nothing is said about the count, but if it grows then something came.
 */
static void check_eventfd(struct __test_metadata *_metadata,
			  const struct sender *sender, struct ring *ring,
			  struct ring *target)
{
	int fd = make_eventfd(_metadata, target, IORING_REGISTER_EVENTFD);
	unsigned int i, nr;

	for (i = 0; i < 40; i++) {
		nr = i % 4 < 3 ? 1 : i;
		EXPECT_FALSE(is_readable(fd, 0)) {
			TH_LOG("an event without a message");
		}
		ASSERT_EQ(0, sender_send(sender, ring, target->fd, 1, nr));
		ASSERT_TRUE(is_readable(fd, DEADLINE_MS)) {
			TH_LOG("no event for message %u", i);
		}
		/* it counts again when all has been seen */
		drain_eventfd(fd);
		expect_numbers(_metadata, target, 1, nr);
		drain_eventfd(fd);
	}
	close(fd);
}

TEST_F(target, eventfd)
{
	with_target(_metadata, variant->flags, check_eventfd);
}

/* Only what a worker does counts. */
static void check_async_eventfd(struct __test_metadata *_metadata,
				const struct sender *sender, struct ring *ring,
				struct ring *target)
{
	int fd = make_eventfd(_metadata, target, IORING_REGISTER_EVENTFD_ASYNC);
	bool worker = sender->sqe_flags & ASYNC;
	unsigned int i;

	for (i = 0; i < 10; i++) {
		ASSERT_EQ(0, sender_send(sender, ring, target->fd, 1, 1));
		EXPECT_EQ(worker, is_readable(fd, worker ? DEADLINE_MS : 1));
		expect_numbers(_metadata, target, 1, 1);
		EXPECT_EQ(worker, is_readable(fd, 0));
		drain_eventfd(fd);
	}
	close(fd);
}

TEST_F(target, eventfd_async)
{
	with_target(_metadata, variant->flags, check_async_eventfd);
}

TEST_F(target, eventfd_disabled)
{
	struct io_uring_params p = { .flags = variant->flags };
	struct ring ring, target;
	unsigned int i, *flags;
	int fd;

	ASSERT_EQ(0, msg_ring_init(&ring, 0, 64, 0));
	ASSERT_EQ(0, msg_ring_init_params(&target, 64, &p));
	fd = make_eventfd(_metadata, &target, IORING_REGISTER_EVENTFD);
	flags = target.ring_map + p.cq_off.flags;
	for (i = 0; i < 20; i++) {
		__atomic_store_n(flags, i % 2 ? 0 : IORING_CQ_EVENTFD_DISABLED,
				 __ATOMIC_SEQ_CST);
		send_numbers(_metadata, &ring, target.fd, i, 1);
		EXPECT_EQ(i % 2, is_readable(fd, i % 2 ? DEADLINE_MS : 1));
		expect_numbers(_metadata, &target, i, 1);
		EXPECT_EQ(i % 2, is_readable(fd, 0));
		drain_eventfd(fd);
	}
	close(fd);
	ring_exit(&target);
	ring_exit(&ring);
}

/* The ring itself. */
static bool can_poll_ring(unsigned int flags)
{
	return !(flags & IORING_SETUP_DEFER_TASKRUN) || !kernel_before(7, 3);
}

static void check_poll(struct __test_metadata *_metadata,
		       const struct sender *sender, struct ring *ring,
		       struct ring *target)
{
	unsigned int i;

	for (i = 0; i < 30; i++) {
		EXPECT_FALSE(is_readable(target->fd, 0));
		ASSERT_EQ(0, sender_send(sender, ring, target->fd, 1,
					 i % 3 + 1));
		ASSERT_TRUE(is_readable(target->fd, DEADLINE_MS)) {
			TH_LOG("message %u", i);
		}
		ASSERT_TRUE(is_readable(target->fd, 0));
		expect_numbers(_metadata, target, 1, i % 3 + 1);
	}
}

TEST_F(target, poll)
{
	with_target(_metadata, variant->flags, check_poll);
}

/* How the owner of the target learns that it should look. */
enum watch {
	EVENTFD_READ,
	EVENTFD_EPOLL,
	EVENTFD_RING,
	RING_PPOLL,
	RING_EPOLL,
	RING_EPOLL_EDGE,
	RING_RING,
};

#define NR_WATCHED	40

struct watcher {
	enum watch kind;
	int event;
	int epoll;
	/* the one that polls */
	struct ring ring;
	unsigned int nr_senders;
	unsigned int next[MAX_PEERS];
};

static int watch_init(struct watcher *watcher, struct ring *target)
{
	struct epoll_event event = { .events = EPOLLIN };
	int fd = target->fd;

	if (watcher->kind <= EVENTFD_RING) {
		fd = eventfd(0, EFD_CLOEXEC);
		watcher->event = fd;
		if (fd < 0 ||
		    ring_register(target, IORING_REGISTER_EVENTFD, &fd, 1))
			return -EIO;
	}
	watcher->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (watcher->kind == RING_EPOLL_EDGE)
		event.events |= EPOLLET;
	if (watcher->epoll < 0 ||
	    epoll_ctl(watcher->epoll, EPOLL_CTL_ADD, fd, &event))
		return -EIO;
	return msg_ring_init(&watcher->ring, 0, 4, 0);
}

static void watch_exit(struct watcher *watcher)
{
	close(watcher->epoll);
	if (watcher->kind <= EVENTFD_RING)
		close(watcher->event);
	ring_exit(&watcher->ring);
}

static int watch_with_ring(struct ring *ring, int fd)
{
	struct msg_cqe cqe;
	int ret;

	ring_prep(ring, IORING_OP_POLL_ADD, fd, NULL, 0, 0, 1)->poll32_events =
		POLLIN;
	ret = ring_submit(ring);
	if (!ret)
		ret = wait_nr(ring, 1, NULL);
	if (!ret)
		ret = msg_next_timeout(ring, &cqe, 0);
	return ret ? ret : cqe.res < 0 ? cqe.res : 0;
}

/* Sleeps without a limit. */
static int watch_wait(struct watcher *watcher, struct ring *target)
{
	struct pollfd pfd = {
		.fd	= target->fd,
		.events	= POLLIN,
	};
	struct epoll_event event;
	sigset_t set;
	__u64 value;
	int ret = 0;

	sigemptyset(&set);
	switch (watcher->kind) {
	case EVENTFD_EPOLL:
	case RING_EPOLL:
	case RING_EPOLL_EDGE:
		do {
			ret = epoll_wait(watcher->epoll, &event, 1, -1);
		} while (ret < 0 && errno == EINTR);
		ret = ret == 1 ? 0 : -errno;
		break;
	case EVENTFD_RING:
		ret = watch_with_ring(&watcher->ring, watcher->event);
		break;
	case RING_RING:
		ret = watch_with_ring(&watcher->ring, target->fd);
		break;
	case RING_PPOLL:
		do {
			ret = ppoll(&pfd, 1, NULL, &set);
		} while (ret < 0 && errno == EINTR);
		ret = ret == 1 ? 0 : -errno;
		break;
	default:
		break;
	}
	if (!ret && watcher->kind <= EVENTFD_RING &&
	    read(watcher->event, &value, sizeof(value)) < 0)
		ret = -errno;
	return ret;
}

/* Everything that is there: an edge tells about that, and not of the rest. */
static bool watch_drain(struct peer *peer)
{
	struct watcher *watcher = peer->arg;
	struct ring *ring = &peer->ring;
	unsigned int sender, nr;
	struct msg_cqe cqe;
	bool some;

	do {
		some = false;
		if (peer_fail(peer, ring_enter(ring, 0, 0,
					       IORING_ENTER_GETEVENTS, NULL, 0),
			      "enter failed"))
			return false;
		while (ring_ready(ring)) {
			some = true;
			msg_next(ring, &cqe);
			sender = cqe.user_data >> 16;
			nr = cqe.user_data & 0xffff;
			if (sender >= watcher->nr_senders ||
			    nr != watcher->next[sender]++)
				return !peer_fail(peer, -EBADMSG,
						  "wrong message");
			peer->rounds++;
		}
	} while (some);
	return true;
}

static void watch_target(struct peer *peer)
{
	struct watcher *watcher = peer->arg;
	int ret;

	while (peer->rounds < watcher->nr_senders * NR_WATCHED) {
		ret = watch_wait(watcher, &peer->ring);
		if (peer_fail(peer, ret, "nothing to see") ||
		    !watch_drain(peer))
			return;
	}
}

static void watch_run(struct peer *peer)
{
	if (peer_fail(peer, watch_init(peer->arg, &peer->ring), "can't watch"))
		return;
	/* the senders may begin */
	__atomic_store_n(&((struct watcher *)peer->arg)->nr_senders,
			 ARRAY_SIZE(senders), __ATOMIC_RELEASE);
	watch_target(peer);
	watch_exit(peer->arg);
}

static void send_to_watcher(struct peer *peer)
{
	struct crowd *crowd = peer->arg;
	unsigned int i, step;

	for (i = 0; i < NR_WATCHED; i += step) {
		step = i % 7 ? 1 : 3;
		if (step > NR_WATCHED - i)
			step = NR_WATCHED - i;
		if (peer_fail(peer, sender_send(crowd->sender, &peer->ring,
						crowd->target,
						crowd->nr << 16 | i, step),
			      "can't send"))
			return;
		if (i % 16 == 0)
			usleep(500);
		__atomic_store_n(&peer->rounds, i, __ATOMIC_RELEASE);
	}
}

static void check_watch(struct __test_metadata *_metadata, unsigned int flags,
			enum watch kind)
{
	struct peer peers[ARRAY_SIZE(senders)] = {};
	struct crowd crowd[ARRAY_SIZE(senders)] = {};
	struct watcher watcher = { .kind = kind };
	struct peer owner = {
		.run		= watch_run,
		.ring_flags	= flags,
		.cpu		= -1,
		.arg		= &watcher,
	};
	unsigned int i;

	if (kind >= RING_PPOLL && !can_poll_ring(flags))
		SKIP(return, "a message doesn't wake those who poll");
	peer_start(_metadata, &owner);
	ASSERT_TRUE(reached(&watcher.nr_senders, 1));
	for (i = 0; i < ARRAY_SIZE(senders); i++) {
		crowd[i].sender = &senders[i];
		if (senders[i].sync && !msg_sync_supported())
			crowd[i].sender = &senders[0];
		crowd[i].target = owner.ring.fd;
		crowd[i].nr = i;
		peers[i].run = send_to_watcher;
		peers[i].ring_flags = crowd[i].sender->ring_flags;
		peers[i].cpu = -1;
		peers[i].arg = &crowd[i];
		peer_start(_metadata, &peers[i]);
	}
	for (i = 0; i < ARRAY_SIZE(senders); i++)
		peer_join(_metadata, &peers[i]);
	peer_join(_metadata, &owner);
}

TEST_F(target, reads_eventfd)
{
	check_watch(_metadata, variant->flags, EVENTFD_READ);
}

TEST_F(target, polls_eventfd_with_epoll)
{
	check_watch(_metadata, variant->flags, EVENTFD_EPOLL);
}

TEST_F(target, polls_eventfd_with_another_ring)
{
	check_watch(_metadata, variant->flags, EVENTFD_RING);
}

TEST_F(target, polls_with_ppoll)
{
	check_watch(_metadata, variant->flags, RING_PPOLL);
}

TEST_F(target, polls_with_epoll)
{
	check_watch(_metadata, variant->flags, RING_EPOLL);
}

TEST_F(target, polls_with_epoll_edge)
{
	check_watch(_metadata, variant->flags, RING_EPOLL_EDGE);
}

TEST_F(target, polls_with_another_ring)
{
	check_watch(_metadata, variant->flags, RING_RING);
}

/* The owner doesn't look, but it lets others see that there is something. */
static void sleep_and_reap(struct peer *peer)
{
	const unsigned int *go = peer->arg;
	struct msg_cqe cqe;

	while (peer->rounds < 20) {
		if (!reached(go, peer->rounds + 1)) {
			peer_fail(peer, -ETIME, "nothing is sent");
			return;
		}
		if (peer_fail(peer, msg_next(&peer->ring, &cqe), "no message"))
			return;
		__atomic_store_n(&peer->rounds, peer->rounds + 1,
				 __ATOMIC_RELEASE);
	}
}

TEST_F(target, polled_by_another_thread)
{
	unsigned int i, go = 0;
	struct peer owner = {
		.run		= sleep_and_reap,
		.ring_flags	= variant->flags,
		.cpu		= -1,
		.arg		= &go,
	};
	struct epoll_event event = { .events = EPOLLIN };
	struct ring ring;
	int epoll, ret;

	if (!can_poll_ring(variant->flags))
		SKIP(return, "a message doesn't wake those who poll");
	ASSERT_EQ(0, msg_ring_init(&ring, 0, 64, 0));
	epoll = epoll_create1(EPOLL_CLOEXEC);
	ASSERT_LE(0, epoll);
	peer_start(_metadata, &owner);
	ASSERT_EQ(0, epoll_ctl(epoll, EPOLL_CTL_ADD, owner.ring.fd, &event));
	for (i = 0; i < 20; i++) {
		EXPECT_EQ(0, epoll_wait(epoll, &event, 1, 0));
		send_numbers(_metadata, &ring, owner.ring.fd, i, 1);
		/* task work of a ring that has been closed may interrupt it */
		do {
			ret = epoll_wait(epoll, &event, 1, DEADLINE_MS);
		} while (ret < 0 && errno == EINTR);
		ASSERT_EQ(1, ret);
		ASSERT_TRUE(is_readable(owner.ring.fd, 0));
		__atomic_store_n(&go, i + 1, __ATOMIC_RELEASE);
		ASSERT_TRUE(reached(&owner.rounds, i + 1));
	}
	peer_join(_metadata, &owner);
	close(epoll);
	ring_exit(&ring);
}

/* Who enables the ring is its owner, and is the one who is woken. */
static void enable_and_receive(struct peer *peer)
{
	if (peer_fail(peer, ring_register(&peer->ring,
					  IORING_REGISTER_ENABLE_RINGS, NULL,
					  0), "can't enable"))
		return;
	receive_counts(peer);
}

static void *enabler_thread(void *arg)
{
	struct peer *peer = arg;

	peer->tid = gettid();
	__atomic_store_n(&peer->ready, 1, __ATOMIC_RELEASE);
	enable_and_receive(peer);
	__atomic_store_n(&peer->done, 1, __ATOMIC_RELEASE);
	return NULL;
}

TEST_F(target, enabled_by_another_thread)
{
	__u64 nr, end = now_ms() + DEADLINE_MS;
	struct peer peer = {};
	struct msg_cqe cqe;
	struct ring ring;
	unsigned int i;

	if (kernel_before(6, 3))
		SKIP(return, "messages to disabled rings weren't refused");
	ASSERT_EQ(0, msg_ring_init(&ring, 0, 256, 0));
	ASSERT_EQ(0, msg_ring_init(&peer.ring,
				   variant->flags | IORING_SETUP_R_DISABLED,
				   256, 0));
	msg_number(&ring, peer.ring.fd, 0, 0);
	submit(_metadata, &ring);
	expect_sent(_metadata, &ring, 0, -EBADFD);
	ASSERT_EQ(0, pthread_create(&peer.thread, NULL, enabler_thread, &peer));
	ASSERT_TRUE(reached(&peer.ready, 1));
	/* until it succeeds */
	do {
		ASSERT_GT(end, now_ms());
		msg_number(&ring, peer.ring.fd, 0, 0);
		submit(_metadata, &ring);
		ASSERT_EQ(0, msg_next(&ring, &cqe));
	} while (cqe.res == -EBADFD);
	ASSERT_EQ(0, cqe.res);
	ASSERT_TRUE(reached(&peer.rounds, 1));
	for (i = 1, nr = 1; i < ARRAY_SIZE(counts); i++) {
		wait_asleep(&peer);
		send_numbers(_metadata, &ring, peer.ring.fd, nr, counts[i]);
		nr += counts[i];
		ASSERT_TRUE(reached(&peer.rounds, i + 1));
	}
	peer_join(_metadata, &peer);
	ring_exit(&ring);
}

/* Submit @nr and wait for @wait in one system call, where that can be done. */
static int submit_and_wait(struct ring *ring, unsigned int nr,
			   unsigned int wait,
			   const struct __kernel_timespec *ts)
{
	struct io_uring_getevents_arg arg = {
		.ts = (unsigned long)ts,
	};
	int ret;

	__atomic_store_n(ring->sq_tail, ring->sqe_tail, __ATOMIC_RELEASE);
	if (ring->flags & IORING_SETUP_SQPOLL) {
		ret = ring_submit(ring);
		return ret ? ret : wait_nr(ring, wait, ts);
	}
	ret = ring_enter(ring, nr, wait, IORING_ENTER_GETEVENTS |
			 (ts ? IORING_ENTER_EXT_ARG : 0),
			 ts ? &arg : NULL, ts ? sizeof(arg) : 0);
	if (ret >= 0 && ret != (int)nr)
		return -EIO;
	/* the wait may have been interrupted, which isn't reported */
	return ret < 0 ? ret : wait_nr(ring, wait, ts);
}

/* Back and forth, the answer is waited for as the message is sent. */
struct pair {
	struct peer peers[2];
	unsigned int rounds;
};

struct side {
	struct pair *pair;
	int nr;
};

static void ping_pong(struct peer *peer)
{
	struct side *side = peer->arg;
	struct peer *other = &side->pair->peers[!side->nr];
	struct ring *ring = &peer->ring;
	unsigned int rounds = side->pair->rounds;
	struct msg_cqe cqe;
	int ret;

	if (!reached(&other->ready, 1)) {
		peer_fail(peer, -ETIME, "no other side");
		return;
	}
	if (side->nr && peer_fail(peer, wait_nr(ring, 1, NULL), "first wait"))
		return;
	for (; peer->rounds < rounds; peer->rounds++) {
		if (side->nr) {
			ret = msg_next_timeout(ring, &cqe, 0);
			if (ret || cqe.user_data != peer->rounds) {
				peer_fail(peer, ret ? : -EBADMSG,
					  "wrong ping");
				return;
			}
		}
		msg_number(ring, other->ring.fd, peer->rounds, SILENT);
		/* the last answer isn't answered */
		ret = submit_and_wait(ring, 1, side->nr &&
				      peer->rounds == rounds - 1 ? 0 : 1, NULL);
		if (peer_fail(peer, ret, "can't submit and wait"))
			return;
		if (!side->nr) {
			ret = msg_next_timeout(ring, &cqe, 0);
			if (ret || cqe.user_data != peer->rounds) {
				peer_fail(peer, ret ? : -EBADMSG,
					  "wrong pong");
				return;
			}
		}
		if (peer->cpu >= 0 && sched_getcpu() != peer->cpu) {
			peer_fail(peer, -EXDEV, "runs elsewhere");
			return;
		}
	}
}

static void run_pairs(struct __test_metadata *_metadata, unsigned int flags,
		      unsigned int other_flags, unsigned int nr,
		      unsigned int rounds, int cpu, int other_cpu)
{
	struct side sides[MAX_PEERS / 2][2];
	struct pair pairs[MAX_PEERS / 2] = {};
	unsigned int i, j;

	for (i = 0; i < nr; i++)
		for (j = 0; j < 2; j++) {
			sides[i][j] = (struct side){ &pairs[i], j };
			pairs[i].rounds = rounds;
			pairs[i].peers[j] = (struct peer){
				.run		= ping_pong,
				.ring_flags	= j ? other_flags : flags,
				.cpu		= j ? other_cpu : cpu,
				.arg		= &sides[i][j],
			};
		}
	for (i = 0; i < nr; i++)
		for (j = 0; j < 2; j++)
			peer_start(_metadata, &pairs[i].peers[j]);
	for (i = 0; i < nr; i++)
		for (j = 0; j < 2; j++)
			peer_join(_metadata, &pairs[i].peers[j]);
}

static const unsigned int pair_flags[] = {
	0, IORING_SETUP_COOP_TASKRUN, RING_DEFER,
};

TEST_F(target, ping_pong)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(pair_flags); i++)
		run_pairs(_metadata, variant->flags, pair_flags[i], 1, 50, -1,
			  -1);
}

/* The first two CPUs that this thread may use, or one twice. */
static void two_cpus(struct __test_metadata *_metadata, int cpus[2])
{
	cpu_set_t set;
	int i, nr = 0;

	ASSERT_EQ(0, sched_getaffinity(0, sizeof(set), &set));
	for (i = 0; i < CPU_SETSIZE && nr < 2; i++)
		if (CPU_ISSET(i, &set))
			cpus[nr++] = i;
	ASSERT_LE(1, nr);
	if (nr == 1)
		cpus[1] = cpus[0];
}

TEST_F(target, ping_pong_on_one_cpu)
{
	unsigned int i;
	int cpus[2];

	two_cpus(_metadata, cpus);
	for (i = 0; i < ARRAY_SIZE(pair_flags); i++)
		run_pairs(_metadata, variant->flags, pair_flags[i], 1, 20,
			  cpus[1], cpus[1]);
}

/* Nobody is moved from where it has to be. */
TEST_F(target, ping_pong_on_two_cpus)
{
	unsigned int i;
	int cpus[2];

	two_cpus(_metadata, cpus);
	if (cpus[0] == cpus[1])
		SKIP(return, "one CPU only");
	for (i = 0; i < ARRAY_SIZE(pair_flags); i++) {
		run_pairs(_metadata, variant->flags, pair_flags[i], 1, 20,
			  cpus[0], cpus[1]);
		run_pairs(_metadata, variant->flags, pair_flags[i], 1, 20,
			  cpus[0], -1);
	}
}

TEST_F(target, many_ping_pongs)
{
	run_pairs(_metadata, variant->flags, variant->flags, 6, 20, -1, -1);
	run_pairs(_metadata, variant->flags, RING_DEFER, 3, 20, -1, -1);
}

static void *busy_thread(void *arg)
{
	while (!__atomic_load_n((int *)arg, __ATOMIC_RELAXED))
		;
	return NULL;
}

/* Others want the CPUs as well, all the time. */
TEST_F(target, ping_pong_on_busy_cpus)
{
	pthread_t threads[4];
	unsigned int i;
	int stop = 0;

	for (i = 0; i < ARRAY_SIZE(threads); i++)
		ASSERT_EQ(0, pthread_create(&threads[i], NULL, busy_thread,
					    &stop));
	run_pairs(_metadata, variant->flags, variant->flags, 2, 10, -1, -1);
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (i = 0; i < ARRAY_SIZE(threads); i++)
		ASSERT_EQ(0, pthread_join(threads[i], NULL));
}

/* One system call wakes all whom it sends to, and waits for all of them. */
#define FAN		8
#define FAN_ROUNDS	10

static void answer(struct peer *peer)
{
	int target = *(int *)peer->arg;
	struct msg_cqe cqe;

	if (peer_fail(peer, wait_nr(&peer->ring, 1, NULL), "wait failed"))
		return;
	for (; peer->rounds < FAN_ROUNDS; peer->rounds++) {
		if (peer_fail(peer, msg_next_timeout(&peer->ring, &cqe, 0),
			      "woken too early"))
			return;
		if (cqe.user_data != peer->rounds) {
			peer_fail(peer, -EBADMSG, "wrong message");
			return;
		}
		msg_number(&peer->ring, target, peer->rounds, SILENT);
		if (peer_fail(peer, submit_and_wait(&peer->ring, 1,
						    peer->rounds <
						    FAN_ROUNDS - 1, NULL),
			      "can't send and wait"))
			return;
	}
}

static void ask_all(struct __test_metadata *_metadata, unsigned int flags,
		    unsigned int asker_flags)
{
	struct peer peers[FAN] = {};
	struct msg_cqe cqe;
	struct ring ring;
	unsigned int i, round;

	ASSERT_EQ(0, msg_ring_init(&ring, asker_flags, 64, 0));
	for (i = 0; i < FAN; i++) {
		peers[i] = (struct peer){
			.run		= answer,
			.ring_flags	= flags,
			.cpu		= -1,
			.arg		= &ring.fd,
		};
		peer_start(_metadata, &peers[i]);
	}
	for (round = 0; round < FAN_ROUNDS; round++) {
		for (i = 0; i < FAN; i++)
			msg_number(&ring, peers[i].ring.fd, round, SILENT);
		ASSERT_EQ(0, submit_and_wait(&ring, FAN, FAN, &deadline)) {
			TH_LOG("%u of %u answers", ring_ready(&ring), FAN);
		}
		for (i = 0; i < FAN; i++) {
			ASSERT_EQ(0, msg_next_timeout(&ring, &cqe, 0));
			EXPECT_EQ(round, cqe.user_data);
		}
	}
	for (i = 0; i < FAN; i++)
		peer_join(_metadata, &peers[i]);
	ring_exit(&ring);
}

TEST_F(target, asks_all)
{
	ask_all(_metadata, variant->flags, 0);
	ask_all(_metadata, variant->flags, RING_DEFER);
	ask_all(_metadata, RING_DEFER, variant->flags);
}

/*
 * Why a sender that submits with IORING_ENTER_GETEVENTS runs on instead of
 * sleeping.
 */
enum runs_on {
	NOTHING_TO_WAIT_FOR,
	HAS_WHAT_IT_WANTS,
	NO_TIME,
	BAD_ARG_SIZE,
	BAD_ARG,
	TOO_MANY_SQES,
	BAD_SQE,
	NR_RUNS_ON,
};

static const char * const runs_on_names[] = {
	"nothing to wait for", "has what it wants", "no time", "bad arg size",
	"bad arg", "too many SQEs", "bad SQE",
};

static void submit_and_run_on(struct ring *ring, int target, __u64 nr,
			      enum runs_on why)
{
	struct io_uring_getevents_arg arg = {
		.ts	= (unsigned long)&zero,
	};
	unsigned int flags = IORING_ENTER_GETEVENTS, wait = 1, sqes = 1;
	size_t size = 0;
	void *argp = NULL;

	msg_number(ring, target, nr, why == HAS_WHAT_IT_WANTS ? 0 : SILENT);
	switch (why) {
	case NOTHING_TO_WAIT_FOR:
		wait = 0;
		break;
	case NO_TIME:
		flags |= IORING_ENTER_EXT_ARG;
		argp = &arg;
		size = sizeof(arg);
		break;
	case BAD_ARG_SIZE:
		flags |= IORING_ENTER_EXT_ARG;
		argp = &arg;
		size = 1;
		break;
	case BAD_ARG:
		flags |= IORING_ENTER_EXT_ARG;
		argp = (void *)16;
		size = sizeof(arg);
		break;
	case TOO_MANY_SQES:
		sqes = 2;
		break;
	case BAD_SQE:
		ring_prep(ring, 0xff, -1, NULL, 0, 0, 0);
		ring_nop(ring, 0, 0);
		sqes = 3;
		break;
	default:
		break;
	}
	__atomic_store_n(ring->sq_tail, ring->sqe_tail, __ATOMIC_RELEASE);
	ring_enter(ring, sqes, wait, flags, argp, size);
}

static void receive_one_each(struct peer *peer)
{
	unsigned int nr = *(unsigned int *)peer->arg;

	while (peer->rounds < nr) {
		if (!receive_one(peer, peer->rounds))
			return;
		__atomic_store_n(&peer->rounds, peer->rounds + 1,
				 __ATOMIC_RELEASE);
	}
}

/* Looks at the clock rarely, as this may be a system call. */
static bool spin_until(const unsigned int *counter, unsigned int least)
{
	__u64 end = now_ms() + DEADLINE_MS;
	unsigned int i;

	do {
		for (i = 0; i < 10000000; i++)
			if (__atomic_load_n(counter, __ATOMIC_ACQUIRE) >= least)
				return true;
	} while (now_ms() < end);
	return false;
}

/* The receiver's wake-up doesn't wait for anything that the sender does. */
static void send_and_spin(struct __test_metadata *_metadata,
			  unsigned int flags, unsigned int sender_flags,
			  unsigned int nr)
{
	struct peer peer = {
		.run		= receive_one_each,
		.ring_flags	= flags,
		.cpu		= -1,
		.arg		= &nr,
	};
	struct msg_cqe cqe;
	struct ring ring;
	unsigned int i;

	ASSERT_EQ(0, msg_ring_init(&ring, sender_flags, 64, 0));
	peer_start(_metadata, &peer);
	for (i = 0; i < nr; i++) {
		wait_asleep(&peer);
		submit_and_run_on(&ring, peer.ring.fd, i, i % NR_RUNS_ON);
		ASSERT_TRUE(spin_until(&peer.rounds, i + 1)) {
			TH_LOG("not woken by a sender that runs on: %s",
			       runs_on_names[i % NR_RUNS_ON]);
		}
		submit(_metadata, &ring);
		while (!msg_next_timeout(&ring, &cqe, 0))
			;
	}
	peer_join(_metadata, &peer);
	ring_exit(&ring);
}

TEST_F(target, sender_that_runs_on)
{
	send_and_spin(_metadata, variant->flags, 0, NR_RUNS_ON);
	send_and_spin(_metadata, variant->flags, IORING_SETUP_COOP_TASKRUN,
		      NR_RUNS_ON);
	send_and_spin(_metadata, variant->flags, RING_DEFER, NR_RUNS_ON);
}

/* Where it runs, nobody else does. */
TEST_F(target, realtime_sender_that_runs_on)
{
	struct sched_param param = { .sched_priority = 1 };
	int cpus[2];

	two_cpus(_metadata, cpus);
	if (cpus[0] == cpus[1])
		SKIP(return, "one CPU only");
	if (sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &param))
		SKIP(return, "no realtime scheduling: %s", strerror(errno));
	send_and_spin(_metadata, variant->flags, 0, 3);
	send_and_spin(_metadata, variant->flags, RING_DEFER, 3);
}

TEST_HARNESS_MAIN
