// SPDX-License-Identifier: GPL-2.0
/* DP_UPDATE_POLL: changes and a wait in one call. */
#include "util.h"

#include <linux/userfaultfd.h>
#include <sys/syscall.h>

TEST(updating_applies_then_waits)
{
	struct pair first = tcp_pair(), second = tcp_pair();
	struct pollfd changes[] = { { first.a, POLLOUT, 0 }, { second.a, POLLIN, 0 } };
	struct pollfd results[4];
	int set = set_open();

	CHECK_EQ(set_update_poll(set, changes, 2, results, 4, LONG_MS), 1);
	CHECK_EQ(results[0].fd, first.a);
	CHECK_EQ(results[0].revents, POLLOUT);
	changes[0].events = POLLREMOVE;
	make_readable(second.b);
	CHECK_EQ(set_update_poll(set, changes, 1, results, 4, LONG_MS), 1);
	CHECK_EQ(results[0].fd, second.a);
	CHECK_EQ(set_update_poll(set, NULL, 0, results, 4, 0), 1);
}

TEST(updating_errors)
{
	struct pair pair = tcp_pair();
	int set = set_open();
	struct pollfd changes[] = { { set, POLLIN, 0 }, { pair.a, POLLOUT, 0 } };
	struct dvpoll_update update = { .du_flags = 1 };
	struct pollfd results[4];

	/* The rest of the batch is applied, and the call does not wait. */
	CHECK_ERRNO(set_update_poll(set, changes, 2, results, 4, -1), ELOOP);
	CHECK_EQ(set_poll_one(set, pair.a, 0), POLLOUT);
	CHECK_ERRNO(set_update_poll(set, changes, -1, results, 4, 0), EINVAL);
	CHECK_ERRNO(set_update_poll(set, nowhere(), 1, results, 4, 0), EFAULT);
	CHECK_ERRNO(ioctl(set, DP_UPDATE_POLL, &update), EINVAL);
	CHECK_ERRNO(ioctl(set, DP_UPDATE_POLL, NULL), EFAULT);
	CHECK_ERRNO(set_update_poll(set, NULL, 0, results, -1, 0), EINVAL);
}

/* A call that is rejected because of its arguments must not have changed the set. */
TEST(updating_refused_changes_nothing)
{
	enum { COUNT = 100 };
	struct pair pair = tcp_pair();
	struct pollfd changes[COUNT], results[4];
	struct dvpoll_update update = { .du_changes = changes, .du_fds = results };
	int set = set_open();
	sigset_t mask;

	sigemptyset(&mask);
	for (int i = 0; i < COUNT; i++)
		changes[i] = (struct pollfd){ pair.a, POLLOUT, 0 };
	/* Few changes, many changes, and a signal mask take three different paths in the kernel. */
	for (int way = 0; way < 3; way++) {
		update.du_nchanges = way == 1 ? COUNT : 1;
		update.du_setp = way == 2 ? &mask : NULL;
		update.du_nfds = -1;
		CHECK_ERRNO(ioctl(set, DP_UPDATE_POLL, &update), EINVAL);
		update.du_nfds = 4;
		update.du_flags = 1;
		CHECK_ERRNO(ioctl(set, DP_UPDATE_POLL, &update), EINVAL);
		update.du_flags = 0;
		update.du_setp = nowhere();
		CHECK_ERRNO(ioctl(set, DP_UPDATE_POLL, &update), EFAULT);
		CHECK_EQ(OK(ioctl(set, DP_ISPOLLED, changes)), 0);
		CHECK_EQ(set_statistics(set).ds_changes, 0);
	}
}

TEST(updating_with_a_large_batch)
{
	enum { COUNT = 500 };
	static struct pollfd changes[COUNT], results[COUNT];
	int fd = OK(open("/dev/null", O_RDWR | O_CLOEXEC));
	int set = set_open();

	for (int i = 0; i < COUNT; i++)
		changes[i] = (struct pollfd){ OK(dup(fd)), POLLOUT, 0 };
	CHECK_EQ(set_update_poll(set, changes, COUNT, results, COUNT, 0), COUNT);
}

TEST(updating_asks_the_driver_once)
{
	struct pair pair = tcp_pair();
	struct pollfd change = { pair.a, POLLIN, 0 }, result;
	struct dvpoll_statistics before, after;
	int set = set_open();

	set_write(set, pair.a, POLLIN);
	before = set_statistics(set);
	change.events = POLLOUT;
	CHECK_EQ(set_update_poll(set, &change, 1, &result, 1, 0), 1);
	after = set_statistics(set);
	CHECK_EQ(after.ds_driver_polls + after.ds_hook_polls -
			 before.ds_driver_polls - before.ds_hook_polls, 1);
}

TEST(updating_with_a_signal_mask)
{
	struct dvpoll_update update = { .du_timeout = SHORT_MS, .du_nfds = 1 };
	struct pollfd result;
	sigset_t mask;
	int set = set_open();

	signal(SIGUSR1, SIG_DFL);
	sigemptyset(&mask);
	sigaddset(&mask, SIGUSR1);
	OK(sigprocmask(SIG_SETMASK, &mask, NULL));
	raise(SIGUSR1);
	update.du_fds = &result;
	update.du_setp = &mask;
	CHECK_EQ(ioctl(set, DP_UPDATE_POLL, &update), 0);
}

/* A page that does not exist until the test provides it; a thread that touches it waits. */
struct late_page {
	void *address;
	int faults;
};

static struct late_page late_page(void)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register area = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	struct late_page page;

	page.faults = syscall(SYS_userfaultfd, O_CLOEXEC);
	if (page.faults < 0)
		test_skip("userfaultfd: %s", strerror(errno));
	OK(ioctl(page.faults, UFFDIO_API, &api));
	page.address = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(page.address != MAP_FAILED);
	area.range = (struct uffdio_range){ (uintptr_t)page.address, 4096 };
	OK(ioctl(page.faults, UFFDIO_REGISTER, &area));
	return page;
}

/* Returns when a thread waits for the page. */
static void late_page_wait_for_fault(const struct late_page *page)
{
	struct uffd_msg message;

	CHECK_EQ(OK(read(page->faults, &message, sizeof(message))), sizeof(message));
	CHECK_EQ(message.event, UFFD_EVENT_PAGEFAULT);
}

static void late_page_comes(const struct late_page *page)
{
	struct uffdio_zeropage zeros = { .range = { (uintptr_t)page->address, 4096 } };

	OK(ioctl(page->faults, UFFDIO_ZEROPAGE, &zeros));
}

struct caller {
	pthread_t thread;
	int set, result, error;
	const struct pollfd *changes;
	volatile pid_t tid;
};

static void *write_run(void *context)
{
	struct caller *caller = context;

	caller->result = write(caller->set, caller->changes, sizeof(*caller->changes));
	return NULL;
}

static void *update_run(void *context)
{
	struct caller *caller = context;
	struct pollfd result;

	caller->tid = syscall(SYS_gettid);
	caller->result = set_update_poll(caller->set, caller->changes, 1, &result, 1, LONG_MS);
	caller->error = errno;
	return NULL;
}

/*
 * After EINTR a caller must know whether the changes were applied. They were, even if the signal
 * came while another thread held the lock of the set (here a thread that waits for a page of its
 * array).
 */
TEST(updating_interrupted_has_applied_its_changes)
{
	struct sigaction action = { .sa_handler = do_nothing };
	struct late_page page = late_page();
	struct pair pair = tcp_pair();
	struct pollfd change = { pair.a, POLLIN, 0 };
	struct caller writer = { .set = set_open(), .changes = page.address };
	struct caller updater = { .set = writer.set, .changes = &change };

	OK(sigaction(SIGUSR1, &action, NULL));
	CHECK_EQ(pthread_create(&writer.thread, NULL, write_run, &writer), 0);
	late_page_wait_for_fault(&page);
	CHECK_EQ(pthread_create(&updater.thread, NULL, update_run, &updater), 0);
	while (!updater.tid)
		sleep_ms(1);
	thread_is_asleep(updater.tid);
	CHECK_EQ(pthread_kill(updater.thread, SIGUSR1), 0);
	sleep_ms(SHORT_MS);
	late_page_comes(&page);
	CHECK_EQ(pthread_join(updater.thread, NULL), 0);
	CHECK_EQ(pthread_join(writer.thread, NULL), 0);
	CHECK_EQ(writer.result, sizeof(change));
	CHECK_EQ(updater.result, -1);
	CHECK_EQ(updater.error, EINTR);
	CHECK_EQ(OK(ioctl(updater.set, DP_ISPOLLED, &change)), 1);
	CHECK_EQ(change.revents, POLLIN);
}
