//! `pollux ctl`: manages a running server.

use super::control::{self, Client, ControlError};
use pollux_server::admin::{ControlEvent, ControlRequest};
use std::{
    io::{self, Write},
    path::PathBuf,
    process::ExitCode,
};

const EXAMPLES: &str = "\
Examples:
  pollux ctl reload --control /run/pollux/ctl     when files have changed
  pollux ctl upgrade --control /run/pollux/ctl    when the program has changed

The server has to run with `--control PATH`. Its signals SIGHUP and SIGUSR2 do
the same, but only these commands wait for the end and print what has changed,
or why nothing has.

Exit status: 0 when it was done, 1 when the server refused, with its reason on
standard error: then nothing has changed, except that the access log was opened
anew. It is also 1 if a worker does not confirm a reload in time, or if a log
cannot be opened anew; the message says what is done. 2 for a command line that
is not understood, 3 when no server answers.";

const RELOAD_EXAMPLES: &str = "\
Example:
  pollux ctl reload --control /run/pollux/ctl

Reads the file of --config, all files that it includes and the certificates
again, and opens the access log anew, as SIGHUP does. No connection is closed; a
request in progress ends under the former configuration. A configuration with a
fault is refused as a whole, and so is one with a change that a running server
cannot make: then use `pollux ctl upgrade`, or restart the server.

Prints what has changed, a line for each key: KEY: FORMER -> PRESENT.";

const UPGRADE_EXAMPLES: &str = "\
Example:
  pollux ctl upgrade --control /run/pollux/ctl

Starts the program file of the server anew, with the same arguments, and leaves
the service to the new process, as SIGUSR2 does. That reads its configuration
again: any key may have changed. It takes over the listening sockets, --control
and --admin, so that no client finds a closed port. The former process finishes
the requests in progress (`pollux serve --drain`) and ends.

If the new process cannot start, or is not ready within ten seconds, the running
one goes on as before, and the reason is printed here.

Needs a server with --architecture event.";

/// The command's arguments.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The server's control socket
    #[arg(long, value_name = "PATH", global = true)]
    control: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Read configuration and certificates again, and open the access log anew
    #[command(after_help = RELOAD_EXAMPLES)]
    Reload,
    /// Start a new version of the program, which takes over
    #[command(after_help = UPGRADE_EXAMPLES)]
    Upgrade,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    let request = match args.command {
        Command::Reload => ControlRequest::Reload {},
        Command::Upgrade => ControlRequest::Upgrade {},
    };
    let control = control::path_of(args.control)?;
    match manage(&control, &request) {
        Err(ControlError::Rejected(_, message)) => anyhow::bail!(message),
        outcome => control::exit_code(outcome),
    }
}

fn manage(control: &std::path::Path, request: &ControlRequest) -> Result<(), ControlError> {
    let mut client = Client::connect(control)?;
    client.send(request)?;
    let mut out = io::stdout().lock();
    loop {
        match client.event()?.1 {
            ControlEvent::End { count: 0 } => {
                return writeln!(out, "nothing has changed").map_err(ControlError::Output);
            }
            ControlEvent::End { .. } => return Ok(()),
            ControlEvent::Error { kind, message } => {
                return Err(ControlError::Rejected(kind, message));
            }
            ControlEvent::Change { change } => {
                writeln!(out, "{change}").map_err(ControlError::Output)?
            }
            _ => return Err(ControlError::Broken("it is about something else".into())),
        }
    }
}
