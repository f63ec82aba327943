//! The number of calls of each system call, and the CPU time that they took, per thread.

use std::{cell::Cell, thread::LocalKey, time::Duration};

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
    Accept = "accept4", Bind = "bind", ClockGettime = "clock_gettime", Close = "close", Connect = "connect",
    EpollCreate = "epoll_create1", EpollCtl = "epoll_ctl", EpollWait = "epoll_wait",
    EpollPwait2 = "epoll_pwait2",
    Eventfd = "eventfd2", Fcntl = "fcntl", Fork = "fork", Getsockopt = "getsockopt", IoUringEnter = "io_uring_enter",
    IoUringSetup = "io_uring_setup", Ioctl = "ioctl", Listen = "listen", Open = "openat", Pipe = "pipe2",
    Poll = "ppoll", Read = "read", Recv = "recvfrom", Recvmsg = "recvmsg", Select = "pselect6",
    Send = "sendto", Sendfile = "sendfile", Sendmsg = "sendmsg", Setsockopt = "setsockopt",
    Shutdown = "shutdown", Sigaction = "rt_sigaction", Signalfd = "signalfd4",
    Sigprocmask = "rt_sigprocmask", Sigwait = "rt_sigtimedwait", Socket = "socket", Socketpair = "socketpair", Stat = "fstat", Wait = "wait4", Write = "write",
    Writev = "writev",
}

const KINDS: usize = Call::ALL.len();

thread_local! {
    static COUNTS: [Cell<u64>; KINDS] = const { [const { Cell::new(0) }; KINDS] };
    static NANOSECONDS: [Cell<u64>; KINDS] = const { [const { Cell::new(0) }; KINDS] };
    static TIMING: Cell<bool> = const { Cell::new(false) };
    /// The difference between two consecutive readings of the clock: the cost of one reading.
    static CLOCK_NS: Cell<u64> = const { Cell::new(0) };
}

#[inline(always)]
fn add_to(counters: &'static LocalKey<[Cell<u64>; KINDS]>, call: Call, more: u64) {
    counters.with(|all| {
        let cell = &all[call as usize];
        cell.set(cell.get() + more);
    });
}

/// Runs one system call and counts it for this thread.
#[inline(always)]
pub fn count<T>(call: Call, run: impl FnOnce() -> T) -> T {
    add_to(&COUNTS, call, 1);
    if TIMING.get() { timed(call, run) } else { run() }
}

#[cold]
#[inline(never)]
fn timed<T>(call: Call, run: impl FnOnce() -> T) -> T {
    let started_ns = thread_cpu_ns();
    let result = run();
    let took_ns = (thread_cpu_ns() - started_ns).saturating_sub(CLOCK_NS.get());
    let readings = 2;
    add_to(&COUNTS, Call::ClockGettime, readings);
    for (call, ns) in [(call, took_ns), (Call::ClockGettime, readings * CLOCK_NS.get())] {
        add_to(&NANOSECONDS, call, ns);
    }
    result
}

/// The CPU time of this thread (CLOCK_THREAD_CPUTIME_ID). It does not advance while the thread sleeps,
/// or while another thread has the CPU.
fn thread_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is valid for the write. The clock exists since Linux 2.6.12 and needs no right.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Turns the timing of this thread's system calls on or off. While it is off, it costs one predicted
/// branch for a call.
///
/// The timing measures CPU time, not elapsed time. Each reading of the clock is itself a system call. Its
/// cost is measured here and subtracted from every timed call. The readings appear among the calls as
/// `clock_gettime`, so that a reader of the figures can subtract them from the thread's CPU time.
pub fn set_timing(on: bool) {
    if on {
        let pairs = (0..256).map(|_| {
            let first = thread_cpu_ns();
            thread_cpu_ns() - first
        });
        CLOCK_NS.set(pairs.min().unwrap_or(0));
    }
    TIMING.set(on);
}

/// A copy of this thread's counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counters {
    counts: [u64; KINDS],
    nanoseconds: [u64; KINDS],
}

/// A copy of this thread's present counters.
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
    /// The number of words of [`Counters::words`].
    pub const WORDS: usize = 2 * KINDS;

    /// The counts and then the nanoseconds of all kinds, to be stored as numbers.
    pub fn words(&self) -> impl Iterator<Item = u64> + '_ {
        self.counts.iter().chain(&self.nanoseconds).copied()
    }

    /// The counters of [`Counters::words`]; words that are missing count as 0.
    pub fn from_words(words: impl IntoIterator<Item = u64>) -> Self {
        let mut all = Self::default();
        for (to, word) in all.counts.iter_mut().chain(&mut all.nanoseconds).zip(words) {
            *to = word;
        }
        all
    }

    /// The number of calls of this kind.
    pub fn of(&self, call: Call) -> u64 {
        self.counts[call as usize]
    }

    /// The CPU time that the calls of this kind took together; zero while timing is off.
    pub fn time_of(&self, call: Call) -> Duration {
        Duration::from_nanos(self.nanoseconds[call as usize])
    }

    /// All calls together.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The difference to `earlier`.
    pub fn since(&self, earlier: &Counters) -> Counters {
        Counters {
            counts: std::array::from_fn(|kind| self.counts[kind] - earlier.counts[kind]),
            nanoseconds: std::array::from_fn(|kind| {
                self.nanoseconds[kind] - earlier.nanoseconds[kind]
            }),
        }
    }

    /// Adds calls that another process reported, with the time they took together.
    pub fn add(&mut self, call: Call, count: u64, time: Duration) {
        self.counts[call as usize] += count;
        self.nanoseconds[call as usize] += time.as_nanos() as u64;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::{thread, time::Instant};

    /// The time of a call that waits is its CPU time, not the elapsed time.
    #[test]
    fn a_call_that_sleeps_takes_no_cpu_time() {
        set_timing(true);
        let before = counters();
        // The sleep is the call under test.
        count(Call::Poll, || thread::sleep(Duration::from_millis(50)));
        count(Call::Read, || {
            // Waits until the thread has had the CPU for ten milliseconds, regardless of the machine's
            // load.
            let from = thread_cpu_ns();
            let deadline = Instant::now() + Duration::from_secs(30);
            while thread_cpu_ns() - from < 10_000_000 && Instant::now() < deadline {}
        });
        set_timing(false);
        let taken = counters().since(&before);
        assert!(taken.time_of(Call::Poll) < Duration::from_millis(5), "{taken:?}");
        assert!(taken.time_of(Call::Read) >= Duration::from_millis(9), "{taken:?}");
        // Each of the two timed calls has two readings, and each reading takes some time.
        assert_eq!(taken.of(Call::ClockGettime), 4);
        assert!(taken.time_of(Call::ClockGettime) > Duration::ZERO, "{taken:?}");
        count(Call::Poll, || ());
        let later = counters().since(&before);
        assert_eq!(later.time_of(Call::Poll), taken.time_of(Call::Poll));
        assert_eq!(later.of(Call::ClockGettime), 4, "nothing is timed any more");
    }
}
