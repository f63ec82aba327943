//! How often each system call was made, and how long it took, per thread.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

macro_rules! calls {
    ($($variant:ident = $name:literal),* $(,)?) => {
        /// The kinds of system call that `sys` makes.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Call { $(#[doc = concat!("`", $name, "`")] $variant),* }

        impl Call {
            /// Every kind, in the order of the counters.
            pub const ALL: &'static [Call] = &[$(Call::$variant),*];

            /// The system call's name as in section 2 of the manual.
            pub fn name(self) -> &'static str {
                match self { $(Call::$variant => $name),* }
            }
        }
    };
}

calls! {
    Accept = "accept4", Bind = "bind", Close = "close", Connect = "connect",
    EpollCreate = "epoll_create1", EpollCtl = "epoll_ctl", EpollWait = "epoll_wait",
    EpollPwait2 = "epoll_pwait2",
    Eventfd = "eventfd2", Fcntl = "fcntl", Getsockopt = "getsockopt", IoUringEnter = "io_uring_enter",
    IoUringSetup = "io_uring_setup", Ioctl = "ioctl", Listen = "listen", Open = "openat", Pipe = "pipe2",
    Poll = "ppoll", Read = "read", Recv = "recvfrom", Recvmsg = "recvmsg", Select = "pselect6",
    Send = "sendto", Sendfile = "sendfile", Sendmsg = "sendmsg", Setsockopt = "setsockopt",
    Shutdown = "shutdown", Sigaction = "rt_sigaction", Signalfd = "signalfd4",
    Sigprocmask = "rt_sigprocmask", Sigwait = "rt_sigtimedwait", Socket = "socket", Socketpair = "socketpair", Stat = "fstat", Write = "write",
    Writev = "writev",
}

const KINDS: usize = Call::ALL.len();

thread_local! {
    static COUNTS: [Cell<u64>; KINDS] = const { [const { Cell::new(0) }; KINDS] };
    static NANOSECONDS: [Cell<u64>; KINDS] = const { [const { Cell::new(0) }; KINDS] };
    static TIMING: Cell<bool> = const { Cell::new(false) };
}

/// Runs one system call and counts it for this thread.
#[inline(always)]
pub fn count<T>(call: Call, run: impl FnOnce() -> T) -> T {
    COUNTS.with(|counts| {
        let cell = &counts[call as usize];
        cell.set(cell.get() + 1);
    });
    if TIMING.get() { timed(call, run) } else { run() }
}

#[cold]
#[inline(never)]
fn timed<T>(call: Call, run: impl FnOnce() -> T) -> T {
    let started_at = Instant::now();
    let result = run();
    NANOSECONDS.with(|all| {
        let cell = &all[call as usize];
        cell.set(cell.get() + started_at.elapsed().as_nanos() as u64);
    });
    result
}

/// Turns the timing of this thread's system calls on or off. Off, it costs one predicted branch.
pub fn set_timing(on: bool) {
    TIMING.set(on);
}

/// A copy of this thread's counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    counts: [u64; KINDS],
    nanoseconds: [u64; KINDS],
}

/// This thread's counters as they stand.
pub fn counters() -> Counters {
    Counters {
        counts: COUNTS.with(|all| std::array::from_fn(|kind| all[kind].get())),
        nanoseconds: NANOSECONDS.with(|all| std::array::from_fn(|kind| all[kind].get())),
    }
}

impl Default for Counters {
    fn default() -> Self {
        Self { counts: [0; KINDS], nanoseconds: [0; KINDS] }
    }
}

impl Counters {
    /// How many calls of this kind were made.
    pub fn of(&self, call: Call) -> u64 {
        self.counts[call as usize]
    }

    /// How long the calls of this kind took together; zero while timing is off.
    pub fn time_of(&self, call: Call) -> Duration {
        Duration::from_nanos(self.nanoseconds[call as usize])
    }

    /// All calls together.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// What was added since `earlier`.
    pub fn since(&self, earlier: &Counters) -> Counters {
        Counters {
            counts: std::array::from_fn(|kind| self.counts[kind] - earlier.counts[kind]),
            nanoseconds: std::array::from_fn(|kind| {
                self.nanoseconds[kind] - earlier.nanoseconds[kind]
            }),
        }
    }

    /// Adds the counters of another thread.
    pub fn merge(&mut self, other: &Counters) {
        for kind in 0..KINDS {
            self.counts[kind] += other.counts[kind];
            self.nanoseconds[kind] += other.nanoseconds[kind];
        }
    }

    /// The kinds that were used, with count and time.
    pub fn iter(&self) -> impl Iterator<Item = (Call, u64, Duration)> + '_ {
        Call::ALL
            .iter()
            .map(|&call| (call, self.of(call), self.time_of(call)))
            .filter(|&(_, count, _)| count > 0)
    }
}
