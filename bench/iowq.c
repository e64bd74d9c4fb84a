// SPDX-License-Identifier: GPL-2.0
/*
 * What a request costs that goes through io-wq (link, flood, write), and, as
 * the control, what one costs that never does (plain).
 *
 * A case submits a batch of requests, waits for all of them, and repeats that
 * a fixed number of times.  The number is not calibrated by time, so that
 * counts of instructions can be compared between runs.  Time is the median of
 * the rounds; context switches are few and are averaged over all of them.
 */
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>

#include "common.h"

#define NULL_BLK	"/dev/nullb0"
#define BLOCK		512
#define MAX_BATCH	256
#define MAX_FILES	8

struct job;

/* What the requests of a case do. */
struct work {
	void (*open)(struct job *job);	/* sets up job->files and ->buffer */
	void (*prepare)(struct job *job, struct io_uring_sqe *sqe,
			unsigned int i);
	/* If set, called between submitting and waiting: lets them complete. */
	void (*complete)(struct job *job);
	/* If set, called when all are reaped: readies the next batch. */
	void (*reset)(struct job *job);
	unsigned int sqe_flags;
	int result;
};

struct bench_case {
	const char *benchmark;
	const char *name;		/* its last word is the type of ring */
	const struct work *work;
	unsigned int batch;		/* requests submitted at once */
	unsigned int link;		/* requests in a link, 1: unlinked */
	unsigned int files;
	unsigned int batches;		/* in a round, at scale 1 */
};

struct job {
	const struct bench_case *bench;
	struct io_uring ring;
	int files[MAX_FILES];
	char *buffer;
	__u64 first;			/* user_data of the batch's first */
	unsigned int next[MAX_BATCH];	/* expected next, by link */
};

static double scale = 1;

static void prepare_nop(struct job *job, struct io_uring_sqe *sqe,
			unsigned int i)
{
	(void)job;
	(void)i;
	io_uring_prep_nop(sqe);
}

static void make_buffer(struct job *job)
{
	/* O_DIRECT wants it aligned to the device's blocks. */
	job->buffer = aligned_alloc(4096, MAX_BATCH * BLOCK);
	if (!job->buffer)
		die("no memory for the buffer");
	memset(job->buffer, 'x', MAX_BATCH * BLOCK);
}

static void open_files(struct job *job)
{
	const char *dir = getenv("BENCH_DIR");
	char path[4096];
	unsigned int i;

	make_buffer(job);
	snprintf(path, sizeof(path), "%s/iowq-XXXXXX", dir ? dir : "/tmp");
	for (i = 0; i < job->bench->files; i++) {
		/* mkstemp() replaced the Xs of the one before. */
		memset(path + strlen(path) - 6, 'X', 6);
		job->files[i] = mkstemp(path);
		if (job->files[i] < 0)
			die("%s: %s", path, strerror(errno));
		unlink(path);
	}
}

static void prepare_write(struct job *job, struct io_uring_sqe *sqe,
			  unsigned int i)
{
	unsigned int files = job->bench->files;

	io_uring_prep_write(sqe, job->files[i % files],
			    job->buffer + i * BLOCK, BLOCK,
			    (__u64)(i / files) * BLOCK);
}

static void open_null_blk(struct job *job)
{
	make_buffer(job);
	job->files[0] = open(NULL_BLK, O_RDONLY | O_DIRECT);
	if (job->files[0] < 0) {
		fprintf(stderr, "%s: %s: %s: %s, skipped\n",
			program_invocation_short_name, running, NULL_BLK,
			strerror(errno));
		exit(0);
	}
}

static void prepare_read(struct job *job, struct io_uring_sqe *sqe,
			 unsigned int i)
{
	io_uring_prep_read(sqe, job->files[0], job->buffer + i * BLOCK, BLOCK,
			   (__u64)i * BLOCK);
}

static void open_eventfd(struct job *job)
{
	job->files[0] = eventfd(0, 0);
	if (job->files[0] < 0)
		die("eventfd: %s", strerror(errno));
}

static void prepare_poll(struct job *job, struct io_uring_sqe *sqe,
			 unsigned int i)
{
	(void)i;
	io_uring_prep_poll_add(sqe, job->files[0], POLLIN);
}

static void write_eventfd(struct job *job)
{
	if (eventfd_write(job->files[0], 1))
		die("write to the eventfd: %s", strerror(errno));
}

static void read_eventfd(struct job *job)
{
	eventfd_t value;

	if (eventfd_read(job->files[0], &value))
		die("read from the eventfd: %s", strerror(errno));
}

static const struct work async_nop = {
	.prepare = prepare_nop,
	.sqe_flags = IOSQE_ASYNC,
};

static const struct work async_write = {
	.open = open_files,
	.prepare = prepare_write,
	.sqe_flags = IOSQE_ASYNC,
	.result = BLOCK,
};

static const struct work plain_nop = {
	.prepare = prepare_nop,
};

static const struct work plain_poll = {
	.open = open_eventfd,
	.prepare = prepare_poll,
	.complete = write_eventfd,
	.reset = read_eventfd,
	.result = POLLIN,
};

static const struct work plain_read = {
	.open = open_null_blk,
	.prepare = prepare_read,
	.result = BLOCK,
};

/* benchmark, name, work, batch, link, files, batches */
static const struct bench_case cases[] = {
	{ "link", "1 default", &async_nop, 1, 1, 0, 200 },
	{ "link", "1 COOP_TASKRUN", &async_nop, 1, 1, 0, 200 },
	{ "link", "1 DEFER_TASKRUN", &async_nop, 1, 1, 0, 200 },
	{ "link", "10 default", &async_nop, 10, 10, 0, 150 },
	{ "link", "10 COOP_TASKRUN", &async_nop, 10, 10, 0, 150 },
	{ "link", "10 DEFER_TASKRUN", &async_nop, 10, 10, 0, 60 },
	{ "link", "100 default", &async_nop, 100, 100, 0, 20 },
	{ "link", "100 COOP_TASKRUN", &async_nop, 100, 100, 0, 20 },
	{ "link", "100 DEFER_TASKRUN", &async_nop, 100, 100, 0, 5 },
	{ "link", "8x8 default", &async_nop, 64, 8, 0, 30 },
	{ "link", "8x8 COOP_TASKRUN", &async_nop, 64, 8, 0, 30 },
	{ "link", "8x8 DEFER_TASKRUN", &async_nop, 64, 8, 0, 20 },

	{ "flood", "64 default", &async_nop, 64, 1, 0, 30 },
	{ "flood", "64 COOP_TASKRUN", &async_nop, 64, 1, 0, 30 },
	{ "flood", "64 DEFER_TASKRUN", &async_nop, 64, 1, 0, 30 },
	{ "flood", "256 default", &async_nop, 256, 1, 0, 12 },
	{ "flood", "256 COOP_TASKRUN", &async_nop, 256, 1, 0, 12 },
	{ "flood", "256 DEFER_TASKRUN", &async_nop, 256, 1, 0, 12 },

	{ "write", "link 64 default", &async_write, 64, 64, 1, 15 },
	{ "write", "link 64 DEFER_TASKRUN", &async_write, 64, 64, 1, 8 },
	{ "write", "1 file 64 default", &async_write, 64, 1, 1, 15 },
	{ "write", "1 file 64 DEFER_TASKRUN", &async_write, 64, 1, 1, 15 },
	{ "write", "8 files 64 default", &async_write, 64, 1, 8, 15 },
	{ "write", "8 files 64 DEFER_TASKRUN", &async_write, 64, 1, 8, 15 },

	{ "plain", "nop 64 default", &plain_nop, 64, 1, 0, 600 },
	{ "plain", "nop 64 DEFER_TASKRUN", &plain_nop, 64, 1, 0, 600 },
	{ "plain", "poll 1 default", &plain_poll, 1, 1, 0, 200 },
	{ "plain", "poll 1 DEFER_TASKRUN", &plain_poll, 1, 1, 0, 200 },
	{ "plain", "poll 32 default", &plain_poll, 32, 1, 0, 150 },
	{ "plain", "poll 32 DEFER_TASKRUN", &plain_poll, 32, 1, 0, 150 },
	{ "plain", "read null_blk 32 default", &plain_read, 32, 1, 0, 60 },
	{ "plain", "read null_blk 32 DEFER_TASKRUN", &plain_read, 32, 1, 0, 60 },
};

static void submit(struct job *job)
{
	const struct bench_case *bench = job->bench;
	const struct work *work = bench->work;
	struct io_uring_sqe *sqe;
	unsigned int i;
	int ret;

	for (i = 0; i < bench->batch; i++) {
		sqe = get_sqe(&job->ring);
		work->prepare(job, sqe, i);
		sqe->flags |= work->sqe_flags;
		if ((i + 1) % bench->link)
			sqe->flags |= IOSQE_IO_LINK;
		io_uring_sqe_set_data64(sqe, job->first + i);
	}
	if (work->complete)
		ret = io_uring_submit(&job->ring);
	else
		ret = io_uring_submit_and_wait(&job->ring, bench->batch);
	if (ret < 0)
		die("submission: %s", strerror(-ret));
	if ((unsigned int)ret != bench->batch)
		die("submitted %d requests of %u", ret, bench->batch);
}

/* The order within a link is promised; an unlinked request is a link of one. */
static void check(struct job *job, const struct io_uring_cqe *cqe)
{
	const struct bench_case *bench = job->bench;
	__u64 i = cqe->user_data - job->first;

	if (i >= bench->batch)
		die("a CQE of no request in flight, user_data %llu",
		    (unsigned long long)cqe->user_data);
	if (cqe->res != bench->work->result)
		die("request %llu returned %d, not %d",
		    (unsigned long long)i, cqe->res, bench->work->result);
	if (job->next[i / bench->link]++ != i % bench->link)
		die("request %llu completed twice or out of order",
		    (unsigned long long)i);
}

static void reap(struct job *job)
{
	unsigned int left = job->bench->batch;
	struct io_uring_cqe *cqe;
	unsigned int head, seen;
	int ret;

	memset(job->next, 0, left * sizeof(*job->next));
	while (left) {
		ret = io_uring_wait_cqe_nr(&job->ring, &cqe, left);
		if (ret == -EINTR)
			continue;
		if (ret)
			die("wait: %s", strerror(-ret));
		seen = 0;
		io_uring_for_each_cqe(&job->ring, head, cqe) {
			if (seen++ == left)
				die("more CQEs than requests");
			check(job, cqe);
		}
		io_uring_cq_advance(&job->ring, seen);
		left -= seen;
	}
}

static void run_round(struct job *job, unsigned int batches)
{
	const struct work *work = job->bench->work;

	while (batches--) {
		submit(job);
		if (work->complete)
			work->complete(job);
		reap(job);
		if (work->reset)
			work->reset(job);
		job->first += job->bench->batch;
	}
}

/* Includes those of io-wq's workers, which are threads of this process. */
static double context_switches(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_nvcsw + usage.ru_nivcsw;
}

static int is_worker(const char *thread)
{
	char path[300], name[32] = "";
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/task/%s/comm", thread);
	file = fopen(path, "r");
	/* It may have exited since the directory was read. */
	if (!file)
		return 0;
	if (!fgets(name, sizeof(name), file))
		name[0] = '\0';
	fclose(file);
	return !strncmp(name, "iou-wrk-", 8);
}

/* An idle worker stays for seconds, so that this is the peak of the case. */
static int count_workers(void)
{
	DIR *dir = opendir("/proc/self/task");
	struct dirent *entry;
	int workers = 0;

	if (!dir)
		die("/proc/self/task: %s", strerror(errno));
	while ((entry = readdir(dir)))
		workers += is_worker(entry->d_name);
	closedir(dir);
	return workers;
}

static void run_case(const void *arg)
{
	const struct bench_case *bench = arg;
	unsigned int batches = scaled(bench->batches, scale);
	double requests = (double)batches * bench->batch;
	double ns[ROUNDS], switches;
	struct job job = { .bench = bench, .first = 1 };
	unsigned int i;

	if (bench->work->open)
		bench->work->open(&job);
	ring_init(&job.ring, MAX_BATCH, strrchr(bench->name, ' ') + 1);
	run_round(&job, batches);		/* warm-up */
	switches = context_switches();
	for (i = 0; i < ROUNDS; i++) {
		ns[i] = now_ns();
		run_round(&job, batches);
		ns[i] = (now_ns() - ns[i]) / requests;
	}
	switches = (context_switches() - switches) / (ROUNDS * requests);
	if (io_uring_cq_ready(&job.ring))
		die("more CQEs than requests");

	printf("%s,%s,ns,%.1f\n", bench->benchmark, bench->name, median(ns));
	printf("%s,%s,ctxsw,%.4f\n", bench->benchmark, bench->name,
	       switches);
	printf("%s,%s,workers,%d\n", bench->benchmark, bench->name,
	       count_workers());
	io_uring_queue_exit(&job.ring);
	free(job.buffer);
}

_Noreturn static void usage(void)
{
	fprintf(stderr,
		"usage: iowq [-n SCALE] [link|flood|write|plain]...\n"
		"  -n SCALE  scale the fixed counts, by 0.5 or 50%%, say\n");
	exit(2);
}

static int is_benchmark(const char *name)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(cases); i++)
		if (!strcmp(cases[i].benchmark, name))
			return 1;
	return 0;
}

/* Without a choice, all are chosen. */
static int is_chosen(const char *benchmark, char **choice)
{
	if (!*choice)
		return 1;
	for (; *choice; choice++)
		if (!strcmp(*choice, benchmark))
			return 1;
	return 0;
}

static void run_named(const struct bench_case *bench)
{
	char name[80];

	snprintf(name, sizeof(name), "%s %s", bench->benchmark, bench->name);
	run_alone(name, run_case, bench, scale);
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
		if (!is_benchmark(argv[i]))
			usage();
	for (i = 0; i < ARRAY_SIZE(cases); i++)
		if (is_chosen(cases[i].benchmark, argv + optind))
			run_named(&cases[i]);
	return 0;
}
