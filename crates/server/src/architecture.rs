//! Architectures: which unit serves which connection.
//!
//! An architecture is a product: a unit that serves (in line, a thread, a process), what is assigned
//! to it (all connections one after the other, those that it takes in a pool, exactly one) and the
//! engine that it runs. All of them drive the same application through the same protocol; `event` is
//! `crate::worker` with the readiness engine, all others run `engine::blocking`.
//!
//! | architecture | unit | assignment | engine |
//! |---|---|---|---|
//! | `iterative` | one thread | all, one after the other | blocking |
//! | `forking` | a process | exactly one connection | blocking |
//! | `preforked` | a process | those that it takes, in a pool | blocking |
//! | `threaded` | a thread | exactly one connection | blocking |
//! | `prethreaded` | a thread | those that it takes, in a pool | blocking |
//! | `event` | a worker | very many at a time | readiness |

mod each;
pub(crate) mod limits;
pub(crate) mod panics;
mod plan;
mod pool;
mod process;
mod thread;
pub(crate) mod worker;

pub(crate) use plan::Plan;
pub(crate) use process::Processes;
pub(crate) use thread::Threads;

use std::{fmt, str::FromStr};

/// Which unit serves which connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Architecture {
    /// One connection after the other. A client that is slow, or keeps its connection, keeps all
    /// others waiting, until a timeout ends it.
    Iterative,
    /// A new process for each connection.
    Forking,
    /// A pool of processes, each of which takes one connection after the other. One that dies is
    /// replaced.
    Preforked,
    /// A new thread for each connection.
    Threaded,
    /// A pool of threads, each of which takes one connection after the other.
    Prethreaded,
    /// Workers that each wait for all their connections at a time.
    #[default]
    Event,
}

/// What is assigned to a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assignment {
    /// Connections one after the other, for so many units at a time.
    Pool(usize),
    /// Exactly one connection.
    One,
}

/// How the units of a pool come by their connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepting {
    /// Each blocks in accept(2) on the one listener; the kernel wakes one of them at a time.
    Blocking,
    /// Each waits with epoll and EPOLLEXCLUSIVE, so that a connection wakes one unit, or few.
    Exclusive,
    /// Each has a listener of its own (SO_REUSEPORT), to which the kernel gives connections by their
    /// addresses, whether the unit is busy or not.
    Reuseport,
    /// One of them waits for a connection, with a lock in its hands; the others wait for the lock.
    Mutex,
}

/// Workers of a pool by default: the number of clients that can be served at the same time, busy or
/// idle.
pub const POOL_DEFAULT: usize = 64;
/// The most units of a pool.
pub const POOL_MAX: usize = 16_384;
/// The most processes at a time of [`Architecture::Forking`] where
/// [`max_connections`](crate::Config::max_connections) does not say: each costs memory that no limit
/// of open files bounds.
pub const PROCESSES_DEFAULT: usize = 4_096;

impl Architecture {
    /// All that there are.
    pub const ALL: [Self; 6] = [
        Self::Iterative,
        Self::Forking,
        Self::Preforked,
        Self::Threaded,
        Self::Prethreaded,
        Self::Event,
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Iterative => "iterative",
            Self::Forking => "forking",
            Self::Preforked => "preforked",
            Self::Threaded => "threaded",
            Self::Prethreaded => "prethreaded",
            Self::Event => "event",
        }
    }

    /// Whether it has a pool whose size can be chosen.
    pub fn has_pool(self) -> bool {
        matches!(self, Self::Preforked | Self::Prethreaded)
    }

    /// Whether its workers are processes. Then only [`run()`](crate::run()) can run it, because the
    /// process that supervises them must not have other threads.
    pub fn has_processes(self) -> bool {
        matches!(self, Self::Forking | Self::Preforked)
    }

    /// What its units are assigned; `None` for workers that wait for all their connections.
    pub(crate) fn assignment(self, pool: usize) -> Option<Assignment> {
        match self {
            Self::Iterative => Some(Assignment::Pool(1)),
            Self::Forking | Self::Threaded => Some(Assignment::One),
            Self::Preforked | Self::Prethreaded => Some(Assignment::Pool(pool)),
            Self::Event => None,
        }
    }
}

impl fmt::Display for Architecture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Architecture {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|architecture| architecture.name() == text);
        found.ok_or_else(|| format!("expected one of {}", Self::ALL.map(Self::name).join(", ")))
    }
}

impl Accepting {
    /// All that there are.
    pub const ALL: [Self; 4] = [Self::Blocking, Self::Exclusive, Self::Reuseport, Self::Mutex];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Blocking => "blocking",
            Self::Exclusive => "exclusive",
            Self::Reuseport => "reuseport",
            Self::Mutex => "mutex",
        }
    }
}

impl fmt::Display for Accepting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Accepting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|way| way.name() == text);
        found.ok_or_else(|| format!("expected one of {}", Self::ALL.map(Self::name).join(", ")))
    }
}
