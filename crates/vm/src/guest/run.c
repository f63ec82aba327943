// SPDX-License-Identifier: MIT OR Apache-2.0
/* The command: started with its environment, its two streams relayed, its status taken. */
#define _GNU_SOURCE
#include "init.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#define STATUS_CANNOT_EXECUTE 126
#define STATUS_NOT_FOUND 127
#define PIPE_BYTES (1 << 20)

struct stream {
	enum frame_kind kind;
	int read_end;
	int write_end;
};

static void stream_open(struct stream *stream)
{
	int ends[2];

	if (pipe2(ends, O_CLOEXEC) < 0)
		die("pipe for the command's output: %s", strerror(errno));
	stream->read_end = ends[0];
	stream->write_end = ends[1];
	fcntl(stream->read_end, F_SETFL, O_NONBLOCK);
	/* A roomy pipe: fewer switches between the command and this relay. */
	fcntl(stream->read_end, F_SETPIPE_SZ, PIPE_BYTES);
}

/* Sends on what is there now. Returns false at the end of the stream. */
static bool stream_relay(struct stream *stream)
{
	static char bytes[FRAME_PAYLOAD_MAX];
	ssize_t n = read(stream->read_end, bytes, sizeof(bytes));

	if (n > 0)
		frame_send(stream->kind, bytes, (size_t)n);
	if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
		close(stream->read_end);
		stream->read_end = -1;
		return false;
	}
	return n > 0;
}

static _Noreturn void become_command(struct stream *out, struct stream *err)
{
	char **arguments = config_list("arg");
	char **environment = config_list("env");
	const char *path = config_get("path");
	sigset_t none;
	int null_fd = open("/dev/null", O_RDONLY);
	int saved;

	setsid();
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	dup2(null_fd, STDIN_FILENO);
	dup2(out->write_end, STDOUT_FILENO);
	dup2(err->write_end, STDERR_FILENO);
	if (null_fd > STDERR_FILENO)
		close(null_fd);
	/* execvpe searches this process's PATH, not the one it hands over. */
	environ = (char *[]){ (char *)path, NULL };
	execvpe(arguments[0], arguments, environment);
	saved = errno;
	dprintf(STDERR_FILENO, "pollux vm: %s: %s (in the guest)\n", arguments[0], strerror(saved));
	_exit(saved == ENOENT ? STATUS_NOT_FOUND : STATUS_CANNOT_EXECUTE);
}

/* Reaps every child that ended; true when the command was among them. */
static bool reap(pid_t command, int *code)
{
	bool ended = false;
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		if (pid != command)
			continue;
		*code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
		ended = true;
	}
	return ended;
}

int run_command(void)
{
	struct stream streams[2] = { { .kind = FRAME_STDOUT }, { .kind = FRAME_STDERR } };
	struct pollfd watched[3];
	struct signalfd_siginfo discard[8];
	sigset_t child_set;
	int code = 0, child_fd;
	bool ended = false;
	pid_t command;

	sigemptyset(&child_set);
	sigaddset(&child_set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &child_set, NULL);
	child_fd = signalfd(-1, &child_set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (child_fd < 0)
		die("signalfd: %s", strerror(errno));
	for (int i = 0; i < 2; i++)
		stream_open(&streams[i]);
	command = fork();
	if (command < 0)
		die("fork: %s", strerror(errno));
	if (command == 0)
		become_command(&streams[0], &streams[1]);
	for (int i = 0; i < 2; i++)
		close(streams[i].write_end);

	while (!ended) {
		for (int i = 0; i < 2; i++)
			watched[i] = (struct pollfd){ .fd = streams[i].read_end, .events = POLLIN };
		watched[2] = (struct pollfd){ .fd = child_fd, .events = POLLIN };
		if (poll(watched, 3, -1) < 0 && errno != EINTR)
			die("poll: %s", strerror(errno));
		for (int i = 0; i < 2; i++)
			if (watched[i].revents)
				stream_relay(&streams[i]);
		if (watched[2].revents) {
			while (read(child_fd, discard, sizeof(discard)) > 0)
				;
			ended = reap(command, &code);
		}
	}
	/*
	 * What the command wrote is in the pipes by now. Grandchildren may hold them open for
	 * ever: take what is there, and at most one pipe's worth, rather than wait for the end.
	 */
	for (int i = 0; i < 2; i++)
		for (int n = 0; n < PIPE_BYTES / 512 && streams[i].read_end >= 0; n++)
			if (!stream_relay(&streams[i]))
				break;
	return code;
}
