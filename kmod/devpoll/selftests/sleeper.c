// SPDX-License-Identifier: GPL-2.0
/*
 * One thread sleeps in a wait, or two threads sleep in the same set, while the files and the
 * interests of the set change.
 */
#include "model.h"

#include <sched.h>

/*
 * The largest number of entries of the notifier in one array: a long walk that fits below
 * RLIMIT_NOFILE.
 */
#define MOST_NOTIFIERS 900
#define ARRAY (SLOTS + MOST_NOTIFIERS)

/* A socket (with hints) or a pipe (without hints). */
static struct pair notifier;
static bool notifier_is_pipe;

void notifier_add(const struct model *model)
{
	int ends[2];

	notifier_is_pipe = pick(2);
	if (notifier_is_pipe) {
		OK(pipe2(ends, O_CLOEXEC | O_NONBLOCK));
		notifier = (struct pair){ ends[0], ends[1] };
	} else {
		notifier = unix_pair(SOCK_STREAM);
	}
	set_write(model->set, notifier.a, POLLIN);
}

void notifier_close(void)
{
	pair_close(notifier);
}

static void notifier_drain(void)
{
	char bytes[8];

	if (notifier_is_pipe)
		(void)!read(notifier.a, bytes, sizeof(bytes));
	else
		drain(notifier.a);
}

/* Ways in which a wait may end without results; its hint must then wake the other waiter. */
enum fate {
	LASTS,
	TIMES_OUT,
	IS_SIGNALLED,
	HAS_BAD_MEMORY,
	FATES,
};

struct sleeper {
	pthread_t thread;
	unsigned int call;
	enum fate fate;
	int set, count, timeout, result, error;
	volatile bool begun;
	bool ended;
	/* The array of DP_HPOLL, or room for results. */
	struct pollfd fds[ARRAY];
};

static void *sleep_in_call(void *context)
{
	struct sleeper *sleeper = context;
	struct pollfd *fds = sleeper->fate == HAS_BAD_MEMORY ? nowhere() : sleeper->fds;
	struct dvpoll wait = { fds, sleeper->count, sleeper->timeout, NULL };
	struct dvpoll_update update = {
		.du_fds = fds,
		.du_nfds = sleeper->count,
		.du_timeout = sleeper->timeout,
	};
	sigset_t all;

	sigfillset(&all);
	if (sleeper->call == DP_PPOLL)
		wait.dp_setp = &all;
	sleeper->begun = true;
	sleeper->result = ioctl(sleeper->set, sleeper->call,
				sleeper->call == DP_UPDATE_POLL ? (void *)&update : &wait);
	sleeper->error = errno;
	__atomic_store_n(&sleeper->ended, true, __ATOMIC_RELEASE);
	return NULL;
}

static bool has_ended(const struct sleeper *sleeper)
{
	return __atomic_load_n(&sleeper->ended, __ATOMIC_ACQUIRE);
}

static void sleeper_start(struct sleeper *sleeper)
{
	CHECK_EQ(pthread_create(&sleeper->thread, NULL, sleep_in_call, sleeper), 0);
	/* The thread may be at any point of its call, before or in its sleep. */
	while (!sleeper->begun)
		sched_yield();
}

/* Sends a signal only to a thread whose fate it is. */
static void sleeper_signal(struct sleeper *sleeper)
{
	struct sigaction action = { .sa_handler = do_nothing };

	if (sleeper->fate != IS_SIGNALLED)
		return;
	OK(sigaction(SIGUSR2, &action, NULL));
	CHECK_EQ(pthread_kill(sleeper->thread, SIGUSR2), 0);
}

/* Removes the ready descriptors from an array; returns how many are left. */
static int unready(struct pollfd *array, int count)
{
	int left = 0;

	OK(poll(array, count, 0));
	for (int i = 0; i < count; i++)
		if (!array[i].revents)
			array[left++] = array[i];
	return left;
}

/* Afterwards no descriptor in the set is ready, unless one has just become ready. */
static void quieten(struct model *model)
{
	struct pollfd array[SLOTS];
	int count = model_array(model, array);

	OK(poll(array, count, 0));
	for (int i = 0; i < count; i++)
		if (array[i].revents)
			model_forget(model, &slots[array[i].fd - FIRST_SLOT]);
}

static int random_array(struct pollfd *array)
{
	int count = pick(SLOTS);

	for (int i = 0; i < count; i++)
		array[i] = (struct pollfd){ pick_slot()->fd, pick_events(), 0 };
	count = unready(array, count);
	for (int entries = pick(2) ? 1 + pick(MOST_NOTIFIERS) : 1; entries > 0; entries--)
		array[count++] = (struct pollfd){ notifier.a, POLLIN, 0 };
	return count;
}

static void spin_us(long us)
{
	struct timespec now, end;

	OK(clock_gettime(CLOCK_MONOTONIC, &end));
	end.tv_nsec += us * 1000;
	do
		OK(clock_gettime(CLOCK_MONOTONIC, &now));
	while ((now.tv_sec - end.tv_sec) * 1000000000LL + now.tv_nsec - end.tv_nsec < 0);
}

/*
 * Makes random changes. A file in an array must stay, as for poll(2); one in a set is written
 * again.
 */
static void disturb(struct model *models, int count, struct model *model)
{
	for (int i = 1 + pick(4); i > 0; i--) {
		spin_us(pick(300));
		switch (pick(model ? 6 : 4)) {
		case 3:
			/* Changes several at once, so that hints accumulate. */
			for (int j = 1 + pick(6); j > 0; j--)
				slot_feed(pick_slot());
			break;
		case 4:
			model_change(model);
			break;
		case 5:
			models_replace(models, count, pick_slot());
			break;
		default:
			slot_data(pick_slot());
			break;
		}
	}
}

/* Returns whether a wait that has ended reported a descriptor that is ready now. */
static bool has_reported(const struct sleeper *sleeper, const struct pollfd *now, int count)
{
	for (int i = 0; i < sleeper->result; i++)
		for (int j = 0; j < count; j++)
			if (sleeper->fds[i].fd == now[j].fd && now[j].revents)
				return true;
	return false;
}

static int first_asleep(const struct sleeper *sleepers, int number)
{
	int i = 0;

	while (i < number && has_ended(&sleepers[i]))
		i++;
	return i;
}

/*
 * Waits until all threads have returned. With exclusive waking, one thread that reported a
 * descriptor that is ready @now is enough; the others may keep sleeping then.
 */
static void wait_until_reported(const struct sleeper *sleepers, int number, bool one,
				const struct pollfd *now, int count)
{
	const long end = now_ms() + LONG_MS;
	int asleep;

	while ((asleep = first_asleep(sleepers, number)) < number) {
		for (int i = 0; one && i < number; i++)
			if (has_ended(&sleepers[i]) && has_reported(&sleepers[i], now, count))
				return;
		if (now_ms() > end)
			test_fail(__FILE__, __LINE__,
				  "history %llu: call %#x, %d of %d, sleeps beside what is ready",
				  (unsigned long long)picks_began(), sleepers[asleep].call,
				  asleep + 1, number);
		sleep_ms(1);
	}
}

/* Returns whether such a wait may end in this way without results. */
static bool may_end_so(const struct sleeper *sleeper)
{
	switch (sleeper->fate) {
	case TIMES_OUT:
		return sleeper->result == 0;
	case IS_SIGNALLED:
		return sleeper->result < 0 && sleeper->error == EINTR;
	case HAS_BAD_MEMORY:
		return sleeper->result < 0 && sleeper->error == EFAULT;
	default:
		return false;
	}
}

static void check_results(const struct sleeper *sleeper, const struct pollfd *requested)
{
	int found = 0;

	if (may_end_so(sleeper))
		return;
	if (sleeper->result < 0)
		test_fail(__FILE__, __LINE__, "history %llu: call %#x: %s",
			  (unsigned long long)picks_began(), sleeper->call,
			  strerror(sleeper->error));
	if (sleeper->call != DP_HPOLL) {
		CHECK(sleeper->result > 0);
		for (int i = 0; i < sleeper->result; i++)
			CHECK(sleeper->fds[i].revents);
		return;
	}
	for (int i = 0; i < sleeper->count; i++) {
		CHECK_EQ(sleeper->fds[i].fd, requested[i].fd);
		CHECK_EQ(sleeper->fds[i].revents & ~(requested[i].events | POLLERR | POLLHUP), 0);
		found += sleeper->fds[i].revents != 0;
	}
	CHECK(found > 0);
	CHECK_EQ(sleeper->result, found);
}

/* Chooses a wait in a set, with a call of a random kind. */
static void sleeper_choose(struct sleeper *sleeper, enum fate fate, const struct model *model)
{
	static const unsigned int calls[] = { DP_POLL, DP_PPOLL, DP_UPDATE_POLL };

	sleeper->call = calls[pick(3)];
	sleeper->fate = fate;
	sleeper->set = model->set;
	sleeper->count = pick(3) ? SLOTS + 1 : 1;
	/*
	 * The timeout is longer than the test waits, because the kernel scans once more after a
	 * timeout.
	 */
	sleeper->timeout = fate == TIMES_OUT ? (int)pick(10) : pick(2) ? -1 : 3 * LONG_MS;
}

static void sleep_in_set(struct model *models, int count, struct model *model)
{
	struct sleeper sleepers[2] = {};
	const int number = 1 + pick(2), other = pick(2);
	const bool one = number > 1 && model->options & DP_OPTION_EXCLUSIVE;
	struct pollfd now[SLOTS + 1];
	int now_count;

	for (int i = pick(6); i > 0; i--)
		model_change(model);
	quieten(model);
	/* Of two threads the first is usually the one that an exclusive hint wakes. */
	for (int i = 0; i < number; i++) {
		sleeper_choose(&sleepers[i], number > 1 && i == other ? pick(FATES) : LASTS, model);
		sleeper_start(&sleepers[i]);
	}
	if (pick(2))
		sleeper_signal(&sleepers[other]);
	disturb(models, count, model);
	sleeper_signal(&sleepers[other]);

	/* The descriptors that the set contains now. */
	now_count = model_array(model, now);
	now[now_count++] = (struct pollfd){ notifier.a, POLLIN, 0 };
	if (!OK(poll(now, now_count, 0))) {
		make_readable(notifier.b);
		CHECK(OK(poll(now, now_count, 0)) > 0);
	}
	wait_until_reported(sleepers, number, one, now, now_count);
	if (first_asleep(sleepers, number) < number) {
		make_readable(notifier.b);
		wait_until_reported(sleepers, number, false, now, now_count);
	}
	for (int i = 0; i < number; i++) {
		CHECK_EQ(pthread_join(sleepers[i].thread, NULL), 0);
		check_results(&sleepers[i], NULL);
	}
	notifier_drain();
	model_agrees(model);
}

static void sleep_in_hpoll(struct model *models, int count, int set)
{
	struct sleeper sleeper = { .call = DP_HPOLL, .set = set };
	struct pollfd requested[ARRAY];

	sleeper.timeout = pick(2) ? -1 : 3 * LONG_MS;
	/*
	 * A call removes the entries of descriptors that were only in the array of the previous
	 * call.
	 */
	if (pick(2))
		hpoll_agrees(set);
	sleeper.count = random_array(requested);
	memcpy(sleeper.fds, requested, sleeper.count * sizeof(*requested));
	sleeper_start(&sleeper);
	disturb(models, count, NULL);
	if (!OK(poll(requested, sleeper.count, 0)))
		make_readable(notifier.b);
	wait_until_reported(&sleeper, 1, false, NULL, 0);
	CHECK_EQ(pthread_join(sleeper.thread, NULL), 0);
	check_results(&sleeper, requested);
	notifier_drain();
}

void sleepers_are_woken(struct model *models, int count, int which, int set)
{
	if (pick(5) < 3)
		sleep_in_set(models, count, &models[which]);
	else
		sleep_in_hpoll(models, count, set);
}
