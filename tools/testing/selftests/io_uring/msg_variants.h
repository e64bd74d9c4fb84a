/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The kinds of rings that differ in how a message gets there, as variants of a
 * fixture with the name "target".
 */

FIXTURE_VARIANT(target)
{
	unsigned int flags;
};

FIXTURE_VARIANT_ADD(target, plain) {
	.flags = 0,
};

FIXTURE_VARIANT_ADD(target, coop) {
	.flags = IORING_SETUP_COOP_TASKRUN,
};

FIXTURE_VARIANT_ADD(target, defer) {
	.flags = RING_DEFER,
};

FIXTURE_VARIANT_ADD(target, sqpoll) {
	.flags = IORING_SETUP_SQPOLL,
};

#ifndef TARGETS_WAIT
FIXTURE_VARIANT_ADD(target, iopoll) {
	.flags = IORING_SETUP_IOPOLL,
};

FIXTURE_VARIANT_ADD(target, iopoll_defer) {
	.flags = IORING_SETUP_IOPOLL | RING_DEFER,
};

FIXTURE_VARIANT_ADD(target, iopoll_sqpoll) {
	.flags = IORING_SETUP_IOPOLL | IORING_SETUP_SQPOLL,
};

FIXTURE_VARIANT_ADD(target, cqe32) {
	.flags = IORING_SETUP_CQE32,
};

FIXTURE_VARIANT_ADD(target, cqe32_defer) {
	.flags = IORING_SETUP_CQE32 | RING_DEFER,
};

FIXTURE_VARIANT_ADD(target, mixed) {
	.flags = IORING_SETUP_CQE_MIXED,
};

FIXTURE_VARIANT_ADD(target, mixed_defer) {
	.flags = IORING_SETUP_CQE_MIXED | RING_DEFER,
};
#endif
