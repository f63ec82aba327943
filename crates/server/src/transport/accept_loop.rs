//! A loop for a thread that accepts connections from one listener, until its owner ends it.
//!
//! It waits with poll(2) and not in accept(2). The owner could end a wait in accept(2) only with
//! shutdown(2), which would also end the listener for another process that may have taken it over.

use rustix::event::{PollFd, PollFlags, poll};
use socket2::Socket;
use std::{
    io::{self, PipeReader, PipeWriter},
    sync::Arc,
    thread,
    time::Duration,
};

/// The pause between two attempts to accept when there is no descriptor or memory.
const PAUSE: Duration = Duration::from_millis(100);

/// The accepting thread's part.
#[derive(Debug)]
pub(crate) struct AcceptLoop {
    listener: Arc<Socket>,
    /// A pipe that reports its end when the owner has ended the loop.
    end: PipeReader,
}

/// The owner's part: dropping it ends the loop.
#[derive(Debug)]
pub(crate) struct LoopOwner {
    _end: PipeWriter,
}

impl AcceptLoop {
    /// Creates a loop for this listener, and makes the listener non-blocking.
    ///
    /// # Errors
    /// The errors of pipe(2).
    pub(crate) fn new(listener: Arc<Socket>) -> io::Result<(Self, LoopOwner)> {
        listener.set_nonblocking(true)?;
        let (end, owner) = io::pipe()?;
        Ok((Self { listener, end }, LoopOwner { _end: owner }))
    }

    /// Waits for the next connection. Returns `None` when the owner has ended the loop.
    pub(crate) fn next(&self) -> Option<Socket> {
        loop {
            let mut polled = [
                PollFd::new(&self.end, PollFlags::IN),
                PollFd::new(&*self.listener, PollFlags::IN),
            ];
            if poll(&mut polled, None).is_err() {
                thread::sleep(PAUSE);
                continue;
            }
            if !polled[0].revents().is_empty() {
                return None;
            }
            match self.listener.accept() {
                Ok((socket, _)) => return Some(socket),
                // Another process that shares the listener has accepted the connection first.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn the_listener_outlives_the_loop() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let other = listener.try_clone().unwrap();
        let (accepting, owner) = AcceptLoop::new(Arc::new(Socket::from(listener))).unwrap();
        let client = TcpStream::connect(address).unwrap();
        let first = accepting.next().unwrap().peer_addr().unwrap();
        assert_eq!(first.as_socket(), client.local_addr().ok());
        let thread = thread::spawn(move || accepting.next().is_none());
        drop(owner);
        assert!(thread.join().unwrap());
        let second = TcpStream::connect(address).unwrap();
        other.set_nonblocking(false).unwrap();
        assert_eq!(other.accept().unwrap().1, second.local_addr().unwrap());
    }
}
