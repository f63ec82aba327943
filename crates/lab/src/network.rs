//! The laboratory's own network namespace. In it, all packets are received on the server's CPU, and packets
//! can be delayed or lost.
//!
//! Loopback does the receiver's work on the sender's CPU: a client that opens a connection, sends and
//! closes pays for most of the work of the server's network stack. If connections are short, a generator
//! with one CPU is then the bottleneck, and no server can be driven beyond its saturation. Receive packet
//! steering (the kernel's `networking/scaling.rst`) moves the work to the CPU that would do it if the
//! packets came from a network: the server's.
//!
//! Far clients use the same loopback interface behind a queue that delays each packet and drops some
//! packets (netem, tc-netem(8)). The queue belongs to the namespace and ends with it.

use crate::{experiment::Clients, sys};
use anyhow::Context;
use pollux_sys::require_program;
use rustix::{
    fs::{Mode, OFlags, openat},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::PathBuf,
    process::{Command, Stdio},
};

/// The steering of the loopback interface's only receive queue, in sysfs.
const STEERING: &str = "class/net/lo/queues/rx-0/rps_cpus";

/// The most packets in the queue: netem drops packets above its limit, whose default is a thousand.
const MAX_UNDER_WAY: u32 = 1_000_000;

/// Moves this thread, and the threads and processes that it starts from now on, into a new network
/// namespace with an active loopback interface. The namespace ends with the last process in it.
///
/// # Errors
/// Without the right to create namespaces (CAP_SYS_ADMIN); the message names the step that failed.
pub fn own() -> anyhow::Result<()> {
    // Without /proc the thread cannot return to its namespace.
    let before = File::open("/proc/thread-self/ns/net").ok();
    sys::own_network().context("a network namespace of its own (unshare(2))")?;
    sys::loopback_up().context("bringing its loopback up").inspect_err(|_| {
        // Never leave the thread in a namespace without an active interface.
        let network = Some(LinkNameSpaceType::Network);
        if let Some(before) = &before {
            let _ = move_into_link_name_space(before.as_fd(), network);
        }
    })
}

/// Moves this thread like [`own`]; packets on its loopback interface are received on `cpu`.
///
/// # Errors
/// As [`own`], and when this kernel has no receive packet steering. This thread may then be in a namespace
/// with an active loopback interface without steering.
pub fn receive_on(cpu: u32) -> anyhow::Result<()> {
    own()?;
    steer(own_sysfs().context("its sysfs (fsopen(2))")?.as_fd(), cpu)
}

/// Opens the sysfs of this thread's network namespace: /sys shows the namespace of the process that mounted
/// it. This sysfs has no mount point, so no other process sees it and it needs neither a directory nor a
/// mount namespace (in a chroot the root is not a mount point and cannot be made private). It disappears
/// with the descriptor.
fn own_sysfs() -> io::Result<OwnedFd> {
    let sysfs = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(sysfs.as_fd())?;
    Ok(fsmount(sysfs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}

/// Delay and loss on the loopback interface of this thread's network namespace, until the value is dropped.
#[derive(Debug)]
pub struct Distance(());

impl Distance {
    /// Puts `clients` far away. Call it only in a separate namespace ([`own`]).
    ///
    /// # Errors
    /// When there is no tc, or the kernel has no netem; the error contains the message of tc.
    pub fn put(clients: &Clients) -> anyhow::Result<Self> {
        // Loads netem as a module, for kernels that do not load it automatically. A failure shows in the
        // next command.
        let _ = Command::new("modprobe").arg("sch_netem").stderr(Stdio::null()).status();
        let (delay, loss) = (clients.delay_ms, clients.loss * 100.0);
        tc(&format!(
            "qdisc add dev lo root netem limit {MAX_UNDER_WAY} delay {delay}ms loss {loss}%"
        ))
        .context("delay and loss (the kernel's sch_netem)")?;
        Ok(Self(()))
    }
}

impl Drop for Distance {
    fn drop(&mut self) {
        // The queue would also end with the namespace.
        let _ = tc("qdisc del dev lo root");
    }
}

/// The path of tc(8), which puts clients far away.
///
/// # Errors
/// When it is not installed; the error names its package.
pub fn find_tc() -> io::Result<PathBuf> {
    require_program("tc", "iproute2")
}

fn tc(words: &str) -> anyhow::Result<()> {
    let program = find_tc()?;
    let output = Command::new(&program)
        .args(words.split(' '))
        .output()
        .with_context(|| program.display().to_string())?;
    let message = String::from_utf8_lossy(&output.stderr);
    anyhow::ensure!(output.status.success(), "tc {words}: {}", message.trim());
    Ok(())
}

fn steer(sysfs: BorrowedFd<'_>, cpu: u32) -> anyhow::Result<()> {
    let write = || {
        let file = openat(sysfs, STEERING, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
        File::from(file).write_all(mask(cpu).as_bytes())
    };
    write().context("receive packet steering of its loopback")
}

/// Formats one CPU as a CPU set of sysfs: words of 32 bits, the highest first.
fn mask(cpu: u32) -> String {
    format!("{:x}{}", 1u32 << (cpu % 32), ",00000000".repeat((cpu / 32) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn cpus_are_written_as_sysfs_has_them() {
        assert_eq!(mask(0), "1");
        assert_eq!(mask(5), "20");
        assert_eq!(mask(33), "2,00000000");
        assert_eq!(mask(64), "1,00000000,00000000");
    }

    /// Runs in a thread of its own, because only that thread is moved.
    #[test]
    fn a_thread_gets_a_network_of_its_own() {
        let place = || fs::read_link("/proc/thread-self/ns/net").unwrap();
        let before = place();
        let moved = std::thread::spawn(move || match receive_on(0) {
            Ok(()) => {
                let listener = std::net::TcpListener::bind("127.0.1.7:0").unwrap();
                std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                Some(place())
            }
            Err(error) => {
                let cause = error.root_cause().downcast_ref::<std::io::Error>().unwrap();
                assert_eq!(cause.kind(), std::io::ErrorKind::PermissionDenied, "{error:#}");
                None
            }
        });
        let moved = moved.join().unwrap();
        assert_ne!(moved, Some(before.clone()));
        assert_eq!(place(), before);
    }

    /// The root of the chroot is the temporary directory itself: nothing is mounted there, and it has no
    /// /proc.
    #[test]
    fn a_root_that_is_no_mount_point_is_enough() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().to_owned();
        let outcome = std::thread::spawn(move || {
            sys::tests::chroot_of_this_thread(&path)?;
            let steered = receive_on(0);
            // The loopback interface is active even if the steering failed.
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            steered
        });
        if let Err(error) = outcome.join().unwrap() {
            let cause = error.root_cause().to_string();
            assert!(cause.contains("not permitted"), "{error:#}");
            eprintln!("skipped: {error:#}");
        }
    }

    /// Tests delay in a new namespace, or the error message if that is not possible.
    #[test]
    fn distance_ends_with_its_value() {
        let clients = Clients { delay_ms: 10.0, loss: 0.0, settle_seconds: 1.0 };
        std::thread::spawn(move || {
            if let Err(error) = own() {
                return eprintln!("skipped: {error:#}");
            }
            let echo = || {
                let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
                let started_at = std::time::Instant::now();
                std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                started_at.elapsed()
            };
            match Distance::put(&clients) {
                Ok(distance) => {
                    assert!(echo().as_millis() >= 20, "there and back");
                    drop(distance);
                    tc("qdisc add dev lo root netem delay 1ms").expect("the first is gone");
                }
                Err(error) => {
                    let message = format!("{error:#}");
                    assert!(message.contains("sch_netem") && message.contains("tc "), "{message}");
                }
            }
        })
        .join()
        .unwrap();
    }
}
