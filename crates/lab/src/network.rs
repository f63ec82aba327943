//! A network namespace in which all packets are received on the server's CPU.
//!
//! Loopback does the receiver's work on the sender's CPU: a client that opens a connection, sends
//! and closes pays for most of what the server's network stack does. A generator with one CPU is
//! then the bottleneck wherever connections are short, and no server can be driven beyond its
//! saturation. Receive packet steering (the kernel's `networking/scaling.rst`) leads the work to
//! the CPU on which it would be done if the packets came from a network: the server's.

use crate::sys;
use anyhow::Context;
use std::{fs, path::Path};

/// The steering of loopback's one receive queue, below a mount of sysfs.
const STEERING: &str = "class/net/lo/queues/rx-0/rps_cpus";

/// Moves this thread, and what it starts from now on, into a network namespace of its own, whose
/// loopback is up and received on `cpu`. It ends with the last process in it.
///
/// # Errors
/// Without the right to make namespaces (CAP_SYS_ADMIN), and when this kernel has no receive
/// packet steering; the text says which step it was. This thread may then be in a namespace whose
/// loopback is received as everywhere.
pub fn receive_on(cpu: u32) -> anyhow::Result<()> {
    sys::own_network().context("a network namespace of its own (unshare(2))")?;
    sys::loopback_up().context("bringing its loopback up")?;
    // What is mounted at /sys shows the network namespace of who mounted it.
    let mounted = tempfile::tempdir().context("a folder to mount sysfs on")?;
    sys::mount_sysfs(mounted.path()).context("mounting its sysfs")?;
    let steered = steer(mounted.path(), cpu);
    sys::unmount(mounted.path()).context("unmounting its sysfs")?;
    steered
}

fn steer(sysfs: &Path, cpu: u32) -> anyhow::Result<()> {
    fs::write(sysfs.join(STEERING), mask(cpu)).context("receive packet steering of its loopback")
}

/// One CPU as sysfs writes sets of them: words of 32 bits, the highest first.
fn mask(cpu: u32) -> String {
    format!("{:x}{}", 1u32 << (cpu % 32), ",00000000".repeat((cpu / 32) as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let outside = place();
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
        assert_ne!(moved, Some(outside.clone()));
        assert_eq!(place(), outside);
    }
}
