//! Guests for tests, where they can run.

use std::process::{Command, Output};

/// Returns the command `pollux SUBCOMMAND ARGUMENTS`, which starts a guest.
pub(crate) fn pollux(subcommand: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pollux"));
    command.arg(subcommand).args(arguments);
    command
}

/// Returns the output of `command`, which ran in a guest and succeeded. Where no guest can run at all,
/// prints the reason and returns `None`.
pub(crate) fn success_of(command: &mut Command) -> Option<Output> {
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    let missing = ["is not installed", "Debian's archive", "downloading", "package lists"];
    if output.status.code() == Some(123)
        && missing.iter().any(|part| text.contains(part))
        && std::env::var_os("POLLUX_VM_REQUIRED").is_none()
    {
        eprintln!("skipped: {text}");
        return None;
    }
    assert!(output.status.success(), "{}: {text}", output.status);
    Some(output)
}
