//! phhttpd's answer to an overflow (provos §6): a partner thread receives every connection, one by
//! one, over a UNIX socket, builds its array for poll(2) from nothing, and never returns to
//! signals.
//!
//! In phhttpd the partner thread also serves the connections. Here it only polls for the thread that
//! owns the interest set, so that one server can be measured with either answer. The causes to which
//! the authors attribute the meltdown are the same: passing each connection at the moment of overload,
//! a new array, and poll(2) from then on.
//!
//! Both threads share one file table, so the messages contain descriptor numbers.

use crate::mechanism::ALWAYS;
use crate::{Error, Event, Interest, Readiness, Token, registration::Registrations};
use pollux_sys::{self as sys, PollFd};
use std::{
    collections::HashMap,
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// A message from the owner to the partner thread, 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    /// Poll this descriptor with this interest.
    Watch(Token, Interest),
    /// Stop polling this descriptor.
    Forget(Token),
    /// The reading end of the waker's pipe.
    Waker(RawFd),
    /// Poll until something is ready, and reply with this number of the request.
    Poll(u64),
}

const MESSAGE_BYTES: usize = 16;

impl Message {
    fn to_bytes(self) -> [u8; MESSAGE_BYTES] {
        let (kind, token, interest) = match self {
            Self::Watch(token, interest) => (0u32, token.to_bits(), u32::from(interest.bits())),
            Self::Forget(token) => (1, token.to_bits(), 0),
            Self::Waker(fd) => (2, fd as u64, 0),
            Self::Poll(request) => (3, request, 0),
        };
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..8].copy_from_slice(&token.to_ne_bytes());
        bytes[8..12].copy_from_slice(&kind.to_ne_bytes());
        bytes[12..].copy_from_slice(&interest.to_ne_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; MESSAGE_BYTES]) -> Self {
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let long = u64::from_ne_bytes(bytes[..8].try_into().expect("8 bytes"));
        match word(8) {
            0 => {
                let interest = Interest::from_bits_truncate(word(12) as u8);
                Self::Watch(Token::from_bits(long), interest)
            }
            1 => Self::Forget(Token::from_bits(long)),
            2 => Self::Waker(long as RawFd),
            _ => Self::Poll(long),
        }
    }
}

/// The beginning of a reply: the number of the request.
const REPLY_HEAD_BYTES: usize = 8;

/// One entry of a reply: the token and the bits of poll(2).
const REPLY_BYTES: usize = 12;

/// The token of the waker's pipe; no descriptor has this number.
const WAKER: u64 = u64::MAX;

/// The most entries of a reply, which must fit into the socket's buffer: 48 KiB.
const MAX_REPLIES: usize = 4096;

/// The length of a reply with `max_replies` entries and one for the waker, so that the waker never
/// takes the only entry.
const fn reply_message_bytes(max_replies: usize) -> usize {
    REPLY_HEAD_BYTES + (max_replies + 1) * REPLY_BYTES
}

/// The owner's end.
#[derive(Debug)]
pub(crate) struct Handoff {
    /// A SOCK_SEQPACKET socket, which preserves message boundaries.
    socket: OwnedFd,
    partner: Option<JoinHandle<()>>,
    /// The process that started the partner thread.
    owner: u32,
    /// The number of the last request to poll.
    request: u64,
    /// The next wait must send a request: the last one has its reply, or an interest has changed since
    /// that request, so that its reply may be that of the former interest.
    request_due: bool,
    replies: Vec<u8>,
    cursor: usize,
    handed_over: u64,
    hand_over_ns: u64,
    waits: u64,
}

impl Handoff {
    /// Starts the partner thread and passes every registration to it.
    pub(crate) fn begin(registrations: &Registrations, max_events: usize) -> Result<Self, Error> {
        let started_at = Instant::now();
        let max_replies = max_events.min(MAX_REPLIES);
        let (own_end, partner_end) = sys::packet_pair().map_err(Error::io("socketpair"))?;
        let partner = thread::Builder::new()
            .name("rtsig-partner".into())
            .spawn(move || PartnerThread::new(partner_end, max_replies).run())
            .map_err(Error::io("clone"))?;
        let mut handoff = Self {
            socket: own_end,
            partner: Some(partner),
            owner: std::process::id(),
            request: 0,
            request_due: true,
            replies: Vec::with_capacity(reply_message_bytes(max_replies)),
            cursor: 0,
            handed_over: 0,
            hand_over_ns: 0,
            waits: 0,
        };
        for (token, interest) in registrations.iter() {
            handoff.watch(token, interest)?;
            handoff.handed_over += 1;
        }
        handoff.hand_over_ns = started_at.elapsed().as_nanos() as u64;
        Ok(handoff)
    }

    fn send(&self, message: Message) -> Result<(), Error> {
        // Blocks if necessary: the partner thread reads in every iteration of its loop.
        loop {
            match sys::send(self.socket.as_fd(), &message.to_bytes(), false) {
                Ok(_) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(source) => return Err(Error::Io { call: "sendto (partner thread)", source }),
            }
        }
    }

    /// Adds a descriptor, or replaces its interest.
    pub(crate) fn watch(&mut self, token: Token, interest: Interest) -> Result<(), Error> {
        self.request_due = true;
        self.send(Message::Watch(token, interest))
    }

    /// Stops the polling of `token`.
    pub(crate) fn forget(&mut self, token: Token) -> Result<(), Error> {
        self.send(Message::Forget(token))
    }

    /// Adds the waker's pipe.
    pub(crate) fn watch_waker(&mut self, read: RawFd) -> Result<(), Error> {
        self.send(Message::Waker(read))
    }

    /// Waits for the reply; returns how many descriptors it names.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> Result<usize, Error> {
        self.waits += 1;
        self.replies.clear();
        self.cursor = REPLY_HEAD_BYTES;
        if self.request_due {
            self.request += 1;
            self.send(Message::Poll(self.request))?;
            self.request_due = false;
        }
        let deadline = timeout.and_then(|time| Instant::now().checked_add(time));
        let mut time = timeout;
        // Bounded: an earlier request has one reply at most.
        loop {
            if let Some(found) = self.receive(time)? {
                return Ok(found);
            }
            if let Some(deadline) = deadline {
                time = Some(deadline.saturating_duration_since(Instant::now()));
            }
        }
    }

    /// Waits for a reply and takes it; returns how many descriptors it names, 0 without a reply. `None`
    /// for the reply to an earlier request, which is dropped: poll(2) reports again what is ready.
    fn receive(&mut self, time: Option<Duration>) -> Result<Option<usize>, Error> {
        let mut entry = [PollFd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        match sys::ppoll(&mut entry, time) {
            Ok(0) => return Ok(Some(0)),
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => return Ok(Some(0)),
            Err(source) => return Err(Error::Io { call: "ppoll", source }),
        }
        self.replies.resize(self.replies.capacity(), 0);
        let taken = sys::recv(self.socket.as_fd(), &mut self.replies);
        self.replies.truncate(*taken.as_ref().unwrap_or(&0));
        match taken {
            Ok(0) => {
                let source = io::Error::from(io::ErrorKind::BrokenPipe);
                Err(Error::Io { call: "recvfrom (the partner thread is gone)", source })
            }
            Ok(_) if !self.replies.starts_with(&self.request.to_ne_bytes()) => {
                self.replies.clear();
                Ok(None)
            }
            Ok(taken) => {
                self.request_due = true;
                Ok(Some((taken - REPLY_HEAD_BYTES) / REPLY_BYTES))
            }
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => Ok(Some(0)),
            Err(source) => Err(Error::Io { call: "recvfrom (partner thread)", source }),
        }
    }

    /// Whether the reply names the waker, whose entry comes first.
    pub(crate) fn woken(&self) -> bool {
        let first = self.replies.get(REPLY_HEAD_BYTES..REPLY_HEAD_BYTES + 8);
        first == Some(&WAKER.to_ne_bytes()[..])
    }

    /// The next descriptor of the reply that is still registered.
    pub(crate) fn next(&mut self, registrations: &Registrations) -> Option<Event> {
        while let Some(reply) = self.replies.get(self.cursor..self.cursor + REPLY_BYTES) {
            self.cursor += REPLY_BYTES;
            let bits = u64::from_ne_bytes(reply[..8].try_into().expect("8 bytes"));
            let found = u32::from_ne_bytes(reply[8..].try_into().expect("4 bytes"));
            if bits == WAKER {
                continue;
            }
            let token = Token::from_bits(bits);
            if let Some(interest) = registrations.interest(token) {
                let readiness =
                    Readiness::from_poll_bits(found & (interest.to_poll_bits() | ALWAYS));
                if !readiness.is_empty() {
                    return Some(Event { token, readiness });
                }
            }
        }
        None
    }

    /// The names of the figures for the statistics.
    pub(crate) const STATISTICS: [&str; 3] = ["handed_over", "hand_over_ns", "partner_waits"];

    /// Figures for the statistics.
    pub(crate) fn statistics(&self) -> [(&'static str, u64); 3] {
        let [handed_over, hand_over_ns, waits] = Self::STATISTICS;
        [(handed_over, self.handed_over), (hand_over_ns, self.hand_over_ns), (waits, self.waits)]
    }
}

impl Drop for Handoff {
    fn drop(&mut self) {
        let Some(partner) = self.partner.take() else { return };
        // In a forked child the thread does not exist, and the parent's must go on.
        if self.owner != std::process::id() {
            return;
        }
        // The partner thread ends when it reads the end of the stream. A close is not enough for that:
        // children that were forked since may have copies of the socket.
        let _ = sys::shutdown_write(self.socket.as_fd());
        let _ = partner.join();
    }
}

/// The partner thread.
struct PartnerThread {
    socket: OwnedFd,
    /// The socket first, then the waker's pipe or -1, then the descriptors.
    entries: Vec<PollFd>,
    tokens: Vec<u64>,
    /// By descriptor: the index of its entry.
    entry_index: HashMap<RawFd, usize>,
    /// The request that has no reply yet.
    request: Option<u64>,
    /// The entry at which the next reply begins, so that no descriptor starves when a reply is
    /// full.
    start: usize,
    max_replies: usize,
}

/// Entries that are not descriptors of the interest set: the socket, the waker.
const OWN_ENTRIES: usize = 2;

impl PartnerThread {
    fn new(socket: OwnedFd, max_replies: usize) -> Self {
        let entry = |fd| PollFd { fd, events: libc::POLLIN, revents: 0 };
        Self {
            entries: vec![entry(socket.as_raw_fd()), entry(-1)],
            tokens: vec![WAKER, WAKER],
            entry_index: HashMap::new(),
            request: None,
            start: 0,
            max_replies,
            socket,
        }
    }

    fn run(mut self) {
        loop {
            // Without a request, only the owner's messages matter.
            let watched = if self.request.is_some() { self.entries.len() } else { 1 };
            if sys::ppoll(&mut self.entries[..watched], None).is_err() {
                // EINTR or ENOMEM. ENOMEM would return at once, so let other threads run.
                thread::yield_now();
                continue;
            }
            // The owner's messages come first, because one may report that a descriptor's registration
            // has ended.
            if self.entries[0].revents != 0 {
                if !self.receive() {
                    return;
                }
            } else if let Some(request) = self.request
                && !self.reply(request)
            {
                return;
            }
        }
    }

    /// Receives one message; false when the owner has closed its end.
    fn receive(&mut self) -> bool {
        let mut bytes = [0; MESSAGE_BYTES];
        match sys::recv(self.socket.as_fd(), &mut bytes) {
            Ok(MESSAGE_BYTES) => self.apply(Message::from_bytes(bytes)),
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
            _ => return false,
        }
        true
    }

    fn apply(&mut self, message: Message) {
        match message {
            Message::Poll(request) => self.request = Some(request),
            Message::Waker(fd) => self.entries[1].fd = fd,
            Message::Watch(token, interest) => {
                let events = interest.to_poll_bits() as i16;
                let entry = PollFd { fd: token.fd, events, revents: 0 };
                let index = *self.entry_index.entry(token.fd).or_insert(self.entries.len());
                if index == self.entries.len() {
                    self.entries.push(entry);
                    self.tokens.push(token.to_bits());
                } else {
                    self.entries[index] = entry;
                    self.tokens[index] = token.to_bits();
                }
            }
            Message::Forget(token) => {
                let Some(index) = self.entry_index.remove(&token.fd) else { return };
                self.entries.swap_remove(index);
                self.tokens.swap_remove(index);
                if let Some(moved) = self.entries.get(index) {
                    self.entry_index.insert(moved.fd, index);
                }
            }
        }
    }

    /// Sends the ready descriptors; false when the owner has closed its end.
    fn reply(&mut self, request: u64) -> bool {
        let mut bytes = Vec::with_capacity(reply_message_bytes(self.max_replies));
        bytes.extend_from_slice(&request.to_ne_bytes());
        let mut put = |token: u64, found: u32| {
            bytes.extend_from_slice(&token.to_ne_bytes());
            bytes.extend_from_slice(&found.to_ne_bytes());
        };
        if self.entries[1].revents != 0 {
            // The owner empties the pipe before it requests the next reply.
            put(WAKER, 0);
        }
        let count = self.entries.len() - OWN_ENTRIES;
        let mut reply_count = 0;
        for offset in 0..count {
            if reply_count == self.max_replies {
                break;
            }
            let index = OWN_ENTRIES + (self.start + offset) % count;
            let found = self.entries[index].revents as u16 as u32;
            if found != 0 {
                put(self.tokens[index], found);
                reply_count += 1;
                if reply_count == self.max_replies {
                    self.start = index - OWN_ENTRIES + 1;
                }
            }
        }
        if bytes.len() == REPLY_HEAD_BYTES {
            return true;
        }
        self.request = None;
        loop {
            match sys::send(self.socket.as_fd(), &bytes, false) {
                Ok(_) => return true,
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(_) => return false,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_testkit::Pair;
    use std::sync::mpsc;

    fn begin() -> Handoff {
        Handoff::begin(&Registrations::default(), 16).expect("a partner thread")
    }

    /// The thread does not exist in the child, where joining it once panicked.
    #[test]
    fn a_forked_child_drops_its_copy_and_the_parents_partner_goes_on() {
        let mut partner = Some(begin());
        pollux_testkit::in_child(|| drop(partner.take()));
        let mut partner = partner.expect("the child dropped its own copy");
        assert_eq!(partner.wait(Some(Duration::ZERO)).expect("the partner thread is there"), 0);
    }

    /// A child that lives on has a copy of the socket. The drop once waited for that child's end.
    #[test]
    fn a_copy_of_the_socket_does_not_keep_the_partner_thread() {
        let partner = begin();
        let copy = partner.socket.try_clone().expect("dup");
        let (done, dropped) = mpsc::channel();
        thread::spawn(move || {
            drop(partner);
            let _ = done.send(());
        });
        dropped.recv_timeout(Duration::from_secs(20)).expect("the partner thread has ended");
        drop(copy);
    }

    /// The reply from before the change once ended the wait without the event.
    #[test]
    fn a_reply_from_before_a_change_is_dropped() {
        const PATIENCE: Duration = Duration::from_secs(20);
        let (mut registrations, pair) = (Registrations::default(), Pair::unix());
        let token = registrations.insert(pair.near.as_raw_fd(), Interest::READ).unwrap();
        let mut partner = Handoff::begin(&registrations, 16).expect("a partner thread");
        assert_eq!(partner.wait(Some(Duration::ZERO)).unwrap(), 0);
        pair.send(b"x");
        let mut reply =
            [PollFd { fd: partner.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        assert_eq!(sys::ppoll(&mut reply, Some(PATIENCE)).unwrap(), 1);
        registrations.replace(token, Interest::WRITE).unwrap();
        partner.watch(token, Interest::WRITE).unwrap();
        assert_eq!(partner.wait(Some(PATIENCE)).unwrap(), 1);
        let event = partner.next(&registrations).expect("the socket is writable");
        assert_eq!((event.token, event.readiness), (token, Readiness::WRITABLE));
    }
}
