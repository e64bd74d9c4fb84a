// SPDX-License-Identifier: GPL-2.0
/*
 * Messages between rings: what arrives, in which order, and what the sender is
 * told, for senders and targets of all kinds.
 *
 * What a sender can rely on:
 *
 * 1. A message whose sender was told 0 arrives, once, and is what was sent.
 *    One whose sender was told of an error doesn't arrive.
 * 2. Messages of one submission that aren't IOSQE_ASYNC arrive in the order of
 *    their SQEs. So do those of a link, whatever their flags are, and those
 *    that were sent after the sender had seen the CQE of the one before.
 * 3. The first of these isn't true of a target with IORING_SETUP_IOPOLL: see
 *    msg_ordered().
 * 4. Nor is there an order between data and descriptors, even in a link, where
 *    the target is a DEFER_TASKRUN ring: data are done with once they are
 *    queued, while a descriptor interrupts the target. Only data that follow a
 *    descriptor in a link come after it.
 */
#include <sys/eventfd.h>

#include "msg.h"

#define ASYNC		IOSQE_ASYNC
#define LINK		IOSQE_IO_LINK
#define HARD		IOSQE_IO_HARDLINK
#define SILENT		IOSQE_CQE_SKIP_SUCCESS

/* user_data of what isn't a message */
#define OWN_WORK	0x10000000000ULL

static const struct __kernel_timespec hour = { .tv_sec = 3600 };

static const __u64 datas[] = {
	0, 1, 0xdeadbeef, INT_MAX, 1ULL << 31, UINT_MAX, 1ULL << 32,
	1ULL << 63, ~0ULL - 1, ~0ULL, 0x0123456789abcdefULL,
};

/* Some of these are errors that have a meaning inside the kernel. */
static const int results[] = {
	0, 1, -1, INT_MAX, INT_MIN, -EAGAIN, -ECANCELED, -EINTR, -512, -529,
	-530, -3072, 0x55555555,
};

/* 0 is a message without flags. */
static const unsigned int all_flags[] = {
	0, IORING_CQE_F_BUFFER, 0, IORING_CQE_F_MORE, IORING_CQE_F_NOTIF,
	~CQE_LAYOUT, 0, 1U << 31, 0x12340000, 1U << 16, 0, 0,
};

FIXTURE(target)
{
	struct ring ring;
};

#include "msg_variants.h"

FIXTURE_SETUP(target)
{
	msg_ring_setup(_metadata, &self->ring, variant->flags);
}

FIXTURE_TEARDOWN(target)
{
	if (_metadata->exit_code == KSFT_FAIL && sender_name)
		TH_LOG("the sender was %s", sender_name);
	ring_exit(&self->ring);
}

static struct msg nth_msg(unsigned int i, bool pass)
{
	struct msg msg = {
		.user_data	= datas[i % ARRAY_SIZE(datas)],
		.res		= results[i % ARRAY_SIZE(results)],
	};

	if (pass)
		msg.flags = all_flags[i % ARRAY_SIZE(all_flags)];
	return msg;
}

/* One at a time, and then all together. */
static void send_values(struct __test_metadata *_metadata, struct ring *sender,
			struct ring *target, bool pass)
{
	unsigned int i, nr = 90;
	struct msg msg;

	for (i = 0; i < nr / 3; i++) {
		msg = nth_msg(i, pass);
		msg_prep(sender, target->fd, &msg, i % 7 ? 0 : ASYNC, i);
		submit(_metadata, sender);
		expect_sent(_metadata, sender, i, 0);
		expect_msg(_metadata, target, &msg);
	}
	for (i = 0; i < nr; i++) {
		msg = nth_msg(i, pass);
		msg_prep(sender, target->fd, &msg, i < nr - 1 ? LINK : 0, i);
	}
	submit(_metadata, sender);
	expect_sent_range(_metadata, sender, 0, nr);
	for (i = 0; i < nr; i++) {
		msg = nth_msg(i, pass);
		expect_msg(_metadata, target, &msg);
	}
}

static void send_plain_values(struct __test_metadata *_metadata,
			      struct ring *sender, struct ring *target)
{
	send_values(_metadata, sender, target, false);
}

TEST_F(target, values_arrive_unchanged)
{
	with_every_sender(_metadata, &self->ring, send_plain_values);
}

static void send_flags(struct __test_metadata *_metadata, struct ring *sender,
		       struct ring *target)
{
	send_values(_metadata, sender, target, true);
}

/* Messages without flags don't get those of another. */
TEST_F(target, flags_arrive_with_their_message)
{
	if (!msg_flags_pass_supported())
		SKIP(return, "no IORING_MSG_RING_FLAGS_PASS");
	with_every_sender(_metadata, &self->ring, send_flags);
}

static void send_size_flag(struct __test_metadata *_metadata,
			   struct ring *sender, struct ring *target)
{
	const unsigned int large = IORING_SETUP_CQE32 | IORING_SETUP_CQE_MIXED;
	struct msg msg = { 1, 2, IORING_CQE_F_32 | IORING_CQE_F_MORE };
	int res = target->flags & large ? 0 : -EINVAL;
	unsigned int i;

	for (i = 0; i < 2; i++) {
		msg_prep(sender, target->fd, &msg, i ? ASYNC : 0, i);
		submit(_metadata, sender);
		expect_sent(_metadata, sender, i, res);
		if (!res)
			expect_msg(_metadata, target, &msg);
	}
	if (!msg_sync_supported())
		return;
	EXPECT_EQ(res, msg_sync(target->fd, &msg));
	if (!res)
		expect_msg(_metadata, target, &msg);
}

/* A flag that tells of the CQE's size is refused where none can be large. */
TEST_F(target, size_flag)
{
	if (!msg_ring_supported(IORING_SETUP_CQE_MIXED))
		SKIP(return, "no mixed CQEs");
	with_every_sender(_metadata, &self->ring, send_size_flag);
}

/* In one submission: both sides see their CQEs in its order. */
static void send_batches(struct __test_metadata *_metadata, struct ring *sender,
			 struct ring *target)
{
	static const unsigned int sizes[] = {
		1, 2, 3, 8, 20, 21, 63, 64, 129, 512,
	};
	unsigned int i, j;

	for (i = 0; i < ARRAY_SIZE(sizes); i++) {
		for (j = 0; j < sizes[i]; j++)
			msg_number(sender, target->fd, j, 0);
		submit(_metadata, sender);
		if (msg_ordered(target->flags)) {
			expect_sent_range(_metadata, sender, 0, sizes[i]);
			expect_numbers(_metadata, target, 0, sizes[i]);
		} else {
			expect_any_numbers(_metadata, target, 0, sizes[i]);
			expect_any_sent(_metadata, sender, 0, sizes[i]);
		}
	}
}

TEST_F(target, batches_arrive_in_order)
{
	with_every_sender(_metadata, &self->ring, send_batches);
}

/* Small steps, so that the target always has some and never has all. */
static void send_and_reap_in_turn(struct __test_metadata *_metadata,
				  struct ring *sender, struct ring *target)
{
	unsigned int i, step, sent = 0, reaped = 0;

	for (i = 0; i < 40; i++) {
		step = i * 7 % 11;
		send_numbers(_metadata, sender, target->fd, sent, step);
		sent += step;
		step = i * 5 % 13;
		if (step > sent - reaped)
			step = sent - reaped;
		expect_numbers(_metadata, target, reaped, step);
		reaped += step;
	}
	expect_numbers(_metadata, target, reaped, sent - reaped);
}

TEST_F(target, sent_and_reaped_in_turn)
{
	with_every_sender(_metadata, &self->ring, send_and_reap_in_turn);
}

static void send_async(struct __test_metadata *_metadata, struct ring *sender,
		       struct ring *target)
{
	unsigned int i, nr = 99;

	for (i = 0; i < nr; i++)
		msg_number(sender, target->fd, i, i % 3 ? ASYNC : 0);
	submit(_metadata, sender);
	expect_any_sent(_metadata, sender, 0, nr);
	expect_any_numbers(_metadata, target, 0, nr);
}

TEST_F(target, async_messages_arrive_once)
{
	with_every_sender(_metadata, &self->ring, send_async);
}

/* @length members each, those that @mask selects aren't async. */
static void send_links(struct __test_metadata *_metadata, struct ring *sender,
		       struct ring *target, unsigned int links,
		       unsigned int length, unsigned int mask)
{
	unsigned int next[RING_ENTRIES] = {}, i, j, flags;
	struct msg_cqe cqe;

	for (i = 0; i < links; i++)
		for (j = 0; j < length; j++) {
			flags = j & mask ? 0 : ASYNC;
			if (j < length - 1)
				flags |= i % 2 ? LINK : HARD;
			msg_number(sender, target->fd, i << 16 | j, flags);
		}
	submit(_metadata, sender);
	for (i = 0; i < links * length; i++) {
		ASSERT_EQ(0, msg_next(sender, &cqe));
		ASSERT_GT(links, cqe.user_data >> 16);
		EXPECT_EQ(0, cqe.res);
		EXPECT_EQ(next[cqe.user_data >> 16]++, cqe.user_data & 0xffff);
	}
	memset(next, 0, sizeof(next));
	for (i = 0; i < links * length; i++) {
		ASSERT_EQ(0, msg_next(target, &cqe));
		ASSERT_GT(links, cqe.user_data >> 16);
		EXPECT_EQ((int)cqe.user_data, cqe.res);
		EXPECT_EQ(next[cqe.user_data >> 16]++, cqe.user_data & 0xffff);
	}
}

static void send_links_of_all_kinds(struct __test_metadata *_metadata,
				    struct ring *sender, struct ring *target)
{
	static const unsigned int lengths[] = { 2, 7, 32 };
	/* all are async, every other one, and none */
	static const unsigned int masks[] = { 0, 1, UINT_MAX };
	unsigned int i, j;

	for (i = 0; i < ARRAY_SIZE(lengths); i++)
		for (j = 0; j < ARRAY_SIZE(masks); j++)
			send_links(_metadata, sender, target, 32 / lengths[i],
				   lengths[i], masks[j]);
	send_links(_metadata, sender, target, 1, 128, UINT_MAX);
}

TEST_F(target, links_arrive_in_order)
{
	with_every_sender(_metadata, &self->ring, send_links_of_all_kinds);
}

static void send_failing_link(struct __test_metadata *_metadata,
			      struct ring *sender, struct ring *target,
			      unsigned int flags)
{
	struct msg bad = {};

	msg_number(sender, target->fd, 1, flags | LINK);
	msg_prep(sender, -1, &bad, flags | LINK, 2);
	msg_number(sender, target->fd, 3, flags | LINK);
	msg_number(sender, target->fd, 4, flags);
	submit(_metadata, sender);
	expect_sent(_metadata, sender, 1, 0);
	expect_sent(_metadata, sender, 2, -EBADF);
	expect_sent(_metadata, sender, 3, -ECANCELED);
	expect_sent(_metadata, sender, 4, -ECANCELED);

	msg_number(sender, target->fd, 5, flags | HARD);
	msg_prep(sender, -1, &bad, flags | HARD, 6);
	msg_number(sender, target->fd, 6, flags);
	submit(_metadata, sender);
	expect_sent(_metadata, sender, 5, 0);
	expect_sent(_metadata, sender, 6, -EBADF);
	expect_sent(_metadata, sender, 6, 0);

	/* if it were to arrive, a message that was canceled would do so now */
	expect_numbers(_metadata, target, 1, 1);
	expect_numbers(_metadata, target, 5, 2);
}

static void send_failing_links(struct __test_metadata *_metadata,
			       struct ring *sender, struct ring *target)
{
	send_failing_link(_metadata, sender, target, 0);
	send_failing_link(_metadata, sender, target, ASYNC);
}

TEST_F(target, failing_links)
{
	with_every_sender(_metadata, &self->ring, send_failing_links);
}

static void send_with_timeout(struct __test_metadata *_metadata,
			      struct ring *sender, struct ring *target)
{
	unsigned int i, nr = 16, sent = 0, canceled = 0;
	struct msg_cqe cqe;

	if (sender->flags & IORING_SETUP_IOPOLL)
		return;
	for (i = 0; i < nr; i++) {
		msg_number(sender, target->fd, i,
			   LINK | (i % 2 ? ASYNC : 0));
		ring_link_timeout(sender, &hour, i < nr - 1 ? LINK : 0,
				  OWN_WORK);
	}
	submit(_metadata, sender);
	for (i = 0; i < 2 * nr; i++) {
		ASSERT_EQ(0, msg_next(sender, &cqe));
		if (cqe.user_data == OWN_WORK)
			canceled += cqe.res == -ECANCELED;
		else
			sent += !cqe.res;
	}
	EXPECT_EQ(nr, sent);
	EXPECT_EQ(nr, canceled);
	expect_numbers(_metadata, target, 0, nr);
}

TEST_F(target, links_with_timeouts)
{
	with_every_sender(_metadata, &self->ring, send_with_timeout);
}

/* It is sent when all that came before it is done. */
static void send_drained(struct __test_metadata *_metadata, struct ring *sender,
			 struct ring *target)
{
	unsigned int i, nr = 16;

	for (i = 0; i < nr; i++)
		msg_number(sender, target->fd, i, ASYNC);
	msg_number(sender, target->fd, 100, IOSQE_IO_DRAIN);
	submit(_metadata, sender);
	expect_any_sent(_metadata, sender, 0, nr);
	expect_sent(_metadata, sender, 100, 0);
	expect_any_numbers(_metadata, target, 0, nr);
	expect_numbers(_metadata, target, 100, 1);
}

TEST_F(target, drain)
{
	with_every_sender(_metadata, &self->ring, send_drained);
}

/* The sender hears of failures only. */
static void send_silently(struct __test_metadata *_metadata,
			  struct ring *sender, struct ring *target)
{
	struct msg bad = {};
	unsigned int i;

	for (i = 0; i < 20; i++) {
		msg_number(sender, target->fd, i, SILENT);
		if (i % 5 == 4)
			msg_prep(sender, -1, &bad, SILENT, i);
	}
	submit(_metadata, sender);
	for (i = 4; i < 20; i += 5)
		expect_sent(_metadata, sender, i, -EBADF);
	if (msg_ordered(target->flags))
		expect_numbers(_metadata, target, 0, 20);
	else
		expect_any_numbers(_metadata, target, 0, 20);
}

TEST_F(target, silent_senders)
{
	with_every_sender(_metadata, &self->ring, send_silently);
}

/* Two targets have their own messages only, in the order of the sender. */
static void send_to_two(struct __test_metadata *_metadata, struct ring *sender,
			struct ring *target)
{
	struct ring other;
	unsigned int i, nr = 128;

	ASSERT_EQ(0, msg_ring_init(&other, target->flags, 64, 256));
	for (i = 0; i < nr; i++) {
		msg_number(sender, target->fd, i, LINK);
		msg_number(sender, other.fd, i, i < nr - 1 ? LINK : 0);
	}
	submit(_metadata, sender);
	for (i = 0; i < 2 * nr; i++)
		expect_sent(_metadata, sender, i / 2, 0);
	expect_numbers(_metadata, target, 0, nr);
	expect_numbers(_metadata, &other, 0, nr);
	expect_nothing(_metadata, &other);
	ring_exit(&other);
}

TEST_F(target, two_targets)
{
	with_every_sender(_metadata, &self->ring, send_to_two);
}

TEST_F(target, sync_values_arrive_unchanged)
{
	bool pass = msg_flags_pass_supported();
	unsigned int i, nr = 500;
	struct msg msg;

	if (!msg_sync_supported())
		SKIP(return, "no IORING_REGISTER_SEND_MSG_RING");
	for (i = 0; i < nr; i++) {
		msg = nth_msg(i, pass);
		ASSERT_EQ(0, msg_sync(self->ring.fd, &msg));
		expect_msg(_metadata, &self->ring, &msg);
	}
	for (i = 0; i < nr; i++) {
		msg = nth_msg(i, pass);
		ASSERT_EQ(0, msg_sync(self->ring.fd, &msg));
	}
	for (i = 0; i < nr; i++) {
		msg = nth_msg(i, pass);
		expect_msg(_metadata, &self->ring, &msg);
	}
	expect_nothing(_metadata, &self->ring);
}

static void send_sync_in_turn(struct __test_metadata *_metadata,
			      struct ring *sender, struct ring *target)
{
	unsigned int i, nr = 90;
	struct msg msg = {};

	for (i = 0; i < nr; i++) {
		if (i % 3) {
			msg.user_data = i;
			msg.res = i;
			ASSERT_EQ(0, msg_sync(target->fd, &msg));
			continue;
		}
		msg_number(sender, target->fd, i, i % 2 ? ASYNC : 0);
		submit(_metadata, sender);
		expect_sent(_metadata, sender, i, 0);
	}
	expect_numbers(_metadata, target, 0, nr);
}

TEST_F(target, sync_and_other_messages_in_order)
{
	if (!msg_sync_supported())
		SKIP(return, "no IORING_REGISTER_SEND_MSG_RING");
	with_every_sender(_metadata, &self->ring, send_sync_in_turn);
}

static unsigned int ring_dropped(struct ring *ring, struct io_uring_params *p)
{
	return *(unsigned int *)(ring->ring_map + p->cq_off.overflow);
}

/* Far more than it has room for: they wait outside, and keep their order. */
TEST_F(target, overflow)
{
	struct io_uring_params p = {
		.flags		= variant->flags | IORING_SETUP_CQSIZE,
		.cq_entries	= 4,
	};
	bool pass = msg_flags_pass_supported();
	struct ring sender, target;
	unsigned int i, round, nr = 100;
	struct msg msg;

	ASSERT_EQ(0, msg_ring_init(&sender, 0, RING_ENTRIES, 0));
	ASSERT_EQ(0, msg_ring_init_params(&target, 4, &p));
	for (round = 0; round < 4; round++) {
		for (i = 0; i < nr; i++) {
			msg = nth_msg(i, pass);
			msg_prep(&sender, target.fd, &msg,
				 (i < nr - 1 ? LINK : 0) |
				 (round % 2 ? ASYNC : 0), i);
		}
		submit(_metadata, &sender);
		expect_sent_range(_metadata, &sender, 0, nr);
		msg = nth_msg(0, pass);
		expect_msg(_metadata, &target, &msg);
		EXPECT_TRUE(sq_flag(&target, IORING_SQ_CQ_OVERFLOW));
		for (i = 1; i < nr; i++) {
			msg = nth_msg(i, pass);
			expect_msg(_metadata, &target, &msg);
		}
		expect_nothing(_metadata, &target);
		EXPECT_FALSE(sq_flag(&target, IORING_SQ_CQ_OVERFLOW));
	}
	EXPECT_EQ(0U, ring_dropped(&target, &p));
	ring_exit(&target);
	ring_exit(&sender);
}

/* Into and out of overflow again and again. */
TEST_F(target, overflow_while_reaping)
{
	unsigned int i, step, sent = 0, reaped = 0;
	struct ring sender, target;

	ASSERT_EQ(0, msg_ring_init(&sender, 0, RING_ENTRIES, 0));
	ASSERT_EQ(0, msg_ring_init(&target, variant->flags, 4, 8));
	for (i = 0; i < 200; i++) {
		step = i * 7 % 23;
		send_numbers(_metadata, &sender, target.fd, sent, step);
		sent += step;
		step = i * 5 % 29;
		if (step > sent - reaped)
			step = sent - reaped;
		expect_numbers(_metadata, &target, reaped, step);
		reaped += step;
	}
	expect_numbers(_metadata, &target, reaped, sent - reaped);
	expect_nothing(_metadata, &target);
	ring_exit(&target);
	ring_exit(&sender);
}

/*
 * Large and small CQEs, so that a large one is due at every place, the last one
 * of the ring included, and when there is room for a small one only.
 */
TEST_F(target, large_and_small_cqes)
{
	unsigned int i, step, sent = 0, reaped = 0;
	struct ring sender, target;
	struct msg msg = {};

	if (!msg_ring_supported(IORING_SETUP_CQE_MIXED))
		SKIP(return, "no mixed CQEs");
	if (!(variant->flags & (IORING_SETUP_CQE32 | IORING_SETUP_CQE_MIXED)))
		SKIP(return, "no large CQEs in this ring");
	ASSERT_EQ(0, msg_ring_init(&sender, 0, RING_ENTRIES, 0));
	ASSERT_EQ(0, msg_ring_init(&target, variant->flags, 4, 8));
	for (i = 0; i < 600; i++) {
		for (step = i * 3 % (i < 300 ? 5 : 19); step; step--, sent++) {
			msg.user_data = sent;
			msg.flags = sent * sent % 7 % 3 ? IORING_CQE_F_32 : 0;
			msg_prep(&sender, target.fd, &msg, 0, sent);
			submit(_metadata, &sender);
			expect_sent(_metadata, &sender, sent, 0);
		}
		for (step = i * 7 % 17; step && reaped < sent; step--) {
			msg.user_data = reaped;
			msg.flags = reaped * reaped % 7 % 3 ?
				    IORING_CQE_F_32 : 0;
			expect_msg(_metadata, &target, &msg);
			reaped++;
		}
	}
	for (; reaped < sent; reaped++) {
		msg.user_data = reaped;
		msg.flags = reaped * reaped % 7 % 3 ? IORING_CQE_F_32 : 0;
		expect_msg(_metadata, &target, &msg);
	}
	expect_nothing(_metadata, &target);
	ring_exit(&target);
	ring_exit(&sender);
}

/* More than anything in between would want to keep. */
static void send_many(struct __test_metadata *_metadata, struct ring *sender,
		      struct ring *target)
{
	unsigned int i, sent = 0, nr = 1200;

	while (sent < nr) {
		for (i = 0; i < 300; i++)
			msg_number(sender, target->fd, sent + i, 0);
		submit(_metadata, sender);
		expect_any_sent(_metadata, sender, sent, 300);
		sent += 300;
	}
	if (msg_ordered(target->flags))
		expect_numbers(_metadata, target, 0, nr);
	else
		expect_any_numbers(_metadata, target, 0, nr);
}

TEST_F(target, thousands_in_flight)
{
	with_every_sender(_metadata, &self->ring, send_many);
}

/* What the target does itself, in between. */
struct own_work {
	struct ring *ring;
	int event;
	unsigned int submitted;
	unsigned int done;
};

static void own_submit(struct __test_metadata *_metadata, struct own_work *work)
{
	/* the first one is done at once, those of the others that can be */
	ring_nop(work->ring, 0, OWN_WORK);
	ring_nop(work->ring, ASYNC, OWN_WORK);
	ring_prep(work->ring, IORING_OP_POLL_ADD, work->event, NULL, 0, 0,
		  OWN_WORK)->poll32_events = POLLIN;
	submit(_metadata, work->ring);
	work->submitted += 3;
}

/* One message is due, and maybe own work before it. */
static void own_or_number(struct __test_metadata *_metadata,
			  struct own_work *work, __u64 nr)
{
	struct msg_cqe cqe;

	do {
		ASSERT_EQ(0, msg_next(work->ring, &cqe));
		if (cqe.user_data != OWN_WORK)
			break;
		EXPECT_LE(0, cqe.res);
		work->done++;
	} while (1);
	ASSERT_EQ(nr, cqe.user_data);
	EXPECT_EQ((int)nr, cqe.res);
}

TEST_F(target, between_own_requests)
{
	struct own_work work = { .ring = &self->ring };
	unsigned int i, sent = 0, reaped = 0;
	struct msg_cqe cqe;
	struct ring sender;
	__u64 value = 1;

	if (variant->flags & IORING_SETUP_IOPOLL)
		SKIP(return, "no such requests on IOPOLL rings");
	work.event = eventfd(0, EFD_NONBLOCK);
	ASSERT_LE(0, work.event);
	ASSERT_EQ(0, msg_ring_init(&sender, RING_DEFER, RING_ENTRIES, 0));
	for (i = 0; i < 50; i++) {
		own_submit(_metadata, &work);
		send_numbers(_metadata, &sender, self->ring.fd, sent, 5);
		own_submit(_metadata, &work);
		ASSERT_EQ(8, write(work.event, &value, sizeof(value)));
		send_numbers(_metadata, &sender, self->ring.fd, sent + 5, 20);
		sent += 25;
		if (i % 3 < 2)
			continue;
		while (reaped < sent)
			own_or_number(_metadata, &work, reaped++);
		ASSERT_EQ(8, read(work.event, &value, sizeof(value)));
		value = 1;
	}
	while (reaped < sent)
		own_or_number(_metadata, &work, reaped++);
	while (work.done < work.submitted) {
		ASSERT_EQ(0, msg_next(&self->ring, &cqe));
		EXPECT_EQ(OWN_WORK, cqe.user_data);
		work.done++;
	}
	expect_nothing(_metadata, &self->ring);
	ring_exit(&sender);
	close(work.event);
}

/* A sender that is its own target. */
TEST_F(target, to_oneself)
{
	struct ring *ring = &self->ring;
	bool seen_msg, seen_cqe;
	struct msg_cqe cqe;
	unsigned int i;

	for (i = 1; i < 100; i++) {
		struct msg msg = { .user_data = i, .res = 1000 + i };

		msg_prep(ring, ring->fd, &msg, i % 2 ? ASYNC : 0, 0);
		submit(_metadata, ring);
		seen_msg = false;
		seen_cqe = false;
		while (!seen_msg || !seen_cqe) {
			ASSERT_EQ(0, msg_next(ring, &cqe));
			if (!cqe.user_data) {
				EXPECT_FALSE(seen_cqe);
				EXPECT_EQ(0, cqe.res);
				seen_cqe = true;
			} else {
				EXPECT_FALSE(seen_msg);
				EXPECT_EQ(i, cqe.user_data);
				EXPECT_EQ(msg.res, cqe.res);
				seen_msg = true;
			}
		}
	}
	expect_nothing(_metadata, ring);
}

/* Sent while the waiter of the same ring submits: it is one system call. */
TEST_F(target, to_oneself_and_wait)
{
	struct ring *ring = &self->ring;
	struct msg_cqe cqe;
	int i, j, nr;

	if (variant->flags & (IORING_SETUP_SQPOLL | IORING_SETUP_IOPOLL))
		SKIP(return, "doesn't submit and wait");
	for (i = 0; i < 100; i++) {
		nr = i % 30 + 1;
		for (j = 0; j < nr; j++)
			msg_number(ring, ring->fd, j + 1, SILENT);
		__atomic_store_n(ring->sq_tail, ring->sqe_tail,
				 __ATOMIC_RELEASE);
		ASSERT_EQ(nr, ring_enter(ring, nr, nr, IORING_ENTER_GETEVENTS,
					 NULL, 0));
		ASSERT_EQ(nr, (int)ring_ready(ring));
		for (j = 0; j < nr; j++) {
			ASSERT_EQ(0, msg_next(ring, &cqe));
			EXPECT_EQ(j + 1, (int)cqe.user_data);
		}
	}
	expect_nothing(_metadata, ring);
}

enum fault {
	BAD_FD,
	NO_RING,
	UNKNOWN_FLAG,
	ALL_FLAGS,
	UNKNOWN_COMMAND,
	SKIP_OF_DATA,
	FILE_WITH_DATA,
	FLAGS_WITHOUT_FLAG,
	BUF_INDEX,
	PERSONALITY,
	NR_FAULTS,
};

static int add_fault(struct io_uring_sqe *sqe, enum fault fault, int pipe_fd)
{
	switch (fault) {
	case BAD_FD:
		sqe->fd = -1;
		return -EBADF;
	case NO_RING:
		sqe->fd = pipe_fd;
		return -EBADFD;
	case UNKNOWN_FLAG:
		sqe->msg_ring_flags = 1U << 2;
		return -EINVAL;
	case ALL_FLAGS:
		sqe->msg_ring_flags = ~0U;
		return -EINVAL;
	case UNKNOWN_COMMAND:
		sqe->addr = IORING_MSG_SEND_FD + 1;
		return -EINVAL;
	case SKIP_OF_DATA:
		sqe->msg_ring_flags = IORING_MSG_RING_CQE_SKIP;
		return -EINVAL;
	case FILE_WITH_DATA:
		sqe->addr3 = 1;
		return -EINVAL;
	case FLAGS_WITHOUT_FLAG:
		sqe->file_index = 1;
		return -EINVAL;
	case BUF_INDEX:
		sqe->buf_index = 1;
		return -EINVAL;
	case PERSONALITY:
		sqe->personality = 1;
		return -EINVAL;
	default:
		return 0;
	}
}

/* Whether it is known to be one, and what it does otherwise. */
static bool fault_exists(enum fault fault)
{
	return fault != FLAGS_WITHOUT_FLAG || msg_flags_pass_supported();
}

static void send_faults(struct __test_metadata *_metadata, struct ring *sender,
			struct ring *target)
{
	struct msg msg = { .user_data = 4711 };
	struct io_uring_sqe *sqe;
	enum fault fault;
	unsigned int i;
	int ret, fds[2];

	ASSERT_EQ(0, pipe(fds));
	for (i = 0; i < 2 * NR_FAULTS; i++) {
		fault = i / 2;
		if (!fault_exists(fault))
			continue;
		sqe = msg_prep(sender, target->fd, &msg, i % 2 ? ASYNC : 0, i);
		ret = add_fault(sqe, fault, fds[1]);
		submit(_metadata, sender);
		expect_sent(_metadata, sender, i, ret);
	}
	msg_number(sender, target->fd, 1, 0);
	submit(_metadata, sender);
	expect_sent(_metadata, sender, 1, 0);
	expect_numbers(_metadata, target, 1, 1);
	close(fds[0]);
	close(fds[1]);
}

TEST_F(target, faults)
{
	with_every_sender(_metadata, &self->ring, send_faults);
}

TEST_F(target, sync_faults)
{
	struct msg msg = { .user_data = 4711 };
	struct io_uring_sqe sqe;
	unsigned int i;
	int ret, fds[2];

	if (!msg_sync_supported())
		SKIP(return, "no IORING_REGISTER_SEND_MSG_RING");
	ASSERT_EQ(0, pipe(fds));
	for (i = 0; i < NR_FAULTS; i++) {
		memset(&sqe, 0, sizeof(sqe));
		msg_fill(&sqe, self->ring.fd, &msg);
		ret = add_fault(&sqe, i, fds[1]);
		EXPECT_EQ(ret, msg_register_blind(IORING_REGISTER_SEND_MSG_RING,
						  &sqe, 1));
	}
	memset(&sqe, 0, sizeof(sqe));
	msg_fill(&sqe, self->ring.fd, &msg);
	EXPECT_EQ(-EINVAL, msg_register_blind(IORING_REGISTER_SEND_MSG_RING,
					      &sqe, 2));
	EXPECT_EQ(-EINVAL, msg_register_blind(IORING_REGISTER_SEND_MSG_RING,
					      NULL, 1));
	sqe.flags = ASYNC;
	EXPECT_EQ(-EINVAL, msg_register_blind(IORING_REGISTER_SEND_MSG_RING,
					      &sqe, 1));
	sqe.flags = 0;
	sqe.opcode = IORING_OP_NOP;
	EXPECT_EQ(-EINVAL, msg_register_blind(IORING_REGISTER_SEND_MSG_RING,
					      &sqe, 1));
	sqe.opcode = IORING_OP_MSG_RING;
	sqe.addr = IORING_MSG_SEND_FD;
	EXPECT_EQ(-EINVAL, msg_register_blind(IORING_REGISTER_SEND_MSG_RING,
					      &sqe, 1));
	expect_nothing(_metadata, &self->ring);
	close(fds[0]);
	close(fds[1]);
}

/* Nobody owns the ring yet. Of what was sent too early nothing arrives. */
TEST_F(target, disabled)
{
	struct msg early = { .user_data = 4711 };
	struct ring sender, target;
	int fds[] = { -1, -1 };
	unsigned int i;

	if (kernel_before(6, 3))
		SKIP(return, "messages to disabled rings weren't refused");
	ASSERT_EQ(0, msg_ring_init(&sender, 0, 64, 0));
	ASSERT_EQ(0, pipe(fds));
	ASSERT_EQ(0, ring_register(&sender, IORING_REGISTER_FILES, fds, 2));
	ASSERT_EQ(0, msg_ring_init(&target,
				   variant->flags | IORING_SETUP_R_DISABLED,
				   64, 0));
	for (i = 0; i < 4; i++) {
		msg_prep(&sender, target.fd, &early, i % 2 ? ASYNC : 0, i);
		submit(_metadata, &sender);
		expect_sent(_metadata, &sender, i, -EBADFD);
		msg_prep_fd(&sender, target.fd, 1, 0, 4711, i % 2 ? ASYNC : 0,
			    i);
		submit(_metadata, &sender);
		expect_sent(_metadata, &sender, i, -EBADFD);
	}
	if (msg_sync_supported())
		EXPECT_EQ(-EBADFD, msg_sync(target.fd, &early));
	ASSERT_EQ(0, ring_register(&target, IORING_REGISTER_ENABLE_RINGS, NULL,
				   0));
	send_numbers(_metadata, &sender, target.fd, 1, 5);
	expect_numbers(_metadata, &target, 1, 5);
	expect_nothing(_metadata, &target);
	ring_exit(&target);
	ring_exit(&sender);
}

/* Some are in the CQ ring, some are on their way to it. */
TEST_F(target, resized_while_in_flight)
{
	static const unsigned int sizes[] = { 256, 64, 2048, 128, 64, 1024 };
	unsigned int i, sent = 0, reaped = 0;
	struct ring sender, target;

	if (!msg_ring_can_resize(&self->ring))
		SKIP(return, "can't be resized");
	ASSERT_EQ(0, msg_ring_init(&sender, 0, RING_ENTRIES, 0));
	ASSERT_EQ(0, msg_ring_init(&target, variant->flags, 32, 64));
	if (msg_ring_resize(&target, 32, 64) == -EINVAL)
		SKIP(return, "no IORING_REGISTER_RESIZE_RINGS");
	for (i = 0; i < 24; i++) {
		send_numbers(_metadata, &sender, target.fd, sent, 40);
		sent += 40;
		ASSERT_EQ(0, msg_ring_resize(&target, 32,
					     sizes[i % ARRAY_SIZE(sizes)])) {
			TH_LOG("step %u", i);
		}
		expect_numbers(_metadata, &target, reaped, 30);
		reaped += 30;
		if (i % 6 == 1 || i % 6 == 4) {
			expect_numbers(_metadata, &target, reaped,
				       sent - reaped);
			reaped = sent;
		}
	}
	expect_numbers(_metadata, &target, reaped, sent - reaped);
	expect_nothing(_metadata, &target);
	ring_exit(&target);
	ring_exit(&sender);
}

/* The target learns from its memory that it should enter the kernel. */
TEST_F(target, taskrun_flag)
{
	unsigned int flags = variant->flags | IORING_SETUP_TASKRUN_FLAG;
	struct ring sender, target;
	unsigned int i;

	if (!(variant->flags & IORING_SETUP_DEFER_TASKRUN) ||
	    (variant->flags & IORING_SETUP_IOPOLL))
		SKIP(return, "messages need no task work");
	if (kernel_before(6, 2))
		SKIP(return, "messages needed no task work");
	ASSERT_EQ(0, msg_ring_init(&sender, 0, 64, 0));
	ASSERT_EQ(0, msg_ring_init(&target, flags, 64, 0));
	for (i = 0; i < 50; i++) {
		EXPECT_FALSE(sq_flag(&target, IORING_SQ_TASKRUN));
		send_numbers(_metadata, &sender, target.fd, i, 1);
		EXPECT_TRUE(sq_flag(&target, IORING_SQ_TASKRUN));
		EXPECT_EQ(0U, ring_ready(&target));
		expect_numbers(_metadata, &target, i, 1);
	}
	ring_exit(&target);
	ring_exit(&sender);
}

TEST_HARNESS_MAIN
