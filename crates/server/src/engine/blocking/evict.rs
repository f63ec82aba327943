//! A client that is idle gives way when all units are occupied and a connection waits (`--idle-eviction`).
//!
//! [`crate::stats::scoreboard`] (`idle.rs`) describes which unit watches the listeners and which client gives way.

use super::Blocking;
use crate::{
    service::Service,
    stats::{
        Counter,
        scoreboard::{Phase, Scoreboard, ScoreboardSlot},
    },
    transport::queue::{QUEUE_EVENTS, Queue, shows_connection},
};
use libc::POLLIN;
use pollux_sys::{PollFd, WakeMask};
use std::os::fd::{AsRawFd, RawFd};

/// What a unit needs so that its client can give way.
#[derive(Debug)]
pub(super) struct Eviction {
    pool: Option<Pool>,
    /// Number and mask of this thread, which are known from its first idle client on.
    thread: Option<(i32, WakeMask)>,
    /// Since when the client is idle, in nanoseconds. A wait may end without any input.
    since_ns: Option<u64>,
    /// Room for what a wait is for.
    wanted: Vec<(RawFd, i16)>,
}

/// The listeners of a pool.
#[derive(Debug)]
struct Pool {
    listeners: Vec<(RawFd, i16)>,
    /// No other unit accepts from them (SO_REUSEPORT).
    are_own: bool,
}

impl Eviction {
    /// For a unit that serves one connection and ends, or that has not joined a pool yet.
    pub(super) fn new() -> Self {
        Self { pool: None, thread: None, since_ns: None, wanted: Vec::new() }
    }
}

impl<A: Service> Blocking<A> {
    /// Makes this unit one of a pool: with idle eviction on, it shows when it accepts, beginning now. To be called before
    /// the unit reports that it is ready.
    pub(crate) fn join_pool(&mut self, queue: Queue<'_>) {
        if let Some(eviction) = &mut self.eviction {
            let listeners = queue.sockets.iter().map(|socket| (socket.as_raw_fd(), QUEUE_EVENTS));
            eviction.pool = Some(Pool { listeners: listeners.collect(), are_own: queue.is_own });
        }
        self.enter(Phase::Accepting);
    }

    /// Shows the other units of the pool what this one does.
    pub(super) fn enter(&self, phase: Phase) {
        if self.eviction.as_ref().is_some_and(|eviction| eviction.pool.is_some()) {
            self.slot.enter(phase);
        }
    }

    /// As [`Blocking::wait_until`] for input of an idle client. Returns what has happened to it.
    pub(super) fn wait_while_idle(&mut self, fd: RawFd, deadline: Option<u32>) -> i16 {
        let Some(eviction) = &mut self.eviction else { return 0 };
        let since_ns = *eviction.since_ns.get_or_insert_with(ScoreboardSlot::now_ns);
        let &mut (thread, mask) = eviction.thread.get_or_insert_with(|| {
            let thread = rustix::thread::gettid().as_raw_nonzero().get();
            (thread, WakeMask::of_this_thread())
        });
        let is_of_pool = eviction.pool.is_some();
        self.slot.begin_idle(thread, since_ns);
        self.wake_mask = Some(mask);
        let turns = self.turns;
        let mut gives_way = false;
        let happened = loop {
            let has_waiting = self.wait_and_watch(fd, deadline);
            let happened = self.polled[1].revents;
            let is_waking = happened != 0 || self.worker.is_stopping || self.turns != turns;
            if has_waiting && !is_waking {
                match self.has_own_listeners() {
                    true => gives_way = true,
                    false => self.slot.make_room(),
                }
            }
            // Not earlier: another unit that watches would have a second client give way.
            self.slot.end_watch();
            if is_waking {
                break happened;
            }
            gives_way |= self.slot.gives_way();
            let is_over = deadline.is_some_and(|deadline| self.worker.clock.tick() >= deadline);
            if gives_way || is_over {
                break 0;
            }
            // Another unit has woken this one, which may be the one to watch.
        };
        self.wake_mask = None;
        let is_waking = happened != 0 || self.worker.is_stopping;
        gives_way |= self.slot.end_idle(!is_waking);
        if gives_way && !is_waking {
            self.give_way();
        } else if is_of_pool {
            // This unit watched, was about to, or was to give way: another one does.
            self.slot.appoint_watcher();
        }
        if happened != 0 {
            self.forget_idle();
        }
        happened
    }

    /// Waits for input of the client, and watches the listeners if this unit is to. Returns whether a connection waits
    /// there.
    fn wait_and_watch(&mut self, fd: RawFd, deadline: Option<u32>) -> bool {
        let Some(eviction) = &mut self.eviction else { return false };
        let mut wanted = std::mem::take(&mut eviction.wanted);
        wanted.push((fd, POLLIN));
        if let Some(pool) = &eviction.pool
            && (pool.are_own || self.slot.begin_watch())
        {
            wanted.extend(&pool.listeners);
        }
        self.wait_until(&wanted, deadline);
        let listeners = self.polled.iter().take(1 + wanted.len()).skip(2);
        let has_waiting = listeners.clone().any(|polled| shows_connection(polled.revents));
        let has_ended = |polled: &&PollFd| polled.revents & !POLLIN != 0;
        let ended: Vec<_> = listeners.filter(has_ended).map(|polled| polled.fd).collect();
        wanted.clear();
        if let Some(eviction) = &mut self.eviction {
            eviction.wanted = wanted;
            // A listener that was shut down is ready for ever.
            if let Some(pool) = eviction.pool.as_mut().filter(|_| !ended.is_empty()) {
                pool.listeners.retain(|(fd, _)| !ended.contains(fd));
            }
        }
        has_waiting
    }

    fn has_own_listeners(&self) -> bool {
        let pool = self.eviction.as_ref().and_then(|eviction| eviction.pool.as_ref());
        pool.is_some_and(|pool| pool.are_own)
    }

    /// Closes the connection of an idle client.
    #[cold]
    fn give_way(&mut self) {
        if let Some(client) = &mut self.client {
            client.is_broken = true;
            self.worker.counters.add(Counter::Evicted, 1);
        }
    }

    /// The client has sent something, or has ended.
    pub(super) fn forget_idle(&mut self) {
        if let Some(eviction) = &mut self.eviction {
            eviction.since_ns = None;
        }
    }

    /// Waits until the scoreboard has room, or a stop is requested: connections that wait in the queue by then are still
    /// to be served. Where idle clients give way, one does when a connection waits.
    pub(crate) fn pause(&mut self, scoreboard: &Scoreboard, queue: Queue<'_>) -> bool {
        self.worker.counters.add(Counter::AcceptPauses, 1);
        let room = (scoreboard.room().as_raw_fd(), POLLIN);
        let mut wanted = vec![room];
        if self.eviction.is_some() {
            let given_up = &self.acceptor.given_up;
            let listeners = queue.sockets.iter().map(|socket| (socket.as_raw_fd(), QUEUE_EVENTS));
            wanted.extend(listeners.filter(|(fd, _)| !given_up.contains(fd)));
        }
        self.wait_until(&wanted, None);
        let happened = |polled: &PollFd| polled.revents != 0;
        let has_room = self.polled.get(1).is_some_and(happened);
        let listeners = || self.polled.iter().take(1 + wanted.len()).skip(2);
        let has_waiting = listeners().any(|polled| shows_connection(polled.revents));
        if listeners().any(happened) && !has_room && !self.worker.is_stopping {
            if has_waiting {
                scoreboard.make_room_for_unit();
            }
            // It takes a moment. If no client is idle, the listeners stay readable: the next look waits a tick.
            let soon = self.worker.clock.after(1);
            self.wait_until(&[room], Some(soon));
        }
        !self.is_over()
    }
}
