// SPDX-License-Identifier: GPL-2.0
/*
 * Stress test of the queues, above all of io_uring/mpscq.h, for the sanitizers.
 *
 * Producers push chains of random length, and each access of the header that
 * may race is delayed at random, so that consumers often meet a node that is
 * not linked yet.  A node is freed as soon as it is popped: AddressSanitizer
 * and ThreadSanitizer see whoever touches it later.  Checked are:
 *
 *   - nodes of a producer are popped in the order they were pushed, each once,
 *     and a chain in one piece
 *   - what was pushed has been popped, or is left over and can be
 *   - as many pushes found the queue empty as pops emptied it
 *   - a push can't be preempted between its two steps
 *   - nothing but the queue orders producers and consumers
 *
 * The last is why what else they share is accessed without any order.  There
 * are two consumers, serialized by a mutex as by a ring's ->uring_lock.
 */
#include <err.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <stdnoreturn.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define STRESS
#include "queue.h"

#define NR_PRODUCERS	6
#define NR_CONSUMERS	2
#define MAX_CHAIN	40
#define ROUND_NS	100000000ull
#define POISON		0x6b

struct element {
	struct llist_node node;
	unsigned int producer;
	unsigned int follow;		/* how many of its chain follow it */
	unsigned long seq;
};

struct producer {
	pthread_t thread;
	unsigned long long seed;
	unsigned long pushed;
	unsigned long found_empty;
	unsigned long popped;		/* written by the consumer */
};

static struct {
	pthread_mutex_t lock;
	unsigned int producer;		/* of the last popped node */
	unsigned int follow;		/* how many of its chain have to come */
	unsigned long emptied;
	unsigned long unlinked;		/* met a node that isn't linked yet */
} consumer = { .lock = PTHREAD_MUTEX_INITIALIZER };

static const struct queue_type *type;
static struct queue queue;
static struct producer producers[NR_PRODUCERS];
static unsigned int max_queued;		/* of a producer */
static unsigned int pushes;		/* of a producer, from pause to pause */
static unsigned long long seed;
static bool stop;

static thread_local unsigned long long random_state;

static noreturn void give_up(void)
{
	warnx("failed: %s, seed %llu", type->name, seed);
	/* Other threads still run: no exit handlers. */
	_exit(1);
}

#define fail(...)		\
do {				\
	warnx(__VA_ARGS__);	\
	give_up();		\
} while (0)

static unsigned int random_below(unsigned int limit)
{
	/* xorshift64* */
	random_state ^= random_state >> 12;
	random_state ^= random_state << 25;
	random_state ^= random_state >> 27;
	return (random_state * 2685821657736338717ull >> 33) % limit;
}

static void pause_us(unsigned int us)
{
	struct timespec time = { .tv_nsec = us * 1000 };

	nanosleep(&time, NULL);
}

static void window(void)
{
	unsigned int chance = random_below(1024), i;

	if (!chance)
		pause_us(random_below(300));
	else if (chance < 16)
		sched_yield();
	else if (chance < 128)
		for (i = 0; i < chance; i++)
			__atomic_signal_fence(__ATOMIC_SEQ_CST);
}

static void push_window(void)
{
	if (!preempt_count)
		fail("a push can be preempted half done");
	window();
}

static bool stopped(void)
{
	return __atomic_load_n(&stop, __ATOMIC_RELAXED);
}

static bool may_push(struct producer *producer, unsigned int nr)
{
	return producer->pushed + nr -
	       __atomic_load_n(&producer->popped, __ATOMIC_RELAXED) <=
	       max_queued;
}

static void produce_chain(struct producer *producer, unsigned int nr)
{
	struct llist_node *nodes[MAX_CHAIN];
	struct element *element;
	unsigned int i;

	for (i = 0; i < nr; i++) {
		element = malloc(sizeof(*element));
		if (!element)
			fail("no memory");
		memset(element, POISON, sizeof(*element));
		element->producer = producer - producers;
		element->follow = nr - 1 - i;
		element->seq = producer->pushed++;
		nodes[i] = &element->node;
	}
	producer->found_empty += push_nodes(type, &queue, nodes, nr);
	if (preempt_count)
		fail("a push left preemption disabled");
}

static void *produce(void *arg)
{
	struct producer *producer = arg;
	unsigned int nr;

	random_state = producer->seed;
	while (!stopped()) {
		nr = 1;
		if (type->max_chain > 1 && random_below(2))
			nr += random_below(MAX_CHAIN);
		while (!may_push(producer, nr) && !stopped())
			sched_yield();
		if (stopped())
			break;
		produce_chain(producer, nr);
		if (!random_below(pushes))
			pause_us(random_below(200));
	}
	forget_fence();
	return NULL;
}

static void check(struct element *element)
{
	struct producer *producer;

	if (element->producer >= NR_PRODUCERS)
		fail("popped what is no node");
	producer = &producers[element->producer];
	if (element->seq != producer->popped)
		fail("popped node %lu of producer %u, expected %lu",
		     element->seq, element->producer, producer->popped);
	if (consumer.follow && element->producer != consumer.producer)
		fail("a node of producer %u within a chain of producer %u",
		     element->producer, consumer.producer);
	consumer.producer = element->producer;
	consumer.follow = element->follow;
	__atomic_store_n(&producer->popped, element->seq + 1,
			 __ATOMIC_RELAXED);
}

static bool consume_one(void)
{
	struct llist_node *node = type->pop(&queue);
	struct element *element;

	if (!node)
		return false;
	consumer.emptied += type->emptied(&queue);
	element = (void *)((char *)node - offsetof(struct element, node));
	check(element);
	memset(element, POISON, sizeof(*element));
	free(element);
	return true;
}

static void consume_some(unsigned int nr)
{
	while (nr--) {
		if (consume_one())
			continue;
		if (type->empty(&queue))
			break;
		consumer.unlinked++;
		sched_yield();
	}
}

static void *consume(void *arg)
{
	random_state = *(unsigned long long *)arg;
	while (!stopped()) {
		pthread_mutex_lock(&consumer.lock);
		consume_some(1 + random_below(100));
		pthread_mutex_unlock(&consumer.lock);
		if (!random_below(8))
			pause_us(random_below(500));
		else
			sched_yield();
	}
	return NULL;
}

/* What is left over when all threads have ended. */
static void consume_rest(void)
{
	unsigned long left = 0, found_empty = 0;
	unsigned int i;

	for (i = 0; i < NR_PRODUCERS; i++) {
		left += producers[i].pushed - producers[i].popped;
		found_empty += producers[i].found_empty;
	}
	if (left && type->empty(&queue))
		fail("empty, but %lu nodes are left", left);
	while (consume_one())
		left--;
	if (left)
		fail("%lu nodes are left, but none can be popped", left);
	if (!type->empty(&queue))
		fail("not empty, but no nodes are left");
	if (found_empty != consumer.emptied)
		fail("%lu pushes found the queue empty, %lu pops emptied it",
		     found_empty, consumer.emptied);
}

static void start_thread(pthread_t *thread, void *(*run)(void *), void *arg)
{
	int ret = pthread_create(thread, NULL, run, arg);

	if (ret)
		fail("thread: %s", strerror(ret));
}

static unsigned long long random_seed(void)
{
	/* Never zero, which xorshift can't leave. */
	return (unsigned long long)random_below(INT_MAX) << 32 | 1;
}

static unsigned long run_round(void)
{
	unsigned long long consumer_seeds[NR_CONSUMERS];
	pthread_t consumers[NR_CONSUMERS];
	unsigned long pushed = 0;
	unsigned int i;

	memset(producers, 0, sizeof(producers));
	consumer.emptied = 0;
	type->init(&queue);
	max_queued = MAX_CHAIN + random_below(2 * MAX_CHAIN);
	pushes = 1 + random_below(64);
	stop = false;
	for (i = 0; i < NR_PRODUCERS; i++) {
		producers[i].seed = random_seed();
		start_thread(&producers[i].thread, produce, &producers[i]);
	}
	for (i = 0; i < NR_CONSUMERS; i++) {
		consumer_seeds[i] = random_seed();
		start_thread(&consumers[i], consume, &consumer_seeds[i]);
	}
	nanosleep(&(struct timespec){ .tv_nsec = ROUND_NS }, NULL);
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	for (i = 0; i < NR_CONSUMERS; i++)
		pthread_join(consumers[i], NULL);
	for (i = 0; i < NR_PRODUCERS; i++) {
		pthread_join(producers[i].thread, NULL);
		pushed += producers[i].pushed;
	}
	consume_rest();
	return pushed;
}

static unsigned long long parse(const char *text, unsigned long long max)
{
	char *end;
	unsigned long long value;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (errno || end == text || *end || *text == '-' || value > max)
		errx(1, "not a number up to %llu: %s", max, text);
	return value;
}

int main(int argc, char **argv)
{
	unsigned long pushed;
	unsigned int rounds, i;

	if (argc != 3) {
		fputs("usage: queue-stress SECONDS SEED\n", stderr);
		return 2;
	}
	/* Seconds for all types of queues together. */
	rounds = parse(argv[1], 1000000) * 1000000000 / ROUND_NS /
		 ARRAY_SIZE(types);
	if (!rounds)
		errx(1, "too short");
	seed = parse(argv[2], ULLONG_MAX);
	random_state = seed * 2 + 1;
	for (type = types; type < types + ARRAY_SIZE(types); type++) {
		consumer.unlinked = 0;
		pushed = 0;
		for (i = 0; i < rounds; i++)
			pushed += run_round();
		printf("%s: %lu nodes", type->name, pushed);
		if (type->links_late)
			printf(", %lu met before they were linked",
			       consumer.unlinked);
		putchar('\n');
		fflush(stdout);
		/* On a busy machine they may never meet: no failure of the queue. */
		if (type->links_late && !consumer.unlinked)
			warnx("no consumer met a node before it was linked: run for longer");
	}
	return 0;
}
