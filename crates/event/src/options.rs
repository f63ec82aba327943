//! How a mechanism is named and set up.

use crate::Error;
use std::{collections::BTreeMap, fmt, str::FromStr};

/// What every mechanism is told when it is opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The most events that one wait returns. Named maximum of the event buffer; default 512
    /// (nginx's `worker_connections` events default), 6 KiB for epoll.
    pub max_events: usize,
    /// The mechanism's own options, `key=value`, as given after its name.
    pub own: BTreeMap<String, String>,
}

impl Default for Options {
    fn default() -> Self {
        Self { max_events: 512, own: BTreeMap::new() }
    }
}

impl Options {
    /// These, with so many events to a wait at most; 0 counts as 1.
    #[must_use]
    pub fn with_max_events(self, max_events: usize) -> Self {
        Self { max_events: max_events.max(1), ..self }
    }

    /// These, with an option of the mechanism's own.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl ToString) -> Self {
        self.own.insert(key.into(), value.to_string());
        self
    }
}

/// A mechanism with its options, as written on the command line:
/// `name` or `name:key=value,key=value`, for example `devpoll:results=mmap,update=combined`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MechanismSpec {
    /// The name in the registry.
    pub name: String,
    /// The options after the colon. `BTreeMap`, so that a spec prints in one order.
    pub own: BTreeMap<String, String>,
}

impl FromStr for MechanismSpec {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (name, rest) = match text.split_once(':') {
            Some((name, rest)) => (name, Some(rest)),
            None => (text, None),
        };
        let mut own = BTreeMap::new();
        for pair in rest.into_iter().flat_map(|rest| rest.split(',')) {
            let (key, value) = pair.split_once('=').ok_or_else(|| {
                Error::Spec(format!("in mechanism {text:?}: {pair:?} is not of the form key=value"))
            })?;
            if own.insert(key.to_owned(), value.to_owned()).is_some() {
                return Err(Error::Spec(format!("in mechanism {text:?}: {key} is given twice")));
            }
        }
        crate::registry::check(name, &own)?;
        Ok(Self { name: name.to_owned(), own })
    }
}

impl fmt::Display for MechanismSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        for (index, (key, value)) in self.own.iter().enumerate() {
            write!(f, "{}{key}={value}", if index == 0 { ':' } else { ',' })?;
        }
        Ok(())
    }
}

impl MechanismSpec {
    /// The options for [`crate::Mechanism::open`].
    pub fn options(&self) -> Options {
        Options { own: self.own.clone(), ..Options::default() }
    }
}
