//! `pollux lab floor`.

use super::print_all;
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

It listens at a free port of 127.0.0.1, which it writes on standard output as
JSON, and makes three system calls a request: epoll_wait, recv, send; with
--threads the last two. With --tls it also opens a record and seals the answer.
Ctrl-C ends it.")]
pub(super) struct Args {
    /// The answer, its head and its content
    #[arg(value_name = "FILE", required_unless_present = "push")]
    reply: Option<PathBuf>,
    /// So many threads instead of epoll, each of which serves a connection to its end: what no
    /// server with a thread for each can do without
    #[arg(long, value_name = "N")]
    threads: Option<NonZeroU32>,
    /// TLS 1.3 under a certificate that signs itself: handshakes by rustls, then only the AEAD that
    /// `pollux serve` uses; the keys of every connection stay ready for use
    #[arg(long, conflicts_with_all = ["threads", "push"])]
    tls: bool,
    /// A push server instead: what is posted is sent to every connection that has made a GET, in a
    /// loop of send(2)
    #[arg(long, conflicts_with_all = ["reply", "threads"])]
    push: bool,
}

/// Serves until the process is ended.
pub(super) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let tell = |address: SocketAddr| {
        let addresses = [address.to_string()];
        let line = serde_json::json!({
            "event": "listening", "addresses": addresses, "mechanism": "floor",
        });
        print_all(&format!("{line}\n"))
    };
    let Some(reply) = &args.reply else { match floor::serve_push(tell)? {} };
    let bytes = fs::read(reply).with_context(|| reply.display().to_string())?;
    match args.threads {
        Some(threads) => match floor::serve_with_threads(&bytes, threads, tell)? {},
        None if args.tls => match floor::serve_tls(&bytes, tell)? {},
        None => match floor::serve(&bytes, tell)? {},
    }
}
