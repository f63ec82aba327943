// SPDX-License-Identifier: GPL-2.0
/* Signals during a wait, and DP_PPOLL. */
#include "util.h"

static volatile sig_atomic_t caught;

static void count(int number)
{
	(void)number;
	caught++;
}

static void catch_signal(int number, int flags)
{
	struct sigaction action = { .sa_handler = count, .sa_flags = flags };

	OK(sigaction(number, &action, NULL));
}

static void start_timer(struct timespec first, struct timespec interval)
{
	timer_t timer;
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM };
	struct itimerspec when = { .it_value = first, .it_interval = interval };

	OK(timer_create(CLOCK_MONOTONIC, &event, &timer));
	OK(timer_settime(timer, 0, &when, NULL));
}

/*
 * The signal must not arrive before the wait, so SIGALRM is blocked before it, or unblocked only
 * during it.
 */
static void alarm_once(void)
{
	start_timer((struct timespec){ 0, SHORT_MS * 1000000 }, (struct timespec){});
}

/* The alarm repeats, because the first signal may arrive before the wait has begun. */
static void alarm_on_and_on(void)
{
	struct timespec interval = { 0, SHORT_MS * 1000000 };

	start_timer(interval, interval);
}

static int set_ppoll(int set, struct pollfd *results, int room, int timeout, const sigset_t *mask)
{
	struct dvpoll wait = { results, room, timeout, mask };

	return ioctl(set, DP_PPOLL, &wait);
}

TEST(signals_end_a_wait)
{
	struct pair pair = tcp_pair();
	struct pollfd result;
	int set = set_open();

	catch_signal(SIGALRM, 0);
	set_write(set, pair.a, POLLIN);
	alarm_on_and_on();
	CHECK_ERRNO(set_poll(set, &result, 1, LONG_MS), EINTR);
	CHECK(caught);
}

/* As with poll(2) and on Solaris, the wait is never restarted. */
TEST(signals_end_a_wait_even_with_sa_restart)
{
	struct pollfd result;
	int set = set_open();

	catch_signal(SIGALRM, SA_RESTART);
	alarm_on_and_on();
	CHECK_ERRNO(set_poll(set, &result, 1, LONG_MS), EINTR);
	CHECK_ERRNO(set_poll(set, NULL, 0, LONG_MS), EINTR);
}

TEST(signals_do_not_matter_without_a_wait)
{
	struct pair pair = tcp_pair();
	sigset_t mask;
	int set = set_open();

	catch_signal(SIGUSR1, 0);
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR1);
	OK(sigprocmask(SIG_BLOCK, &mask, NULL));
	raise(SIGUSR1);
	set_write(set, pair.a, POLLOUT);
	CHECK_EQ(set_poll_one(set, pair.a, LONG_MS), POLLOUT);
	set_write(set, pair.a, POLLIN);
	set_poll_none(set, SHORT_MS);
	CHECK_EQ(caught, 0);
}

TEST(signals_mask_of_ppoll)
{
	struct pair pair = tcp_pair();
	sigset_t blocked, none, now;
	struct pollfd result;
	int set = set_open();

	catch_signal(SIGUSR1, 0);
	catch_signal(SIGALRM, 0);
	sigemptyset(&none);
	sigemptyset(&blocked);
	sigaddset(&blocked, SIGUSR1);
	sigaddset(&blocked, SIGALRM);
	OK(sigprocmask(SIG_SETMASK, &blocked, NULL));
	set_write(set, pair.a, POLLIN);

	/* The mask lets this signal through during the wait. */
	alarm_once();
	CHECK_ERRNO(set_ppoll(set, &result, 1, LONG_MS, &none), EINTR);
	CHECK_EQ(caught, 1);
	OK(sigprocmask(SIG_SETMASK, NULL, &now));
	CHECK_EQ(sigismember(&now, SIGALRM), 1);

	/* As on illumos, a pending signal takes precedence over ready events. */
	raise(SIGUSR1);
	make_readable(pair.b);
	CHECK_EQ(set_poll_one(set, pair.a, LONG_MS), POLLIN);
	CHECK_EQ(caught, 1);
	CHECK_ERRNO(set_ppoll(set, &result, 1, LONG_MS, &none), EINTR);
	CHECK_EQ(caught, 2);
	CHECK_EQ(set_ppoll(set, &result, 1, LONG_MS, &none), 1);

	/* Without a mask it works like DP_POLL. */
	raise(SIGUSR1);
	CHECK_EQ(set_ppoll(set, &result, 1, LONG_MS, NULL), 1);
	CHECK_EQ(caught, 2);
	OK(sigprocmask(SIG_SETMASK, NULL, &now));
	CHECK_EQ(sigismember(&now, SIGUSR1), 1);
	CHECK_ERRNO(set_ppoll(set, &result, 1, 0, nowhere()), EFAULT);
}

TEST(signals_blocked_by_ppoll)
{
	struct pair pair = tcp_pair();
	struct pollfd result;
	sigset_t all, now;
	int set = set_open();

	catch_signal(SIGALRM, 0);
	sigfillset(&all);
	set_write(set, pair.a, POLLIN);
	alarm_once();
	CHECK_EQ(set_ppoll(set, &result, 1, 4 * SHORT_MS, &all), 0);
	/* The signal is delivered when the old mask is restored. */
	CHECK_EQ(caught, 1);
	OK(sigprocmask(SIG_SETMASK, NULL, &now));
	CHECK_EQ(sigismember(&now, SIGALRM), 0);
}

TEST(signals_kill_a_waiter)
{
	struct pair pair = tcp_pair();
	sigset_t all;
	int set, status;
	pid_t pid;

	sigfillset(&all);
	for (int kind = 0; kind < 3; kind++) {
		/* Opened here, so that the wait is the first call in which the child may sleep. */
		set = set_open();
		pid = OK(fork());
		if (!pid) {
			struct pollfd result;

			set_write(set, pair.a, POLLIN);
			if (kind == 0)
				set_poll(set, &result, 1, -1);
			else if (kind == 1)
				set_poll(set, NULL, 0, -1);
			else
				set_ppoll(set, &result, 1, -1, &all);
			_exit(1);
		}
		process_is_asleep(pid);
		OK(kill(pid, SIGKILL));
		OK(waitpid(pid, &status, 0));
		close(set);
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	}
}

/* Stops and continues the process while it waits, and returns when it waits again. */
static void stop_and_continue(pid_t pid)
{
	int status;

	process_is_asleep(pid);
	OK(kill(pid, SIGSTOP));
	OK(waitpid(pid, &status, WUNTRACED));
	CHECK(WIFSTOPPED(status));
	OK(kill(pid, SIGCONT));
	process_is_asleep(pid);
}

/*
 * The process is stopped and continued without a handler. As on Solaris a wait without a timeout
 * continues, with its signal mask. A wait with a timeout, or with changes, may end with EINTR, but
 * must not report a false result.
 */
TEST(signals_stop_and_continue)
{
	struct pair pair = tcp_pair();
	int status;

	for (int kind = 0; kind < 4; kind++) {
		/* Opened here, so that the wait is the first call in which the child may sleep. */
		int set = set_open();
		pid_t pid = OK(fork());

		if (!pid) {
			struct pollfd change = { pair.a, POLLIN, 0 }, result = { 0 };
			sigset_t mask;
			int got;

			sigfillset(&mask);
			set_write(set, pair.a, POLLIN);
			do {
				got = kind == 0 ? set_poll(set, &result, 1, -1) :
				      kind == 1 ? set_ppoll(set, &result, 1, -1, &mask) :
				      kind == 2 ? set_update_poll(set, &change, 1, &result, 1, -1) :
						  set_poll(set, &result, 1, LONG_MS);
			} while (kind >= 2 && got < 0 && errno == EINTR);
			OK(sigprocmask(SIG_SETMASK, NULL, &mask));
			_exit(got != 1 || result.revents != POLLIN || sigismember(&mask, SIGUSR1));
		}
		stop_and_continue(pid);
		stop_and_continue(pid);
		make_readable(pair.b);
		OK(waitpid(pid, &status, 0));
		CHECK(WIFEXITED(status));
		CHECK_EQ(WEXITSTATUS(status), 0);
		drain(pair.a);
		close(set);
	}
}

/* A wait without room for results also waits. */
TEST(signals_stop_and_continue_without_room)
{
	int status, set = set_open();
	pid_t pid = OK(fork());

	if (!pid) {
		set_poll(set, NULL, 0, -1);
		_exit(1);
	}
	stop_and_continue(pid);
	stop_and_continue(pid);
	CHECK_EQ(waitpid(pid, &status, WNOHANG), 0);
	OK(kill(pid, SIGKILL));
	OK(waitpid(pid, &status, 0));
}
