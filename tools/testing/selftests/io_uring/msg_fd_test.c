// SPDX-License-Identifier: GPL-2.0
/*
 * Descriptors in messages: a fixed file of the sender becomes one of the
 * target. The file is the write end of a pipe whose other ends are closed, so
 * that its reader sees the end exactly when nobody has the file any more.
 */
#include "msg.h"

#define ASYNC		IOSQE_ASYNC
#define LINK		IOSQE_IO_LINK

#define ANY_SLOT	IORING_FILE_INDEX_ALLOC
#define NR_SLOTS	8

FIXTURE(target)
{
	struct ring ring;
};

#include "msg_variants.h"

static int register_table(struct ring *ring, unsigned int nr)
{
	int fds[64];
	unsigned int i;

	for (i = 0; i < nr; i++)
		fds[i] = -1;
	return ring_register(ring, IORING_REGISTER_FILES, fds, nr);
}

static int drop_table(struct ring *ring)
{
	return ring_register(ring, IORING_UNREGISTER_FILES, NULL, 0);
}

static int set_slot(struct ring *ring, unsigned int slot, int fd)
{
	struct io_uring_rsrc_update update = {
		.offset	= slot,
		.data	= (unsigned long)&fd,
	};
	int ret;

	ret = ring_register(ring, IORING_REGISTER_FILES_UPDATE, &update, 1);
	return ret == 1 ? 0 : ret;
}

/* Returns the read end of the pipe whose write end is in @slot only. */
static int load_slot(struct __test_metadata *_metadata, struct ring *ring,
		     unsigned int slot)
{
	int fds[2];

	ASSERT_EQ(0, pipe2(fds, O_CLOEXEC));
	ASSERT_EQ(0, set_slot(ring, slot, fds[1]));
	close(fds[1]);
	return fds[0];
}

static bool is_closed(int fd, unsigned int ms)
{
	struct pollfd pfd = { .fd = fd };

	return poll(&pfd, 1, ms) == 1 && pfd.revents & POLLHUP;
}

/* The file may be let go only when the rings get to it. */
static void expect_closed(struct __test_metadata *_metadata, int fd,
			  struct ring *sender, struct ring *target)
{
	__u64 end = now_ms() + DEADLINE_MS;

	while (!is_closed(fd, 0) && now_ms() < end) {
		ring_wait(sender, UINT_MAX, 1);
		ring_wait(target, UINT_MAX, 1);
	}
	EXPECT_TRUE(is_closed(fd, 0)) {
		TH_LOG("somebody still has the file");
	}
	close(fd);
}

/* Together, as a kernel may let go of them only once in a while. */
static void expect_all_closed(struct __test_metadata *_metadata, const int *fds,
			      unsigned int nr, struct ring *sender,
			      struct ring *target)
{
	while (nr--)
		expect_closed(_metadata, fds[nr], sender, target);
}

/*
 * Kernels before 6.4 take a second to let go of a file that leaves its slot.
 * All kinds of senders would take longer than a test has, one has to do.
 */
static void send_to_target(struct __test_metadata *_metadata,
			   struct ring *target, send_fn send)
{
	with_senders(_metadata, target, send,
		     kernel_before(6, 4) ? 1 : ARRAY_SIZE(sender_types));
}

static void expect_open(struct __test_metadata *_metadata, int fd)
{
	EXPECT_FALSE(is_closed(fd, 0)) {
		TH_LOG("the file is gone");
	}
}

FIXTURE_SETUP(target)
{
	msg_ring_setup(_metadata, &self->ring, variant->flags);
	if (_metadata->exit_code)
		return;
	ASSERT_EQ(0, register_table(&self->ring, NR_SLOTS));
}

FIXTURE_TEARDOWN(target)
{
	if (_metadata->exit_code == KSFT_FAIL && sender_name)
		TH_LOG("the sender was %s", sender_name);
	ring_exit(&self->ring);
}

/* The target can write to what is in @slot. */
static void expect_usable(struct __test_metadata *_metadata,
			  struct ring *target, unsigned int slot, int fd)
{
	struct pollfd pfd = { .fd = fd, .events = POLLIN };
	char c = 0;

	/* a pipe isn't a file to poll for */
	if (target->flags & IORING_SETUP_IOPOLL)
		return;
	ring_write(target, slot, "x", 1, 0, IOSQE_FIXED_FILE, 99);
	submit(_metadata, target);
	expect_sent(_metadata, target, 99, 1);
	ASSERT_EQ(1, poll(&pfd, 1, DEADLINE_MS));
	ASSERT_EQ(1, read(fd, &c, 1));
	EXPECT_EQ('x', c);
}

static void send_into_slot(struct __test_metadata *_metadata,
			   struct ring *sender, struct ring *target)
{
	const struct msg msg = { .user_data = ~0ULL };
	int fds[2 * NR_SLOTS];
	unsigned int i, slot;

	ASSERT_EQ(0, register_table(sender, NR_SLOTS));
	for (i = 0; i < 2 * NR_SLOTS; i++) {
		slot = i / 2;
		fds[i] = load_slot(_metadata, sender, 1);
		msg_prep_fd(sender, target->fd, 1, slot, msg.user_data,
			    i % 2 ? ASYNC : 0, i);
		submit(_metadata, sender);
		expect_sent(_metadata, sender, i, 0);
		expect_msg(_metadata, target, &msg);

		ASSERT_EQ(0, set_slot(sender, 1, -1));
		expect_usable(_metadata, target, slot, fds[i]);
		expect_open(_metadata, fds[i]);
		ASSERT_EQ(0, set_slot(target, slot, -1));
	}
	expect_all_closed(_metadata, fds, i, sender, target);
}

TEST_F(target, into_slot)
{
	send_to_target(_metadata, &self->ring, send_into_slot);
}

/* Both sides are told which slot it was, until there is none left. */
static void send_into_any_slot(struct __test_metadata *_metadata,
			       struct ring *sender, struct ring *target)
{
	int fds[NR_SLOTS + 1], slot;
	bool used[NR_SLOTS] = {};
	struct msg_cqe cqe;
	unsigned int i;

	ASSERT_EQ(0, register_table(sender, NR_SLOTS));
	for (i = 0; i < NR_SLOTS; i++) {
		fds[i] = load_slot(_metadata, sender, 0);
		msg_prep_fd(sender, target->fd, 0, ANY_SLOT, 100 + i,
			    i % 2 ? ASYNC : 0, i);
		submit(_metadata, sender);
		ASSERT_EQ(0, msg_next(sender, &cqe));
		slot = cqe.res;
		ASSERT_LE(0, slot);
		ASSERT_GT(NR_SLOTS, slot);
		EXPECT_FALSE(used[slot]);
		used[slot] = true;
		expect_sent(_metadata, target, 100 + i, slot);
		expect_usable(_metadata, target, slot, fds[i]);
	}
	fds[i] = load_slot(_metadata, sender, 0);
	msg_prep_fd(sender, target->fd, 0, ANY_SLOT, 100, 0, 1);
	submit(_metadata, sender);
	expect_sent(_metadata, sender, 1, -ENFILE);
	expect_nothing(_metadata, target);
	for (i = 0; i < NR_SLOTS; i++)
		expect_open(_metadata, fds[i]);

	ASSERT_EQ(0, drop_table(sender));
	expect_closed(_metadata, fds[NR_SLOTS], sender, target);
	for (i = 0; i < NR_SLOTS; i++)
		expect_open(_metadata, fds[i]);
	ASSERT_EQ(0, drop_table(target));
	for (i = 0; i < NR_SLOTS; i++)
		expect_closed(_metadata, fds[i], sender, target);
	ASSERT_EQ(0, register_table(target, NR_SLOTS));
}

TEST_F(target, into_any_slot)
{
	send_to_target(_metadata, &self->ring, send_into_any_slot);
}

/* What was there is let go of. */
static void send_into_used_slot(struct __test_metadata *_metadata,
				struct ring *sender, struct ring *target)
{
	unsigned int i;
	int fds[6];

	ASSERT_EQ(0, register_table(sender, NR_SLOTS));
	for (i = 0; i < 6; i++) {
		fds[i] = load_slot(_metadata, sender, 0);
		msg_prep_fd(sender, target->fd, 0, 2, 1, i % 2 ? ASYNC : 0, 1);
		submit(_metadata, sender);
		expect_sent(_metadata, sender, 1, 0);
		expect_sent(_metadata, target, 1, 0);
		ASSERT_EQ(0, set_slot(sender, 0, -1));
		expect_open(_metadata, fds[i]);
		expect_usable(_metadata, target, 2, fds[i]);
	}
	expect_all_closed(_metadata, fds, 5, sender, target);
	expect_open(_metadata, fds[5]);
	ASSERT_EQ(0, set_slot(target, 2, -1));
	expect_closed(_metadata, fds[5], sender, target);
}

TEST_F(target, into_used_slot)
{
	send_to_target(_metadata, &self->ring, send_into_used_slot);
}

/* As many references as there are slots that have it. */
static void send_to_all_slots(struct __test_metadata *_metadata,
			      struct ring *sender, struct ring *target)
{
	unsigned int i;
	int fd;

	ASSERT_EQ(0, register_table(sender, NR_SLOTS));
	fd = load_slot(_metadata, sender, 5);
	for (i = 0; i < NR_SLOTS; i++)
		msg_prep_fd(sender, target->fd, 5, i, i,
			    i < NR_SLOTS - 1 ? LINK : 0, i);
	submit(_metadata, sender);
	expect_sent_range(_metadata, sender, 0, NR_SLOTS);
	for (i = 0; i < NR_SLOTS; i++)
		expect_sent(_metadata, target, i, 0);
	ASSERT_EQ(0, drop_table(sender));
	for (i = 0; i < NR_SLOTS; i++) {
		expect_open(_metadata, fd);
		expect_usable(_metadata, target, i, fd);
		ASSERT_EQ(0, set_slot(target, i, -1));
	}
	expect_closed(_metadata, fd, sender, target);
}

TEST_F(target, to_all_slots)
{
	send_to_target(_metadata, &self->ring, send_to_all_slots);
}

static void send_without_cqe(struct __test_metadata *_metadata,
			     struct ring *sender, struct ring *target)
{
	unsigned int i;
	int fds[4];

	ASSERT_EQ(0, register_table(sender, NR_SLOTS));
	for (i = 0; i < 4; i++) {
		fds[i] = load_slot(_metadata, sender, 0);
		msg_prep_fd(sender, target->fd, 0, i, 1, i % 2 ? ASYNC : 0, 1)
			->msg_ring_flags = IORING_MSG_RING_CQE_SKIP;
		submit(_metadata, sender);
		expect_sent(_metadata, sender, 1, 0);
		expect_nothing(_metadata, target);
		ASSERT_EQ(0, set_slot(sender, 0, -1));
		expect_open(_metadata, fds[i]);
		expect_usable(_metadata, target, i, fds[i]);
		ASSERT_EQ(0, set_slot(target, i, -1));
	}
	expect_all_closed(_metadata, fds, i, sender, target);
}

TEST_F(target, without_cqe)
{
	send_to_target(_metadata, &self->ring, send_without_cqe);
}

/* An error each, and nothing arrives, and nothing is left behind. */
static void send_faults(struct __test_metadata *_metadata, struct ring *sender,
			struct ring *target)
{
	unsigned int i, flags;
	int fd;

	ASSERT_EQ(0, register_table(sender, NR_SLOTS));
	fd = load_slot(_metadata, sender, 0);
	for (i = 0; i < 2; i++) {
		flags = i ? ASYNC : 0;
		msg_prep_fd(sender, target->fd, 0, NR_SLOTS, 1, flags, 1);
		submit(_metadata, sender);
		expect_sent(_metadata, sender, 1, -EINVAL);

		/* slots are counted from 1 */
		msg_prep_fd(sender, target->fd, 0, 0, 1, flags, 2)->file_index =
			0;
		submit(_metadata, sender);
		expect_sent(_metadata, sender, 2, -EINVAL);

		msg_prep_fd(sender, target->fd, NR_SLOTS, 0, 1, flags, 3);
		submit(_metadata, sender);
		expect_sent(_metadata, sender, 3, -EBADF);

		msg_prep_fd(sender, target->fd, 1, 0, 1, flags, 4);
		submit(_metadata, sender);
		expect_sent(_metadata, sender, 4, -EBADF);

		if (!kernel_before(6, 3)) {
			msg_prep_fd(sender, target->fd, 0, 0, 1, flags, 5)
				->len = 1;
			submit(_metadata, sender);
			expect_sent(_metadata, sender, 5, -EINVAL);
		}

		msg_prep_fd(sender, sender->fd, 0, 1, 1, flags, 6);
		submit(_metadata, sender);
		expect_sent(_metadata, sender, 6, -EINVAL);

		msg_prep_fd(sender, -1, 0, 1, 1, flags, 7);
		submit(_metadata, sender);
		expect_sent(_metadata, sender, 7, -EBADF);
	}
	ASSERT_EQ(0, drop_table(target));
	msg_prep_fd(sender, target->fd, 0, 0, 1, 0, 8);
	submit(_metadata, sender);
	expect_sent(_metadata, sender, 8, -ENXIO);
	expect_nothing(_metadata, target);
	ASSERT_EQ(0, register_table(target, NR_SLOTS));

	/* the last member of a link that fails grabs nothing */
	msg_prep_fd(sender, target->fd, 0, NR_SLOTS, 1, LINK, 9);
	msg_prep_fd(sender, target->fd, 0, 0, 1, 0, 10);
	submit(_metadata, sender);
	expect_sent(_metadata, sender, 9, -EINVAL);
	expect_sent(_metadata, sender, 10, -ECANCELED);
	expect_nothing(_metadata, target);

	expect_open(_metadata, fd);
	ASSERT_EQ(0, drop_table(sender));
	expect_closed(_metadata, fd, sender, target);
}

TEST_F(target, faults)
{
	send_to_target(_metadata, &self->ring, send_faults);
}

/* A descriptor, and in the same link the data that tell about it. */
static void send_and_tell(struct __test_metadata *_metadata,
			  struct ring *sender, struct ring *target)
{
	unsigned int i, flags;
	int fds[20];

	ASSERT_EQ(0, register_table(sender, NR_SLOTS));
	for (i = 0; i < 20; i++) {
		flags = i % 2 ? ASYNC : 0;
		fds[i] = load_slot(_metadata, sender, 0);
		msg_prep_fd(sender, target->fd, 0, 3, 1, flags | LINK, 1);
		msg_number(sender, target->fd, 2, flags | LINK);
		msg_number(sender, target->fd, 3, flags);
		submit(_metadata, sender);
		expect_sent_range(_metadata, sender, 1, 3);
		expect_sent(_metadata, target, 1, 0);
		expect_numbers(_metadata, target, 2, 2);
		ASSERT_EQ(0, set_slot(sender, 0, -1));
		expect_usable(_metadata, target, 3, fds[i]);
		ASSERT_EQ(0, set_slot(target, 3, -1));
	}
	expect_all_closed(_metadata, fds, i, sender, target);
}

TEST_F(target, data_after_descriptor)
{
	send_to_target(_metadata, &self->ring, send_and_tell);
}

/* No order between them, but each arrives once. */
static void send_among_data(struct __test_metadata *_metadata,
			    struct ring *sender, struct ring *target)
{
	unsigned int i, data = 0, files = 0, nr = 120;
	struct msg_cqe cqe;
	int fd;

	ASSERT_EQ(0, register_table(sender, NR_SLOTS));
	fd = load_slot(_metadata, sender, 0);
	for (i = 0; i < nr; i++) {
		if (i % 3)
			msg_number(sender, target->fd, i, i % 7 ? 0 : ASYNC);
		else
			msg_prep_fd(sender, target->fd, 0, i % NR_SLOTS, i,
				    i % 5 ? 0 : ASYNC, i);
	}
	submit(_metadata, sender);
	expect_any_sent(_metadata, sender, 0, nr);
	for (i = 0; i < nr; i++) {
		ASSERT_EQ(0, msg_next(target, &cqe));
		if (cqe.user_data % 3) {
			EXPECT_EQ((int)cqe.user_data, cqe.res);
			data++;
		} else {
			EXPECT_EQ(0, cqe.res);
			files++;
		}
	}
	EXPECT_EQ(nr / 3, files);
	EXPECT_EQ(nr - nr / 3, data);
	ASSERT_EQ(0, drop_table(sender));
	expect_open(_metadata, fd);
	ASSERT_EQ(0, drop_table(target));
	expect_closed(_metadata, fd, sender, target);
	ASSERT_EQ(0, register_table(target, NR_SLOTS));
}

TEST_F(target, among_data)
{
	send_to_target(_metadata, &self->ring, send_among_data);
}

/* What there is no room to tell is told later. */
TEST_F(target, overflow)
{
	struct ring sender, target;
	unsigned int i, nr = 32;
	int fds[32];

	ASSERT_EQ(0, msg_ring_init(&sender, 0, 64, 0));
	ASSERT_EQ(0, register_table(&sender, 1));
	ASSERT_EQ(0, msg_ring_init(&target, variant->flags, 4, 4));
	ASSERT_EQ(0, register_table(&target, nr));
	for (i = 0; i < nr; i++) {
		fds[i] = load_slot(_metadata, &sender, 0);
		msg_prep_fd(&sender, target.fd, 0, i, i, i % 2 ? ASYNC : 0, i);
		submit(_metadata, &sender);
		expect_sent(_metadata, &sender, i, 0);
	}
	ring_exit(&sender);
	for (i = 0; i < nr; i++)
		expect_sent(_metadata, &target, i, 0);
	for (i = 0; i < nr; i++) {
		expect_open(_metadata, fds[i]);
		expect_usable(_metadata, &target, i, fds[i]);
	}
	ring_exit(&target);
	for (i = 0; i < nr; i++) {
		EXPECT_TRUE(is_closed(fds[i], DEADLINE_MS));
		close(fds[i]);
	}
}

/* They go with the ring, whether it has looked at its CQEs or not. */
TEST_F(target, target_closed)
{
	struct ring sender, target;
	unsigned int i, round;
	int fd;

	for (round = 0; round < 5; round++) {
		ASSERT_EQ(0, msg_ring_init(&sender, 0, 64, 0));
		ASSERT_EQ(0, register_table(&sender, 1));
		ASSERT_EQ(0, msg_ring_init(&target, variant->flags, 4, 4));
		ASSERT_EQ(0, register_table(&target, NR_SLOTS));
		fd = load_slot(_metadata, &sender, 0);
		for (i = 0; i < NR_SLOTS; i++)
			msg_prep_fd(&sender, target.fd, 0, i, i,
				    round % 2 ? ASYNC : 0, i);
		submit(_metadata, &sender);
		expect_any_sent(_metadata, &sender, 0, NR_SLOTS);
		ring_exit(&sender);
		for (i = 0; i < round % 4; i++)
			msg_next(&target, &(struct msg_cqe){});
		expect_open(_metadata, fd);
		ring_exit(&target);
		EXPECT_TRUE(is_closed(fd, DEADLINE_MS));
		close(fd);
	}
}

TEST_HARNESS_MAIN
