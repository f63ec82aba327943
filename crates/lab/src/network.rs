//! A network namespace of the laboratory's own, in which all packets are received on the server's
//! CPU, or come late, or never.
//!
//! Loopback does the receiver's work on the sender's CPU: a client that opens a connection, sends
//! and closes pays for most of what the server's network stack does. A generator with one CPU is
//! then the bottleneck wherever connections are short, and no server can be driven beyond its
//! saturation. Receive packet steering (the kernel's `networking/scaling.rst`) leads the work to
//! the CPU on which it would be done if the packets came from a network: the server's.
//!
//! Clients far away are those of the same loopback, behind a queue that keeps each packet for a
//! while and drops some (netem, tc-netem(8)): it is in the namespace, and goes with it.

use crate::{experiment::Clients, sys};
use anyhow::Context;
use rustix::{
    fs::{Mode, OFlags, openat},
    mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};
use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    process::{Command, Stdio},
};

/// The steering of loopback's one receive queue, in sysfs.
const STEERING: &str = "class/net/lo/queues/rx-0/rps_cpus";

/// The most packets on their way: netem drops what is above, and its default is a thousand.
const MAX_UNDER_WAY: u32 = 1_000_000;

/// Moves this thread, and what it starts from now on, into a network namespace of its own, whose
/// loopback is up. It ends with the last process in it.
///
/// # Errors
/// Without the right to make namespaces (CAP_SYS_ADMIN); the text says which step it was.
pub fn own() -> anyhow::Result<()> {
    // Where there is no /proc there is no way back, either.
    let before = File::open("/proc/thread-self/ns/net").ok();
    sys::own_network().context("a network namespace of its own (unshare(2))")?;
    sys::loopback_up().context("bringing its loopback up").inspect_err(|_| {
        // Never left in a network in which nothing is up.
        let network = Some(LinkNameSpaceType::Network);
        if let Some(before) = &before {
            let _ = move_into_link_name_space(before.as_fd(), network);
        }
    })
}

/// The same, and its loopback is received on `cpu`.
///
/// # Errors
/// As [`own`], and when this kernel has no receive packet steering. This thread may then be in a
/// namespace whose loopback is up and received as everywhere.
pub fn receive_on(cpu: u32) -> anyhow::Result<()> {
    own()?;
    steer(own_sysfs().context("its sysfs (fsopen(2))")?.as_fd(), cpu)
}

/// The sysfs of this thread's network namespace: /sys shows the namespace of the process that mounted it.
/// This one has no mount point, so no other process sees it and it needs neither a directory nor a mount
/// namespace (in a chroot the root is no mount point, and cannot be made private). It disappears with the
/// descriptor.
fn own_sysfs() -> io::Result<OwnedFd> {
    let sysfs = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(sysfs.as_fd())?;
    Ok(fsmount(sysfs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}

/// Delay and loss on the loopback of this thread's network namespace, as long as this lives.
#[derive(Debug)]
pub struct Distance(());

impl Distance {
    /// Puts `clients` far away. To be called in a namespace of one's own ([`own`]).
    ///
    /// # Errors
    /// When there is no tc, or the kernel has no netem; with the message of tc.
    pub fn put(clients: &Clients) -> anyhow::Result<Self> {
        // As a module, in kernels that do not load it by themselves. What fails here shows below.
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
        // It would go with the namespace, too.
        let _ = tc("qdisc del dev lo root");
    }
}

fn tc(words: &str) -> anyhow::Result<()> {
    let output = Command::new("tc")
        .args(words.split(' '))
        .output()
        .context("tc cannot be started (it is in the package iproute2)")?;
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

/// One CPU as sysfs writes sets of them: words of 32 bits, the highest first.
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

    /// In a thread of its own, which is all that is moved.
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

    /// The identity of that directory: in a chroot nothing is mounted at the root, and there is no /proc.
    #[test]
    fn a_root_that_is_no_mount_point_is_enough() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().to_owned();
        let outcome = std::thread::spawn(move || {
            sys::tests::chroot_of_this_thread(&path)?;
            let steered = receive_on(0);
            // Up, whatever else came of it.
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

    /// Far away in a namespace of its own, or what keeps it from there.
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
