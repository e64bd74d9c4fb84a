// SPDX-License-Identifier: GPL-2.0
/*
 * Task work that is added by many threads to one task: each writes eventfds
 * that a ring of one thread polls.
 *
 * A multishot poll adds task work once for a wake-up, but not again while the
 * first waits to be run.  So a thread writes a set of eventfds, each once, and
 * comes back to the set when the ring's thread has seen them all: a write is
 * one add.  Further sets keep it busy meanwhile.  The writes go through a ring
 * of the thread's own, all in one system call, so that adds meet.
 */
#include <poll.h>
#include <semaphore.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include "common.h"

#define MAX_THREADS	8
#define SETS		4	/* of a thread */
#define SET		32	/* eventfds in a set */
#define ADDS		100000	/* in a round, at scale 1 */

struct set {
	int files[SET];
	sem_t seen;
	unsigned int events;		/* since it was last seen */
};

struct writer {
	unsigned int id;
	struct set sets[SETS];
};

struct adder {
	unsigned int threads;
	struct io_uring ring;
	struct writer writers[MAX_THREADS];
};

struct bench_case {
	unsigned int threads;
	const char *type;
};

static double scale = 1;

static void write_set(struct io_uring *ring, struct set *set)
{
	static const eventfd_t one = 1;
	struct io_uring_cqe *cqe;
	unsigned int i, head;
	int ret;

	while (sem_wait(&set->seen))
		;
	for (i = 0; i < SET; i++)
		io_uring_prep_write(get_sqe(ring), set->files[i], &one,
				    sizeof(one), 0);
	ret = io_uring_submit_and_wait(ring, SET);
	if (ret != SET)
		die("submission of %d writes returned %d", SET, ret);
	io_uring_for_each_cqe(ring, head, cqe)
		if (cqe->res != sizeof(one))
			die("a write to an eventfd returned %d", cqe->res);
	io_uring_cq_advance(ring, SET);
}

static void *run_writer(void *arg)
{
	struct writer *writer = arg;
	struct io_uring ring;
	unsigned int i;

	pin(writer->id);
	ring_init(&ring, SET, "default");
	/* To the end of the process, so that all write in every round. */
	for (i = 0;; i++)
		write_set(&ring, &writer->sets[i % SETS]);
	return NULL;
}

static void handle(struct adder *adder, const struct io_uring_cqe *cqe)
{
	struct set *set;

	if (cqe->res != POLLIN || !(cqe->flags & IORING_CQE_F_MORE))
		die("a poll returned %d, flags %u", cqe->res, cqe->flags);
	if (cqe->user_data >= adder->threads * SETS)
		die("a CQE of no poll, user_data %llu",
		    (unsigned long long)cqe->user_data);
	set = &adder->writers[cqe->user_data / SETS].sets[cqe->user_data % SETS];
	if (++set->events == SET) {
		set->events = 0;
		sem_post(&set->seen);
	}
}

static void run_round(struct adder *adder, unsigned int adds)
{
	struct io_uring_cqe *cqe;
	unsigned int head, seen;
	int ret;

	while (adds) {
		ret = io_uring_wait_cqe_nr(&adder->ring, &cqe, SET);
		if (ret == -EINTR)
			continue;
		if (ret)
			die("wait: %s", strerror(-ret));
		seen = 0;
		io_uring_for_each_cqe(&adder->ring, head, cqe) {
			handle(adder, cqe);
			if (++seen == adds)
				break;
		}
		io_uring_cq_advance(&adder->ring, seen);
		adds -= seen;
	}
}

static void raise_file_limit(void)
{
	struct rlimit limit;
	rlim_t needed = MAX_THREADS * SETS * SET + 64;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		die("RLIMIT_NOFILE: %s", strerror(errno));
	if (limit.rlim_cur >= needed)
		return;
	limit.rlim_cur = needed;
	if (limit.rlim_max < needed)
		limit.rlim_max = needed;
	if (setrlimit(RLIMIT_NOFILE, &limit))
		die("%d open files are needed: %s", (int)needed,
		    strerror(errno));
}

static void poll_set(struct adder *adder, unsigned int id, struct set *set)
{
	struct io_uring_sqe *sqe;
	unsigned int i;
	int ret;

	for (i = 0; i < SET; i++) {
		/* EFD_NONBLOCK: or each write would go through io-wq. */
		set->files[i] = eventfd(0, EFD_NONBLOCK);
		if (set->files[i] < 0)
			die("eventfd: %s", strerror(errno));
		sqe = get_sqe(&adder->ring);
		io_uring_prep_poll_multishot(sqe, set->files[i], POLLIN);
		io_uring_sqe_set_data64(sqe, id);
	}
	ret = io_uring_submit(&adder->ring);
	if (ret != SET)
		die("submission of %d polls returned %d", SET, ret);
	sem_init(&set->seen, 0, 1);
}

static void run_case(const void *arg)
{
	const struct bench_case *bench = arg;
	/* Static: writers outlive this function. */
	static struct adder adder;
	unsigned int adds = scaled(ADDS, scale);
	double ns[ROUNDS], switches;
	unsigned int i, j;

	adder.threads = bench->threads;
	raise_file_limit();
	ring_init(&adder.ring, MAX_THREADS * SETS * SET, bench->type);
	for (i = 0; i < adder.threads; i++)
		for (j = 0; j < SETS; j++)
			poll_set(&adder, i * SETS + j,
				 &adder.writers[i].sets[j]);
	for (i = 0; i < adder.threads; i++) {
		struct writer *writer = &adder.writers[i];

		writer->id = i;
		start_thread(run_writer, writer);
	}
	/* Writers go from the first processor on. */
	pin(sysconf(_SC_NPROCESSORS_ONLN) - 1);
	run_round(&adder, adds);		/* warm-up */
	switches = count_switches();
	for (i = 0; i < ROUNDS; i++) {
		ns[i] = now_ns();
		run_round(&adder, adds);
		ns[i] = (now_ns() - ns[i]) / adds;
	}
	switches = (count_switches() - switches) / ((double)ROUNDS * adds);

	printf("twadd,%s,ns,%.1f\n", running, median(ns));
	printf("twadd,%s,adds/s,%.0f\n", running, 1e9 / median(ns));
	printf("twadd,%s,ctxsw,%.4f\n", running, switches);
}

_Noreturn static void usage(void)
{
	fprintf(stderr,
		"usage: twadd [-n SCALE]\n"
		"  -n SCALE  scale the fixed counts, by 0.5 or 50%%, say\n");
	exit(2);
}

int main(int argc, char **argv)
{
	static const char *const types[] = { "default", "DEFER_TASKRUN" };
	unsigned int i, threads;
	int option;

	while ((option = getopt(argc, argv, "n:")) != -1) {
		if (option != 'n')
			usage();
		scale = parse_scale(optarg);
	}
	if (argv[optind])
		usage();
	for (threads = 1; threads <= MAX_THREADS; threads *= 2)
		for (i = 0; i < ARRAY_SIZE(types); i++) {
			struct bench_case bench = { threads, types[i] };
			char name[80];

			snprintf(name, sizeof(name), "%u %s%s %s", threads,
				 "thread", threads > 1 ? "s" : "", types[i]);
			run_alone(name, run_case, &bench, scale);
		}
	return 0;
}
