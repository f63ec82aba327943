// SPDX-License-Identifier: GPL-2.0
/* A thread that sleeps in a wait while the files and the interests of its set change. */
#include "model.h"

#include <sched.h>

/* So often at most the bell is in an array, for a walk that lasts; fits below RLIMIT_NOFILE. */
#define MOST_BELLS 900
#define ARRAY (SLOTS + MOST_BELLS)

/* A socket or a pipe: with hints, or without. */
static struct pair bell;
static bool bell_is_pipe;

void bell_hang(const struct model *model)
{
	int ends[2];

	bell_is_pipe = pick(2);
	if (bell_is_pipe) {
		OK(pipe2(ends, O_CLOEXEC | O_NONBLOCK));
		bell = (struct pair){ ends[0], ends[1] };
	} else {
		bell = unix_pair(SOCK_STREAM);
	}
	set_write(model->set, bell.a, POLLIN);
}

void bell_take_down(void)
{
	pair_close(bell);
}

static void bell_is_still(void)
{
	char byte;

	if (bell_is_pipe)
		(void)!read(bell.a, &byte, 1);
	else
		drain(bell.a);
}

struct sleeper {
	pthread_t thread;
	unsigned int call;
	int set, count, timeout, result, error;
	volatile bool begun;
	/* DP_HPOLL's array, or room for results. */
	struct pollfd fds[ARRAY];
};

static void *sleep_in_call(void *context)
{
	struct sleeper *sleeper = context;
	struct dvpoll wait = { sleeper->fds, sleeper->count, sleeper->timeout, NULL };
	struct dvpoll_update update = {
		.du_fds = sleeper->fds,
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
	return NULL;
}

/* Takes out of an array what is ready; how many are left. */
static int unready(struct pollfd *array, int count)
{
	int left = 0;

	OK(poll(array, count, 0));
	for (int i = 0; i < count; i++)
		if (!array[i].revents)
			array[left++] = array[i];
	return left;
}

/* Nothing in the set is ready, unless it becomes so just now. */
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
	for (int bells = pick(2) ? 1 + pick(MOST_BELLS) : 1; bells > 0; bells--)
		array[count++] = (struct pollfd){ bell.a, POLLIN, 0 };
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

/* Things happen. A file in an array must stay, as for poll(2); one in a set is written again. */
static void disturb(struct model *models, int count, struct model *model)
{
	for (int i = 1 + pick(4); i > 0; i--) {
		spin_us(pick(300));
		switch (pick(model ? 6 : 4)) {
		case 3:
			/* For some at once, so that hints pile up. */
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

static bool returns_within(struct sleeper *sleeper, long ms)
{
	struct timespec end;

	OK(clock_gettime(CLOCK_REALTIME, &end));
	end.tv_sec += ms / 1000;
	return !pthread_timedjoin_np(sleeper->thread, NULL, &end);
}

static void check_results(const struct sleeper *sleeper, const struct pollfd *asked)
{
	int found = 0;

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
		CHECK_EQ(sleeper->fds[i].fd, asked[i].fd);
		CHECK_EQ(sleeper->fds[i].revents & ~(asked[i].events | POLLERR | POLLHUP), 0);
		found += sleeper->fds[i].revents != 0;
	}
	CHECK(found > 0);
	CHECK_EQ(sleeper->result, found);
}

void sleeper_is_woken(struct model *models, int count, int which, int set)
{
	static const unsigned int calls[] = { DP_POLL, DP_PPOLL, DP_UPDATE_POLL, DP_HPOLL,
					      DP_HPOLL };
	struct sleeper sleeper = { .call = calls[pick(5)], .count = SLOTS + 1 };
	struct model *model = sleeper.call == DP_HPOLL ? NULL : &models[which];
	struct pollfd asked[ARRAY];
	int asked_count = 0, ready;

	sleeper.timeout = pick(2) ? -1 : 3 * LONG_MS;
	if (model) {
		for (int i = pick(6); i > 0; i--)
			model_change(model);
		quieten(model);
		sleeper.set = model->set;
	} else {
		/* What the call before named, and this one does not, is forgotten by it. */
		if (pick(2))
			hpoll_agrees(set);
		asked_count = sleeper.count = random_array(asked);
		memcpy(sleeper.fds, asked, asked_count * sizeof(*asked));
		sleeper.set = set;
	}
	CHECK_EQ(pthread_create(&sleeper.thread, NULL, sleep_in_call, &sleeper), 0);
	/* It may be anywhere in its call, before or in its sleep. */
	while (!sleeper.begun)
		sched_yield();
	disturb(models, count, model);

	/* What the set has come to hold. An array stays what it was. */
	if (model)
		asked_count = model_array(model, asked);
	ready = OK(poll(asked, asked_count, 0));
	if (!ready)
		make_readable(bell.b);
	if (!returns_within(&sleeper, LONG_MS))
		test_fail(__FILE__, __LINE__, "history %llu: call %#x sleeps, and %d are ready",
			  (unsigned long long)picks_began(), sleeper.call, ready + !ready);
	check_results(&sleeper, asked);
	if (!ready)
		bell_is_still();
	if (model)
		model_agrees(model);
}
