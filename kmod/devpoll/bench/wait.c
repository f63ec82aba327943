// SPDX-License-Identifier: GPL-2.0
/*
 * What a wait costs: one descriptor of N is ready, and stays so.
 *
 * In the deterministic guest (QEMU with -icount shift=0, where an instruction takes a nanosecond)
 * the figures are instructions, and repeat; elsewhere they are nanoseconds, and noisy.
 * Prints a table, then each goal with its figure. Exit code: 0 all goals met; 1 some missed; 2 an
 * error; 77 no /dev/poll.
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
#include <time.h>
#include <unistd.h>

#include <fcntl.h>
#include <sys/devpoll.h>

#define LARGEST 5000
/* Waits in a figure: enough to even out timer ticks, few enough for what costs millions. */
#define WAITS 2000
#define WAITS_SLOW 20
#define REPEATS 3
#define ROOM 64

static int fds[LARGEST], peers[LARGEST];
static struct pollfd array[LARGEST], results[ROOM];
static struct epoll_event events[ROOM];
static int ep, set;
static int count;
static unsigned int turn;

static void die(const char *what)
{
	fprintf(stderr, "wait: %s: %s\n", what, strerror(errno));
	exit(2);
}

static long check(long result, const char *what)
{
	if (result < 0)
		die(what);
	return result;
}

static void expect_one(long found, const char *what)
{
	if (found == 1)
		return;
	check(found, what);
	fprintf(stderr, "wait: %s gave %ld events, not 1\n", what, found);
	exit(2);
}

static void connect_all(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t length = sizeof(address);
	int listener = check(socket(AF_INET, SOCK_STREAM, 0), "socket");

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	check(bind(listener, (struct sockaddr *)&address, length), "bind");
	check(listen(listener, 128), "listen");
	check(getsockname(listener, (struct sockaddr *)&address, &length), "getsockname");
	for (int i = 0; i < LARGEST; i++) {
		peers[i] = check(socket(AF_INET, SOCK_STREAM, 0), "socket");
		check(connect(peers[i], (struct sockaddr *)&address, length), "connect");
		fds[i] = check(accept(listener, NULL, NULL), "accept");
	}
	close(listener);
}

/* The ready one is in the middle: neither poll() nor a table finds it early. */
static int ready(void)
{
	return fds[count / 2];
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

static void no_teardown(void)
{
}

static void poll_wait_once(void)
{
	expect_one(poll(array, count, -1), "poll");
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
	expect_one(epoll_wait(ep, events, ROOM, -1), "epoll_wait");
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

static void copy_wait_once(void)
{
	struct dvpoll wait = { results, ROOM, -1, NULL };

	expect_one(ioctl(set, DP_POLL, &wait), "DP_POLL");
}

static struct pollfd *mapping;

static void mmap_setup(void)
{
	fill_set(0);
	check(ioctl(set, DP_ALLOC, ROOM), "DP_ALLOC");
	mapping = mmap(NULL, DP_MMAP_SIZE(ROOM), PROT_READ, MAP_SHARED, set, 0);
	if (mapping == MAP_FAILED)
		die("mmap");
}

static void mmap_teardown(void)
{
	munmap(mapping, DP_MMAP_SIZE(ROOM));
	close(set);
}

static void mmap_wait_once(void)
{
	struct dvpoll wait = { NULL, ROOM, -1, NULL };

	expect_one(ioctl(set, DP_POLL, &wait), "DP_POLL");
}

static void hpoll_setup(void)
{
	set = check(open("/dev/poll", O_RDWR), "open /dev/poll");
	fill_array();
}

static void hpoll_wait_once(void)
{
	struct dvpoll wait = { array, count, -1, NULL };

	expect_one(ioctl(set, DP_HPOLL, &wait), "DP_HPOLL");
}

/* A change with each wait, as a server makes that wants to write, then to read again. */
static short next_events(void)
{
	return turn++ & 1 ? POLLIN : POLLIN | POLLPRI;
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

static void combined_update_once(void)
{
	struct pollfd change = { ready(), next_events(), 0 };
	struct dvpoll_update update = {
		.du_changes = &change,
		.du_nchanges = 1,
		.du_fds = results,
		.du_nfds = ROOM,
		.du_timeout = -1,
	};

	expect_one(ioctl(set, DP_UPDATE_POLL, &update), "DP_UPDATE_POLL");
}

/* The whole cycle: data comes, is found, is read. */
static void cycle(void (*wait)(void))
{
	char byte;

	check(send(peers[count / 2], "x", 1, 0), "send");
	wait();
	check(recv(ready(), &byte, 1, 0), "recv");
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

static long nanoseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000L + now.tv_nsec;
}

static double measure(enum row row, int n)
{
	int waits = rows[row].scans && n > 100 ? WAITS_SLOW : WAITS;
	double best = 0;

	count = n;
	turn = 0;
	rows[row].setup();
	if (!rows[row].cycle)
		check(send(peers[n / 2], "x", 1, 0), "send");
	for (int repeat = 0; repeat < REPEATS; repeat++) {
		double cost;
		long start;

		for (int i = 0; i < waits / 10; i++)
			rows[row].once();
		start = nanoseconds();
		for (int i = 0; i < waits; i++)
			rows[row].once();
		cost = (double)(nanoseconds() - start) / waits;
		if (!repeat || cost < best)
			best = cost;
	}
	if (!rows[row].cycle) {
		char byte;

		check(recv(ready(), &byte, 1, 0), "recv");
	}
	rows[row].teardown();
	/* Whole nanoseconds, as printed: what is below are timer ticks spread over the waits. */
	return (long)(best + 0.5);
}

static const int sizes[] = { 10, 500, 5000 };
#define SIZES ((int)(sizeof(sizes) / sizeof(*sizes)))
static double costs[ROWS][SIZES];
static int missed;

/* A goal: figure must not exceed limit. */
static void goal(const char *text, int n, double figure, double limit)
{
	bool met = figure <= limit;

	printf("%-6s N=%-5d %-48s %6.3f (at most %.3f)\n", met ? "met" : "MISSED", n, text, figure,
	       limit);
	missed += !met;
}

static void judge(void)
{
	for (int i = 0; i < SIZES; i++) {
		goal("devpoll / epoll", sizes[i], costs[COPY][i] / costs[EPOLL][i], 1.10);
		goal("devpoll mmap / devpoll", sizes[i], costs[MAPPED][i] / costs[COPY][i], 1.0);
		goal("DP_UPDATE_POLL / (epoll_ctl + epoll_wait)", sizes[i],
		     costs[COMBINED_UPDATE][i] / costs[EPOLL_UPDATE][i], 0.80);
	}
	for (enum row row = COPY; row <= MAPPED; row++) {
		double low = costs[row][0], high = low;

		for (int i = 1; i < SIZES; i++) {
			low = costs[row][i] < low ? costs[row][i] : low;
			high = costs[row][i] > high ? costs[row][i] : high;
		}
		goal(row == COPY ? "devpoll: dearest N / cheapest N" :
				   "devpoll mmap: dearest N / cheapest N",
		     sizes[SIZES - 1], high / low, 1.03);
	}
	if (missed)
		printf("%d goals missed\n", missed);
	else
		printf("all goals met\n");
}

int main(void)
{
	struct rlimit limit;

	if (access("/dev/poll", R_OK | W_OK)) {
		fprintf(stderr, "wait: /dev/poll: %s: load devpoll.ko\n", strerror(errno));
		return 77;
	}
	check(getrlimit(RLIMIT_NOFILE, &limit), "getrlimit");
	limit.rlim_cur = limit.rlim_max;
	check(setrlimit(RLIMIT_NOFILE, &limit), "setrlimit");
	if (limit.rlim_max < 2 * LARGEST + 100) {
		fprintf(stderr, "wait: RLIMIT_NOFILE is %ld, %d are needed: raise it (ulimit -Hn)\n",
			(long)limit.rlim_max, 2 * LARGEST + 100);
		return 2;
	}
	connect_all();
	printf("%-24s", "ns per wait, N =");
	for (int i = 0; i < SIZES; i++)
		printf(" %12d", sizes[i]);
	printf("\n");
	for (int row = 0; row < ROWS; row++) {
		printf("%-24s", rows[row].name);
		for (int i = 0; i < SIZES; i++) {
			costs[row][i] = measure(row, sizes[i]);
			printf(" %12.0f", costs[row][i]);
			fflush(stdout);
		}
		printf("\n");
	}
	judge();
	return missed ? 1 : 0;
}
