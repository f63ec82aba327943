//! One thread that holds subscribers, and processes everything that they receive.

mod receive;

use super::{
    order::Order, payload::ContentCheck, plan::PushPlan, record::SubscriberRecord, stream::Rest,
};
use crate::{
    client::begin_connect,
    deadlines::Deadlines,
    outcome::Failure,
    own_cpu::OwnCpu,
    schedule::nanoseconds,
    tls::{TlsConnections, TlsPlan},
};
use anyhow::{Context, Result};
use pollux_event::{
    Event, Interest, Mechanism, Options, Readiness, Token, mechanism::epoll::EpollEdge,
};
use pollux_http::reply::{Reader, RequestInfo};
use pollux_sys as sys;
use receive::Receiver;
use std::{
    collections::{HashSet, VecDeque},
    io,
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

/// The most streams that one thread opens at the same time, so that the server's backlog does not
/// overflow. At --reconnect-at the second, larger value applies, because many subscribers are meant to
/// connect at once there.
const MAX_OPENING: usize = 64;
const MAX_REOPENING: usize = 4096;

/// The most connects in a row before events are handled.
const CONNECTS_IN_A_ROW: usize = 64;

/// The pause after a failure, doubled by each further one, and the longest pause.
const FIRST_PAUSE_NS: u64 = 10_000_000;
const LONGEST_PAUSE_NS: u64 = 1_000_000_000;

/// The longest wait, after which the stop flag is read.
const LONGEST_WAIT_NS: u64 = 20_000_000;

/// The most receives for one event, so that a server that never stops sending does not delay others.
const MAX_RECEIVES: usize = 16;

/// The time after the last expected delivery in which duplicates may still arrive.
const LINGER_NS: u64 = 200_000_000;

/// The time after an interrupt in which the deliveries of acknowledged updates may still arrive.
const STOP_GRACE_NS: u64 = 400_000_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum SubscriberPhase {
    Connecting,
    Handshaking,
    Sending,
    /// Waiting for the head of the stream.
    Waiting,
    Streaming,
}

struct Subscriber {
    socket: OwnedFd,
    token: Token,
    phase: SubscriberPhase,
    /// The start of the connection attempt.
    since_ns: u64,
    written: u32,
    /// The index of this subscriber among the thread's subscribers.
    index: u32,
    is_unread: bool,
    /// An event has reported that the server has closed. No further event repeats it, so it is kept until
    /// the input before the end has been read.
    is_closed: bool,
    reader: Reader,
    /// The end of the input, which the next input continues.
    rest: Rest,
    /// The check of the event in progress, by the lines of data that have arrived; `None` before the first one.
    content: Option<ContentCheck>,
}

/// The state of one thread.
pub(super) struct SubscriberLoop<'a> {
    plan: &'a PushPlan,
    set: EpollEdge,
    tls: Option<TlsConnections>,
    table: Vec<Option<Subscriber>>,
    opening: Deadlines,
    /// Subscribers without a connection.
    missing: VecDeque<u32>,
    held: usize,
    max_opening: usize,
    connects: u64,
    /// This thread's number, and the number of threads.
    position: (usize, usize),
    pause_ns: u64,
    resume_ns: u64,
    unread: VecDeque<Token>,
    receiver: Receiver<'a>,
    scratch: Box<[u8]>,
    /// The instant at which --reconnect-at disconnected the subscribers.
    reconnect_ns: Option<u64>,
    /// The subscribers that --reconnect-at disconnected, as long as they have no new stream.
    reconnecting: HashSet<u32>,
    has_started: bool,
    /// The instant at which this thread noticed an interrupt.
    stopped_ns: Option<u64>,
}

impl<'a> SubscriberLoop<'a> {
    /// Creates a thread's state, before it has opened anything.
    ///
    /// # Errors
    /// No file table or interest set is available.
    pub(super) fn new(
        plan: &'a PushPlan,
        subscribers: usize,
        position: (usize, usize),
    ) -> Result<Self> {
        if let Some(promise) = plan.config.own_file_tables
            && let Err(error) = sys::own_file_table(promise, &[])
        {
            tracing::debug!(%error, "the threads share one file table");
        }
        let mut record = SubscriberRecord::new(plan.schedule.len());
        record.subscribers.wanted = subscribers;
        Ok(Self {
            plan,
            set: EpollEdge::open(&Options::default())?,
            tls: plan.tls.as_ref().map(TlsPlan::connections).transpose()?,
            table: Vec::new(),
            opening: Deadlines::default(),
            missing: (0..subscribers as u32).collect(),
            held: 0,
            max_opening: MAX_OPENING,
            connects: 0,
            position,
            pause_ns: FIRST_PAUSE_NS,
            resume_ns: 0,
            unread: VecDeque::new(),
            receiver: Receiver::new(plan, Order::new(subscribers), record),
            scratch: vec![0; crate::thread::SCRATCH_BYTES].into(),
            reconnect_ns: None,
            reconnecting: HashSet::new(),
            has_started: false,
            stopped_ns: None,
        })
    }

    /// Opens the streams and reads them until all published updates have arrived, or the time is over.
    ///
    /// # Errors
    /// A wait failed.
    pub(super) fn run(mut self, stop: &AtomicBool) -> Result<SubscriberRecord> {
        let mut cpu_before = None;
        let mut begun_ns = 0;
        let mut complete_ns = None;
        let linger_ns = self.plan.config.quiet_time.map_or(0, nanoseconds).max(LINGER_NS);
        loop {
            let now_ns = self.plan.now_ns();
            if let Some(start_ns) = self.plan.start_ns() {
                if !self.has_started && now_ns >= start_ns {
                    self.has_started = true;
                    self.receiver.record.subscribers.at_start = self.held;
                    cpu_before = Some(OwnCpu::now());
                    begun_ns = now_ns;
                }
                self.reconnect_all(start_ns, now_ns);
                // Once complete, a thread stays complete: deliveries are never taken away.
                if complete_ns.is_none() && self.is_complete(start_ns, now_ns) {
                    complete_ns = Some(now_ns);
                    self.plan.progress.complete_threads.fetch_add(1, Relaxed);
                    // The time after that is not counted as work.
                    self.note_cpu(cpu_before, begun_ns);
                }
                if complete_ns.is_some_and(|since_ns| now_ns >= since_ns + linger_ns) {
                    break;
                }
            }
            if self.is_stopped(stop, now_ns) || self.is_late(now_ns) {
                break;
            }
            self.open_missing(now_ns);
            self.expire(now_ns);
            let wait = Duration::from_nanos(self.next_wait_ns(now_ns));
            self.set.wait(Some(wait)).context("waiting on subscribers")?;
            while let Some(event) = self.set.next_event() {
                self.on_event(event);
            }
            self.resume_reading();
        }
        if complete_ns.is_none() {
            self.note_cpu(cpu_before, begun_ns);
        }
        self.receiver.record.subscribers.at_end = self.held;
        Ok(self.receiver.finish())
    }

    /// Records the CPU time and the elapsed time since the start of the schedule. An interrupt may come before it.
    fn note_cpu(&mut self, before: Option<OwnCpu>, begun_ns: u64) {
        let record = &mut self.receiver.record;
        let Some(before) = before else { return };
        record.cpu = OwnCpu::now().since(before);
        record.elapsed_ns = self.plan.now_ns().saturating_sub(begun_ns);
    }

    /// Whether every subscriber has everything that it can get.
    fn is_complete(&self, start_ns: u64, now_ns: u64) -> bool {
        if now_ns < start_ns + self.plan.schedule.last_ns() {
            return false;
        }
        let progress = &self.plan.progress;
        // Only the process that publishes knows which updates were not published.
        let published = match progress.is_published.load(Relaxed) {
            true => progress.acknowledged.load(Relaxed),
            false => self.plan.schedule.len(),
        };
        self.receiver.unique >= published * self.receiver.record.subscribers.wanted as u64
    }

    /// Whether the run ends before its schedule does. After an interrupt, acknowledged updates may be on
    /// their way; they would count as lost.
    fn is_stopped(&mut self, stop: &AtomicBool, now_ns: u64) -> bool {
        if !self.plan.is_stopped(stop) {
            return false;
        }
        let progress = &self.plan.progress;
        if !self.has_started || progress.is_broken.load(Relaxed) {
            return true;
        }
        let since_ns = *self.stopped_ns.get_or_insert(now_ns);
        let wanted = self.receiver.record.subscribers.wanted as u64;
        let has_all = progress.is_published.load(Relaxed)
            && self.receiver.unique >= progress.acknowledged.load(Relaxed) * wanted;
        has_all || now_ns >= since_ns + STOP_GRACE_NS
    }

    /// Whether deliveries that are still missing count as lost.
    fn is_late(&self, now_ns: u64) -> bool {
        self.plan.start_ns().is_some_and(|start_ns| now_ns > self.plan.end_ns(start_ns))
    }

    /// Closes all streams at the instant of --reconnect-at, so that they are opened again.
    fn reconnect_all(&mut self, start_ns: u64, now_ns: u64) {
        let Some(at) = self.plan.config.reconnect_at else { return };
        if self.reconnect_ns.is_some() || now_ns < start_ns + nanoseconds(at) {
            return;
        }
        self.reconnect_ns = Some(now_ns);
        self.max_opening = MAX_REOPENING;
        for fd in 0..self.table.len() {
            let subscriber = self.table[fd].as_ref();
            if let Some(one) = subscriber.filter(|one| one.phase == SubscriberPhase::Streaming) {
                self.reconnecting.insert(one.index);
                self.remove(fd as RawFd);
            }
        }
    }

    fn open_missing(&mut self, now_ns: u64) {
        for _ in 0..CONNECTS_IN_A_ROW {
            let is_full = self.opening.len() >= self.max_opening;
            if self.missing.is_empty() || is_full || now_ns < self.resume_ns {
                return;
            }
            if let Err((kind, reason)) = self.open_one(now_ns) {
                self.receiver.record.subscribers.failed += 1;
                self.note_failure(kind, now_ns, reason);
            }
        }
    }

    fn open_one(&mut self, now_ns: u64) -> Result<(), (Failure, String)> {
        let failed = |error: io::Error| (Failure::from_io(&error), error.to_string());
        let (thread, threads) = self.position;
        let nth = self.connects * threads as u64 + thread as u64;
        self.connects += 1;
        let source = self.plan.config.sources.map(|sources| sources.get(nth).into());
        let socket = begin_connect(&self.plan.address, source, false).map_err(failed)?;
        let interest = Interest::READ | Interest::WRITE;
        let token = self.set.add(socket.as_fd(), interest);
        let token = token.map_err(|error| (Failure::Other, error.to_string()))?;
        let Some(index) = self.missing.pop_front() else { return Ok(()) };
        let fd = socket.as_raw_fd();
        if fd as usize >= self.table.len() {
            self.table.resize_with((fd as usize + 1).next_multiple_of(1024), || None);
        }
        let mut reader = Reader::new(Reader::LIMITS);
        reader.begin(RequestInfo::default());
        self.table[fd as usize] = Some(Subscriber {
            socket,
            token,
            phase: SubscriberPhase::Connecting,
            since_ns: now_ns,
            written: 0,
            index,
            is_unread: false,
            is_closed: false,
            reader,
            rest: Rest::default(),
            content: None,
        });
        self.opening.push(fd);
        Ok(())
    }

    /// Records why a stream ended or could not be opened. A pause follows.
    fn note_failure(&mut self, kind: Failure, now_ns: u64, reason: String) {
        self.receiver.record.failures.add(kind);
        self.plan.note_failure(kind, || reason);
        // Failures within one pause count as one.
        if now_ns < self.resume_ns {
            return;
        }
        let is_soon = now_ns < self.resume_ns + LONGEST_PAUSE_NS;
        self.pause_ns =
            if is_soon { (self.pause_ns * 2).min(LONGEST_PAUSE_NS) } else { FIRST_PAUSE_NS };
        self.resume_ns = now_ns + self.pause_ns;
    }

    fn expire(&mut self, now_ns: u64) {
        let timeout_ns = nanoseconds(self.plan.config.connect_timeout);
        while let Some(fd) = self.opening.first() {
            let since_ns = self.table[fd as usize].as_ref().map_or(0, |one| one.since_ns);
            if now_ns < since_ns.saturating_add(timeout_ns) {
                return;
            }
            self.lose(fd, Failure::Timeout, "no stream in time".into());
        }
    }

    fn next_wait_ns(&self, now_ns: u64) -> u64 {
        if !self.unread.is_empty() {
            return 0;
        }
        if !self.missing.is_empty() && self.opening.len() < self.max_opening {
            return self.resume_ns.saturating_sub(now_ns).min(LONGEST_WAIT_NS);
        }
        LONGEST_WAIT_NS
    }

    fn on_event(&mut self, Event { token, readiness }: Event) {
        let fd = token.fd;
        let Some(subscriber) = self.table.get_mut(fd as usize).and_then(Option::as_mut) else {
            return;
        };
        subscriber.is_closed |=
            readiness.intersects(Readiness::READ_CLOSED | Readiness::HANGUP | Readiness::ERROR);
        match subscriber.phase {
            SubscriberPhase::Streaming | SubscriberPhase::Waiting => {}
            SubscriberPhase::Connecting => {
                if readiness.intersects(Readiness::ERROR | Readiness::HANGUP) {
                    return match sys::take_socket_error(subscriber.socket.as_fd()) {
                        Err(error) => self.fail(fd, &error),
                        Ok(()) => self.lose(fd, Failure::ClosedEarly, "closed".into()),
                    };
                }
                if !readiness.is_writable() {
                    return;
                }
                subscriber.phase = SubscriberPhase::Sending;
                if let Some(tls) = &mut self.tls {
                    subscriber.phase = SubscriberPhase::Handshaking;
                    if let Err(error) = tls.begin(fd) {
                        return self.fail(fd, &error);
                    }
                    return self.handshake(fd);
                }
                self.send(fd);
            }
            SubscriberPhase::Handshaking => return self.handshake(fd),
            SubscriberPhase::Sending => self.send(fd),
        }
        if readiness.is_readable() {
            self.receive(fd);
        }
    }

    fn handshake(&mut self, fd: RawFd) {
        let Some(subscriber) = self.table[fd as usize].as_mut() else { return };
        let Some(tls) = &mut self.tls else { return };
        match tls.handshake(subscriber.socket.as_fd(), &mut self.scratch) {
            Ok(_) => {
                subscriber.phase = SubscriberPhase::Sending;
                self.send(fd);
                // Bytes that arrived with the end of the handshake cause no event of their own.
                self.receive(fd);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => self.fail(fd, &error),
        }
    }

    /// Sends the rest of the request.
    fn send(&mut self, fd: RawFd) {
        let Some(subscriber) = self.table[fd as usize].as_mut() else { return };
        let request = self.receiver.request(subscriber.index);
        while (subscriber.written as usize) < request.len() {
            let left = &request[subscriber.written as usize..];
            let sent = match &mut self.tls {
                None => sys::send(subscriber.socket.as_fd(), left, false),
                Some(tls) => tls.send(subscriber.socket.as_fd(), left),
            };
            match sent {
                Ok(count) => subscriber.written += count as u32,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return self.fail(fd, &error),
            }
        }
        subscriber.phase = SubscriberPhase::Waiting;
    }

    fn resume_reading(&mut self) {
        for _ in 0..self.unread.len() {
            let Some(token) = self.unread.pop_front() else { return };
            let subscriber = self.table.get_mut(token.fd as usize).and_then(Option::as_mut);
            if let Some(subscriber) = subscriber.filter(|subscriber| subscriber.token == token) {
                subscriber.is_unread = false;
                self.receive(token.fd);
            }
        }
    }

    fn receive(&mut self, fd: RawFd) {
        for _ in 0..MAX_RECEIVES {
            let Some(subscriber) = self.table[fd as usize].as_mut() else { return };
            let received = match &mut self.tls {
                None => sys::recv(subscriber.socket.as_fd(), &mut self.scratch),
                Some(tls) => tls.receive(subscriber.socket.as_fd(), &mut self.scratch),
            };
            let len = match received {
                Ok(0) => return self.lose(fd, Failure::ClosedEarly, "the stream ended".into()),
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return self.fail(fd, &error),
            };
            let was_streaming = subscriber.phase == SubscriberPhase::Streaming;
            let is_closed = subscriber.is_closed;
            if let Err((kind, reason)) = self.receiver.feed(subscriber, &self.scratch[..len]) {
                if !was_streaming {
                    // The stream was over before `hold` counted it, so `remove` must not subtract it.
                    subscriber.phase = SubscriberPhase::Waiting;
                }
                return self.lose(fd, kind, reason);
            }
            if !was_streaming && subscriber.phase == SubscriberPhase::Streaming {
                self.hold(fd);
            }
            // The read returned less than the buffer holds: the socket is empty (epoll(7)), or at its end.
            let may_have_more = match &self.tls {
                None => len == self.scratch.len(),
                Some(tls) => tls.may_have_more,
            };
            if !may_have_more && !is_closed {
                return;
            }
        }
        if let Some(subscriber) = self.table[fd as usize].as_mut()
            && !std::mem::replace(&mut subscriber.is_unread, true)
        {
            self.unread.push_back(subscriber.token);
        }
    }

    /// Registers an open stream.
    fn hold(&mut self, fd: RawFd) {
        self.opening.remove(fd);
        self.held += 1;
        self.plan.progress.held.fetch_add(1, Relaxed);
        if self.has_started {
            self.receiver.record.subscribers.reopened += 1;
        }
        let index = self.table[fd as usize].as_ref().map(|one| one.index);
        if let (Some(since_ns), Some(index)) = (self.reconnect_ns, index)
            && self.reconnecting.remove(&index)
        {
            let took_ns = self.plan.now_ns().saturating_sub(since_ns);
            self.receiver.record.reconnect.saturating_record(took_ns);
        }
    }

    #[cold]
    fn fail(&mut self, fd: RawFd, error: &io::Error) {
        self.lose(fd, Failure::from_io(error), error.to_string());
    }

    /// Handles a connection that cannot be used any longer.
    #[cold]
    fn lose(&mut self, fd: RawFd, kind: Failure, reason: String) {
        let phase = self.remove(fd);
        let subscribers = &mut self.receiver.record.subscribers;
        // A stream that was open is no failed attempt to open one.
        match phase {
            Some(SubscriberPhase::Streaming) => subscribers.dropped += 1,
            _ => subscribers.failed += 1,
        }
        // The failure is recorded so that a pause follows: a server that ends each stream at once must
        // not be flooded with connects.
        self.note_failure(kind, self.plan.now_ns(), reason);
    }

    /// Closes a connection; its subscriber must be connected again.
    fn remove(&mut self, fd: RawFd) -> Option<SubscriberPhase> {
        self.opening.remove(fd);
        let subscriber = self.table[fd as usize].take()?;
        if subscriber.phase == SubscriberPhase::Streaming {
            self.held -= 1;
            self.plan.progress.held.fetch_sub(1, Relaxed);
        }
        self.missing.push_back(subscriber.index);
        if let Some(tls) = &mut self.tls {
            tls.end(subscriber.socket.as_fd(), false);
        }
        let _ = self.set.close(subscriber.token, subscriber.socket);
        Some(subscriber.phase)
    }
}
