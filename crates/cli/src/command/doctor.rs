//! `pollux doctor`.

use crate::{print::print_all, terminal};
use pollux_lab::doctor::{Facts, Report, Style};
use std::process::ExitCode;

/// The maximum width of the text, because longer lines are hard to read.
const MAX_WIDTH: u16 = 100;

/// The command's arguments.
#[derive(clap::Args)]
#[command(after_help = "Examples:
  pollux doctor                 what works here, what does not, and what to do
  pollux doctor --json | jq '.mechanisms[] | select(.available) | .name'")]
pub(crate) struct Args {
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let report = Report::of(&Facts::look()?);
    let text = if args.json {
        serde_json::to_string_pretty(&report)? + "\n"
    } else {
        let colour = terminal::has_colours(&std::io::stdout());
        let width = terminal::width().min(MAX_WIDTH);
        report.text(Style { colour, width: width.into() })
    };
    print_all(&text)?;
    Ok(ExitCode::SUCCESS)
}
