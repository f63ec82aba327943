//! Scripts that stand in for programs.

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

/// Writes a script that can be run at once.
pub fn write_program(path: &Path, script: &str) {
    // Written by another process: a thread that forks in the meantime would keep the file open for
    // writing, and such a file cannot be run (ETXTBSY, execve(2)).
    let mut command = Command::new("sh");
    command.args(["-c", "cat >\"$0\" && chmod 755 \"$0\""]).arg(path).stdin(Stdio::piped());
    let mut child = command.spawn().expect("a shell");
    let mut input = child.stdin.take().expect("it has a pipe");
    input.write_all(script.as_bytes()).expect("the shell reads the script");
    drop(input);
    assert!(child.wait().expect("it ends").success(), "{} cannot be written", path.display());
}
