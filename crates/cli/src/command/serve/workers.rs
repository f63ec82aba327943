//! Flags about the thread or process that serves a connection, and how it waits.

use super::value;
use crate::names;
use clap::ValueEnum;
use pollux_server::config::{Architecture, Config, Discipline, MechanismChoice, Text};

#[derive(clap::Args)]
#[command(next_help_heading = "Workers and waiting")]
pub(super) struct WorkerArgs {
    /// Thread or process that serves a connection: event (workers that each wait for many connections), iterative (one
    /// connection after the other), forking (a process per connection), preforked (a pool of
    /// processes), threaded (a thread per connection) or prethreaded (a pool of threads). Only event
    /// has --origin, --cache, --handover and --hub [default: event]
    #[arg(long, value_name = "NAME")]
    architecture: Option<Text<Architecture>>,

    /// Processes or threads of a pool (preforked, prethreaded). Each serves one connection at a time;
    /// further connections wait in the kernel's queue [default: 64]
    #[arg(long, value_name = "N", value_parser = value::count)]
    pool: Option<usize>,

    /// How to wait for events: NAME[:KEY=VALUE,…] (see `pollux doctor`), or auto for the best that
    /// this kernel offers [default: auto]
    #[arg(long, short, value_name = "NAME", hide_possible_values = true,
          value_parser = names::mechanism_or_auto::<Text<MechanismChoice>>())]
    mechanism: Option<Text<MechanismChoice>>,

    /// When interest changes: eager registers a connection once and writes at once; per-state changes
    /// interest with the connection's state and writes only when the socket is reported writable, as the papers' servers
    /// do [default: eager]
    #[arg(long, value_name = "WHEN")]
    interest: Option<InterestArg>,

    /// Worker threads. Each has its own listeners, connections and index of files [default: 1]
    #[arg(long, short, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,

    /// CPUs to pin workers to, in turn: worker i runs on the i-th of this list
    #[arg(long, value_name = "CPU", value_delimiter = ',')]
    pin: Vec<usize>,

    /// For experiments with rtsig and hybrid: lower the soft RLIMIT_SIGPENDING to this, so that the
    /// signal queue overflows early (it counts what all processes of the user have queued)
    #[arg(long, value_name = "N", value_parser = value::positive)]
    signal_queue: Option<u64>,
}

impl WorkerArgs {
    /// Writes the flags that were given into `config`.
    pub(super) fn apply(self, config: &mut Config) {
        value::set(&mut config.architecture, self.architecture);
        value::set_some(&mut config.pool, self.pool);
        value::set(&mut config.mechanism, self.mechanism);
        value::set(&mut config.interest, self.interest.map(Into::into));
        value::set(&mut config.workers, self.workers);
        value::replace(&mut config.pin, self.pin);
        value::set_some(&mut config.signal_queue, self.signal_queue);
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum InterestArg {
    Eager,
    PerState,
}

impl From<InterestArg> for Discipline {
    fn from(arg: InterestArg) -> Self {
        match arg {
            InterestArg::Eager => Self::Eager,
            InterestArg::PerState => Self::PerState,
        }
    }
}
