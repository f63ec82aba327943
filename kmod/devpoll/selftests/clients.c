// SPDX-License-Identifier: GPL-2.0
/*
 * Programs as they were written for Solaris: replays, call by call, how libraries used /dev/poll
 * there; and tests the headers in other languages and word sizes.
 */
#include "util.h"

#include <sys/resource.h>
#include <sys/stat.h>

/*
 * The calls of an event library. It collects changes and writes them with one pwrite() at offset 0.
 * To remove one of two events it writes POLLREMOVE and then the remaining event. Its room for
 * results is as large as RLIMIT_NOFILE. It was written for a system where a write adds events.
 */
static void library_session(int set)
{
	enum { ROOM = 4096 };
	struct pollfd *results = calloc(ROOM, sizeof(*results));
	struct pair pair = tcp_pair();
	struct pollfd changes[4];
	struct dvpoll wait = { .dp_fds = results, .dp_nfds = ROOM, .dp_timeout = 0 };

	CHECK(results);
	changes[0] = (struct pollfd){ .fd = pair.a, .events = POLLIN };
	changes[1] = (struct pollfd){ .fd = pair.a, .events = POLLOUT };
	CHECK_EQ(pwrite(set, changes, 2 * sizeof(*changes), 0), 2 * sizeof(*changes));
	CHECK_EQ(ioctl(set, DP_POLL, &wait), 1);
	CHECK_EQ(results[0].revents, POLLOUT);

	changes[0].events = POLLREMOVE;
	changes[1].events = POLLIN;
	CHECK_EQ(pwrite(set, changes, 2 * sizeof(*changes), 0), 2 * sizeof(*changes));
	CHECK_EQ(ioctl(set, DP_POLL, &wait), 0);
	make_readable(pair.b);
	wait.dp_timeout = LONG_MS;
	CHECK_EQ(ioctl(set, DP_POLL, &wait), 1);
	CHECK_EQ(results[0].fd, pair.a);
	CHECK_EQ(results[0].revents, POLLIN);

	/*
	 * The descriptor is closed first and removed later, under a number that may be in use
	 * again.
	 */
	close(pair.a);
	changes[0] = (struct pollfd){ .fd = pair.a, .events = POLLREMOVE };
	CHECK_EQ(write(set, changes, sizeof(*changes)), sizeof(*changes));
	wait.dp_timeout = 0;
	CHECK_EQ(ioctl(set, DP_POLL, &wait), 0);
	close(pair.b);
	free(results);
}

TEST(clients_event_library)
{
	library_session(set_open_with(DP_OPTION_OR));
}

/* The calls of a web server: POLLREMOVE and the new events in one write() for each change. */
TEST(clients_web_server)
{
	struct dvpoll wait = { .dp_nfds = 512, .dp_timeout = LONG_MS };
	struct pollfd results[512], changes[2];
	struct sockaddr_storage address;
	socklen_t length;
	int listener = tcp_listen(AF_INET, &address, &length);
	int set = set_open();
	int client, connection;
	struct linger now = { 1, 0 };
	char byte;

	wait.dp_fds = results;
	changes[0] = (struct pollfd){ listener, POLLIN, 0 };
	CHECK_EQ(write(set, changes, sizeof(*changes)), sizeof(*changes));
	client = OK(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
	OK(connect(client, (struct sockaddr *)&address, length));
	CHECK_EQ(ioctl(set, DP_POLL, &wait), 1);
	CHECK_EQ(results[0].fd, listener);
	connection = OK(accept(listener, NULL, NULL));
	OK(setsockopt(connection, SOL_SOCKET, SO_LINGER, &now, sizeof(now)));
	for (int request = 0; request < 20; request++) {
		changes[0] = (struct pollfd){ connection, POLLREMOVE, 0 };
		changes[1] = (struct pollfd){ connection, POLLIN, 0 };
		CHECK_EQ(write(set, changes, sizeof(changes)), sizeof(changes));
		make_readable(client);
		CHECK_EQ(ioctl(set, DP_POLL, &wait), 1);
		CHECK_EQ(results[0].fd, connection);
		CHECK_EQ(results[0].revents, POLLIN);
		CHECK_EQ(read(connection, &byte, 1), 1);
		changes[1].events = POLLOUT;
		CHECK_EQ(write(set, changes, sizeof(changes)), sizeof(changes));
		CHECK_EQ(ioctl(set, DP_POLL, &wait), 1);
		CHECK_EQ(results[0].revents, POLLOUT);
		make_readable(connection);
		CHECK_EQ(read(client, &byte, 1), 1);
	}
	close(connection);
	close(client);
}

TEST(clients_structure)
{
	struct dvpoll positional = { (struct pollfd *)0, 1, 2, NULL };

	CHECK_EQ(DP_POLL, 0xD001);
	CHECK_EQ(DP_ISPOLLED, 0xD002);
	CHECK_EQ(DP_PPOLL, 0xD003);
	CHECK_EQ(POLLREMOVE, 0x1000);
	CHECK_EQ(positional.dp_nfds, 1);
	CHECK_EQ(positional.dp_timeout, 2);
	/* The kernel must read no more than the structure of Solaris contained. */
	CHECK_EQ(offsetof(struct dvpoll, dp_setp), 8 + sizeof(void *));
}

/* The type names of Solaris, as its <poll.h> and <sys/devpoll.h> define them. */
TEST(clients_names_of_types)
{
	pollfd_t change = { STDIN_FILENO, POLLREMOVE, 0 };
	dvpoll_t wait = { &change, 1, 0, NULL };
	int set = set_open();

	CHECK_EQ(write(set, &change, sizeof(pollfd_t)), sizeof(change));
	CHECK_EQ(ioctl(set, DP_POLL, &wait), 0);
}

/* The structure ends directly before an unmapped page, because DP_POLL must not read dp_setp. */
TEST(clients_shorter_structure)
{
	long page = sysconf(_SC_PAGESIZE);
	struct pair pair = tcp_pair();
	struct pollfd result;
	struct dvpoll *wait;
	int set = set_open();
	char *pages;

	pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(pages != MAP_FAILED);
	OK(munmap(pages + page, page));
	wait = (struct dvpoll *)(pages + page - offsetof(struct dvpoll, dp_setp));
	wait->dp_fds = &result;
	wait->dp_nfds = 1;
	wait->dp_timeout = 0;
	set_write(set, pair.a, POLLOUT);
	CHECK_EQ(ioctl(set, DP_POLL, wait), 1);
	CHECK_ERRNO(ioctl(set, DP_PPOLL, wait), EFAULT);
}
