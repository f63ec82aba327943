//! The binary `pollux`: parses the command line and hands over to the crates. It only wires.

// The arguments' documentation is their --help, where brackets mean "may be left out".
#![allow(rustdoc::broken_intra_doc_links)]

mod bytes;
mod command;
mod duration;
#[cfg(test)]
mod examples;

use clap::{Parser, Subcommand};
use std::{io::IsTerminal, process::ExitCode};

/// Holds very many mostly idle connections, and shows what waiting for them costs.
#[derive(Parser)]
#[command(name = "pollux", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the files below a directory over HTTP/1.1
    Serve(command::serve::Args),
    /// Drive a server with open-loop (or closed-loop) load
    Load(Box<command::load::Args>),
    /// Hold idle connections to a server, re-opening those that die
    Idle(command::idle::Args),
    /// Re-run the papers' experiments and judge their claims
    Lab(command::lab::Args),
    /// Tell which mechanisms this kernel offers, and what limits apply
    Doctor(command::doctor::Args),
    /// Run a command in a guest kernel that has /dev/poll
    Vm(command::vm::Args),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    init_messages();
    let outcome = match cli.command {
        Command::Serve(args) => command::serve::run(args),
        Command::Load(args) => command::load::run(*args),
        Command::Idle(args) => command::idle::run(args),
        Command::Lab(args) => command::lab::run(args),
        Command::Doctor(args) => command::doctor::run(args),
        Command::Vm(args) => command::vm::run(args),
    };
    outcome.unwrap_or_else(|error| {
        eprintln!("pollux: {error:#}");
        ExitCode::FAILURE
    })
}

/// Messages go to standard error; RUST_LOG chooses which (default: info).
fn init_messages() {
    let filter = tracing_subscriber::EnvFilter::builder()
        .with_default_directive(tracing::level_filters::LevelFilter::INFO.into())
        .from_env_lossy();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .with_target(false)
        .init();
}
