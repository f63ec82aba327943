// SPDX-License-Identifier: GPL-2.0
#include "util.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/un.h>

int set_open(void)
{
	return OK(open("/dev/poll-replace", O_RDWR | O_CLOEXEC));
}

int set_open_with(int options)
{
	int set = set_open();

	OK(ioctl(set, DP_SETOPTIONS, options));
	return set;
}

void set_write(int set, int fd, short events)
{
	struct pollfd change = { fd, events, 0 };

	CHECK_EQ(write(set, &change, sizeof(change)), sizeof(change));
}

void set_remove(int set, int fd)
{
	set_write(set, fd, POLLREMOVE);
}

int set_poll(int set, struct pollfd *results, int room, int timeout)
{
	struct dvpoll wait = { results, room, timeout, NULL };

	return ioctl(set, DP_POLL, &wait);
}

int set_update_poll(int set, const struct pollfd *changes, int nchanges, struct pollfd *results,
		    int room, int timeout)
{
	struct dvpoll_update update = {
		.du_changes = changes,
		.du_fds = results,
		.du_nchanges = nchanges,
		.du_nfds = room,
		.du_timeout = timeout,
	};

	return ioctl(set, DP_UPDATE_POLL, &update);
}

short set_poll_one(int set, int fd, int timeout)
{
	struct pollfd results[4];
	long begun = now_ms();

	CHECK_EQ(OK(set_poll(set, results, 4, timeout)), 1);
	CHECK_EQ(results[0].fd, fd);
	/*
	 * The kernel scans once more after a timeout, so a late result may mean that no wake-up
	 * came.
	 */
	CHECK(timeout <= 0 || now_ms() - begun < timeout);
	return results[0].revents;
}

void set_poll_none(int set, int timeout)
{
	struct pollfd results[4];
	int count = OK(set_poll(set, results, 4, timeout));

	if (count)
		test_fail(__FILE__, __LINE__, "fd %d has events %#x, nothing was to be reported",
			  results[0].fd, results[0].revents);
}

struct dvpoll_statistics set_statistics(int set)
{
	struct dvpoll_statistics statistics = { .ds_size = sizeof(statistics) };

	OK(ioctl(set, DP_GETSTATISTICS, &statistics));
	return statistics;
}

int tcp_listen(int family, struct sockaddr_storage *address, socklen_t *length)
{
	int listener = OK(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
	struct sockaddr_in *in = (struct sockaddr_in *)address;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)address;

	memset(address, 0, sizeof(*address));
	address->ss_family = family;
	if (family == AF_INET) {
		in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		*length = sizeof(*in);
	} else {
		in6->sin6_addr = in6addr_loopback;
		*length = sizeof(*in6);
	}
	OK(bind(listener, (struct sockaddr *)address, *length));
	OK(listen(listener, 128));
	OK(getsockname(listener, (struct sockaddr *)address, length));
	return listener;
}

static struct pair stream_pair(int family)
{
	struct sockaddr_storage address;
	struct linger now = { 1, 0 };
	socklen_t length;
	int listener = tcp_listen(family, &address, &length);
	struct pair pair;

	pair.b = OK(socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
	OK(connect(pair.b, (struct sockaddr *)&address, length));
	pair.a = OK(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
	close(listener);
	/* Avoid TIME_WAIT, because the harness counts the sockets that a test leaves behind. */
	OK(setsockopt(pair.a, SOL_SOCKET, SO_LINGER, &now, sizeof(now)));
	OK(setsockopt(pair.b, SOL_SOCKET, SO_LINGER, &now, sizeof(now)));
	return pair;
}

struct pair tcp_pair(void)
{
	return stream_pair(AF_INET);
}

struct pair tcp6_pair(void)
{
	return stream_pair(AF_INET6);
}

struct pair unix_pair(int type)
{
	int ends[2];

	OK(socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends));
	return (struct pair){ ends[0], ends[1] };
}

void pair_close(struct pair pair)
{
	close(pair.a);
	close(pair.b);
}

void make_readable(int peer)
{
	CHECK_EQ(write(peer, "x", 1), 1);
}

void drain(int fd)
{
	char buffer[4096];

	while (recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT) > 0)
		;
}

void fill(int fd)
{
	static const char buffer[4096];

	while (send(fd, buffer, sizeof(buffer), MSG_DONTWAIT) > 0)
		;
	CHECK_EQ(errno, EAGAIN);
}

void do_nothing(int number)
{
	(void)number;
}

long now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void sleep_ms(long ms)
{
	struct timespec nap = { ms / 1000, ms % 1000 * 1000000 };

	while (nanosleep(&nap, &nap) && errno == EINTR)
		;
}

void raise_descriptor_limit(unsigned long wanted)
{
	struct rlimit limit;

	OK(getrlimit(RLIMIT_NOFILE, &limit));
	if (limit.rlim_cur >= wanted)
		return;
	limit.rlim_cur = wanted;
	if (limit.rlim_max < wanted)
		limit.rlim_max = wanted;
	if (setrlimit(RLIMIT_NOFILE, &limit))
		test_skip("needs the right to raise RLIMIT_NOFILE");
}

static void *waiter_run(void *context)
{
	struct waiter *waiter = context;
	long begun = now_ms();

	waiter->tid = syscall(SYS_gettid);
	waiter->result = set_poll(waiter->set, waiter->results, waiter->room, waiter->timeout);
	waiter->error = errno;
	waiter->time_was_over = waiter->timeout > 0 && now_ms() - begun >= waiter->timeout;
	waiter->done = 1;
	return NULL;
}

void waiter_start(struct waiter *waiter, int set, int timeout)
{
	waiter_start_with_room(waiter, set, 16, timeout);
}

void waiter_start_with_room(struct waiter *waiter, int set, int room, int timeout)
{
	memset(waiter, 0, sizeof(*waiter));
	waiter->set = set;
	waiter->room = room;
	waiter->timeout = timeout;
	CHECK_EQ(pthread_create(&waiter->thread, NULL, waiter_run, waiter), 0);
}

static void is_asleep(const char *path)
{
	long end = now_ms() + LONG_MS;
	char state = 0;

	/* Require it twice in a row, because the thread may sleep for a moment on a lock. */
	for (int asleep = 0; asleep < 2;) {
		FILE *file = fopen(path, "re");

		CHECK(file);
		CHECK_EQ(fscanf(file, "%*d (%*[^)]) %c", &state), 1);
		fclose(file);
		asleep = state == 'S' || state == 'D' ? asleep + 1 : 0;
		CHECK(now_ms() < end);
		sleep_ms(2);
	}
}

void thread_is_asleep(pid_t tid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	is_asleep(path);
}

void process_is_asleep(pid_t pid)
{
	char path[64];

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	is_asleep(path);
}

void waiter_is_asleep(struct waiter *waiter)
{
	while (!waiter->tid)
		sleep_ms(1);
	thread_is_asleep(waiter->tid);
}

int waiter_join(struct waiter *waiter)
{
	CHECK_EQ(pthread_join(waiter->thread, NULL), 0);
	/* As in set_poll_one(). */
	CHECK(waiter->result <= 0 || !waiter->time_was_over);
	errno = waiter->error;
	return waiter->result;
}

static void parameter_path(const char *name, char *path, size_t size)
{
	snprintf(path, size, "/sys/module/devpoll/parameters/%s", name);
}

void parameter_get(const char *name, char *value, size_t size)
{
	char path[128];
	ssize_t got;
	int file;

	parameter_path(name, path, sizeof(path));
	file = OK(open(path, O_RDONLY | O_CLOEXEC));
	got = OK(read(file, value, size - 1));
	value[got] = 0;
	value[strcspn(value, "\n")] = 0;
	close(file);
}

void parameter_set(const char *name, const char *value)
{
	char path[128];
	int file;

	parameter_path(name, path, sizeof(path));
	file = open(path, O_WRONLY | O_CLOEXEC);
	if (file < 0)
		test_skip("%s: %s", path, strerror(errno));
	CHECK_EQ(write(file, value, strlen(value)), strlen(value));
	close(file);
}

void in_child(void (*run)(void *), void *context)
{
	pid_t pid = OK(fork());
	int status;

	if (!pid) {
		run(context);
		_exit(0);
	}
	OK(waitpid(pid, &status, 0));
	if (!WIFEXITED(status) || WEXITSTATUS(status))
		_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}
