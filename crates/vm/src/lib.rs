//! Boots a Linux kernel of Debian's under QEMU, with the /dev/poll module loaded and the host's
//! file tree visible, and runs one command in it.
//!
//! # How it works
//! 1. [`kernel`](KernelChoice): image, modules and headers come from the system if they are
//!    installed, else from Debian's archive into the [`Cache`]; nothing is installed.
//! 2. The module is built for that kernel, again only when its sources have changed.
//! 3. An initramfs is written: a small static init (`guest/*.c`), the kernel's modules for virtio
//!    and 9p, ours, and `/pollux/config`, which holds the command.
//! 4. QEMU boots it, always emulated (TCG). init mounts the host's `/` by 9p, changes its root
//!    to it, and runs the command. Output and exit status come back as frames over a virtio port;
//!    the serial console carries the kernel's log and nothing else.
//! 5. Every console line is judged: a kernel that complains about itself fails the run, whatever
//!    the command said.
//!
//! A *sealed* guest ([`Sealed`]) repeats: it has the command and its files in its memory, its time of day
//! and its random numbers are the same at each run, and it sees the host's tree when the command has
//! ended, to put its results there.
//!
//! The guest is *not* a sandbox: its root user writes the host's files with this process's rights.

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
pub use kernel::{Choice as KernelChoice, available as available_kernels};
pub use kmod::find_module;
pub use process::Interrupted;
pub use qemu::{Forward, Mips};
pub use release::{InvalidRelease, Release};
pub use run::{Module, Options, Outcome, Streams, run, status};
pub use sealed::{GuestFile, Sealed};
