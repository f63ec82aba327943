//! Files that are pipes: a server that reads them has blocked its signals.

use super::{BINARY, INDEX, site};
use crate::tls::openssl;
use pollux_testkit::{ended_within, http::PATIENCE, serve::Serve};
use std::{
    fs,
    io::Read as _,
    path::Path,
    process::{Command, Stdio},
};

fn make_pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Regression: the server waited for a writer for ever, and only SIGKILL ended it.
#[test]
fn a_pipe_that_nobody_writes_is_an_error() {
    let site = site(0);
    let folder = site.path();
    make_pipe(&folder.join("pipe"));
    openssl(folder, "a", "localhost");
    fs::write(folder.join("include.toml"), "include = [\"pipe\"]\n").unwrap();
    fs::write(folder.join("secret"), "s".repeat(40)).unwrap();
    let tls = ["--tls-cert", "a.pem", "--tls-key", "a.key"];
    let hub = ["--hub", "--hub-anonymous"];
    let cases: [(&[&str], &[&str]); 13] = [
        (&[], &["--config", "pipe"]),
        (&[], &["--config", "include.toml"]),
        (&[], &["--tls-cert", "pipe", "--tls-key", "a.key"]),
        (&[], &["--tls-cert", "a.pem", "--tls-key", "pipe"]),
        (&tls, &["--tls-client-ca", "pipe"]),
        (&[], &["--origin", "https://localhost:1", "--origin-ca", "pipe"]),
        (&[], &["--basic-auth", "pipe"]),
        (&[], &["--guestbook", "--guestbook-template", "pipe", "--store", "file:book"]),
        (&[], &["--guestbook", "--store", "file:pipe"]),
        (&hub, &["--hub-jwt-key", "pipe"]),
        (&hub, &["--hub-jwt-key", "secret", "--hub-publisher-key", "pipe"]),
        (&hub, &["--hub-jwks", "pipe"]),
        (&["--hub", "--hub-anonymous", "--hub-publish-anonymous"], &["--hub-store", "file:pipe"]),
    ];
    for (before, arguments) in cases {
        let mut command = Command::new(BINARY);
        command.args(["serve", ".", "--listen", "127.0.0.1:0"]).args(before).args(arguments);
        command.current_dir(folder).stdin(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let status = ended_within(PATIENCE, &mut child);
        let _ = child.kill();
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        let status = status.unwrap_or_else(|| panic!("{arguments:?} blocks: {said}"));
        println!("{arguments:?}: {said}");
        // The stores take regular files only.
        let is_store = arguments.last() == Some(&"file:pipe");
        let reason = if is_store { "not a regular file" } else { "nothing is in this pipe" };
        assert!(!status.success() && said.contains(reason), "{arguments:?}: {said}");
    }
}

/// As with `--config <(command)`.
#[test]
fn a_pipe_that_a_process_writes_is_read() {
    let site = site(0);
    let script = "sleep 0.3; printf '[[site]]\\nroot = \"%s\"\\n' \"$1\"";
    let mut command = Command::new("bash");
    command.args([
        "-c",
        &format!("exec \"$0\" serve --json --listen 127.0.0.1:0 --config <({script})"),
    ]);
    command.arg(BINARY).arg(site.path());
    let server = Serve::start_command(command);
    assert_eq!(server.client().get("/").text(), INDEX);
}
