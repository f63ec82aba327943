//! The floor of pools: what a server with a thread for each connection cannot do without.
//!
//! Each thread accepts, and then for each request makes one recv and one send of a constant reply,
//! both of which block. No parsing, no timeouts, no files. `make bench` measures `pollux serve
//! --architecture prethreaded` against it, and it against `floor`: what a pool pays for a context
//! switch a request.
//!
//! ```console
//! $ cargo run --release --example floor_threads -- 127.0.0.1:8081 64
//! ```
//! The second argument is the number of threads.

use pollux_sys as sys;
use std::{error::Error, net::TcpListener, os::fd::AsFd, thread};

/// The receive buffer; a request of a load generator fits many times.
const BUFFER: usize = 16 * 1024;
/// What a thread needs beside it.
const STACK: usize = 64 * 1024;
/// As long as that of `floor` for a body of one byte.
const REPLY: &[u8] = b"HTTP/1.1 200 OK\r\nServer: floor\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
    Content-Type: text/plain\r\nContent-Length: 1\r\n\
    Last-Modified: Thu, 01 Jan 1970 00:00:00 GMT\r\nETag: \"0-0\"\r\n\
    Accept-Ranges: bytes\r\n\r\nx";

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let address = args.next().unwrap_or_else(|| "127.0.0.1:8081".into());
    let threads: usize = args.next().map_or(Ok(64), |text| text.parse())?;
    let listener = TcpListener::bind(&address)?;
    println!("floor on {} with {threads} threads", listener.local_addr()?);
    thread::scope(|scope| {
        for _ in 0..threads {
            let builder = thread::Builder::new().stack_size(BUFFER + STACK);
            builder.spawn_scoped(scope, || serve(&listener))?;
        }
        Ok(())
    })
}

/// Serves one connection after the other.
fn serve(listener: &TcpListener) {
    let mut buffer = vec![0; BUFFER];
    loop {
        let Ok((connection, _)) = listener.accept() else { continue };
        let _ = connection.set_nodelay(true);
        while sys::recv(connection.as_fd(), &mut buffer).is_ok_and(|received| received > 0)
            && sys::send(connection.as_fd(), REPLY, false).is_ok_and(|sent| sent == REPLY.len())
        {
        }
    }
}
