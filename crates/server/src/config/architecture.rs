//! The keys that depend on the architecture.

use super::{Config, Fault, Key, WORKERS_MAX};
use crate::config::{Architecture, Discipline, MechanismChoice, POOL_MAX};

impl Config {
    /// Returns the faults of these keys.
    pub(super) fn architecture_faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut check = |holds: bool, key: &'static str, message: &str, help: &str| {
            if !holds {
                faults.push(Fault::at(&[Key::Name(key)], message, help));
            }
        };
        let name = self.architecture.value;
        check(
            self.pool.is_none() || name.has_pool(),
            "pool",
            &format!("the architecture {name} has no pool"),
            "preforked and prethreaded have one",
        );
        check(
            self.pool.is_none_or(|pool| (1..=POOL_MAX).contains(&pool)),
            "pool",
            &format!("the size of a pool is a number from 1 to {POOL_MAX}"),
            "",
        );
        check(
            (1..=WORKERS_MAX).contains(&self.workers),
            "workers",
            &format!("the number of workers must be from 1 to {WORKERS_MAX}"),
            "",
        );
        for (key, is_set) in [
            ("acme", !self.acme_names().is_empty()),
            ("admin", self.admin.is_some()),
            ("control", self.control.is_some()),
            ("redirect-http", self.redirect_http.is_some()),
        ] {
            check(
                !is_set || !name.has_processes(),
                key,
                &format!("`{key}` needs a thread, which {name} cannot have beside its processes"),
                &format!(
                    "leave out `{key}`, or use the architecture event, iterative, threaded or prethreaded"
                ),
            );
        }
        if name == Architecture::Event {
            return faults;
        }
        for (key, is_default) in [
            ("mechanism", self.mechanism.value == MechanismChoice::Auto),
            ("interest", self.interest == Discipline::Eager),
            ("workers", self.workers == 1),
        ] {
            check(
                is_default,
                key,
                &format!("`{key}` is for the architecture event: {name} blocks in ppoll(2)"),
                &format!("leave out `{key}`, or use the architecture event"),
            );
        }
        faults
    }
}
