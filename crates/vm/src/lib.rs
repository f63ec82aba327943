//! Boots a Linux kernel of Debian's under QEMU, with the /dev/poll module loaded and the host's
//! file tree visible, and runs one command in it.
//!
//! # How it works
//! 1. [`kernel`](KernelChoice): image, modules and headers come from the system if they are
//!    installed, otherwise from Debian's archive into the [`Cache`]. Nothing is installed.
//! 2. The module is built for that kernel, unless its sources are unchanged.
//! 3. An initramfs is written: a small static init (`guest/*.c`), the kernel's modules for virtio
//!    and 9p, our module, and `/pollux/config`, which contains the command.
//! 4. QEMU boots it, always emulated (TCG). init mounts the host's `/` by 9p, changes its root to
//!    it, and runs the command. Output and exit status return as frames over a virtio port; the serial
//!    console carries only the kernel's log.
//! 5. Every console line is checked: a kernel that reports a fault of its own fails the run, regardless
//!    of the command's result.
//!
//! A *sealed* guest ([`SealedGuest`]) is repeatable. Its memory contains the command and its files, and
//! its time of day and its random numbers are the same at each run. It sees the host's tree only
//! after the command has ended, to store the results.
//!
//! The guest is *not* a sandbox: its root user writes the host's files with this process's rights.

/// The README's example is compiled, too.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod apt;
mod cache;
mod console;
mod environment;
mod frame;
mod guest;
mod init;
mod initramfs;
mod kernel;
mod kmod;
mod modules;
mod process;
mod progress;
mod qemu;
mod release;
mod run;
mod sealed;
mod sys;

pub use cache::Cache;
pub use kernel::{KernelChoice, available as available_kernels};
pub use kmod::find_module;
pub use process::SignalError;
pub use qemu::{Forward, Mips};
pub use release::{InvalidRelease, Release};
pub use run::{Module, Options, Outcome, Streams, run, status};
pub use sealed::{GuestFile, REPORT_PORT, SealedGuest};
