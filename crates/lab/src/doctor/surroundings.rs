//! The environment of README's commands, as it was found on the machine.

use crate::{kernel_calls::KernelCalls, network};
use pollux_sys::find_program;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    env, io,
    net::{Ipv4Addr, TcpListener},
    process::Command,
    thread,
};

/// The programs that some command needs, with the Debian package of each. `scripts/setup` installs them.
pub(super) const BUILD: [(&str, &str); 2] = [("cc", "gcc"), ("make", "make")];
/// The programs that the guest needs: the emulator, and the tools that build its module and its init.
pub(super) const GUEST: [(&str, &str); 5] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("gcc", "gcc"),
    ("make", "make"),
    ("depmod", "kmod"),
    ("xz", "xz-utils"),
];
/// The programs with which `make bench` compares.
pub(super) const PEERS: [(&str, &str); 4] =
    [("nginx", "nginx-light"), ("h2o", "h2o"), ("lighttpd", "lighttpd"), ("wrk", "wrk")];
/// The port of README's first example.
pub(super) const PORT: u16 = 8080;

/// The environment of README's commands.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Surroundings {
    /// The needed programs that are installed.
    pub programs: BTreeSet<String>,
    /// The version number in `cargo --version`.
    pub cargo: Option<String>,
    /// Whether packages can be installed: apt exists and the user is root.
    pub can_install: bool,
    /// The number of the machine's processors that this process may use.
    pub cpus: usize,
    /// Why this process cannot listen on port 8080 of the loopback address.
    pub port_refused: Option<String>,
    /// Why no network namespace can be created.
    pub network_refused: Option<String>,
    /// Why calls of kernel functions cannot be counted (kprobes of perf_event_open(2)).
    pub counting_refused: Option<String>,
    /// The machine's architecture.
    pub architecture: String,
}

impl Surroundings {
    /// Examines this machine. It leaves no traces: the port is closed, and the namespace ends with its
    /// thread.
    pub fn look() -> Self {
        let programs = BUILD.iter().chain(&GUEST).chain(&PEERS).map(|(program, _)| *program);
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, PORT)).map(drop);
        // A network namespace belongs to a thread; this thread must stay in its own.
        let network = thread::spawn(network::own).join().unwrap_or_else(|_| Ok(()));
        Self {
            programs: programs
                .filter(|name| find_program(name).is_some())
                .map(str::to_owned)
                .collect(),
            cargo: cargo_version(),
            can_install: find_program("apt-get").is_some() && rustix::process::geteuid().is_root(),
            cpus: thread::available_parallelism().map_or(1, |count| count.get()),
            port_refused: port.err().map(refusal),
            network_refused: network.err().map(|error| format!("{error:#}")),
            counting_refused: KernelCalls::of_this_thread(&["tcp_poll".to_owned()])
                .err()
                .map(|error| error.to_string()),
            architecture: env::consts::ARCH.into(),
        }
    }
}

fn refusal(error: io::Error) -> String {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another process listens there".into(),
        _ => error.to_string(),
    }
}

fn cargo_version() -> Option<String> {
    let output = Command::new("cargo").arg("--version").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.split_whitespace().nth(1).map(str::to_owned)
}
