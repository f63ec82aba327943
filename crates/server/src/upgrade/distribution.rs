//! Distributes the connections of one worker of the former server over all workers of this process.
//!
//! The former server has a channel for each of its workers, and this process may have another number
//! of workers. If each channel had one receiver, a worker could get more than its share of
//! `--max-connections` and would close idle connections, although other workers have room.

use super::{
    channel::Channel,
    message::{IdleConnection, MESSAGE_MAX, Message},
};
use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, OwnedFd},
    thread,
    time::{Duration, Instant},
};

/// How long a worker may take to accept its part of a message.
const PATIENCE: Duration = Duration::from_secs(30);
/// The size of the thread's stack in bytes; its buffer is not on it.
const STACK_BYTES: usize = 256 << 10;

/// The channel of a worker of the former server, and a channel to each worker of this process. The
/// worker that has waited longest for connections is first.
struct Distribution {
    source: Channel,
    workers: VecDeque<Channel>,
}

/// Starts a thread that distributes the connections of `source` over `workers`, until the former
/// server closes `source` or no worker is left.
///
/// # Errors
/// The errors of pthread_create(3).
pub(crate) fn start(source: Channel, workers: VecDeque<Channel>) -> io::Result<()> {
    let distribution = Distribution { source, workers };
    let thread = thread::Builder::new().name("takeover".into()).stack_size(STACK_BYTES);
    thread.spawn(|| distribution.run()).map(drop)
}

impl Distribution {
    fn run(mut self) {
        let mut buffer = vec![0; MESSAGE_MAX];
        loop {
            let received = self.source.receive(&mut buffer);
            buffer.fill(0); // It may have held secrets.
            let (connections, sockets) = match received {
                Ok(Some((Message::Connections(connections), sockets))) => (connections, sockets),
                Ok(None) => return,
                Ok(Some(_)) => {
                    tracing::error!(
                        "upgrade: a channel of connections brings something else: closed"
                    );
                    return;
                }
                Err(error) => {
                    tracing::error!("upgrade: a channel of connections is closed: {error}");
                    return;
                }
            };
            let answer = Message::Accepted { connections: connections.len() as u16 };
            // Without an answer, the former server keeps the connections.
            if !self.distribute(&connections, &sockets) || self.source.send(&answer, &[]).is_err() {
                return;
            }
        }
    }

    /// Gives each worker a part of the connections, and waits until they have been accepted. Returns
    /// false if no worker was there to take any. Otherwise the former server must not use the
    /// connections any more, even if a worker has failed with its part.
    fn distribute(&mut self, connections: &[IdleConnection], sockets: &[OwnedFd]) -> bool {
        let deadline = Instant::now() + PATIENCE;
        let size = connections.len().div_ceil(self.workers.len().max(1)).max(1);
        let mut busy = Vec::new();
        for (connections, sockets) in connections.chunks(size).zip(sockets.chunks(size)) {
            let message = Message::Connections(connections.to_vec());
            let sockets: Vec<_> = sockets.iter().map(OwnedFd::as_fd).collect();
            // A worker that has ended is left out.
            while let Some(worker) = self.workers.pop_front() {
                if worker.send_until(&message, &sockets, deadline).is_ok() {
                    busy.push(worker);
                    break;
                }
            }
        }
        let is_any = !busy.is_empty();
        let has_answered =
            |worker: &Channel| matches!(worker.expect(deadline), Ok((Message::Accepted { .. }, _)));
        self.workers.extend(busy.into_iter().filter(has_answered));
        is_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn each_worker_gets_a_part_and_one_that_has_ended_gets_none() {
        let (former, source) = Channel::pair().unwrap();
        let (near, mut far): (VecDeque<_>, Vec<_>) =
            (0..2).map(|_| Channel::pair().unwrap()).unzip();
        start(source, near).unwrap();
        let deadline = Instant::now() + PATIENCE;
        let send = |count: usize| {
            let sockets: Vec<_> = (0..count).map(|_| File::open("/dev/null").unwrap()).collect();
            let sockets: Vec<_> = sockets.iter().map(File::as_fd).collect();
            let connections = vec![IdleConnection::default(); count];
            former.send(&Message::Connections(connections), &sockets).unwrap();
        };
        let accept = |worker: &Channel, count: usize| {
            let (message, sockets) = worker.expect(deadline).unwrap();
            assert_eq!(message, Message::Connections(vec![IdleConnection::default(); count]));
            assert_eq!(sockets.len(), count);
            worker.send(&Message::Accepted { connections: count as u16 }, &[]).unwrap();
        };
        let accepted = |connections| {
            let (message, _) = former.expect(deadline).unwrap();
            assert_eq!(message, Message::Accepted { connections });
        };
        send(5);
        accept(&far[0], 3);
        accept(&far[1], 2);
        accepted(5);
        // The one that has waited longest is next.
        send(1);
        accept(&far[0], 1);
        accepted(1);
        far.pop();
        send(2);
        accept(&far[0], 1);
        accepted(2);
        far.pop();
        send(1);
        assert!(former.expect(deadline).is_err(), "the connections stay there");
    }
}
