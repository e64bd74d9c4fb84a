/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a round of torture_test.c is going to do, and how many CQEs that has.
 */
#ifndef IO_URING_SELFTEST_TORTURE_PLAN_H
#define IO_URING_SELFTEST_TORTURE_PLAN_H

#include <stdarg.h>

#include "msg.h"

#define ASYNC		IOSQE_ASYNC
#define SOFT		IOSQE_IO_LINK
#define HARD		IOSQE_IO_HARDLINK
#define SKIP_CQE	IOSQE_CQE_SKIP_SUCCESS

#define MAX_CHAINS	16
/* each may have a timeout */
#define MAX_MEMBERS	8
#define MAX_OPS		(2 * MAX_MEMBERS)
#define NR_FILES	2

static const unsigned int thread_flags[] = {
	0,
	IORING_SETUP_COOP_TASKRUN,
	RING_DEFER,
	IORING_SETUP_SQPOLL,
	RING_DEFER | IORING_SETUP_TASKRUN_FLAG,
	IORING_SETUP_SINGLE_ISSUER,
};

#define NR_THREADS	ARRAY_SIZE(thread_flags)

enum kind {
	NOP,
	NOP_LATER,
	NOP_FAILS,
	BAD_FD,
	WRITE,		/* all to a few files */
	READ_EVENT,	/* of an eventfd that nobody has written to yet */
	POLL_EVENT,
	TIMEOUT,
	CANCEL,
	MSG,
	MSG_SYNC,	/* without a ring */
	LTIMEOUT,	/* belongs to the one before */
};

static const char * const names[] = {
	"nop", "nop-later", "nop-fails", "bad-fd", "write", "read-event",
	"poll-event", "timeout", "cancel", "msg", "msg-sync", "link-timeout",
};

struct op {
	enum kind kind;
	unsigned int flags;
	/* target, file, what is cancelled, or whether a timeout is short */
	unsigned int arg;
	/* somebody may cancel it */
	bool victim;
	/* what it reads or writes */
	__u64 word;
	bool severed;
	bool seen;
	int res;
};

struct chain {
	struct op op[MAX_OPS];
	unsigned int nr;
	int last;
};

enum waiting { WAIT_RING, WAIT_POLL, WAIT_EVENTFD, WAIT_BUSY, NR_WAITING };

/* Of one round of one thread. */
struct plan {
	struct chain chain[MAX_CHAINS];
	unsigned int nr;
	enum waiting waiting;
	bool submit_waits;
	bool drains;
	/* has requests that need time, or somebody else */
	bool parks;
	bool resizes;
	bool short_ring;
	unsigned int sizes;
	/* ticks until what hangs around is brought to an end */
	unsigned int patience;
};

static __u64 seed;
static int stop;
static int trouble;
static char trouble_text[2000];

/* The first one wins, and everybody stops. */
static __printf(1, 2) void complain(const char *fmt, ...)
{
	va_list args;

	if (!__atomic_exchange_n(&trouble, 1, __ATOMIC_SEQ_CST)) {
		va_start(args, fmt);
		vsnprintf(trouble_text, sizeof(trouble_text), fmt, args);
		va_end(args);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_SEQ_CST);
}

static bool stopped(void)
{
	return __atomic_load_n(&stop, __ATOMIC_ACQUIRE);
}

/* xorshift64* */
static unsigned int rnd(__u64 *state, unsigned int below)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return (*state * 2685821657736338717ULL >> 32) % below;
}

static bool chance(__u64 *state, unsigned int percent)
{
	return rnd(state, 100) < percent;
}

static __u64 rnd_start(unsigned int who, unsigned int round)
{
	__u64 x = seed ^ ((__u64)who << 32 | round) * 0x9e3779b97f4a7c15ULL;

	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
	return (x ^ x >> 31) | 1;
}

/* FNV-1a */
static void checksum_add(__u64 *sum, __u64 value)
{
	*sum = (*sum ^ value) * 0x100000001b3ULL;
}

static enum kind random_kind(__u64 *random, bool parks)
{
	static const struct {
		enum kind kind;
		unsigned int percent;
	} odds[] = {
		{ NOP_LATER, 8 }, { NOP_FAILS, 3 }, { BAD_FD, 2 },
		{ WRITE, 20 }, { CANCEL, 4 }, { MSG, 20 }, { NOP, 36 },
		{ READ_EVENT, 2 }, { POLL_EVENT, 2 }, { TIMEOUT, 3 },
	};
	unsigned int i, n = rnd(random, parks ? 100 : 93);

	for (i = 0; i < ARRAY_SIZE(odds); i++) {
		if (n < odds[i].percent)
			return odds[i].kind;
		n -= odds[i].percent;
	}
	return NOP;
}

static unsigned int random_arg(__u64 *random, enum kind kind)
{
	switch (kind) {
	case MSG:
	case MSG_SYNC:
		return rnd(random, NR_THREADS);
	case WRITE:
		return rnd(random, NR_FILES);
	case TIMEOUT:
		return chance(random, 70);
	case CANCEL:
		return rnd(random, MAX_CHAINS) << 8 | rnd(random, MAX_OPS);
	default:
		return 0;
	}
}

static unsigned int random_link(__u64 *random)
{
	return chance(random, 65) ? SOFT : HARD;
}

/* The last of a chain always has a CQE, or nobody would know its end. */
static unsigned int random_skip(__u64 *random, struct plan *plan, bool last)
{
	return !plan->drains && !last && chance(random, 25) ? SKIP_CQE : 0;
}

static void generate_member(__u64 *random, struct plan *plan,
			    struct chain *chain, unsigned int async, bool last)
{
	bool timed = chance(random, 10);
	struct op *op = &chain->op[chain->nr++];

	op->kind = random_kind(random, plan->parks);
	op->arg = random_arg(random, op->kind);
	op->flags = random_skip(random, plan, last && !timed);
	if (chance(random, async))
		op->flags |= ASYNC;
	if (timed || !last)
		op->flags |= random_link(random);
	if (!timed)
		return;
	op++;
	chain->nr++;
	op->kind = LTIMEOUT;
	op->arg = chance(random, 40);
	op[-1].victim = op->arg;
	op->flags = random_skip(random, plan, last);
	if (!last)
		op->flags |= random_link(random);
}

static void generate_chain(__u64 *random, struct plan *plan,
			   struct chain *chain)
{
	unsigned int async = chance(random, 50) ? 100 : rnd(random, 100);
	unsigned int i, nr = 1;

	chain->last = -1;
	if (chance(random, 5)) {
		chain->nr = 1;
		chain->op[0].kind = MSG_SYNC;
		chain->op[0].arg = random_arg(random, MSG_SYNC);
		return;
	}
	if (chance(random, 70))
		nr += rnd(random, MAX_MEMBERS);
	for (i = 0; i < nr; i++)
		generate_member(random, plan, chain, async, i == nr - 1);
	if (plan->drains && chance(random, 20))
		chain->op[0].flags |= IOSQE_IO_DRAIN;
}

static void find_victims(struct plan *plan)
{
	unsigned int i, j, arg;

	for (i = 0; i < plan->nr; i++)
		for (j = 0; j < plan->chain[i].nr; j++) {
			arg = plan->chain[i].op[j].arg;
			if (plan->chain[i].op[j].kind == CANCEL)
				plan->chain[arg >> 8].op[arg & 0xff].victim =
					true;
		}
}

static void checksum_plan(const struct plan *plan, __u64 *sum)
{
	const struct op *op;
	unsigned int i, j;

	for (i = 0; i < plan->nr; i++) {
		checksum_add(sum, plan->chain[i].nr);
		for (j = 0; j < plan->chain[i].nr; j++) {
			op = &plan->chain[i].op[j];
			checksum_add(sum, (__u64)op->arg << 32 |
					  op->flags << 8 | op->kind);
		}
	}
	checksum_add(sum, plan->sizes << 16 | plan->patience << 8 |
			  plan->waiting << 4 | plan->short_ring << 2 |
			  plan->submit_waits << 1 | plan->resizes);
}

/* Up to the seed, the thread and the round, and to nothing else. */
static void generate(struct plan *plan, unsigned int thread,
		     unsigned int round, __u64 *sum)
{
	__u64 random = rnd_start(thread, round);
	unsigned int i;

	memset(plan, 0, sizeof(*plan));
	plan->nr = 1 + rnd(&random, MAX_CHAINS);
	plan->waiting = rnd(&random, NR_WAITING);
	plan->submit_waits = chance(&random, 40);
	/* a ring that has skipped a CQE doesn't drain any more */
	plan->drains = rnd_start(thread, 0) % 3 == 0;
	plan->parks = chance(&random, 30);
	plan->resizes = chance(&random, 10);
	plan->short_ring = chance(&random, 3);
	plan->sizes = rnd(&random, 16);
	plan->patience = rnd(&random, 4);
	for (i = 0; i < plan->nr; i++)
		generate_chain(&random, plan, &plan->chain[i]);
	find_victims(plan);
	checksum_plan(plan, sum);
}

static bool op_failed(const struct op *op)
{
	return op->seen && (op->res < 0 ||
			    (op->kind == WRITE && op->res != sizeof(op->word)));
}

/*
 * How many CQEs are still to come. The rules are those of link_model_test.c,
 * but where that knows who fails, this one goes by what has been seen.
 */
static unsigned int chain_missing(struct chain *chain)
{
	bool severed = false, silent = false;
	struct op *op, *member = NULL;
	unsigned int i, missing = 0;

	for (i = 0; i < chain->nr; i++) {
		op = &chain->op[i];
		if (op->kind != LTIMEOUT && member && !severed &&
		    op_failed(member) && !(member->flags & HARD)) {
			severed = true;
			silent = member->flags & SKIP_CQE;
		}
		if (op->kind != LTIMEOUT)
			member = op;
		op->severed = severed;
		if (severed ? !silent : !(op->flags & SKIP_CQE))
			missing += !op->seen;
		else if (op->seen && (severed || !op_failed(op) ||
				      op->kind == LTIMEOUT))
			complain("a CQE with %d of a silent %s", op->res,
				 names[op->kind]);
	}
	return missing;
}

static unsigned int plan_missing(struct plan *plan)
{
	unsigned int i, nr = 0;

	for (i = 0; i < plan->nr; i++)
		nr += chain_missing(&plan->chain[i]);
	return nr;
}

/* Enough to see what is missing. */
static void print_chain(const struct chain *chain, char *text, size_t size)
{
	const struct op *op;
	unsigned int i, len = 0;

	for (i = 0; i < chain->nr && len < size; i++) {
		op = &chain->op[i];
		len += snprintf(text + len, size - len, "\n#   %s %u%s%s%s%s%s",
				names[op->kind], op->arg,
				op->flags & IOSQE_IO_DRAIN ? " drain" : "",
				op->flags & ASYNC ? " async" : "",
				op->flags & SKIP_CQE ? " skip" : "",
				op->flags & SOFT ? " soft" : "",
				op->flags & HARD ? " hard" : "");
		if (op->seen && len < size)
			len += snprintf(text + len, size - len, ": %d",
					op->res);
	}
}

static void print_missing(struct plan *plan, char *text, size_t size)
{
	unsigned int i;

	for (i = 0; i < plan->nr; i++)
		if (chain_missing(&plan->chain[i])) {
			print_chain(&plan->chain[i], text, size);
			return;
		}
}

static bool op_succeeded(const struct op *op)
{
	return !op->severed && (op->seen ? !op_failed(op) : true);
}

#endif
