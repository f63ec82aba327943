//! The connections on which the mechanisms wait.

use crate::sys::own_file_tables;
use anyhow::{Context, Result};
use pollux_sys::{self as sys, thread_cpu_time};
use rustix::{
    io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd},
    net::sockopt::{Timeout, set_socket_linger, set_socket_timeout},
};
use std::{
    io::Write,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    sync::mpsc::{Receiver, Sender, channel},
    thread::JoinHandle,
    time::Duration,
};

/// The number of connections whose far ends are also in this thread, so that it can make them ready itself.
pub(crate) const ACTIVE: usize = 16;

/// The lowest descriptor of the far ends that this thread holds: select(2) needs small numbers for the near ends.
const FAR_FD_MIN: i32 = 1100;

/// The longest time to wait for a connection of the far side, whose thread may have failed.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The number of descriptors besides the connections: standard streams, listener, epoll and ring, a
/// reserve.
const RESERVE: u64 = 40;

/// Connections over loopback. The far ends, except for the first [`ACTIVE`], are in a thread with a
/// file table of its own, so that the two ends of a connection do not count against one RLIMIT_NOFILE.
pub(crate) struct Pool {
    near: Vec<TcpStream>,
    active: Vec<TcpStream>,
    orders: Option<Sender<usize>>,
    reports: Receiver<Duration>,
    far_side: Option<JoinHandle<Result<()>>>,
}

/// The number of connections that are possible within the limit on descriptors.
pub(crate) fn capacity() -> Result<usize> {
    let limit = sys::raise_descriptor_limit().context("RLIMIT_NOFILE")?;
    Ok(usize::try_from(limit.saturating_sub(RESERVE + ACTIVE as u64)).unwrap_or(usize::MAX))
}

impl Pool {
    /// Opens `size` connections.
    pub(crate) fn open(size: usize) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").context("bind 127.0.0.1")?;
        set_socket_timeout(&listener, Timeout::Recv, Some(CONNECT_TIMEOUT))
            .context("SO_RCVTIMEO")?;
        let address = listener.local_addr()?;
        let mut near = Vec::with_capacity(size);
        let mut active = Vec::new();
        for _ in 0..size.min(ACTIVE) {
            let far = connect(address)?;
            // With a small limit on descriptors such numbers do not exist.
            let moved = fcntl_dupfd_cloexec(&far, FAR_FD_MIN);
            active.push(moved.map_or(far, TcpStream::from));
            near.push(accept(&listener)?);
        }
        let rest = size - active.len();
        let (orders, on_order) = channel();
        let (report, reports) = channel();
        let far_side = std::thread::spawn(move || hold_far_ends(address, rest, &on_order, &report));
        for _ in 0..rest {
            match accept(&listener) {
                Ok(end) => near.push(end),
                Err(error) if !far_side.is_finished() => {
                    return Err(error.context("the far side did not connect"));
                }
                Err(error) => {
                    far_side
                        .join()
                        .ok()
                        .context("the far side panicked")?
                        .context("the far side")?;
                    return Err(error);
                }
            }
        }
        Ok(Self { near, active, orders: Some(orders), reports, far_side: Some(far_side) })
    }

    /// The near ends, on which the mechanisms wait.
    pub(crate) fn near(&self) -> &[TcpStream] {
        &self.near
    }

    /// Makes the near end `index` below [`ACTIVE`] ready.
    #[inline]
    pub(crate) fn send(&self, index: usize) {
        let sent = sys::send(self.active[index].as_fd(), b"x", false);
        assert_eq!(sent.expect("a byte is sent"), 1);
    }

    /// Reads the byte that [`Pool::send`] sent to `index`.
    #[inline]
    pub(crate) fn receive(&self, index: usize) {
        let taken = sys::recv(self.near[index].as_fd(), &mut [0; 64]);
        assert!(taken.expect("a byte is there") > 0);
    }

    /// The number of near ends that [`Pool::send`] can make ready.
    pub(crate) fn active(&self) -> usize {
        self.active.len()
    }

    /// Makes the first `count` near ends ready; returns the CPU time that the writes took.
    pub(crate) fn send_to_all(&self, count: usize) -> Result<Duration> {
        let before = thread_cpu_time();
        for far in &self.active[..count.min(self.active.len())] {
            sys::send(far.as_fd(), b"x", false).context("write")?;
        }
        let own = thread_cpu_time() - before;
        let rest = count.saturating_sub(self.active.len());
        let orders = self.orders.as_ref().expect("open until it is dropped");
        orders.send(rest).ok().context("the far side is gone")?;
        Ok(own + self.reports.recv().context("the far side is gone")?)
    }

    /// Reads the bytes that [`Pool::send_to_all`] sent to the first `count`.
    pub(crate) fn drain(&self, count: usize) -> Result<()> {
        let mut scratch = [0; 4096];
        for near in &self.near[..count] {
            match sys::recv(near.as_fd(), &mut scratch) {
                Ok(0) => anyhow::bail!("the far side has closed a connection"),
                Ok(_) => {}
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error).context("recv"),
            }
        }
        Ok(())
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // The far side ends when its channel of commands is closed.
        self.orders = None;
        if let Some(Ok(Err(error))) = self.far_side.take().map(JoinHandle::join) {
            eprintln!("the far side: {error:#}");
        }
    }
}

fn accept(listener: &TcpListener) -> Result<TcpStream> {
    let (near, _) = listener.accept().context("accept")?;
    near.set_nonblocking(true)?;
    Ok(near)
}

fn connect(address: SocketAddr) -> Result<TcpStream> {
    let far = TcpStream::connect(address).context("connect")?;
    fcntl_setfd(&far, FdFlags::CLOEXEC)?;
    far.set_nodelay(true)?;
    // The connection is reset at its end: twenty thousand connections in TIME_WAIT would disturb the
    // next run.
    set_socket_linger(&far, Some(Duration::ZERO))?;
    Ok(far)
}

/// Runs the other end of the connections: opens `count` of them, then writes a byte to as many as each
/// command says.
fn hold_far_ends(
    address: SocketAddr,
    count: usize,
    orders: &Receiver<usize>,
    report: &Sender<Duration>,
) -> Result<()> {
    sys::own_file_table(own_file_tables(), &[])
        .context("a file table of its own (unshare, CLONE_FILES)")?;
    let mut far = Vec::with_capacity(count);
    for _ in 0..count {
        far.push(connect(address)?);
    }
    for number in orders {
        let before = thread_cpu_time();
        for mut far in &far[..number] {
            far.write_all(b"x").context("write")?;
        }
        if report.send(thread_cpu_time() - before).is_err() {
            break;
        }
    }
    Ok(())
}
