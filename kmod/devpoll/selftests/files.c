// SPDX-License-Identifier: GPL-2.0
/* Files of all kinds in a set, and sets in sets. */
#include "util.h"

#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <linux/netlink.h>
#include <net/if.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <sys/un.h>

/* Tests a descriptor that becomes readable after a write to another one, alone in a set. */
static void becomes_readable(int fd, int peer, bool hinted)
{
	struct waiter waiter;
	int set = set_open();
	uint64_t one = 1;

	set_write(set, fd, POLLIN);
	CHECK_EQ(set_statistics(set).ds_hinted, hinted);
	set_poll_none(set, 0);
	waiter_start(&waiter, set, LONG_MS);
	waiter_is_asleep(&waiter);
	CHECK_EQ(write(peer, &one, sizeof(one)), sizeof(one));
	CHECK_EQ(waiter_join(&waiter), 1);
	CHECK_EQ(waiter.results[0].fd, fd);
	CHECK_EQ(waiter.results[0].revents, POLLIN);
	close(set);
}

TEST(files_tcp)
{
	struct pair pair = tcp_pair();

	becomes_readable(pair.a, pair.b, true);
}

TEST(files_tcp6)
{
	struct pair pair;

	if (access("/proc/net/if_inet6", F_OK))
		test_skip("no IPv6 here");
	pair = tcp6_pair();
	becomes_readable(pair.a, pair.b, true);
}

TEST(files_unix_stream)
{
	struct pair pair = unix_pair(SOCK_STREAM);

	becomes_readable(pair.a, pair.b, true);
}

TEST(files_unix_datagram)
{
	struct pair pair = unix_pair(SOCK_DGRAM);

	becomes_readable(pair.a, pair.b, true);
}

TEST(files_unix_seqpacket)
{
	struct pair pair = unix_pair(SOCK_SEQPACKET);

	becomes_readable(pair.a, pair.b, true);
}

TEST(files_udp)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	socklen_t length = sizeof(address);
	int receiver = OK(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
	int sender = OK(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));

	OK(bind(receiver, (struct sockaddr *)&address, length));
	OK(getsockname(receiver, (struct sockaddr *)&address, &length));
	OK(connect(sender, (struct sockaddr *)&address, length));
	becomes_readable(receiver, sender, true);
}

TEST(files_mptcp)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	socklen_t length = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 262 /* IPPROTO_MPTCP */);
	struct waiter waiter;
	struct pair pair;
	int set;

	if (listener < 0)
		test_skip("no MPTCP here: %s", strerror(errno));
	OK(bind(listener, (struct sockaddr *)&address, length));
	OK(listen(listener, 8));
	OK(getsockname(listener, (struct sockaddr *)&address, &length));
	set = set_open();
	set_write(set, listener, POLLIN);
	waiter_start(&waiter, set, LONG_MS);
	waiter_is_asleep(&waiter);
	pair.b = OK(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 262));
	OK(connect(pair.b, (struct sockaddr *)&address, length));
	CHECK_EQ(waiter_join(&waiter), 1);
	pair.a = OK(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
	set_write(set, pair.a, POLLIN);
	set_remove(set, listener);
	waiter_start(&waiter, set, LONG_MS);
	waiter_is_asleep(&waiter);
	make_readable(pair.b);
	CHECK_EQ(waiter_join(&waiter), 1);
}

static int smc_listen(struct sockaddr_in *address)
{
	socklen_t length = sizeof(*address);
	int listener;

	if (system("modprobe -q smc"))
		test_skip("no SMC here");
	*address = (struct sockaddr_in){
		.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(INADDR_LOOPBACK),
	};
	listener = OK(socket(AF_SMC, SOCK_STREAM | SOCK_CLOEXEC, 0));
	OK(bind(listener, (struct sockaddr *)address, length));
	OK(listen(listener, 8));
	OK(getsockname(listener, (struct sockaddr *)address, &length));
	return listener;
}

/*
 * Without a device SMC falls back to TCP when it connects. The file then has the TCP socket, but
 * the inode of the SMC socket. An interest from before must continue to work.
 */
TEST(files_smc_falls_back)
{
	struct sockaddr_in address;
	int listener = smc_listen(&address), set = set_open();
	struct pair pair;

	pair.a = OK(socket(AF_SMC, SOCK_STREAM | SOCK_CLOEXEC, 0));
	set_write(set, listener, POLLIN);
	set_write(set, pair.a, POLLIN);
	OK(connect(pair.a, (struct sockaddr *)&address, sizeof(address)));
	CHECK_EQ(set_poll_one(set, listener, LONG_MS), POLLIN);
	pair.b = OK(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
	set_remove(set, listener);
	make_readable(pair.b);
	CHECK_EQ(set_poll_one(set, pair.a, LONG_MS), POLLIN);
	set_write(set, pair.b, POLLIN);
	drain(pair.a);
	make_readable(pair.a);
	CHECK_EQ(set_poll_one(set, pair.b, LONG_MS), POLLIN);
}

/* A wait with timeout 0 that finds that the hints have ended must still report what is ready. */
static void smc_is_seen_at_once(int options)
{
	struct sockaddr_in address;
	int listener = smc_listen(&address), set = set_open_with(options);
	struct pollfd ready;
	struct pair pair;

	pair.a = OK(socket(AF_SMC, SOCK_STREAM | SOCK_CLOEXEC, 0));
	set_write(set, pair.a, POLLIN);
	CHECK_EQ(set_statistics(set).ds_hinted, 1);
	OK(connect(pair.a, (struct sockaddr *)&address, sizeof(address)));
	pair.b = OK(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
	make_readable(pair.b);
	ready = (struct pollfd){ pair.a, POLLIN, 0 };
	CHECK_EQ(OK(poll(&ready, 1, LONG_MS)), 1);
	CHECK_EQ(set_poll_one(set, pair.a, 0), POLLIN);
	CHECK_EQ(set_statistics(set).ds_hinted, 0);
	close(set);
}

/* The file is the same, so in a set where writes add, a write adds to the old events. */
TEST(files_smc_falls_back_and_keeps_its_events)
{
	struct sockaddr_in address;
	int listener = smc_listen(&address), set = set_open_with(DP_OPTION_OR);
	struct pollfd question;
	struct pair pair;

	pair.a = OK(socket(AF_SMC, SOCK_STREAM | SOCK_CLOEXEC, 0));
	question = (struct pollfd){ pair.a, 0, 0 };
	set_write(set, pair.a, POLLIN);
	OK(connect(pair.a, (struct sockaddr *)&address, sizeof(address)));
	pair.b = OK(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
	set_write(set, pair.a, POLLPRI);
	OK(ioctl(set, DP_ISPOLLED, &question));
	CHECK_EQ(question.revents, POLLIN | POLLPRI);
	make_readable(pair.b);
	CHECK_EQ(set_poll_one(set, pair.a, LONG_MS), POLLIN);
	/* The wait has removed the hook; a write adds to the events as before. */
	CHECK_EQ(set_statistics(set).ds_hinted, 0);
	set_write(set, pair.a, POLLOUT);
	OK(ioctl(set, DP_ISPOLLED, &question));
	CHECK_EQ(question.revents, POLLIN | POLLPRI | POLLOUT);
}

/* As in a program under smc_run(8) on a machine without SMC devices: it falls back at once. */
TEST(files_smc_falls_back_before_it_is_added)
{
	struct sockaddr_in address;
	int listener = smc_listen(&address), set = set_open_with(DP_OPTION_OR);
	struct pollfd question;
	struct pair pair;

	pair.a = OK(socket(AF_SMC, SOCK_STREAM | SOCK_CLOEXEC, 0));
	OK(connect(pair.a, (struct sockaddr *)&address, sizeof(address)));
	pair.b = OK(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
	set_write(set, pair.a, POLLIN);
	set_write(set, pair.a, POLLPRI);
	question = (struct pollfd){ pair.a, 0, 0 };
	OK(ioctl(set, DP_ISPOLLED, &question));
	CHECK_EQ(question.revents, POLLIN | POLLPRI);
	make_readable(pair.b);
	CHECK_EQ(set_poll_one(set, pair.a, LONG_MS), POLLIN);
}

TEST(files_smc_falls_back_and_is_seen_at_once)
{
	smc_is_seen_at_once(0);
	smc_is_seen_at_once(DP_OPTION_TABLE);
}

/* setsockopt(TCP_ULP, "smc") gives the file another socket, with another inode. */
TEST(files_smc_takes_a_tcp_socket)
{
	int sock = OK(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
	struct sockaddr_storage address;
	int listener, peer, set = set_open();
	socklen_t length;

	set_write(set, sock, POLLIN);
	CHECK_EQ(set_statistics(set).ds_hinted, 1);
	if (system("modprobe -q smc") ||
	    setsockopt(sock, IPPROTO_TCP, TCP_ULP, "smc", sizeof("smc")))
		test_skip("no SMC over TCP sockets here");
	/* The descriptor is open and is examined, so POLLNVAL would be wrong. */
	set_write(set, sock, POLLIN | POLLPRI);
	CHECK_EQ(set_poll_one(set, sock, 0) & POLLNVAL, 0);
	listener = tcp_listen(AF_INET, &address, &length);
	OK(connect(sock, (struct sockaddr *)&address, length));
	peer = OK(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
	set_poll_none(set, 0);
	make_readable(peer);
	CHECK_EQ(set_poll_one(set, sock, LONG_MS), POLLIN);
	drain(sock);
	set_poll_none(set, 0);
}

/* An address for documentation (RFC 5737): at 127.0.0.1, RDS has no congestion. */
#define RDS_ADDRESS 0xc0000201

/* Adds the address to the loopback device, or removes it again. */
static void rds_address(bool add)
{
	struct sockaddr_in address = {
		.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(RDS_ADDRESS),
	};
	struct ifreq request = { .ifr_name = "lo:rds" };
	int sock = OK(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));

	if (add)
		memcpy(&request.ifr_addr, &address, sizeof(address));
	if (ioctl(sock, add ? SIOCSIFADDR : SIOCSIFFLAGS, &request))
		test_skip("cannot change the addresses: %s", strerror(errno));
	close(sock);
}

static int rds_socket(struct sockaddr_in *address)
{
	socklen_t length = sizeof(*address);
	int sock = OK(socket(AF_RDS, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));

	*address = (struct sockaddr_in){
		.sin_family = AF_INET,
		.sin_addr.s_addr = htonl(RDS_ADDRESS),
	};
	OK(bind(sock, (struct sockaddr *)address, length));
	OK(getsockname(sock, (struct sockaddr *)address, &length));
	return sock;
}

/*
 * A socket of RDS that was refused because its peer is congested waits on a second queue, so its
 * entry loses the hook. In a set where writes add, a write then adds to the old events.
 */
TEST(files_rds_keeps_its_events_after_congestion)
{
	static const char message[4096];
	int set = set_open_with(DP_OPTION_OR), sender, tries = 0;
	struct pollfd question, results[1];
	struct sockaddr_in address;

	if (system("modprobe -q rds_tcp"))
		test_skip("no RDS here");
	rds_address(true);
	sender = rds_socket(&address);
	rds_socket(&address);
	OK(connect(sender, (struct sockaddr *)&address, sizeof(address)));
	set_write(set, sender, POLLIN);
	CHECK_EQ(set_statistics(set).ds_hinted, 1);
	/* Until the connection is there, messages wait in the sender's buffer. */
	while (send(sender, message, sizeof(message), 0) > 0 || errno == EAGAIN) {
		CHECK(++tries < LONG_MS);
		sleep_ms(1);
	}
	CHECK_EQ(errno, ENOBUFS);
	set_write(set, sender, POLLPRI);
	OK(set_poll(set, results, 1, 0));
	CHECK_EQ(set_statistics(set).ds_hinted, 0);
	set_write(set, sender, POLLOUT);
	question = (struct pollfd){ sender, 0, 0 };
	OK(ioctl(set, DP_ISPOLLED, &question));
	CHECK_EQ(question.revents, POLLIN | POLLPRI | POLLOUT);
	CHECK_EQ(set_statistics(set).ds_hinted, 0);
	rds_address(false);
}

TEST(files_netlink)
{
	int sock = OK(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_USERSOCK));
	int sender = OK(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_USERSOCK));
	struct sockaddr_nl address = { .nl_family = AF_NETLINK };
	socklen_t length = sizeof(address);

	OK(bind(sock, (struct sockaddr *)&address, length));
	OK(getsockname(sock, (struct sockaddr *)&address, &length));
	OK(connect(sender, (struct sockaddr *)&address, length));
	becomes_readable(sock, sender, true);
}

TEST(files_pipe)
{
	int ends[2];

	OK(pipe2(ends, O_CLOEXEC));
	becomes_readable(ends[0], ends[1], false);
}

TEST(files_eventfd)
{
	int fd = OK(eventfd(0, EFD_CLOEXEC));

	becomes_readable(fd, fd, false);
}

TEST(files_terminal)
{
	int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), slave;

	if (master < 0 || grantpt(master) || unlockpt(master))
		test_skip("no pseudo-terminals here: %s", strerror(errno));
	slave = open(ptsname(master), O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (slave < 0)
		test_skip("%s: %s", ptsname(master), strerror(errno));
	becomes_readable(master, slave, false);
}

TEST(files_timer)
{
	struct itimerspec soon = { .it_value = { 0, 20000000 } };
	int fd = OK(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
	int set = set_open();

	set_write(set, fd, POLLIN);
	set_poll_none(set, 0);
	OK(timerfd_settime(fd, 0, &soon, NULL));
	CHECK_EQ(set_poll_one(set, fd, LONG_MS), POLLIN);
}

/* As with poll(2), and unlike epoll, which refuses them. */
TEST(files_regular_is_always_ready)
{
	FILE *file = tmpfile();
	int set = set_open();

	CHECK(file);
	set_write(set, fileno(file), POLLIN | POLLOUT);
	CHECK_EQ(set_poll_one(set, fileno(file), 0), POLLIN | POLLOUT);
}

TEST(files_o_path)
{
	int fd = OK(open("/", O_PATH | O_CLOEXEC));
	int set = set_open();

	set_write(set, fd, POLLIN);
	CHECK_EQ(set_poll_one(set, fd, 0), POLLNVAL);
}

TEST(files_epoll_inside)
{
	struct epoll_event event = { .events = EPOLLIN };
	struct pair pair = tcp_pair();
	int ep = OK(epoll_create1(EPOLL_CLOEXEC));

	OK(epoll_ctl(ep, EPOLL_CTL_ADD, pair.a, &event));
	becomes_readable(ep, pair.b, false);
}

TEST(files_set_inside_a_set)
{
	int set = set_open(), other = set_open();
	struct pollfd change = { other, POLLIN, 0 };
	struct pollfd itself = { set, POLLIN, 0 };

	CHECK_ERRNO(write(set, &change, sizeof(change)), ELOOP);
	CHECK_ERRNO(write(set, &itself, sizeof(itself)), ELOOP);
	CHECK_EQ(set_statistics(set).ds_entries, 0);
}

/* The number referred to another file, or to none, when it was written. */
TEST(files_set_inside_a_set_by_another_way)
{
	int set = set_open(), other = set_open();
	struct pair pair = tcp_pair();

	set_write(set, 150, POLLIN);
	OK(dup2(other, 150));
	set_poll_one(set, 150, 0);
	set_write(set, pair.a, POLLIN | POLLOUT);
	OK(dup2(set, pair.a));
	set_remove(set, 150);
	CHECK_EQ(set_poll_one(set, pair.a, 0), POLLNVAL);
	OK(dup2(set, 150));
	close(150);
}

TEST(files_set_inside_epoll)
{
	struct epoll_event event = { .events = EPOLLIN };
	int ep = OK(epoll_create1(EPOLL_CLOEXEC));
	int set = set_open();

	CHECK_ERRNO(epoll_ctl(ep, EPOLL_CTL_ADD, set, &event), EPERM);
}

TEST(files_set_inside_poll)
{
	struct pollfd pollfd = { set_open(), POLLIN | POLLOUT, 0 };

	CHECK_EQ(poll(&pollfd, 1, 0), 1);
	CHECK_EQ(pollfd.revents, POLLIN | POLLOUT);
}

TEST(files_set_inside_epoll_inside_a_set)
{
	struct epoll_event event = { .events = EPOLLIN };
	int outer = OK(epoll_create1(EPOLL_CLOEXEC));
	int inner = OK(epoll_create1(EPOLL_CLOEXEC));
	struct pair pair = tcp_pair();

	OK(epoll_ctl(inner, EPOLL_CTL_ADD, pair.a, &event));
	OK(epoll_ctl(outer, EPOLL_CTL_ADD, inner, &event));
	becomes_readable(outer, pair.b, false);
}
