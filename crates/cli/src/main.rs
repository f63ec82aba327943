//! The binary `pollux`: parses the command line and calls the other crates. It contains only glue
//! code.

// The arguments' documentation is their --help, in which brackets mean "optional".
#![allow(rustdoc::broken_intra_doc_links)]

mod bytes;
mod command;
mod duration;
#[cfg(test)]
mod examples;
#[cfg(test)]
mod help_tests;
mod hub_client;
mod message;
mod names;
mod print;
mod switches;
mod sys;
mod terminal;
mod usage;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser, Subcommand, error::ErrorKind};
use std::{
    io::{self, Write as _},
    process::ExitCode,
};
use switches::Switches;
use usage::UsageError;

/// The version, the commit, the profile and the target (build.rs).
const LONG_VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("POLLUX_BUILD"), ")");

const EXIT_STATUS: &str = "\
Exit status: 0 if the command succeeded, 1 if it failed, with the reason on
standard error; 2 for a command line that is not understood. The help of a
command (`pollux load --help`) lists its other statuses.

Colours are for terminals, and not under NO_COLOR, CLICOLOR=0 or TERM=dumb.
RUST_LOG=warn (or error, info, debug) chooses the messages.";

/// Holds very many mostly idle connections, and shows what waiting for them costs.
#[derive(Parser)]
#[command(
    name = "pollux",
    version,
    long_version = LONG_VERSION,
    propagate_version = true,
    max_term_width = terminal::WIDTH.into(),
    after_help = EXIT_STATUS
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve the files below a directory over HTTP/1.1
    Serve(Box<Switches<command::serve::Args>>),
    /// Check, show and describe configuration files
    Config(command::config::Args),
    /// Make a line for a password file of `pollux serve --basic-auth`
    Password(command::password::Args),
    /// Manage a running server: read its configuration again, upgrade it
    Ctl(command::ctl::Args),
    /// Look at what a running server has in its cache, and remove it
    Cache(command::cache::Args),
    /// Show what a running server does, live
    Top(command::top::Args),
    /// Publish updates at a hub
    Push(command::push::Args),
    /// Print the updates of a hub as they come
    Subscribe(command::subscribe::Args),
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
    /// Generate completions and man pages
    #[command(hide = true)]
    Generate(command::generate::Args),
}

/// Returns the arguments of `pollux serve` with which this process was started; `None` for another
/// command.
fn serve_args() -> Option<command::serve::Args> {
    match Cli::try_parse().ok()?.command {
        Command::Serve(args) => Some(args.0),
        _ => None,
    }
}

fn main() -> ExitCode {
    terminal::set_colours();
    let outcome = match Cli::try_parse() {
        Ok(cli) => {
            message::init();
            run(cli.command)
        }
        // For the parser a help and a version are errors, too, but they go to standard output.
        Err(text) if !text.use_stderr() => print_parsed(&text),
        Err(mistake) => mistake.exit(),
    };
    outcome.unwrap_or_else(|error| {
        if let Some(mistake) = error.downcast_ref::<UsageError>() {
            let text = terminal::for_stderr(&format!("error: {mistake}"));
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            clap::Error::raw(ErrorKind::ArgumentConflict, format!("{text}\n")).exit();
        }
        message::say(format_args!("{}", terminal::for_stderr(&format!("pollux: {error:#}"))));
        ExitCode::FAILURE
    })
}

/// Prints a help or a version. The parser's own `exit` would ignore a failed write.
///
/// # Errors
/// The write failed, and not because the reader has closed the pipe.
fn print_parsed(text: &clap::Error) -> anyhow::Result<ExitCode> {
    let printed = text.print().and_then(|()| io::stdout().flush());
    print::has_reader(printed).context("standard output")?;
    Ok(ExitCode::SUCCESS)
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Serve(args) => command::serve::run(args.0, serve_args),
        Command::Config(args) => command::config::run(args),
        Command::Password(args) => command::password::run(args),
        Command::Ctl(args) => command::ctl::run(args),
        Command::Cache(args) => command::cache::run(args),
        Command::Top(args) => command::top::run(args),
        Command::Push(args) => command::push::run(args),
        Command::Subscribe(args) => command::subscribe::run(args),
        Command::Load(args) => command::load::run(*args),
        Command::Idle(args) => command::idle::run(args),
        Command::Lab(args) => command::lab::run(args),
        Command::Doctor(args) => command::doctor::run(args),
        Command::Vm(args) => command::vm::run(args),
        Command::Generate(args) => command::generate::run(args, Cli::command()),
    }
}
