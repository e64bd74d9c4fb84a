/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A page that blocks whoever touches it until it is let go. A write with such
 * a page as its source stays on its worker, and in its file, for as long as a
 * test likes.
 */
#ifndef IO_URING_SELFTEST_UFFD_H
#define IO_URING_SELFTEST_UFFD_H

#include <sys/ioctl.h>

#include <linux/userfaultfd.h>

#include "ring.h"

struct uffd {
	int fd;
	char *page;
	size_t size;
};

static inline int uffd_register(struct uffd *uffd)
{
	struct uffdio_api api = {
		.api	= UFFD_API,
	};
	struct uffdio_register reg = {
		.range	= {
			.start	= (unsigned long)uffd->page,
			.len	= uffd->size,
		},
		.mode	= UFFDIO_REGISTER_MODE_MISSING,
	};

	if (ioctl(uffd->fd, UFFDIO_API, &api) ||
	    ioctl(uffd->fd, UFFDIO_REGISTER, &reg))
		return -errno;
	return 0;
}

static inline int uffd_init(struct uffd *uffd)
{
	int ret;

	uffd->size = sysconf(_SC_PAGESIZE);
	uffd->page = mmap(NULL, uffd->size, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (uffd->page == MAP_FAILED)
		return -errno;
	uffd->fd = syscall(__NR_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (uffd->fd < 0) {
		ret = -errno;
		munmap(uffd->page, uffd->size);
		return ret;
	}
	ret = uffd_register(uffd);
	if (ret) {
		close(uffd->fd);
		munmap(uffd->page, uffd->size);
	}
	return ret;
}

static inline void uffd_exit(struct uffd *uffd)
{
	close(uffd->fd);
	munmap(uffd->page, uffd->size);
}

/* Someone has touched the page, and is waiting. */
static inline int uffd_wait(struct uffd *uffd)
{
	struct pollfd pfd = {
		.fd	= uffd->fd,
		.events	= POLLIN,
	};
	struct uffd_msg msg;

	if (poll(&pfd, 1, DEADLINE_MS) != 1)
		return -ETIME;
	if (read(uffd->fd, &msg, sizeof(msg)) != sizeof(msg))
		return -EIO;
	return msg.event == UFFD_EVENT_PAGEFAULT ? 0 : -EINVAL;
}

static inline int uffd_release(struct uffd *uffd)
{
	struct uffdio_zeropage zero = {
		.range	= {
			.start	= (unsigned long)uffd->page,
			.len	= uffd->size,
		},
	};

	return ioctl(uffd->fd, UFFDIO_ZEROPAGE, &zero) ? -errno : 0;
}

#endif
