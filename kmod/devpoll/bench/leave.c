// SPDX-License-Identifier: GPL-2.0
/*
 * Measures how long a sleeping wait takes to report a pipe that became readable, in a set of pipes,
 * which give no hints, while other tasks use the CPU: with and without a change of the set directly
 * before. After such a change the wait must leave the pipes' wait queues and join them again.
 *
 *   leave [SPINNERS [PIPES]]    default: 4 busy processes, 16 pipes
 *
 * Exit code: 0 success; 2 error; 77 no /dev/poll.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/devpoll.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "measure.h"

#define MOST_PIPES 256
#define SAMPLES 2000

static int set, pipes[MOST_PIPES][2], done[2], npipes = 16;
static long reported_ns;

static void *wait_for_ever(void *unused)
{
	struct pollfd result;
	struct dvpoll wait = { &result, 1, -1, NULL };
	char byte;

	for (;;) {
		check(ioctl(set, DP_POLL, &wait), "DP_POLL");
		reported_ns = nanoseconds();
		check(read(result.fd, &byte, 1), "read");
		check(write(done[1], &byte, 1), "write");
	}
	return unused;
}

static int compare(const void *a, const void *b)
{
	return (*(const long *)a > *(const long *)b) - (*(const long *)a < *(const long *)b);
}

static void measure(int changes)
{
	static long latency_ns[SAMPLES];
	struct timespec pause = { 0, 3000000 };

	for (int i = 0; i < SAMPLES; i++) {
		struct pollfd change = { pipes[1][0], i & 1 ? POLLIN : POLLIN | POLLPRI, 0 };
		long start;
		char byte;

		/* The waiter sleeps again by then. */
		pause.tv_nsec = 3000000 + i % 7 * 100000;
		nanosleep(&pause, NULL);
		if (changes)
			check(write(set, &change, sizeof(change)), "write /dev/poll");
		start = nanoseconds();
		check(write(pipes[0][1], "x", 1), "write");
		check(read(done[0], &byte, 1), "read");
		latency_ns[i] = reported_ns - start;
	}
	qsort(latency_ns, SAMPLES, sizeof(*latency_ns), compare);
	printf("%-24s ns: median %ld, 99 %% %ld, 99.9 %% %ld, largest %ld\n",
	       changes ? "after a change" : "without a change", latency_ns[SAMPLES / 2],
	       latency_ns[SAMPLES * 99 / 100], latency_ns[SAMPLES * 999 / 1000],
	       latency_ns[SAMPLES - 1]);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	int spinners = argc > 1 ? atoi(argv[1]) : 4;
	pthread_t waiter;

	if (access("/dev/poll", R_OK | W_OK))
		return 77;
	npipes = argc > 2 ? atoi(argv[2]) : npipes;
	if (npipes < 2 || npipes > MOST_PIPES || spinners < 0)
		return 2;
	check(prctl(PR_SET_TIMERSLACK, 1), "PR_SET_TIMERSLACK");
	for (int i = 0; i < spinners; i++) {
		if (!check(fork(), "fork")) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			for (;;)
				;
		}
	}
	set = check(open("/dev/poll", O_RDWR), "open /dev/poll");
	check(pipe(done), "pipe");
	for (int i = 0; i < npipes; i++) {
		struct pollfd entry;

		check(pipe(pipes[i]), "pipe");
		entry = (struct pollfd){ pipes[i][0], POLLIN, 0 };
		check(write(set, &entry, sizeof(entry)), "write /dev/poll");
	}
	if (pthread_create(&waiter, NULL, wait_for_ever, NULL))
		return 2;
	printf("%d pipes, %d busy processes, %d samples\n", npipes, spinners, SAMPLES);
	measure(0);
	measure(1);
	return 0;
}
