// SPDX-License-Identifier: GPL-2.0
/*
 * Long random histories of calls. After each step the results of the sets must be those of poll(2)
 * for the same descriptors. The histories cover every combination of options, changes and waits by
 * every call, files with two descriptors and in two processes, and one or two threads that sleep
 * meanwhile (sleeper.c).
 */
#include "model.h"

#include <sys/uio.h>

/* Numbers of calls of a history: for each combination of options, and for the random ones. */
#define FEW_STEPS 50
#define STEPS 200
/* The largest number of changes in one call. */
#define BATCH 8
/* TCP on the loopback is quick, but not immediate. */
#define TRIES 2000

void model_open(struct model *model, int options)
{
	*model = (struct model){ .set = set_open_with(options), .options = options };
}

unsigned int model_entries(const struct model *model)
{
	unsigned int count = 0;

	for (int i = 0; i < SLOTS; i++)
		count += model->interests[i].in_set;
	return count;
}

int model_array(const struct model *model, struct pollfd *array)
{
	int count = 0;

	for (int i = 0; i < SLOTS; i++)
		if (model->interests[i].in_set)
			array[count++] = (struct pollfd){ slots[i].fd,
							  model->interests[i].events, 0 };
	return count;
}

/* Writes the changes to the set, with a call of a random kind. */
static void apply(int set, const struct pollfd *changes, int count)
{
	struct iovec pieces[2] = { { (void *)changes, pick(count * sizeof(*changes)) } };
	const size_t size = count * sizeof(*changes);
	struct pollfd unused;

	switch (pick(4)) {
	case 0:
		CHECK_EQ(write(set, changes, size), size);
		break;
	case 1:
		CHECK_EQ(pwrite(set, changes, size, pick(1000)), size);
		break;
	case 2:
		/* An entry may span both pieces. */
		pieces[1].iov_base = (char *)changes + pieces[0].iov_len;
		pieces[1].iov_len = size - pieces[0].iov_len;
		CHECK_EQ(writev(set, pieces, 2), size);
		break;
	case 3:
		OK(set_update_poll(set, changes, count, &unused, 1, 0));
		break;
	}
}

static struct pollfd note_interest(struct model *model, const struct slot *slot)
{
	struct pollfd change = { slot->fd, pick_events(), 0 };
	int i = slot - slots;

	if (!model->interests[i].in_set || !(model->options & DP_OPTION_OR))
		model->interests[i].events = 0;
	model->interests[i].events |= change.events;
	model->interests[i].in_set = true;
	return change;
}

static struct pollfd note_removal(struct model *model, const struct slot *slot)
{
	model->interests[slot - slots].in_set = false;
	return (struct pollfd){ slot->fd, POLLREMOVE, 0 };
}

void model_change(struct model *model)
{
	struct pollfd changes[BATCH];
	int count = pick(2) ? 1 : 1 + pick(BATCH);

	for (int i = 0; i < count; i++)
		changes[i] = pick(3) ? note_interest(model, pick_slot()) :
				       note_removal(model, pick_slot());
	apply(model->set, changes, count);
}

void model_interest(struct model *model, struct slot *slot)
{
	struct pollfd change = note_interest(model, slot);

	apply(model->set, &change, 1);
}

void model_forget(struct model *model, struct slot *slot)
{
	struct pollfd change = note_removal(model, slot);

	apply(model->set, &change, 1);
}

static bool has_hints(const struct model *model, enum kind kind)
{
	return kind != PIPE && !(model->options & DP_OPTION_NOHINTS);
}

/* In a third of the cases the interest is not removed first, and the number is reused at once. */
void models_replace(struct model *models, int count, struct slot *slot)
{
	struct slot old = *slot;
	int i = slot - slots;

	for (int j = 0; j < count; j++)
		if (pick(3) && models[j].interests[i].in_set)
			model_forget(&models[j], slot);
	if (slot->peer >= 0)
		close(slot->peer);
	slot_open(slot);
	for (int j = 0; j < count; j++) {
		if (!models[j].interests[i].in_set)
			continue;
		/*
		 * An interest with hints belongs to its socket; the descriptor may now be a
		 * duplicate of the same socket. An interest without hints belongs to the
		 * descriptor number, until a file with hints gets that number.
		 */
		if (has_hints(&models[j], old.kind) ? slot->file != old.file :
						      has_hints(&models[j], slot->kind))
			models[j].interests[i].in_set = false;
		model_interest(&models[j], slot);
	}
}

enum way { BY_POLL, BY_PPOLL, BY_UPDATE, WAYS };

static int wait_by(enum way way, int set, struct pollfd *results, int room)
{
	struct dvpoll wait = { results, room, 0, NULL };
	sigset_t all;

	switch (way) {
	case BY_PPOLL:
		sigfillset(&all);
		wait.dp_setp = &all;
		return ioctl(set, DP_PPOLL, &wait);
	case BY_UPDATE:
		return set_update_poll(set, NULL, 0, results, room, 0);
	default:
		return ioctl(set, DP_POLL, &wait);
	}
}

static bool agrees(const struct model *model, enum way way, bool last)
{
	struct pollfd expected[SLOTS], results[SLOTS + 1];
	int count = 0, ready = 0, found;

	found = OK(wait_by(way, model->set, results, SLOTS + 1));
	count = model_array(model, expected);
	ready = OK(poll(expected, count, 0));
	for (int i = 0; i < count; i++) {
		short revents = 0;

		for (int j = 0; j < found; j++) {
			if (results[j].fd != expected[i].fd)
				continue;
			CHECK_EQ(revents, 0);
			CHECK_EQ(results[j].events, expected[i].events);
			revents = results[j].revents;
		}
		if (revents == expected[i].revents)
			continue;
		if (last)
			test_fail(__FILE__, __LINE__,
				  "history %llu: fd %d, events %#x: revents %#x, expected %#x",
				  (unsigned long long)picks_began(), expected[i].fd,
				  expected[i].events, revents, expected[i].revents);
		return false;
	}
	if (found != ready && last)
		CHECK_EQ(found, ready);
	return found == ready;
}

void model_agrees(const struct model *model)
{
	enum way way = pick(WAYS);
	bool agreed = false;

	for (int try = 0; try < TRIES && !agreed; try++) {
		if (try)
			sleep_ms(1);
		agreed = agrees(model, way, try == TRIES - 1);
	}
}

static bool hpoll_agrees_now(int set, struct pollfd *array, int count, bool last)
{
	struct dvpoll wait = { array, count, 0, NULL };
	struct pollfd expected[SLOTS];
	int found, ready;

	memcpy(expected, array, count * sizeof(*array));
	for (int i = 0; i < count; i++)
		array[i].revents = 0x5a5a;
	found = OK(ioctl(set, DP_HPOLL, &wait));
	ready = OK(poll(expected, count, 0));
	for (int i = 0; i < count; i++) {
		if (array[i].revents == expected[i].revents)
			continue;
		if (last)
			test_fail(__FILE__, __LINE__,
				  "history %llu: fd %d, events %#x: revents %#x, expected %#x",
				  (unsigned long long)picks_began(), expected[i].fd,
				  expected[i].events, array[i].revents, expected[i].revents);
		return false;
	}
	if (last)
		CHECK_EQ(found, ready);
	return found == ready;
}

/*
 * The descriptors are in random order; some occur twice with different events, and there may be
 * none.
 */
void hpoll_agrees(int set)
{
	struct pollfd array[SLOTS];
	int count = pick(SLOTS + 1);
	bool agreed = false;

	for (int i = 0; i < count; i++)
		array[i] = (struct pollfd){ pick(12) ? pick_slot()->fd : -1 + 200 * (int)pick(2),
					    pick_events(), 0 };
	for (int try = 0; try < TRIES && !agreed; try++) {
		if (try)
			sleep_ms(1);
		agreed = hpoll_agrees_now(set, array, count, try == TRIES - 1);
	}
	/* A second call without new events must return the same. */
	hpoll_agrees_now(set, array, count, false);
}

/* The result area of a set. */
static struct area {
	unsigned int room;
	struct pollfd *mapping;
	/* A child has inherited a mapping of it. */
	bool inherited;
} area;

static void area_call(int set)
{
	unsigned int room = pick(3) ? 1 + pick(1000) : 0;

	switch (pick(4)) {
	case 0:
		if (!room) {
			CHECK_ERRNO(ioctl(set, DP_ALLOC, room), EINVAL);
		} else if (area.room) {
			CHECK_ERRNO(ioctl(set, DP_ALLOC, room), EPERM);
		} else {
			OK(ioctl(set, DP_ALLOC, room));
			area.room = room;
		}
		break;
	case 1:
		if (!area.room) {
			CHECK_ERRNO(ioctl(set, DP_FREE), EINVAL);
		} else if (area.mapping || area.inherited) {
			CHECK_ERRNO(ioctl(set, DP_FREE), EBUSY);
		} else {
			OK(ioctl(set, DP_FREE));
			area.room = 0;
		}
		break;
	case 2:
		if (area.mapping)
			break;
		area.mapping = mmap(NULL, area.room ? DP_MMAP_SIZE(area.room) : 1,
				    PROT_READ | PROT_WRITE, MAP_SHARED, set, 0);
		if (area.mapping == MAP_FAILED)
			area.mapping = NULL;
		CHECK_EQ(area.mapping != NULL, area.room != 0);
		break;
	case 3:
		if (area.mapping)
			munmap(area.mapping, DP_MMAP_SIZE(area.room));
		area.mapping = NULL;
		break;
	}
}

static void area_wait(const struct model *model)
{
	int found, room = 1 + pick(SLOTS);

	if (!area.room) {
		CHECK_ERRNO(set_poll(model->set, NULL, room, 0), EINVAL);
		return;
	}
	found = OK(set_poll(model->set, NULL, room, 0));
	CHECK(found <= room && found <= (int)area.room);
	for (int i = 0; area.mapping && i < found; i++) {
		unsigned int slot = area.mapping[i].fd - FIRST_SLOT;

		CHECK(slot < SLOTS && model->interests[slot].in_set);
		CHECK_EQ(area.mapping[i].events, model->interests[slot].events);
		CHECK(area.mapping[i].revents);
	}
}

static volatile sig_atomic_t caught;

static void count_signal(int number)
{
	(void)number;
	caught++;
}

/*
 * A signal that DP_PPOLL does not block takes precedence over events; a blocked one has no effect.
 */
static void signal_call(int set)
{
	struct sigaction action = { .sa_handler = count_signal };
	struct pollfd result;
	struct dvpoll wait = { &result, 1, 0, NULL };
	sigset_t one, mask;
	int before = caught;

	OK(sigaction(SIGUSR1, &action, NULL));
	sigemptyset(&one);
	sigaddset(&one, SIGUSR1);
	OK(sigprocmask(SIG_BLOCK, &one, NULL));
	raise(SIGUSR1);
	sigfillset(&mask);
	wait.dp_setp = pick(2) ? &mask : NULL;
	OK(ioctl(set, DP_PPOLL, &wait));
	CHECK_EQ(caught, before);
	sigdelset(&mask, SIGUSR1);
	wait.dp_setp = &mask;
	CHECK_ERRNO(ioctl(set, DP_PPOLL, &wait), EINTR);
	CHECK_EQ(caught, before + 1);
	OK(sigprocmask(SIG_UNBLOCK, &one, NULL));
}

/*
 * Makes a call that must fail, or must return what the model contains, and must not change the set.
 */
static void odd_call(const struct model *model)
{
	const int set = model->set, slot = pick(SLOTS);
	struct pollfd question = { slots[slot].fd, 0, 0 };
	int other, number = DPIOC | (0x30 + pick(0xd0));

	switch (pick(13)) {
	case 0:
		CHECK_EQ(OK(ioctl(set, DP_ISPOLLED, &question)), model->interests[slot].in_set);
		if (model->interests[slot].in_set)
			CHECK_EQ(question.revents, model->interests[slot].events);
		break;
	case 1:
		CHECK_EQ(set_statistics(set).ds_entries, model_entries(model));
		break;
	case 2:
		CHECK_ERRNO(write(set, &question, 1 + pick(7)), EINVAL);
		break;
	case 3:
		CHECK_ERRNO(write(set, nowhere(), sizeof(question) * (1 + pick(100))), EFAULT);
		break;
	case 4:
		CHECK_ERRNO(ioctl(set, number, pick(2) ? &question : NULL), EINVAL);
		break;
	case 5:
		CHECK_ERRNO(ioctl(set, pick(2) ? DP_POLL : DP_UPDATE_POLL, 8 * pick(3)), EFAULT);
		break;
	case 6:
		CHECK_ERRNO(set_poll(set, &question, -1 - (int)pick(1000), 0), EINVAL);
		break;
	case 7:
		if (model_entries(model))
			CHECK_ERRNO(ioctl(set, DP_SETOPTIONS, model->options ^ DP_OPTION_NOHINTS),
				    EBUSY);
		CHECK_ERRNO(ioctl(set, DP_SETOPTIONS, DP_OPTION_ALL + 1 + pick(1000)), EINVAL);
		break;
	case 8:
		question = (struct pollfd){ set, POLLIN, 0 };
		CHECK_ERRNO(write(set, &question, sizeof(question)), ELOOP);
		break;
	case 9:
		if (model_entries(model)) {
			struct dvpoll wait = { &question, 1, 0, NULL };

			CHECK_ERRNO(ioctl(set, DP_HPOLL, &wait), EBUSY);
		}
		break;
	case 10:
		question.events = POLLIN;
		CHECK_ERRNO(set_update_poll(set, &question, 1, &question, -1 - (int)pick(9), 0),
			    EINVAL);
		break;
	case 11:
		signal_call(set);
		break;
	case 12:
		/* A second descriptor of the set refers to the same set. */
		other = OK(fcntl(set, F_DUPFD_CLOEXEC, 0));
		CHECK_EQ(set_statistics(other).ds_entries, model_entries(model));
		close(other);
		break;
	}
}

/* A child process that keeps the same files open for a while. */
static pid_t holder;

static void holder_end(void)
{
	if (!holder)
		return;
	OK(kill(holder, SIGKILL));
	OK(waitpid(holder, NULL, 0));
	holder = 0;
	area.inherited = false;
}

static void forks(const struct model *models, int count)
{
	struct pollfd change = { 0, POLLIN, 0 };
	struct dvpoll wait = { &change, 1, 0, NULL };
	int status;
	pid_t pid;

	if (holder) {
		holder_end();
		return;
	}
	pid = OK(fork());
	if (!pid) {
		/* The sets belong to another process, with which the descriptors are shared. */
		for (int i = 0; i < count; i++) {
			CHECK_ERRNO(write(models[i].set, &change, sizeof(change)), EACCES);
			CHECK_ERRNO(ioctl(models[i].set, DP_POLL, &wait), EACCES);
			CHECK_ERRNO(ioctl(models[i].set, DP_HPOLL, &wait), EACCES);
		}
		for (int i = pick(4); i > 0; i--)
			slot_data(pick_slot());
		_exit(0);
	}
	OK(waitpid(pid, &status, 0));
	CHECK_EQ(status, 0);
	if (pick(2)) {
		holder = OK(fork());
		if (!holder)
			for (;;)
				pause();
		area.inherited = area.mapping != NULL;
	}
}

static void history(int options, uint64_t seed, int steps)
{
	enum { MAIN, SLEEPERS, MODELS };
	struct model models[MODELS];
	int hpoll_set = set_open_with(options);

	picks_begin(seed);
	area = (struct area){};
	slots_open();
	for (int i = 0; i < MODELS; i++)
		model_open(&models[i], options);
	notifier_add(&models[SLEEPERS]);
	for (int step = 0; step < steps; step++) {
		switch (pick(14)) {
		case 0:
		case 1:
			model_change(&models[MAIN]);
			break;
		case 2:
		case 3:
			slot_data(pick_slot());
			break;
		case 4:
			models_replace(models, MODELS, pick_slot());
			break;
		case 5:
			area_call(models[MAIN].set);
			break;
		case 6:
			area_wait(&models[MAIN]);
			break;
		case 7:
		case 8:
			sleepers_are_woken(models, MODELS, SLEEPERS, hpoll_set);
			break;
		case 9:
			if (!pick(2))
				forks(models, MODELS);
			break;
		case 10:
			hpoll_agrees(hpoll_set);
			break;
		default:
			odd_call(&models[MAIN]);
			break;
		}
		model_agrees(&models[MAIN]);
	}
	holder_end();
	notifier_close();
	slots_close();
	if (area.mapping)
		munmap(area.mapping, DP_MMAP_SIZE(area.room));
	for (int i = 0; i < MODELS; i++)
		close(models[i].set);
	close(hpoll_set);
}

TEST(model_agrees_with_poll)
{
	for (int options = 0; options <= DP_OPTION_ALL; options++)
		history(options, 20000502 + options, FEW_STEPS);
}

/*
 * Random histories with random options, for DEVPOLL_FUZZ_SECONDS. A failure prints the number of
 * its history; DEVPOLL_FUZZ_SEED=N begins with that history instead of one chosen by the clock. The
 * timing of other threads and processes may differ in a repetition.
 */
TEST(model_fuzz)
{
	const char *seconds = getenv("DEVPOLL_FUZZ_SECONDS"), *given = getenv("DEVPOLL_FUZZ_SEED");
	long end = now_ms() + 1000L * (seconds ? atoi(seconds) : 1);
	uint64_t first = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
	unsigned long histories = 0;

	for (; now_ms() < end; histories++, first++)
		history(first % (DP_OPTION_ALL + 1), first, STEPS);
	dprintf(STDOUT_FILENO, "# model_fuzz: %lu histories of %d calls, seeds up to %llu\n",
		histories, STEPS, (unsigned long long)first - 1);
}

/* Polls with room of random size: no descriptor may be reported twice in a wait, or never. */
TEST(model_small_room)
{
	for (int options = 0; options <= DP_OPTION_ALL; options++) {
		int set = set_open_with(options);
		struct pollfd expected[SLOTS];

		picks_begin(42 + options);
		slots_open();
		for (int i = 0; i < SLOTS; i++) {
			expected[i] = (struct pollfd){ slots[i].fd, POLLIN, 0 };
			set_write(set, slots[i].fd, POLLIN);
			slot_data(&slots[i]);
		}
		for (int step = 0; step < 100; step++) {
			struct pollfd results[SLOTS];
			int room = 1 + pick(SLOTS);
			int ready = OK(poll(expected, SLOTS, 0));
			int found = OK(set_poll(set, results, room, 0));

			/*
			 * TCP on the loopback is quick, but not immediate; no data is read
			 * meanwhile.
			 */
			if (OK(poll(expected, SLOTS, 0)) == ready)
				CHECK_EQ(found, room < ready ? room : ready);
			for (int i = 0; i < found; i++)
				for (int j = 0; j < i; j++)
					CHECK(results[i].fd != results[j].fd);
		}
		slots_close();
		close(set);
	}
}
