//! Architectures: which worker serves which connection.
//!
//! A worker is a thread or a process. An architecture combines a kind of worker (the one thread, a
//! thread, a process), an assignment (all connections one after the other, the connections that a
//! worker of a pool accepts, or exactly one) and the engine that the worker runs. All architectures
//! drive the same application through the same protocol. `event` is `architecture::worker` with the
//! readiness engine; all others run `engine::blocking`.
//!
//! | architecture | worker | assignment | engine |
//! |---|---|---|---|
//! | `iterative` | one thread | all, one after the other | blocking |
//! | `forking` | a process | exactly one connection | blocking |
//! | `preforked` | a process | the connections that it accepts, in a pool | blocking |
//! | `threaded` | a thread | exactly one connection | blocking |
//! | `prethreaded` | a thread | the connections that it accepts, in a pool | blocking |
//! | `event` | a thread | very many at a time | readiness |

mod each;
mod hub_news;
pub(crate) mod limits;
pub(crate) mod panics;
mod plan;
mod pool;
mod process;
mod thread;
pub(crate) mod worker;

pub(crate) use hub_news::HubNews;
pub(crate) use plan::Plan;
pub(crate) use process::Processes;
pub(crate) use thread::Threads;

use crate::config::Architecture;

/// The connections that are assigned to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assignment {
    /// Connections one after the other, for this number of workers at a time.
    Pool(usize),
    /// Exactly one connection.
    One,
}

impl Assignment {
    /// Returns the assignment of the workers of an architecture; `None` for workers that wait for
    /// all their connections.
    pub(crate) fn of(architecture: Architecture, pool: usize) -> Option<Self> {
        match architecture {
            Architecture::Iterative => Some(Self::Pool(1)),
            Architecture::Forking | Architecture::Threaded => Some(Self::One),
            Architecture::Preforked | Architecture::Prethreaded => Some(Self::Pool(pool)),
            Architecture::Event => None,
        }
    }
}
