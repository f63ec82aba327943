//! How a server waits for clients: the architecture, the mechanism, and how workers get connections.

use super::Listen;
use pollux_event::MechanismSpec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// Which worker serves which connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Architecture {
    /// One connection after the other. A client that is slow or keeps its connection open makes all
    /// others wait, until a timeout ends its connection.
    Iterative,
    /// A new process for each connection.
    Forking,
    /// A pool of processes, each of which serves one connection after the other. A process that
    /// dies is replaced.
    Preforked,
    /// A new thread for each connection.
    Threaded,
    /// A pool of threads, each of which serves one connection after the other.
    Prethreaded,
    /// Worker threads, each of which waits for all its connections at the same time.
    #[default]
    Event,
}

/// How the workers of a pool get their connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepting {
    /// Each blocks in accept(2) on the only listener; the kernel wakes one of them at a time.
    Blocking,
    /// Each waits with epoll and EPOLLEXCLUSIVE, so that a connection wakes one worker or a few.
    Exclusive,
    /// Each has its own listener (SO_REUSEPORT). The kernel chooses a listener by the addresses of
    /// the connection, even if that worker is busy.
    Reuseport,
    /// One worker holds a lock and waits for a connection; the others wait for the lock.
    Mutex,
}

impl Accepting {
    /// Returns whether workers can block in accept(2). They cannot block on two listeners. Only a listener that
    /// is shut down lets them go at a stop, and one that systemd has passed must serve the next server, too.
    pub(crate) fn can_block<'a>(listeners: impl IntoIterator<Item = &'a Listen>) -> bool {
        let mut listeners = listeners.into_iter();
        matches!(
            (listeners.next(), listeners.next()),
            (Some(Listen::Tcp(_) | Listen::Unix(_)), None)
        )
    }

    /// Returns why the workers of `architecture` cannot get the connections of `listeners` in this way, each reason with
    /// its remedy.
    pub(crate) fn faults<'a>(
        self,
        architecture: Architecture,
        listeners: impl IntoIterator<Item = &'a Listen> + Clone,
    ) -> Vec<(String, &'static str)> {
        let mut faults = Vec::new();
        if !architecture.has_pool() {
            faults.push((
                format!("the architecture {architecture} has no pool that could share a listener"),
                "leave out `accept`, or use the architecture preforked or prethreaded",
            ));
        }
        if self == Self::Blocking && !Self::can_block(listeners.clone()) {
            faults.push((
                "a worker can block on one listener only, and on none of systemd".into(),
                "listen on one address only, which is not systemd's, or accept in the way \"exclusive\"",
            ));
        }
        let is_tcp = |listener: &Listen| matches!(listener, Listen::Tcp(_));
        if self == Self::Reuseport && !listeners.into_iter().all(is_tcp) {
            faults.push((
                "the kernel cannot distribute connections among UNIX sockets, or those of systemd (SO_REUSEPORT)"
                    .into(),
                "listen on TCP addresses only, or accept in the way \"exclusive\"",
            ));
        }
        faults
    }
}

/// The default number of workers in a pool. It limits how many clients are served at the same time,
/// busy or idle.
pub const POOL_DEFAULT: usize = 64;
/// The maximum number of workers in a pool.
pub const POOL_MAX: usize = 16_384;
/// The maximum number of processes of [`Architecture::Forking`] at a time, if
/// [`max_connections`](crate::Settings::max_connections) is not set. Each process costs memory, which
/// no limit of open files bounds.
pub const PROCESSES_DEFAULT: usize = 4_096;

/// The mechanism that waits for events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MechanismChoice {
    /// The best mechanism that this kernel offers. This is the only automatic choice, and the
    /// server logs the mechanism that it has chosen.
    Auto,
    /// This mechanism; if the kernel lacks it, the server reports an error.
    Named(MechanismSpec),
}

impl FromStr for MechanismChoice {
    type Err = pollux_event::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text == "auto" { Ok(Self::Auto) } else { text.parse().map(Self::Named) }
    }
}

/// When interest is changed and writes are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Discipline {
    /// Register once for reading; write at once; register for writing only what did not fit.
    #[default]
    Eager,
    /// Interest follows the connection's state, and nothing is written until the mechanism says
    /// that it can be: how the papers' servers behave, so that the cost of changes shows.
    PerState,
}

/// The services of an architecture without event loops; for messages. Its workers have one client at a
/// time, and a connection to the store of the guestbook.
pub(crate) const ONLY_FILES: &str = "serves files and the guestbook only";

impl Architecture {
    /// All architectures.
    pub const ALL: [Self; 6] = [
        Self::Iterative,
        Self::Forking,
        Self::Preforked,
        Self::Threaded,
        Self::Prethreaded,
        Self::Event,
    ];

    /// Returns the architecture's name on the command line.
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

    /// Returns whether it has a pool with a configurable size.
    pub fn has_pool(self) -> bool {
        matches!(self, Self::Preforked | Self::Prethreaded)
    }

    /// Returns whether its workers are processes. Then only [`run()`](crate::run()) can run it, because the
    /// process that supervises them must not have other threads.
    pub fn has_processes(self) -> bool {
        matches!(self, Self::Forking | Self::Preforked)
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
    /// All ways to accept.
    pub const ALL: [Self; 4] = [Self::Blocking, Self::Exclusive, Self::Reuseport, Self::Mutex];

    /// Returns its name on the command line.
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
