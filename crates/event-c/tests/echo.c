/* An echo server on the mechanism that is named, written as a user of pollux.h would, with its
 * clients in a thread of its own; and what misuse is answered. Exit status 77: not available here. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pollux.h"

#define CLIENTS 20
#define ROUNDS 5

#define CHECK(condition)                                                                   \
	do {                                                                               \
		if (!(condition)) {                                                        \
			fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, \
				pollux_message());                                         \
			exit(1);                                                           \
		}                                                                          \
	} while (0)

struct clients {
	struct sockaddr_in address;
	struct pollux_waker *waker;
};

/* Opens the clients, sends and receives through each, closes them, and wakes the server. */
static void *run_clients(void *argument)
{
	struct clients *clients = argument;
	int sockets[CLIENTS];
	char sent[32], got[32];

	for (int i = 0; i < CLIENTS; i++) {
		sockets[i] = socket(AF_INET, SOCK_STREAM, 0);
		CHECK(connect(sockets[i], (struct sockaddr *)&clients->address,
			      sizeof(clients->address)) == 0);
	}
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < CLIENTS; i++) {
			int length = snprintf(sent, sizeof(sent), "client %d round %d", i, round);
			CHECK(write(sockets[i], sent, (size_t)length) == length);
			CHECK(recv(sockets[i], got, (size_t)length, MSG_WAITALL) == length);
			CHECK(memcmp(sent, got, (size_t)length) == 0);
		}
	}
	for (int i = 0; i < CLIENTS; i++)
		close(sockets[i]);
	pollux_wake(clients->waker);
	return NULL;
}

/* Echoes until there is nothing more; 0 at the end of the stream. */
static int echo(int fd)
{
	char buffer[512];

	for (;;) {
		ssize_t count = read(fd, buffer, sizeof(buffer));
		if (count == 0)
			return 0;
		if (count < 0) {
			CHECK(errno == EAGAIN);
			return 1;
		}
		CHECK(write(fd, buffer, (size_t)count) == count);
	}
}

static int listen_on(struct sockaddr_in *address)
{
	socklen_t length = sizeof(*address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);

	memset(address, 0, sizeof(*address));
	address->sin_family = AF_INET;
	address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(bind(fd, (struct sockaddr *)address, length) == 0);
	CHECK(listen(fd, CLIENTS) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)address, &length) == 0);
	return fd;
}

static void serve(struct pollux_set *set)
{
	struct clients clients;
	struct pollux_event event;
	pthread_t thread;
	uint64_t listening;
	int open_now = 0, accepted = 0;
	int listener = listen_on(&clients.address);

	CHECK(pollux_add(set, listener, POLLUX_READ, &listening) == 0);
	CHECK(pollux_waker_open(set, &clients.waker) == 0);
	CHECK(pthread_create(&thread, NULL, run_clients, &clients) == 0);
	while (accepted < CLIENTS || open_now > 0) {
		CHECK(pollux_wait(set, 20000) >= 0);
		while (pollux_next(set, &event) == 1) {
			if (event.token == listening) {
				int fd;
				while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
					uint64_t token;
					CHECK(pollux_add(set, fd, POLLUX_READ, &token) == 0);
					accepted++;
					open_now++;
				}
			} else if (echo(event.fd) == 0) {
				CHECK(pollux_close_fd(set, event.token, event.fd) == 0);
				open_now--;
			}
		}
	}
	CHECK(pthread_join(thread, NULL) == 0);
	/* The wake-up comes whether it was before the wait or is yet to come. */
	pollux_wake(clients.waker);
	CHECK(pollux_wait(set, 20000) >= 0);
	pollux_waker_close(clients.waker);
	CHECK(pollux_close_fd(set, listening, listener) == 0);
}

/* A child has the set with the same token, and leaves the parent's as it is. */
static void fork_with(struct pollux_set *set)
{
	struct pollux_event event;
	uint64_t token;
	int ends[2], status, waits = 0;
	pid_t child;

	CHECK(pipe(ends) == 0);
	CHECK(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
	CHECK(pollux_add(set, ends[0], POLLUX_READ, &token) == 0);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		CHECK(pollux_reopen_after_fork(set) == 0);
		CHECK(write(ends[1], "x", 1) == 1);
		do {
			CHECK(++waits <= 10);
			CHECK(pollux_wait(set, 20000) >= 0);
		} while (pollux_next(set, &event) == 0);
		CHECK(event.token == token && event.fd == ends[0]);
		CHECK(pollux_remove(set, token) == 0);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK(pollux_remove(set, token) == 0);
	close(ends[0]);
	close(ends[1]);
}

/* The number of a descriptor that was closed without its set remains in the set until it is removed. */
static void closed_before(struct pollux_set *set)
{
	uint64_t token, next;
	int ends[2];

	CHECK(pipe(ends) == 0);
	CHECK(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
	CHECK(pollux_add(set, ends[0], POLLUX_READ, &token) == 0);
	CHECK(pollux_wait(set, 0) >= 0);
	/* Closes the reading end and gives its number to the writing end. */
	CHECK(dup2(ends[1], ends[0]) == ends[0]);
	CHECK(pollux_add(set, ends[0], POLLUX_WRITE, &next) == -EEXIST);
	/* An error says that the kernel does not know the descriptor any more. */
	pollux_remove(set, token);
	CHECK(pollux_remove(set, token) == -ENOENT);
	CHECK(pollux_add(set, ends[0], POLLUX_WRITE, &next) == 0);
	CHECK(pollux_remove(set, next) == 0);
	close(ends[0]);
	close(ends[1]);
}

/* A descriptor that is not open is refused, at once or by the next wait. */
static void not_open(struct pollux_set *set)
{
	struct pollux_event event;
	uint64_t token;
	int waits = 0, added;

	CHECK(fcntl(900, F_GETFD) == -1);
	added = pollux_add(set, 900, POLLUX_READ, &token);
	if (added != 0) {
		CHECK(added == -EBADF);
		return;
	}
	do {
		CHECK(++waits <= 10);
		CHECK(pollux_wait(set, 2000) >= 0);
	} while (pollux_next(set, &event) == 0);
	CHECK(event.token == token && event.readiness & POLLUX_INVALID);
	CHECK(pollux_remove(set, token) == 0);
}

/* What cannot be right is an error and no crash. */
static void misuse(struct pollux_set *set)
{
	struct pollux_set *none;
	struct pollux_event event;
	uint64_t token, other;
	int ends[2], waits = 0;

	CHECK(pipe(ends) == 0);
	CHECK(fcntl(ends[0], F_SETFL, O_NONBLOCK) == 0);
	CHECK(pollux_open(NULL, 0, &none) == -EINVAL);
	CHECK(pollux_open("no such", 0, &none) == -EINVAL);
	CHECK(strstr(pollux_message(), "no such") != NULL);
	CHECK(pollux_open("epoll:no=option", 0, &none) == -EINVAL);
	CHECK(pollux_open("epoll", (size_t)1 << 40, &none) == -EINVAL);
	CHECK(pollux_open("epoll", 0, NULL) == -EINVAL);
	CHECK(pollux_probe(NULL) == -EINVAL);
	CHECK(pollux_add(NULL, ends[0], POLLUX_READ, &token) == -EINVAL);
	CHECK(pollux_add(set, -1, POLLUX_READ, &token) == -EBADF);
	CHECK(pollux_add(set, ends[0], 4, &token) == -EINVAL);
	CHECK(pollux_add(set, ends[0], POLLUX_READ, NULL) == -EINVAL);
	CHECK(pollux_add(set, ends[0], POLLUX_READ, &token) == 0);
	CHECK(pollux_add(set, ends[0], POLLUX_READ, &other) == -EEXIST);
	CHECK(pollux_modify(set, token, 256) == -EINVAL);
	CHECK(pollux_modify(set, token, 0) == 0);
	CHECK(pollux_modify(set, token, POLLUX_READ) == 0);
	CHECK(pollux_add(set, INT_MAX, POLLUX_READ, &other) == -EBADF);
	CHECK(write(ends[1], "x", 1) == 1);
	/* Earlier wake-ups may still make a wait return for nothing. */
	do {
		CHECK(++waits <= 10);
		CHECK(pollux_wait(set, 20000) >= 0);
		CHECK(pollux_next(set, NULL) == -EINVAL);
	} while (pollux_next(set, &event) == 0);
	CHECK(event.token == token && event.fd == ends[0]);
	CHECK(event.readiness & POLLUX_READABLE);
	CHECK(pollux_close_fd(set, token, ends[1]) == -EINVAL);
	CHECK(pollux_remove(set, token) == 0);
	CHECK(pollux_remove(set, token) == -ENOENT);
	CHECK(pollux_modify(set, token, POLLUX_READ) == -ENOENT);
	CHECK(strstr(pollux_message(), "not in the interest set") != NULL);
	CHECK(pollux_close_fd(set, token, ends[0]) == -ENOENT);
	CHECK(fcntl(ends[0], F_GETFD) == -1);
	CHECK(pollux_wait(NULL, 0) == -EINVAL);
	CHECK(pollux_capabilities(NULL) == 0);
	CHECK(pollux_waker_open(set, NULL) == -EINVAL);
	CHECK(pollux_reopen_after_fork(NULL) == -EINVAL);
	pollux_wake(NULL);
	pollux_waker_close(NULL);
	pollux_close(NULL);
	close(ends[1]);
}

int main(int count, char **arguments)
{
	struct pollux_set *set;
	struct pollux_waker *waker;

	if (count < 2) {
		const char *name;
		for (size_t i = 0; (name = pollux_name(i)) != NULL; i++)
			puts(name);
		return 0;
	}
	if (pollux_probe(arguments[1]) == -ENOSYS) {
		fprintf(stderr, "skipped: %s\n", pollux_message());
		return 77;
	}
	CHECK(pollux_open(arguments[1], 0, &set) == 0);
	serve(set);
	fork_with(set);
	closed_before(set);
	not_open(set);
	misuse(set);
	/* A waker may outlive its set: no signal (SIGPIPE) ends the program. */
	CHECK(pollux_waker_open(set, &waker) == 0);
	pollux_close(set);
	pollux_wake(waker);
	pollux_waker_close(waker);
	return 0;
}
