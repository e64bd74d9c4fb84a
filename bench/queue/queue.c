// SPDX-License-Identifier: GPL-2.0
/*
 * What it costs to push a node to the queues that task work has used, and to
 * bring it to the consumer.
 *
 * In a round each producer pushes a block of nodes, in chains.  First without
 * a consumer, who empties the queue afterwards: "push" is the producers' time
 * a node, "whole" adds the consumer's.  Then with one, who is woken by a push
 * that found the queue empty, as a ring's task is: "push" is as above, "whole"
 * the time from the first push to the last pop.  A producer of chains outruns
 * the consumer and stays clear of it, which is most of what chains gain there.
 *
 * Producers' time is processor time, so that it does not count how long a
 * producer waits for a processor.  No more of them contend than there are
 * processors, the others take turns.  In the kernel no producer is preempted
 * with a push half done; here it happens, but a round is short against a time
 * slice, so that few rounds see it, and the figure is the median.  With a
 * consumer it would not be rare if the threads outnumbered the processors:
 * those cases are left out.
 *
 * A round visits all queues in turn, so that what disturbs the machine hits
 * all of them: their ratios are more stable than the times.
 */
#include <err.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "queue.h"

#define ROUNDS		400		/* at scale 1 */
#define BLOCK		4096
#define MAX_PRODUCERS	8
#define STOCK		"mpscq single"

struct element {
	alignas(CACHE_LINE) struct llist_node node;
};

struct bench_case {
	const struct queue_type *type;
	unsigned int chain;
	double *push, *whole;		/* ns a node, by round */
};

struct producer {
	pthread_t thread;
	struct element *elements;
	struct llist_node **nodes;
	double ns;
};

static const unsigned int producer_counts[] = { 1, 2, 4, 8 };
static const unsigned int chains[] = { 1, 8, 32 };

static struct bench_case cases[ARRAY_SIZE(types) * ARRAY_SIZE(chains)];
static unsigned int nr_cases;
static unsigned int rounds = ROUNDS;
static unsigned int processors;
static cpu_set_t allowed;

static struct queue queue;
static const struct bench_case *running;	/* NULL: producers end */
static struct producer producers[MAX_PRODUCERS];
static unsigned int nr_producers;
static bool consuming;
static pthread_barrier_t start, finish;
static alignas(CACHE_LINE) unsigned int gathered;
static alignas(CACHE_LINE) bool woken;

static double clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * 1e9 + now.tv_nsec;
}

/* Wait until as many threads run as can, so that they contend from the start. */
static void gather(void)
{
	unsigned int wanted = nr_producers + consuming, spins = 0;

	if (wanted > processors)
		wanted = processors;
	__atomic_add_fetch(&gathered, 1, __ATOMIC_RELAXED);
	while (__atomic_load_n(&gathered, __ATOMIC_RELAXED) < wanted)
		spin(&spins);
}

static void produce(struct producer *producer)
{
	const struct queue_type *type = running->type;
	unsigned int chain = running->chain, i;
	double began;

	/* Who pushes a request has just written to it: it is in the cache. */
	for (i = 0; i < BLOCK; i++)
		producer->nodes[i]->next = NULL;
	gather();
	began = clock_ns(CLOCK_THREAD_CPUTIME_ID);
	for (i = 0; i < BLOCK; i += chain)
		if (push_nodes(type, &queue, producer->nodes + i, chain))
			__atomic_store_n(&woken, true, __ATOMIC_RELEASE);
	producer->ns = clock_ns(CLOCK_THREAD_CPUTIME_ID) - began;
}

/* Thread i runs on the i-th of the processors that we may use, and so round. */
static void pin(unsigned int i)
{
	cpu_set_t set;
	int cpu = -1, ret;

	i %= processors;
	do {
		while (!CPU_ISSET(++cpu, &allowed))
			;
	} while (i--);
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	ret = pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
	if (ret)
		errx(1, "processor %d: %s", cpu, strerror(ret));
}

static void *producer_thread(void *arg)
{
	pin((struct producer *)arg - producers);
	for (;;) {
		pthread_barrier_wait(&start);
		if (!running)
			return NULL;
		produce(arg);
		pthread_barrier_wait(&finish);
	}
}

/* Pop until the queue is empty: the next push will wake the consumer again. */
static unsigned int drain(const struct queue_type *type)
{
	unsigned int popped = 0, spins = 0;

	do {
		while (type->pop(&queue))
			popped++;
		spin(&spins);
	} while (!type->empty(&queue));
	return popped;
}

static double consume(const struct queue_type *type)
{
	unsigned int left = nr_producers * BLOCK, spins = 0;
	double began;

	gather();
	began = clock_ns(CLOCK_MONOTONIC);
	while (left) {
		while (!__atomic_load_n(&woken, __ATOMIC_RELAXED))
			spin(&spins);
		/* A full barrier: who pushes from here on wakes us again. */
		if (!__atomic_exchange_n(&woken, false, __ATOMIC_SEQ_CST))
			continue;
		left -= drain(type);
	}
	return clock_ns(CLOCK_MONOTONIC) - began;
}

static void run_round(const struct bench_case *bench, unsigned int round)
{
	double nodes = nr_producers * BLOCK, push = 0, whole = 0;
	unsigned int i;

	running = bench;
	gathered = 0;
	woken = false;
	bench->type->init(&queue);
	pthread_barrier_wait(&start);
	if (consuming)
		whole = consume(bench->type);
	pthread_barrier_wait(&finish);
	for (i = 0; i < nr_producers; i++)
		push += producers[i].ns;
	if (!consuming) {
		whole = clock_ns(CLOCK_THREAD_CPUTIME_ID);
		if (drain(bench->type) != nodes)
			errx(1, "%s lost nodes", bench->type->name);
		whole = clock_ns(CLOCK_THREAD_CPUTIME_ID) - whole + push;
	}
	bench->push[round] = push / nodes;
	bench->whole[round] = whole / nodes;
}

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *values)
{
	qsort(values, rounds, sizeof(*values), compare_doubles);
	return values[rounds / 2];
}

static void print(const char *what, const struct bench_case *bench,
		  const char *unit, double value)
{
	char chain[20] = "";

	if (bench->type->max_chain > 1)
		snprintf(chain, sizeof(chain), " %u", bench->chain);
	printf("queue,%s %u producer%s%s %s%s,%s,%.2f\n", what, nr_producers,
	       nr_producers > 1 ? "s" : "", consuming ? " and consumer" : "",
	       bench->type->name, chain, unit, value);
}

/* A ratio is how many times cheaper a case is than the stock kernel's queue. */
static void report(void)
{
	double push, whole, stock_push = 0, stock_whole = 0;
	const struct bench_case *bench;
	unsigned int i;

	for (i = 0; i < nr_cases; i++) {
		if (strcmp(cases[i].type->name, STOCK))
			continue;
		stock_push = median(cases[i].push);
		stock_whole = median(cases[i].whole);
	}
	for (i = 0; i < nr_cases; i++) {
		bench = &cases[i];
		push = median(bench->push);
		whole = median(bench->whole);
		print("push", bench, "ns", push);
		print("whole", bench, "ns", whole);
		if (!strcmp(bench->type->name, STOCK))
			continue;
		print("push", bench, "ratio", stock_push / push);
		print("whole", bench, "ratio", stock_whole / whole);
	}
	if (fflush(stdout))
		err(1, "stdout");
}

static void run_cases(void)
{
	unsigned int i, round;

	if (consuming && nr_producers + 1 > processors) {
		warnx("%u producers and a consumer: too few processors, skipped",
		      nr_producers);
		return;
	}
	/* A warm-up: the first round that counts overwrites its figures. */
	for (i = 0; i < nr_cases; i++)
		run_round(&cases[i], 0);
	for (round = 0; round < rounds; round++)
		for (i = 0; i < nr_cases; i++)
			run_round(&cases[i], round);
	report();
}

static void run_producers(unsigned int nr)
{
	unsigned int i;
	int ret;

	nr_producers = nr;
	pin(nr);
	pthread_barrier_init(&start, NULL, nr + 1);
	pthread_barrier_init(&finish, NULL, nr + 1);
	for (i = 0; i < nr; i++) {
		ret = pthread_create(&producers[i].thread, NULL,
				     producer_thread, &producers[i]);
		if (ret)
			errx(1, "thread: %s", strerror(ret));
	}
	consuming = false;
	run_cases();
	consuming = true;
	run_cases();
	running = NULL;
	pthread_barrier_wait(&start);
	for (i = 0; i < nr; i++)
		pthread_join(producers[i].thread, NULL);
	pthread_barrier_destroy(&start);
	pthread_barrier_destroy(&finish);
}

static void *allocate(size_t size)
{
	void *memory = aligned_alloc(CACHE_LINE,
				     (size + CACHE_LINE - 1) / CACHE_LINE *
				     CACHE_LINE);

	if (!memory)
		errx(1, "no memory");
	return memory;
}

static void make_producers(void)
{
	struct producer *producer;
	unsigned int i;

	for (producer = producers; producer < producers + MAX_PRODUCERS; producer++) {
		producer->elements = allocate(BLOCK * sizeof(*producer->elements));
		producer->nodes = allocate(BLOCK * sizeof(*producer->nodes));
		for (i = 0; i < BLOCK; i++)
			producer->nodes[i] = &producer->elements[i].node;
	}
}

static void make_cases(void)
{
	struct bench_case *bench;
	unsigned int i, j;

	for (i = 0; i < ARRAY_SIZE(types); i++) {
		for (j = 0; j < ARRAY_SIZE(chains); j++) {
			if (chains[j] > types[i].max_chain)
				continue;
			bench = &cases[nr_cases++];
			bench->type = &types[i];
			bench->chain = chains[j];
			bench->push = allocate(rounds * sizeof(*bench->push));
			bench->whole = allocate(rounds * sizeof(*bench->whole));
		}
	}
}

/* A factor, as a number (0.5) or in percent (50%), as the other programs take. */
static void parse_scale(const char *text)
{
	char *end;
	double scale = strtod(text, &end);

	if (end != text && *end == '%') {
		scale /= 100;
		end++;
	}
	if (end == text || *end || !(scale > 0 && scale <= 1000))
		errx(1, "not a scale: %s", text);
	rounds = scale * ROUNDS;
	if (!rounds)
		rounds = 1;
}

int main(int argc, char **argv)
{
	unsigned int i;
	int option;

	while ((option = getopt(argc, argv, "n:")) == 'n')
		parse_scale(optarg);
	if (option != -1 || argv[optind]) {
		fputs("usage: queue [-n SCALE]\n", stderr);
		return 2;
	}
	if (sched_getaffinity(0, sizeof(allowed), &allowed))
		err(1, "allowed processors");
	processors = CPU_COUNT(&allowed);
	make_producers();
	make_cases();
	for (i = 0; i < ARRAY_SIZE(producer_counts); i++)
		run_producers(producer_counts[i]);
	return 0;
}
