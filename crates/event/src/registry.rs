//! The table of mechanisms: each name is listed once, here.

use crate::{
    Capabilities, Description, Error, Event, Interest, Mechanism, MechanismSpec, Options, Token,
    Waker, mechanism::*, options::own::refused,
};
use std::{
    collections::BTreeMap,
    os::fd::{BorrowedFd, OwnedFd},
    time::Duration,
};

/// Work that is generic over the mechanism. [`with_mechanism`] calls `visit` with the type of a
/// named mechanism, so that a whole server loop is monomorphised for it.
pub trait Visitor {
    /// The result of the work.
    type Output;
    /// Does the work with mechanism `M`.
    fn visit<M: Mechanism>(self) -> Self::Output;
}

macro_rules! mechanisms {
    ($($(#[$condition:meta])* $variant:ident = $mechanism:ty),* $(,)?) => {
        /// Every mechanism that Pollux knows, in the order of the tables.
        pub const ALL: &[&Description] =
            &[$($(#[$condition])* <$mechanism as Mechanism>::DESCRIPTION),*];

        /// Calls `visitor` with the mechanism called `name`.
        ///
        /// # Errors
        /// [`Error::Spec`] for a name that is not in [`ALL`].
        pub fn with_mechanism<V: Visitor>(name: &str, visitor: V) -> Result<V::Output, Error> {
            $($(#[$condition])* if name == <$mechanism as Mechanism>::DESCRIPTION.name {
                return Ok(visitor.visit::<$mechanism>());
            })*
            Err(unknown(name))
        }

        /// A set of any mechanism, for callers that cannot be generic over it, such as the C
        /// interface. Each call branches on the variant; a loop compiled for one mechanism
        /// ([`with_mechanism`]) avoids that.
        #[derive(Debug)]
        #[non_exhaustive]
        #[allow(missing_docs, clippy::large_enum_variant)] // there is one to a loop
        pub enum AnyMechanism { $($(#[$condition])* $variant($mechanism)),* }

        /// Evaluates the expression with the variant's mechanism.
        macro_rules! on_any {
            ($any:expr, $set:ident => $call:expr) => {
                match $any { $($(#[$condition])* AnyMechanism::$variant($set) => $call),* }
            };
        }

        impl AnyMechanism {
            /// Opens an empty set of the mechanism `name`, as [`Mechanism::open`].
            ///
            /// # Errors
            /// [`Error::Spec`] for a name that is not in [`ALL`]; those of [`Mechanism::open`].
            pub fn open(name: &str, options: &Options) -> Result<Self, Error> {
                $($(#[$condition])* if name == <$mechanism as Mechanism>::DESCRIPTION.name {
                    return <$mechanism as Mechanism>::open(options).map(Self::$variant);
                })*
                Err(unknown(name))
            }
        }
    };
}

mechanisms![
    Select = select::Select,
    Poll = poll::Poll,
    DevPoll = devpoll::DevPoll,
    EpollLevel = epoll::EpollLevel,
    EpollEdge = epoll::EpollEdge,
    Epoll2 = epoll::Epoll2,
    #[cfg(feature = "io_uring")]
    EpollCtlv = epoll::EpollCtlv,
    #[cfg(feature = "io_uring")]
    UringPoll = uring_poll::UringPoll,
    RtSignals = signals::RtSignals,
    Hybrid = signals::Hybrid
];

impl AnyMechanism {
    /// [`Mechanism::add`].
    ///
    /// # Errors
    /// As there.
    pub fn add(&mut self, fd: BorrowedFd<'_>, interest: Interest) -> Result<Token, Error> {
        on_any!(self, set => set.add(fd, interest))
    }

    /// [`Mechanism::modify`].
    ///
    /// # Errors
    /// As there.
    pub fn modify(&mut self, token: Token, interest: Interest) -> Result<(), Error> {
        on_any!(self, set => set.modify(token, interest))
    }

    /// [`Mechanism::remove`].
    ///
    /// # Errors
    /// As there.
    pub fn remove(&mut self, token: Token) -> Result<(), Error> {
        on_any!(self, set => set.remove(token))
    }

    /// [`Mechanism::close`].
    ///
    /// # Errors
    /// As there.
    pub fn close(&mut self, token: Token, fd: OwnedFd) -> Result<(), Error> {
        on_any!(self, set => set.close(token, fd))
    }

    /// [`Mechanism::wait`].
    ///
    /// # Errors
    /// As there.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<usize, Error> {
        on_any!(self, set => set.wait(timeout))
    }

    /// [`Mechanism::next_event`].
    pub fn next_event(&mut self) -> Option<Event> {
        on_any!(self, set => set.next_event())
    }

    /// [`Mechanism::waker`].
    ///
    /// # Errors
    /// As there.
    pub fn waker(&mut self) -> Result<Waker, Error> {
        on_any!(self, set => set.waker())
    }

    /// [`Mechanism::len`].
    pub fn len(&self) -> usize {
        on_any!(self, set => set.len())
    }

    /// [`Mechanism::is_empty`].
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// [`Mechanism::statistics`].
    pub fn statistics(&self) -> Vec<(&'static str, u64)> {
        on_any!(self, set => set.statistics())
    }

    /// [`Mechanism::reopen_after_fork`].
    ///
    /// # Errors
    /// As there.
    pub fn reopen_after_fork(&mut self) -> Result<(), Error> {
        on_any!(self, set => set.reopen_after_fork())
    }
}

fn unknown(name: &str) -> Error {
    let names: Vec<_> = ALL.iter().map(|description| description.name).collect();
    let without = match name {
        "epoll-ctlv" | "uring-poll" => " (built without the feature io_uring)",
        _ => "",
    };
    Error::Spec(format!("no mechanism is called {name:?}{without}; there are {}", names.join(", ")))
}

/// The entry of `name`.
pub fn find(name: &str) -> Option<&'static Description> {
    ALL.iter().copied().find(|description| description.name == name)
}

/// Checks that mechanism `name` exists and has the options `own`.
///
/// # Errors
/// [`Error::Spec`], which lists the existing names or options.
pub fn check(name: &str, own: &BTreeMap<String, String>) -> Result<(), Error> {
    find(name).ok_or_else(|| unknown(name))?;
    own.iter().try_for_each(|(key, value)| check_option(name, key, value))
}

/// Checks that mechanism `name` has this option, and the option this value.
pub(crate) fn check_option(name: &str, key: &str, value: &str) -> Result<(), Error> {
    let description = find(name).ok_or_else(|| unknown(name))?;
    let Some((_, values, _)) = description.own_options.iter().find(|(known, ..)| *known == key)
    else {
        let known: Vec<_> = description.own_options.iter().map(|(known, ..)| *known).collect();
        return Err(Error::Spec(if known.is_empty() {
            format!("mechanism {name} has no options, so {key}={value} means nothing to it")
        } else {
            format!("mechanism {name} has no option {key:?}; it has {}", known.join(", "))
        }));
    };
    if values.is_empty() {
        value.parse::<u64>().map_err(|_| refused(name, key, value, "a number"))?;
    } else if !values.contains(&value) {
        return Err(refused(name, key, value, &values.join(" or ")));
    }
    Ok(())
}

/// The capabilities of a mechanism with its options.
///
/// # Errors
/// [`Error::Spec`] for a name that is not in [`ALL`].
pub fn capabilities(spec: &MechanismSpec) -> Result<Capabilities, Error> {
    struct CapabilitiesOf<'a>(&'a Options);
    impl Visitor for CapabilitiesOf<'_> {
        type Output = Capabilities;
        fn visit<M: Mechanism>(self) -> Capabilities {
            M::capabilities(self.0)
        }
    }
    with_mechanism(&spec.name, CapabilitiesOf(&spec.options()))
}

/// Tests the mechanism on this kernel: opens a set, adds a descriptor, waits for an event.
///
/// # Errors
/// [`Error::Unavailable`] with the reason; [`Error::Spec`].
pub fn probe(spec: &MechanismSpec) -> Result<(), Error> {
    struct Probe<'a>(&'a Options);
    impl Visitor for Probe<'_> {
        type Output = Result<(), Error>;
        fn visit<M: Mechanism>(self) -> Self::Output {
            let mut set = M::open(self.0)?;
            // The event of the waker's descriptor proves that adding and waiting work.
            set.waker()?.wake();
            let found = set.wait(Some(std::time::Duration::from_secs(1)))?;
            if found == 0 {
                return Err(Error::Unavailable {
                    mechanism: M::DESCRIPTION.name,
                    reason: "it opens, but reported no event within a second; this kernel \
                             (or emulation of one) does not do what it says"
                        .into(),
                });
            }
            Ok(())
        }
    }
    with_mechanism(&spec.name, Probe(&spec.options()))?
}
