/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The threads of torture_test.c, each with a ring, and what they check.
 */
#ifndef IO_URING_SELFTEST_TORTURE_RING_H
#define IO_URING_SELFTEST_TORTURE_RING_H

#include <sys/eventfd.h>

#include "torture_plan.h"

#define TICK_MS		2
#define ROUND_MS	(3 * DEADLINE_MS)

/*
 * In user_data. The others tell round, chain and index. A message tells its
 * sender as well, from bit 48 on.
 */
#define ID_MSG		0x8000000000000000ULL
#define ID_NOISE	0x4000000000000000ULL	/* a message that needn't come */
#define ID_END		0x2000000000000000ULL	/* cancels all that is left */

/* What came from a sender. */
struct inbox {
	unsigned int round;
	int last[MAX_CHAINS];
	bool seen[MAX_CHAINS][MAX_OPS];
	unsigned int nr;
};

struct thread {
	unsigned int nr;
	pthread_t pthread;
	pid_t tid;
	struct ring ring;
	struct plan plan;
	unsigned int round;
	unsigned int rounds_end;
	__u64 checksum;
	__u64 nr_ops;
	unsigned int nr_resized;
	bool cancels_all;
	unsigned int nr_ends;
	int event;
	int ring_event;
	unsigned int sent[NR_THREADS];
	struct inbox inbox[NR_THREADS];
};

static struct thread threads[NR_THREADS];
static int files[NR_FILES];
static int scratch;
static int never[2];
static bool can_inject;
static bool can_defer;
static bool can_sync;
static int era_over;
static unsigned int nr_finished;

static const struct __kernel_timespec hour = { .tv_sec = 3600 };
static const struct __kernel_timespec soon = { .tv_nsec = 1000000 };

static bool result_is_good(struct thread *thread, const struct op *op)
{
	int res = op->res;

	if (op->severed)
		return res == -ECANCELED;
	if ((op->victim || thread->cancels_all) && op->kind != LTIMEOUT &&
	    (res == -ECANCELED || res == -EINTR))
		return true;
	switch (op->kind) {
	case NOP_FAILS:
		return res == -EIO;
	case BAD_FD:
		return res == -EBADF;
	case WRITE:
	case READ_EVENT:
		return res == sizeof(op->word);
	case POLL_EVENT:
		return res == POLLIN;
	case TIMEOUT:
		return res == -ETIME && op->arg;
	case CANCEL:
		return res >= 0 || res == -ENOENT || res == -EALREADY;
	case LTIMEOUT:
		return res == -ECANCELED ||
		       (op->arg && (res == -ETIME || res == -EALREADY ||
				    res == -ENOENT));
	default:
		return !res;
	}
}

static __u64 write_offset(struct thread *thread, unsigned int chain,
			  unsigned int index)
{
	return ((thread->nr * MAX_CHAINS + chain) * MAX_OPS + index) *
	       sizeof(__u64);
}

static __u64 op_id(struct thread *thread, unsigned int chain,
		   unsigned int index)
{
	return (__u64)thread->round << 16 | chain << 8 | index;
}

/* Nothing is left of the last round, hence all of it has to be right. */
static void check_round(struct thread *thread)
{
	struct op *op;
	unsigned int i, j;
	__u64 word;

	for (i = 0; i < thread->plan.nr; i++)
		for (j = 0; j < thread->plan.chain[i].nr; j++) {
			op = &thread->plan.chain[i].op[j];
			if (op->seen && !result_is_good(thread, op))
				complain("%s %u/%u/%u of ring %u has %d",
					 names[op->kind], thread->round, i, j,
					 thread->nr, op->res);
			if (!op_succeeded(op))
				continue;
			if (op->kind == MSG)
				thread->sent[op->arg]++;
			if (op->kind == WRITE &&
			    (pread(files[op->arg], &word, sizeof(word),
				   write_offset(thread, i, j)) != sizeof(word) ||
			     word != op->word))
				complain("write %u/%u/%u of ring %u is lost",
					 thread->round, i, j, thread->nr);
		}
}

static void check_message(struct thread *thread, const struct msg_cqe *cqe)
{
	unsigned int sender = cqe->user_data >> 48 & 0xff;
	unsigned int round = cqe->user_data >> 16 & 0xffffffff;
	unsigned int chain = cqe->user_data >> 8 & 0xff;
	unsigned int index = cqe->user_data & 0xff;
	struct inbox *inbox = &thread->inbox[sender];

	if (sender >= NR_THREADS || chain >= MAX_CHAINS || index >= MAX_OPS ||
	    cqe->res != (int)round) {
		complain("not a message: %llx", cqe->user_data);
		return;
	}
	if (round != inbox->round) {
		if (round < inbox->round)
			complain("message %llx came after round %u",
				 cqe->user_data, inbox->round);
		inbox->round = round;
		memset(inbox->last, -1, sizeof(inbox->last));
		memset(inbox->seen, 0, sizeof(inbox->seen));
	}
	if (inbox->seen[chain][index])
		complain("message %llx came twice", cqe->user_data);
	else if ((int)index < inbox->last[chain])
		complain("message %llx was overtaken by %u", cqe->user_data,
			 inbox->last[chain]);
	inbox->seen[chain][index] = true;
	inbox->last[chain] = index;
	inbox->nr++;
}

static void check_cqe(struct thread *thread, const struct msg_cqe *cqe)
{
	unsigned int index = cqe->user_data & 0xff;
	unsigned int nr = cqe->user_data >> 8 & 0xff;
	struct chain *chain;
	struct op *op;

	if (cqe->user_data & ID_MSG) {
		check_message(thread, cqe);
		return;
	}
	if (cqe->user_data & ID_NOISE)
		return;
	if (cqe->user_data & ID_END) {
		thread->nr_ends--;
		return;
	}
	if (cqe->user_data >> 16 != thread->round || nr >= thread->plan.nr ||
	    index >= thread->plan.chain[nr].nr) {
		complain("ring %u: CQE %llx in round %u", thread->nr,
			 cqe->user_data, thread->round);
		return;
	}
	chain = &thread->plan.chain[nr];
	op = &chain->op[index];
	if (op->seen)
		complain("ring %u: two CQEs of %s %llx", thread->nr,
			 names[op->kind], cqe->user_data);
	op->seen = true;
	op->res = cqe->res;
	if (op->kind == LTIMEOUT)
		return;
	if ((int)index < chain->last)
		complain("ring %u: the CQE of %s %llx came after that of %d",
			 thread->nr, names[op->kind], cqe->user_data,
			 chain->last);
	chain->last = index;
}

static void reap(struct thread *thread)
{
	struct msg_cqe cqe;

	while (!stopped() && !msg_next_timeout(&thread->ring, &cqe, 0))
		check_cqe(thread, &cqe);
}

static void wait_a_tick(struct thread *thread)
{
	enum waiting waiting = thread->plan.waiting;
	struct pollfd pfd = { .events = POLLIN };
	__u64 count;

	if (waiting == WAIT_RING) {
		ring_wait(&thread->ring, 1, TICK_MS);
		return;
	}
	if (waiting == WAIT_BUSY) {
		sched_yield();
	} else {
		pfd.fd = waiting == WAIT_POLL ? thread->ring.fd :
						thread->ring_event;
		poll(&pfd, 1, TICK_MS);
		/* there may be none */
		if (read(thread->ring_event, &count, sizeof(count)) < 0)
			count = 0;
	}
	ring_enter(&thread->ring, 0, 0, IORING_ENTER_GETEVENTS, NULL, 0);
}

static void submit_all(struct thread *thread, bool waits)
{
	struct io_uring_getevents_arg arg = { .ts = (unsigned long)&soon };
	struct ring *ring = &thread->ring;
	unsigned int nr;
	int ret;

	if (waits && !(ring->flags & IORING_SETUP_SQPOLL)) {
		__atomic_store_n(ring->sq_tail, ring->sqe_tail,
				 __ATOMIC_RELEASE);
		nr = ring_sq_pending(ring);
		if (!nr)
			return;
		ret = ring_enter(ring, nr, 1 + ring_ready(ring),
				 IORING_ENTER_GETEVENTS | IORING_ENTER_EXT_ARG,
				 &arg, sizeof(arg));
		if (ret != (int)nr)
			complain("ring %u submits %d of %u", thread->nr, ret,
				 nr);
		return;
	}
	ret = ring_submit(ring);
	if (ret)
		complain("ring %u can't submit: %d", thread->nr, ret);
}

static void prep_nop(struct ring *ring, struct op *op, __u64 id)
{
	struct io_uring_sqe *sqe;

	sqe = ring_prep(ring, IORING_OP_NOP, -1, NULL, 0, op->flags, id);
	if (op->kind == NOP_FAILS) {
		sqe->len = -EIO;
		sqe->nop_flags = IORING_NOP_INJECT_RESULT;
	} else if (op->kind == NOP_LATER && can_defer) {
		sqe->nop_flags = IORING_NOP_TW;
	}
}

static struct msg op_msg(struct thread *thread, __u64 id)
{
	return (struct msg){
		.user_data	= ID_MSG | (__u64)thread->nr << 48 | id,
		.res		= thread->round,
	};
}

static void prep_op(struct thread *thread, struct op *op, __u64 id, __u64 off)
{
	const struct __kernel_timespec *ts = op->arg ? &soon : &hour;
	struct ring *ring = &thread->ring;
	struct msg msg;

	switch (op->kind) {
	case BAD_FD:
		ring_bad(ring, op->flags, id);
		break;
	case WRITE:
		op->word = (__u64)thread->nr << 48 | id;
		ring_write(ring, files[op->arg], &op->word, sizeof(op->word),
			   off, op->flags, id);
		break;
	case READ_EVENT:
		ring_read(ring, thread->event, &op->word, sizeof(op->word),
			  op->flags, id);
		break;
	case POLL_EVENT:
		ring_prep(ring, IORING_OP_POLL_ADD, thread->event, NULL, 0,
			  op->flags, id)->poll32_events = POLLIN;
		break;
	case TIMEOUT:
		ring_prep(ring, IORING_OP_TIMEOUT, -1, ts, 1, op->flags, id);
		break;
	case CANCEL:
		ring_prep(ring, IORING_OP_ASYNC_CANCEL, -1, NULL, 0, op->flags,
			  id)->addr = op_id(thread, op->arg >> 8,
					    op->arg & 0xff);
		break;
	case MSG:
		msg = op_msg(thread, id);
		msg_prep(ring, threads[op->arg].ring.fd, &msg, op->flags, id);
		break;
	case LTIMEOUT:
		ring_link_timeout(ring, ts, op->flags, id);
		break;
	default:
		prep_nop(ring, op, id);
	}
}

static void send_sync(struct thread *thread, unsigned int target, __u64 id)
{
	struct msg msg = op_msg(thread, id);
	int ret;

	if (!can_sync)
		return;
	ret = msg_sync(threads[target].ring.fd, &msg);
	if (ret)
		complain("can't send without a ring: %d", ret);
	thread->sent[target]++;
}

static void prep_chain(struct thread *thread, unsigned int nr)
{
	struct chain *chain = &thread->plan.chain[nr];
	struct op *op;
	unsigned int i;

	if (chain->op[0].kind == MSG_SYNC) {
		send_sync(thread, chain->op[0].arg, op_id(thread, nr, 0));
		chain->nr = 0;
		return;
	}
	if (ring_sq_pending(&thread->ring) + chain->nr >
	    thread->ring.sq_mask + 1)
		submit_all(thread, false);
	for (i = 0; i < chain->nr; i++) {
		op = &chain->op[i];
		thread->nr_ops++;
		if (op->kind == NOP_FAILS && !can_inject)
			op->kind = BAD_FD;
		prep_op(thread, op, op_id(thread, nr, i),
			write_offset(thread, nr, i));
	}
}

static void resize(struct thread *thread)
{
	unsigned int entries = 32 << (thread->plan.sizes & 3);
	int ret;

	if (!msg_ring_can_resize(&thread->ring))
		return;
	submit_all(thread, false);
	ret = msg_ring_resize(&thread->ring, entries,
			      entries << (thread->plan.sizes >> 2));
	/* there is no such thing, or too little room */
	if (ret && ret != -EINVAL && ret != -EOVERFLOW)
		complain("ring %u can't be resized: %d", thread->nr, ret);
	thread->nr_resized += !ret;
}

/* Requests of all sorts, whose ring isn't going to wait for them. */
static void busy_work(struct ring *ring, bool parks)
{
	static const char data[4096];
	struct msg noise = { .user_data = ID_NOISE };
	static char c;
	unsigned int i, j;

	for (i = 0; i < NR_THREADS; i++) {
		for (j = 0; j < 6; j++)
			ring_nop(ring, ASYNC | (i % 2 ? HARD : SOFT), j);
		ring_write(ring, scratch, data, sizeof(data), 0, ASYNC | SOFT,
			   j);
		msg_prep(ring, threads[i].ring.fd, &noise,
			 i % 2 ? ASYNC | SOFT : HARD, j);
		ring_write(ring, scratch, data, sizeof(data), 0, ASYNC, j);
		if (!parks)
			continue;
		ring_read(ring, never[0], &c, 1, i % 2 ? ASYNC : 0, j);
		ring_prep(ring, IORING_OP_TIMEOUT, -1, &hour, 1, SOFT, j);
		ring_nop(ring, ASYNC, j);
		ring_splice(ring, never[0], never[1], 1, i % 2 ? ASYNC : 0, j);
	}
}

/* A type that isn't permitted is replaced. */
static int any_ring_init(struct ring *ring, unsigned int type)
{
	int ret = msg_ring_init(ring, thread_flags[type], 128, 128);

	return ret ? msg_ring_init(ring, 0, 128, 128) : ret;
}

static void short_ring(struct plan *plan)
{
	struct ring ring;

	if (any_ring_init(&ring, plan->sizes % NR_THREADS)) {
		complain("no short ring");
		return;
	}
	busy_work(&ring, true);
	if (ring_submit(&ring))
		complain("a short ring can't submit");
	ring_exit(&ring);
}

/* A request that cancels would wait for others, where there is a drain. */
static void cancel_sync(struct thread *thread)
{
	struct io_uring_sync_cancel_reg reg = {
		.flags		= IORING_ASYNC_CANCEL_ANY |
				  IORING_ASYNC_CANCEL_ALL,
		.timeout	= soon,
	};
	int ret;

	ret = ring_register(&thread->ring, IORING_REGISTER_SYNC_CANCEL, &reg,
			    1);
	if (ret < 0 && ret != -ENOENT && ret != -ETIME && ret != -EALREADY)
		complain("ring %u can't cancel: %d", thread->nr, ret);
}

/* What waits for an event gets one, and then everything is cancelled. */
static void end_round(struct thread *thread, unsigned int tick)
{
	static const __u64 one = 1;

	if (write(thread->event, &one, sizeof(one)) != sizeof(one))
		complain("can't write to an eventfd");
	if (tick % 2 || thread->nr_ends)
		return;
	thread->cancels_all = true;
	if (thread->plan.drains) {
		cancel_sync(thread);
		return;
	}
	thread->nr_ends++;
	ring_cancel(&thread->ring, 0,
		    IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL, ID_END);
	submit_all(thread, false);
}

static void complain_missing(struct thread *thread, unsigned int missing)
{
	char text[1500] = "";

	print_missing(&thread->plan, text, sizeof(text));
	complain("ring %u, round %u: no CQE of %u requests, the first in%s",
		 thread->nr, thread->round, missing, text);
}

static void wait_for_round(struct thread *thread)
{
	__u64 start = now_ms();
	unsigned int tick, last = thread->plan.patience, missing;

	for (;;) {
		reap(thread);
		missing = plan_missing(&thread->plan);
		if (stopped() || (!missing && !thread->nr_ends))
			return;
		if (now_ms() - start > ROUND_MS) {
			complain_missing(thread, missing);
			return;
		}
		wait_a_tick(thread);
		tick = (now_ms() - start) / TICK_MS;
		if (tick <= last)
			continue;
		last = tick;
		end_round(thread, tick);
	}
}

static void run_round(struct thread *thread)
{
	struct pollfd pfd = { .fd = thread->event, .events = POLLIN };
	struct plan *plan = &thread->plan;
	unsigned int i;
	__u64 count;

	thread->round++;
	generate(plan, thread->nr, thread->round, &thread->checksum);
	thread->cancels_all = false;
	if (plan->short_ring)
		short_ring(plan);
	for (i = 0; i < plan->nr && !stopped(); i++) {
		prep_chain(thread, i);
		if (plan->resizes && i == plan->nr / 2)
			resize(thread);
	}
	submit_all(thread, plan->submit_waits);
	wait_for_round(thread);
	if (stopped())
		return;
	check_round(thread);
	/* the next round waits for an event again */
	if (poll(&pfd, 1, 0) == 1 &&
	    read(thread->event, &count, sizeof(count)) != sizeof(count))
		complain("can't read an eventfd");
}

/* Everybody has sent what there is to send. */
static void drain(struct thread *thread)
{
	__u64 end = now_ms() + ROUND_MS;
	unsigned int i = 0, sent, got;

	while (i < NR_THREADS && !stopped()) {
		sent = threads[i].sent[thread->nr];
		got = thread->inbox[i].nr;
		if (sent == got) {
			i++;
			continue;
		}
		if (now_ms() > end || got > sent)
			complain("ring %u got %u messages of ring %u, not %u",
				 thread->nr, got, i, sent);
		wait_a_tick(thread);
		reap(thread);
	}
}

static bool is_over(unsigned int round, unsigned int rounds_end)
{
	if (stopped())
		return true;
	return rounds_end ? round >= rounds_end :
			    __atomic_load_n(&era_over, __ATOMIC_ACQUIRE);
}

static int thread_init(struct thread *thread)
{
	int ret = any_ring_init(&thread->ring, thread->nr);

	thread->event = eventfd(0, EFD_CLOEXEC);
	thread->ring_event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (ret || thread->event < 0 || thread->ring_event < 0)
		return ret ?: -EMFILE;
	/* the fewer there are, the more they have to do with each other */
	if (thread->nr % 2)
		ring_max_workers(&thread->ring, thread->nr, thread->nr);
	return ring_register(&thread->ring, IORING_REGISTER_EVENTFD,
			     &thread->ring_event, 1);
}

static pthread_barrier_t start;

static void *thread_main(void *arg)
{
	struct thread *thread = arg;
	int ret = thread_init(thread);

	thread->tid = gettid();
	if (ret)
		complain("no ring %u: %d", thread->nr, ret);
	pthread_barrier_wait(&start);
	while (!is_over(thread->round, thread->rounds_end))
		run_round(thread);

	__atomic_add_fetch(&nr_finished, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&nr_finished, __ATOMIC_SEQ_CST) < NR_THREADS &&
	       !stopped()) {
		wait_a_tick(thread);
		reap(thread);
	}
	drain(thread);
	if (!ret)
		ring_exit(&thread->ring);
	close(thread->event);
	close(thread->ring_event);
	return NULL;
}

#endif
