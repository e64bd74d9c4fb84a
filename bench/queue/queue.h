/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The queues that io_uring's task work has used, behind one interface:
 *
 *   spinlock		a list under a spinlock, taken whole (up to 5.19)
 *   llist		a lockless list, taken whole and reversed (6.0 to 7.1)
 *   mpscq single	io_uring/mpscq.h, a node at a time (7.2)
 *   mpscq chain	the same, a chain of nodes at a time (measured only)
 *
 * The first two took no chains then.  They do here, for comparison.
 *
 * The kernel's spinlock had interrupts off, which a user can't, and could not
 * be preempted.  Its stand-in tests and sets, and yields if it is held for so
 * long that its holder must have been preempted.
 */
#ifndef QUEUE_H
#define QUEUE_H

#include <err.h>
#include <limits.h>
#include <sched.h>
#include <stdalign.h>

#include "io_uring/mpscq.h"

#define CACHE_LINE	64
#define SPINS		1000
#define ARRAY_SIZE(array)	(sizeof(array) / sizeof((array)[0]))

struct queue {
	/* Producers' side */
	alignas(CACHE_LINE) struct mpscq mpscq;
	struct llist_node *first, **end;	/* end: spinlock only */
	bool locked;

	/* Consumer's side */
	alignas(CACHE_LINE) struct llist_node *head;
	bool took;
};

struct queue_type {
	const char *name;
	void (*init)(struct queue *q);
	/*
	 * Push a chain linked by ->next, the last one's ->next not set.
	 * Returns whether the queue was empty.
	 */
	bool (*push)(struct queue *q, struct llist_node *first,
		     struct llist_node *last);
	struct llist_node *(*pop)(struct queue *q);
	/* Whether the pop that just returned a node emptied the queue. */
	bool (*emptied)(struct queue *q);
	/* Whether nothing is queued, not even what can't be popped yet. */
	bool (*empty)(struct queue *q);
	unsigned int max_chain;
	bool newest_first;		/* how chains are linked */
	bool links_late;		/* a node may be queued, but not linked */
};

static inline void spin(unsigned int *spins)
{
	if (++*spins % SPINS == 0)
		sched_yield();
#if __has_builtin(__builtin_ia32_pause)
	else
		__builtin_ia32_pause();
#endif
}

static void list_init(struct queue *q)
{
	q->first = NULL;
	q->end = &q->first;
	q->locked = false;
	q->head = NULL;
}

static inline void lock(struct queue *q)
{
	unsigned int spins = 0;

	while (__atomic_exchange_n(&q->locked, true, __ATOMIC_ACQUIRE))
		while (__atomic_load_n(&q->locked, __ATOMIC_RELAXED))
			spin(&spins);
}

static inline void unlock(struct queue *q)
{
	__atomic_store_n(&q->locked, false, __ATOMIC_RELEASE);
}

static bool spinlock_push(struct queue *q, struct llist_node *first,
			  struct llist_node *last)
{
	bool was_empty;

	last->next = NULL;
	lock(q);
	was_empty = !q->first;
	*q->end = first;
	q->end = &last->next;
	unlock(q);
	return was_empty;
}

static struct llist_node *list_pop(struct queue *q)
{
	struct llist_node *node = q->head;

	if (node)
		q->head = node->next;
	return node;
}

static struct llist_node *spinlock_pop(struct queue *q)
{
	q->took = false;
	if (!q->head) {
		lock(q);
		q->head = q->first;
		q->first = NULL;
		q->end = &q->first;
		unlock(q);
		q->took = q->head;
	}
	return list_pop(q);
}

static bool spinlock_empty(struct queue *q)
{
	bool empty;

	lock(q);
	empty = !q->first;
	unlock(q);
	return empty && !q->head;
}

static bool llist_push(struct queue *q, struct llist_node *newest,
		       struct llist_node *oldest)
{
	struct llist_node *first = __atomic_load_n(&q->first, __ATOMIC_RELAXED);

	do {
		oldest->next = first;
	} while (!__atomic_compare_exchange_n(&q->first, &first, newest, false,
					      __ATOMIC_SEQ_CST,
					      __ATOMIC_RELAXED));
	return !first;
}

static struct llist_node *llist_pop(struct queue *q)
{
	struct llist_node *node, *next;

	q->took = false;
	if (!q->head) {
		node = __atomic_exchange_n(&q->first, NULL, __ATOMIC_SEQ_CST);
		q->took = node;
		for (; node; node = next) {
			next = node->next;
			node->next = q->head;
			q->head = node;
		}
	}
	return list_pop(q);
}

static bool llist_empty(struct queue *q)
{
	return !q->head && !__atomic_load_n(&q->first, __ATOMIC_RELAXED);
}

static bool list_emptied(struct queue *q)
{
	return q->took;
}

static void mpscq_type_init(struct queue *q)
{
	mpscq_init(&q->mpscq, &q->head);
}

static bool mpscq_single_push(struct queue *q, struct llist_node *first,
			      struct llist_node *last)
{
	(void)last;
	return mpscq_push(&q->mpscq, first);
}

/* What mpscq_push() does, for more than one.  The kernel has no user of it. */
static bool mpscq_chain_push(struct queue *q, struct llist_node *first,
			     struct llist_node *last)
{
	struct llist_node *prev;

	last->next = NULL;
	preempt_disable();
	prev = xchg(&q->mpscq.tail, last);
	WRITE_ONCE(prev->next, first);
	preempt_enable();
	return prev == &q->mpscq.stub;
}

static struct llist_node *mpscq_type_pop(struct queue *q)
{
	return mpscq_pop(&q->mpscq, &q->head);
}

static bool mpscq_type_emptied(struct queue *q)
{
	return mpscq_pop_emptied(&q->mpscq, q->head);
}

static bool mpscq_type_empty(struct queue *q)
{
	return mpscq_empty(&q->mpscq);
}

static const struct queue_type types[] = {
	{ "spinlock", list_init, spinlock_push, spinlock_pop,
	  list_emptied, spinlock_empty, UINT_MAX, false, false },
	{ "llist", list_init, llist_push, llist_pop,
	  list_emptied, llist_empty, UINT_MAX, true, false },
	{ "mpscq single", mpscq_type_init, mpscq_single_push, mpscq_type_pop,
	  mpscq_type_emptied, mpscq_type_empty, 1, false, true },
	{ "mpscq chain", mpscq_type_init, mpscq_chain_push, mpscq_type_pop,
	  mpscq_type_emptied, mpscq_type_empty, UINT_MAX, false, true },
};

/* Push nodes as a chain, in the order that the queue wants to find. */
static inline bool push_nodes(const struct queue_type *type, struct queue *q,
			      struct llist_node **nodes, unsigned int nr)
{
	unsigned int i;

	if (type->newest_first) {
		for (i = 1; i < nr; i++)
			nodes[i]->next = nodes[i - 1];
		return type->push(q, nodes[nr - 1], nodes[0]);
	}
	for (i = 1; i < nr; i++)
		nodes[i - 1]->next = nodes[i];
	return type->push(q, nodes[0], nodes[nr - 1]);
}

#endif
