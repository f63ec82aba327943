// SPDX-License-Identifier: GPL-2.0
/* Changes by calls other than write(): Linux asynchronous I/O, and io_uring. */
#include "util.h"

#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <sys/syscall.h>

static long aio_write_once(int set, const void *buffer, size_t size)
{
	struct iocb request = {
		.aio_fildes = set,
		.aio_lio_opcode = IOCB_CMD_PWRITE,
		.aio_buf = (uintptr_t)buffer,
		.aio_nbytes = size,
	}, *requests[] = { &request };
	aio_context_t context = 0;
	struct io_event event;

	if (syscall(SYS_io_setup, 1, &context) < 0)
		test_skip("io_setup: %s", strerror(errno));
	if (syscall(SYS_io_submit, context, 1, requests) < 0) {
		event.res = -errno;
		goto out;
	}
	OK(syscall(SYS_io_getevents, context, 1, 1, &event, NULL));
out:
	OK(syscall(SYS_io_destroy, context));
	return event.res;
}

TEST(async_aio_write)
{
	struct pair pair = tcp_pair();
	struct pollfd changes[] = { { pair.a, POLLIN, 0 }, { pair.b, POLLOUT, 0 } };
	int set = set_open();

	CHECK_EQ(aio_write_once(set, changes, sizeof(changes)), sizeof(changes));
	CHECK_EQ(set_poll_one(set, pair.b, LONG_MS), POLLOUT);
	CHECK_EQ(aio_write_once(set, changes, sizeof(changes) - 1), -EINVAL);
	CHECK_EQ(aio_write_once(set, nowhere(), sizeof(changes)), -EFAULT);
	CHECK_EQ(set_statistics(set).ds_entries, 2);
}

struct ring {
	int fd;
	struct io_uring_params params;
	char *rings;
	struct io_uring_sqe *entries;
};

static struct ring ring_open(unsigned int flags)
{
	struct ring ring = { .params.flags = flags };

	ring.fd = syscall(SYS_io_uring_setup, 4, &ring.params);
	if (ring.fd < 0)
		test_skip("io_uring_setup: %s", strerror(errno));
	ring.rings = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, ring.fd,
			  IORING_OFF_SQ_RING);
	CHECK(ring.rings != MAP_FAILED);
	ring.entries = mmap(NULL, ring.params.sq_entries * sizeof(*ring.entries),
			    PROT_READ | PROT_WRITE,
			    MAP_SHARED, ring.fd, IORING_OFF_SQES);
	CHECK(ring.entries != MAP_FAILED);
	return ring;
}

static unsigned int *ring_word(struct ring *ring, unsigned int offset)
{
	return (unsigned int *)(ring->rings + offset);
}

static int ring_write_once(struct ring *ring, int set, const void *buffer, unsigned int size)
{
	unsigned int *tail = ring_word(ring, ring->params.sq_off.tail);
	unsigned int *head = ring_word(ring, ring->params.cq_off.head);
	unsigned int slot = *tail & *ring_word(ring, ring->params.sq_off.ring_mask);
	struct io_uring_cqe *done = (struct io_uring_cqe *)(ring->rings + ring->params.cq_off.cqes);
	int result;

	ring->entries[slot] = (struct io_uring_sqe){
		.opcode = IORING_OP_WRITE,
		.fd = set,
		.addr = (uintptr_t)buffer,
		.len = size,
	};
	ring_word(ring, ring->params.sq_off.array)[slot] = slot;
	__atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
	OK(syscall(SYS_io_uring_enter, ring->fd, 1, 1,
		   IORING_ENTER_GETEVENTS | (ring->params.flags & IORING_SETUP_SQPOLL ?
						     IORING_ENTER_SQ_WAKEUP : 0), NULL, 0));
	result = done[*head & *ring_word(ring, ring->params.cq_off.ring_mask)].res;
	__atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
	return result;
}

/*
 * Kernel threads that work for a process count as threads of it: they may use the set, and use its
 * descriptors.
 */
static void ring_writes(unsigned int flags)
{
	struct pair pair = tcp_pair();
	struct pollfd changes[] = { { pair.a, POLLIN, 0 }, { pair.b, POLLOUT, 0 } };
	struct ring ring = ring_open(flags);
	int set = set_open();

	CHECK_EQ(ring_write_once(&ring, set, changes, sizeof(changes)), sizeof(changes));
	CHECK_EQ(set_poll_one(set, pair.b, LONG_MS), POLLOUT);
	CHECK_EQ(ring_write_once(&ring, set, changes, 3), -EINVAL);
	CHECK_EQ(ring_write_once(&ring, set, nowhere(), sizeof(changes)), -EFAULT);
	make_readable(pair.b);
	set_remove(set, pair.b);
	CHECK_EQ(set_poll_one(set, pair.a, LONG_MS), POLLIN);
}

TEST(async_ring_write)
{
	ring_writes(0);
}

TEST(async_ring_write_by_a_kernel_thread)
{
	ring_writes(IORING_SETUP_SQPOLL);
}
