//! phhttpd's way out of an overflow (provos §6): a partner thread to which every connection is
//! passed, one by one, over a UNIX socket, which builds its array for poll(2) from nothing, and
//! from which nothing ever comes back to signals.
//!
//! In phhttpd the partner also serves the connections. Here it only polls for the thread that
//! owns the interest set, so that the same server can be measured with either way; what the
//! authors blame for the meltdown (passing each connection at the moment of overload, an array
//! from scratch, poll(2) ever after) is the same.
//!
//! Both sides share one file table, so numbers are passed, not descriptors.

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

/// What the owner says to the partner; one message each, 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    /// Poll this one, with this interest.
    Watch(Token, Interest),
    /// Poll it no longer.
    Forget(Token),
    /// The pipe of the waker.
    Waker(RawFd),
    /// Poll until something is ready, and say what.
    Poll,
}

const MESSAGE_BYTES: usize = 16;

impl Message {
    fn to_bytes(self) -> [u8; MESSAGE_BYTES] {
        let (kind, token, interest) = match self {
            Self::Watch(token, interest) => (0u32, token.to_bits(), u32::from(interest.bits())),
            Self::Forget(token) => (1, token.to_bits(), 0),
            Self::Waker(fd) => (2, fd as u64, 0),
            Self::Poll => (3, 0, 0),
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
            _ => Self::Poll,
        }
    }
}

/// What the partner says of one descriptor: its token and the bits of poll(2).
const REPLY_BYTES: usize = 12;

/// The token of the waker's pipe; no descriptor has this number.
const WAKER: u64 = u64::MAX;

/// The max_replies descriptors that one message names, which must fit into the socket's buffer: 48 KiB.
const MAX_REPLIES: usize = 4096;

/// The length of a message that names so many descriptors, and the waker beside them: where there is
/// room for one event only, the waker must not take it.
const fn reply_message_bytes(max_replies: usize) -> usize {
    (max_replies + 1) * REPLY_BYTES
}

/// The owner's side.
#[derive(Debug)]
pub(crate) struct Handoff {
    /// A sequenced-packet socket: messages keep their borders.
    socket: Option<OwnedFd>,
    partner: Option<JoinHandle<()>>,
    /// The partner has been told to go and has not answered.
    reply_pending: bool,
    replies: Vec<u8>,
    cursor: usize,
    handed_over: u64,
    hand_over_ns: u64,
    waits: u64,
}

impl Handoff {
    /// Starts the partner and passes every registration to it.
    pub(crate) fn begin(registrations: &Registrations, max_events: usize) -> Result<Self, Error> {
        let started_at = Instant::now();
        let max_replies = max_events.min(MAX_REPLIES);
        let (own_end, partner_end) = sys::packet_pair().map_err(Error::io("socketpair"))?;
        let partner = thread::Builder::new()
            .name("rtsig-partner".into())
            .spawn(move || PartnerThread::new(partner_end, max_replies).run())
            .map_err(Error::io("clone"))?;
        let mut handoff = Self {
            socket: Some(own_end),
            partner: Some(partner),
            reply_pending: false,
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
        let socket = self.socket.as_ref().expect("open until it is dropped");
        // Blocking: the partner reads at every turn of its loop.
        loop {
            match sys::send(socket.as_fd(), &message.to_bytes(), false) {
                Ok(_) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(source) => return Err(Error::Io { call: "sendto (partner thread)", source }),
            }
        }
    }

    /// Adds, or replaces the interest.
    pub(crate) fn watch(&mut self, token: Token, interest: Interest) -> Result<(), Error> {
        self.send(Message::Watch(token, interest))
    }

    /// Ends the polling of `token`.
    pub(crate) fn forget(&mut self, token: Token) -> Result<(), Error> {
        self.send(Message::Forget(token))
    }

    /// Polls the waker's pipe, too.
    pub(crate) fn watch_waker(&mut self, read: RawFd) -> Result<(), Error> {
        self.send(Message::Waker(read))
    }

    /// Waits for the partner's answer; how many descriptors it names.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>) -> Result<usize, Error> {
        self.waits += 1;
        self.replies.clear();
        self.cursor = 0;
        if !self.reply_pending {
            self.send(Message::Poll)?;
            self.reply_pending = true;
        }
        let socket = self.socket.as_ref().expect("open until it is dropped");
        let mut entry = [PollFd { fd: socket.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
        match sys::ppoll(&mut entry, timeout) {
            Ok(0) => return Ok(0),
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => return Ok(0),
            Err(source) => return Err(Error::Io { call: "ppoll", source }),
        }
        self.replies.resize(self.replies.capacity(), 0);
        let taken = sys::recv(socket.as_fd(), &mut self.replies);
        self.replies.truncate(*taken.as_ref().unwrap_or(&0));
        match taken {
            Ok(0) => {
                let source = io::Error::from(io::ErrorKind::BrokenPipe);
                Err(Error::Io { call: "recvfrom (the partner thread is gone)", source })
            }
            Ok(taken) => {
                self.reply_pending = false;
                Ok(taken / REPLY_BYTES)
            }
            Err(error) if error.raw_os_error() == Some(libc::EINTR) => Ok(0),
            Err(source) => Err(Error::Io { call: "recvfrom (partner thread)", source }),
        }
    }

    /// Whether the partner says that the waker was used; it says so first.
    pub(crate) fn woken(&self) -> bool {
        self.replies.get(..8) == Some(&WAKER.to_ne_bytes()[..])
    }

    /// The next that the partner reply_count and that is still registered.
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

    /// In a forked child, where the thread does not exist.
    pub(crate) fn abandon(mut self) {
        drop(self.partner.take());
    }
}

impl Drop for Handoff {
    fn drop(&mut self) {
        // The partner ends when its socket does.
        self.socket = None;
        if let Some(partner) = self.partner.take() {
            let _ = partner.join();
        }
    }
}

/// The partner thread.
struct PartnerThread {
    socket: OwnedFd,
    /// The socket first, then the waker's pipe or -1, then the descriptors.
    entries: Vec<PollFd>,
    tokens: Vec<u64>,
    /// Where a descriptor's entry is.
    entry_index: HashMap<RawFd, usize>,
    /// The owner waits for an reply.
    reply_pending: bool,
    /// Where the next answer begins to look, so that none starves when not all fit into it.
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
            reply_pending: false,
            start: 0,
            max_replies,
            socket,
        }
    }

    fn run(mut self) {
        loop {
            // Unless the owner waits, only what it says is of interest.
            let watched = if self.reply_pending { self.entries.len() } else { 1 };
            if sys::ppoll(&mut self.entries[..watched], None).is_err() {
                // EINTR; ENOMEM would come back at once, so leave others some time.
                thread::yield_now();
                continue;
            }
            // What the owner says comes first: it may say that a number is no longer its.
            if self.entries[0].revents != 0 {
                if !self.receive() {
                    return;
                }
            } else if self.reply_pending && !self.reply() {
                return;
            }
        }
    }

    /// Takes one message; false at the end.
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
            Message::Poll => self.reply_pending = true,
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

    /// Sends what is ready; false at the end.
    fn reply(&mut self) -> bool {
        let mut bytes = Vec::with_capacity(reply_message_bytes(self.max_replies));
        let mut put = |token: u64, found: u32| {
            bytes.extend_from_slice(&token.to_ne_bytes());
            bytes.extend_from_slice(&found.to_ne_bytes());
        };
        if self.entries[1].revents != 0 {
            // The owner empties the pipe; nothing is polled before it asks again.
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
        if bytes.is_empty() {
            return true;
        }
        self.reply_pending = false;
        loop {
            match sys::send(self.socket.as_fd(), &bytes, false) {
                Ok(_) => return true,
                Err(error) if error.raw_os_error() == Some(libc::EINTR) => {}
                Err(_) => return false,
            }
        }
    }
}
