//! `pollux password`: prints a line for the password file of `pollux serve --basic-auth`.

use crate::{print::print_all, usage::UsageError};
use anyhow::Context as _;
use pollux_server::config::{PASSWORD_BYTES_MAX, password_line};
use rustix::termios::{self, LocalModes, OptionalActions};
use std::{
    io::{self, BufRead as _, IsTerminal as _, Read as _},
    process::ExitCode,
};

/// The command's arguments.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pollux password alice >> users         asks on a terminal, without echo

Prints NAME:HASH with a bcrypt hash, as `htpasswd -nB` does. The password is
the first line of standard input; on the command line others could see it.")]
pub(crate) struct Args {
    /// Name of the user
    name: String,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let password = read_password().context("standard input")?;
    let line = password_line(&args.name, &password).map_err(UsageError::new)?;
    print_all(&format!("{line}\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Reads the first line of standard input; on a terminal, without echo.
fn read_password() -> anyhow::Result<String> {
    let input = io::stdin();
    let echo = if input.is_terminal() {
        let before = termios::tcgetattr(&input)?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        termios::tcsetattr(&input, OptionalActions::Flush, &silent)?;
        eprint!("Password: ");
        Some(before)
    } else {
        None
    };
    let mut line = String::new();
    // The limit leaves room for the line end and for one byte more, which shows that the password
    // is too long.
    let read = input.lock().take(PASSWORD_BYTES_MAX as u64 + 3).read_line(&mut line);
    if let Some(before) = echo {
        eprintln!();
        termios::tcsetattr(&input, OptionalActions::Flush, &before)?;
    }
    read?;
    Ok(line.trim_end_matches(['\r', '\n']).to_owned())
}
