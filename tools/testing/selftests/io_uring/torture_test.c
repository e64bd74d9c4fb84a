// SPDX-License-Identifier: GPL-2.0
/*
 * Everything at once: threads with rings of all types run random schedules and
 * send messages to each other, while processes come and go with requests in
 * flight, and CPUs with threads on them.
 *
 *	IO_URING_TORTURE_SECONDS	how long, 5 if it isn't set
 *	IO_URING_TEST_SEED		of an earlier run, which prints it
 *	IO_URING_TORTURE_ROUNDS		for each thread, instead of seconds
 *
 * What is going to be done is up to the seed alone, see the checksums that are
 * printed; when it is done is up to the kernel.
 */
#include <sys/prctl.h>

#include "torture_ring.h"

#define END_ARG		"end"

/* Rings and threads live for one of these, then nothing may be left. */
#define NR_ERAS		5

static unsigned int nr_children;
static unsigned int nr_hotplugs;

enum child_kind {
	CLOSES, EXITS, EXECS, STOPPED, KILLED, STOPPED_AND_KILLED, NR_CHILDREN,
};

static const char * const child_names[] = {
	"closes its ring", "exits", "executes a program", "is stopped",
	"is killed", "is stopped and killed",
};

struct child {
	enum child_kind kind;
	unsigned int type;
	unsigned int delay;
	bool threaded;
};

/* What isn't a ring's thread. */
struct helper {
	unsigned int nr;
	unsigned int round;
	unsigned int rounds_end;
	__u64 checksum;
	pthread_t pthread;
};

static struct helper keeper = { .nr = NR_THREADS };
static struct helper disturber = { .nr = NR_THREADS + 1 };

static void generate_child(struct child *child, unsigned int round, __u64 *sum)
{
	__u64 random = rnd_start(keeper.nr, round);

	child->kind = rnd(&random, NR_CHILDREN);
	child->type = rnd(&random, NR_THREADS);
	child->delay = rnd(&random, 8000);
	child->threaded = chance(&random, 30);
	checksum_add(sum, child->kind << 24 | child->type << 16 |
			  child->delay << 1 | child->threaded);
}

static void busy_loop(unsigned int type, unsigned int rounds)
{
	struct ring ring;
	struct cqe cqe;

	if (any_ring_init(&ring, type))
		_exit(1);
	busy_work(&ring, true);
	do {
		if (ring_submit(&ring))
			_exit(1);
		while (!ring_next_timeout(&ring, &cqe, 1))
			;
		busy_work(&ring, false);
	} while (--rounds);
}

static void *child_thread(void *arg)
{
	busy_loop(*(unsigned int *)arg, UINT_MAX);
	return NULL;
}

static void child_main(struct child *child)
{
	struct ring ring;
	pthread_t pthread;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (child->threaded &&
	    pthread_create(&pthread, NULL, child_thread, &child->type))
		_exit(1);
	if (child->kind >= STOPPED) {
		busy_loop(child->type, child->kind == STOPPED ? 4 : UINT_MAX);
		_exit(0);
	}
	if (any_ring_init(&ring, child->type))
		_exit(1);
	busy_work(&ring, true);
	if (ring_submit(&ring))
		_exit(1);
	if (child->kind == CLOSES)
		ring_exit(&ring);
	if (child->kind == EXECS)
		execl("/proc/self/exe", "torture_test", END_ARG, NULL);
	_exit(child->kind == EXECS);
}

static void child_signals(struct child *child, pid_t pid)
{
	usleep(child->delay);
	if (child->kind == STOPPED || child->kind == STOPPED_AND_KILLED) {
		kill(pid, SIGSTOP);
		usleep(child->delay);
	}
	if (child->kind == STOPPED)
		kill(pid, SIGCONT);
	if (child->kind >= KILLED)
		kill(pid, SIGKILL);
}

static void *keeper_main(void *arg)
{
	struct helper *helper = arg;
	struct child child;
	int status;
	pid_t pid;

	while (!is_over(helper->round, helper->rounds_end)) {
		generate_child(&child, ++helper->round, &helper->checksum);
		pid = fork();
		if (!pid)
			child_main(&child);
		if (pid < 0) {
			complain("no child");
			break;
		}
		child_signals(&child, pid);
		status = child_wait(pid);
		if (status == -ETIME)
			complain("child %u, which %s, hangs", helper->round,
				 child_names[child.kind]);
		else if (status != (child.kind >= KILLED ? SIGKILL : 0))
			complain("child %u, which %s, ends with %#x",
				 helper->round, child_names[child.kind],
				 status);
		nr_children++;
	}
	return NULL;
}

static void plug_cpu(const char *online)
{
	if (!write_file("/sys/devices/system/cpu/cpu1/online", online, 0))
		nr_hotplugs++;
}

static void *disturber_main(void *arg)
{
	struct helper *helper = arg;
	unsigned int who;
	cpu_set_t set;
	__u64 random;

	while (!is_over(helper->round, helper->rounds_end)) {
		random = rnd_start(helper->nr, ++helper->round);
		checksum_add(&helper->checksum, random);
		who = rnd(&random, NR_THREADS);
		CPU_ZERO(&set);
		CPU_SET(rnd(&random, 2), &set);
		if (chance(&random, 50))
			memset(&set, 0xff, sizeof(set));
		/* fails if that CPU isn't there */
		sched_setaffinity(threads[who].tid, sizeof(set), &set);
		if (chance(&random, 4))
			plug_cpu(chance(&random, 50) ? "0" : "1");
		usleep(200 + rnd(&random, 4000));
	}
	plug_cpu("1");
	return NULL;
}

static bool nop_takes(struct ring *ring, unsigned int flags, int res)
{
	struct io_uring_sqe *sqe;
	struct cqe cqe;

	sqe = ring_prep(ring, IORING_OP_NOP, -1, NULL, 0, 0, 0);
	sqe->len = res;
	sqe->nop_flags = flags;
	return !ring_submit(ring) && !ring_next(ring, &cqe) && cqe.res == res;
}

/* The main thread has no ring, or it would have workers. */
static void *probe_main(void *arg)
{
	bool *has_ring = arg;
	struct ring ring;

	if (ring_init(&ring, 0))
		return NULL;
	*has_ring = true;
	can_inject = nop_takes(&ring, IORING_NOP_INJECT_RESULT, -EIO);
	can_defer = nop_takes(&ring, IORING_NOP_TW, 0);
	can_sync = msg_sync_supported();
	ring_exit(&ring);
	return NULL;
}

static unsigned int env_number(const char *name, unsigned int otherwise)
{
	const char *env = getenv(name);

	return env ? strtoul(env, NULL, 0) : otherwise;
}

static void find_seed(struct __test_metadata *_metadata)
{
	const char *env = getenv("IO_URING_TEST_SEED");
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	seed = env ? strtoull(env, NULL, 0) :
		     ts.tv_sec * 1000000000ULL + ts.tv_nsec;
	TH_LOG("IO_URING_TEST_SEED=%llu", seed);
}

static int nr_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int nr = 0;

	if (!dir)
		return -errno;
	while (readdir(dir))
		nr++;
	closedir(dir);
	return nr;
}

static long slab_active(const char *name)
{
	char path[64], line[256], format[64];
	long active = -1;
	FILE *file;

	/* what CPUs keep for themselves counts as active */
	snprintf(path, sizeof(path), "/sys/kernel/slab/%s/shrink", name);
	file = fopen(path, "w");
	if (file) {
		fputs("1", file);
		fclose(file);
	}
	snprintf(format, sizeof(format), "%s %%ld", name);
	file = fopen("/proc/slabinfo", "r");
	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, format, &active) == 1)
			break;
	if (file)
		fclose(file);
	return active;
}

static const char * const slabs[] = { "io_kiocb", "io_msg_work" };
static long slab_counts[ARRAY_SIZE(slabs)][NR_ERAS];

static void count_slabs(unsigned int era)
{
	long active, *count;
	unsigned int i, tries;

	for (i = 0; i < ARRAY_SIZE(slabs); i++) {
		count = &slab_counts[i][era];
		*count = LONG_MAX;
		/* a ring that is closed doesn't go away at once */
		for (tries = 0; tries < 50 && *count > 0; tries++) {
			active = slab_active(slabs[i]);
			if (active < *count)
				*count = active;
			if (active > 0)
				sleep_ms(10);
		}
	}
}

/* A leak is one if every era has its share of it. */
static void check_slabs(struct __test_metadata *_metadata)
{
	unsigned int i, era, grown;

	for (i = 0; i < ARRAY_SIZE(slabs); i++) {
		if (slab_counts[i][0] < 0) {
			TH_LOG("%s isn't in /proc/slabinfo", slabs[i]);
			continue;
		}
		grown = 0;
		for (era = 1; era < NR_ERAS; era++)
			grown += slab_counts[i][era] > slab_counts[i][era - 1];
		TH_LOG("%s: %ld objects after the first era, %ld at the end",
		       slabs[i], slab_counts[i][0],
		       slab_counts[i][NR_ERAS - 1]);
		EXPECT_GT(NR_ERAS - 1U, grown) {
			TH_LOG("%s leak", slabs[i]);
		}
	}
}

static void join(struct __test_metadata *_metadata, pthread_t pthread)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	ts.tv_sec += 2 * ROUND_MS / 1000;
	ASSERT_EQ(0, pthread_timedjoin_np(pthread, NULL, &ts)) {
		TH_LOG("a thread hangs: %s", trouble_text);
	}
}

static void run_era(struct __test_metadata *_metadata, unsigned int era,
		    unsigned int ms, unsigned int rounds)
{
	unsigned int i, end = rounds * (era + 1) / NR_ERAS;

	era_over = 0;
	nr_finished = 0;
	ASSERT_EQ(0, pthread_barrier_init(&start, NULL, NR_THREADS + 1));
	for (i = 0; i < NR_THREADS; i++) {
		threads[i].nr = i;
		threads[i].rounds_end = end;
		ASSERT_EQ(0, pthread_create(&threads[i].pthread, NULL,
					    thread_main, &threads[i]));
	}
	pthread_barrier_wait(&start);
	keeper.rounds_end = (end + 3) / 4;
	disturber.rounds_end = end;
	ASSERT_EQ(0, pthread_create(&keeper.pthread, NULL, keeper_main,
				    &keeper));
	ASSERT_EQ(0, pthread_create(&disturber.pthread, NULL, disturber_main,
				    &disturber));
	if (!rounds)
		sleep_ms(ms);
	__atomic_store_n(&era_over, 1, __ATOMIC_RELEASE);
	join(_metadata, keeper.pthread);
	join(_metadata, disturber.pthread);
	for (i = 0; i < NR_THREADS; i++)
		join(_metadata, threads[i].pthread);
	pthread_barrier_destroy(&start);
}

/* Of the era there is nothing left but its sums. */
static void expect_nothing_left(struct __test_metadata *_metadata, int fds)
{
	__u64 end = now_ms() + DEADLINE_MS;

	while (nr_threads(getpid(), "") > 1 && now_ms() < end)
		sleep_ms(1);
	EXPECT_EQ(1, nr_threads(getpid(), "")) {
		TH_LOG("%d of these are workers", nr_workers());
	}
	EXPECT_EQ(fds, nr_fds());
	EXPECT_EQ(-1, waitpid(-1, NULL, WNOHANG));
}

static void report(struct __test_metadata *_metadata)
{
	unsigned int i;

	for (i = 0; i < NR_THREADS; i++)
		TH_LOG("ring %u: %u rounds, %llu requests, resized %u times, checksum %016llx",
		       i, threads[i].round, threads[i].nr_ops,
		       threads[i].nr_resized, threads[i].checksum);
	TH_LOG("children: %u, checksum %016llx", nr_children, keeper.checksum);
	TH_LOG("affinity: %u, CPUs on or off: %u, checksum %016llx",
	       disturber.round, nr_hotplugs, disturber.checksum);
}

FIXTURE(torture)
{
	int fds;
};

FIXTURE_SETUP(torture)
{
	bool has_ring = false;
	pthread_t pthread;
	unsigned int i;

	find_seed(_metadata);
	for (i = 0; i < NR_FILES; i++) {
		files[i] = memfd_create("torture_test", MFD_CLOEXEC);
		ASSERT_LE(0, files[i]);
	}
	scratch = memfd_create("torture_test", MFD_CLOEXEC);
	ASSERT_LE(0, scratch);
	ASSERT_EQ(0, pipe2(never, O_CLOEXEC));
	ASSERT_EQ(0, pthread_create(&pthread, NULL, probe_main, &has_ring));
	ASSERT_EQ(0, pthread_join(pthread, NULL));
	if (!has_ring)
		SKIP(return, "no io_uring");
	self->fds = nr_fds();
}

FIXTURE_TEARDOWN(torture)
{
}

TEST_F_TIMEOUT(torture, run, 3600)
{
	unsigned int seconds = env_number("IO_URING_TORTURE_SECONDS", 5);
	unsigned int rounds = env_number("IO_URING_TORTURE_ROUNDS", 0);
	unsigned int era;

	for (era = 0; era < NR_ERAS && !stopped(); era++) {
		run_era(_metadata, era, seconds * 1000 / NR_ERAS, rounds);
		if (stopped())
			break;
		expect_nothing_left(_metadata, self->fds);
		count_slabs(era);
	}
	report(_metadata);
	ASSERT_FALSE(trouble) {
		TH_LOG("IO_URING_TEST_SEED=%llu: %s", seed, trouble_text);
	}
	check_slabs(_metadata);
}

/* A seed is good for a replay only if nothing else counts. */
TEST(schedule)
{
	static struct plan plan;
	unsigned int pass, thread, round;
	__u64 sum[3] = {};

	find_seed(_metadata);
	for (pass = 0; pass < ARRAY_SIZE(sum); pass++) {
		seed += pass == 2;
		for (thread = 0; thread < NR_THREADS; thread++)
			for (round = 1; round < 100; round++)
				generate(&plan, thread, round, &sum[pass]);
	}
	EXPECT_EQ(sum[0], sum[1]);
	EXPECT_NE(sum[0], sum[2]);
}

int main(int argc, char **argv)
{
	if (argc == 2 && !strcmp(argv[1], END_ARG))
		return 0;
	return test_harness_run(argc, argv);
}
