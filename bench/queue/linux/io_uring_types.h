/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What io_uring/mpscq.h needs of the kernel, for user space: as much order as
 * the kernel promises, and no more.
 *
 *   xchg(), a try_cmpxchg() that succeeds	full barrier before and after
 *   a try_cmpxchg() that fails, WRITE_ONCE()	none
 *   READ_ONCE()	for what is reached through the pointer it returns
 *
 * The last is the address dependency that lets the consumer read a node, and
 * what the node is part of, without a barrier.  C calls it consume.  Compilers
 * make it an acquire, so no sanitizer can tell if more is relied on.
 */
#ifndef _QUEUE_IO_URING_TYPES_H
#define _QUEUE_IO_URING_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <threads.h>

struct llist_node {
	struct llist_node *next;
};

struct mpscq {
	struct llist_node *tail;
	struct llist_node stub;
};

static thread_local int preempt_count;

#ifdef STRESS
/* Called before each access that may race and after a push, to delay them. */
static void window(void);
/* The same between preempt_disable() and preempt_enable(). */
static void push_window(void);
#else
static inline void window(void) { }
static inline void push_window(void) { }
#endif

static inline void preempt_disable(void)
{
	preempt_count++;
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
}

static inline void preempt_enable(void)
{
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	preempt_count--;
	window();
}

#if defined(__SANITIZE_THREAD__)
#define QUEUE_TSAN
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define QUEUE_TSAN
#endif
#endif

#ifdef QUEUE_TSAN
#include <sanitizer/tsan_interface.h>

/*
 * ThreadSanitizer ignores fences.  What matters of one here: a later store
 * without any order publishes what came before the fence, but nothing that
 * came between fence and store.  So a fiber, to the sanitizer a thread of its
 * own, makes these stores, and knows of its thread what came before the fence.
 */
static thread_local void *fence_fiber;
static thread_local char fence_done;

static inline void after_atomic(void)
{
	__tsan_release(&fence_done);
}

static inline void store_relaxed(struct llist_node **to,
				 struct llist_node *node)
{
	void *thread = __tsan_get_current_fiber();
	void *fence = &fence_done;

	if (!fence_fiber)
		fence_fiber = __tsan_create_fiber(0);
	__tsan_switch_to_fiber(fence_fiber, __tsan_switch_to_fiber_no_sync);
	__tsan_acquire(fence);
	__atomic_store_n(to, node, __ATOMIC_RELEASE);
	__tsan_switch_to_fiber(thread, __tsan_switch_to_fiber_no_sync);
}

/* To be called by a thread that has pushed, at its end. */
static inline void forget_fence(void)
{
	if (fence_fiber)
		__tsan_destroy_fiber(fence_fiber);
}

#else

static inline void after_atomic(void)
{
#if __has_builtin(__builtin_ia32_pause)
	/* x86: an atomic is a full barrier by itself, hold the compiler. */
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
#else
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

static inline void store_relaxed(struct llist_node **to,
				 struct llist_node *node)
{
	__atomic_store_n(to, node, __ATOMIC_RELAXED);
}

static inline void forget_fence(void) { }
#endif

static inline struct llist_node *read_node(struct llist_node **from)
{
	window();
	return __atomic_load_n(from, __ATOMIC_CONSUME);
}

static inline void write_node(struct llist_node **to, struct llist_node *node)
{
	push_window();
	store_relaxed(to, node);
}

static inline struct llist_node *xchg_node(struct llist_node **to,
					   struct llist_node *node)
{
	push_window();
	node = __atomic_exchange_n(to, node, __ATOMIC_SEQ_CST);
	after_atomic();
	return node;
}

static inline bool cmpxchg_node(struct llist_node **to,
				struct llist_node **old,
				struct llist_node *node)
{
	window();
	if (!__atomic_compare_exchange_n(to, old, node, false,
					 __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		return false;
	after_atomic();
	return true;
}

#define READ_ONCE(x)			read_node(&(x))
#define WRITE_ONCE(x, value)		write_node(&(x), value)
#define xchg(to, value)			xchg_node(to, value)
#define try_cmpxchg(to, old, value)	cmpxchg_node(to, old, value)

#endif
