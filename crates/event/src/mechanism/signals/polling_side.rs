//! The polling side of `hybrid`.

use crate::mechanism::{devpoll::DevPoll, epoll::EpollEdge, poll::Poll};
use crate::{Error, Mechanism, Options};

/// The polling side.
#[derive(Debug)]
pub(crate) enum PollingSide {
    Epoll(EpollEdge),
    Poll(Poll),
    DevPoll(DevPoll),
}

/// Calls a method of whichever partner it is.
macro_rules! polling {
    ($partner:expr, $inner:ident => $call:expr) => {
        match $partner {
            PollingSide::Epoll($inner) => $call,
            PollingSide::Poll($inner) => $call,
            PollingSide::DevPoll($inner) => $call,
        }
    };
}
pub(crate) use polling;

impl PollingSide {
    pub(crate) fn open(options: &Options) -> Result<Self, Error> {
        let plain = Options { max_events: options.max_events, ..Options::default() };
        match options.own.get("partner").map(String::as_str) {
            Some("poll") => Ok(Self::Poll(Poll::open(&plain)?)),
            Some("devpoll") => Ok(Self::DevPoll(DevPoll::open(&plain)?)),
            _ => Ok(Self::Epoll(EpollEdge::open(&plain)?)),
        }
    }

    /// While signals tell, nobody waits for the partner: what it gathers for its next wait must
    /// not make the switch long.
    #[inline]
    pub(crate) fn keep_up(&mut self) -> Result<(), Error> {
        match self {
            Self::DevPoll(partner) => partner.send_if_many(),
            // These gather nothing.
            Self::Epoll(_) | Self::Poll(_) => Ok(()),
        }
    }

    pub(crate) fn is_level(options: &Options) -> bool {
        options.own.get("partner").is_some_and(|partner| partner != "epoll")
    }
}
