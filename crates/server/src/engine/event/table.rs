//! The peers of one worker, indexed by descriptor number: clients, links, ends of tunnels, notifiers.

use crate::{
    protocol::{Connection, Framing, ParkedExchange},
    stats::census::{Busy, OpenStream},
    time::timers::{Nodes, Timer},
    transport::{Transport, outbox::Outbox, preamble::PreambleBytes},
};
use pollux_event::Token;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

/// Slots that are made together. A worker's descriptors are dense, so that at most one block is
/// partly unused; blocks never move, so that growth copies nothing.
const BLOCK: usize = 256;

/// All that an idle connection costs in the server, besides the mechanism's own cell.
#[derive(Debug)]
pub(crate) struct Slot<X> {
    /// The peer of the descriptor.
    pub(crate) peer: Peer<X>,
    /// Where it stands in the timers.
    pub(crate) timer: Timer,
    transport: Option<Transport>,
    generation: u32,
    /// What the engine remembers of the descriptor.
    pub(crate) marks: Marks,
    /// Which timeout the timer stands for.
    pub(crate) class: Class,
    /// The lower half of the requests that had been answered when the timer was set.
    pub(crate) armed_at: u16,
}

bitflags::bitflags! {
    /// What an engine remembers of a descriptor between events.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Marks: u8 {
        /// The interest set has it for reading.
        const READS = 1;
        /// The interest set has it for writing.
        const WRITES = 1 << 1;
        /// There may be input that no event will report again.
        const INPUT_WAITS = 1 << 2;
        /// The peer has ended its stream: a read will report that after the remaining data.
        const INPUT_ENDS = 1 << 3;
        /// The engine's list of connections to come back to has it.
        const QUEUED = 1 << 4;
        /// The interest set does not have it, because it is broken and nothing is wanted of it for now.
        const DISREGARDED = 1 << 5;
    }
}

impl Marks {
    /// Whether there is something that the engine will come back to by itself.
    pub(crate) fn is_left(self) -> bool {
        self.intersects(Self::INPUT_WAITS | Self::QUEUED)
    }
}

/// What a connection waits for. This decides which timeout it has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Class {
    /// A request's head or body, or the first byte of the first request.
    #[default]
    Header,
    /// The next request.
    KeepAlive,
    /// The peer must receive a response.
    Send,
    /// The peer must close the connection, which this side has closed.
    Linger,
    /// The service must continue. It has timeouts of its own for what it waits for.
    Service,
    /// An upstream connection is being established.
    Dial,
    /// Input on an upstream connection. Services have timers of their own.
    Upstream,
    /// Input on a tunnel.
    Tunnel,
    /// A stream. Its service has timers of its own.
    Stream,
    /// The service must continue, at the latest when the timer expires: the exchange is parked.
    Parked,
}

/// The peer of a descriptor.
#[derive(Debug)]
pub(crate) enum Peer<X> {
    /// Nobody: the slot is not in use.
    None,
    /// A client that speaks HTTP.
    Client(Connection<X>),
    /// A load balancer that has not yet sent the header with the client's address.
    Preamble(Box<PreambleBytes>),
    /// A connection that a service has opened: its index in `Reactor::upstreams`.
    Upstream(u32),
    /// One end of a tunnel.
    Tunnel(Tunnel),
    /// A client that only receives.
    Stream(Stream),
    /// A client whose exchange is parked.
    Parked(Parked),
    /// A socket to which other threads write to wake this worker.
    Notifier,
}

/// One end of a tunnel.
#[derive(Debug)]
pub(crate) struct Tunnel {
    /// What its peer has not taken yet.
    pub(crate) unsent: Option<Box<Outbox>>,
    /// The other end.
    pub(crate) partner: RawFd,
    /// It was a client's connection; else an upstream connection.
    pub(crate) is_client: bool,
    /// Its peer has closed its side.
    pub(crate) has_ended: bool,
    /// A client is busy for as long as its tunnel exists.
    _busy: Option<Busy>,
}

/// A client that is only sent to, when its service has something for it.
#[derive(Debug)]
pub(crate) struct Stream {
    /// What it has not taken yet of the last piece.
    pub(crate) unsent: Option<Box<Outbox>>,
    /// What the service calls it.
    pub(crate) number: u32,
    /// Bytes that it sent and that were thrown away. Two bytes are enough, and keep the slot small.
    pub(crate) discarded: u16,
    /// The framing of its content.
    pub(crate) framing: Framing,
    _open: OpenStream,
}

/// A client whose exchange waits for a long time: its service remembers the state.
#[derive(Debug)]
pub(crate) struct Parked {
    pub(crate) exchange: ParkedExchange,
    /// The number by which the service finds the state.
    pub(crate) number: u32,
}

impl Tunnel {
    pub(crate) fn new(unsent: Option<Box<Outbox>>, partner: RawFd, is_client: bool) -> Self {
        let busy = is_client.then(Busy::default);
        Self { unsent, partner, is_client, has_ended: false, _busy: busy }
    }
}

impl Stream {
    pub(crate) fn new(number: u32, framing: Framing) -> Self {
        Self { unsent: None, number, discarded: 0, framing, _open: OpenStream::default() }
    }
}

impl<X> Default for Slot<X> {
    fn default() -> Self {
        Self {
            peer: Peer::None,
            timer: Timer::default(),
            transport: None,
            generation: 0,
            marks: Marks::default(),
            class: Class::default(),
            armed_at: 0,
        }
    }
}

impl<X> Slot<X> {
    /// The way to the peer. Only of a slot in use.
    #[inline]
    pub(crate) fn transport(&mut self) -> Option<&mut Transport> {
        self.transport.as_mut()
    }

    /// The socket of a slot in use.
    pub(crate) fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.transport.as_ref().map(AsFd::as_fd)
    }

    /// Makes another transport of the same socket. Returns whether `change` could.
    pub(crate) fn replace_transport(
        &mut self,
        change: impl FnOnce(Transport) -> Result<Transport, Transport>,
    ) -> bool {
        let Some(outcome) = self.transport.take().map(change) else { return false };
        let is_changed = outcome.is_ok();
        self.transport = Some(outcome.unwrap_or_else(|same| same));
        is_changed
    }

    /// The transport, and the peer that it leads to.
    #[inline]
    pub(crate) fn parts(&mut self) -> Option<(&mut Transport, &mut Peer<X>)> {
        Some((self.transport.as_mut()?, &mut self.peer))
    }

    /// The connection of a client.
    #[inline]
    pub(crate) fn client(&mut self) -> Option<&mut Connection<X>> {
        match &mut self.peer {
            Peer::Client(connection) => Some(connection),
            _ => None,
        }
    }

    /// Which use of the number it is.
    #[inline]
    pub(crate) fn generation(&self) -> u32 {
        self.generation
    }

    /// Notes that the descriptor, which was disregarded, is registered anew.
    pub(crate) fn register(&mut self, token: Token) {
        self.generation = token.generation;
        self.marks -= Marks::DISREGARDED;
    }

    /// The registration.
    #[inline]
    pub(crate) fn token(&self, fd: RawFd) -> Token {
        Token { fd, generation: self.generation }
    }
}

/// The slots.
#[derive(Debug)]
pub(crate) struct Table<X> {
    blocks: Vec<Option<Box<[Slot<X>; BLOCK]>>>,
}

impl<X> Default for Table<X> {
    fn default() -> Self {
        Self { blocks: Vec::new() }
    }
}

impl<X> Table<X> {
    /// Enters a descriptor, as registered for reading.
    pub(crate) fn insert(
        &mut self,
        transport: Transport,
        token: Token,
        peer: Peer<X>,
    ) -> &mut Slot<X> {
        let index = transport.as_raw_fd() as usize;
        let block = index / BLOCK;
        if block >= self.blocks.len() {
            self.blocks.resize_with(block + 1, || None);
        }
        let block = self.blocks[block].get_or_insert_with(|| {
            let slots: Box<[Slot<X>]> = (0..BLOCK).map(|_| Slot::default()).collect();
            slots.try_into().ok().expect("a block has BLOCK slots")
        });
        let slot = &mut block[index % BLOCK];
        debug_assert!(slot.transport.is_none());
        // The timer may still hang in its list from the number's last use: it stays as it is.
        slot.peer = peer;
        slot.transport = Some(transport);
        slot.generation = token.generation;
        slot.marks = Marks::READS;
        slot.class = Class::Header;
        slot.armed_at = 0;
        slot
    }

    /// Takes a connection out; its timer stays linked and comes to nothing.
    pub(crate) fn remove(&mut self, fd: RawFd) -> Option<(Transport, Token)> {
        let slot = self.slot_mut(fd)?;
        let transport = slot.transport.take()?;
        slot.peer = Peer::None;
        slot.timer.disarm();
        let token = slot.token(fd);
        Some((transport, token))
    }

    /// The slot of `fd` where one was ever made, in use or not.
    #[inline]
    pub(crate) fn slot_mut(&mut self, fd: RawFd) -> Option<&mut Slot<X>> {
        let index = fd as usize;
        Some(&mut self.blocks.get_mut(index / BLOCK)?.as_mut()?[index % BLOCK])
    }

    /// The slot of `fd` where it is in use.
    #[inline]
    pub(crate) fn get_mut(&mut self, fd: RawFd) -> Option<&mut Slot<X>> {
        self.slot_mut(fd).filter(|slot| slot.transport.is_some())
    }

    /// The same, for reading.
    pub(crate) fn get(&self, fd: RawFd) -> Option<&Slot<X>> {
        let index = fd as usize;
        let slot = &self.blocks.get(index / BLOCK)?.as_ref()?[index % BLOCK];
        slot.transport.is_some().then_some(slot)
    }

    /// The slots in use, in order of their descriptors.
    pub(crate) fn used(&self) -> impl Iterator<Item = (RawFd, &Slot<X>)> {
        let blocks = self.blocks.iter().enumerate();
        let slots = blocks.flat_map(|(block, slots)| {
            let slots = slots.iter().flat_map(|slots| slots.iter().enumerate());
            slots.map(move |(index, slot)| ((block * BLOCK + index) as RawFd, slot))
        });
        slots.filter(|(_, slot)| slot.transport.is_some())
    }

    /// The descriptors in use, in order.
    pub(crate) fn descriptors(&self) -> Vec<RawFd> {
        let slots = self
            .blocks
            .iter()
            .enumerate()
            .filter_map(|(index, block)| block.as_ref().map(|block| (index * BLOCK, block)));
        slots
            .flat_map(|(first, block)| block.iter().enumerate().map(move |(i, s)| (first + i, s)))
            .filter(|(_, slot)| slot.transport.is_some())
            .map(|(fd, _)| fd as RawFd)
            .collect()
    }
}

impl<X> Nodes for Table<X> {
    #[inline]
    fn timer_mut(&mut self, node: u32) -> Option<&mut Timer> {
        self.slot_mut(node as RawFd).map(|slot| &mut slot.timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, os::fd::OwnedFd};

    #[test]
    fn an_idle_connection_costs_at_most_64_bytes() {
        // The mechanism's registration is the other 4 bytes.
        assert!(
            size_of::<Slot<[u64; 9]>>() + 4 <= 64,
            "a slot has {} bytes",
            size_of::<Slot<[u64; 9]>>()
        );
    }

    #[test]
    fn a_number_used_again_finds_nothing_of_its_last_use() {
        let mut table = Table::<()>::default();
        let transport = Transport::Plain(OwnedFd::from(File::open("/dev/null").unwrap()));
        let fd = transport.as_raw_fd();
        let slot = table.insert(transport, Token { fd, generation: 7 }, Peer::Upstream(0));
        slot.marks |= Marks::INPUT_WAITS;
        slot.class = Class::Send;
        assert_eq!(table.descriptors(), [fd]);
        let (transport, token) = table.remove(fd).unwrap();
        assert_eq!(token.generation, 7);
        assert!(
            table.descriptors().is_empty()
                && table.get_mut(fd).is_none()
                && table.remove(fd).is_none()
        );
        let slot = table.insert(transport, Token { fd, generation: 8 }, Peer::Upstream(0));
        assert_eq!((slot.marks, slot.class), (Marks::READS, Class::Header));
        assert_eq!(slot.token(fd).generation, 8);
    }
}
