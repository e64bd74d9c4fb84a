// SPDX-License-Identifier: GPL-2.0
/*
 * Random links against a model of what links do. The seed is printed, and is
 * taken from IO_URING_TEST_SEED if that is set.
 */
#include "ring.h"

#define ROUNDS		40
#define CHAINS		16
#define MAX_MEMBERS	12
/* each member may have a timeout */
#define MAX_ENTRIES	(2 * MAX_MEMBERS)

/* user_data of cancellations, the others tell round, chain and entry */
#define CANCEL		(~0ULL)

enum kind {
	NOP,
	NOP_LATER,	/* completes in task work */
	NOP_FAILS,
	READ,
	READ_SHORT,	/* counts as a failure */
	READ_BAD_FD,
	READ_PARKED,	/* of an empty pipe, for a timeout or a cancellation */
	WRITE,		/* all to one file */
	LTIMEOUT,	/* belongs to the entry before */
};

static const char * const names[] = {
	"nop", "nop-later", "nop-fails", "read", "read-short", "read-bad-fd",
	"read-parked", "write", "timeout",
};

struct entry {
	enum kind kind;
	unsigned int flags;
	/* a timeout that is meant to fire, or a read that has one */
	bool soon;
	/* expected */
	bool has_cqe;
	int res;
	/* seen */
	bool seen;
};

struct chain {
	struct entry entry[MAX_ENTRIES];
	unsigned int nr;
	/* the last one that was seen, other than a timeout */
	int last;
};

struct bed {
	struct ring ring;
	struct chain chain[CHAINS];
	int pipe[2];
	int file;
	int log;
	unsigned int round;
	unsigned int missing;
	unsigned int cancels;
	bool can_inject;
	bool can_defer;
	__u64 random;
};

static const struct __kernel_timespec hour = { .tv_sec = 3600 };
static const struct __kernel_timespec soon = { .tv_nsec = 3000000 };

#include "bed.h"

/* xorshift64* */
static unsigned int rnd(struct bed *bed, unsigned int below)
{
	bed->random ^= bed->random >> 12;
	bed->random ^= bed->random << 25;
	bed->random ^= bed->random >> 27;
	return (bed->random * 2685821657736338717ULL >> 32) % below;
}

static bool chance(struct bed *bed, unsigned int percent)
{
	return rnd(bed, 100) < percent;
}

/*
 * The rules.
 *
 * 1. The members of a chain run one after the other, and so do their CQEs.
 * 2. A member fails if its result is negative, or if it read less than it was
 *    asked to.
 * 3. A member that fails and is followed by IOSQE_IO_LINK severs the chain:
 *    none of the others runs, they complete with -ECANCELED. One that is
 *    followed by IOSQE_IO_HARDLINK doesn't.
 * 4. IOSQE_CQE_SKIP_SUCCESS: no CQE for a member that doesn't fail. One that
 *    severs the chain posts its CQE, and if it has this flag, then that CQE
 *    stands for the rest of the chain too. If it doesn't have it, then
 *    everything in the rest has a CQE, whatever its own flags are.
 * 5. A timeout belongs to the member before it. It goes off (-ETIME) and
 *    cancels that member, or it ends with it (-ECANCELED). If it goes off while
 *    a worker is busy with the member, then it doesn't know whether it was in
 *    time (-EALREADY or -ENOENT). Either way this isn't a failure, so that with
 *    IOSQE_CQE_SKIP_SUCCESS there is no CQE. If the chain was severed before,
 *    then the timeout is one of the rest.
 * 6. How a chain goes on after a timeout is up to the flags of the member that
 *    it belongs to.
 * 7. A timeout's CQE may come before or after those of any member.
 */
static int natural_result(enum kind kind)
{
	switch (kind) {
	case NOP_FAILS:
		return -EIO;
	case READ:
	case READ_SHORT:
		return 3;
	case READ_BAD_FD:
		return -EBADF;
	case READ_PARKED:
		return -ECANCELED;
	case WRITE:
		return 1;
	default:
		return 0;
	}
}

static void model(struct chain *chain)
{
	bool severed = false, silent = false;
	struct entry *entry, *member = NULL;
	unsigned int i;

	for (i = 0; i < chain->nr; i++) {
		entry = &chain->entry[i];
		if (entry->kind != LTIMEOUT && member &&
		    (member->res < 0 || member->kind == READ_SHORT) &&
		    !(member->flags & IOSQE_IO_HARDLINK) && !severed) {
			severed = true;
			silent = member->flags & IOSQE_CQE_SKIP_SUCCESS;
		}
		if (entry->kind != LTIMEOUT)
			member = entry;

		if (severed) {
			entry->res = -ECANCELED;
			entry->has_cqe = !silent;
		} else if (entry->kind == LTIMEOUT) {
			entry->res = entry->soon ? -ETIME : -ECANCELED;
			entry->has_cqe = !(entry->flags &
					   IOSQE_CQE_SKIP_SUCCESS);
		} else {
			entry->res = natural_result(entry->kind);
			entry->has_cqe = entry->res < 0 ||
					 entry->kind == READ_SHORT ||
					 !(entry->flags &
					   IOSQE_CQE_SKIP_SUCCESS);
		}
	}
}

static bool is_expected(struct entry *entry, int res)
{
	if (res == entry->res)
		return true;
	if (entry->kind == READ_PARKED)
		return entry->res == -ECANCELED && was_cancelled(res);
	if (entry->kind == LTIMEOUT)
		return (res == -EALREADY || res == -ENOENT) &&
		       entry->res == -ETIME;
	return false;
}

static enum kind random_kind(struct bed *bed)
{
	if (chance(bed, 6))
		return READ_BAD_FD;
	if (chance(bed, 4))
		return READ_SHORT;
	if (bed->can_inject && chance(bed, 4))
		return NOP_FAILS;
	if (chance(bed, 5))
		return READ_PARKED;
	if (chance(bed, 20))
		return WRITE;
	if (chance(bed, 15))
		return READ;
	if (bed->can_defer && chance(bed, 15))
		return NOP_LATER;
	return NOP;
}

static unsigned int random_link(struct bed *bed)
{
	return chance(bed, 60) ? IOSQE_IO_LINK : IOSQE_IO_HARDLINK;
}

static void random_member(struct bed *bed, struct chain *chain,
			  unsigned int async_percent, bool last)
{
	struct entry *entry = &chain->entry[chain->nr++];
	bool timeout = chance(bed, 15);
	unsigned int skip;

	memset(entry, 0, 2 * sizeof(*entry));
	skip = chance(bed, 25) ? IOSQE_CQE_SKIP_SUCCESS : 0;
	entry->kind = random_kind(bed);
	entry->flags = skip;
	if (chance(bed, async_percent))
		entry->flags |= IOSQE_ASYNC;
	if (timeout || !last)
		entry->flags |= random_link(bed);
	if (!timeout)
		return;

	/*
	 * A read that isn't async may run on the worker of the member before
	 * it, and the timer only starts once it is back from there.
	 */
	if (entry->kind == READ_PARKED && chance(bed, 60))
		entry->soon = chain->nr == 1 || entry->flags & IOSQE_ASYNC;
	entry++;
	chain->nr++;
	entry->kind = LTIMEOUT;
	entry->soon = entry[-1].soon;
	entry->flags = chance(bed, 25) ? IOSQE_CQE_SKIP_SUCCESS : 0;
	if (!last)
		entry->flags |= random_link(bed);
}

static void random_chain(struct bed *bed, struct chain *chain)
{
	unsigned int i, nr = 1 + rnd(bed, MAX_MEMBERS);
	unsigned int async_percent = chance(bed, 50) ? 100 : rnd(bed, 100);

	chain->nr = 0;
	chain->last = -1;
	for (i = 0; i < nr; i++)
		random_member(bed, chain, async_percent, i == nr - 1);
	model(chain);
	for (i = 0; i < chain->nr; i++)
		bed->missing += chain->entry[i].has_cqe;
}

static __u64 entry_id(struct bed *bed, unsigned int chain, unsigned int entry)
{
	return (__u64)bed->round << 16 | chain << 8 | entry;
}

static void prep_nop(struct bed *bed, struct entry *entry, __u64 id)
{
	struct io_uring_sqe *sqe;

	sqe = ring_prep(&bed->ring, IORING_OP_NOP, -1, NULL, 0, entry->flags,
			id);
	if (entry->kind == NOP_FAILS) {
		sqe->len = -EIO;
		sqe->nop_flags = IORING_NOP_INJECT_RESULT;
	} else if (entry->kind == NOP_LATER) {
		sqe->nop_flags = IORING_NOP_TW;
	}
}

static void prep_entry(struct bed *bed, struct entry *entry, __u64 id)
{
	struct ring *ring = &bed->ring;
	static char buf[8];

	switch (entry->kind) {
	case READ:
		ring_read(ring, bed->file, buf, 3, entry->flags, id);
		break;
	case READ_SHORT:
		ring_read(ring, bed->file, buf, 8, entry->flags, id);
		break;
	case READ_BAD_FD:
		ring_bad(ring, entry->flags, id);
		break;
	case READ_PARKED:
		ring_read(ring, bed->pipe[0], buf, 1, entry->flags, id);
		break;
	case WRITE:
		ring_write(ring, bed->log, "x", 1, id & 0xffff, entry->flags,
			   id);
		break;
	case LTIMEOUT:
		ring_link_timeout(ring, entry->soon ? &soon : &hour,
				  entry->flags, id);
		break;
	default:
		prep_nop(bed, entry, id);
	}
}

/* These don't end by themselves. If they haven't started yet, try again. */
static void cancel_parked(struct bed *bed)
{
	struct entry *entry;
	unsigned int i, j;

	for (i = 0; i < CHAINS; i++) {
		for (j = 0; j < bed->chain[i].nr; j++) {
			entry = &bed->chain[i].entry[j];
			if (entry->kind != READ_PARKED || entry->soon ||
			    !entry->has_cqe || entry->seen)
				continue;
			ring_cancel(&bed->ring, entry_id(bed, i, j), 0, CANCEL);
			bed->cancels++;
		}
	}
}

static void print_chain(struct __test_metadata *_metadata, struct chain *chain)
{
	struct entry *entry;
	unsigned int i;

	for (i = 0; i < chain->nr; i++) {
		entry = &chain->entry[i];
		TH_LOG("  %u %s%s%s%s%s%s: %s %d%s", i, names[entry->kind],
		       entry->soon ? " soon" : "",
		       entry->flags & IOSQE_ASYNC ? " async" : "",
		       entry->flags & IOSQE_CQE_SKIP_SUCCESS ? " skip" : "",
		       entry->flags & IOSQE_IO_LINK ? " soft" : "",
		       entry->flags & IOSQE_IO_HARDLINK ? " hard" : "",
		       entry->has_cqe ? "expect" : "no cqe of", entry->res,
		       entry->seen ? ", seen" : "");
	}
}

static void check_cqe(struct __test_metadata *_metadata, struct bed *bed,
		      struct cqe *cqe)
{
	unsigned int index = cqe->user_data & 0xff;
	struct chain *chain;
	struct entry *entry;

	if (cqe->user_data == CANCEL) {
		EXPECT_TRUE(cqe->res == 0 || cqe->res == -ENOENT ||
			    cqe->res == -EALREADY);
		bed->cancels--;
		return;
	}
	ASSERT_EQ(bed->round, cqe->user_data >> 16) {
		TH_LOG("a CQE that wasn't expected any more");
	}
	chain = &bed->chain[cqe->user_data >> 8 & 0xff];
	entry = &chain->entry[index];
	ASSERT_TRUE(entry->has_cqe && !entry->seen &&
		    is_expected(entry, cqe->res)) {
		TH_LOG("entry %u has a CQE with %d", index, cqe->res);
		print_chain(_metadata, chain);
	}
	entry->seen = true;
	bed->missing--;
	if (entry->kind == LTIMEOUT)
		return;
	ASSERT_GT((int)index, chain->last) {
		TH_LOG("the CQE of entry %u came after that of %d", index,
		       chain->last);
		print_chain(_metadata, chain);
	}
	chain->last = index;
}

static void print_missing(struct __test_metadata *_metadata, struct bed *bed)
{
	unsigned int i, j;

	TH_LOG("no CQEs of %u entries and %u cancellations", bed->missing,
	       bed->cancels);
	for (i = 0; i < CHAINS; i++) {
		for (j = 0; j < bed->chain[i].nr; j++) {
			if (bed->chain[i].entry[j].has_cqe &&
			    !bed->chain[i].entry[j].seen)
				break;
		}
		if (j < bed->chain[i].nr)
			print_chain(_metadata, &bed->chain[i]);
	}
}

static void run_round(struct __test_metadata *_metadata, struct bed *bed)
{
	__u64 end = now_ms() + DEADLINE_MS;
	struct cqe cqe;
	int ret;

	while (bed->missing || bed->cancels) {
		ASSERT_LT(now_ms(), end)
			print_missing(_metadata, bed);
		ret = ring_next_timeout(&bed->ring, &cqe, 1);
		if (!ret) {
			check_cqe(_metadata, bed, &cqe);
			continue;
		}
		ASSERT_EQ(-ETIME, ret);
		if (!bed->cancels)
			cancel_parked(bed);
		ASSERT_EQ(0, ring_submit(&bed->ring));
	}
}

static bool nop_takes(struct bed *bed, unsigned int flags, int res)
{
	struct io_uring_sqe *sqe;
	struct cqe cqe;

	sqe = ring_prep(&bed->ring, IORING_OP_NOP, -1, NULL, 0, 0, 0);
	sqe->len = res;
	sqe->nop_flags = flags;
	return !ring_submit(&bed->ring) && !ring_next(&bed->ring, &cqe) &&
	       cqe.res == res;
}

static __u64 seed(void)
{
	const char *env = getenv("IO_URING_TEST_SEED");
	struct timespec ts;

	if (env)
		return strtoull(env, NULL, 0);
	clock_gettime(CLOCK_REALTIME, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

static void bed_init(struct __test_metadata *_metadata, struct bed *bed)
{
	bed->can_inject = nop_takes(bed, IORING_NOP_INJECT_RESULT, -EIO);
	bed->can_defer = nop_takes(bed, IORING_NOP_TW, 0);
	ASSERT_EQ(0, pipe(bed->pipe));
	bed->file = memfd_create("link_model_test", MFD_CLOEXEC);
	bed->log = memfd_create("link_model_test", MFD_CLOEXEC);
	ASSERT_EQ(3, write(bed->file, "abc", 3));
	ASSERT_LE(0, bed->log);
}

FIXTURE_TEARDOWN(io_uring)
{
	ring_exit(&self->bed.ring);
}

TEST_F_TIMEOUT(io_uring, model, 60)
{
	struct bed *bed = &self->bed;
	unsigned int i, j;

	/* zero is the one state that the generator doesn't leave */
	bed->random = seed() ?: 1;
	TH_LOG("IO_URING_TEST_SEED=%llu", bed->random);
	for (bed->round = 0; bed->round < ROUNDS; bed->round++) {
		for (i = 0; i < CHAINS; i++) {
			random_chain(bed, &bed->chain[i]);
			for (j = 0; j < bed->chain[i].nr; j++)
				prep_entry(bed, &bed->chain[i].entry[j],
					   entry_id(bed, i, j));
		}
		if (chance(bed, 30))
			cancel_parked(bed);
		ASSERT_EQ(0, ring_submit(&bed->ring));
		run_round(_metadata, bed);
	}
	ring_settle(&bed->ring);
	EXPECT_EQ(0U, ring_ready(&bed->ring));
}

TEST_HARNESS_MAIN
