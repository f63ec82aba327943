//! `pollux doctor`.

use pollux_lab::doctor::{Facts, Report, Style};
use std::{
    io::{IsTerminal, Write as _},
    process::ExitCode,
};

/// The widest text; longer lines are hard to read.
const MAX_WIDTH: u16 = 100;

/// The command's arguments.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pollux doctor                 what this kernel offers, what its limits allow, what to do
  pollux doctor --json | jq '.mechanisms[] | select(.available) | .name'")]
pub(crate) struct Args {
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let report = Report::of(&Facts::look()?);
    let mut out = std::io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &report)?;
        writeln!(out)?;
    } else {
        let colour = out.is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        let width = super::lab::terminal_width().unwrap_or(MAX_WIDTH).min(MAX_WIDTH);
        out.write_all(report.text(Style { colour, width: width.into() }).as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}
