//! The polling side of `hybrid`: its partner.

use crate::mechanism::{devpoll::DevPoll, epoll::EpollEdge, poll::Poll};
use crate::{Error, Mechanism, Options, Token, options::own::choice, registration::Registrations};

choice! {
    /// Which mechanism waits under load.
    Partner {
        /// epoll(7), edge-triggered.
        Epoll = "epoll",
        /// poll(2).
        Poll = "poll",
        /// `/dev/poll`.
        DevPoll = "devpoll",
    }
}

/// An open partner.
#[derive(Debug)]
pub(crate) enum PollingMechanism {
    Epoll(EpollEdge),
    Poll(Poll),
    DevPoll(DevPoll),
}

/// Calls a method on the partner, for each of the mechanisms that it may be.
macro_rules! polling {
    ($partner:expr, $inner:ident => $call:expr) => {
        match $partner {
            PollingMechanism::Epoll($inner) => $call,
            PollingMechanism::Poll($inner) => $call,
            PollingMechanism::DevPoll($inner) => $call,
        }
    };
}
pub(crate) use polling;

impl PollingMechanism {
    pub(crate) fn open(partner: Partner, max_events: usize) -> Result<Self, Error> {
        let plain = Options::default().with_max_events(max_events);
        match partner {
            Partner::Epoll => Ok(Self::Epoll(EpollEdge::open(&plain)?)),
            Partner::Poll => Ok(Self::Poll(Poll::open(&plain)?)),
            Partner::DevPoll => Ok(Self::DevPoll(DevPoll::open(&plain)?)),
        }
    }

    /// The registrations. The hybrid has no table of its own, so that a token has the same generation
    /// on both sides.
    #[inline]
    pub(crate) fn registrations(&self) -> &Registrations {
        polling!(self, partner => partner.registrations())
    }

    /// Whether the last wait reported `token`, which is registered, and its event has not been taken.
    #[inline]
    pub(crate) fn is_reported(&self, token: Token) -> bool {
        match self {
            Self::Epoll(partner) => partner.is_reported(token),
            Self::Poll(partner) => partner.is_reported(token.fd),
            Self::DevPoll(partner) => partner.is_reported(token.fd),
        }
    }

    /// Sends the partner's gathered changes when they fill a batch. No wait sends them while
    /// signals are in use, and a long list would make the switch to the partner slow.
    #[inline]
    pub(crate) fn send_changes_if_many(&mut self) -> Result<(), Error> {
        match self {
            Self::DevPoll(partner) => partner.send_if_many(),
            // These mechanisms gather no changes.
            Self::Epoll(_) | Self::Poll(_) => Ok(()),
        }
    }
}
