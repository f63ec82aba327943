// SPDX-License-Identifier: GPL-2.0
/*
 * Threads open, close, reuse, write, change and poll the same few sets and descriptors in random
 * order. Afterwards no resource may be left. This takes DEVPOLL_STORM_SECONDS (environment
 * variable; 3 by default, 30 for a long run, at most TEST_SECONDS less a margin).
 */
#include "util.h"

#define THREADS 6
#define SETS 3
#define NUMBERS 24
/* The first of the descriptors that all threads open and close. */
#define FIRST 400
#define FIRST_SET 460

static volatile int stop;

static unsigned int pick(uint64_t *seed, unsigned int below)
{
	*seed = *seed * 6364136223846793005ULL + 1442695040888963407ULL;
	return (*seed >> 33) % below;
}

static int number(uint64_t *seed)
{
	return FIRST + pick(seed, NUMBERS);
}

static int set_number(uint64_t *seed)
{
	return FIRST_SET + pick(seed, SETS);
}

static void put_under(int fd, int target)
{
	dup3(fd, target, O_CLOEXEC);
	close(fd);
}

static void open_pair(uint64_t *seed)
{
	int ends[2], result;

	if (pick(seed, 4))
		result = socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends);
	else
		result = pipe2(ends, O_NONBLOCK | O_CLOEXEC);
	if (result)
		return;
	put_under(ends[0], number(seed));
	put_under(ends[1], number(seed));
}

static void open_set(uint64_t *seed)
{
	int set = open("/dev/poll", O_RDWR | O_CLOEXEC);

	if (set < 0)
		return;
	ioctl(set, DP_SETOPTIONS, pick(seed, DP_OPTION_ALL + 1));
	put_under(set, set_number(seed));
}

static void change(uint64_t *seed)
{
	struct pollfd changes[8];
	int count = 1 + pick(seed, 8);

	for (int i = 0; i < count; i++) {
		static const short events[] = { POLLIN, POLLOUT, POLLREMOVE, POLLIN | POLLOUT };

		changes[i] = (struct pollfd){ number(seed), events[pick(seed, 4)], 0 };
	}
	if (pick(seed, 2))
		(void)!write(set_number(seed), changes, count * sizeof(*changes));
	else
		set_update_poll(set_number(seed), changes, count, changes, count, pick(seed, 2));
}

static void wait_somehow(uint64_t *seed)
{
	struct pollfd results[8];
	struct dvpoll wait = { results, 8, pick(seed, 3), NULL };

	switch (pick(seed, 3)) {
	case 0:
		set_poll(set_number(seed), results, 1 + pick(seed, 8), pick(seed, 3));
		break;
	case 1:
		set_poll(set_number(seed), NULL, 8, pick(seed, 3));
		break;
	case 2:
		for (int i = 0; i < 8; i++)
			results[i] = (struct pollfd){ number(seed), POLLIN | POLLOUT, 0 };
		ioctl(set_number(seed), DP_HPOLL, &wait);
		break;
	}
}

static void map_somehow(uint64_t *seed)
{
	int set = set_number(seed);
	struct pollfd *mapping;

	ioctl(set, DP_ALLOC, 1 + pick(seed, 2000));
	mapping = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, set, 0);
	set_poll(set, NULL, 8, 0);
	if (mapping != MAP_FAILED) {
		mapping[0].fd = 1;
		munmap(mapping, 4096);
	}
	if (pick(seed, 2))
		ioctl(set, DP_FREE);
}

static void *storm(void *context)
{
	uint64_t seed = (uintptr_t)context * 7919;
	struct dvpoll_statistics statistics = { .ds_size = sizeof(statistics) };
	struct pollfd question;
	char bytes[64];

	while (!stop) {
		switch (pick(&seed, 16)) {
		case 0:
		case 1:
			open_pair(&seed);
			break;
		case 2:
			close(number(&seed));
			break;
		case 3:
			if (!pick(&seed, 4))
				open_set(&seed);
			break;
		case 4:
			dup3(number(&seed), number(&seed), O_CLOEXEC);
			break;
		case 5:
		case 6:
			(void)!write(number(&seed), bytes, sizeof(bytes));
			break;
		case 7:
			(void)!read(number(&seed), bytes, sizeof(bytes));
			break;
		case 8:
		case 9:
		case 10:
			change(&seed);
			break;
		case 11:
		case 12:
			wait_somehow(&seed);
			break;
		case 13:
			map_somehow(&seed);
			break;
		case 14:
			question.fd = number(&seed);
			ioctl(set_number(&seed), DP_ISPOLLED, &question);
			ioctl(set_number(&seed), DP_GETSTATISTICS, &statistics);
			ioctl(set_number(&seed), DP_SETOPTIONS, pick(&seed, DP_OPTION_ALL + 1));
			break;
		case 15:
			shutdown(number(&seed), SHUT_RDWR);
			break;
		}
	}
	return NULL;
}

static long seconds(void)
{
	const char *text = getenv("DEVPOLL_STORM_SECONDS");
	long wanted = text ? atol(text) : 3;

	return wanted < 1 ? 1 : wanted > TEST_SECONDS - 20 ? TEST_SECONDS - 20 : wanted;
}

TEST(storm_of_threads)
{
	pthread_t threads[THREADS];
	uint64_t seed = 1;

	for (int i = 0; i < SETS * 4; i++)
		open_set(&seed);
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, storm, (void *)(uintptr_t)(i + 1)), 0);
	sleep_ms(seconds() * 1000);
	stop = 1;
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
}

struct sender {
	pthread_t thread;
	struct pair pair;
};

static void *send_and_drain(void *context)
{
	struct sender *sender = context;
	char bytes[64];

	while (!stop) {
		(void)!write(sender->pair.b, "x", 1);
		(void)!read(sender->pair.a, bytes, sizeof(bytes));
	}
	return NULL;
}

/*
 * Posts hints for one set from several processors while a thread waits on it, so that all
 * processors access the data of hints at the same time. KCSAN detects data here that no lock
 * protects.
 */
TEST(storm_of_hints)
{
	struct sender senders[3];
	struct pollfd results[3];
	int set = set_open();
	long end = now_ms() + seconds() * 1000;

	for (int i = 0; i < 3; i++) {
		senders[i].pair = unix_pair(SOCK_STREAM | SOCK_NONBLOCK);
		set_write(set, senders[i].pair.a, POLLIN);
		CHECK_EQ(pthread_create(&senders[i].thread, NULL, send_and_drain, &senders[i]), 0);
	}
	while (now_ms() < end)
		CHECK(set_poll(set, results, 3, 10) >= 0);
	stop = 1;
	for (int i = 0; i < 3; i++)
		CHECK_EQ(pthread_join(senders[i].thread, NULL), 0);
	/* No hint was lost: a wait reports all ready descriptors. */
	for (int i = 0; i < 3; i++) {
		drain(senders[i].pair.a);
		make_readable(senders[i].pair.b);
	}
	CHECK_EQ(set_poll(set, results, 3, LONG_MS), 3);
}

static long inodes(void)
{
	long count = -1;
	FILE *file = fopen("/proc/sys/fs/inode-nr", "re");

	if (file) {
		if (fscanf(file, "%ld", &count) != 1)
			count = -1;
		fclose(file);
	}
	return count;
}

/* Each entry holds an inode. Ten thousand sockets are opened and closed in every possible way. */
TEST(storm_leaves_no_inodes)
{
	enum { ROUNDS = 2500 };
	long before = inodes();

	for (int round = 0; round < ROUNDS; round++) {
		struct pair pair = unix_pair(SOCK_STREAM), other = unix_pair(SOCK_STREAM);
		int set = set_open();

		set_write(set, pair.a, POLLIN);
		set_write(set, pair.b, POLLIN);
		set_write(set, other.a, POLLIN);
		if (round % 2)
			set_remove(set, pair.a);
		if (round % 3)
			pair_close(pair);
		if (round % 5)
			dup2(other.b, other.a);
		if (round % 7)
			set_write(set, other.a, POLLOUT);
		if (round % 3 == 0)
			pair_close(pair);
		if (round % 2)
			pair_close(other);
		close(set);
		if (round % 2 == 0)
			pair_close(other);
	}
	CHECK(before > 0);
	for (long end = now_ms() + LONG_MS;
	     inodes() > before + ROUNDS / 10 && now_ms() < end;)
		sleep_ms(20);
	if (inodes() > before + ROUNDS / 10)
		test_fail(__FILE__, __LINE__, "inodes %ld -> %ld", before, inodes());
}

/* Closes a set with many sockets without removing any of them. */
TEST(storm_large_set_closed)
{
	enum { COUNT = 400 };
	struct pair pairs[COUNT];
	int set = set_open();

	for (int i = 0; i < COUNT; i++) {
		pairs[i] = unix_pair(SOCK_STREAM);
		set_write(set, pairs[i].a, POLLIN);
		make_readable(pairs[i].b);
	}
	close(set);
	/* Wake-ups of these sockets must no longer post hints. */
	for (int i = 0; i < COUNT; i++) {
		make_readable(pairs[i].b);
		pair_close(pairs[i]);
	}
}
