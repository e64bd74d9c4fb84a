// SPDX-License-Identifier: GPL-2.0
/*
 * What a message from one ring to another (IORING_OP_MSG_RING) costs: the
 * sender, the receiver, both at once, and what a round trip takes.
 *
 * The number of messages is not calibrated by time, so that counts of
 * instructions can be compared between runs.  Time a message is a median; a
 * trip is timed by itself, and percentiles are printed.
 */
#include <semaphore.h>

#include "common.h"

#define GROUP	64	/* messages that are sent, then received, alone */
#define GROUPS	4	/* of those, in a round */
#define BATCH	64	/* messages of a stream that are submitted at once */
#define WINDOW	4	/* batches that a sender may have in flight */
#define SENDERS	2	/* of a stream, at most */
#define PAIRS	4	/* that make trips at the same time, at most */
#define STARTS	20	/* of a pair's threads: the scheduler may stick to a place */

/* The user_data of a sender's own CQEs; that of messages is never so high. */
#define OWN	(~1ULL)

struct bench_case {
	const char *name;		/* that of the ring type follows */
	void (*run)(const struct bench_case *bench, const char *type);
	unsigned int count;		/* rounds, batches in a round, or trips */
	unsigned int batch;		/* alone: in a submission, 0: sync send */
	int receiver;			/* alone: time it; trips: print its */
	unsigned int senders;		/* of a stream */
	unsigned int pairs;		/* that make trips */
	unsigned int busy;		/* processes that keep processors busy */
	int pinned;			/* the two of a pair, to two processors */
	int own_first;			/* see send_first() */
};

static double scale = 1;

static void prepare(struct io_uring *ring, int target, unsigned int sequence,
		    __u64 data)
{
	struct io_uring_sqe *sqe = get_sqe(ring);

	io_uring_prep_msg_ring(sqe, target, sequence, data, 0);
	io_uring_sqe_set_data64(sqe, OWN);
}

static void check_message(const struct io_uring_cqe *cqe, unsigned int sequence)
{
	if (cqe->user_data == OWN)
		die("a completion where a message was to come, result %d",
		    cqe->res);
	if ((unsigned int)cqe->res != sequence)
		die("message %d came instead of %u", cqe->res, sequence);
}

/* Those of a sender are there when io_uring_enter() has submitted. */
static void reap_own(struct io_uring *ring, unsigned int count)
{
	struct io_uring_cqe *cqe;
	unsigned int head, seen = 0;

	io_uring_for_each_cqe(ring, head, cqe) {
		if (cqe->user_data != OWN || cqe->res)
			die("a send returned %d", cqe->res);
		seen++;
	}
	if (seen != count)
		die("%u of %u sends have completed", seen, count);
	io_uring_cq_advance(ring, seen);
}

static void wait_for(struct io_uring *ring, unsigned int count)
{
	struct io_uring_cqe *cqe;
	int ret;

	do
		ret = io_uring_wait_cqe_nr(ring, &cqe, count);
	while (ret == -EINTR);
	if (ret)
		die("wait: %s", strerror(-ret));
}

static void print_name(const struct bench_case *bench, const char *type)
{
	printf("msg,%s %s,", bench->name, type);
}

/*
 * Alone: one thread owns both rings, so that nobody is woken.  Rounds are short,
 * so that their median leaves out what the kernel now and then does in the
 * background, such as freeing after a grace period, which a stream has in full.
 */

struct alone {
	const struct bench_case *bench;
	struct io_uring sender, target;
	unsigned int sent, received;
};

/* All SQEs that were got, so that the kernel can be told to submit a part. */
static void publish(struct io_uring *ring)
{
	ring->sq.sqe_head = ring->sq.sqe_tail;
	io_uring_smp_store_release(ring->sq.ktail, ring->sq.sqe_tail);
}

static void send_group(struct alone *alone)
{
	unsigned int batch = alone->bench->batch;
	unsigned int i;
	int ret;

	for (i = 0; i < GROUP; i += batch) {
		ret = io_uring_enter(alone->sender.ring_fd, batch, 0, 0, NULL);
		if (ret < 0)
			die("submission: %s", strerror(-ret));
		if ((unsigned int)ret != batch)
			die("submitted %d messages of %u", ret, batch);
	}
}

static void send_group_sync(struct alone *alone)
{
	struct io_uring_sqe sqe;
	unsigned int i;
	int ret;

	memset(&sqe, 0, sizeof(sqe));
	for (i = 0; i < GROUP; i++) {
		io_uring_prep_msg_ring(&sqe, alone->target.ring_fd,
				       alone->sent++, 0, 0);
		ret = io_uring_register_sync_msg(&sqe);
		if (ret)
			die("IORING_REGISTER_SEND_MSG_RING: %s",
			    strerror(-ret));
	}
}

static void receive_group(struct alone *alone)
{
	struct io_uring_cqe *cqe;
	unsigned int head, seen = 0;
	int ret;

	ret = io_uring_enter(alone->target.ring_fd, 0, GROUP,
			     IORING_ENTER_GETEVENTS, NULL);
	if (ret < 0)
		die("reaping: %s", strerror(-ret));
	io_uring_for_each_cqe(&alone->target, head, cqe) {
		check_message(cqe, alone->received++);
		seen++;
	}
	if (seen != GROUP)
		die("received %u messages of %d", seen, GROUP);
	io_uring_cq_advance(&alone->target, seen);
}

/* Returns the time that the sender, or else the receiver, took. */
static double run_group(struct alone *alone)
{
	int sync = !alone->bench->batch;
	double start, sent, received;
	unsigned int i;

	if (!sync) {
		for (i = 0; i < GROUP; i++)
			prepare(&alone->sender, alone->target.ring_fd,
				alone->sent++, 0);
		publish(&alone->sender);
	}
	start = now_ns();
	if (sync)
		send_group_sync(alone);
	else
		send_group(alone);
	sent = now_ns();
	receive_group(alone);
	received = now_ns();
	if (!sync)
		reap_own(&alone->sender, GROUP);
	return alone->bench->receiver ? received - sent : sent - start;
}

/* Of some groups, so that each round has its share of refills of slab caches. */
static double run_groups(struct alone *alone)
{
	double ns = 0;
	unsigned int i;

	for (i = 0; i < GROUPS; i++)
		ns += run_group(alone);
	return ns / (GROUPS * GROUP);
}

static void run_alternately(const struct bench_case *bench, const char *type)
{
	struct alone alone = { .bench = bench };
	unsigned int rounds = scaled(bench->count, scale);
	double *ns = calloc(rounds, sizeof(*ns));
	unsigned int i;

	if (!ns)
		die("no memory for %u rounds", rounds);
	ring_init(&alone.sender, GROUP, type);
	ring_init(&alone.target, GROUP, type);
	for (i = 0; i < rounds / 10; i++)	/* warm-up */
		run_groups(&alone);
	for (i = 0; i < rounds; i++)
		ns[i] = run_groups(&alone);
	qsort(ns, rounds, sizeof(*ns), compare_doubles);
	print_name(bench, type);
	printf("ns,%.1f\n", ns[rounds / 2]);
	free(ns);
	io_uring_queue_exit(&alone.sender);
	io_uring_queue_exit(&alone.target);
}

/* A stream: senders that submit batches, and a receiver that waits for one. */

struct stream;

struct sender {
	struct stream *stream;
	unsigned int id;
	sem_t window;			/* batches that it may send */
	unsigned int received;		/* the receiver's */
};

struct stream {
	const char *type;
	struct io_uring target;
	pthread_barrier_t ready;
	unsigned int batches;		/* of each sender in a round */
	unsigned int senders;
	struct sender sender[SENDERS];
	unsigned int received;		/* from all of them */
	double stamps[ROUNDS + 2];	/* the first round is the warm-up */
	double switches[2];
};

static void *run_sender(void *arg)
{
	struct sender *sender = arg;
	struct stream *stream = sender->stream;
	unsigned int i, sequence = 0;
	struct io_uring ring;
	int ret;

	pin(sender->id);
	ring_init(&ring, BATCH, stream->type);
	pthread_barrier_wait(&stream->ready);
	/* To the end of the process, so that all send in every round. */
	for (;;) {
		while (sem_wait(&sender->window))
			;
		for (i = 0; i < BATCH; i++)
			prepare(&ring, stream->target.ring_fd, sequence++,
				sender->id);
		ret = io_uring_submit(&ring);
		if (ret != BATCH)
			die("submission of %d messages returned %d", BATCH,
			    ret);
		reap_own(&ring, BATCH);
	}
	return NULL;
}

static void stamp_round(struct stream *stream, unsigned int round)
{
	stream->stamps[round] = now_ns();
	if (round == 1)
		stream->switches[0] = count_switches();
	if (round == ROUNDS + 1)
		stream->switches[1] = count_switches();
}

static void receive(struct stream *stream, const struct io_uring_cqe *cqe)
{
	unsigned int round = BATCH * stream->batches * stream->senders;
	struct sender *sender;

	if (cqe->user_data >= stream->senders)
		die("a CQE of no sender, user_data %llu",
		    (unsigned long long)cqe->user_data);
	sender = &stream->sender[cqe->user_data];
	check_message(cqe, sender->received++);
	if (sender->received % BATCH == 0)
		sem_post(&sender->window);
	if (++stream->received % round == 0)
		stamp_round(stream, stream->received / round);
}

static void run_receiver(struct stream *stream)
{
	unsigned int total = BATCH * stream->batches * stream->senders *
			     (ROUNDS + 1);
	struct io_uring_cqe *cqe;
	unsigned int head, seen;

	while (stream->received < total) {
		wait_for(&stream->target, BATCH);
		seen = 0;
		io_uring_for_each_cqe(&stream->target, head, cqe) {
			if (stream->received == total)
				break;
			receive(stream, cqe);
			seen++;
		}
		io_uring_cq_advance(&stream->target, seen);
	}
}

static void run_stream(const struct bench_case *bench, const char *type)
{
	/* Static: senders outlive this function. */
	static struct stream stream;
	double ns[ROUNDS], messages;
	unsigned int i;

	stream.type = type;
	stream.batches = scaled(bench->count, scale);
	stream.senders = bench->senders;
	messages = (double)BATCH * stream.batches * stream.senders;
	ring_init(&stream.target, SENDERS * WINDOW * BATCH, type);
	pthread_barrier_init(&stream.ready, NULL, stream.senders + 1);
	for (i = 0; i < stream.senders; i++) {
		struct sender *sender = &stream.sender[i];

		sender->stream = &stream;
		sender->id = i;
		sem_init(&sender->window, 0, WINDOW);
		start_thread(run_sender, sender);
	}
	/* From the last processor on, while senders go from the first. */
	pin(sysconf(_SC_NPROCESSORS_ONLN) - 1);
	pthread_barrier_wait(&stream.ready);
	run_receiver(&stream);
	for (i = 0; i < ROUNDS; i++)
		ns[i] = (stream.stamps[i + 2] - stream.stamps[i + 1]) /
			messages;
	print_name(bench, type);
	printf("ns,%.1f\n", median(ns));
	print_name(bench, type);
	printf("ctxsw,%.5f\n", (stream.switches[1] - stream.switches[0]) /
	       (ROUNDS * messages));
}

/* Trips: a message there, one back, by threads that submit and wait at once. */

struct trips;

struct pair {
	struct trips *trips;
	struct io_uring ring[2];
	pthread_barrier_t ready;
	pthread_t thread[2];
	double *trip;			/* from sending to having the answer */
	double *own;			/* to having one's own completion */
	double *receiver;		/* to the other's having the message */
};

struct trips {
	const struct bench_case *bench;
	const char *type;
	unsigned int count;		/* of a pair from one start */
	unsigned int total;
	double *trip;			/* as in struct pair, but all */
	double *own;
	double *receiver;
	struct pair pair[PAIRS];
};

/* Returns the user_data of the message, or OWN if there is none yet. */
static __u64 take(struct io_uring *ring, unsigned int sequence)
{
	struct io_uring_cqe *cqe;
	unsigned int head, seen = 0;
	__u64 data = OWN;

	io_uring_for_each_cqe(ring, head, cqe) {
		seen++;
		if (cqe->user_data == OWN) {
			if (cqe->res)
				die("a send returned %d", cqe->res);
			continue;
		}
		check_message(cqe, sequence);
		data = cqe->user_data;
	}
	io_uring_cq_advance(ring, seen);
	return data;
}

/* Submits what is prepared and waits for that many CQEs in the same call. */
static void submit_and_wait(struct io_uring *ring, unsigned int count)
{
	int ret = io_uring_submit_and_wait(ring, count);

	if (ret < 0 && ret != -EINTR)
		die("submission: %s", strerror(-ret));
}

/* The message's user_data; a signal may have ended the wait before it came. */
static __u64 answer(struct io_uring *ring, unsigned int sequence)
{
	__u64 data;

	while ((data = take(ring, sequence)) == OWN)
		wait_for(ring, 1);
	return data;
}

static void begin(struct pair *pair, unsigned int side)
{
	if (pair->trips->bench->pinned)
		pin(side);
	/* A DEFER_TASKRUN ring belongs to the thread that makes it. */
	ring_init(&pair->ring[side], 8, pair->trips->type);
	pthread_barrier_wait(&pair->ready);
}

/*
 * To know when its own completion is there, the sender has to come back for
 * it, and then waits for the answer in a second call.
 */
static void send_first(struct io_uring *ring, double *own, double start)
{
	submit_and_wait(ring, 1);
	*own = now_ns() - start;
}

static void *run_ping(void *arg)
{
	struct pair *pair = arg;
	struct trips *trips = pair->trips;
	struct io_uring *ring = &pair->ring[0];
	unsigned int i;
	double start;

	begin(pair, 0);
	for (i = 0; i < trips->count; i++) {
		start = now_ns();
		prepare(ring, pair->ring[1].ring_fd, i, start);
		if (trips->bench->own_first)
			send_first(ring, &pair->own[i], start);
		else
			submit_and_wait(ring, 2);
		answer(ring, i);
		pair->trip[i] = now_ns() - start;
	}
	pthread_barrier_wait(&pair->ready);
	return NULL;
}

static void *run_pong(void *arg)
{
	struct pair *pair = arg;
	struct trips *trips = pair->trips;
	struct io_uring *ring = &pair->ring[1];
	unsigned int i;

	begin(pair, 1);
	for (i = 0; i < trips->count; i++) {
		double start = answer(ring, i);

		pair->receiver[i] = now_ns() - start;
		prepare(ring, pair->ring[0].ring_fd, i, 0);
		submit_and_wait(ring, i + 1 < trips->count ? 2 : 1);
	}
	pthread_barrier_wait(&pair->ready);
	return NULL;
}

static double *make_times(unsigned int count)
{
	double *times = calloc(count, sizeof(*times));

	if (!times)
		die("no memory for %u trips", count);
	return times;
}

static void make_busy(unsigned int processes)
{
	pid_t child;

	while (processes--) {
		child = fork();
		if (child < 0)
			die("fork: %s", strerror(errno));
		if (!child) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			for (;;)
				;
		}
	}
}

static void print_percentiles(const struct trips *trips, const char *who,
			      double *times)
{
	static const double percentiles[] = { 1, 50, 90, 99, 99.9, 99.99 };
	unsigned int count = trips->total;
	unsigned int i;

	qsort(times, count, sizeof(*times), compare_doubles);
	for (i = 0; i < ARRAY_SIZE(percentiles); i++) {
		double p = percentiles[i] / 100;

		/* Of too few it would be the longest of all. */
		if (round(count * (1 - p)) < 1)
			break;
		printf("msg,%s%s p%g %s,ns,%.0f\n", trips->bench->name, who,
		       percentiles[i], trips->type,
		       times[(unsigned int)(count * p)]);
	}
}

/* Lets all pairs make their trips; done is how many were made before. */
static void run_pairs(struct trips *trips, unsigned int done)
{
	unsigned int pairs = trips->bench->pairs, i;

	for (i = 0; i < pairs; i++) {
		struct pair *pair = &trips->pair[i];

		pair->trips = trips;
		pair->trip = trips->trip + done + i * trips->count;
		pair->own = trips->own + done + i * trips->count;
		pair->receiver = trips->receiver + done + i * trips->count;
		pthread_barrier_init(&pair->ready, NULL, 2);
		pair->thread[0] = start_thread(run_ping, pair);
		pair->thread[1] = start_thread(run_pong, pair);
	}
	for (i = 0; i < pairs; i++) {
		pthread_join(trips->pair[i].thread[0], NULL);
		pthread_join(trips->pair[i].thread[1], NULL);
		io_uring_queue_exit(&trips->pair[i].ring[0]);
		io_uring_queue_exit(&trips->pair[i].ring[1]);
	}
}

static void run_trips(const struct bench_case *bench, const char *type)
{
	struct trips trips = { .bench = bench, .type = type };
	unsigned int done;
	double switches;

	trips.count = scaled((double)bench->count / STARTS, scale);
	trips.total = trips.count * bench->pairs * STARTS;
	trips.trip = make_times(trips.total);
	trips.own = make_times(trips.total);
	trips.receiver = make_times(trips.total);
	make_busy(bench->busy);
	switches = count_switches();
	for (done = 0; done < trips.total; done += trips.count * bench->pairs)
		run_pairs(&trips, done);
	switches = count_switches() - switches;
	if (bench->own_first) {
		print_percentiles(&trips, "", trips.own);
		return;
	}
	print_percentiles(&trips, "", trips.trip);
	print_name(bench, type);
	printf("ctxsw,%.3f\n", switches / trips.total);
	if (bench->receiver)
		print_percentiles(&trips, " receiver", trips.receiver);
}

static const struct bench_case cases[] = {
	{ "sender 1", run_alternately, 5000, .batch = 1 },
	{ "sender 8", run_alternately, 5000, .batch = 8 },
	{ "sender 64", run_alternately, 5000, .batch = 64 },
	{ "receiver", run_alternately, 5000, .batch = 64, .receiver = 1 },
	{ "sync", run_alternately, 10000, .batch = 0 },
	{ "stream 64", run_stream, 6000, .senders = 1 },
	{ "fan-in 64", run_stream, 3000, .senders = 2 },
	{ "round trip", run_trips, 100000, .pairs = 1, .receiver = 1 },
	{ "round trip sender", run_trips, 100000, .pairs = 1, .pinned = 1,
	  .own_first = 1 },
	{ "round trip pinned", run_trips, 100000, .pairs = 1, .pinned = 1 },
	{ "round trip loaded", run_trips, 50000, .pairs = 1, .busy = 4 },
	{ "pairs 4", run_trips, 100000, .pairs = 4 },
};

struct chosen {
	const struct bench_case *bench;
	const char *type;
};

static void run_case(const void *arg)
{
	const struct chosen *chosen = arg;

	chosen->bench->run(chosen->bench, chosen->type);
}

static void run_named(const struct bench_case *bench, const char *type)
{
	struct chosen chosen = { bench, type };
	char name[80];

	snprintf(name, sizeof(name), "%s %s", bench->name, type);
	run_alone(name, run_case, &chosen, scale);
}

_Noreturn static void usage(void)
{
	unsigned int i;

	fprintf(stderr, "usage: msg [-n SCALE] [CASE]...\n"
		"  -n SCALE  scale the fixed counts, by 0.5 or 50%%, say\n"
		"  CASE      how its name begins:");
	for (i = 0; i < ARRAY_SIZE(cases); i++)
		fprintf(stderr, "%s '%s'", i ? "," : "", cases[i].name);
	fputc('\n', stderr);
	exit(2);
}

static int begins(const char *name, const char *beginning)
{
	return !strncmp(name, beginning, strlen(beginning));
}

static int is_case(const char *beginning)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(cases); i++)
		if (begins(cases[i].name, beginning))
			return 1;
	return 0;
}

/* Without a choice, all are chosen. */
static int is_chosen(const char *name, char **choice)
{
	if (!*choice)
		return 1;
	for (; *choice; choice++)
		if (begins(name, *choice))
			return 1;
	return 0;
}

int main(int argc, char **argv)
{
	unsigned int i;
	int option;

	while ((option = getopt(argc, argv, "n:")) != -1) {
		if (option != 'n')
			usage();
		scale = parse_scale(optarg);
	}
	for (i = optind; argv[i]; i++)
		if (!is_case(argv[i]))
			usage();
	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		if (!is_chosen(cases[i].name, argv + optind))
			continue;
		run_named(&cases[i], "default");
		run_named(&cases[i], "DEFER_TASKRUN");
	}
	return 0;
}
