// SPDX-License-Identifier: GPL-2.0
/* DP_ALLOC, mmap(), DP_FREE: results without a copy. */
#include "util.h"

#include <sys/resource.h>

#define ROOM 600

static struct pollfd *map_results(int set, int count, int protection, int flags)
{
	struct pollfd *results;

	results = mmap(NULL, DP_MMAP_SIZE(count), protection, flags, set, 0);
	CHECK(results != MAP_FAILED);
	return results;
}

static int set_with_area(int count)
{
	int set = set_open();

	OK(ioctl(set, DP_ALLOC, count));
	return set;
}

TEST(mapping_has_the_results)
{
	struct pair pair = tcp_pair();
	int set = set_with_area(ROOM);
	struct pollfd *results = map_results(set, ROOM, PROT_READ, MAP_SHARED);

	for (int i = 0; i < ROOM; i++)
		CHECK_EQ(results[i].fd | results[i].events | results[i].revents, 0);
	set_write(set, pair.a, POLLIN | POLLOUT);
	CHECK_EQ(set_poll(set, NULL, ROOM, 0), 1);
	CHECK_EQ(results[0].fd, pair.a);
	CHECK_EQ(results[0].events, POLLIN | POLLOUT);
	CHECK_EQ(results[0].revents, POLLOUT);
	make_readable(pair.b);
	do
		CHECK_EQ(set_poll(set, NULL, ROOM, LONG_MS), 1);
	while (results[0].revents != (POLLIN | POLLOUT));
	OK(munmap(results, DP_MMAP_SIZE(ROOM)));
}

TEST(mapping_is_filled_after_a_sleep)
{
	struct pair pair = tcp_pair();
	int set = set_with_area(ROOM);
	struct pollfd *results = map_results(set, ROOM, PROT_READ | PROT_WRITE, MAP_SHARED);
	struct dvpoll wait = { NULL, ROOM, -1, NULL };

	set_write(set, pair.a, POLLIN);
	if (!OK(fork())) {
		sleep_ms(SHORT_MS);
		make_readable(pair.b);
		_exit(0);
	}
	CHECK_EQ(ioctl(set, DP_POLL, &wait), 1);
	CHECK_EQ(results[0].fd, pair.a);
	OK(wait4(-1, NULL, 0, NULL));
}

TEST(mapping_spans_pages)
{
	static struct pollfd changes[ROOM];
	int fd = OK(open("/dev/null", O_RDWR | O_CLOEXEC));
	int set = set_with_area(ROOM);
	struct pollfd *results = map_results(set, ROOM, PROT_READ, MAP_SHARED);

	CHECK(DP_MMAP_SIZE(ROOM) > (size_t)sysconf(_SC_PAGESIZE));
	for (int i = 0; i < ROOM; i++)
		changes[i] = (struct pollfd){ OK(dup(fd)), POLLOUT, 0 };
	CHECK_EQ(write(set, changes, sizeof(changes)), sizeof(changes));
	/* There are no more results than the area has room for, even if the call requests more. */
	CHECK_EQ(set_poll(set, NULL, INT32_MAX, 0), ROOM);
	for (int i = 0; i < ROOM; i++) {
		CHECK_EQ(results[i].fd, changes[i].fd);
		CHECK_EQ(results[i].revents, POLLOUT);
	}
}

TEST(mapping_room_is_kept_to)
{
	struct pollfd changes[8];
	int fd = OK(open("/dev/null", O_RDWR | O_CLOEXEC));
	int set = set_with_area(4);
	struct pollfd *results = map_results(set, 4, PROT_READ | PROT_WRITE, MAP_SHARED);

	for (int i = 0; i < 8; i++)
		changes[i] = (struct pollfd){ OK(dup(fd)), POLLOUT, 0 };
	CHECK_EQ(write(set, changes, sizeof(changes)), sizeof(changes));
	results[2].fd = results[4].fd = -99;
	CHECK_EQ(set_poll(set, NULL, 2, 0), 2);
	CHECK_EQ(results[2].fd, -99);
	CHECK_EQ(set_poll(set, NULL, 100, 0), 4);
	CHECK_EQ(results[4].fd, -99);
	/* Copying results out works as without an area. */
	CHECK_EQ(set_poll(set, changes, 8, 0), 8);
}

TEST(mapping_errors)
{
	struct rlimit limit;
	int set = set_open();

	OK(getrlimit(RLIMIT_NOFILE, &limit));
	CHECK_ERRNO(set_poll(set, NULL, 1, 0), EINVAL);
	CHECK_ERRNO(ioctl(set, DP_FREE), EINVAL);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, set, 0) == MAP_FAILED && errno == EINVAL);
	CHECK_ERRNO(ioctl(set, DP_ALLOC, 0), EINVAL);
	CHECK_ERRNO(ioctl(set, DP_ALLOC, -1L), EINVAL);
	CHECK_ERRNO(ioctl(set, DP_ALLOC, limit.rlim_cur + 1), EINVAL);
	OK(ioctl(set, DP_ALLOC, limit.rlim_cur < 1000 ? limit.rlim_cur : 1000));
	CHECK_ERRNO(ioctl(set, DP_ALLOC, 1), EPERM);
	CHECK(mmap(NULL, 1 << 20, PROT_READ, MAP_SHARED, set, 0) == MAP_FAILED && errno == EINVAL);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, set, 1 << 20) == MAP_FAILED &&
	      errno == EINVAL);
	CHECK(mmap(NULL, 4096, PROT_READ, MAP_SHARED, set, 2 * 4096) == MAP_FAILED &&
	      errno == EINVAL);
	OK(ioctl(set, DP_FREE));
	CHECK_ERRNO(set_poll(set, NULL, 1, 0), EINVAL);
}

TEST(mapping_part_of_the_area)
{
	int fd = OK(open("/dev/null", O_RDWR | O_CLOEXEC));
	int set = set_with_area(ROOM);
	struct pollfd *second;

	for (int i = 0; i < ROOM; i++)
		set_write(set, OK(dup(fd)), POLLOUT);
	second = mmap(NULL, 4096, PROT_READ, MAP_SHARED, set, 4096);
	CHECK(second != MAP_FAILED);
	CHECK_EQ(set_poll(set, NULL, ROOM, 0), ROOM);
	CHECK_EQ(second[0].revents, POLLOUT);
}

TEST(mapping_keeps_the_area)
{
	struct pair pair = tcp_pair();
	int set = set_with_area(ROOM);
	struct pollfd *results = map_results(set, ROOM, PROT_READ, MAP_SHARED);

	set_write(set, pair.a, POLLOUT);
	CHECK_ERRNO(ioctl(set, DP_FREE), EBUSY);
	CHECK_EQ(set_poll(set, NULL, ROOM, 0), 1);
	OK(munmap(results, DP_MMAP_SIZE(ROOM)));
	OK(ioctl(set, DP_FREE));
	OK(ioctl(set, DP_ALLOC, 1));
	results = map_results(set, 1, PROT_READ, MAP_SHARED);
	CHECK_EQ(results[0].fd, 0);
	CHECK_EQ(set_poll(set, NULL, 1, 0), 1);
	CHECK_EQ(results[0].fd, pair.a);
}

TEST(mapping_unmapped_in_pieces)
{
	long page = sysconf(_SC_PAGESIZE);
	int set = set_with_area(ROOM);
	char *results = (char *)map_results(set, ROOM, PROT_READ, MAP_SHARED);

	OK(munmap(results, page));
	CHECK_ERRNO(ioctl(set, DP_FREE), EBUSY);
	OK(munmap(results + page, page));
	OK(ioctl(set, DP_FREE));
}

TEST(mapping_outlives_the_descriptor)
{
	struct pair pair = tcp_pair();
	int set = set_with_area(ROOM);
	struct pollfd *results = map_results(set, ROOM, PROT_READ, MAP_SHARED);

	set_write(set, pair.a, POLLOUT);
	CHECK_EQ(set_poll(set, NULL, ROOM, 0), 1);
	close(set);
	CHECK_EQ(results[0].fd, pair.a);
}

static void unmaps(void *context)
{
	OK(munmap(context, DP_MMAP_SIZE(ROOM)));
}

TEST(mapping_is_inherited)
{
	struct pair pair = tcp_pair();
	int set = set_with_area(ROOM), status;
	struct pollfd *results = map_results(set, ROOM, PROT_READ, MAP_SHARED);
	int go[2];
	pid_t pid;

	OK(pipe2(go, O_CLOEXEC));
	set_write(set, pair.a, POLLOUT);
	pid = OK(fork());
	if (!pid) {
		char byte;

		CHECK_EQ(read(go[0], &byte, 1), 1);
		/* These are the results of the parent's wait. */
		CHECK_EQ(results[0].fd, pair.a);
		unmaps(results);
		_exit(0);
	}
	CHECK_EQ(set_poll(set, NULL, ROOM, 0), 1);
	OK(munmap(results, DP_MMAP_SIZE(ROOM)));
	CHECK_ERRNO(ioctl(set, DP_FREE), EBUSY);
	make_readable(go[1]);
	OK(waitpid(pid, &status, 0));
	CHECK_EQ(status, 0);
	OK(ioctl(set, DP_FREE));
}

TEST(mapping_moved)
{
	struct pair pair = tcp_pair();
	int set = set_with_area(ROOM);
	struct pollfd *results = map_results(set, ROOM, PROT_READ, MAP_SHARED);
	void *place = mmap(NULL, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	results = mremap(results, 8192, 8192, MREMAP_MAYMOVE | MREMAP_FIXED, place);
	CHECK(results == place);
	set_write(set, pair.a, POLLOUT);
	CHECK_EQ(set_poll(set, NULL, ROOM, 0), 1);
	CHECK_EQ(results[0].fd, pair.a);
	CHECK(mremap(results, 8192, 1 << 19, MREMAP_MAYMOVE) == MAP_FAILED);
	OK(munmap(results, 8192));
	OK(ioctl(set, DP_FREE));
}

TEST(mapping_can_be_dropped_from_memory)
{
	struct pair pair = tcp_pair();
	int set = set_with_area(ROOM);
	struct pollfd *results = map_results(set, ROOM, PROT_READ, MAP_SHARED);

	set_write(set, pair.a, POLLOUT);
	CHECK_EQ(set_poll(set, NULL, ROOM, 0), 1);
	OK(madvise(results, 8192, MADV_DONTNEED));
	CHECK_EQ(results[0].fd, pair.a);
}

TEST(mapping_private)
{
	struct pair pair = tcp_pair();
	int set = set_with_area(ROOM);
	struct pollfd *results = map_results(set, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE);

	set_write(set, pair.a, POLLOUT);
	CHECK_EQ(set_poll(set, NULL, ROOM, 0), 1);
	CHECK_EQ(results[0].fd, pair.a);
	/* After a write the page is the process's own copy. */
	results[0].fd = -1;
	CHECK_EQ(set_poll(set, NULL, ROOM, 0), 1);
	CHECK_EQ(results[0].fd, -1);
}

/* The program may overwrite the area without harm to the kernel. */
TEST(mapping_scribbled_over)
{
	struct pair pair = tcp_pair();
	int set = set_with_area(ROOM);
	struct pollfd *results = map_results(set, ROOM, PROT_READ | PROT_WRITE, MAP_SHARED);

	memset(results, 0xff, 8192);
	set_write(set, pair.a, POLLOUT);
	CHECK_EQ(set_poll(set, NULL, ROOM, 0), 1);
	CHECK_EQ(results[0].fd, pair.a);
	CHECK_EQ(set_poll_one(set, pair.a, 0), POLLOUT);
}

/*
 * A mapping is the destination of copied results, so a page fault on it happens under the set's
 * lock.
 */
TEST(mapping_as_destination_of_a_copy)
{
	struct pair pair = tcp_pair();
	int set = set_with_area(ROOM);
	struct pollfd *results = map_results(set, ROOM, PROT_READ | PROT_WRITE, MAP_SHARED);

	set_write(set, pair.a, POLLOUT);
	CHECK_EQ(set_poll(set, results + 512, 4, 0), 1);
	CHECK_EQ(results[512].fd, pair.a);
	results[513] = (struct pollfd){ pair.b, POLLOUT, 0 };
	CHECK_EQ(write(set, results + 513, sizeof(*results)), sizeof(*results));
}

struct waiter_in_area {
	int set, result, error;
};

static void *wait_in_area(void *context)
{
	struct waiter_in_area *waiter = context;

	waiter->result = set_poll(waiter->set, NULL, ROOM, LONG_MS);
	waiter->error = errno;
	return NULL;
}

TEST(mapping_freed_while_a_thread_waits)
{
	struct pair pair = tcp_pair();
	struct waiter_in_area waiter = { set_with_area(ROOM), 0, 0 };
	pthread_t thread;

	set_write(waiter.set, pair.a, POLLIN);
	CHECK_EQ(pthread_create(&thread, NULL, wait_in_area, &waiter), 0);
	while (set_statistics(waiter.set).ds_sleeps == 0)
		sleep_ms(1);
	OK(ioctl(waiter.set, DP_FREE));
	make_readable(pair.b);
	pthread_join(thread, NULL);
	CHECK_EQ(waiter.result, -1);
	CHECK_EQ(waiter.error, EINVAL);
}
