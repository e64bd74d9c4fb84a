// SPDX-License-Identifier: GPL-2.0
/*
 * A request that has finished holds nothing while its worker goes on, be it
 * with the rest of the link or with other work. A write has the last reference
 * to the write end of a pipe, to a registered file or to a registered buffer.
 * The reader has to see the end of file, or the ring the tag of the resource,
 * while what comes next on the worker isn't anywhere near its end. Likewise the
 * next write to a regular file has to go on.
 */
#include <sys/uio.h>

#include "ring.h"
#include "uffd.h"

#define ASYNC		IOSQE_ASYNC
#define TAG		4711

/* user_data */
#define LEAD		0
#define WRITE		1
#define NEXT		2
#define NR_IDS		3

/* no CQE so far */
#define NONE		INT_MIN

/* 2 GB of random numbers take seconds */
#define CHUNK		(2 << 20)

/* What is going to be released. */
enum held {
	FILE_REF,
	FIXED_FILE,
	FIXED_BUF,
};

/* What the worker goes on with. */
enum next {
	OPEN,		/* blocks the worker */
	SPLICE,		/* likewise, and its file isn't a regular one */
	READ,		/* of an empty pipe, waits without a worker */
	BUSY,		/* neither blocks nor ends for a long time */
};

struct bed {
	struct ring ring;
	struct fifo fifo;
	int data[2];
	int empty[2];
	int out[2];
	int random;
	char *chunk;
	struct iovec iov[UIO_MAXIOV];
	char byte[4096];
	int res[NR_IDS];
	bool tag_seen;
};

#include "bed.h"

static void bed_init(struct __test_metadata *_metadata, struct bed *bed)
{
	unsigned int i;

	ASSERT_EQ(0, fifo_make(&bed->fifo));
	ASSERT_EQ(0, pipe(bed->empty));
	ASSERT_EQ(0, pipe(bed->out));
	bed->random = open("/dev/urandom", O_RDONLY);
	ASSERT_LE(0, bed->random);
	bed->chunk = malloc(CHUNK);
	ASSERT_NE(NULL, bed->chunk);
	for (i = 0; i < UIO_MAXIOV; i++) {
		bed->iov[i].iov_base = bed->chunk;
		bed->iov[i].iov_len = CHUNK;
	}
}

FIXTURE_TEARDOWN(io_uring)
{
	fifo_remove(&self->bed.fifo);
	ring_exit(&self->bed.ring);
}

static int register_buffer(struct bed *bed)
{
	struct iovec iov = {
		.iov_base	= bed->byte,
		.iov_len	= sizeof(bed->byte),
	};
	__u64 tag = TAG;
	struct io_uring_rsrc_register reg = {
		.nr	= 1,
		.data	= (unsigned long)&iov,
		.tags	= (unsigned long)&tag,
	};

	return ring_register(&bed->ring, IORING_REGISTER_BUFFERS2, &reg,
			     sizeof(reg));
}

static int drop_buffer(struct bed *bed)
{
	struct iovec iov = {};
	__u64 tag = 0;
	struct io_uring_rsrc_update2 update = {
		.nr	= 1,
		.data	= (unsigned long)&iov,
		.tags	= (unsigned long)&tag,
	};
	int ret;

	ret = ring_register(&bed->ring, IORING_REGISTER_BUFFERS_UPDATE, &update,
			    sizeof(update));
	return ret == 1 ? 0 : ret;
}

static int drop_file(struct bed *bed)
{
	int none = -1;
	struct io_uring_files_update update = {
		.fds	= (unsigned long)&none,
	};
	int ret;

	ret = ring_register(&bed->ring, IORING_REGISTER_FILES_UPDATE, &update,
			    1);
	return ret == 1 ? 0 : ret;
}

static void prep_write(struct bed *bed, enum held held, unsigned int flags)
{
	if (held == FIXED_FILE)
		ring_write(&bed->ring, 0, bed->byte, 1, 0,
			   flags | IOSQE_FIXED_FILE, WRITE);
	else
		ring_write(&bed->ring, bed->data[1], bed->byte, 1, 0, flags,
			   WRITE);
	if (held == FIXED_BUF)
		bed->ring.sqes[(bed->ring.sqe_tail - 1) & bed->ring.sq_mask]
			.opcode = IORING_OP_WRITE_FIXED;
}

static void prep_next(struct bed *bed, enum next next)
{
	struct ring *ring = &bed->ring;

	switch (next) {
	case OPEN:
		ring_open(ring, bed->fifo.path, O_RDONLY, ASYNC, NEXT);
		break;
	case SPLICE:
		ring_splice(ring, bed->empty[0], bed->out[1], 1, ASYNC, NEXT);
		break;
	case READ:
		ring_read(ring, bed->empty[0], bed->byte, 1, ASYNC, NEXT);
		break;
	case BUSY:
		ring_prep(ring, IORING_OP_READV, bed->random, bed->iov,
			  UIO_MAXIOV, ASYNC, NEXT);
		break;
	}
}

static void note_cqe(struct __test_metadata *_metadata, struct bed *bed,
		     struct cqe *cqe)
{
	if (cqe->user_data == TAG) {
		bed->tag_seen = true;
		return;
	}
	ASSERT_GT(NR_IDS, (int)cqe->user_data);
	bed->res[cqe->user_data] = cqe->res;
}

static void collect(struct __test_metadata *_metadata, struct bed *bed,
		    unsigned int ms)
{
	struct cqe cqe;

	while (!ring_next_timeout(&bed->ring, &cqe, ms))
		note_cqe(_metadata, bed, &cqe);
}

/*
 * What blocks can go on now. What is busy is told to stop, again and again as
 * kernels before 7.3 may miss it.
 */
static void end_next(struct __test_metadata *_metadata, struct bed *bed,
		     enum next next)
{
	__u64 end = now_ms() + DEADLINE_MS;
	int fd = -1;

	if (next == OPEN)
		fd = fifo_release(&bed->fifo);
	else if (next != BUSY)
		ASSERT_EQ(1, write(bed->empty[1], "", 1));
	while (bed->res[NEXT] == NONE && now_ms() < end) {
		if (next == BUSY)
			ring_cancel(&bed->ring, NEXT, 0, LEAD);
		ASSERT_EQ(0, ring_submit(&bed->ring));
		collect(_metadata, bed, 5);
	}
	EXPECT_NE(NONE, bed->res[NEXT]);

	if (next == OPEN) {
		close(bed->res[NEXT]);
		close(fd);
	}
}

/* From here on, the write has the only reference that there is, if any. */
static void drop_ours(struct __test_metadata *_metadata, struct bed *bed,
		      enum held held)
{
	ASSERT_EQ(0, close(bed->data[1]));
	if (held == FIXED_FILE)
		ASSERT_EQ(0, drop_file(bed));
	if (held == FIXED_BUF)
		ASSERT_EQ(0, drop_buffer(bed));
}

/* The data has arrived, it is followed by the end of file. */
static bool pipe_ended(struct __test_metadata *_metadata, struct bed *bed,
		       enum held held)
{
	struct pollfd pfd = {
		.fd	= bed->data[0],
		.events	= POLLIN,
	};
	char c;
	int ret;

	if (poll(&pfd, 1, 10) != 1)
		return false;
	ret = read(bed->data[0], &c, 1);
	ASSERT_LE(0, ret);
	if (ret == 1)
		drop_ours(_metadata, bed, held);
	return !ret;
}

/*
 * Where completions are for the application to run, it runs them, as any
 * application would that waits for them. Elsewhere it has no need to.
 */
static void expect_release(struct __test_metadata *_metadata, struct bed *bed,
			   enum held held)
{
	bool own_work = bed->ring.flags & IORING_SETUP_DEFER_TASKRUN;
	__u64 end = now_ms() + DEADLINE_MS;
	bool ended = false, done = false;

	while (!done && now_ms() < end) {
		if (!ended)
			ended = pipe_ended(_metadata, bed, held);
		if (own_work || held == FIXED_BUF)
			collect(_metadata, bed, 1);
		done = ended && (held != FIXED_BUF || bed->tag_seen);
	}
	EXPECT_TRUE(done) {
		TH_LOG("end of file: %d, tag: %d", ended, bed->tag_seen);
	}
}

static void acquire(struct __test_metadata *_metadata, struct bed *bed,
		    enum held held)
{
	int ret = 0;

	ASSERT_EQ(0, pipe(bed->data));
	if (held == FIXED_FILE)
		ret = ring_register(&bed->ring, IORING_REGISTER_FILES,
				    &bed->data[1], 1);
	else if (held == FIXED_BUF)
		ret = register_buffer(bed);
	if (ret == -EINVAL)
		SKIP(exit(KSFT_SKIP), "no tags of resources");
	ASSERT_EQ(0, ret);
}

static void unregister(struct __test_metadata *_metadata, struct bed *bed,
		       enum held held)
{
	int ret = 0;

	if (held == FIXED_FILE)
		ret = ring_register(&bed->ring, IORING_UNREGISTER_FILES, NULL,
				    0);
	else if (held == FIXED_BUF)
		ret = ring_register(&bed->ring, IORING_UNREGISTER_BUFFERS, NULL,
				    0);
	ASSERT_EQ(0, ret);
	close(bed->data[0]);
}

static void run_chain(struct __test_metadata *_metadata, struct bed *bed,
		      enum held held, enum next next, bool lead,
		      unsigned int flags)
{
	unsigned int i;

	bed->tag_seen = false;
	for (i = 0; i < NR_IDS; i++)
		bed->res[i] = NONE;
	acquire(_metadata, bed, held);

	if (lead)
		ring_nop(&bed->ring, ASYNC | IOSQE_IO_LINK, LEAD);
	prep_write(bed, held, ASYNC | flags);
	prep_next(bed, next);
	ASSERT_EQ(0, ring_submit(&bed->ring));
	expect_release(_metadata, bed, held);
	collect(_metadata, bed, 0);
	EXPECT_EQ(NONE, bed->res[NEXT]) {
		TH_LOG("not before the end of what came next");
	}
	if (!(flags & IOSQE_CQE_SKIP_SUCCESS))
		EXPECT_EQ(1, bed->res[WRITE]);

	end_next(_metadata, bed, next);
	unregister(_metadata, bed, held);
}

static void run_links(struct __test_metadata *_metadata, struct bed *bed,
		      enum held held, enum next next)
{
	unsigned int i, flags;

	for (i = 0; i < 8 && !_metadata->exit_code; i++) {
		flags = i & 1 ? IOSQE_IO_HARDLINK : IOSQE_IO_LINK;
		if (i & 2)
			flags |= IOSQE_CQE_SKIP_SUCCESS;
		run_chain(_metadata, bed, held, next, i & 4, flags);
	}
}

TEST_F(io_uring, file_then_open)
{
	run_links(_metadata, &self->bed, FILE_REF, OPEN);
}

TEST_F(io_uring, file_then_splice)
{
	run_links(_metadata, &self->bed, FILE_REF, SPLICE);
}

TEST_F(io_uring, file_then_read)
{
	run_links(_metadata, &self->bed, FILE_REF, READ);
}

TEST_F(io_uring, file_then_busy)
{
	run_links(_metadata, &self->bed, FILE_REF, BUSY);
}

TEST_F(io_uring, fixed_file_then_open)
{
	run_links(_metadata, &self->bed, FIXED_FILE, OPEN);
}

TEST_F(io_uring, fixed_file_then_busy)
{
	run_links(_metadata, &self->bed, FIXED_FILE, BUSY);
}

TEST_F(io_uring, fixed_buf_then_open)
{
	run_links(_metadata, &self->bed, FIXED_BUF, OPEN);
}

TEST_F(io_uring, fixed_buf_then_busy)
{
	run_links(_metadata, &self->bed, FIXED_BUF, BUSY);
}

/* No link, but the only worker there is for either. */
TEST_F(io_uring, file_then_other_work)
{
	struct bed *bed = &self->bed;

	if (ring_max_workers(&bed->ring, 1, 1))
		SKIP(return, "can't limit workers");
	run_chain(_metadata, bed, FILE_REF, SPLICE, false, 0);
	run_chain(_metadata, bed, FILE_REF, BUSY, false, 0);
}

/* The second write is queued while the first one is held back. */
static void run_writes(struct __test_metadata *_metadata, struct bed *bed,
		       enum next next)
{
	int file = memfd_create("hold_test", MFD_CLOEXEC);
	__u64 end = now_ms() + DEADLINE_MS;
	struct uffd uffd = { .fd = -1 };
	unsigned int i;

	ASSERT_LE(0, file);
	if (uffd_init(&uffd))
		SKIP(return, "no userfaultfd");
	for (i = 0; i < NR_IDS; i++)
		bed->res[i] = NONE;
	ring_write(&bed->ring, file, uffd.page, 1, 0, ASYNC | IOSQE_IO_LINK,
		   LEAD);
	prep_next(bed, next);
	ASSERT_EQ(0, ring_submit(&bed->ring));
	ASSERT_EQ(0, uffd_wait(&uffd));
	ring_write(&bed->ring, file, bed->byte, 1, 0, ASYNC, WRITE);
	ASSERT_EQ(0, ring_submit(&bed->ring));
	ring_settle(&bed->ring);
	ASSERT_EQ(0, uffd_release(&uffd));
	while (bed->res[WRITE] == NONE && now_ms() < end)
		collect(_metadata, bed, 1);
	EXPECT_EQ(1, bed->res[WRITE]);
	EXPECT_EQ(NONE, bed->res[NEXT]);
	end_next(_metadata, bed, next);
	uffd_exit(&uffd);
	close(file);
}

TEST_F(io_uring, write_then_open)
{
	run_writes(_metadata, &self->bed, OPEN);
}

TEST_F(io_uring, write_then_busy)
{
	if (kernel_before(7, 3))
		SKIP(return, "before 7.3, the next write may wait for 5 s");
	run_writes(_metadata, &self->bed, BUSY);
}

TEST_HARNESS_MAIN
