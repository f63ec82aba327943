//! An upgrade that does not succeed changes nothing.

use super::*;
use std::{io::Write, os::unix::fs::PermissionsExt, process::Stdio};

/// A command with which a script reports that it is ready to serve, as a new server does.
pub(super) const READY: &str = "printf 'PLXU\\0\\3\\3' >&$POLLUX_UPGRADE_FD";

pub(super) fn replace(program: &Path, script: &str) {
    fs::remove_file(program).unwrap();
    // Written by another process: a thread that forks in the meantime would keep the file open for
    // writing.
    let mut command = Command::new("sh");
    let command =
        command.args(["-c", "cat > \"$0\"; chmod 755 \"$0\""]).arg(program).stdin(Stdio::piped());
    let mut child = command.spawn().unwrap();
    write!(child.stdin.take().unwrap(), "#!/bin/bash\n{script}\n").unwrap();
    assert!(child.wait().unwrap().success());
    assert!(fs::metadata(program).unwrap().permissions().mode() & 0o111 != 0);
}

#[test]
fn a_successor_that_fails_changes_nothing() {
    let folder = Folder::new();
    folder.write("", "root = \"a\"\nheader = [\"X-Round: 0\"]");
    let program = own_program(&folder);
    let mut command = Command::new(&program);
    command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--config"]);
    command.arg(folder.config()).arg("--control").arg(folder.control());
    let mut server = Serve::start_command(command);
    let mut idle: Vec<_> = (0..50).map(|_| server.client()).collect();
    idle.iter_mut().for_each(|client| assert_eq!(round_of(client), 0));
    let load = Load::start(server.address());
    let mut fails = |expected: &[&str]| {
        let reason = refused(&folder.ctl("upgrade"));
        for part in expected {
            assert!(reason.contains(part), "{expected:?}: {reason}");
        }
        idle.iter_mut().for_each(|client| assert_eq!(round_of(client), 0));
        assert_eq!(round_of(&mut server.client()), 0);
    };
    // The new configuration cannot be used.
    folder.write("", "root = \"nowhere\"");
    fails(&["nowhere", "the new process has ended"]);
    folder.write("kep-alive = \"1s\"", "root = \"a\"");
    fails(&["pollux.toml:1", "keep-alive"]);
    folder.write("architecture = \"threaded\"", "root = \"a\"");
    fails(&["--architecture"]);
    folder.write("", "root = \"a\"\nheader = [\"X-Round: 0\"]");
    // The program is not Pollux.
    replace(&program, "exit 7");
    fails(&["the new process has ended (exit status: 7)"]);
    replace(&program, "printf garbage >&$POLLUX_UPGRADE_FD; sleep 1000");
    fails(&["no message of a live upgrade"]);
    replace(&program, "printf 'PLXU\\0\\4\\3' >&$POLLUX_UPGRADE_FD; sleep 1000");
    fails(&["version 4"]);
    // The program reports that it can serve, but accepts no connection.
    replace(&program, &format!("{READY}; sleep 0.2"));
    fails(&["worker 0"]);
    fs::remove_file(&program).unwrap();
    fails(&["cannot be started"]);
    assert!(load.end() > 0);
    // The next upgrade works again.
    fs::hard_link(BINARY, &program).or_else(|_| fs::copy(BINARY, &program).map(drop)).unwrap();
    assert!(handed_over(&printed(&folder.ctl("upgrade"))) >= 50);
    let process = successor(&mut server);
    idle.iter_mut().for_each(|client| assert_eq!(round_of(client), 0));
    end(vec![process]);
}

/// A successor does not trust the messages of the former server either.
#[test]
fn a_malformed_hand_over_ends_the_successor() {
    let folder = Folder::new();
    folder.write("", "root = \"a\"");
    for (text, expected) in [
        ("garbage", "no message of a live upgrade"),
        ("PLXU\\0\\3\\1\\377\\377\\377\\377", "listeners"),
        ("PLXU\\0\\3\\6", "does not belong here"),
        ("", "has closed the channel"),
    ] {
        // A pair of sockets that preserve message boundaries, like the server's.
        let script = "import os, socket, subprocess, sys
near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
near.send(sys.argv[1].encode().decode('unicode_escape').encode('latin-1'))
near.shutdown(socket.SHUT_WR)
environment = dict(os.environ, POLLUX_UPGRADE_FD=str(far.fileno()))
sys.exit(subprocess.run(sys.argv[2:], pass_fds=[far.fileno()], env=environment).returncode)";
        let octal = text.replace("\\377", "\\xff").replace("\\0", "\\x00");
        let octal = octal.replace("\\1", "\\x01");
        let octal = octal.replace("\\3", "\\x03").replace("\\6", "\\x06");
        let mut command = Command::new("timeout");
        command.args(["60", "python3", "-c", script, &octal, BINARY, "serve", "--config"]);
        let output = command.arg(folder.config()).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{text}: {error}");
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn architectures_that_cannot_say_so() {
    let folder = Folder::new();
    folder.write("", "root = \"a\"");
    for architecture in ["threaded", "preforked"] {
        let mut command = Command::new(BINARY);
        command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--config"]);
        command.arg(folder.config()).args(["--architecture", architecture]);
        let server = Serve::start_command(command);
        server.signal_and_wait(Signal::USR2);
        wait_until("the refusal", || server.said().contains("needs --architecture event"));
        assert_eq!(server.client().get("/").text(), "site a\n");
        server.stop();
    }
}
