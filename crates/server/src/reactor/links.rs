//! Connections that applications have dialled.

use super::To;
use crate::transport::outbox::Outbox;
use std::{cell::RefCell, net::SocketAddr, os::fd::OwnedFd, path::PathBuf, rc::Rc};

/// Where to dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// TCP.
    Tcp(SocketAddr),
    /// A UNIX stream socket at a path.
    Unix(PathBuf),
    /// Nowhere: a connected socket that somebody has made already, such as one of a pair.
    Made(Made),
}

/// A connected socket, for the one driver that takes it.
#[derive(Clone, Debug)]
pub(crate) struct Made(Rc<RefCell<Option<OwnedFd>>>);

impl Made {
    /// A link may be made of `socket`: connected, non-blocking, of a kind that every mechanism can
    /// wait for.
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self(Rc::new(RefCell::new(Some(socket))))
    }

    /// The socket, once.
    pub(crate) fn take(&self) -> Option<OwnedFd> {
        self.0.borrow_mut().take()
    }
}

impl PartialEq for Made {
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Made {}

/// A dialled connection, or one that once was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LinkId {
    index: u32,
    serial: u32,
}

/// How far a link has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkStage {
    /// It is to be dialled, within so many ticks.
    Asked(Endpoint, u32),
    /// It is being connected: the driver's number for it.
    Connecting(i32),
    /// It is connected.
    Open(i32),
}

/// What is asked of a link, and what is to be sent on it.
#[derive(Debug)]
pub(crate) struct Link {
    /// Who is told.
    pub(crate) to: To,
    /// How far it has come; the driver's to set.
    pub(crate) stage: LinkStage,
    /// What is to be sent.
    pub(crate) output: Outbox,
    /// Nothing is to be received.
    pub(crate) is_paused: bool,
    /// Our side is to be closed when the output is gone.
    pub(crate) is_finished: bool,
    /// It is to be closed at once.
    pub(crate) is_closed: bool,
    /// The output was full: who is told is told when it is low. The driver's to set.
    pub(crate) is_owed_room: bool,
    /// The peer has closed its side. The driver's to set.
    pub(crate) has_ended: bool,
    /// Our side is closed. The driver's to set.
    pub(crate) has_shut: bool,
    pub(super) is_asked_about: bool,
}

/// All links.
#[derive(Debug, Default)]
pub(crate) struct Links {
    places: Vec<Place>,
    free: Vec<u32>,
    /// Where output goes that belongs to no link.
    nowhere: Outbox,
}

#[derive(Debug, Default)]
struct Place {
    serial: u32,
    link: Option<Box<Link>>,
}

impl Links {
    pub(super) fn insert(&mut self, endpoint: Endpoint, timeout: u32, to: To) -> LinkId {
        let link = Box::new(Link {
            to,
            stage: LinkStage::Asked(endpoint, timeout),
            output: Outbox::default(),
            is_paused: false,
            is_finished: false,
            is_closed: false,
            is_owed_room: false,
            has_ended: false,
            has_shut: false,
            is_asked_about: false,
        });
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place::default());
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[index as usize];
        place.serial = place.serial.wrapping_add(1);
        place.link = Some(link);
        LinkId { index, serial: place.serial }
    }

    /// A link, if it is still there.
    pub(crate) fn get(&self, id: LinkId) -> Option<&Link> {
        let place = self.places.get(id.index as usize)?;
        place.link.as_deref().filter(|_| place.serial == id.serial)
    }

    /// A link, if it is still there.
    pub(crate) fn get_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        let place = self.places.get_mut(id.index as usize)?;
        if place.serial == id.serial { place.link.as_deref_mut() } else { None }
    }

    /// The link with the place of this number, for a driver that has noted it ([`LinkId::index`]).
    pub(crate) fn at(&self, index: u32) -> Option<LinkId> {
        let place = self.places.get(index as usize)?;
        place.link.as_ref().map(|_| LinkId { index, serial: place.serial })
    }

    /// Takes a link out: it is closed, or its output and its socket are somebody else's now.
    pub(crate) fn remove(&mut self, id: LinkId) -> Option<Box<Link>> {
        self.get(id)?;
        self.free.push(id.index);
        self.places[id.index as usize].link.take()
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(super) fn output(&mut self, id: LinkId) -> &mut Outbox {
        let has = self.get(id).is_some();
        let Self { places, nowhere, .. } = self;
        match places.get_mut(id.index as usize) {
            Some(Place { link: Some(link), .. }) if has => &mut link.output,
            _ => {
                nowhere.clear();
                nowhere
            }
        }
    }
}

impl LinkId {
    /// The number of its place: small, and used again.
    pub(crate) fn index(self) -> u32 {
        self.index
    }
}
