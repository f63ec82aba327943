// SPDX-License-Identifier: GPL-2.0
#include "slots.h"

#include <netinet/in.h>

struct slot slots[SLOTS];
static unsigned long files;
static uint64_t first, state;

void picks_begin(uint64_t seed)
{
	first = state = seed;
}

uint64_t picks_began(void)
{
	return first;
}

unsigned int pick(unsigned int below)
{
	state = state * 6364136223846793005ULL + 1442695040888963407ULL;
	return (state >> 33) % below;
}

short pick_events(void)
{
	static const short choices[] = { 0, POLLIN, POLLOUT, POLLIN | POLLOUT, POLLPRI,
					 POLLIN | POLLRDHUP };

	return choices[pick(6)];
}

struct slot *pick_slot(void)
{
	return &slots[pick(SLOTS)];
}

static struct pair udp_pair(void)
{
	struct sockaddr_in first_address = { .sin_family = AF_INET }, second_address;
	socklen_t length = sizeof(first_address);
	struct pair pair;

	first_address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	second_address = first_address;
	pair.a = OK(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
	pair.b = OK(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
	OK(bind(pair.a, (struct sockaddr *)&first_address, length));
	OK(bind(pair.b, (struct sockaddr *)&second_address, length));
	OK(getsockname(pair.a, (struct sockaddr *)&first_address, &length));
	OK(getsockname(pair.b, (struct sockaddr *)&second_address, &length));
	OK(connect(pair.a, (struct sockaddr *)&second_address, length));
	OK(connect(pair.b, (struct sockaddr *)&first_address, length));
	return pair;
}

static struct pair open_pair(enum kind kind)
{
	struct sockaddr_storage address;
	struct pair pair = { -1, -1 };
	socklen_t length;
	int ends[2];

	switch (kind) {
	case UNIX:
		return unix_pair(SOCK_STREAM);
	case TCP:
		return tcp_pair();
	case DATAGRAM:
		return unix_pair(SOCK_DGRAM);
	case UDP:
		return udp_pair();
	case LISTENER:
		/* Its peers connect and close: see knock(). */
		pair.a = tcp_listen(AF_INET, &address, &length);
		break;
	default:
		OK(pipe2(ends, O_CLOEXEC | O_NONBLOCK));
		pair = (struct pair){ ends[0], ends[1] };
	}
	return pair;
}

/* One file in six gets a second descriptor, and so does its peer. */
static bool duplicate(struct slot *slot)
{
	const struct slot *other = pick_slot();

	if (pick(6) || other == slot || other->fd < 0)
		return false;
	OK(dup3(other->fd, FIRST_SLOT + (slot - slots), O_CLOEXEC));
	slot->peer = other->peer < 0 ? -1 : OK(fcntl(other->peer, F_DUPFD_CLOEXEC, 0));
	slot->kind = other->kind;
	slot->file = other->file;
	return true;
}

void slot_open(struct slot *slot)
{
	int number = FIRST_SLOT + (slot - slots);
	struct pair pair;

	if (!duplicate(slot)) {
		slot->kind = pick(KINDS);
		pair = open_pair(slot->kind);
		OK(dup3(pair.a, number, O_CLOEXEC));
		close(pair.a);
		slot->peer = pair.b;
		slot->file = ++files;
	}
	slot->fd = number;
}

void slots_open(void)
{
	for (int i = 0; i < SLOTS; i++)
		slots[i].fd = -1;
	for (int i = 0; i < SLOTS; i++)
		slot_open(&slots[i]);
}

void slots_close(void)
{
	for (int i = 0; i < SLOTS; i++) {
		close(slots[i].fd);
		if (slots[i].peer >= 0)
			close(slots[i].peer);
	}
}

/* Makes a connection to a listener, which the client ends at once. */
static void knock(int listener)
{
	int client = OK(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
	struct linger now = { 1, 0 };
	struct sockaddr_in address;
	socklen_t length = sizeof(address);

	OK(setsockopt(client, SOL_SOCKET, SO_LINGER, &now, sizeof(now)));
	if (!getsockname(listener, (struct sockaddr *)&address, &length))
		connect(client, (struct sockaddr *)&address, length);
	close(client);
}

static void take_all(struct slot *slot)
{
	char bytes[64];
	int fd;

	(void)!fcntl(slot->fd, F_SETFL, O_NONBLOCK);
	if (slot->kind == LISTENER) {
		while ((fd = accept4(slot->fd, NULL, NULL, SOCK_CLOEXEC)) >= 0)
			close(fd);
		return;
	}
	/*
	 * The number of reads is limited, because at the end of a stream read() returns 0 for ever,
	 * and so does an empty datagram.
	 */
	for (int i = 0; i < 4096 && read(slot->fd, bytes, sizeof(bytes)) > 0; i++)
		;
}

void slot_feed(struct slot *slot)
{
	if (slot->kind == LISTENER)
		knock(slot->fd);
	else if (slot->kind == PIPE)
		(void)!write(slot->peer, "data", 4);
	else
		send(slot->peer, "data", 4, MSG_DONTWAIT);
}

void slot_data(struct slot *slot)
{
	char bytes[64] = "";

	switch (pick(5)) {
	case 0:
		slot_feed(slot);
		break;
	case 1:
		take_all(slot);
		break;
	case 2:
		if (slot->peer >= 0 && slot->kind != PIPE)
			shutdown(slot->peer, SHUT_WR);
		break;
	case 3:
		if (slot->kind == UNIX || slot->kind == DATAGRAM)
			while (send(slot->fd, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
				;
		break;
	case 4:
		if (slot->peer >= 0)
			while (recv(slot->peer, bytes, sizeof(bytes), MSG_DONTWAIT) > 0)
				;
		break;
	}
}
