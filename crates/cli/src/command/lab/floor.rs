//! `pollux lab floor`.

use crate::print::print_all;
use anyhow::Context as _;
use pollux_lab::floor;
use std::{fs, net::SocketAddr, num::NonZeroU32, path::PathBuf, process::ExitCode};

/// The command's arguments.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pollux lab floor reply.http
  pollux lab floor --tls reply.http
  pollux lab floor --threads 64 reply.http
  pollux lab floor --push
  pollux lab floor --push --uring

The floor listens at a free port of 127.0.0.1 and prints the address as JSON on
standard output. It makes three system calls for a request: epoll_wait, recv and
send; with --threads only recv and send. With --tls it also decrypts a record
and encrypts the reply. Ctrl-C ends it.")]
pub(super) struct Args {
    /// The reply, head and content
    #[arg(value_name = "FILE", required_unless_present = "push")]
    reply: Option<PathBuf>,
    /// Use N threads instead of epoll. Each serves one connection to its end: the least work of a server
    /// with a thread for each connection
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroU32>,
    /// TLS 1.3 with a self-signed certificate: handshakes by rustls, then only the AEAD that `pollux
    /// serve` uses; the keys of every connection stay ready for use
    #[arg(long, conflicts_with_all = ["threads", "push"])]
    tls: bool,
    /// Run a push server instead: the content of a POST is sent to every connection that has made a GET,
    /// in a loop of send(2)
    #[arg(long, conflicts_with_all = ["reply", "threads"])]
    push: bool,
    /// With --push: send through io_uring, to 256 connections with one system call
    #[arg(long, requires = "push")]
    uring: bool,
    /// With --push: listen at this port of 127.0.0.1 as well. Several processes may share the port: the kernel
    /// distributes subscribers among them
    #[arg(long, value_name = "PORT", requires = "push")]
    shared_port: Option<u16>,
}

/// Serves until the process ends.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let announce = |address: SocketAddr| {
        let addresses = [address.to_string()];
        let line = serde_json::json!({
            "event": "listening", "addresses": addresses, "mechanism": "floor",
        });
        print_all(&format!("{line}\n"))
    };
    let Some(reply) = &args.reply else {
        let sending = if args.uring { floor::Sending::Ring } else { floor::Sending::Loop };
        match floor::serve_push(sending, args.shared_port, announce)? {}
    };
    let bytes = fs::read(reply).with_context(|| reply.display().to_string())?;
    match args.threads {
        Some(threads) => match floor::serve_with_threads(&bytes, threads, announce)? {},
        None if args.tls => match floor::serve_tls(&bytes, announce)? {},
        None => match floor::serve(&bytes, announce)? {},
    }
}
