//! The name and the options of a mechanism.
//!
//! Options are typed. A mechanism with options of its own defines them beside its code (see
//! [`OwnOptions`]) and has a function `open_with` that takes them:
//!
//! ```no_run
//! use pollux_event::{
//!     Options,
//!     mechanism::devpoll::{DevPoll, DevPollOptions, Results, Update},
//! };
//!
//! let own = DevPollOptions::default().with_results(Results::Mapped).with_update(Update::Combined);
//! let set = DevPoll::open_with(&Options::of(own).with_max_events(64))?;
//! # Ok::<(), pollux_event::Error>(())
//! ```
//!
//! If the mechanism is chosen at run time, a [`MechanismSpec`] is its name and options as text.
//! The two forms convert into each other:
//!
//! ```
//! use pollux_event::{
//!     MechanismSpec,
//!     mechanism::signals::{HybridOptions, Partner},
//! };
//! use std::time::Duration;
//!
//! let spec: MechanismSpec = "hybrid:partner=poll,dwell_ms=50".parse()?;
//! let own: HybridOptions = spec.own_options()?;
//! assert_eq!((own.partner, own.dwell), (Partner::Poll, Duration::from_millis(50)));
//! let quicker = own.with_dwell(Duration::from_millis(10));
//! assert_eq!(MechanismSpec::from(quicker).to_string(), "hybrid:dwell_ms=10,partner=poll");
//! # Ok::<(), pollux_event::Error>(())
//! ```

pub(crate) mod own;

pub use own::OwnOptions;

use crate::Error;
use std::{collections::BTreeMap, fmt, str::FromStr};

/// The maximum of [`Options::max_events`]: most mechanisms allocate their buffer of events when they are
/// opened.
pub const MOST_EVENTS: usize = 1 << 20;

/// The options with which a mechanism is opened. `Own` holds the options that only this mechanism has:
/// a type that implements [`OwnOptions`], or text for any mechanism, as in a [`MechanismSpec`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options<Own = BTreeMap<String, String>> {
    /// The most events that one wait returns; 0 counts as 1, and more than [`MOST_EVENTS`] as that. The
    /// default is 512, as in nginx, which needs a buffer of 6 KiB for epoll.
    pub max_events: usize,
    /// The mechanism's own options; as text, keys and values.
    pub own: Own,
}

impl<Own: Default> Default for Options<Own> {
    fn default() -> Self {
        Self::of(Own::default())
    }
}

impl<Own> Options<Own> {
    /// The defaults with these own options.
    pub fn of(own: Own) -> Self {
        Self { max_events: 512, own }
    }

    /// Sets the most events of a wait; 0 counts as 1.
    #[must_use]
    pub fn with_max_events(self, max_events: usize) -> Self {
        Self { max_events: max_events.max(1), ..self }
    }

    /// The most events of a wait, from 1 to [`MOST_EVENTS`].
    pub(crate) fn event_limit(&self) -> usize {
        self.max_events.clamp(1, MOST_EVENTS)
    }
}

impl Options {
    /// Adds an own option as text.
    #[must_use]
    pub fn with(mut self, key: impl Into<String>, value: impl ToString) -> Self {
        self.own.insert(key.into(), value.to_string());
        self
    }

    /// Parses the own options.
    ///
    /// # Errors
    /// [`Error::Spec`] if the mechanism has no such option, or an option has an invalid value.
    pub fn typed<Own: OwnOptions>(&self) -> Result<Options<Own>, Error> {
        Ok(Options { max_events: self.max_events, own: read(&self.own)? })
    }
}

impl<Own: OwnOptions> From<Options<Own>> for Options {
    /// Converts the own options to text, for code that does not know the mechanism.
    fn from(options: Options<Own>) -> Self {
        Self { max_events: options.max_events, own: written(&options.own) }
    }
}

fn read<Own: OwnOptions>(text: &BTreeMap<String, String>) -> Result<Own, Error> {
    let mut own = Own::default();
    text.iter().try_for_each(|(key, value)| own.set(key, value))?;
    Ok(own)
}

fn written(own: &impl OwnOptions) -> BTreeMap<String, String> {
    own.pairs().into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// A mechanism with its options, as written on the command line:
/// `name` or `name:key=value,key=value`, for example `devpoll:results=mmap,update=combined`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MechanismSpec {
    /// The name in the registry.
    pub name: String,
    /// The options after the colon. `BTreeMap`, so that a spec is always printed in the same order.
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

impl<Own: OwnOptions> From<Own> for MechanismSpec {
    /// The mechanism that these options belong to. Options with default values are left out.
    fn from(own: Own) -> Self {
        Self { name: Own::MECHANISM.into(), own: written(&own) }
    }
}

impl MechanismSpec {
    /// The options for [`crate::Mechanism::open`].
    pub fn options(&self) -> Options {
        Options::of(self.own.clone())
    }

    /// Parses the mechanism's own options.
    ///
    /// # Errors
    /// [`Error::Spec`] if they belong to another mechanism, or an option has an invalid value.
    pub fn own_options<Own: OwnOptions>(&self) -> Result<Own, Error> {
        if self.name != Own::MECHANISM {
            return Err(Error::Spec(format!(
                "{self} does not have the options of mechanism {}",
                Own::MECHANISM
            )));
        }
        read(&self.own)
    }
}

#[cfg(test)]
mod tests;
