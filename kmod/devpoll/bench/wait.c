// SPDX-License-Identifier: GPL-2.0
/*
 * Measures the cost of a wait on N descriptors. Either one, 16, half or all of them are ready, the
 * same at each wait; or a different one is ready at each wait, after the previous one was read
 * ("rotating").
 *
 * In the deterministic guest (QEMU with -icount shift=0, where an instruction takes a nanosecond)
 * the figures are instructions and are the same in each run. Elsewhere they are nanoseconds and
 * noisy. Prints the tables, then each goal with its figure. Exit code: 0 all goals met; 1 some
 * missed; 2 error; 77 no /dev/poll.
 *
 *   wait                    every size and every pattern
 *   wait N                  one size, and only the rows that have goals
 *   wait ROW N READY        repeats one row's wait without end, for a profiler
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fcntl.h>
#include <sys/devpoll.h>

#include "measure.h"

#define LARGEST 20000
/*
 * Number of waits per figure: enough to average timer ticks, few enough for waits that cost
 * millions.
 */
#define WAITS 2000
#define WAITS_SLOW 20
/* Number of events per figure if a wait reports many. */
#define EVENTS 100000
#define REPEATS 3
/* Room for results; if more descriptors are ready, there is room for all of them. */
#define ROOM 64
/* A step that visits the whole set, because it is prime and divides no size. */
#define STRIDE 7

static int fds[LARGEST], peers[LARGEST];
static struct pollfd array[LARGEST], results[LARGEST];
static struct epoll_event events[LARGEST];
static int ep, set;
/* Descriptors in the set; ready descriptors; room for results. */
static int count, nready, room;
/* Whether a different descriptor is ready at each wait, and the one of the current wait. */
static bool rotating;
static int current;
static unsigned int changes;

static void expect(long found, const char *what)
{
	if (found == nready)
		return;
	check(found, what);
	fprintf(stderr, "wait: %s gave %ld events, not %d\n", what, found, nready);
	exit(2);
}

static void connect_all(int n)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t length = sizeof(address);
	int listener = check(socket(AF_INET, SOCK_STREAM, 0), "socket");

	address.sin_addr.s_addr = htonl(INADDR_ANY);
	check(bind(listener, (struct sockaddr *)&address, length), "bind");
	check(listen(listener, 128), "listen");
	check(getsockname(listener, (struct sockaddr *)&address, &length), "getsockname");
	for (int i = 0; i < n; i++) {
		/*
		 * Use other addresses before the ports towards one address become scarce and slow
		 * to find.
		 */
		address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + i / 2500);
		peers[i] = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
		check(connect(peers[i], (struct sockaddr *)&address, length), "connect");
		fds[i] = check(accept(listener, NULL, NULL), "accept");
	}
	close(listener);
}

/*
 * The ready descriptors are spread over the set. A single one is in the middle, so that neither
 * poll() nor a table scan finds it early.
 */
static int ready_index(int i)
{
	if (rotating)
		return current;
	return (2L * i + 1) * count / (2 * nready);
}

static int ready(void)
{
	return fds[ready_index(0)];
}

static void make_ready(void)
{
	for (int i = 0; i < nready; i++)
		check(send(peers[ready_index(i)], "x", 1, 0), "send");
}

static void make_unready(void)
{
	char byte;

	for (int i = 0; i < nready; i++)
		check(recv(fds[ready_index(i)], &byte, 1, 0), "recv");
}

static void fill_array(void)
{
	for (int i = 0; i < count; i++)
		array[i] = (struct pollfd){ fds[i], POLLIN, 0 };
}

static void fill_set(int options)
{
	set = check(open("/dev/poll", O_RDWR), "open /dev/poll");
	check(ioctl(set, DP_SETOPTIONS, options), "DP_SETOPTIONS");
	fill_array();
	check(write(set, array, count * sizeof(*array)), "write /dev/poll");
}

static void drop_set(void)
{
	close(set);
}

static void no_setup(void)
{
	fill_array();
}

static void no_teardown(void) {}

static void poll_wait_once(void)
{
	expect(poll(array, count, -1), "poll");
}

static void epoll_setup(void)
{
	ep = check(epoll_create1(0), "epoll_create1");
	for (int i = 0; i < count; i++) {
		struct epoll_event event = { .events = EPOLLIN, .data.fd = fds[i] };

		check(epoll_ctl(ep, EPOLL_CTL_ADD, fds[i], &event), "epoll_ctl");
	}
}

static void epoll_teardown(void)
{
	close(ep);
}

static void epoll_wait_once(void)
{
	expect(epoll_wait(ep, events, room, -1), "epoll_wait");
}

static void copy_setup(void)
{
	fill_set(0);
}

static void off_setup(void)
{
	fill_set(DP_OPTION_NOHINTS);
}

static void table_setup(void)
{
	fill_set(DP_OPTION_TABLE);
}

/* As in a program, these structures are filled in once. */
static struct dvpoll copied = { results, ROOM, -1, NULL };
static struct dvpoll mapped = { NULL, ROOM, -1, NULL };

static void copy_wait_once(void)
{
	expect(ioctl(set, DP_POLL, &copied), "DP_POLL");
}

static struct pollfd *mapping;

static void mmap_setup(void)
{
	fill_set(0);
	check(ioctl(set, DP_ALLOC, room), "DP_ALLOC");
	mapping = mmap(NULL, DP_MMAP_SIZE(room), PROT_READ, MAP_SHARED, set, 0);
	if (mapping == MAP_FAILED)
		die("mmap");
}

static void mmap_teardown(void)
{
	munmap(mapping, DP_MMAP_SIZE(room));
	close(set);
}

static void mmap_wait_once(void)
{
	expect(ioctl(set, DP_POLL, &mapped), "DP_POLL");
}

static void hpoll_setup(void)
{
	set = check(open("/dev/poll", O_RDWR), "open /dev/poll");
	fill_array();
}

static void hpoll_wait_once(void)
{
	struct dvpoll wait = { array, count, -1, NULL };

	expect(ioctl(set, DP_HPOLL, &wait), "DP_HPOLL");
}

/*
 * Returns the events of a change with each wait, as a server makes it that first wants to write and
 * then to read again.
 */
static short next_events(void)
{
	return changes++ & 1 ? POLLIN : POLLIN | POLLPRI;
}

static void epoll_update_once(void)
{
	struct epoll_event event = { .events = next_events(), .data.fd = ready() };

	check(epoll_ctl(ep, EPOLL_CTL_MOD, ready(), &event), "epoll_ctl");
	epoll_wait_once();
}

static void write_update_once(void)
{
	struct pollfd change = { ready(), next_events(), 0 };

	check(write(set, &change, sizeof(change)), "write /dev/poll");
	copy_wait_once();
}

static struct pollfd changed;
static struct dvpoll_update update = {
	.du_changes = &changed,
	.du_nchanges = 1,
	.du_fds = results,
	.du_nfds = ROOM,
	.du_timeout = -1,
};

static void combined_update_once(void)
{
	changed.fd = ready();
	changed.events = next_events();
	expect(ioctl(set, DP_UPDATE_POLL, &update), "DP_UPDATE_POLL");
}

/* One complete cycle: data is sent, found by a wait, and read. */
static void cycle(void (*wait)(void))
{
	make_ready();
	wait();
	make_unready();
}

static void epoll_cycle_once(void)
{
	cycle(epoll_wait_once);
}

static void copy_cycle_once(void)
{
	cycle(copy_wait_once);
}

enum row {
	POLL,
	EPOLL,
	COPY,
	MAPPED,
	HPOLL,
	TABLE,
	HINTS_OFF,
	EPOLL_UPDATE,
	WRITE_UPDATE,
	COMBINED_UPDATE,
	EPOLL_CYCLE,
	COPY_CYCLE,
	ROWS,
};

static const struct {
	const char *name;
	void (*setup)(void);
	void (*once)(void);
	void (*teardown)(void);
	bool scans;
	bool cycle;
} rows[ROWS] = {
	[POLL] = { "poll", no_setup, poll_wait_once, no_teardown, true, false },
	[EPOLL] = { "epoll", epoll_setup, epoll_wait_once, epoll_teardown, false, false },
	[COPY] = { "devpoll", copy_setup, copy_wait_once, drop_set, false, false },
	[MAPPED] = { "devpoll mmap", mmap_setup, mmap_wait_once, mmap_teardown, false, false },
	[HPOLL] = { "hinting poll", hpoll_setup, hpoll_wait_once, drop_set, true, false },
	[TABLE] = { "devpoll scan=table", table_setup, copy_wait_once, drop_set, true, false },
	[HINTS_OFF] = { "devpoll hints=off", off_setup, copy_wait_once, drop_set, true, false },
	[EPOLL_UPDATE] = { "epoll_ctl + epoll_wait", epoll_setup, epoll_update_once,
			   epoll_teardown, false, false },
	[WRITE_UPDATE] = { "write + DP_POLL", copy_setup, write_update_once, drop_set, false,
			   false },
	[COMBINED_UPDATE] = { "DP_UPDATE_POLL", copy_setup, combined_update_once, drop_set, false,
			      false },
	[EPOLL_CYCLE] = { "send, epoll, recv", epoll_setup, epoll_cycle_once, epoll_teardown,
			  false, true },
	[COPY_CYCLE] = { "send, devpoll, recv", copy_setup, copy_cycle_once, drop_set, false,
			 true },
};

/* The descriptors that are ready at a wait. */
static const struct {
	const char *name;
	int ready; /* a number, or with @share a part of the set: 1 / ready */
	bool share;
	bool rotating;
} patterns[] = {
	{ "1", 1, false, false },     { "16", 16, false, false },      { "half", 2, true, false },
	{ "all", 1, true, false },    { "rotating", 1, false, true },
};
#define PATTERNS ((int)(sizeof(patterns) / sizeof(*patterns)))

static int ready_of(int pattern, int n)
{
	if (patterns[pattern].share)
		return n / patterns[pattern].ready;
	return patterns[pattern].ready < n ? patterns[pattern].ready : n;
}

static void set_pattern(int pattern, int n)
{
	count = n;
	nready = ready_of(pattern, n);
	rotating = patterns[pattern].rotating;
	room = nready > ROOM ? nready : ROOM;
	copied.dp_nfds = mapped.dp_nfds = update.du_nfds = room;
	current = 0;
	changes = 0;
}

/* Measures the waits of a row, one after the other. */
static long time_waits(enum row row, int waits)
{
	long start = nanoseconds();

	for (int i = 0; i < waits; i++)
		rows[row].once();
	return nanoseconds() - start;
}

/* Measures each wait separately, without the code that makes another descriptor ready before it. */
static long time_rotating_waits(enum row row, int waits)
{
	long total = 0;

	for (int i = 0; i < waits; i++) {
		long start, middle;

		current = (current + STRIDE) % count;
		make_ready();
		start = nanoseconds();
		rows[row].once();
		middle = nanoseconds();
		/* Subtracts the cost of reading the clock. */
		total += middle - start - (nanoseconds() - middle);
		make_unready();
	}
	return total;
}

static int waits_of(enum row row)
{
	if (rows[row].scans && count > 100)
		return WAITS_SLOW;
	if (nready > EVENTS / WAITS)
		return EVENTS / nready > WAITS_SLOW ? EVENTS / nready : WAITS_SLOW;
	return WAITS;
}

static double measure(enum row row, int n, int pattern)
{
	double best = 0;
	bool stays;
	int waits;

	set_pattern(pattern, n);
	waits = waits_of(row);
	stays = !rotating && !rows[row].cycle;
	rows[row].setup();
	if (stays)
		make_ready();
	for (int repeat = 0; repeat < REPEATS; repeat++) {
		double cost;

		if (rotating) {
			time_rotating_waits(row, waits / 10);
			cost = (double)time_rotating_waits(row, waits) / waits;
		} else {
			time_waits(row, waits / 10);
			cost = (double)time_waits(row, waits) / waits;
		}
		if (!repeat || cost < best)
			best = cost;
	}
	if (stays)
		make_unready();
	rows[row].teardown();
	/* Whole nanoseconds, as printed; the fraction comes from timer ticks. */
	return (long)(best + 0.5);
}

#define SIZES 5
static int sizes[SIZES] = { 10, 100, 500, 5000, LARGEST };
static int nsizes = SIZES;
static bool only_goals;
static double costs[PATTERNS][ROWS][SIZES];
static int missed;

/*
 * Returns whether a row is measured for a pattern. The cost of rows that scan depends on N,
 * whatever is ready. A cycle makes one descriptor ready itself. The cost of one change is not
 * visible beside many events.
 */
static bool has_row(int pattern, enum row row)
{
	if (row == EPOLL || row == COPY || row == MAPPED)
		return true;
	if (pattern != 0)
		return false;
	return !only_goals || row == EPOLL_UPDATE || row == COMBINED_UPDATE;
}

static void tabulate(int pattern)
{
	printf("ns per wait, ready: %-8s N =", patterns[pattern].name);
	for (int i = 0; i < nsizes; i++)
		printf(" %11d", sizes[i]);
	printf("\n");
	for (enum row row = 0; row < ROWS; row++) {
		if (!has_row(pattern, row))
			continue;
		printf("%-30s", rows[row].name);
		for (int i = 0; i < nsizes; i++) {
			costs[pattern][row][i] = measure(row, sizes[i], pattern);
			printf(" %11.0f", costs[pattern][row][i]);
			fflush(stdout);
		}
		printf("\n");
	}
}

/* Checks a goal: the figure must not exceed the limit. */
static void goal(const char *text, int n, int pattern, double figure, double limit)
{
	bool met = figure <= limit;

	printf("%-6s N=%-5d ready=%-8s %-42s %6.3f (at most %.3f)\n", met ? "met" : "MISSED", n,
	       patterns[pattern].name, text, figure, limit);
	missed += !met;
}

/*
 * Checks that the cost of a wait does not depend on the size of the set if the same number is
 * ready.
 */
static void judge_spread(int pattern, enum row row)
{
	double low = 0, high = 0;

	for (int i = 0; i < nsizes; i++) {
		double cost = costs[pattern][row][i];

		/* In a smaller set fewer descriptors are ready. */
		if (sizes[i] < patterns[pattern].ready)
			continue;
		low = !low || cost < low ? cost : low;
		high = cost > high ? cost : high;
	}
	goal(row == COPY ? "devpoll: dearest N / cheapest N" :
			   "devpoll mmap: dearest N / cheapest N",
	     sizes[nsizes - 1], pattern, high / low, 1.03);
}

static void judge(int pattern)
{
	double (*cost)[SIZES] = costs[pattern];

	for (int i = 0; i < nsizes; i++) {
		goal("devpoll / epoll", sizes[i], pattern, cost[COPY][i] / cost[EPOLL][i], 1.0);
		goal("devpoll mmap / epoll", sizes[i], pattern, cost[MAPPED][i] / cost[EPOLL][i],
		     0.95);
		if (pattern == 0)
			goal("DP_UPDATE_POLL / (epoll_ctl + epoll_wait)", sizes[i], pattern,
			     cost[COMBINED_UPDATE][i] / cost[EPOLL_UPDATE][i], 0.60);
	}
	if (patterns[pattern].share || nsizes == 1)
		return;
	judge_spread(pattern, COPY);
	judge_spread(pattern, MAPPED);
}

static void for_ever(const char *name, int n, int ready)
{
	int row = 0;

	while (row < ROWS && strcmp(rows[row].name, name))
		row++;
	if (row == ROWS || n < 1 || n > LARGEST || ready < 1 || ready > n || ready > ROOM) {
		fprintf(stderr, "wait: ROW is the name of one, N at most %d, READY at most %d:",
			LARGEST, ROOM);
		for (row = 0; row < ROWS; row++)
			fprintf(stderr, " \"%s\"", rows[row].name);
		fprintf(stderr, "\n");
		exit(2);
	}
	count = n;
	nready = ready;
	room = ROOM;
	connect_all(n);
	rows[row].setup();
	make_ready();
	printf("waiting for ever\n");
	fflush(stdout);
	for (;;)
		rows[row].once();
}

int main(int argc, char **argv)
{
	rlim_t needed = 2 * LARGEST + 100;
	struct rlimit limit;

	if (argc == 2) {
		sizes[0] = atoi(argv[1]);
		nsizes = 1;
		only_goals = true;
	}
	if (argc == 3 || argc > 4 || sizes[0] < 1 || sizes[0] > LARGEST) {
		fprintf(stderr, "Usage: wait [N | ROW N READY], N at most %d\n", LARGEST);
		return 2;
	}
	if (access("/dev/poll", R_OK | W_OK)) {
		fprintf(stderr, "wait: /dev/poll: %s: load devpoll.ko\n", strerror(errno));
		return 77;
	}
	check(getrlimit(RLIMIT_NOFILE, &limit), "getrlimit");
	if (limit.rlim_max < needed)
		limit.rlim_max = needed;
	limit.rlim_cur = needed;
	if (setrlimit(RLIMIT_NOFILE, &limit)) {
		fprintf(stderr, "wait: RLIMIT_NOFILE: %ld are needed: raise it (ulimit -Hn)\n",
			(long)needed);
		return 2;
	}
	if (argc == 4)
		for_ever(argv[1], atoi(argv[2]), atoi(argv[3]));
	connect_all(argc == 2 ? sizes[0] : LARGEST);
	for (int pattern = 0; pattern < PATTERNS; pattern++)
		tabulate(pattern);
	for (int pattern = 0; pattern < PATTERNS; pattern++)
		judge(pattern);
	if (missed)
		printf("%d goals missed\n", missed);
	else
		printf("all goals met\n");
	return missed ? 1 : 0;
}
