//! Closes an idle client when all workers are occupied and a connection waits (`--idle-eviction`).
//!
//! [`crate::stats::scoreboard`] (`idle.rs`) describes which worker watches the listeners and which client
//! is evicted.

use super::Blocking;
use crate::{
    service::Service,
    stats::{
        Counter,
        scoreboard::{Scoreboard, ScoreboardSlot, WorkerPhase},
    },
    transport::queue::{QUEUE_EVENTS, Queue, shows_connection},
};
use libc::POLLIN;
use pollux_sys::{PollFd, WakeMask};
use std::os::fd::{AsRawFd, RawFd};

/// The state that a worker needs so that its client can be evicted.
#[derive(Debug)]
pub(super) struct Eviction {
    pool: Option<Pool>,
    /// The ID and the signal mask of this thread; set when it has its first idle client.
    thread: Option<(i32, WakeMask)>,
    /// The time since which the client is idle, in nanoseconds. A wait may end without any input.
    since_ns: Option<u64>,
    /// The buffer for the descriptors of a wait.
    wanted: Vec<(RawFd, i16)>,
}

/// The listeners of a pool.
#[derive(Debug)]
struct Pool {
    listeners: Vec<(RawFd, i16)>,
    /// Whether no other worker accepts from them (SO_REUSEPORT).
    are_own: bool,
}

impl Eviction {
    /// Creates the state of a worker that serves one connection and ends, or that has not joined a pool
    /// yet.
    pub(super) fn new() -> Self {
        Self { pool: None, thread: None, since_ns: None, wanted: Vec::new() }
    }
}

impl<A: Service> Blocking<A> {
    /// Makes this worker a member of a pool: with idle eviction on, it shows from now on when it accepts.
    /// Must be called before the worker reports that it is ready.
    pub(crate) fn join_pool(&mut self, queue: Queue<'_>) {
        if let Some(eviction) = &mut self.eviction {
            let listeners = queue.sockets.iter().map(|socket| (socket.as_raw_fd(), QUEUE_EVENTS));
            eviction.pool = Some(Pool { listeners: listeners.collect(), are_own: queue.is_own });
        }
        self.enter(WorkerPhase::Accepting);
    }

    /// Shows the phase of this worker to the other workers of the pool.
    pub(super) fn enter(&self, phase: WorkerPhase) {
        if self.eviction.as_ref().is_some_and(|eviction| eviction.pool.is_some()) {
            self.slot.enter(phase);
        }
    }

    /// Waits like [`Blocking::wait_until`] for input of an idle client. Returns the events that have
    /// occurred.
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
        let before = self.iterations;
        let mut gives_way = false;
        let happened = loop {
            let has_waiting = self.wait_and_watch(fd, deadline);
            let happened = self.polled[1].revents;
            let is_waking = happened != 0 || self.worker.is_stopping || self.iterations != before;
            if has_waiting && !is_waking {
                match self.has_own_listeners() {
                    true => gives_way = true,
                    false => self.slot.make_room(),
                }
            }
            // The watch must not end earlier: another worker that watches would evict a second client.
            self.slot.end_watch();
            if is_waking {
                break happened;
            }
            gives_way |= self.slot.gives_way();
            let is_over = deadline.is_some_and(|deadline| self.worker.clock.tick() >= deadline);
            if gives_way || is_over {
                break 0;
            }
            // Another worker has woken this one, which may have become the watcher.
        };
        self.wake_mask = None;
        let is_waking = happened != 0 || self.worker.is_stopping;
        gives_way |= self.slot.end_idle(!is_waking);
        if gives_way && !is_waking {
            self.give_way();
        } else if is_of_pool {
            // This worker was the watcher, was about to become it, or was to give way: another worker
            // becomes the watcher.
            self.slot.appoint_watcher();
        }
        if happened != 0 {
            self.forget_idle();
        }
        happened
    }

    /// Waits for input of the client, and watches the listeners if this worker is the watcher. Returns
    /// whether a connection is waiting there.
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
            // A listener that was shut down would be ready at every wait.
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

    /// Forgets since when the client is idle, because it has sent input or its connection has ended.
    pub(super) fn forget_idle(&mut self) {
        if let Some(eviction) = &mut self.eviction {
            eviction.since_ns = None;
        }
    }

    /// Waits until the scoreboard has room, or a stop is requested: connections that wait in the queue at
    /// that time are still to be served. With idle eviction, a client is evicted when a connection waits.
    /// Returns whether the grace time of a stop is not over.
    pub(crate) fn pause(&mut self, scoreboard: &Scoreboard, queue: Queue<'_>) -> bool {
        self.worker.counters.add(Counter::AcceptPauses, 1);
        let room = (scoreboard.room().as_raw_fd(), POLLIN);
        let mut wanted = vec![room];
        // During a stop no client is evicted, and a connection in the queue would end each wait at once.
        if self.eviction.is_some() && !self.worker.is_stopping {
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
                scoreboard.make_room_for_worker();
            }
            // An eviction takes a moment. If no client is idle, the listeners stay readable: the next check
            // waits for a tick.
            let soon = self.worker.clock.after(1);
            self.wait_until(&[room], Some(soon));
        }
        !self.is_over()
    }
}
