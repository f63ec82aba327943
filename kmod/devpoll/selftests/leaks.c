// SPDX-License-Identifier: GPL-2.0
/*
 * Finds what a test must not leave behind: open sets, entries, sockets, and messages in the
 * kernel's log.
 */
#include "harness.h"

#include <regex.h>

/* Sockets are destroyed after a grace period, and after the last process of a test has ended. */
#define SETTLE_MS 5000

long number_after(const char *path, const char *label)
{
	FILE *file = fopen(path, "re");
	char line[256];
	long number = -1;

	if (!file)
		return -1;
	while (fgets(line, sizeof(line), file)) {
		if (!strncmp(line, label, strlen(label))) {
			number = atol(line + strlen(label));
			break;
		}
	}
	fclose(file);
	return number;
}

void snapshot_take(struct snapshot *snapshot)
{
	snapshot->sets = number_after("/proc/devpoll", "sets:");
	snapshot->entries = number_after("/proc/devpoll", "entries:");
	snapshot->sockets = number_after("/proc/net/sockstat", "sockets: used");
}

bool snapshot_settles(const struct snapshot *before, char *why, size_t size)
{
	struct timespec nap = { 0, 20000000 };
	struct snapshot now;

	for (int waited = 0; waited < SETTLE_MS; waited += 20) {
		snapshot_take(&now);
		if (now.sets == before->sets && now.entries == before->entries &&
		    now.sockets <= before->sockets)
			return true;
		nanosleep(&nap, NULL);
	}
	snprintf(why, size, "left behind: sets %ld -> %ld, entries %ld -> %ld, sockets %ld -> %ld",
		 before->sets, now.sets, before->entries, now.entries, before->sockets,
		 now.sockets);
	return false;
}

static int kmsg = -1;

static void kernel_log_open(void)
{
	if (kmsg < 0)
		kmsg = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
}

int leaks_unchecked(void)
{
	struct snapshot now;
	int count = 0;

	kernel_log_open();
	if (kmsg < 0 && ++count)
		printf("# cannot be checked after the tests: the kernel's log (/dev/kmsg)\n");
	snapshot_take(&now);
	if ((now.sets < 0 || now.entries < 0) && ++count)
		printf("# cannot be checked after the tests: sets and entries (/proc/devpoll)\n");
	if (now.sockets < 0 && ++count)
		printf("# cannot be checked after the tests: sockets (/proc/net/sockstat)\n");
	return count;
}

void kernel_log_skip(void)
{
	kernel_log_open();
	if (kmsg >= 0)
		lseek(kmsg, 0, SEEK_END);
}

bool kernel_log_is_clean(char *line, size_t size)
{
	static regex_t bad;
	static bool compiled;
	ssize_t got;

	if (kmsg < 0)
		return true;
	if (!compiled) {
		regcomp(&bad,
			"BUG|WARNING|KASAN|KCSAN|Oops|INFO: lockdep|possible .*(deadlock|recursive)|"
			"unreferenced object|general protection|refcount_t|hung task|soft lockup|rcu.*stall",
			REG_EXTENDED | REG_NOSUB);
		compiled = true;
	}
	for (;;) {
		got = read(kmsg, line, size - 1);
		if (got < 0 && errno == EPIPE)
			continue;
		if (got <= 0)
			return true;
		line[got] = 0;
		line[strcspn(line, "\n")] = 0;
		/* The kernel's own functions have many known data races, which are ignored. */
		if (strstr(line, "BUG: KCSAN") && !strstr(line, "[devpoll]"))
			continue;
		if (!regexec(&bad, line, 0, NULL, 0))
			return false;
	}
}
