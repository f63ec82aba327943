//! The publisher: one connection, on which each publication is sent at its instant, or when the
//! previous one has been answered, if that is later. So the order is fixed. The delay counts, because
//! times are measured from the scheduled instants.

use super::{
    plan::PushPlan,
    record::{IntervalRecorder, PublisherRecord},
};
use crate::{
    client::begin_connect,
    own_cpu::OwnCpu,
    schedule::nanoseconds,
    tls::{TlsConnections, TlsPlan},
};
use anyhow::{Context, Result, bail, ensure};
use pollux_http::reply::{Event, Next, Reader, RequestInfo};
use pollux_sys as sys;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    time::Duration,
};

/// The longest sleep, after which the stop flag is read.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// The number of bytes of an answer's text that are shown.
const SHOWN_BYTES: usize = 200;

/// The connection for publications.
pub(super) struct Publisher<'a> {
    plan: &'a PushPlan,
    stop: &'a AtomicBool,
    connection: Option<PublisherConnection>,
    scratch: Box<[u8]>,
}

struct PublisherConnection {
    socket: OwnedFd,
    tls: Option<TlsConnections>,
    reader: Reader,
}

impl<'a> Publisher<'a> {
    /// Connects.
    ///
    /// # Errors
    /// The server cannot be reached, or the run is stopped before.
    pub(super) fn connect(plan: &'a PushPlan, stop: &'a AtomicBool) -> Result<Self> {
        let scratch = vec![0; crate::thread::SCRATCH_BYTES].into();
        let mut publisher = Self { plan, stop, connection: None, scratch };
        publisher.connection = Some(publisher.open().with_context(|| {
            format!("the publisher cannot connect to {}", plan.config.publish.url.origin())
        })?);
        Ok(publisher)
    }

    /// The end of a wait that begins now: at most the end of the run.
    fn deadline(&self, timeout: Duration) -> Deadline<'a> {
        let plan = self.plan;
        let at_ns = plan.now_ns().saturating_add(nanoseconds(timeout));
        let end_ns = plan.start_ns().map_or(u64::MAX, |start_ns| plan.end_ns(start_ns));
        Deadline { at_ns: at_ns.min(end_ns), plan, stop: self.stop }
    }

    fn open(&mut self) -> Result<PublisherConnection> {
        let deadline = self.deadline(self.plan.config.connect_timeout);
        let socket = begin_connect(&self.plan.publish_address, None, false)?;
        deadline.wait(&socket, PollFlags::OUT)?;
        sys::take_socket_error(socket.as_fd())?;
        let mut tls = self.plan.publish_tls.as_ref().map(TlsPlan::connections).transpose()?;
        if let Some(tls) = &mut tls {
            tls.begin(std::os::fd::AsRawFd::as_raw_fd(&socket))?;
            loop {
                match tls.handshake(socket.as_fd(), &mut self.scratch) {
                    Ok(_) => break,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        deadline.wait(&socket, PollFlags::IN)?;
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(PublisherConnection { socket, tls, reader: Reader::new(Reader::LIMITS) })
    }

    /// Publishes the schedule, as far as the server answers in time.
    ///
    /// # Errors
    /// A request cannot be written. A failed publication is no error; it is in the record.
    pub(super) fn run(mut self, start_ns: u64) -> Result<PublisherRecord> {
        let plan = self.plan;
        let cpu_before = OwnCpu::now();
        let mut payloads = plan.payloads.clone();
        let mut record = PublisherRecord::new(plan.schedule.len());
        let mut intervals = plan.config.intervals.then(|| IntervalRecorder::new(true));
        let mut answered_ns = 0;
        for number in 0..plan.schedule.len() {
            let Some(scheduled_ns) = plan.schedule.at(number) else { break };
            let due_ns = start_ns + scheduled_ns;
            let content = String::from_utf8_lossy(payloads.get(number as u32)).into_owned();
            let request =
                plan.config.publication(content).write(&plan.config.publish.url, false)?;
            // Each update waits for the answer to the one before. Deliveries of an update that a slow server gets
            // after the end would count as lost, because the subscribers are gone.
            if !self.sleep_until(due_ns) {
                record.cut_ns = Some(plan.now_ns().saturating_sub(start_ns));
                break;
            }
            if plan.now_ns() > plan.end_ns(start_ns) {
                break;
            }
            // The time in which the previous publication was not answered is the server's.
            let lag_ns = plan.now_ns().saturating_sub(due_ns.max(answered_ns));
            record.sent += 1;
            plan.progress.sent.fetch_add(1, Relaxed);
            let outcome = self.publish(&request);
            answered_ns = plan.now_ns();
            let answer_ns = answered_ns.saturating_sub(due_ns);
            let is_measured = plan.is_measured(scheduled_ns);
            if is_measured {
                record.lag.saturating_record(lag_ns);
            }
            match outcome {
                Ok(()) => {
                    record.acknowledged[number as usize] = true;
                    plan.progress.acknowledged.fetch_add(1, Relaxed);
                    if is_measured {
                        record.answer.saturating_record(answer_ns);
                        if let Some(intervals) = &mut intervals {
                            let measured_ns = start_ns + plan.config.warmup.as_nanos() as u64;
                            intervals.record(answer_ns, plan.now_ns().saturating_sub(measured_ns));
                        }
                    }
                }
                // An update that was being published has no outcome.
                Err(_) if plan.is_stopped(self.stop) => {
                    record.cut_ns = Some(answered_ns.saturating_sub(start_ns));
                    break;
                }
                Err(error) => {
                    self.connection = None;
                    record.failed += 1;
                    plan.progress.failed.fetch_add(1, Relaxed);
                    record.first_failure.get_or_insert_with(|| format!("{error:#}"));
                }
            }
        }
        record.intervals = intervals.map(IntervalRecorder::finish).unwrap_or_default();
        record.cpu = OwnCpu::now().since(cpu_before);
        plan.progress.is_published.store(true, Relaxed);
        Ok(record)
    }

    /// Sleeps until `due_ns`; false when the run is stopped before.
    fn sleep_until(&self, due_ns: u64) -> bool {
        loop {
            if self.plan.is_stopped(self.stop) {
                return false;
            }
            let left = Duration::from_nanos(due_ns.saturating_sub(self.plan.now_ns()));
            if left.is_zero() {
                return true;
            }
            std::thread::sleep(left.min(LONGEST_SLEEP));
        }
    }

    /// Sends one request and reads its answer.
    fn publish(&mut self, request: &[u8]) -> Result<()> {
        let deadline = self.deadline(self.plan.config.timeout);
        // Servers close connections that are idle for long, such as during a quiet time.
        if self.connection.as_ref().is_some_and(PublisherConnection::is_closed) {
            self.connection = None;
        }
        if self.connection.is_none() {
            self.connection = Some(self.open()?);
        }
        let Some(connection) = &mut self.connection else { bail!("there is no connection") };
        let mut left = request;
        while !left.is_empty() {
            let sent = match &mut connection.tls {
                None => sys::send(connection.socket.as_fd(), left, false),
                Some(tls) => tls.send(connection.socket.as_fd(), left),
            };
            match sent {
                Ok(count) => left = &left[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    deadline.wait(&connection.socket, PollFlags::OUT)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        let (status, next, text) = connection.answer(&mut self.scratch, &deadline)?;
        if next == Next::Close {
            self.connection = None;
        }
        let text = String::from_utf8_lossy(&text).trim().to_owned();
        ensure!((200..300).contains(&status), "the server answered {status}: {text}");
        Ok(())
    }
}

impl PublisherConnection {
    /// Whether the server has closed or reset the connection.
    fn is_closed(&self) -> bool {
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let socket = PollFd::new(&self.socket, PollFlags::RDHUP);
        poll(&mut [socket], Some(&at_once)).is_ok_and(|ready| ready > 0)
    }

    /// The status, the next state of the connection, and the beginning of the text.
    fn answer(
        &mut self,
        scratch: &mut [u8],
        deadline: &Deadline<'_>,
    ) -> Result<(u16, Next, Vec<u8>)> {
        self.reader.begin(RequestInfo::default());
        let (mut status, mut text) = (0, Vec::new());
        loop {
            let received = match &mut self.tls {
                None => sys::recv(self.socket.as_fd(), scratch),
                Some(tls) => tls.receive(self.socket.as_fd(), scratch),
            };
            let len = match received {
                Ok(0) => match self.reader.finish()?.event {
                    Event::End { next, .. } => return Ok((status, next, text)),
                    _ => bail!("the server closed the connection"),
                },
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    deadline.wait(&self.socket, PollFlags::IN)?;
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.into()),
            };
            let mut rest = &scratch[..len];
            loop {
                let output = self.reader.read(rest)?;
                rest = &rest[output.consumed..];
                match output.event {
                    Event::NeedMore => break,
                    Event::Interim(_) => {}
                    Event::Head(head) => status = head.status,
                    Event::Content(bytes) => {
                        let room = SHOWN_BYTES.saturating_sub(text.len());
                        text.extend_from_slice(&bytes[..bytes.len().min(room)]);
                    }
                    Event::End { next, .. } => return Ok((status, next, text)),
                }
            }
        }
    }
}

/// The end of waiting for the server: an instant in the plan's time, or a stop of the run, if that is earlier.
struct Deadline<'a> {
    at_ns: u64,
    plan: &'a PushPlan,
    stop: &'a AtomicBool,
}

impl Deadline<'_> {
    /// Waits until the socket is ready.
    ///
    /// # Errors
    /// The socket was not ready before the deadline.
    fn wait(&self, socket: &OwnedFd, flags: PollFlags) -> Result<()> {
        loop {
            ensure!(!self.plan.is_stopped(self.stop), "the run was stopped");
            let left = Duration::from_nanos(self.at_ns.saturating_sub(self.plan.now_ns()));
            ensure!(!left.is_zero(), "no answer in time");
            let timeout = Timespec::try_from(left.min(LONGEST_SLEEP))?;
            match poll(&mut [PollFd::new(socket, flags)], Some(&timeout)) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}
