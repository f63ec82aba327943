//! Explanations of why the server cannot listen, with advice.

use pollux_server::config::Listen;
use procfs::process;
use rustix::io::Errno;
use std::{
    collections::HashSet,
    fs,
    io::{self, BufRead, BufReader},
    net::SocketAddr,
};

/// The first unprivileged port if the kernel does not report it (ip(7)).
const FIRST_UNPRIVILEGED: u16 = 1024;
/// The maximum number of processes that are named. Usually there is one; with SO_REUSEPORT or after
/// fork there are several.
const MAX_NAMED: usize = 4;

/// Returns advice for `error`, if it is about one of `listens`.
pub(super) fn advice(error: &anyhow::Error, listens: &[Listen]) -> Option<String> {
    let cause = error.chain().find_map(|cause| cause.downcast_ref::<io::Error>())?;
    let text = error.to_string();
    // The message contains the address; if there are several, only one of them is at fault.
    let named = |listen: &&SocketAddr| text.contains(&format!("cannot listen on {listen} "));
    let address = listens.iter().filter_map(|listen| match listen {
        Listen::Tcp(address) => Some(address),
        Listen::Unix(_) | Listen::Passed(_) => None,
    });
    let address = *address.into_iter().find(named)?;
    if cause.raw_os_error() == Some(Errno::AFNOSUPPORT.raw_os_error()) && address.is_ipv6() {
        return Some(format!(
            "this system has no IPv6: --listen 0.0.0.0:{} takes all addresses of IPv4",
            address.port()
        ));
    }
    match cause.kind() {
        io::ErrorKind::AddrInUse => Some(in_use(address)),
        io::ErrorKind::PermissionDenied => privileged(address),
        io::ErrorKind::AddrNotAvailable => Some(format!(
            "no interface here has the address {}: `ip address` lists those that there are; \
             --listen :{} takes all",
            address.ip(),
            address.port()
        )),
        _ => None,
    }
}

fn in_use(address: SocketAddr) -> String {
    let port = address.port();
    let elsewhere = "take another port, or --listen ADDRESS:0, and the kernel chooses one";
    match &holders(port)[..] {
        [] => format!(
            "port {port} is held by a process that you may not look into: \
             `sudo ss -ltnp 'sport = :{port}'` names it; or {elsewhere}"
        ),
        names => format!("port {port} is held by {}: stop it, or {elsewhere}", names.join(", ")),
    }
}

/// Returns the processes that listen on `port`, if this user may see them: `nginx (process 4711)`.
fn holders(port: u16) -> Vec<String> {
    let sockets: HashSet<u64> = ["/proc/net/tcp", "/proc/net/tcp6"]
        .into_iter()
        .filter_map(|table| fs::File::open(table).ok())
        .flat_map(|table| listeners(BufReader::new(table), port))
        .collect();
    let Ok(processes) = process::all_processes() else { return Vec::new() };
    processes
        .filter_map(Result::ok)
        .filter(|process| {
            process.fd().is_ok_and(|fds| {
                fds.filter_map(Result::ok).any(|fd| match fd.target {
                    process::FDTarget::Socket(inode) => sockets.contains(&inode),
                    _ => false,
                })
            })
        })
        .filter_map(|process| {
            let name = process.stat().ok()?.comm;
            Some(format!("{name} (process {})", process.pid))
        })
        .take(MAX_NAMED)
        .collect()
}

/// Returns the inodes of the sockets that listen on `port`, from a table of sockets (proc_pid_net(5)).
///
/// The kernel lists the sockets that listen first. The table is not read beyond them: behind them can be a million
/// connections, and the kernel needs minutes to list these, because it searches from the beginning for each part.
fn listeners(table: impl BufRead, port: u16) -> Vec<u64> {
    const LISTEN: &str = "0A";
    let mut found = Vec::new();
    for line in table.lines().skip(1).map_while(Result::ok) {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (Some(local), Some(&LISTEN), Some(inode)) =
            (fields.get(1), fields.get(3), fields.get(9))
        else {
            break;
        };
        let its_port =
            local.rsplit_once(':').and_then(|(_, hex)| u16::from_str_radix(hex, 16).ok());
        if its_port == Some(port) {
            found.extend(inode.parse::<u64>());
        }
    }
    found
}

/// Returns `None` if the port is not the reason: a security module may forbid listening altogether.
fn privileged(address: SocketAddr) -> Option<String> {
    let first = fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(FIRST_UNPRIVILEGED);
    let port = address.port();
    (port < first).then(|| {
        format!(
            "ports below {first} are for root: take one from there on, give the program the right \
             (`sudo setcap cap_net_bind_service=+ep $(command -v pollux)`, or \
             AmbientCapabilities=CAP_NET_BIND_SERVICE in its unit), or \
             `sudo sysctl -w net.ipv4.ip_unprivileged_port_start={port}`"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    /// Regression: beside very many connections, a server whose address was in use took minutes to end, and no signal
    /// ended it earlier.
    #[test]
    fn the_connections_of_the_machine_are_not_listed() {
        let line = |number: u32, port: u16, state: &str| {
            format!(
                " {number:3}: 0100007F:{port:04X} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000     \
                 0        0 {} 1 0000000000000000 100 0 0 10 0\n",
                1000 + number
            )
        };
        let head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n";
        let lines = [
            line(0, 80, "0A"),
            line(1, 8080, "0A"),
            line(2, 80, "0A"),
            line(3, 80, "01"),
            line(4, 80, "0A"),
        ];
        let table = format!("{head}{}", lines.concat());
        assert_eq!(listeners(table.as_bytes(), 80), [1000, 1002]);
        assert_eq!(listeners(&b""[..], 80), [0; 0]);
    }

    #[test]
    fn a_port_alone_needs_ipv6() {
        let listen: Listen = ":80".parse().unwrap();
        let cause = io::Error::from_raw_os_error(Errno::AFNOSUPPORT.raw_os_error());
        let error = Err::<(), _>(cause)
            .context("cannot listen on [::]:80 (another address: --listen ADDRESS:PORT)")
            .unwrap_err();
        let text = advice(&error, &[listen]).unwrap();
        assert!(text.contains("--listen 0.0.0.0:80"), "{text}");
    }
}
