// SPDX-License-Identifier: GPL-2.0
/*
 * Long random histories, after each step of which the set must say what poll(2) says about the
 * same descriptors: for every combination of options, and with changes by every way there is.
 */
#include "util.h"

#define SLOTS 24
#define STEPS 200
/* Descriptors of the slots: each keeps its own, whatever is opened under it. */
#define FIRST 300

enum kind { UNIX, TCP, PIPE, KINDS };

struct slot {
	enum kind kind;
	int fd, peer;
	bool in_set;
	short events;
};

static struct slot slots[SLOTS];
static uint64_t seed;

static unsigned int pick(unsigned int below)
{
	seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
	return (seed >> 33) % below;
}

static short pick_events(void)
{
	static const short choices[] = { 0, POLLIN, POLLOUT, POLLIN | POLLOUT, POLLPRI,
					 POLLIN | POLLRDHUP };

	return choices[pick(6)];
}

/* A new file under the slot's number, which closes what it was before. */
static void slot_open(struct slot *slot)
{
	int ends[2], number = FIRST + (slot - slots);

	slot->kind = pick(KINDS);
	if (slot->kind == PIPE) {
		OK(pipe2(ends, O_CLOEXEC | O_NONBLOCK));
	} else {
		struct pair pair = slot->kind == TCP ? tcp_pair() : unix_pair(SOCK_STREAM);

		ends[0] = pair.a;
		ends[1] = pair.b;
	}
	OK(dup3(ends[0], number, O_CLOEXEC));
	close(ends[0]);
	slot->fd = number;
	slot->peer = ends[1];
}

static void change(int set, const struct pollfd *change)
{
	struct pollfd unused;

	if (pick(2))
		CHECK_EQ(write(set, change, sizeof(*change)), sizeof(*change));
	else
		OK(set_update_poll(set, change, 1, &unused, 1, 0));
}

static void slot_interest(int set, struct slot *slot, bool or_events)
{
	struct pollfd wanted = { slot->fd, pick_events(), 0 };

	change(set, &wanted);
	slot->events = slot->in_set && or_events ? slot->events | wanted.events : wanted.events;
	slot->in_set = true;
}

static void slot_forget(int set, struct slot *slot)
{
	struct pollfd unwanted = { slot->fd, POLLREMOVE, 0 };

	change(set, &unwanted);
	slot->in_set = false;
}

static void slot_data(struct slot *slot)
{
	char bytes[64];

	switch (pick(4)) {
	case 0:
		(void)!write(slot->peer, "data", 4);
		break;
	case 1:
		(void)!fcntl(slot->fd, F_SETFL, O_NONBLOCK);
		while (read(slot->fd, bytes, sizeof(bytes)) > 0)
			;
		break;
	case 2:
		if (slot->kind != PIPE)
			shutdown(slot->peer, SHUT_WR);
		break;
	case 3:
		if (slot->kind == UNIX)
			while (send(slot->fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
				;
		break;
	}
}

/* In a third of cases without telling the set first: the number is used again at once. */
static void slot_replace(int set, struct slot *slot, int options)
{
	bool unhinted = options & DP_OPTION_NOHINTS;
	bool went_by_number = unhinted || slot->kind == PIPE;

	if (pick(3) && slot->in_set)
		slot_forget(set, slot);
	close(slot->peer);
	slot_open(slot);
	if (!slot->in_set)
		return;
	/* The interest in a socket ended with it; one without hints goes by the number, and on. */
	if (!went_by_number || !(unhinted || slot->kind == PIPE))
		slot->in_set = false;
	slot_interest(set, slot, options & DP_OPTION_OR);
}

/* TCP on the loopback is quick, but not at once. */
static bool agrees(int set, bool last)
{
	struct pollfd expected[SLOTS], results[SLOTS + 1];
	int count = 0, ready = 0, found;

	found = OK(set_poll(set, results, SLOTS + 1, 0));
	for (int i = 0; i < SLOTS; i++)
		if (slots[i].in_set)
			expected[count++] = (struct pollfd){ slots[i].fd, slots[i].events, 0 };
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
				  "seed %llu: fd %d for %#x is %#x, poll says %#x",
				  (unsigned long long)seed, expected[i].fd, expected[i].events,
				  revents, expected[i].revents);
		return false;
	}
	if (found != ready && last)
		CHECK_EQ(found, ready);
	return found == ready;
}

static unsigned int entries(void)
{
	unsigned int count = 0;

	for (int i = 0; i < SLOTS; i++)
		count += slots[i].in_set;
	return count;
}

/* The area of results of a set. */
static struct area {
	unsigned int room;
	struct pollfd *mapping;
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
		} else if (area.mapping) {
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

static void area_wait(int set)
{
	int found, room = 1 + pick(SLOTS);

	if (!area.room) {
		CHECK_ERRNO(set_poll(set, NULL, room, 0), EINVAL);
		return;
	}
	found = OK(set_poll(set, NULL, room, 0));
	CHECK(found <= room && found <= (int)area.room);
	for (int i = 0; area.mapping && i < found; i++) {
		unsigned int slot = area.mapping[i].fd - FIRST;

		CHECK(slot < SLOTS && slots[slot].in_set);
		CHECK_EQ(area.mapping[i].events, slots[slot].events);
		CHECK(area.mapping[i].revents);
	}
}

/* A call that must fail, or tell what the model knows, and change nothing. */
static void odd_call(int set, int options)
{
	const struct slot *slot = &slots[pick(SLOTS)];
	struct pollfd question = { slot->fd, 0, 0 };
	int number = DPIOC | (0x30 + pick(0xd0));

	switch (pick(10)) {
	case 0:
		CHECK_EQ(OK(ioctl(set, DP_ISPOLLED, &question)), slot->in_set);
		if (slot->in_set)
			CHECK_EQ(question.revents, slot->events);
		break;
	case 1:
		CHECK_EQ(set_statistics(set).ds_entries, entries());
		break;
	case 2:
		CHECK_ERRNO(write(set, &question, 1 + pick(7)), EINVAL);
		break;
	case 3:
		CHECK_ERRNO(write(set, (void *)16, sizeof(question) * (1 + pick(100))), EFAULT);
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
		if (entries())
			CHECK_ERRNO(ioctl(set, DP_SETOPTIONS, options ^ DP_OPTION_NOHINTS), EBUSY);
		CHECK_ERRNO(ioctl(set, DP_SETOPTIONS, DP_OPTION_ALL + 1 + pick(1000)), EINVAL);
		break;
	case 8:
		question = (struct pollfd){ set, POLLIN, 0 };
		CHECK_ERRNO(write(set, &question, sizeof(question)), ELOOP);
		break;
	case 9:
		if (entries()) {
			struct dvpoll wait = { &question, 1, 0, NULL };

			CHECK_ERRNO(ioctl(set, DP_HPOLL, &wait), EBUSY);
		}
		break;
	}
}

static void history(int options, uint64_t first)
{
	bool or_events = options & DP_OPTION_OR;
	int set = set_open_with(options);

	seed = first;
	area = (struct area){};
	for (int i = 0; i < SLOTS; i++) {
		slots[i].in_set = false;
		slot_open(&slots[i]);
	}
	for (int step = 0; step < STEPS; step++) {
		struct slot *slot = &slots[pick(SLOTS)];
		bool agreed = false;

		switch (pick(9)) {
		case 0:
		case 1:
			slot_interest(set, slot, or_events);
			break;
		case 2:
			slot_forget(set, slot);
			break;
		case 3:
			slot_data(slot);
			break;
		case 4:
			slot_replace(set, slot, options);
			break;
		case 5:
			area_call(set);
			break;
		case 6:
			area_wait(set);
			break;
		default:
			odd_call(set, options);
			break;
		}
		for (int try = 0; try < 200 && !agreed; try++) {
			agreed = agrees(set, false);
			if (!agreed)
				sleep_ms(1);
		}
		if (!agreed)
			agrees(set, true);
	}
	for (int i = 0; i < SLOTS; i++) {
		close(slots[i].fd);
		close(slots[i].peer);
	}
	if (area.mapping)
		munmap(area.mapping, DP_MMAP_SIZE(area.room));
	close(set);
}

TEST(model_agrees_with_poll)
{
	for (int options = 0; options <= DP_OPTION_ALL; options++)
		history(options, 20000502 + options);
}

/*
 * Random histories with random options, for DEVPOLL_FUZZ_SECONDS. What fails names the state of
 * the generator; DEVPOLL_FUZZ_SEED=N begins with that one, which is else taken from the clock.
 */
TEST(model_fuzz)
{
	const char *seconds = getenv("DEVPOLL_FUZZ_SECONDS"), *given = getenv("DEVPOLL_FUZZ_SEED");
	long end = now_ms() + 1000L * (seconds ? atoi(seconds) : 1);
	uint64_t first = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL);
	unsigned long histories = 0;

	for (; now_ms() < end; histories++, first++)
		history(first % (DP_OPTION_ALL + 1), first);
	dprintf(STDOUT_FILENO, "# model_fuzz: %lu histories of %d calls, seeds up to %llu\n",
		histories, STEPS, (unsigned long long)first - 1);
}

/* Batches that poll in random sizes: nothing is reported twice in a wait, or never. */
TEST(model_small_room)
{
	for (int options = 0; options <= DP_OPTION_ALL; options++) {
		int set = set_open_with(options);
		int ready = 0;

		seed = 42 + options;
		for (int i = 0; i < SLOTS; i++) {
			slots[i].in_set = false;
			slot_open(&slots[i]);
			set_write(set, slots[i].fd, POLLIN);
			if (pick(2)) {
				CHECK_EQ(write(slots[i].peer, "x", 1), 1);
				ready++;
			}
		}
		/* TCP on the loopback is quick, but not at once. */
		for (int try = 0; try < 2000; try++) {
			struct pollfd results[SLOTS];

			if (OK(set_poll(set, results, SLOTS, 0)) == ready)
				break;
			sleep_ms(1);
		}
		for (int step = 0; step < 100; step++) {
			struct pollfd results[SLOTS];
			int room = 1 + pick(SLOTS);
			int found = OK(set_poll(set, results, room, 0));

			CHECK_EQ(found, room < ready ? room : ready);
			for (int i = 0; i < found; i++)
				for (int j = 0; j < i; j++)
					CHECK(results[i].fd != results[j].fd);
		}
		for (int i = 0; i < SLOTS; i++) {
			close(slots[i].fd);
			close(slots[i].peer);
		}
		close(set);
	}
}
