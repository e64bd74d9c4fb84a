/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Makes a tracepoint take long when a worker of io-wq comes to it, where
 * otherwise a window of some instructions had to be hit: several instances of
 * tracefs trace it, each with a long filter that nothing passes.
 */
#ifndef IO_URING_SELFTEST_TRACE_DELAY_H
#define IO_URING_SELFTEST_TRACE_DELAY_H

#include "ring.h"

#define TRACE_DELAY_INSTANCES	12

#define TRACE_DELAY_TERM	"comm~\"*no*\""

/* A filter is no longer than a page. */
#define TRACE_DELAY_FILTER	4000

static inline void trace_delay_path(char *path, size_t size, unsigned int nr,
				    const char *file)
{
	snprintf(path, size,
		 "/sys/kernel/tracing/instances/io_uring_test.%u/%s", nr, file);
}

static inline int trace_delay_write(unsigned int nr, const char *file,
				    const char *value)
{
	char path[512];

	trace_delay_path(path, sizeof(path), nr, file);
	return write_file(path, value, 0);
}

static inline int trace_delay_one(unsigned int nr, const char *event,
				  const char *filter)
{
	char path[256];
	int ret;

	trace_delay_path(path, sizeof(path), nr, "");
	if (mkdir(path, 0700))
		return -errno;
	ret = trace_delay_write(nr, "buffer_size_kb", "8");
	if (ret)
		return ret;
	snprintf(path, sizeof(path), "events/%s/filter", event);
	ret = trace_delay_write(nr, path, filter);
	if (ret)
		return ret;
	snprintf(path, sizeof(path), "events/%s/enable", event);
	return trace_delay_write(nr, path, "1");
}

/* Ends what an earlier run may have left as well. */
static inline void trace_delay_end(void)
{
	char path[256];
	unsigned int i;

	for (i = 0; i < TRACE_DELAY_INSTANCES; i++) {
		trace_delay_path(path, sizeof(path), i, "");
		rmdir(path);
	}
}

/*
 * @match is a filter for the event. Without tracefs, or where there is no such
 * event, a test does its best with the window as it is.
 */
static inline void trace_delay(const char *event, const char *match)
{
	char path[256], filter[TRACE_DELAY_FILTER];
	unsigned int i;
	size_t len;
	int ret = 0;

	trace_delay_end();
	snprintf(path, sizeof(path), "/sys/kernel/tracing/events/%s", event);
	if (access(path, F_OK))
		ret = -errno;
	len = snprintf(filter, sizeof(filter),
		       "comm~\"iou-wrk-*\"&&%s&&(" TRACE_DELAY_TERM, match);
	while (len + sizeof("||" TRACE_DELAY_TERM ")") < sizeof(filter))
		len += sprintf(filter + len, "||" TRACE_DELAY_TERM);
	strcpy(filter + len, ")");
	for (i = 0; i < TRACE_DELAY_INSTANCES && !ret; i++)
		ret = trace_delay_one(i, event, filter);
	if (!ret)
		return;
	trace_delay_end();
	ksft_print_msg("%s isn't delayed: %s\n", event, strerror(-ret));
}

#endif
