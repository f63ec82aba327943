// SPDX-License-Identifier: GPL-2.0
/*
 * Runs the tests: devpoll_test [-l] [NAME-PREFIX...]. Exit code 0: all passed or were skipped; 1:
 * some failed; 77: all were skipped; 2: wrong usage.
 *
 * DEVPOLL_ALL=1: if the checks for left-over resources cannot be made, that is a failure.
 *
 * DEVPOLL_SKIPS="NAME-PREFIX...": if any other test is skipped, that is a failure.
 */
#include "harness.h"

#include <stdarg.h>
#include <sys/prctl.h>

static struct test *tests;
static int report_fd = -1;

void test_register(struct test *test)
{
	struct test **place = &tests;

	while (*place && strcmp((*place)->name, test->name) < 0)
		place = &(*place)->next;
	test->next = *place;
	*place = test;
}

static void report(const char *format, va_list args)
{
	vdprintf(report_fd, format, args);
}

void test_fail(const char *file, int line, const char *format, ...)
{
	va_list args;

	dprintf(report_fd, "%s:%d: ", file, line);
	va_start(args, format);
	report(format, args);
	va_end(args);
	_exit(1);
}

void test_skip(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	report(format, args);
	va_end(args);
	_exit(EXIT_SKIP);
}

static long milliseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* The time limit of a test, including the extra time of model_fuzz. */
static long patience_ms(void)
{
	const char *seconds = getenv("DEVPOLL_FUZZ_SECONDS");

	return (TEST_SECONDS + (seconds ? atol(seconds) : 0)) * 1000;
}

/*
 * Waits for the test and all processes that it started. Returns its wait status, or -1 if it took
 * too long.
 */
static int wait_for(pid_t pid)
{
	long end = milliseconds() + patience_ms();
	struct timespec nap = { 0, 2000000 };
	int status;

	for (;;) {
		pid_t done = waitpid(pid, &status, WNOHANG);

		if (done == pid)
			break;
		if (milliseconds() > end) {
			kill(-pid, SIGKILL);
			waitpid(pid, &status, 0);
			return -1;
		}
		nanosleep(&nap, NULL);
	}
	/* If the test left children behind, that is its own fault; kill them. */
	kill(-pid, SIGKILL);
	return status;
}

static bool selected(const struct test *test, int count, char **prefixes)
{
	if (!count)
		return true;
	for (int i = 0; i < count; i++)
		if (!strncmp(test->name, prefixes[i], strlen(prefixes[i])))
			return true;
	return false;
}

/* Returns whether a test may be skipped, if DEVPOLL_SKIPS lists the tests that may. */
static bool may_skip(const struct test *test)
{
	const char *prefix = getenv("DEVPOLL_SKIPS");

	if (!prefix)
		return true;
	while (*(prefix += strspn(prefix, " "))) {
		size_t length = strcspn(prefix, " ");

		if (!strncmp(test->name, prefix, length))
			return true;
		prefix += length;
	}
	return false;
}

enum outcome { PASSED, FAILED, SKIPPED };

static enum outcome run(const struct test *test, char *why, size_t size)
{
	struct snapshot before;
	char line[512];
	int pipes[2];
	int status;
	ssize_t got;
	pid_t pid;

	snapshot_take(&before);
	kernel_log_skip();
	if (pipe2(pipes, O_CLOEXEC))
		return FAILED;
	fflush(stdout);
	pid = fork();
	if (pid < 0)
		return FAILED;
	if (!pid) {
		setpgid(0, 0);
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		/* A number far from those that the tests use. */
		report_fd = fcntl(pipes[1], F_DUPFD_CLOEXEC, 200);
		close(pipes[0]);
		close(pipes[1]);
		signal(SIGPIPE, SIG_IGN);
		test->run();
		_exit(0);
	}
	close(pipes[1]);
	status = wait_for(pid);
	fcntl(pipes[0], F_SETFL, O_NONBLOCK);
	got = read(pipes[0], why, size - 1);
	why[got > 0 ? got : 0] = 0;
	close(pipes[0]);

	if (status == -1) {
		snprintf(why, size, "took longer than %ld s", patience_ms() / 1000);
		return FAILED;
	}
	if (WIFSIGNALED(status)) {
		snprintf(why, size, "killed by signal %d", WTERMSIG(status));
		return FAILED;
	}
	if (!kernel_log_is_clean(line, sizeof(line))) {
		snprintf(why, size, "the kernel's log has: %s", line);
		return FAILED;
	}
	if (WEXITSTATUS(status) == EXIT_SKIP)
		return SKIPPED;
	if (WEXITSTATUS(status))
		return FAILED;
	return snapshot_settles(&before, why, size) ? PASSED : FAILED;
}

int main(int argc, char **argv)
{
	int number = 0, failed = 0, skipped = 0, planned = 0;
	bool list = argc > 1 && !strcmp(argv[1], "-l");
	char why[1024];

	argc -= 1 + list;
	argv += 1 + list;
	for (struct test *test = tests; test; test = test->next) {
		planned += selected(test, argc, argv);
		if (list && selected(test, argc, argv))
			puts(test->name);
	}
	if (list)
		return 0;
	if (!planned) {
		fprintf(stderr,
			"devpoll_test: no test name begins with this prefix; -l lists the names\n");
		return 2;
	}
	printf("TAP version 13\n1..%d\n", planned);
	if (access("/dev/poll", F_OK)) {
		printf("Bail out! no /dev/poll here: load devpoll.ko\n");
		return EXIT_SKIP;
	}
	if (leaks_unchecked() && getenv("DEVPOLL_ALL")) {
		printf("Bail out! DEVPOLL_ALL requires all checks after the tests: run as root\n");
		return 1;
	}
	for (struct test *test = tests; test; test = test->next) {
		enum outcome outcome;

		if (!selected(test, argc, argv))
			continue;
		number++;
		outcome = run(test, why, sizeof(why));
		if (outcome == SKIPPED && !may_skip(test)) {
			static const char missing[] = "skipped, and not one of DEVPOLL_SKIPS: ";

			memmove(why + sizeof(missing) - 1, why, sizeof(why) - sizeof(missing));
			memcpy(why, missing, sizeof(missing) - 1);
			why[sizeof(why) - 1] = 0;
			outcome = FAILED;
		}
		switch (outcome) {
		case PASSED:
			printf("ok %d - %s\n", number, test->name);
			break;
		case SKIPPED:
			skipped++;
			printf("ok %d - %s # SKIP %s\n", number, test->name, why);
			break;
		case FAILED:
			failed++;
			printf("not ok %d - %s\n# %s\n", number, test->name, why);
			break;
		}
		fflush(stdout);
	}
	printf("# %d passed, %d failed, %d skipped\n", number - failed - skipped, failed, skipped);
	return failed ? 1 : skipped == number ? EXIT_SKIP : 0;
}
