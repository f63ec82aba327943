// SPDX-License-Identifier: GPL-2.0
/* How often drivers are polled. The tests count calls and measure no times. */
#include "util.h"

#define MANY 600

static struct pair many[MANY];

static int many_open(int options, int count)
{
	static struct pollfd changes[MANY];
	int set;

	raise_descriptor_limit(2 * MANY + 50);
	set = set_open_with(options);
	for (int i = 0; i < count; i++) {
		many[i] = unix_pair(SOCK_STREAM);
		changes[i] = (struct pollfd){ many[i].a, POLLIN, 0 };
	}
	CHECK_EQ(write(set, changes, count * sizeof(*changes)), count * sizeof(*changes));
	return set;
}

/* Returns the driver polls of so many waits with one ready descriptor in the set. */
static long polls(int set, int waits)
{
	uint64_t before = set_statistics(set).ds_driver_polls;

	for (int i = 0; i < waits; i++)
		set_poll_one(set, many[0].a, 0);
	return set_statistics(set).ds_driver_polls - before;
}

TEST(hints_cost_does_not_depend_on_the_set)
{
	for (int count = 1; count <= MANY; count = count < MANY / 10 ? count * 10 : count + 199) {
		int set = many_open(0, count);

		make_readable(many[0].b);
		CHECK_EQ(polls(set, 1), 1);
		CHECK_EQ(polls(set, 10), 10);
		drain(many[0].a);
		set_poll_none(set, 0);
		CHECK_EQ(set_statistics(set).ds_entries, count);
		CHECK_EQ(set_statistics(set).ds_hinted, count);
		close(set);
		for (int i = 0; i < count; i++)
			pair_close(many[i]);
	}
}

TEST(hints_off_costs_the_whole_set)
{
	int set = many_open(DP_OPTION_NOHINTS, MANY);

	CHECK_EQ(set_statistics(set).ds_hinted, 0);
	make_readable(many[0].b);
	CHECK_EQ(polls(set, 1), MANY);
	CHECK_EQ(polls(set, 10), 10 * MANY);
	CHECK_EQ(set_statistics(set).ds_hints, 0);
	CHECK_EQ(set_statistics(set).ds_hook_polls, 0);
}

TEST(hints_table_walks_all_but_asks_few)
{
	int set = many_open(DP_OPTION_TABLE, MANY);
	struct dvpoll_statistics before, after;

	make_readable(many[0].b);
	before = set_statistics(set);
	CHECK_EQ(polls(set, 10), 10);
	after = set_statistics(set);
	CHECK_EQ(after.ds_skipped - before.ds_skipped, 10 * (MANY - 1));
}

TEST(hints_unhinted_are_polled_at_every_scan)
{
	enum { COUNT = 50 };
	struct dvpoll_statistics before, after;
	int ends[2], set = set_open();

	for (int i = 0; i < COUNT; i++) {
		OK(pipe2(ends, O_CLOEXEC));
		set_write(set, ends[0], POLLIN);
	}
	before = set_statistics(set);
	for (int i = 0; i < 10; i++)
		set_poll_none(set, 0);
	after = set_statistics(set);
	CHECK_EQ(after.ds_driver_polls - before.ds_driver_polls, 10 * COUNT);
	/* A wait that sleeps polls once before and once after its sleep, as poll(2) does. */
	before = after;
	set_poll_none(set, 5);
	after = set_statistics(set);
	CHECK_EQ(after.ds_driver_polls - before.ds_driver_polls, 2 * COUNT);
	CHECK_EQ(after.ds_sleeps - before.ds_sleeps, 1);
	CHECK_EQ(after.ds_wakeups - before.ds_wakeups, 0);
}

TEST(hints_cached_result_is_always_asked_again)
{
	struct pair pair = unix_pair(SOCK_STREAM);
	struct dvpoll_statistics before, after;
	int set = set_open();

	set_write(set, pair.a, POLLIN);
	make_readable(pair.b);
	CHECK_EQ(set_poll_one(set, pair.a, 0), POLLIN);
	before = set_statistics(set);
	CHECK_EQ(set_poll_one(set, pair.a, 0), POLLIN);
	drain(pair.a);
	set_poll_none(set, 0);
	after = set_statistics(set);
	CHECK_EQ(after.ds_cached - before.ds_cached, 2);
	CHECK_EQ(after.ds_driver_polls - before.ds_driver_polls, 2);
	/* The entry was not ready at the last scan and got no hint since, so it is not polled. */
	set_poll_none(set, 0);
	CHECK_EQ(set_statistics(set).ds_driver_polls, after.ds_driver_polls);
}

TEST(hints_many_events_are_one_hint)
{
	struct pair pair = unix_pair(SOCK_STREAM);
	struct dvpoll_statistics before, after;
	int set = set_open();

	set_write(set, pair.a, POLLIN);
	before = set_statistics(set);
	for (int i = 0; i < 100; i++)
		make_readable(pair.b);
	CHECK_EQ(set_poll_one(set, pair.a, 0), POLLIN);
	after = set_statistics(set);
	CHECK_EQ(after.ds_hints - before.ds_hints, 1);
	CHECK_EQ(after.ds_driver_polls - before.ds_driver_polls, 1);
}

TEST(hints_are_not_posted_for_unwanted_events)
{
	struct pair pair = unix_pair(SOCK_STREAM);
	int set = set_open();

	set_write(set, pair.a, POLLRDHUP);
	for (int i = 0; i < 100; i++)
		make_readable(pair.b);
	set_poll_none(set, 0);
	CHECK_EQ(set_statistics(set).ds_hints, 0);
	CHECK_EQ(set_statistics(set).ds_driver_polls, 0);
}

TEST(hints_for_an_entry_that_is_removed)
{
	struct pair pair = unix_pair(SOCK_STREAM), other = unix_pair(SOCK_STREAM);
	int set = set_open();

	for (int i = 0; i < 100; i++) {
		set_write(set, pair.a, POLLIN);
		set_write(set, other.a, POLLIN);
		make_readable(pair.b);
		make_readable(other.b);
		set_remove(set, pair.a);
		CHECK_EQ(set_poll_one(set, other.a, 0), POLLIN);
		set_remove(set, other.a);
		drain(pair.a);
		drain(other.a);
	}
}

TEST(hints_same_events_written_again_cost_nothing)
{
	struct pair pair = unix_pair(SOCK_STREAM);
	struct dvpoll_statistics before, after;
	int set = set_open();

	set_write(set, pair.a, POLLIN | POLLPRI);
	before = set_statistics(set);
	set_write(set, pair.a, POLLIN | POLLPRI);
	set_write(set, pair.a, POLLIN);
	set_poll_none(set, 0);
	after = set_statistics(set);
	CHECK_EQ(after.ds_driver_polls, before.ds_driver_polls);
	CHECK_EQ(after.ds_hook_polls, before.ds_hook_polls);
	CHECK_EQ(after.ds_changes - before.ds_changes, 2);
}

TEST(hints_counters_elsewhere)
{
	struct dvpoll_statistics statistics = { .ds_size = 16, .ds_waits = 99 };
	struct pair pair = unix_pair(SOCK_STREAM);
	char path[64], text[2048];
	int set = set_open(), file;
	ssize_t got;

	set_write(set, pair.a, POLLOUT);
	set_poll_one(set, pair.a, 0);
	/* A caller with a smaller structure gets fewer counters. */
	OK(ioctl(set, DP_GETSTATISTICS, &statistics));
	CHECK_EQ(statistics.ds_size, sizeof(statistics));
	CHECK_EQ(statistics.ds_entries, 1);
	CHECK_EQ(statistics.ds_waits, 99);
	statistics.ds_size = 1 << 20;
	OK(ioctl(set, DP_GETSTATISTICS, &statistics));
	CHECK_EQ(statistics.ds_waits, 1);
	statistics.ds_size = 4;
	CHECK_ERRNO(ioctl(set, DP_GETSTATISTICS, &statistics), EINVAL);
	CHECK_ERRNO(ioctl(set, DP_GETSTATISTICS, nowhere()), EFAULT);

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", set);
	file = OK(open(path, O_RDONLY | O_CLOEXEC));
	got = OK(read(file, text, sizeof(text) - 1));
	text[got] = 0;
	CHECK(strstr(text, "update:\treplace\n"));
	CHECK(strstr(text, "hints:\ton\n"));
	CHECK(strstr(text, "\nentries:\t1\n"));
	CHECK(strstr(text, "\nresults:\t1\n"));
	file = OK(open("/proc/devpoll", O_RDONLY | O_CLOEXEC));
	got = OK(read(file, text, sizeof(text) - 1));
	text[got] = 0;
	CHECK(strstr(text, "sets:\t"));
	CHECK(strstr(text, "\ndriver_polls:\t"));
}

/* If another call takes a hint off the list, sleeping threads must still wake. */
TEST(hints_taken_by_statistics_still_wake)
{
	struct pair pair = unix_pair(SOCK_STREAM);
	int set = set_open();

	set_write(set, pair.a, POLLIN);
	for (int i = 0; i < 200; i++) {
		struct waiter waiter;

		waiter_start(&waiter, set, LONG_MS);
		if (i % 2)
			waiter_is_asleep(&waiter);
		make_readable(pair.b);
		set_statistics(set);
		CHECK_EQ(waiter_join(&waiter), 1);
		drain(pair.a);
		set_poll_none(set, 0);
	}
}

struct race {
	int set, fd;
	/* Rounds that the main thread has begun, and that the waiting thread has ended. */
	volatile int begun, ended;
	volatile bool stop;
};

static void *take_on_and_on(void *context)
{
	struct race *race = context;
	struct pollfd result;

	while (!race->stop)
		set_poll(race->set, &result, 1, 0);
	return NULL;
}

static void *wait_on_and_on(void *context)
{
	struct race *race = context;
	struct pollfd result;

	while (!race->stop) {
		if (race->begun == race->ended)
			continue;
		if (set_poll(race->set, &result, 1, LONG_MS) != 1)
			return race;
		drain(race->fd);
		race->ended = race->begun;
	}
	return NULL;
}

/*
 * A thread has scanned and is about to sleep. The hint arrives, and another thread takes it. Both
 * threads must report the ready descriptor.
 */
TEST(hints_taken_by_another_thread_still_wake)
{
	enum { ROUNDS = 20000, SECONDS = 4 };
	struct pair pair = unix_pair(SOCK_STREAM);
	struct race race = { .set = set_open(), .fd = pair.a };
	long end = now_ms() + SECONDS * 1000;
	pthread_t taker, waiter;
	void *failed;

	set_write(race.set, pair.a, POLLIN);
	CHECK_EQ(pthread_create(&taker, NULL, take_on_and_on, &race), 0);
	CHECK_EQ(pthread_create(&waiter, NULL, wait_on_and_on, &race), 0);
	for (int round = 0; round < ROUNDS && now_ms() < end; round++) {
		long limit = now_ms() + LONG_MS / 2;

		race.begun++;
		/* The delay makes the hint arrive at different points of its way to sleep. */
		for (volatile int delay = round * 97 % 3000; delay; delay--)
			;
		make_readable(pair.b);
		while (race.ended != race.begun && now_ms() < limit)
			;
		CHECK_EQ(race.ended, race.begun);
	}
	race.stop = true;
	pthread_join(taker, NULL);
	pthread_join(waiter, &failed);
	CHECK(!failed);
}
