//! The table of mechanisms: each name is listed once, here.

use crate::{Capabilities, Description, Error, Mechanism, MechanismSpec, Options, mechanism::*};
use std::collections::BTreeMap;

/// Work that is generic over the mechanism: [`with_mechanism`] calls `visit` with the type that
/// a name stands for, so that a whole server loop is monomorphised for it.
pub trait Visitor {
    /// What the work returns.
    type Output;
    /// Does the work with mechanism `M`.
    fn visit<M: Mechanism>(self) -> Self::Output;
}

macro_rules! mechanisms {
    ($($mechanism:ty),* $(,)?) => {
        /// Every mechanism that Pollux knows, in the order of the tables.
        pub const ALL: &[&Description] = &[$(<$mechanism as Mechanism>::DESCRIPTION),*];

        /// Calls `visitor` with the type that `name` stands for.
        ///
        /// # Errors
        /// [`Error::Spec`] for a name that is not in [`ALL`].
        pub fn with_mechanism<V: Visitor>(name: &str, visitor: V) -> Result<V::Output, Error> {
            $(if name == <$mechanism as Mechanism>::DESCRIPTION.name {
                return Ok(visitor.visit::<$mechanism>());
            })*
            Err(unknown(name))
        }
    };
}

mechanisms![
    select::Select,
    poll::Poll,
    devpoll::DevPoll,
    epoll::EpollLevel,
    epoll::EpollEdge,
    epoll2::Epoll2,
    epoll_ctlv::EpollCtlv,
    uring_poll::UringPoll,
    rtsig::RtSignals,
    hybrid::Hybrid
];

fn unknown(name: &str) -> Error {
    let names: Vec<_> = ALL.iter().map(|description| description.name).collect();
    Error::Spec(format!("no mechanism is called {name:?}; there are {}", names.join(", ")))
}

/// The entry of `name`.
pub fn find(name: &str) -> Option<&'static Description> {
    ALL.iter().copied().find(|description| description.name == name)
}

/// Whether `name` exists and has the options `own`.
///
/// # Errors
/// [`Error::Spec`] that lists what there is.
pub fn check(name: &str, own: &BTreeMap<String, String>) -> Result<(), Error> {
    let description = find(name).ok_or_else(|| unknown(name))?;
    for (key, value) in own {
        let Some((_, values, _)) = description.own_options.iter().find(|(known, ..)| known == key)
        else {
            let known: Vec<_> = description.own_options.iter().map(|(known, ..)| *known).collect();
            return Err(Error::Spec(if known.is_empty() {
                format!("mechanism {name} has no options, so {key}={value} means nothing to it")
            } else {
                format!("mechanism {name} has no option {key:?}; it has {}", known.join(", "))
            }));
        };
        let fits = if values.is_empty() {
            value.parse::<u64>().is_ok()
        } else {
            values.contains(&value.as_str())
        };
        if !fits {
            let allowed = if values.is_empty() { "a number".into() } else { values.join(" or ") };
            return Err(Error::Spec(format!("mechanism {name}: {key}={value}: wants {allowed}")));
        }
    }
    Ok(())
}

/// What the mechanism can do with these options.
///
/// # Errors
/// [`Error::Spec`] for a name that is not in [`ALL`].
pub fn capabilities(spec: &MechanismSpec) -> Result<Capabilities, Error> {
    struct Ask<'a>(&'a Options);
    impl Visitor for Ask<'_> {
        type Output = Capabilities;
        fn visit<M: Mechanism>(self) -> Capabilities {
            M::capabilities(self.0)
        }
    }
    with_mechanism(&spec.name, Ask(&spec.options()))
}

/// Tries the mechanism on this kernel: opens an interest set, adds a descriptor, waits.
///
/// # Errors
/// [`Error::Unavailable`] with the reason; [`Error::Spec`].
pub fn probe(spec: &MechanismSpec) -> Result<(), Error> {
    struct Probe<'a>(&'a Options);
    impl Visitor for Probe<'_> {
        type Output = Result<(), Error>;
        fn visit<M: Mechanism>(self) -> Self::Output {
            let mut set = M::open(self.0)?;
            // The waker's eventfd proves that adding, waiting and an event really work.
            set.waker()?.wake();
            let found = set.wait(Some(std::time::Duration::from_secs(1)))?;
            if found == 0 {
                return Err(Error::Unavailable {
                    mechanism: M::DESCRIPTION.name,
                    reason: "it opens, but did not tell of an event within a second; this kernel \
                             (or emulation of one) does not do what it says"
                        .into(),
                });
            }
            Ok(())
        }
    }
    with_mechanism(&spec.name, Probe(&spec.options()))?
}
