//! The flags of the programs that a run starts.

use super::{Bench, around::Around};
use crate::{
    experiment::{Axis, Flags, Value, arguments, filled_in},
    plan::Cell,
};
use std::{collections::BTreeMap, ffi::OsString};

/// The addresses from which the generator and the idle holder connect, where an experiment names no others: each
/// connection needs a port, also while an earlier one is in TIME_WAIT, and an address has fewer than 65,536.
const LOAD_SOURCE: &str = "127.0.1.0/24";
const IDLE_SOURCE: &str = "127.0.2.0/24";

impl Bench<'_> {
    /// The flags by which axes tell one program their values at `cell`.
    pub(super) fn flags_of_axes(&self, cell: &Cell, flag: fn(&Axis) -> &Option<String>) -> Flags {
        let value = |axis: &Axis| Some((flag(axis).clone()?, cell.point[&axis.name].clone()));
        self.experiment.axis.iter().filter_map(value).collect()
    }

    /// Flags of `pollux load` that all loads of a run have.
    pub(super) fn load_flags(&self) -> Flags {
        self.client_flags(&self.experiment.load, LOAD_SOURCE)
    }

    /// Flags of `pollux idle` that all holders of a run have.
    pub(super) fn idle_flags(&self) -> Flags {
        self.client_flags(&self.experiment.idle, IDLE_SOURCE)
    }

    fn client_flags(&self, of_experiment: &Flags, source: &str) -> Flags {
        let mut flags = of_experiment.clone();
        flags.entry("source".into()).or_insert_with(|| Value::Word(source.into()));
        flags.extend(on_cpu(self.cpus.generator));
        flags
    }

    /// The flags with what a run knows in place of the names in braces.
    pub(super) fn filled_in(
        &self,
        flags: &Flags,
        cell: &Cell,
        around: &Around<'_>,
    ) -> anyhow::Result<Flags> {
        let mut known: BTreeMap<String, String> =
            cell.point.iter().map(|(axis, value)| (axis.clone(), value.to_string())).collect();
        known.extend(self.redis.map(|redis| ("redis".to_owned(), redis.url())));
        known.extend(around.origin.map(|origin| ("origin".to_owned(), origin.address.clone())));
        filled_in(flags, &known)
    }
}

/// A duration as the programs read it.
pub(super) fn seconds(seconds: f64) -> Value {
    Value::Word(format!("{seconds}s"))
}

/// The flags that bind a program to a CPU and let it report in JSON.
pub(super) fn on_cpu(cpu: u32) -> [(String, Value); 2] {
    [("pin".into(), Value::Number(f64::from(cpu))), ("json".into(), Value::Flag(true))]
}

/// Takes away what a closed loop has not: `pollux load` refuses what would do nothing.
pub(super) fn without_schedule(flags: &mut Flags) {
    flags.remove("burst");
    flags.remove("arrivals");
}

/// A program with these flags behind its first arguments.
pub(super) fn with_flags(program: &[OsString], flags: &Flags) -> Vec<OsString> {
    program.iter().cloned().chain(arguments(flags).into_iter().map(OsString::from)).collect()
}
