//! An echo server on any mechanism: `cargo run --example echo -- epoll-et 127.0.0.1:7777`.
//!
//! The example shows everything of the trait that a real server needs: the mechanism is chosen once and
//! the loop is compiled for it; accepted connections are added and closed between the events of one
//! wait; output that the peer does not take waits in a buffer with a bound, and the interest follows;
//! and the connections are in a table whose index is the descriptor's number.

use pollux_event::{
    Capabilities, Error, Event, Interest, Mechanism, MechanismSpec, Options, Token,
    registry::{self, Visitor},
};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    os::fd::{AsFd, AsRawFd},
};

/// The most bytes that wait for a peer that does not read; while it is reached, the peer's input is not
/// read.
const MOST_WAITING: usize = 64 << 10;

struct Connection {
    stream: TcpStream,
    token: Token,
    interest: Interest,
    waiting: Vec<u8>,
    has_ended: bool,
}

impl Connection {
    /// Moves bytes until none can be moved. Returns the next interest, or `None` at the end.
    fn transfer(&mut self) -> io::Result<Option<Interest>> {
        let mut buffer = [0; 4096];
        loop {
            while !self.waiting.is_empty() {
                match self.stream.write(&self.waiting) {
                    Ok(sent) => drop(self.waiting.drain(..sent)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
            let is_full = self.waiting.len() >= MOST_WAITING;
            if self.has_ended || is_full {
                return Ok((!self.waiting.is_empty()).then_some(Interest::WRITE));
            }
            match self.stream.read(&mut buffer) {
                Ok(0) => self.has_ended = true,
                Ok(got) => self.waiting.extend_from_slice(&buffer[..got]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    let write =
                        if self.waiting.is_empty() { Interest::empty() } else { Interest::WRITE };
                    return Ok(Some(Interest::READ | write));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

struct Echo<M> {
    set: M,
    listener: TcpListener,
    listening: Token,
    /// The connections by descriptor number.
    table: Vec<Option<Connection>>,
}

impl<M: Mechanism> Echo<M> {
    fn new(options: &Options, listener: TcpListener) -> Result<Self, Error> {
        listener.set_nonblocking(true).map_err(Error::io("fcntl"))?;
        let mut set = M::open(options)?;
        let listening = set.add(listener.as_fd(), Interest::READ)?;
        Ok(Self { set, listener, listening, table: Vec::new() })
    }

    fn run(mut self) -> Result<(), Error> {
        loop {
            self.set.wait(None)?;
            // Adding and closing are allowed between the events of a wait: no event is reported for a
            // wrong connection.
            while let Some(event) = self.set.next_event() {
                if event.token == self.listening { self.accept() } else { self.serve(event) }
            }
        }
    }

    fn accept(&mut self) {
        // Accepts until WouldBlock, as an edge-triggered mechanism requires. (When descriptors run out,
        // accept fails as well: a server then takes the listener out of the set until one is closed.)
        while let Ok((stream, _)) = self.listener.accept() {
            let fd = stream.as_raw_fd() as usize;
            if stream.set_nonblocking(true).is_err() {
                continue;
            }
            // A connection for which no mechanism can wait is closed, by being dropped here.
            let Ok(token) = self.set.add(stream.as_fd(), Interest::READ) else { continue };
            if fd >= self.table.len() {
                self.table.resize_with(fd + 1, || None);
            }
            let (interest, waiting) = (Interest::READ, Vec::new());
            self.table[fd] =
                Some(Connection { stream, token, interest, waiting, has_ended: false });
        }
    }

    fn serve(&mut self, event: Event) {
        let place = &mut self.table[event.token.fd as usize];
        let Some(connection) = place else { return };
        let next = match connection.transfer() {
            Ok(Some(interest)) if interest == connection.interest => return,
            Ok(Some(interest)) => self.set.modify(event.token, interest).map(|()| Some(interest)),
            Ok(None) | Err(_) => Ok(None),
        };
        match next {
            Ok(Some(interest)) => connection.interest = interest,
            _ => {
                let Connection { stream, token, .. } = place.take().expect("it is there");
                let _ = self.set.close(token, stream.into());
            }
        }
    }
}

/// Compiles the server for each mechanism, and runs it on the one that was named.
struct Serve<'a>(&'a Options, TcpListener);

impl Visitor for Serve<'_> {
    type Output = Result<(), Error>;

    fn visit<M: Mechanism>(self) -> Self::Output {
        if M::capabilities(self.0).contains(Capabilities::SPURIOUS_WAKEUPS) {
            eprintln!("{} wakes for every connection that could write", M::DESCRIPTION.name);
        }
        Echo::<M>::new(self.0, self.1)?.run()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let spec: MechanismSpec = arguments.next().unwrap_or_else(|| "epoll".into()).parse()?;
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:0".into());
    let listener = TcpListener::bind(&address)?;
    println!("{}", listener.local_addr()?);
    registry::with_mechanism(&spec.name, Serve(&spec.options(), listener))??;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{net::Shutdown, thread, time::Duration};

    /// More bytes than the sockets and the server store, so that the server must stop reading.
    const LENGTH: usize = 8 << 20;

    #[test]
    fn every_mechanism_gives_back_what_a_slow_reader_sent() {
        let mut ran = 0;
        for description in registry::ALL {
            let spec: MechanismSpec = description.name.parse().unwrap();
            if let Err(reason) = registry::probe(&spec) {
                eprintln!("skipped: {reason}");
                continue;
            }
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            // It serves until the process ends.
            thread::spawn(move || {
                registry::with_mechanism(&spec.name, Serve(&spec.options(), listener)).unwrap()
            });
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
            let mut writing = stream.try_clone().unwrap();
            let sent: Vec<u8> = (0..LENGTH).map(|index| (index % 251) as u8).collect();
            let expected = sent.clone();
            let writer = thread::spawn(move || {
                writing.write_all(&sent).unwrap();
                writing.shutdown(Shutdown::Write).unwrap();
            });
            // The client does not read for a while, so that the buffers fill.
            thread::sleep(Duration::from_millis(50));
            let mut got = Vec::new();
            stream.read_to_end(&mut got).unwrap();
            assert!(got == expected, "{}: {} bytes came back", description.name, got.len());
            writer.join().unwrap();
            ran += 1;
        }
        assert!(ran >= 5, "only {ran} mechanisms ran");
    }
}
