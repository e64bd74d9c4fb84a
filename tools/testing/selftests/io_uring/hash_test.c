// SPDX-License-Identifier: GPL-2.0
/*
 * Async writes to one file are hashed work: they are done by few workers, and
 * neither mix up links nor keep other work from running.
 */
#include <pthread.h>

#include "ring.h"
#include "uffd.h"

#define ASYNC		IOSQE_ASYNC
#define SOFT		(IOSQE_ASYNC | IOSQE_IO_LINK)

#define RECORD		16
#define CHAINS		8
#define WRITES		6
#define SINGLES		64U
#define NR_RECORDS	(CHAINS * WRITES + SINGLES)

#define MAX_FILES	4
#define MANY_WORKERS	8

#define NOP_ID		(~0ULL)

#define FLOOD		32
#define OTHERS		64
#define FLOOD_ID	1000

struct bed {
	struct ring ring;
	int file[MAX_FILES];
};

#include "bed.h"

static void bed_init(struct __test_metadata *_metadata, struct bed *bed)
{
	unsigned int i;

	for (i = 0; i < MAX_FILES; i++) {
		bed->file[i] = memfd_create("hash_test", MFD_CLOEXEC);
		ASSERT_LE(0, bed->file[i]);
	}
}

FIXTURE_TEARDOWN(io_uring)
{
	ring_exit(&self->bed.ring);
}

static void one_worker(struct __test_metadata *_metadata, struct bed *bed)
{
	if (ring_max_workers(&bed->ring, 1, 1))
		SKIP(exit(KSFT_SKIP), "can't limit workers");
}

/* @nr requests end, each write with @res. */
static void expect_all(struct __test_metadata *_metadata, struct bed *bed,
		       unsigned int nr, int res)
{
	struct cqe cqe;

	while (nr--) {
		ASSERT_EQ(0, ring_next(&bed->ring, &cqe)) {
			TH_LOG("%u more were expected", nr + 1);
		}
		EXPECT_EQ(cqe.user_data == NOP_ID ? 0 : res, cqe.res) {
			TH_LOG("result of %llx", cqe.user_data);
		}
	}
}

static void prep_record(struct bed *bed, char (*record)[RECORD],
			unsigned int index, unsigned int flags)
{
	snprintf(record[index], RECORD, "%15u", index);
	ring_write(&bed->ring, bed->file[0], record[index], RECORD, 0, flags,
		   index);
}

/* The position of each record in the file. Each is there, and once. */
static void find_records(struct __test_metadata *_metadata, struct bed *bed,
			 unsigned int *where)
{
	char record[RECORD];
	unsigned int i, index;

	memset(where, 0xff, NR_RECORDS * sizeof(*where));
	for (i = 0; i < NR_RECORDS; i++) {
		ASSERT_EQ(RECORD, pread(bed->file[0], record, RECORD,
					i * RECORD));
		index = strtoul(record, NULL, 10);
		ASSERT_GT(NR_RECORDS, index);
		EXPECT_EQ(UINT_MAX, where[index]);
		where[index] = i;
	}
	EXPECT_EQ(0, pread(bed->file[0], record, RECORD, i * RECORD));
}

/*
 * Chains of appending writes, their heads being something else, among others
 * without a link.
 */
static void append_records(struct __test_metadata *_metadata, struct bed *bed)
{
	static char record[NR_RECORDS][RECORD];
	unsigned int i, j, where[NR_RECORDS];

	for (i = 0; i < CHAINS; i++) {
		ring_nop(&bed->ring, SOFT, NOP_ID);
		for (j = 0; j < WRITES; j++)
			prep_record(bed, record, i * WRITES + j,
				    j < WRITES - 1 ? SOFT : ASYNC);
		for (j = 0; j < SINGLES / CHAINS; j++)
			prep_record(bed, record,
				    CHAINS * WRITES + i * SINGLES / CHAINS + j,
				    ASYNC);
	}
	ASSERT_EQ(0, ring_submit(&bed->ring));
	expect_all(_metadata, bed, NR_RECORDS + CHAINS, RECORD);

	find_records(_metadata, bed, where);
	for (i = 0; i < CHAINS; i++)
		for (j = 1; j < WRITES; j++)
			EXPECT_GT(where[i * WRITES + j],
				  where[i * WRITES + j - 1]);
	ASSERT_EQ(0, ftruncate(bed->file[0], 0));
}

TEST_F(io_uring, appended_in_order)
{
	struct bed *bed = &self->bed;
	unsigned int i;

	ASSERT_EQ(0, fcntl(bed->file[0], F_SETFL, O_APPEND));
	for (i = 0; i < 20; i++)
		append_records(_metadata, bed);
}

/*
 * Each chain has a place of its own in each of the files. What its last write
 * left there is what must be in it.
 */
static void write_across(struct __test_metadata *_metadata, struct bed *bed,
			 unsigned int files)
{
	static unsigned int value[CHAINS][16];
	unsigned int i, j, found;

	for (i = 0; i < CHAINS; i++) {
		for (j = 0; j < 16; j++) {
			value[i][j] = i << 8 | j;
			ring_write(&bed->ring, bed->file[(i + j) % files],
				   &value[i][j], sizeof(value[i][j]),
				   i * sizeof(value[i][j]),
				   j < 15 ? SOFT : ASYNC, i << 8 | j);
		}
	}
	ASSERT_EQ(0, ring_submit(&bed->ring));
	expect_all(_metadata, bed, CHAINS * 16, sizeof(found));

	for (i = 0; i < CHAINS; i++) {
		for (j = 16 - files; j < 16; j++) {
			ASSERT_EQ((ssize_t)sizeof(found),
				  pread(bed->file[(i + j) % files], &found,
					sizeof(found), i * sizeof(found)));
			EXPECT_EQ(value[i][j], found);
		}
	}
}

TEST_F(io_uring, chains_across_files)
{
	unsigned int i;

	for (i = 0; i < 20; i++)
		write_across(_metadata, &self->bed, 1 + i % MAX_FILES);
}

TEST_F(io_uring, chains_across_files_one_worker)
{
	unsigned int i;

	one_worker(_metadata, &self->bed);
	for (i = 0; i < 20; i++)
		write_across(_metadata, &self->bed, 1 + i % MAX_FILES);
}

/*
 * Whoever adds to a queue that nobody looks at makes a worker, but a worker
 * that can't do anything stays around for whoever comes next.
 */
TEST_F(io_uring, few_workers)
{
	static char data[4096];
	struct bed *bed = &self->bed;
	unsigned int i, round;
	int now, most = 0;

	for (round = 0; round < 100; round++) {
		for (i = 0; i < SINGLES; i++)
			ring_write(&bed->ring, bed->file[0], data, sizeof(data),
				   i * sizeof(data), ASYNC, i);
		ASSERT_EQ(0, ring_submit(&bed->ring));
		now = nr_workers();
		if (now > most)
			most = now;
		expect_all(_metadata, bed, SINGLES, sizeof(data));
	}
	EXPECT_LT(0, most);
	EXPECT_GE(MANY_WORKERS, most);
}

/* What is queued for the file that a worker writes to doesn't jump the queue. */
TEST_F(io_uring, in_turn)
{
	struct uffd uffd = { .fd = -1 };
	struct bed *bed = &self->bed;
	struct ring *ring = &bed->ring;
	struct cqe cqe;
	unsigned int i;

	one_worker(_metadata, bed);
	if (uffd_init(&uffd))
		SKIP(return, "no userfaultfd");
	ring_write(ring, bed->file[0], uffd.page, 1, 0, ASYNC, 0);
	ASSERT_EQ(0, ring_submit(ring));
	ASSERT_EQ(0, uffd_wait(&uffd));
	ring_nop(ring, ASYNC, 1);
	ring_write(ring, bed->file[0], "x", 1, 0, ASYNC, 2);
	ring_nop(ring, ASYNC, 3);
	ASSERT_EQ(0, ring_submit(ring));
	ring_settle(ring);
	ASSERT_EQ(0, uffd_release(&uffd));
	for (i = 0; i < 4; i++) {
		ASSERT_EQ(0, ring_next(ring, &cqe));
		EXPECT_EQ(i, cqe.user_data);
	}
	uffd_exit(&uffd);
}

static void prep_flood(struct bed *bed, unsigned int nr)
{
	static char data[4096];

	while (nr--)
		ring_write(&bed->ring, bed->file[0], data, sizeof(data), 0,
			   ASYNC, FLOOD_ID);
}

/* Any of the flood that ends is replaced, until all others have ended. */
static void run_flood(struct __test_metadata *_metadata, struct bed *bed,
		      unsigned int others)
{
	__u64 end = now_ms() + DEADLINE_MS;
	unsigned int flood = FLOOD;
	struct cqe cqe;

	while (flood || others) {
		ASSERT_EQ(0, ring_next(&bed->ring, &cqe));
		EXPECT_LE(0, cqe.res);
		if (cqe.user_data != FLOOD_ID) {
			others--;
			continue;
		}
		flood--;
		if (!others || now_ms() > end)
			continue;
		prep_flood(bed, 1);
		flood++;
		ASSERT_EQ(0, ring_submit(&bed->ring));
	}
	EXPECT_GT(end, now_ms()) {
		TH_LOG("it took the end of the flood");
	}
}

/* Work of another file, and some that isn't hashed, has its turn as well. */
static void run_fair(struct __test_metadata *_metadata, struct bed *bed)
{
	static char data[4096];
	unsigned int i, round;

	for (round = 0; round < 5; round++) {
		prep_flood(bed, FLOOD);
		ASSERT_EQ(0, ring_submit(&bed->ring));
		for (i = 0; i < OTHERS; i++) {
			ring_write(&bed->ring, bed->file[1], data, sizeof(data),
				   0, ASYNC, i);
			ring_nop(&bed->ring, i % 4 ? SOFT : ASYNC, i);
		}
		ring_nop(&bed->ring, ASYNC, i);
		ASSERT_EQ(0, ring_submit(&bed->ring));
		run_flood(_metadata, bed, 2 * OTHERS + 1);
	}
}

TEST_F(io_uring, fair)
{
	run_fair(_metadata, &self->bed);
}

TEST_F(io_uring, fair_one_worker)
{
	one_worker(_metadata, &self->bed);
	run_fair(_metadata, &self->bed);
}

struct other_task {
	struct bed *bed;
	int start[2];
	int done[2];
	int ret;
};

static void *other_task(void *arg)
{
	struct other_task *other = arg;
	static char data[4096];
	unsigned int i;
	char c;

	for (i = 0; i < OTHERS; i++)
		ring_write(&other->bed->ring, other->bed->file[0], data,
			   sizeof(data), 0, ASYNC, i);
	other->ret = ring_submit(&other->bed->ring);
	/* its workers go when it goes, and so would its requests */
	if (write(other->start[1], "", 1) != 1 ||
	    read(other->done[0], &c, 1) != 1)
		other->ret = -errno;
	return NULL;
}

/*
 * The workers of another task wait for the same file, which is held until they
 * do. Only the rings without a thread or a task of their own have requests of
 * several tasks.
 */
TEST_F(io_uring, fair_to_other_task)
{
	struct bed *bed = &self->bed;
	struct other_task other = { .bed = bed };
	struct uffd uffd = { .fd = -1 };
	pthread_t thread;
	char c;

	if (variant->flags & (IORING_SETUP_SQPOLL | RING_DEFER))
		SKIP(return, "one task submits");
	if (uffd_init(&uffd))
		SKIP(return, "no userfaultfd");
	ASSERT_EQ(0, pipe(other.start));
	ASSERT_EQ(0, pipe(other.done));
	ring_write(&bed->ring, bed->file[0], uffd.page, 1, 0, ASYNC, FLOOD_ID);
	ASSERT_EQ(0, ring_submit(&bed->ring));
	ASSERT_EQ(0, uffd_wait(&uffd));
	prep_flood(bed, FLOOD - 1);
	ASSERT_EQ(0, ring_submit(&bed->ring));
	ASSERT_EQ(0, pthread_create(&thread, NULL, other_task, &other));
	ASSERT_EQ(1, read(other.start[0], &c, 1));
	ring_settle(&bed->ring);
	ASSERT_EQ(0, uffd_release(&uffd));
	run_flood(_metadata, bed, OTHERS);
	ASSERT_EQ(1, write(other.done[1], "", 1));
	ASSERT_EQ(0, pthread_join(thread, NULL));
	EXPECT_EQ(0, other.ret);
	uffd_exit(&uffd);
}

TEST_HARNESS_MAIN
