//! A thread that accepts at one listener, until its owner ends it.
//!
//! It waits with poll(2) and not in accept(2): what would wake it there, shutdown(2), would end the listener
//! for another process, too, which may have taken it over.

use rustix::event::{PollFd, PollFlags, poll};
use socket2::Socket;
use std::{
    io::{self, PipeReader, PipeWriter},
    sync::Arc,
    thread,
    time::Duration,
};

/// Between two tries to accept when there is no descriptor or memory.
const PAUSE: Duration = Duration::from_millis(100);

/// For the thread that accepts.
#[derive(Debug)]
pub(crate) struct AcceptLoop {
    listener: Arc<Socket>,
    /// At its end when the owner has ended the loop.
    end: PipeReader,
}

/// For the owner: dropping it ends the loop.
#[derive(Debug)]
pub(crate) struct LoopOwner {
    _end: PipeWriter,
}

impl AcceptLoop {
    /// A loop for this listener, which is not blocking from now on.
    ///
    /// # Errors
    /// The errors of pipe(2).
    pub(crate) fn new(listener: Arc<Socket>) -> io::Result<(Self, LoopOwner)> {
        listener.set_nonblocking(true)?;
        let (end, owner) = io::pipe()?;
        Ok((Self { listener, end }, LoopOwner { _end: owner }))
    }

    /// Waits for the next connection; `None` when the owner has ended the loop.
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
                // Another process that has the listener, too, was faster.
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
