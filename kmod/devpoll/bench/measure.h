/* SPDX-License-Identifier: GPL-2.0 */
/* What the programs that measure share: the check of a system call, and the clock. */
#ifndef MEASURE_H
#define MEASURE_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Reports the error in errno and ends the program with exit code 2. */
static inline void die(const char *what)
{
	fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
	exit(2);
}

/* Returns the result of a system call, or ends the program if the call failed. */
static inline long check(long result, const char *what)
{
	if (result < 0)
		die(what);
	return result;
}

static inline long nanoseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000L + now.tv_nsec;
}

#endif
