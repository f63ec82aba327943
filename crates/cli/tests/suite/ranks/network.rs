//! The hosts of a cluster, as network namespaces on one bridge, which has its own namespace.

use pollux_testkit::write_program;
use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
    time::Duration,
};

/// The number of hosts.
pub(crate) const HOSTS: usize = 4;

/// Four hosts, 10.77.0.1 to 10.77.0.4, and a hub, 10.77.0.254. They are removed when this value is
/// dropped.
pub(crate) struct Network {
    tag: String,
    /// The program that a launcher calls instead of ssh.
    pub(crate) agent: PathBuf,
    _directory: tempfile::TempDir,
}

fn shell(script: &str) {
    let output = Command::new("sh").args(["-ec", script]).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{script}\n{stderr}");
}

impl Network {
    pub(crate) fn new() -> Self {
        static NETWORKS: AtomicUsize = AtomicUsize::new(0);
        let tag = format!("plx{}-{}", std::process::id(), NETWORKS.fetch_add(1, Relaxed));
        let directory = tempfile::tempdir().unwrap();
        let agent = directory.path().join("agent");
        let script = format!(
            "#!/bin/sh\nhost=$1; shift\nexec ip netns exec {tag}-${{host##*.}} \
             unshare --uts sh -c \"hostname node${{host##*.}}; $*\"\n"
        );
        write_program(&agent, &script);
        // Created first, so that a network whose set-up fails is removed, too.
        let network = Self { tag: tag.clone(), agent, _directory: directory };
        shell(&format!(
            "ip netns add {tag}-254; ip -n {tag}-254 link set lo up
             ip -n {tag}-254 link add br0 type bridge
             ip -n {tag}-254 address add 10.77.0.254/24 dev br0; ip -n {tag}-254 link set br0 up
             for i in $(seq {HOSTS}); do
                 ip netns add {tag}-$i; ip -n {tag}-$i link set lo up
                 ip -n {tag}-254 link add v$i type veth peer name eth0 netns {tag}-$i
                 ip -n {tag}-254 link set v$i master br0 up
                 ip -n {tag}-$i address add 10.77.0.$i/24 dev eth0
                 ip -n {tag}-$i link set eth0 up
             done"
        ));
        network
    }

    /// Returns a command that runs on `host`; 254 is the hub.
    pub(crate) fn on(&self, host: u8, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &format!("{}-{host}", self.tag), program]);
        command
    }

    /// Starts a server on the hub: the path of each request is the time in milliseconds that its reply
    /// takes.
    pub(crate) fn serve(&self) -> SocketAddr {
        let path = format!("/run/netns/{}-254", self.tag);
        let listener = thread::spawn(move || {
            let namespace = fs::File::open(path).unwrap();
            rustix::thread::move_into_link_name_space(
                std::os::fd::AsFd::as_fd(&namespace),
                Some(rustix::thread::LinkNameSpaceType::Network),
            )
            .unwrap();
            TcpListener::bind("10.77.0.254:0").unwrap()
        })
        .join()
        .unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                thread::spawn(move || answer(stream));
            }
        });
        address
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for host in (1..=HOSTS).chain([254]) {
            let name = format!("{}-{host}", self.tag);
            let _ = Command::new("ip").args(["netns", "delete", &name]).output();
        }
    }
}

/// Answers one request after the number of milliseconds in its path.
fn answer(mut stream: TcpStream) {
    let _ = stream.set_read_timeout(Some(Duration::from_secs(30)));
    let mut head = Vec::new();
    let mut part = [0; 4096];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        match stream.read(&mut part) {
            Ok(count) if count > 0 => head.extend_from_slice(&part[..count]),
            _ => return,
        }
    }
    let head = String::from_utf8_lossy(&head);
    let path = head.split(' ').nth(1).unwrap_or_default();
    let delay_ms = path.trim_start_matches('/').parse().unwrap_or(0);
    // A slow server: the path is the delay.
    thread::sleep(Duration::from_millis(delay_ms));
    let body = "x".repeat(delay_ms as usize);
    let reply = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let _ = stream.write_all(reply.as_bytes());
}
