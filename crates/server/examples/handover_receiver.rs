//! A process that receives connections from `pollux serve --handover unix:PATH` and answers them.
//!
//! ```text
//! cargo run -p pollux-server --example handover_receiver /tmp/app.sock
//! pollux serve public --handover unix:/tmp/app.sock
//! ```
//!
//! The messages are described in docs/handover.md.

use pollux_sys as sys;
use socket2::{Domain, SockAddr, Socket, Type};
use std::{
    io::{self, Read, Write},
    net::TcpStream,
    os::fd::AsFd,
    path::Path,
    thread,
};

/// The maximum length of a message in bytes: the longest possible head, and the input that followed
/// it.
const MESSAGE_MAX: usize = 256 << 10;

fn main() -> io::Result<()> {
    let path = std::env::args().nth(1).ok_or_else(|| io::Error::other("expected a path"))?;
    let _ = std::fs::remove_file(&path);
    receive_all(&listen(path.as_ref())?, |first, client| {
        thread::spawn(move || {
            if let Err(error) = answer(first, client) {
                eprintln!("a client: {error}");
            }
        });
    })
}

/// Listens for servers that hand connections over; each of their workers opens one connection.
pub fn listen(path: &Path) -> io::Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::SEQPACKET, None)?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(128)?;
    Ok(socket)
}

/// Passes each received connection to `take`, with the bytes that the server has read from it.
pub fn receive_all(
    listener: &Socket,
    take: impl Fn(Vec<u8>, TcpStream) + Send + Clone + 'static,
) -> io::Result<()> {
    loop {
        let (worker, _) = listener.accept()?;
        let take = take.clone();
        thread::spawn(move || {
            let mut buffer = vec![0; MESSAGE_MAX];
            // An empty message is the end of the stream: the worker has disconnected.
            while let Ok((length @ 1.., client)) =
                sys::receive_with_descriptor(worker.as_fd(), &mut buffer)
            {
                if let Some(client) = client {
                    take(buffer[..length].to_vec(), TcpStream::from(client));
                }
            }
        });
    }
}

/// Answers with the request's own head, and closes the connection. `first` contains the bytes that the
/// server had already read; the rest is read from the connection.
pub fn answer(first: Vec<u8>, mut client: TcpStream) -> io::Result<()> {
    let mut input = first;
    let mut buffer = [0; 4096];
    let end = loop {
        if let Some(at) = input.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        match client.read(&mut buffer)? {
            0 => return Ok(()),
            received => input.extend_from_slice(&buffer[..received]),
        }
    };
    let head = &input[..end];
    write!(
        client,
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        head.len()
    )?;
    client.write_all(head)
}
