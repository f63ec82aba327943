// SPDX-License-Identifier: MIT OR Apache-2.0
/* After the command: nothing may be left running, loaded or leaked. */
#define _GNU_SOURCE
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KMEMLEAK "/sys/kernel/debug/kmemleak"
#define KMEMLEAK_MIN_AGE_S 6 /* kmemleak looks only at objects older than 5 s */
#define LEAK_LINES_MAX 200
#define END_WAIT_MS 10000
#define UNLOAD_WAIT_MS 3000

static void pause_ms(long ms)
{
	const struct timespec time = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

	nanosleep(&time, NULL);
}

void kill_everyone(void)
{
	kill(-1, SIGKILL);
	for (int waited = 0; waited < END_WAIT_MS; waited++) {
		pid_t pid = waitpid(-1, NULL, WNOHANG);

		if (pid < 0 && errno == ECHILD)
			return;
		if (pid == 0)
			pause_ms(1);
	}
	kmsg("<4>WARNING: pollux-init: a process survived SIGKILL for %d s", END_WAIT_MS / 1000);
}

/*
 * A module that cannot be unloaded although every process is gone has lost a reference. The last
 * ones may be put a little later, by delayed work, hence the patience.
 */
void unload_modules(void)
{
	size_t cursor = 0;
	const char *name;

	while ((name = config_next("unload", &cursor))) {
		int waited = 0;

		while (syscall(SYS_delete_module, name, O_NONBLOCK) < 0) {
			if (errno == ENOENT)
				break; /* the command unloaded it itself */
			if ((errno != EAGAIN && errno != EWOULDBLOCK) || waited >= UNLOAD_WAIT_MS) {
				kmsg("<4>WARNING: pollux-init: module %s cannot be unloaded: %s", name,
				     strerror(errno));
				break;
			}
			pause_ms(10);
			waited += 10;
		}
	}
}

/* Has any effect only in a kernel with kmemleak, whose findings go to the console. */
void look_for_leaks(void)
{
	char line[512];
	FILE *leaks;

	if (access(KMEMLEAK, W_OK) < 0)
		return;
	pause_ms(KMEMLEAK_MIN_AGE_S * 1000);
	/* What has changed since the scan before is not reported: the first takes checksums only. */
	for (int scan = 0; scan < 2; scan++)
		if (!write_text(KMEMLEAK, "scan"))
			return;
	leaks = fopen(KMEMLEAK, "re");
	if (!leaks)
		return;
	for (int n = 0; n < LEAK_LINES_MAX && fgets(line, sizeof(line), leaks); n++) {
		line[strcspn(line, "\n")] = '\0';
		kmsg("<4>kmemleak: %s", line);
	}
	fclose(leaks);
}
