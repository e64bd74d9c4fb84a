/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What the tests of MSG_RING share: rings of any kind and size, messages, and
 * CQEs of either size.
 */
#ifndef IO_URING_SELFTEST_MSG_H
#define IO_URING_SELFTEST_MSG_H

#include <pthread.h>
#include <sched.h>

#include "ring.h"

/* In a message's flags, these two mean something to a ring of mixed CQEs. */
#define CQE_LAYOUT	(IORING_CQE_F_32 | IORING_CQE_F_SKIP)

struct ring_type {
	const char *name;
	unsigned int flags;
};

static const struct ring_type sender_types[] = {
	{ "plain",		0 },
	{ "coop",		IORING_SETUP_COOP_TASKRUN },
	{ "defer",		RING_DEFER },
	{ "sqpoll",		IORING_SETUP_SQPOLL },
	{ "iopoll",		IORING_SETUP_IOPOLL },
	{ "iopoll defer",	IORING_SETUP_IOPOLL | RING_DEFER },
};

struct msg {
	__u64 user_data;
	int res;
	/* only with IORING_MSG_RING_FLAGS_PASS */
	unsigned int flags;
};

struct msg_cqe {
	__u64 user_data;
	int res;
	unsigned int flags;
	/* zero unless the CQE is a large one */
	__u64 big[2];
};

/*
 * Such a target is locked by its sender. A message that finds it locked is sent
 * again by io-wq, and the next one may come first.
 */
static inline bool msg_ordered(unsigned int target_flags)
{
	return !(target_flags & IORING_SETUP_IOPOLL);
}

static inline int msg_ring_init_params(struct ring *ring, unsigned int entries,
				       struct io_uring_params *p)
{
	const unsigned int needed = IORING_FEAT_SINGLE_MMAP |
				    IORING_FEAT_EXT_ARG | IORING_FEAT_NODROP;
	int ret;

	memset(ring, 0, sizeof(*ring));
	ring->flags = p->flags;
	p->sq_thread_idle = 5;
	ring->fd = syscall(__NR_io_uring_setup, entries, p);
	if (ring->fd < 0)
		return -errno;
	ret = -EOPNOTSUPP;
	if ((p->features & needed) == needed)
		ret = ring_map(ring, p);
	if (ret) {
		close(ring->fd);
		return ret;
	}
	/* what the kernel doesn't write is seen */
	memset(ring->cqes, 0xa5, (ring->cq_mask + 1UL) *
	       (sizeof(*ring->cqes) << ring->cqe_shift));
	return 0;
}

/* @cq_entries of 0: as many as the kernel likes. */
static inline int msg_ring_init(struct ring *ring, unsigned int flags,
				unsigned int entries, unsigned int cq_entries)
{
	struct io_uring_params p = {
		.flags		= flags,
		.cq_entries	= cq_entries,
	};

	if (cq_entries)
		p.flags |= IORING_SETUP_CQSIZE;
	return msg_ring_init_params(ring, entries, &p);
}

/* For a fixture's setup. */
static inline void msg_ring_setup(struct __test_metadata *_metadata,
				  struct ring *ring, unsigned int flags)
{
	int ret = msg_ring_init(ring, flags, RING_ENTRIES, 0);

	if (ret)
		SKIP(return, "no ring with flags %#x: %s", flags,
		     strerror(-ret));
}

static inline bool msg_ring_can_resize(struct ring *ring)
{
	return (ring->flags & IORING_SETUP_DEFER_TASKRUN) &&
	       !(ring->flags & IORING_SETUP_IOPOLL);
}

/* Fails with -EOVERFLOW, and changes nothing, if there are too many CQEs. */
static inline int msg_ring_resize(struct ring *ring, unsigned int entries,
				  unsigned int cq_entries)
{
	struct io_uring_params p = {
		.flags		= IORING_SETUP_CQSIZE,
		.sq_entries	= entries,
		.cq_entries	= cq_entries,
	};
	int ret;

	ret = ring_register(ring, IORING_REGISTER_RESIZE_RINGS, &p, 1);
	if (ret < 0)
		return ret;
	munmap(ring->sqes, ring->sqes_size);
	munmap(ring->ring_map, ring->ring_size);
	p.flags = ring->flags;
	return ring_map(ring, &p);
}

static inline bool msg_ring_supported(unsigned int flags)
{
	struct ring ring;

	if (msg_ring_init(&ring, flags, 1, 0))
		return false;
	ring_exit(&ring);
	return true;
}

static inline void msg_fill(struct io_uring_sqe *sqe, int target,
			    const struct msg *msg)
{
	sqe->opcode = IORING_OP_MSG_RING;
	sqe->fd = target;
	sqe->addr = IORING_MSG_DATA;
	sqe->off = msg->user_data;
	sqe->len = msg->res;
	if (msg->flags) {
		sqe->msg_ring_flags = IORING_MSG_RING_FLAGS_PASS;
		sqe->file_index = msg->flags;
	}
}

static inline struct io_uring_sqe *
msg_prep(struct ring *ring, int target, const struct msg *msg,
	 unsigned int sqe_flags, __u64 user_data)
{
	struct io_uring_sqe *sqe = ring_get_sqe(ring);

	msg_fill(sqe, target, msg);
	sqe->flags = sqe_flags;
	sqe->user_data = user_data;
	return sqe;
}

/* A message that is known by its number. */
static inline void msg_number(struct ring *ring, int target, __u64 nr,
			      unsigned int sqe_flags)
{
	struct msg msg = {
		.user_data	= nr,
		.res		= nr,
	};

	msg_prep(ring, target, &msg, sqe_flags, nr);
}

/* From the fixed file @from to that of the target. */
static inline struct io_uring_sqe *
msg_prep_fd(struct ring *ring, int target, unsigned int from, unsigned int to,
	    __u64 data, unsigned int sqe_flags, __u64 user_data)
{
	struct io_uring_sqe *sqe = ring_get_sqe(ring);

	sqe->opcode = IORING_OP_MSG_RING;
	sqe->fd = target;
	sqe->addr = IORING_MSG_SEND_FD;
	sqe->addr3 = from;
	sqe->file_index = to == IORING_FILE_INDEX_ALLOC ? to : to + 1;
	sqe->off = data;
	sqe->flags = sqe_flags;
	sqe->user_data = user_data;
	return sqe;
}

static inline int msg_register_blind(unsigned int op, void *arg,
				     unsigned int nr)
{
	return syscall(__NR_io_uring_register, -1, op, arg, nr) < 0 ? -errno :
								      0;
}

/* Without a ring. */
static inline int msg_sync(int target, const struct msg *msg)
{
	struct io_uring_sqe sqe = {};

	msg_fill(&sqe, target, msg);
	return msg_register_blind(IORING_REGISTER_SEND_MSG_RING, &sqe, 1);
}

static inline bool msg_sync_supported(void)
{
	struct msg msg = {};

	return msg_sync(-1, &msg) == -EBADF;
}

static inline int msg_next_timeout(struct ring *ring, struct msg_cqe *cqe,
				   unsigned int ms)
{
	unsigned int head, nr;
	struct io_uring_cqe *src;
	bool large, skip;
	int ret;

	do {
		ret = ring_wait(ring, 1, ms);
		if (ret)
			return ret;
		head = *ring->cq_head;
		src = &ring->cqes[(head & ring->cq_mask) << ring->cqe_shift];
		memset(cqe, 0, sizeof(*cqe));
		cqe->user_data = src->user_data;
		cqe->res = src->res;
		cqe->flags = src->flags;
		nr = 1;
		large = ring->cqe_shift;
		skip = false;
		if (ring->flags & IORING_SETUP_CQE_MIXED) {
			large = src->flags & IORING_CQE_F_32;
			skip = src->flags & IORING_CQE_F_SKIP;
			nr += large;
		}
		if (large)
			memcpy(cqe->big, src->big_cqe, sizeof(cqe->big));
		__atomic_store_n(ring->cq_head, head + nr, __ATOMIC_RELEASE);
	} while (skip);
	return 0;
}

static inline int msg_next(struct ring *ring, struct msg_cqe *cqe)
{
	return msg_next_timeout(ring, cqe, DEADLINE_MS);
}

static inline bool sq_flag(struct ring *ring, unsigned int flag)
{
	return __atomic_load_n(ring->sq_flags, __ATOMIC_ACQUIRE) & flag;
}

static inline bool msg_flags_pass_supported(void)
{
	struct msg msg = { .flags = IORING_CQE_F_MORE };
	struct msg_cqe cqe;
	struct ring ring;
	bool has = true;
	int i;

	if (msg_ring_init(&ring, 0, 4, 0))
		return false;
	msg_prep(&ring, ring.fd, &msg, 0, 1);
	ring_submit(&ring);
	for (i = 0; i < 2; i++)
		if (msg_next_timeout(&ring, &cqe, i ? 0 : DEADLINE_MS) ||
		    cqe.res < 0)
			has = false;
	ring_exit(&ring);
	return has;
}

static inline void expect_msg(struct __test_metadata *_metadata,
			      struct ring *ring, const struct msg *msg)
{
	struct msg_cqe cqe;

	ASSERT_EQ(0, msg_next(ring, &cqe)) {
		TH_LOG("message %#llx is missing",
		       (unsigned long long)msg->user_data);
	}
	ASSERT_EQ(msg->user_data, cqe.user_data);
	EXPECT_EQ(msg->res, cqe.res);
	EXPECT_EQ(msg->flags, cqe.flags);
	EXPECT_EQ(0U, cqe.big[0] | cqe.big[1]) {
		TH_LOG("something is left in a large CQE");
	}
}

/* Messages @first to @first + @nr - 1 of msg_number(). */
static inline void expect_numbers(struct __test_metadata *_metadata,
				  struct ring *ring, __u64 first,
				  unsigned int nr)
{
	struct msg msg = {};
	unsigned int i;

	for (i = 0; i < nr; i++) {
		msg.user_data = first + i;
		msg.res = first + i;
		expect_msg(_metadata, ring, &msg);
	}
}

/* Likewise, but in any order. */
static inline void expect_any_numbers(struct __test_metadata *_metadata,
				      struct ring *ring, __u64 first,
				      unsigned int nr)
{
	bool *seen = calloc(nr, sizeof(*seen));
	struct msg_cqe cqe;
	unsigned int i;

	ASSERT_NE(NULL, seen);
	for (i = 0; i < nr; i++) {
		ASSERT_EQ(0, msg_next(ring, &cqe)) {
			TH_LOG("%u of %u messages are missing", nr - i, nr);
		}
		ASSERT_LE(first, cqe.user_data);
		ASSERT_GT(first + nr, cqe.user_data);
		EXPECT_FALSE(seen[cqe.user_data - first]) {
			TH_LOG("message %llu came twice",
			       (unsigned long long)cqe.user_data);
		}
		seen[cqe.user_data - first] = true;
		EXPECT_EQ((int)cqe.user_data, cqe.res);
		EXPECT_EQ(0U, cqe.flags);
		EXPECT_EQ(0U, cqe.big[0] | cqe.big[1]);
	}
	free(seen);
}

/* The sender's own CQE. */
static inline void expect_sent(struct __test_metadata *_metadata,
			       struct ring *ring, __u64 user_data, int res)
{
	struct msg_cqe cqe;

	ASSERT_EQ(0, msg_next(ring, &cqe)) {
		TH_LOG("no CQE of the sender for %llu",
		       (unsigned long long)user_data);
	}
	ASSERT_EQ(user_data, cqe.user_data);
	EXPECT_EQ(res, cqe.res) {
		TH_LOG("result of %llu", (unsigned long long)user_data);
	}
	EXPECT_EQ(0U, cqe.flags);
}

static inline void expect_sent_range(struct __test_metadata *_metadata,
				     struct ring *ring, __u64 first,
				     unsigned int nr)
{
	unsigned int i;

	for (i = 0; i < nr; i++)
		expect_sent(_metadata, ring, first + i, 0);
}

/* Likewise, but in any order. */
static inline void expect_any_sent(struct __test_metadata *_metadata,
				   struct ring *ring, __u64 first,
				   unsigned int nr)
{
	bool *seen = calloc(nr, sizeof(*seen));
	struct msg_cqe cqe;
	unsigned int i;

	ASSERT_NE(NULL, seen);
	for (i = 0; i < nr; i++) {
		ASSERT_EQ(0, msg_next(ring, &cqe));
		ASSERT_LE(first, cqe.user_data);
		ASSERT_GT(first + nr, cqe.user_data);
		EXPECT_FALSE(seen[cqe.user_data - first]);
		seen[cqe.user_data - first] = true;
		EXPECT_EQ(0, cqe.res);
	}
	free(seen);
}

/* They are sent when this is back, and keep their order in any target. */
static inline void send_numbers(struct __test_metadata *_metadata,
				struct ring *ring, int target, __u64 first,
				unsigned int nr)
{
	unsigned int i;

	for (i = 0; i < nr; i++)
		msg_number(ring, target, first + i,
			   i < nr - 1 ? IOSQE_IO_LINK : 0);
	ASSERT_EQ(0, ring_submit(ring));
	expect_sent_range(_metadata, ring, first, nr);
}

static inline void expect_nothing(struct __test_metadata *_metadata,
				  struct ring *ring)
{
	struct msg_cqe cqe;

	EXPECT_EQ(-ETIME, msg_next_timeout(ring, &cqe, 1)) {
		TH_LOG("unexpected: %#llx, %d, %#x",
		       (unsigned long long)cqe.user_data, cqe.res, cqe.flags);
	}
}

static inline void submit(struct __test_metadata *_metadata,
			  struct ring *ring)
{
	ASSERT_EQ(0, ring_submit(ring));
}

/* The one in use, if the sender is one of many. */
static const char *sender_name;

typedef void (*send_fn)(struct __test_metadata *_metadata, struct ring *sender,
			struct ring *target);

static inline void with_senders(struct __test_metadata *_metadata,
				struct ring *target, send_fn send,
				unsigned int nr)
{
	struct ring sender;
	unsigned int i;

	for (i = 0; i < nr; i++) {
		sender_name = sender_types[i].name;
		ASSERT_EQ(0, msg_ring_init(&sender, sender_types[i].flags,
					   RING_ENTRIES, 0));
		send(_metadata, &sender, target);
		expect_nothing(_metadata, &sender);
		ring_exit(&sender);
	}
	expect_nothing(_metadata, target);
}

static inline void with_every_sender(struct __test_metadata *_metadata,
				     struct ring *target, send_fn send)
{
	with_senders(_metadata, target, send, ARRAY_SIZE(sender_types));
}

#endif
