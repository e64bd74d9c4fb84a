// SPDX-License-Identifier: GPL-2.0
/*
 * Senders and targets of all kinds that come and go. The seed is printed, and
 * is taken from IO_URING_TEST_SEED if that is set; threads make the rest of the
 * difference.
 */
#include "msg.h"

#define ASYNC		IOSQE_ASYNC
#define LINK		IOSQE_IO_LINK
#define SILENT		IOSQE_CQE_SKIP_SUCCESS

#define NR_TARGETS	3
#define NR_SENDERS	4

/* Of one sender to one target. */
#define MAX_SENT	3000
#define MAX_BATCH	64

/* How long the threads go on, and what they may need to come to an end. */
#define STRESS_MS	8000

static const unsigned int target_types[] = {
	0,
	IORING_SETUP_COOP_TASKRUN,
	RING_DEFER,
	RING_DEFER,
	RING_DEFER | IORING_SETUP_TASKRUN_FLAG,
	RING_DEFER | IORING_SETUP_CQE32,
	IORING_SETUP_SINGLE_ISSUER,
	IORING_SETUP_SQPOLL,
	IORING_SETUP_IOPOLL,
	IORING_SETUP_IOPOLL | RING_DEFER,
	/* the last, as kernels may not have them */
	IORING_SETUP_CQE_MIXED,
	RING_DEFER | IORING_SETUP_CQE_MIXED,
};

#define NR_MIXED	2

/* What a thread found wrong: the first one wins. */
struct trouble {
	const char *what;
	long long value;
};

static struct trouble trouble;
static bool can_pass;
static bool can_sync;
static unsigned int nr_target_types;
static int stop;

static void complain(const char *what, long long value)
{
	const char *none = NULL;

	trouble.value = trouble.what ? trouble.value : value;
	__atomic_compare_exchange_n(&trouble.what, &none, what, false,
				    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	__atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
}

static bool stopped(void)
{
	return __atomic_load_n(&stop, __ATOMIC_ACQUIRE);
}

/* xorshift64* */
static unsigned int rnd(__u64 *state, unsigned int below)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return (*state * 2685821657736338717ULL >> 32) % below;
}

static __u64 rnd_seed(struct __test_metadata *_metadata)
{
	const char *env = getenv("IO_URING_TEST_SEED");
	struct timespec ts;
	__u64 seed;

	clock_gettime(CLOCK_REALTIME, &ts);
	seed = env ? strtoull(env, NULL, 0) :
		     ts.tv_sec * 1000000000ULL + ts.tv_nsec;
	TH_LOG("IO_URING_TEST_SEED=%llu", (unsigned long long)seed);
	return seed * 0x9e3779b97f4a7c15ULL | 1;
}

static __u64 thread_seed(__u64 seed, unsigned int nr)
{
	return (seed + nr) * 0x9e3779b97f4a7c15ULL | 1;
}

/*
 * A target from its first message to its last. Senders use a descriptor of
 * their own, so that none of them sends to whoever has got the number since.
 */
struct life {
	unsigned int nr;
	unsigned int flags;
	int fd;
	/* under the lock of the place */
	bool open;
	unsigned int users;
	/* the owner has gone without looking at everything */
	bool abandoned;
	/* by each sender: what it was told has been sent */
	bool sent[NR_SENDERS][MAX_SENT];
	unsigned int nr_sent[NR_SENDERS];
	unsigned int nr_batches[NR_SENDERS];
	/* by the owner */
	bool seen[NR_SENDERS][MAX_SENT];
	unsigned int nr_seen;
	unsigned int last_batch[NR_SENDERS];
	int last_ordered[NR_SENDERS];
};

/* Where the lives follow each other. */
struct place {
	pthread_mutex_t lock;
	struct life *life;
	unsigned int nr_lives;
	unsigned int nr_seen;
	unsigned int nr_abandoned;
	__u64 random;
};

static struct place places[NR_TARGETS];

static void life_put(struct place *place, struct life *life)
{
	bool last;

	pthread_mutex_lock(&place->lock);
	last = !--life->users;
	pthread_mutex_unlock(&place->lock);
	if (last)
		free(life);
}

/* A message that tells all about itself. */
static struct msg life_msg(const struct life *life, unsigned int sender,
			   unsigned int batch, unsigned int nr, bool ordered)
{
	struct msg msg = {
		.user_data	= (__u64)life->nr << 32 | batch << 16 | nr,
		.res		= nr << 1 | ordered,
	};

	msg.user_data |= (__u64)sender << 56;
	if (can_pass && nr % 3)
		msg.flags = nr * 2654435761U & ~CQE_LAYOUT;
	return msg;
}

static void life_check(struct life *life, const struct msg_cqe *cqe)
{
	unsigned int sender = cqe->user_data >> 56;
	unsigned int nr = cqe->user_data & 0xffff;
	unsigned int batch = cqe->user_data >> 16 & 0xffff;
	bool ordered = cqe->res & 1;
	struct msg msg;

	if (sender >= NR_SENDERS || nr >= MAX_SENT) {
		complain("not a message", cqe->user_data);
		return;
	}
	msg = life_msg(life, sender, batch, nr, ordered);
	if (cqe->user_data != msg.user_data)
		complain("message for somebody else", cqe->user_data);
	else if (cqe->res != msg.res)
		complain("result has changed", cqe->res);
	else if (cqe->flags != msg.flags)
		complain("flags have changed", cqe->flags);
	else if (cqe->big[0] | cqe->big[1])
		complain("something is left in a large CQE", cqe->big[0]);
	else if (life->seen[sender][nr])
		complain("message came twice", cqe->user_data);
	else if (batch < life->last_batch[sender])
		complain("message was overtaken by one of a later submission",
			 cqe->user_data);
	if (batch != life->last_batch[sender])
		life->last_ordered[sender] = -1;
	life->last_batch[sender] = batch;
	if (ordered) {
		if ((int)nr <= life->last_ordered[sender])
			complain("message was overtaken", cqe->user_data);
		life->last_ordered[sender] = nr;
	}
	life->seen[sender][nr] = true;
	life->nr_seen++;
}

static void life_reap(struct life *life, struct ring *ring, unsigned int most)
{
	struct msg_cqe cqe;

	while (most-- && !msg_next_timeout(ring, &cqe, 0))
		life_check(life, &cqe);
}

static void life_resize(struct ring *ring, __u64 *random)
{
	int ret;

	if (!msg_ring_can_resize(ring) || rnd(random, 20))
		return;
	ret = msg_ring_resize(ring, 4, 4 << rnd(random, 9));
	/* there is no such thing, or too little room */
	if (ret && ret != -EINVAL && ret != -EOVERFLOW)
		complain("can't be resized", ret);
}

/* One of the ways to learn of messages, none takes long. */
static void life_wait(struct ring *ring, __u64 *random)
{
	struct pollfd pfd = {
		.fd	= ring->fd,
		.events	= POLLIN,
	};

	switch (rnd(random, 5)) {
	case 0:
		poll(&pfd, 1, 2);
		break;
	case 1:
		usleep(rnd(random, 1000));
		break;
	case 2:
		ring_wait(ring, rnd(random, 100), 3);
		return;
	default:
		ring_wait(ring, 1, 3);
		return;
	}
	ring_enter(ring, 0, 0, IORING_ENTER_GETEVENTS, NULL, 0);
}

/* Nobody sends any more: all that was sent has to be there. */
static void life_check_all(struct life *life, struct ring *ring)
{
	unsigned int i, j, nr = 0;
	__u64 end = now_ms() + DEADLINE_MS;

	for (i = 0; i < NR_SENDERS; i++)
		for (j = 0; j < life->nr_sent[i]; j++)
			nr += life->sent[i][j];
	while (life->nr_seen < nr && now_ms() < end && !trouble.what) {
		ring_wait(ring, 1, 100);
		life_reap(life, ring, UINT_MAX);
	}
	ring_wait(ring, UINT_MAX, 1);
	life_reap(life, ring, UINT_MAX);
	for (i = 0; i < NR_SENDERS; i++)
		for (j = 0; j < life->nr_sent[i]; j++) {
			if (life->sent[i][j] && !life->seen[i][j])
				complain("message is missing",
					 i << 24 | life->flags);
			if (!life->sent[i][j] && life->seen[i][j])
				complain("message came, whose sender failed",
					 i << 24 | life->flags);
		}
}

static bool life_is_used(struct place *place, struct life *life)
{
	bool used;

	pthread_mutex_lock(&place->lock);
	used = life->users > 1;
	pthread_mutex_unlock(&place->lock);
	return used;
}

static void life_close(struct place *place, struct life *life, bool abandon)
{
	pthread_mutex_lock(&place->lock);
	life->open = false;
	life->abandoned = abandon;
	place->life = NULL;
	pthread_mutex_unlock(&place->lock);
}

/* It is the owner of its ring, and ends with it. */
static void *life_thread(void *arg)
{
	static const unsigned int cq_entries[] = { 4, 8, 64, 1024 };
	unsigned int wanted, small, i;
	struct place *place = arg;
	__u64 *random = &place->random;
	struct life *life;
	struct ring ring;
	bool abandon;
	__u64 end;
	int ret;

	life = calloc(1, sizeof(*life));
	life->nr = ++place->nr_lives & 0xffffff;
	life->flags = target_types[rnd(random, nr_target_types)];
	small = cq_entries[rnd(random, ARRAY_SIZE(cq_entries))];
	wanted = rnd(random, 4) ? rnd(random, 2000) : 0;
	abandon = !rnd(random, 3);
	life->users = 1;
	for (i = 0; i < NR_SENDERS; i++)
		life->last_ordered[i] = -1;
	ret = msg_ring_init(&ring, life->flags, 4, small);
	if (ret) {
		complain("no ring", ret);
		free(life);
		return NULL;
	}
	life->fd = ring.fd;
	life->open = true;
	pthread_mutex_lock(&place->lock);
	place->life = life;
	pthread_mutex_unlock(&place->lock);

	end = now_ms() + 200;
	while (life->nr_seen < wanted && now_ms() < end && !stopped()) {
		life_wait(&ring, random);
		life_resize(&ring, random);
		life_reap(life, &ring, 1 + rnd(random, 100));
	}
	life_close(place, life, abandon);
	if (!abandon) {
		end = now_ms() + DEADLINE_MS;
		while (life_is_used(place, life) && now_ms() < end) {
			ring_wait(&ring, 1, 1);
			life_reap(life, &ring, UINT_MAX);
		}
		if (life_is_used(place, life))
			complain("sender doesn't come to an end", life->flags);
		else
			life_check_all(life, &ring);
	}
	place->nr_seen += life->nr_seen;
	place->nr_abandoned += abandon;
	ring_exit(&ring);
	life_put(place, life);
	return NULL;
}

static void *place_thread(void *arg)
{
	pthread_t thread;

	while (!stopped())
		if (pthread_create(&thread, NULL, life_thread, arg) ||
		    pthread_join(thread, NULL))
			complain("no thread", errno);
	return NULL;
}

struct stress_sender {
	unsigned int nr;
	__u64 random;
	struct ring ring;
	bool has_ring;
	unsigned int nr_sent;
	unsigned int nr_rings;
};

static void sender_new_ring(struct stress_sender *sender)
{
	const struct ring_type *type;
	int ret;

	if (sender->has_ring) {
		if (rnd(&sender->random, 4))
			return;
		ring_exit(&sender->ring);
	}
	type = &sender_types[rnd(&sender->random, ARRAY_SIZE(sender_types))];
	ret = msg_ring_init(&sender->ring, type->flags, 2 * MAX_BATCH, 0);
	sender->has_ring = !ret;
	sender->nr_rings++;
	if (ret)
		complain("sender has no ring", ret);
}

/* How the messages of a batch are sent. */
enum how {
	PLAIN,
	LINKED,
	LINKED_ASYNC,
	SOME_ASYNC,
	SOME_SILENT,
	NO_RING,
	NR_HOW,
};

static bool batch_is_ordered(enum how how, const struct life *life)
{
	if (how == LINKED || how == LINKED_ASYNC || how == NO_RING)
		return true;
	return how != SOME_ASYNC && msg_ordered(life->flags);
}

static unsigned int batch_flags(struct stress_sender *sender, enum how how,
				bool last)
{
	switch (how) {
	case LINKED:
		return last ? 0 : LINK;
	case LINKED_ASYNC:
		return (rnd(&sender->random, 2) ? ASYNC : 0) |
		       (last ? 0 : LINK);
	case SOME_ASYNC:
		return rnd(&sender->random, 2) ? ASYNC : 0;
	case SOME_SILENT:
		return !last && rnd(&sender->random, 2) ? SILENT : 0;
	default:
		return 0;
	}
}

static int batch_submit(struct stress_sender *sender, unsigned int nr,
			unsigned int wait)
{
	struct ring *ring = &sender->ring;
	int ret;

	if ((ring->flags & (IORING_SETUP_SQPOLL | IORING_SETUP_IOPOLL)) ||
	    rnd(&sender->random, 2))
		return ring_submit(ring);
	__atomic_store_n(ring->sq_tail, ring->sqe_tail, __ATOMIC_RELEASE);
	ret = ring_enter(ring, nr, wait, IORING_ENTER_GETEVENTS, NULL, 0);
	return ret == (int)nr ? 0 : -EIO;
}

/* If anything fails, then it has to be the target's fault. */
static void batch_result(struct life *life, struct stress_sender *sender,
			 unsigned int nr, int res)
{
	life->sent[sender->nr][nr] = !res;
	if (res && res != -EOWNERDEAD)
		complain("sender was told", res);
}

static void send_batch(struct life *life, int fd, struct stress_sender *sender)
{
	enum how how = rnd(&sender->random, can_sync ? NR_HOW : NO_RING);
	unsigned int i, flags, nr, first, batch, wait = 0;
	struct msg_cqe cqe;
	struct msg msg;
	int ret;

	nr = 1 + (rnd(&sender->random, 2) ? rnd(&sender->random, 3) :
					    rnd(&sender->random, MAX_BATCH));
	if (how == SOME_SILENT && !msg_ordered(life->flags))
		how = PLAIN;
	first = life->nr_sent[sender->nr];
	if (first + nr > MAX_SENT)
		nr = MAX_SENT - first;
	batch = ++life->nr_batches[sender->nr];
	for (i = first; i < first + nr; i++) {
		msg = life_msg(life, sender->nr, batch, i,
			       batch_is_ordered(how, life));
		if (how == NO_RING) {
			batch_result(life, sender, i, msg_sync(fd, &msg));
			continue;
		}
		flags = batch_flags(sender, how, i == first + nr - 1);
		msg_prep(&sender->ring, fd, &msg, flags, i);
		life->sent[sender->nr][i] = flags & SILENT;
		wait += !(flags & SILENT);
	}
	life->nr_sent[sender->nr] = first + nr;
	sender->nr_sent += nr;
	if (how == NO_RING)
		return;
	ret = batch_submit(sender, nr, wait);
	if (ret)
		complain("can't submit", ret);
	/* one that fails has a CQE, silent or not; the last one has one */
	while (wait) {
		ret = msg_next(&sender->ring, &cqe);
		if (ret) {
			complain("sender has no CQE", sender->ring.flags);
			return;
		}
		wait--;
		if (cqe.res && life->sent[sender->nr][cqe.user_data])
			wait++;
		batch_result(life, sender, cqe.user_data, cqe.res);
	}
}

static void sender_visit(struct stress_sender *sender, struct place *place)
{
	struct life *life;
	unsigned int nr;
	int fd = -1;

	pthread_mutex_lock(&place->lock);
	life = place->life;
	if (life && life->open &&
	    life->nr_sent[sender->nr] < MAX_SENT) {
		life->users++;
		fd = dup(life->fd);
	}
	pthread_mutex_unlock(&place->lock);
	if (fd < 0) {
		usleep(100);
		return;
	}
	for (nr = rnd(&sender->random, 20) + 1; nr; nr--) {
		if (!__atomic_load_n(&life->open, __ATOMIC_RELAXED) &&
		    rnd(&sender->random, 2))
			break;
		if (stopped() || life->nr_sent[sender->nr] == MAX_SENT)
			break;
		send_batch(life, fd, sender);
	}
	close(fd);
	life_put(place, life);
}

static void *sender_thread(void *arg)
{
	struct stress_sender *sender = arg;

	while (!stopped()) {
		sender_new_ring(sender);
		if (!sender->has_ring)
			break;
		sender_visit(sender,
			     &places[rnd(&sender->random, NR_TARGETS)]);
	}
	if (sender->has_ring)
		ring_exit(&sender->ring);
	return NULL;
}

static void join(struct __test_metadata *_metadata, pthread_t thread)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	ts.tv_sec += 2 * DEADLINE_MS / 1000;
	ASSERT_EQ(0, pthread_timedjoin_np(thread, NULL, &ts)) {
		TH_LOG("a thread hangs");
	}
}

TEST(messages_to_rings_that_come_and_go)
{
	pthread_t sender_threads[NR_SENDERS], place_threads[NR_TARGETS];
	unsigned int i, nr_sent = 0, nr_seen = 0, nr_lives = 0;
	static struct stress_sender senders[NR_SENDERS];
	__u64 end, seed = rnd_seed(_metadata);

	can_pass = msg_flags_pass_supported();
	can_sync = msg_sync_supported();
	nr_target_types = ARRAY_SIZE(target_types);
	if (!msg_ring_supported(IORING_SETUP_CQE_MIXED))
		nr_target_types -= NR_MIXED;
	for (i = 0; i < NR_TARGETS; i++) {
		places[i].random = thread_seed(seed, i);
		pthread_mutex_init(&places[i].lock, NULL);
		ASSERT_EQ(0, pthread_create(&place_threads[i], NULL,
					    place_thread, &places[i]));
	}
	for (i = 0; i < NR_SENDERS; i++) {
		senders[i].nr = i;
		senders[i].random = thread_seed(seed, NR_TARGETS + i);
		ASSERT_EQ(0, pthread_create(&sender_threads[i], NULL,
					    sender_thread, &senders[i]));
	}
	end = now_ms() + STRESS_MS;
	while (now_ms() < end && !stopped())
		sleep_ms(10);
	__atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
	for (i = 0; i < NR_SENDERS; i++)
		join(_metadata, sender_threads[i]);
	for (i = 0; i < NR_TARGETS; i++)
		join(_metadata, place_threads[i]);
	ASSERT_EQ(NULL, trouble.what) {
		TH_LOG("%s: %lld (%#llx)", trouble.what, trouble.value,
		       trouble.value);
	}
	for (i = 0; i < NR_SENDERS; i++)
		nr_sent += senders[i].nr_sent;
	for (i = 0; i < NR_TARGETS; i++) {
		nr_seen += places[i].nr_seen;
		nr_lives += places[i].nr_lives;
	}
	TH_LOG("%u messages sent, %u seen, %u targets", nr_sent, nr_seen,
	       nr_lives);
	EXPECT_LT(0U, nr_seen);
}

/*
 * Tokens that wander from ring to ring, each message of one is sent by whom the
 * last one has woken, in the system call in which it goes to sleep again. If
 * one is lost then its count stops.
 */
#define NR_HOLDERS	6
#define NR_TOKENS	4
#define NR_HOPS		300U

#define END_OF_GAME	(~0ULL)

struct holder {
	unsigned int nr;
	unsigned int flags;
	struct ring ring;
	int ready;
};

static struct holder holders[NR_HOLDERS];
static unsigned int hops[NR_TOKENS];

static const unsigned int holder_types[] = {
	RING_DEFER, 0, RING_DEFER, IORING_SETUP_COOP_TASKRUN,
	RING_DEFER | IORING_SETUP_CQE32, IORING_SETUP_SINGLE_ISSUER,
};

/* Returns how many it has sent on, or less than that at the end. */
static int pass_tokens(struct holder *holder)
{
	struct ring *ring = &holder->ring;
	struct holder *next;
	struct msg_cqe cqe;
	unsigned int token;
	struct msg msg;
	int nr = 0;

	while (ring_ready(ring)) {
		msg_next(ring, &cqe);
		if (cqe.user_data == END_OF_GAME)
			return -1;
		token = cqe.user_data;
		if (token >= NR_TOKENS || cqe.res != (int)hops[token] + 1) {
			complain("not the token that was sent", cqe.user_data);
			return -1;
		}
		__atomic_store_n(&hops[token], cqe.res, __ATOMIC_RELEASE);
		if (cqe.res == (int)NR_HOPS)
			continue;
		next = &holders[(holder->nr + token + 1) % NR_HOLDERS];
		msg = (struct msg){ token, cqe.res + 1, 0 };
		/* no CQE, unless it fails */
		msg_prep(ring, next->ring.fd, &msg, SILENT, NR_TOKENS);
		nr++;
	}
	return nr;
}

static void *holder_thread(void *arg)
{
	struct holder *holder = arg;
	struct ring *ring = &holder->ring;
	int ret, nr = 0;

	ret = msg_ring_init(ring, holder->flags, 64, 64);
	if (ret)
		complain("no ring", ret);
	__atomic_store_n(&holder->ready, 1, __ATOMIC_RELEASE);
	while (!ret && nr >= 0) {
		__atomic_store_n(ring->sq_tail, ring->sqe_tail,
				 __ATOMIC_RELEASE);
		ret = ring_enter(ring, nr, 1, IORING_ENTER_GETEVENTS, NULL, 0);
		if (ret != nr && ret != -EINTR) {
			complain("can't send and wait", ret);
			break;
		}
		ret = 0;
		nr = pass_tokens(holder);
	}
	return NULL;
}

TEST(tokens)
{
	__u64 seed = rnd_seed(_metadata), end = now_ms() + 2 * DEADLINE_MS;
	pthread_t threads[NR_HOLDERS];
	struct ring ring;
	struct msg msg;
	unsigned int i;

	ASSERT_EQ(0, msg_ring_init(&ring, 0, 64, 0));
	for (i = 0; i < NR_HOLDERS; i++) {
		holders[i].nr = i;
		holders[i].flags = holder_types[rnd(&seed,
						    ARRAY_SIZE(holder_types))];
		ASSERT_EQ(0, pthread_create(&threads[i], NULL, holder_thread,
					    &holders[i]));
	}
	for (i = 0; i < NR_HOLDERS; i++)
		while (!__atomic_load_n(&holders[i].ready, __ATOMIC_ACQUIRE))
			usleep(100);
	for (i = 0; i < NR_TOKENS; i++) {
		msg = (struct msg){ i, 1, 0 };
		msg_prep(&ring, holders[i].ring.fd, &msg, 0, i);
	}
	submit(_metadata, &ring);
	expect_sent_range(_metadata, &ring, 0, NR_TOKENS);
	for (i = 0; i < NR_TOKENS && !stopped(); i++) {
		while (__atomic_load_n(&hops[i], __ATOMIC_ACQUIRE) < NR_HOPS &&
		       now_ms() < end && !stopped())
			usleep(100);
		EXPECT_EQ(NR_HOPS, hops[i]) {
			TH_LOG("token %u is lost", i);
		}
	}
	msg = (struct msg){ END_OF_GAME, 0, 0 };
	for (i = 0; i < NR_HOLDERS; i++)
		msg_prep(&ring, holders[i].ring.fd, &msg, 0, i);
	submit(_metadata, &ring);
	expect_sent_range(_metadata, &ring, 0, NR_HOLDERS);
	for (i = 0; i < NR_HOLDERS; i++)
		join(_metadata, threads[i]);
	EXPECT_EQ(NULL, trouble.what) {
		TH_LOG("%s: %lld", trouble.what, trouble.value);
	}
	for (i = 0; i < NR_HOLDERS; i++)
		ring_exit(&holders[i].ring);
	ring_exit(&ring);
}

TEST_HARNESS_MAIN
