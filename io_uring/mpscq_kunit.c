// SPDX-License-Identifier: GPL-2.0
/*
 * KUnit tests of the queue behind tctx->task_list and ctx->work_list
 */
#include <kunit/test.h>
#include <linux/completion.h>
#include <linux/irq_work.h>
#include <linux/kthread.h>
#include <linux/sched.h>

#include "mpscq.h"

struct item {
	struct llist_node	node;
	unsigned int		producer;
	unsigned int		nr;
};

struct queue {
	struct mpscq		q;
	struct llist_node	*head;
};

static struct queue *new_queue(struct kunit *test)
{
	struct queue *q = kunit_kzalloc(test, sizeof(*q), GFP_KERNEL);

	KUNIT_ASSERT_NOT_NULL(test, q);
	mpscq_init(&q->q, &q->head);
	return q;
}

static struct item *new_items(struct kunit *test, unsigned int nr)
{
	struct item *items = kunit_kcalloc(test, nr, sizeof(*items), GFP_KERNEL);
	unsigned int i;

	KUNIT_ASSERT_NOT_NULL(test, items);
	for (i = 0; i < nr; i++)
		items[i].nr = i;
	return items;
}

static bool push(struct queue *q, struct item *item)
{
	return mpscq_push(&q->q, &item->node);
}

static struct item *pop(struct queue *q)
{
	struct llist_node *node = mpscq_pop(&q->q, &q->head);

	return node ? container_of(node, struct item, node) : NULL;
}

static struct item *peek(struct queue *q)
{
	struct llist_node *node = mpscq_peek(&q->q, q->head);

	return node ? container_of(node, struct item, node) : NULL;
}

static bool emptied(struct queue *q)
{
	return mpscq_pop_emptied(&q->q, q->head);
}

/* Entries come out in the order they were pushed, also after it ran empty. */
static void mpscq_test_fifo(struct kunit *test)
{
	struct item *items = new_items(test, 8);
	struct queue *q = new_queue(test);
	unsigned int round, i;

	for (round = 0; round < 3; round++) {
		for (i = 0; i < 8; i++)
			push(q, &items[i]);
		for (i = 0; i < 8; i++)
			KUNIT_ASSERT_PTR_EQ(test, pop(q), &items[i]);
		KUNIT_EXPECT_NULL(test, pop(q));
	}
}

/* A push while others are being popped goes to the end. */
static void mpscq_test_interleaved(struct kunit *test)
{
	struct item *items = new_items(test, 64);
	struct queue *q = new_queue(test);
	unsigned int pushed, popped = 0;

	for (pushed = 0; pushed < 64; pushed++) {
		push(q, &items[pushed]);
		if (pushed % 3 == 2)
			KUNIT_ASSERT_PTR_EQ(test, pop(q), &items[popped++]);
	}
	while (popped < 64)
		KUNIT_ASSERT_PTR_EQ(test, pop(q), &items[popped++]);
	KUNIT_EXPECT_TRUE(test, mpscq_empty(&q->q));
}

/* The first push reports an empty queue, the last pop that it emptied it. */
static void mpscq_test_reports(struct kunit *test)
{
	struct item *items = new_items(test, 3);
	struct queue *q = new_queue(test);

	KUNIT_EXPECT_TRUE(test, mpscq_empty(&q->q));
	KUNIT_EXPECT_TRUE(test, push(q, &items[0]));
	KUNIT_EXPECT_FALSE(test, mpscq_empty(&q->q));
	KUNIT_EXPECT_FALSE(test, push(q, &items[1]));

	KUNIT_ASSERT_PTR_EQ(test, pop(q), &items[0]);
	KUNIT_EXPECT_FALSE(test, emptied(q));
	KUNIT_EXPECT_FALSE(test, mpscq_empty(&q->q));
	KUNIT_ASSERT_PTR_EQ(test, pop(q), &items[1]);
	KUNIT_EXPECT_TRUE(test, emptied(q));
	KUNIT_EXPECT_TRUE(test, mpscq_empty(&q->q));

	KUNIT_EXPECT_TRUE(test, push(q, &items[2]));
}

/* What is known of the next entry is what the next pop returns. */
static void mpscq_test_peek(struct kunit *test)
{
	struct item *items = new_items(test, 3);
	struct queue *q = new_queue(test);
	struct llist_node *prev;

	KUNIT_EXPECT_NULL(test, peek(q));
	push(q, &items[0]);
	push(q, &items[1]);
	KUNIT_ASSERT_PTR_EQ(test, pop(q), &items[0]);
	KUNIT_EXPECT_PTR_EQ(test, peek(q), &items[1]);

	/* it may not be there yet for pop */
	items[2].node.next = NULL;
	prev = xchg(&q->q.tail, &items[2].node);
	KUNIT_EXPECT_PTR_EQ(test, peek(q), &items[1]);
	KUNIT_EXPECT_NULL(test, pop(q));
	WRITE_ONCE(prev->next, &items[2].node);
	KUNIT_ASSERT_PTR_EQ(test, pop(q), &items[1]);
	KUNIT_EXPECT_PTR_EQ(test, peek(q), &items[2]);
	KUNIT_ASSERT_PTR_EQ(test, pop(q), &items[2]);
	KUNIT_EXPECT_NULL(test, peek(q));
}

/*
 * A producer that got between its two steps: the entry isn't handed out, nor
 * is the one that it will be linked to, and the queue isn't empty.
 */
static void mpscq_test_unlinked(struct kunit *test)
{
	struct item *items = new_items(test, 3);
	struct queue *q = new_queue(test);
	struct llist_node *prev;

	/* onto the empty queue */
	items[0].node.next = NULL;
	prev = xchg(&q->q.tail, &items[0].node);
	KUNIT_EXPECT_NULL(test, pop(q));
	KUNIT_EXPECT_FALSE(test, mpscq_empty(&q->q));
	/* another producer completes its push behind it */
	KUNIT_EXPECT_FALSE(test, push(q, &items[1]));
	KUNIT_EXPECT_NULL(test, pop(q));
	WRITE_ONCE(prev->next, &items[0].node);
	KUNIT_ASSERT_PTR_EQ(test, pop(q), &items[0]);

	/* behind the last entry */
	items[2].node.next = NULL;
	prev = xchg(&q->q.tail, &items[2].node);
	KUNIT_EXPECT_NULL(test, pop(q));
	KUNIT_EXPECT_FALSE(test, mpscq_empty(&q->q));
	WRITE_ONCE(prev->next, &items[2].node);
	KUNIT_ASSERT_PTR_EQ(test, pop(q), &items[1]);
	KUNIT_ASSERT_PTR_EQ(test, pop(q), &items[2]);
	KUNIT_EXPECT_TRUE(test, emptied(q));
}

#define NR_TASKS	4
#define NR_PRODUCERS	(NR_TASKS + 1)
#define NR_ITEMS	4000

struct producer {
	struct queue		*q;
	struct item		*items;
	unsigned int		pushed;
	/* pushes that found the queue empty */
	unsigned int		empty;
	struct irq_work		work;
	struct completion	done;
};

static void produce(struct producer *p)
{
	p->empty += push(p->q, &p->items[p->pushed++]);
}

static int producer_task(void *data)
{
	struct producer *p = data;

	while (p->pushed < NR_ITEMS) {
		produce(p);
		if (!(p->pushed % 64))
			cond_resched();
	}
	complete(&p->done);
	return 0;
}

/* in hard interrupt context, again and again */
static void producer_irq(struct irq_work *work)
{
	struct producer *p = container_of(work, struct producer, work);
	unsigned int i;

	for (i = 0; i < 8 && p->pushed < NR_ITEMS; i++)
		produce(p);
	if (p->pushed == NR_ITEMS)
		complete(&p->done);
}

/*
 * Many producers, in tasks and in an interrupt that hits them between their two
 * steps: nothing is lost or doubled, the order of each is kept, and every push
 * that found the queue empty matches a pop that emptied it.
 */
static void mpscq_test_producers(struct kunit *test)
{
	unsigned int next[NR_PRODUCERS] = { }, nr_empty = 0, nr_emptied = 0;
	struct producer *producers;
	struct queue *q = new_queue(test);
	unsigned int i, j, popped = 0;

	producers = kunit_kcalloc(test, NR_PRODUCERS, sizeof(*producers), GFP_KERNEL);
	KUNIT_ASSERT_NOT_NULL(test, producers);
	for (i = 0; i < NR_PRODUCERS; i++) {
		struct producer *p = &producers[i];

		p->q = q;
		p->items = new_items(test, NR_ITEMS);
		for (j = 0; j < NR_ITEMS; j++)
			p->items[j].producer = i;
		init_completion(&p->done);
	}
	init_irq_work(&producers[NR_TASKS].work, producer_irq);
	for (i = 0; i < NR_TASKS; i++)
		KUNIT_ASSERT_FALSE(test, IS_ERR(kthread_run(producer_task, &producers[i],
							    "mpscq/%u", i)));

	while (popped < NR_PRODUCERS * NR_ITEMS) {
		struct item *item = pop(q);

		if (!(popped % 16) && READ_ONCE(producers[NR_TASKS].pushed) < NR_ITEMS)
			irq_work_queue(&producers[NR_TASKS].work);
		if (!item) {
			cond_resched();
			continue;
		}
		nr_emptied += emptied(q);
		/* no assertion here, the producers are running */
		KUNIT_EXPECT_EQ(test, item->nr, next[item->producer]);
		next[item->producer] = item->nr + 1;
		popped++;
	}
	for (i = 0; i < NR_PRODUCERS; i++) {
		wait_for_completion(&producers[i].done);
		nr_empty += producers[i].empty;
		KUNIT_EXPECT_EQ(test, next[i], NR_ITEMS);
	}
	irq_work_sync(&producers[NR_TASKS].work);
	KUNIT_EXPECT_TRUE(test, mpscq_empty(&q->q));
	KUNIT_EXPECT_NULL(test, pop(q));
	KUNIT_EXPECT_EQ(test, nr_empty, nr_emptied);
}

static struct kunit_case mpscq_test_cases[] = {
	KUNIT_CASE(mpscq_test_fifo),
	KUNIT_CASE(mpscq_test_interleaved),
	KUNIT_CASE(mpscq_test_reports),
	KUNIT_CASE(mpscq_test_peek),
	KUNIT_CASE(mpscq_test_unlinked),
	KUNIT_CASE_SLOW(mpscq_test_producers),
	{ }
};

static struct kunit_suite mpscq_test_suite = {
	.name = "io_uring_mpscq",
	.test_cases = mpscq_test_cases,
};

kunit_test_suite(mpscq_test_suite);

MODULE_DESCRIPTION("KUnit tests of io_uring's task work queue");
MODULE_LICENSE("GPL");
