//! The flags of the programs that a run starts.

use super::{Bench, around::Around};
use crate::{
    experiment::{Axis, Flags, Value, arguments, filled_in},
    plan::Cell,
};
use std::{collections::BTreeMap, ffi::OsString};

/// The addresses from which the generator and the idle holder connect if the experiment names no others:
/// each connection needs a port, even while an earlier connection is in TIME_WAIT, and an address has fewer
/// than 65,536 ports.
const LOAD_SOURCE: &str = "127.0.1.0/24";
const IDLE_SOURCE: &str = "127.0.2.0/24";

impl Bench<'_> {
    /// Returns the flags that pass the values of the axes at `cell` to one program.
    pub(super) fn flags_of_axes(&self, cell: &Cell, flag: fn(&Axis) -> &Option<String>) -> Flags {
        let value = |axis: &Axis| Some((flag(axis).clone()?, cell.point[&axis.name].clone()));
        self.experiment.axis.iter().filter_map(value).collect()
    }

    /// Returns the flags of `pollux load` that all loads of a run have.
    pub(super) fn load_flags(&self) -> Flags {
        self.client_flags(&self.experiment.load, LOAD_SOURCE)
    }

    /// Returns the flags of `pollux idle` that all holders of a run have.
    pub(super) fn idle_flags(&self) -> Flags {
        self.client_flags(&self.experiment.idle, IDLE_SOURCE)
    }

    fn client_flags(&self, of_experiment: &Flags, source: &str) -> Flags {
        let mut flags = of_experiment.clone();
        flags.entry("source".into()).or_insert_with(|| Value::Word(source.into()));
        flags.extend(on_cpu(self.cpus.generator));
        flags
    }

    /// Returns the flags with the names in braces replaced by their values in this run.
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

/// Formats a duration as the programs parse it.
pub(super) fn seconds(seconds: f64) -> Value {
    Value::Word(format!("{seconds}s"))
}

/// The flags that pin a program to a CPU and make it report in JSON.
pub(super) fn on_cpu(cpu: u32) -> [(String, Value); 2] {
    [("pin".into(), Value::Number(f64::from(cpu))), ("json".into(), Value::Flag(true))]
}

/// Removes the flags that have no effect in a closed loop: `pollux load` rejects them.
pub(super) fn without_schedule(flags: &mut Flags) {
    flags.remove("burst");
    flags.remove("arrivals");
}

/// Appends these flags to the first arguments of a program.
pub(super) fn with_flags(program: &[OsString], flags: &Flags) -> Vec<OsString> {
    program.iter().cloned().chain(arguments(flags).into_iter().map(OsString::from)).collect()
}
