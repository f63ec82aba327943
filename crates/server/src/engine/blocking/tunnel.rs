//! A tunnel: the client and an upstream connection, joined. The bytes that one side sends are sent to the
//! other.

use super::{Blocking, Client};
use crate::stats::Counter;
use crate::{
    engine::transmit::transmit,
    service::Service,
    transport::{Transport, outbox::Outbox},
};
use libc::{POLLIN, POLLOUT};
use std::{
    io,
    os::fd::{AsRawFd, RawFd},
};

/// The far end of a tunnel, and the unsent output for each end.
pub(super) struct Tunnel {
    far: Transport,
    /// The unsent output for the client, and for the far end.
    kept: [Outbox; 2],
    /// Whether the client, and the far end, have closed their sides.
    has_ended: [bool; 2],
}

impl Tunnel {
    pub(super) fn new(far: Transport, to_client: Outbox, to_far: Outbox) -> Self {
        Self { far, kept: [to_client, to_far], has_ended: [false; 2] }
    }

    /// Returns the descriptor and events to wait for at an end. While an end does not take its output,
    /// nothing more is received for it.
    fn wanted(&self, end: usize, fd: RawFd) -> (RawFd, i16) {
        let mut events = 0;
        if !self.has_ended[end] && self.kept[1 - end].is_empty() {
            events |= POLLIN;
        }
        if !self.kept[end].is_empty() {
            events |= POLLOUT;
        }
        // poll(2) skips the descriptor -1. A descriptor without requested events would still report its
        // hang-up at every wait.
        (if events == 0 { -1 } else { fd }, events)
    }

    fn is_over(&self) -> bool {
        self.has_ended == [true; 2] && self.kept.iter().all(Outbox::is_empty)
    }
}

impl<A: Service> Blocking<A> {
    /// Passes bytes in both directions until both ends have closed, or one of them has failed.
    pub(super) fn run_tunnel(&mut self, mut tunnel: Tunnel) {
        let Some(client) = &self.client else { return };
        let fds = [client.transport.as_raw_fd(), tunnel.far.as_raw_fd()];
        let mut buffer = vec![0; super::INPUT_BYTES];
        for end in 0..2 {
            if self.send_kept(&mut tunnel, end).is_err() {
                return;
            }
        }
        while !tunnel.is_over() && !self.is_over() {
            let wanted = [tunnel.wanted(0, fds[0]), tunnel.wanted(1, fds[1])];
            self.wait_until(&wanted, None);
            let happened = [self.polled[1].revents, self.polled[2].revents];
            for end in 0..2 {
                let outcome = if happened[end] == 0 {
                    Ok(())
                } else if wanted[end].1 & POLLOUT != 0 && happened[end] != POLLIN {
                    self.send_kept(&mut tunnel, end)
                } else {
                    self.pass_on(&mut tunnel, end, &mut buffer)
                };
                if outcome.is_err() {
                    return;
                }
            }
        }
    }

    /// Returns the transport of the client, or of the far end.
    fn end_of<'s>(
        client: &'s mut Option<Client<A::Exchange>>,
        far: &'s mut Transport,
        end: usize,
    ) -> io::Result<&'s mut Transport> {
        match (end, client) {
            (0, Some(client)) => Ok(&mut client.transport),
            (0, None) => Err(io::ErrorKind::NotConnected.into()),
            _ => Ok(far),
        }
    }

    /// Receives from this end and sends to the other.
    fn pass_on(&mut self, tunnel: &mut Tunnel, end: usize, buffer: &mut [u8]) -> io::Result<()> {
        match Self::end_of(&mut self.client, &mut tunnel.far, end)?.receive(buffer) {
            Ok(0) => tunnel.has_ended[end] = true,
            Ok(received) => tunnel.kept[1 - end].bytes().extend_from_slice(&buffer[..received]),
            Err(error) => {
                let is_early =
                    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
                return if is_early { Ok(()) } else { Err(error) };
            }
        }
        self.send_kept(tunnel, 1 - end)
    }

    /// Sends the stored output to this end, and then closes the sending side if the other end has closed.
    fn send_kept(&mut self, tunnel: &mut Tunnel, end: usize) -> io::Result<()> {
        let Tunnel { far, kept, has_ended } = tunnel;
        let transport = Self::end_of(&mut self.client, far, end)?;
        let (outcome, sent) = transmit(transport, &mut kept[end], self.large_file);
        self.worker.counters.add(Counter::BytesSent, sent);
        outcome?;
        if kept[end].is_empty() && has_ended[1 - end] {
            // Calling this twice does no harm.
            return transport.shut();
        }
        Ok(())
    }
}
