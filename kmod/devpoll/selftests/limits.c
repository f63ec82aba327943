// SPDX-License-Identifier: GPL-2.0
/* The limit per user, the permissions of the device, and the use count of the module. */
#include "util.h"

#include <grp.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static char old_limit[32];

static void restore_limit(void)
{
	parameter_set("max_user_entries", old_limit);
}

static void limit_entries(const char *count)
{
	if (geteuid())
		test_skip("needs root");
	parameter_get("max_user_entries", old_limit, sizeof(old_limit));
	parameter_set("max_user_entries", count);
}

static void become(uid_t uid)
{
	OK(setgroups(0, NULL));
	OK(setresgid(uid, uid, uid));
	OK(setresuid(uid, uid, uid));
}

/* Adds pipes until write() fails. */
static int fill_up(int set)
{
	int fd = OK(open("/dev/null", O_RDWR | O_CLOEXEC));
	int added = 0;

	for (; added < 300; added++) {
		struct pollfd change = { OK(dup(fd)), POLLIN, 0 };

		if (write(set, &change, sizeof(change)) < 0) {
			CHECK_EQ(errno, ENOSPC);
			break;
		}
	}
	return added;
}

static void as_user_one(void *context)
{
	struct pollfd change = { 0, POLLIN, 0 };
	int first, second;

	(void)context;
	become(12001);
	first = set_open();
	second = set_open();
	CHECK_EQ(fill_up(first), 100);
	/* The limit counts all sets and areas together. Modification and removal still work. */
	CHECK_ERRNO(write(second, &change, sizeof(change)), ENOSPC);
	CHECK_ERRNO(ioctl(second, DP_ALLOC, 1), ENOSPC);
	CHECK_ERRNO(set_update_poll(second, &change, 1, &change, 1, 0), ENOSPC);
	set_write(first, 0, POLLREMOVE);
	CHECK_EQ(set_statistics(first).ds_entries, 100);
	close(first);
	CHECK_ERRNO(ioctl(second, DP_ALLOC, 101), ENOSPC);
	OK(ioctl(second, DP_ALLOC, 90));
	CHECK_EQ(fill_up(second), 10);
	OK(ioctl(second, DP_FREE));
	CHECK_EQ(fill_up(second), 90);
}

static void as_user_two(void *context)
{
	(void)context;
	become(12002);
	CHECK_EQ(fill_up(set_open()), 100);
}

static void limit_run(void *context)
{
	int set;

	(void)context;
	become(12003);
	set = set_open();
	CHECK_EQ(fill_up(set), 100);
	/* Another user is not affected by this user, who still has the entries. */
	_exit(0);
}

static void in_child_restoring(void (*run)(void *))
{
	pid_t pid = OK(fork());
	int status;

	if (!pid) {
		run(NULL);
		_exit(0);
	}
	OK(waitpid(pid, &status, 0));
	if (status) {
		restore_limit();
		_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
	}
}

TEST(limits_entries_of_a_user)
{
	limit_entries("100");
	in_child_restoring(as_user_one);
	in_child_restoring(limit_run);
	in_child_restoring(as_user_two);
	restore_limit();
}

struct refusal {
	pthread_t thread;
	int set;
	volatile bool stop;
};

static void *allocate_too_much(void *context)
{
	struct refusal *refusal = context;

	while (!refusal->stop)
		CHECK_ERRNO(ioctl(refusal->set, DP_ALLOC, 100), ENOSPC);
	return NULL;
}

static void add_beside_a_refusal(void *context)
{
	enum { ROUNDS = 50000, SECONDS = 4 };
	struct refusal refusal = { 0 };
	long end = now_ms() + SECONDS * 1000;
	int set;

	(void)context;
	become(12006);
	refusal.set = set_open();
	set = set_open();
	CHECK_EQ(pthread_create(&refusal.thread, NULL, allocate_too_much, &refusal), 0);
	for (int round = 0; round < ROUNDS && now_ms() < end; round++) {
		set_write(set, 0, POLLIN);
		set_remove(set, 0);
	}
	refusal.stop = true;
	CHECK_EQ(pthread_join(refusal.thread, NULL), 0);
}

/* A call that is refused at the limit must not let another one of the same user be refused. */
TEST(limits_refusal_affects_no_other_call)
{
	limit_entries("50");
	in_child_restoring(add_beside_a_refusal);
	restore_limit();
}

TEST(limits_batch_goes_on_at_the_limit)
{
	struct pair pair = tcp_pair();
	struct pollfd changes[] = { { pair.a, POLLOUT, 0 }, { pair.b, POLLOUT, 0 },
				    { pair.a, POLLREMOVE, 0 } };
	int set;

	set = set_open();
	limit_entries("1");
	/*
	 * Other sets of root may have used up the limit. Then no entry is added, but the rest still
	 * runs.
	 */
	CHECK_ERRNO(write(set, changes, sizeof(changes)), ENOSPC);
	restore_limit();
	CHECK_EQ(set_statistics(set).ds_entries, 0);
	CHECK_EQ(set_statistics(set).ds_changes, 3);
}

static void hpoll_at_the_limit(void *context)
{
	struct pair first = unix_pair(SOCK_STREAM), second = unix_pair(SOCK_STREAM);
	struct pollfd fds[2] = { { first.a, POLLIN, 0 }, { second.a, POLLIN, 0 } };
	struct dvpoll wait = { fds, 2, 0, NULL };
	int set;

	(void)context;
	become(12004);
	set = set_open();
	/* Without room for entries with hints DP_HPOLL works like poll(2), with correct results. */
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(OK(ioctl(set, DP_HPOLL, &wait)), 0);
		CHECK_EQ(set_statistics(set).ds_entries, 1);
	}
	make_readable(first.b);
	make_readable(second.b);
	CHECK_EQ(OK(ioctl(set, DP_HPOLL, &wait)), 2);
}

TEST(limits_hinting_poll_goes_on_at_the_limit)
{
	limit_entries("1");
	in_child_restoring(hpoll_at_the_limit);
	restore_limit();
}

TEST(limits_descriptors_far_apart)
{
	int set = set_open();

	for (int shift = 10; shift < 31; shift++)
		set_write(set, 1 << shift, POLLIN);
	set_write(set, INT32_MAX, POLLIN);
	CHECK_EQ(set_statistics(set).ds_entries, 22);
	for (int shift = 10; shift < 31; shift++)
		set_remove(set, 1 << shift);
	CHECK_EQ(set_statistics(set).ds_entries, 1);
}

/*
 * Returns the freed pages that CPUs keep for their next allocation, which MemFree does not include.
 * A freed block of 2 MiB may be kept too; the next block of this size is then allocated elsewhere.
 */
static long kept_by_cpus_kb(void)
{
	FILE *zones = fopen("/proc/zoneinfo", "r");
	long pages = 0, count;
	char line[256];

	CHECK(zones);
	while (fgets(line, sizeof(line), zones))
		if (sscanf(line, " count: %ld", &count) == 1)
			pages += count;
	fclose(zones);
	return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static long memory_in_use_kb(void)
{
	static const char *const names[] = { "MemTotal:", "MemFree:", "Buffers:", "Cached:" };
	long sum = -kept_by_cpus_kb();

	for (int i = 0; i < 4; i++) {
		long kb = number_after("/proc/meminfo", names[i]);

		CHECK(kb >= 0);
		sum += i ? -kb : kb;
	}
	return sum;
}

/* KASAN keeps freed memory for a while, to detect its use. */
static bool freed_memory_is_kept(void)
{
	FILE *symbols = fopen("/proc/kallsyms", "r");
	bool found = false;
	char line[256];

	CHECK(symbols);
	while (!found && fgets(line, sizeof(line), symbols))
		found = strstr(line, " kasan_report\n") != NULL;
	fclose(symbols);
	return found;
}

/* Opens a set that has had so many entries and is now empty. */
static void open_emptied_set(struct pollfd *changes, int count)
{
	int set = set_open();

	for (int pass = 0; pass < 2; pass++) {
		for (int j = 0; j < count; j++)
			changes[j] = (struct pollfd){ 1000 + j, pass ? POLLREMOVE : POLLIN, 0 };
		CHECK_EQ(write(set, changes, count * sizeof(*changes)),
			 count * sizeof(*changes));
	}
	CHECK_EQ(set_statistics(set).ds_entries, 0);
}

/*
 * The memory for entries must be freed when they are removed, because it is then charged to no
 * user.
 */
TEST(limits_emptied_sets_give_memory_back)
{
	enum { SETS = 6, COUNT = 30000, ATTEMPTS = 3 };
	struct pollfd *changes = calloc(COUNT, sizeof(*changes));
	char limit[32];
	long kept = 0;

	parameter_get("max_user_entries", limit, sizeof(limit));
	if (atol(limit) < COUNT)
		test_skip("max_user_entries is %s", limit);
	if (freed_memory_is_kept())
		test_skip("KASAN keeps what is freed");
	/* The first set fills the reserves of the allocators. */
	open_emptied_set(changes, COUNT);
	/*
	 * Memory that sets keep would be kept at each attempt. Another process in the guest may
	 * allocate as much once, on a busy host.
	 */
	for (int attempt = 0; attempt < ATTEMPTS; attempt++) {
		long before = memory_in_use_kb();

		for (int i = 0; i < SETS; i++)
			open_emptied_set(changes, COUNT);
		/*
		 * At least two slots of eight bytes per entry: half a MiB per set, if they were
		 * kept.
		 */
		for (long end = now_ms() + LONG_MS / 4; now_ms() < end; sleep_ms(SHORT_MS)) {
			kept = memory_in_use_kb() - before;
			if (kept <= SETS * 256)
				return;
		}
	}
	test_fail(__FILE__, __LINE__, "%d empty sets hold %ld kB", SETS, kept);
}

static void read_counters_of_all(void *context)
{
	(void)context;
	become(12005);
	CHECK_ERRNO(open("/proc/devpoll", O_RDONLY), EACCES);
}

/* The counters of all users are only for the administrator. */
TEST(limits_counters_of_all_are_for_root)
{
	if (geteuid())
		test_skip("needs root");
	CHECK(number_after("/proc/devpoll", "sets:") >= 0);
	in_child(read_counters_of_all, NULL);
}

TEST(limits_device_mode)
{
	struct stat stat_;
	char mode[16];

	parameter_get("mode", mode, sizeof(mode));
	OK(stat("/dev/poll", &stat_));
	CHECK(S_ISCHR(stat_.st_mode));
	CHECK_EQ(stat_.st_mode & 0777, atoi(mode));
}

TEST(limits_bad_parameters)
{
	static const char *const bad[][2] = {
		{ "scan", "sideways" }, { "hints", "maybe" }, { "max_user_entries", "many" },
	};

	for (int i = 0; i < 3; i++) {
		char path[128];
		int file;

		snprintf(path, sizeof(path), "/sys/module/devpoll/parameters/%s", bad[i][0]);
		file = open(path, O_WRONLY | O_CLOEXEC);
		if (file < 0)
			test_skip("%s: %s", path, strerror(errno));
		CHECK_ERRNO(write(file, bad[i][1], strlen(bad[i][1])), EINVAL);
	}
}

TEST(limits_unload_is_refused_while_in_use)
{
	struct pair pair = tcp_pair();
	int set;

	if (geteuid())
		test_skip("needs root");
	set = set_open();
	set_write(set, pair.a, POLLIN);
	CHECK_ERRNO(syscall(SYS_delete_module, "devpoll", O_NONBLOCK), EAGAIN);
	CHECK_EQ(set_statistics(set).ds_entries, 1);
}

TEST(limits_open_modes)
{
	struct pollfd change = { 0, POLLIN, 0 };
	int reading = OK(open("/dev/poll", O_RDONLY | O_CLOEXEC));
	int writing = OK(open("/dev/poll", O_WRONLY | O_CLOEXEC));

	CHECK_ERRNO(write(reading, &change, sizeof(change)), EBADF);
	CHECK_EQ(write(writing, &change, sizeof(change)), sizeof(change));
	CHECK_EQ(OK(set_poll(reading, &change, 1, 0)), 0);
}

/*
 * A killed process ends within its call, even if no other thread ever holds the lock of the set.
 * Without an end, so many changes would take minutes.
 */
TEST(limits_killed_in_a_long_call_ends)
{
	/* Pages of zeros, for which nothing is allocated: each change is one of descriptor 0. */
	const size_t size = INT32_MAX * sizeof(struct pollfd);
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	struct pollfd *changes = mmap(NULL, size, PROT_READ, flags, -1, 0);
	int status, set = set_open();
	char fdinfo[64];
	pid_t pid;
	long end;

	if (changes == MAP_FAILED)
		test_skip("an array of %d changes: %s", INT32_MAX, strerror(errno));
	pid = OK(fork());
	if (!pid) {
		set_update_poll(set, changes, INT32_MAX, NULL, 0, 0);
		_exit(0);
	}
	snprintf(fdinfo, sizeof(fdinfo), "/proc/%d/fdinfo/%d", pid, set);
	for (end = now_ms() + LONG_MS; number_after(fdinfo, "changes:") < 1000; sleep_ms(1))
		CHECK(now_ms() < end);
	OK(kill(pid, SIGKILL));
	for (end = now_ms() + LONG_MS; !OK(waitpid(pid, &status, WNOHANG)); sleep_ms(1))
		CHECK(now_ms() < end);
	CHECK(WIFSIGNALED(status));
}
