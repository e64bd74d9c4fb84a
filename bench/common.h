/* SPDX-License-Identifier: GPL-2.0 */
/* What the benchmark programs share. */
#ifndef BENCH_COMMON_H
#define BENCH_COMMON_H

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <liburing.h>

/*
 * Measured rounds of a case; its figure is their median.  Many short ones, so
 * that most are spared when the host takes a processor away from the guest.
 */
#define ROUNDS	25

#define ARRAY_SIZE(array)	(sizeof(array) / sizeof((array)[0]))

/* The case that runs, for messages. */
static const char *running;

__attribute__((format(printf, 1, 2)))
_Noreturn static inline void die(const char *format, ...)
{
	va_list args;

	fprintf(stderr, "%s: ", program_invocation_short_name);
	if (running)
		fprintf(stderr, "%s: ", running);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

static inline double now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1e9 + now.tv_nsec;
}

static inline int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* The median of the rounds; it sorts them. */
static inline double median(double rounds[ROUNDS])
{
	qsort(rounds, ROUNDS, sizeof(*rounds), compare_doubles);
	return rounds[ROUNDS / 2];
}

/* Context switches so far of all threads of this process. */
static inline double count_switches(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_nvcsw + usage.ru_nivcsw;
}

static inline pthread_t start_thread(void *(*run)(void *), void *arg)
{
	pthread_t thread;
	int ret = pthread_create(&thread, NULL, run, arg);

	if (ret)
		die("a thread could not be started: %s", strerror(ret));
	return thread;
}

/*
 * Pin the calling thread to the i-th processor, modulo their number, of those
 * that it may use.  Not to be called again in the same thread or its children.
 */
static inline void pin(unsigned int i)
{
	cpu_set_t allowed, set;
	int cpu;

	if (sched_getaffinity(0, sizeof(allowed), &allowed))
		die("sched_getaffinity: %s", strerror(errno));
	i %= CPU_COUNT(&allowed);
	for (cpu = 0; !CPU_ISSET(cpu, &allowed) || i--; cpu++)
		;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
		die("sched_setaffinity: %s", strerror(errno));
}

static inline void ring_init(struct io_uring *ring, unsigned int entries,
			     const char *type)
{
	static const struct {
		const char *name;
		unsigned int flags;
	} types[] = {
		{ "default", 0 },
		{ "COOP_TASKRUN", IORING_SETUP_COOP_TASKRUN },
		{ "DEFER_TASKRUN", IORING_SETUP_DEFER_TASKRUN |
				   IORING_SETUP_SINGLE_ISSUER },
	};
	unsigned int i;
	int ret;

	for (i = 0; i < ARRAY_SIZE(types); i++)
		if (!strcmp(type, types[i].name))
			break;
	if (i == ARRAY_SIZE(types))
		die("no such type of ring: %s", type);
	ret = io_uring_queue_init(entries, ring, types[i].flags);
	if (ret)
		die("setup of a %s ring: %s", type, strerror(-ret));
}

static inline struct io_uring_sqe *get_sqe(struct io_uring *ring)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

	if (!sqe)
		die("the submission queue is full");
	return sqe;
}

/* A factor, as a number (0.5) or in percent (50%). */
static inline double parse_scale(const char *text)
{
	char *end;
	double scale = strtod(text, &end);

	if (end != text && *end == '%') {
		scale /= 100;
		end++;
	}
	if (end == text || *end || !(scale > 0 && scale <= 1e6))
		die("not a scale: %s", text);
	return scale;
}

static inline unsigned int scaled(unsigned int count, double scale)
{
	double n = round(count * scale);

	if (n > 1e9)
		die("the scale is too large");
	return n < 1 ? 1 : n;
}

/*
 * Run one case in a process of its own: a process has one io-wq for all its
 * rings, whose workers outlive a ring and would carry over to the next case.
 */
static inline void run_alone(const char *name, void (*run)(const void *),
			     const void *arg, double scale)
{
	pid_t child;
	int status;

	running = name;
	fflush(stdout);
	/*
	 * The clock of a guest that counts instructions runs away while it waits
	 * for the host, as for a page of this program: have them all by now, and
	 * let no case use stdout before its deadline is off.  Where locking is
	 * not allowed, it isn't needed either.
	 */
	mlockall(MCL_CURRENT);
	child = fork();
	if (child < 0)
		die("fork: %s", strerror(errno));
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		/* Or the first printf() would ask what stdout is. */
		setvbuf(stdout, NULL, _IOFBF, BUFSIZ);
		alarm(60 + scaled(60, scale));
		run(arg);
		alarm(0);
		if (fflush(stdout))
			die("stdout: %s", strerror(errno));
		exit(0);
	}
	if (waitpid(child, &status, 0) != child)
		die("waitpid: %s", strerror(errno));
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM)
		die("did not finish before its deadline");
	if (WIFSIGNALED(status))
		die("killed by signal %d", WTERMSIG(status));
	/* The child has said why. */
	if (WEXITSTATUS(status))
		exit(1);
	running = NULL;
}

#endif
