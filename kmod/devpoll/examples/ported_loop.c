// SPDX-License-Identifier: GPL-2.0
/*
 * A poll() loop that was ported to /dev/poll: an echo server on 127.0.0.1. Compiled with -DUSE_POLL
 * it is the original program; the port consists of the lines between #else and #endif.
 *
 *	cc -I include -o echo ported_loop.c && ./echo 7777
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/devpoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <fcntl.h>

#define MOST 1000

static struct pollfd fds[MOST];
static int count;

#ifdef USE_POLL
static void watch(int fd)
{
	fds[count++] = (struct pollfd){ .fd = fd, .events = POLLIN };
}

static void forget(int fd)
{
	for (int i = 0; i < count; i++)
		if (fds[i].fd == fd)
			fds[i--] = fds[--count];
}

static int wait_for_events(void)
{
	return poll(fds, count, -1) < 0 ? 0 : count;
}
#else
static int set;

static void watch(int fd)
{
	struct pollfd change = { .fd = fd, .events = POLLIN };

	if (!set)
		set = open("/dev/poll", O_RDWR);
	count += write(set, &change, sizeof(change)) > 0;
}

static void forget(int fd)
{
	struct pollfd change = { .fd = fd, .events = POLLREMOVE };

	count -= write(set, &change, sizeof(change)) > 0;
}

static int wait_for_events(void)
{
	struct dvpoll wait = { .dp_fds = fds, .dp_nfds = MOST, .dp_timeout = -1 };

	return ioctl(set, DP_POLL, &wait);
}
#endif

static void serve(int fd, int listener)
{
	char buffer[4096];
	ssize_t got;

	if (fd == listener) {
		int connection = accept(listener, NULL, NULL);

		if (connection >= 0 && count < MOST)
			watch(connection);
		else if (connection >= 0)
			close(connection);
		return;
	}
	got = read(fd, buffer, sizeof(buffer));
	if (got > 0 && write(fd, buffer, got) == got)
		return;
	forget(fd);
	close(fd);
}

int main(int argc, char **argv)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
		.sin_port = htons(argc > 1 ? atoi(argv[1]) : 7777),
	};
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	if (bind(listener, (struct sockaddr *)&address, sizeof(address)) || listen(listener, 128)) {
		perror("echo: listen");
		return 1;
	}
	watch(listener);
	for (;;) {
		int found = wait_for_events();

		if (found < 0) {
			perror("echo: DP_POLL");
			return 1;
		}
		for (int i = 0; i < found; i++)
			if (fds[i].revents)
				serve(fds[i].fd, listener);
	}
}
