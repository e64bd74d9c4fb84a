// SPDX-License-Identifier: GPL-2.0
/*
 * Every request is issued with the credentials of its personality, or with
 * those that its task had when it was submitted, whatever its worker has done
 * before. Whose they are is seen by the owner of a file that it makes, and by
 * who may open one that is root's.
 */
#include "ring.h"

#define ASYNC		IOSQE_ASYNC
#define SOFT		(IOSQE_ASYNC | IOSQE_IO_LINK)
#define HARD		(IOSQE_ASYNC | IOSQE_IO_HARDLINK)

#define NR_USERS	4
#define MAX_FILES	64

/* Not a personality: the credentials of the task. */
#define OWN		NR_USERS

/* Nobody needs to know of them. */
static const uid_t users[NR_USERS] = { 0, 54321, 54322, 54323 };

struct bed {
	struct ring ring;
	struct fifo fifo;
	char secret[64];
	int personality[NR_USERS];
	/* by user_data */
	char path[MAX_FILES][64];
	uid_t uid[MAX_FILES];
	unsigned int nr;
};

#include "bed.h"

/* Root is still there to come back to. */
static int become(uid_t uid)
{
	return seteuid(0) || seteuid(uid) ? -errno : 0;
}

static void bed_init(struct __test_metadata *_metadata, struct bed *bed)
{
	unsigned int i;
	int fd;

	if (geteuid())
		SKIP(return, "not root");
	if (become(users[1]) || become(0))
		SKIP(return, "there is no other user to be");
	ASSERT_EQ(0, fifo_make(&bed->fifo));
	ASSERT_EQ(0, chmod(bed->fifo.dir, 0777));
	ASSERT_EQ(0, chmod(bed->fifo.path, 0666));
	snprintf(bed->secret, sizeof(bed->secret), "%s/secret", bed->fifo.dir);
	fd = open(bed->secret, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	ASSERT_LE(0, fd);
	close(fd);

	for (i = 0; i < NR_USERS; i++) {
		ASSERT_EQ(0, become(users[i]));
		bed->personality[i] = ring_register(&bed->ring,
						    IORING_REGISTER_PERSONALITY,
						    NULL, 0);
		ASSERT_EQ(0, become(0));
		if (bed->personality[i] == -EINVAL)
			SKIP(return, "no personalities");
		ASSERT_LT(0, bed->personality[i]);
	}
}

FIXTURE_TEARDOWN(io_uring)
{
	become(0);
	unlink(self->bed.secret);
	fifo_remove(&self->bed.fifo);
	ring_exit(&self->bed.ring);
}

/* An SQ thread has the credentials of the ring's maker. */
static uid_t uid_of(struct bed *bed, unsigned int user)
{
	if (user != OWN)
		return users[user];
	return bed->ring.flags & IORING_SETUP_SQPOLL ? 0 : geteuid();
}

/* Makes a file, which belongs to @user then. */
static void prep_make(struct bed *bed, unsigned int user, unsigned int flags)
{
	unsigned int nr = bed->nr++;
	struct io_uring_sqe *sqe;

	if (nr >= MAX_FILES)
		abort();
	snprintf(bed->path[nr], sizeof(bed->path[nr]), "%s/%u", bed->fifo.dir,
		 nr);
	bed->uid[nr] = uid_of(bed, user);
	sqe = ring_open(&bed->ring, bed->path[nr],
			O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, flags, nr);
	sqe->len = 0600;
	if (user != OWN)
		sqe->personality = bed->personality[user];
}

/* Opens root's file. */
static void prep_secret(struct bed *bed, unsigned int user, unsigned int flags,
			__u64 user_data)
{
	ring_open(&bed->ring, bed->secret, O_RDONLY | O_CLOEXEC, flags,
		  user_data)->personality = bed->personality[user];
}

static void expect_made(struct __test_metadata *_metadata, struct bed *bed)
{
	struct cqe cqe;
	struct stat st;
	unsigned int i;

	for (i = 0; i < bed->nr; i++) {
		ASSERT_EQ(0, ring_next(&bed->ring, &cqe));
		ASSERT_GT(bed->nr, cqe.user_data);
		ASSERT_LE(0, cqe.res) {
			TH_LOG("%s: %s", bed->path[cqe.user_data],
			       strerror(-cqe.res));
		}
		ASSERT_EQ(0, fstat(cqe.res, &st));
		EXPECT_EQ(bed->uid[cqe.user_data], st.st_uid) {
			TH_LOG("owner of number %llu of %u",
			       (unsigned long long)cqe.user_data, bed->nr);
		}
		close(cqe.res);
	}
	for (i = 0; i < bed->nr; i++)
		ASSERT_EQ(0, unlink(bed->path[i]));
	bed->nr = 0;
}

static void submit_as(struct __test_metadata *_metadata, struct bed *bed,
		      uid_t uid)
{
	ASSERT_EQ(0, become(uid));
	ASSERT_EQ(0, ring_submit(&bed->ring));
	ASSERT_EQ(0, become(0));
}

static void one_worker(struct __test_metadata *_metadata, struct bed *bed)
{
	if (ring_max_workers(&bed->ring, 1, 1))
		SKIP(return, "can't limit workers");
}

/* The only worker there is for the ring, until release_worker(). */
static void block_worker(struct __test_metadata *_metadata, struct bed *bed)
{
	ring_open(&bed->ring, bed->fifo.path, O_RDONLY | O_CLOEXEC, ASYNC,
		  MAX_FILES);
	ASSERT_EQ(0, ring_submit(&bed->ring));
	ring_settle(&bed->ring);
}

static void release_worker(struct __test_metadata *_metadata, struct bed *bed)
{
	struct cqe cqe;
	int fd;

	fd = fifo_release(&bed->fifo);
	ASSERT_LE(0, fd);
	ASSERT_EQ(0, ring_next(&bed->ring, &cqe));
	ASSERT_EQ((__u64)MAX_FILES, cqe.user_data);
	ASSERT_LE(0, cqe.res);
	close(cqe.res);
	close(fd);
}

/* Each kind of credentials after each other one. */
static void prep_all_orders(struct bed *bed, unsigned int nr,
			    const unsigned int *flags, unsigned int nr_flags)
{
	unsigned int i, step, user = 0, made = 0;

	for (step = 1; step <= nr; step++) {
		for (i = 0; i < nr; i++) {
			prep_make(bed, user, flags[made++ % nr_flags]);
			user = (user + step) % nr;
		}
	}
	prep_make(bed, 0, ASYNC);
}

static void run_orders(struct __test_metadata *_metadata, struct bed *bed,
		       const unsigned int *flags, unsigned int nr_flags)
{
	unsigned int i;

	/* including the credentials of the task, or without these */
	for (i = NR_USERS; i <= NR_USERS + 1; i++) {
		ASSERT_EQ(0, become(users[3]));
		prep_all_orders(bed, i, flags, nr_flags);
		submit_as(_metadata, bed, users[3]);
		expect_made(_metadata, bed);
	}
}

TEST_F(io_uring, members)
{
	static const unsigned int soft = SOFT, hard = HARD;

	run_orders(_metadata, &self->bed, &soft, 1);
	run_orders(_metadata, &self->bed, &hard, 1);
}

/* What isn't async is issued by the worker or by the task. */
TEST_F(io_uring, async_and_inline_members)
{
	static const unsigned int flags[] = {
		SOFT, SOFT, IOSQE_IO_LINK, HARD, IOSQE_IO_HARDLINK,
		IOSQE_IO_LINK, SOFT,
	};

	run_orders(_metadata, &self->bed, flags, ARRAY_SIZE(flags));
}

TEST_F(io_uring, unlinked)
{
	static const unsigned int flags[] = { ASYNC, ASYNC, 0 };

	run_orders(_metadata, &self->bed, flags, ARRAY_SIZE(flags));
	one_worker(_metadata, &self->bed);
	run_orders(_metadata, &self->bed, flags, ARRAY_SIZE(flags));
}

/* The one worker goes on with the next link. */
TEST_F(io_uring, links_in_turn)
{
	struct bed *bed = &self->bed;
	unsigned int i;

	one_worker(_metadata, bed);
	for (i = 0; i < 3 * NR_USERS; i++) {
		prep_make(bed, i % NR_USERS, SOFT);
		prep_make(bed, (i + i / NR_USERS + 1) % NR_USERS, ASYNC);
		prep_make(bed, (i + 2) % (NR_USERS + 1), ASYNC);
	}
	submit_as(_metadata, bed, 0);
	expect_made(_metadata, bed);
}

/* Root may, the user may not, and neither makes a difference for the other. */
static void run_secret(struct __test_metadata *_metadata, struct bed *bed,
		       unsigned int flags, bool root_first)
{
	bool failed = false, soft = flags & IOSQE_IO_LINK;
	const unsigned int nr = 6;
	unsigned int i, user;
	struct cqe cqe;
	int res;

	for (i = 0; i < nr; i++)
		prep_secret(bed, i % 2 == root_first,
			    i < nr - 1 ? flags : flags & ASYNC, i);
	ASSERT_EQ(0, ring_submit(&bed->ring));
	for (i = 0; i < nr; i++) {
		user = i % 2 == root_first;
		ASSERT_EQ(0, ring_next(&bed->ring, &cqe));
		EXPECT_EQ(i, cqe.user_data);
		res = user ? -EACCES : 0;
		if (failed && soft)
			res = -ECANCELED;
		EXPECT_EQ(res, cqe.res < 0 ? cqe.res : 0);
		failed |= user;
		if (cqe.res >= 0)
			close(cqe.res);
	}
}

TEST_F(io_uring, denied)
{
	unsigned int i;

	for (i = 0; i < 10; i++) {
		run_secret(_metadata, &self->bed, HARD, i % 2);
		run_secret(_metadata, &self->bed, SOFT, i % 2);
		run_secret(_metadata, &self->bed, IOSQE_IO_HARDLINK, i % 2);
	}
}

/* What the task has become by the time that they are issued doesn't matter. */
TEST_F(io_uring, task_changes)
{
	struct bed *bed = &self->bed;
	unsigned int i;

	one_worker(_metadata, bed);
	block_worker(_metadata, bed);
	for (i = 0; i < 2 * NR_USERS; i++) {
		ASSERT_EQ(0, become(users[i % NR_USERS]));
		prep_make(bed, OWN, SOFT);
		prep_make(bed, i % 3, SOFT);
		prep_make(bed, OWN, IOSQE_IO_LINK);
		prep_make(bed, OWN, ASYNC);
		submit_as(_metadata, bed, users[i % NR_USERS]);
	}
	ASSERT_EQ(0, become(users[2]));
	release_worker(_metadata, bed);
	expect_made(_metadata, bed);
}

/* Requests keep it, but no one else gets it. */
TEST_F(io_uring, unregistered)
{
	struct bed *bed = &self->bed;
	struct cqe cqe;
	unsigned int i;

	one_worker(_metadata, bed);
	block_worker(_metadata, bed);
	for (i = 0; i < NR_USERS; i++)
		prep_make(bed, i, SOFT);
	prep_make(bed, 0, ASYNC);
	ASSERT_EQ(0, ring_submit(&bed->ring));
	for (i = 0; i < NR_USERS; i++)
		ASSERT_EQ(0, ring_register(&bed->ring,
					   IORING_UNREGISTER_PERSONALITY, NULL,
					   bed->personality[i]));
	release_worker(_metadata, bed);
	expect_made(_metadata, bed);

	ring_nop(&bed->ring, SOFT, 0);
	prep_secret(bed, 0, SOFT, 1);
	ring_nop(&bed->ring, ASYNC, 2);
	ASSERT_EQ(0, ring_submit(&bed->ring));
	for (i = 0; i < 3; i++) {
		ASSERT_EQ(0, ring_next(&bed->ring, &cqe));
		EXPECT_EQ(cqe.user_data == 1 ? -EINVAL : -ECANCELED, cqe.res);
	}
}

TEST_HARNESS_MAIN
