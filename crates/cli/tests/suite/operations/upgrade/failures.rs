//! Upgrades that do not succeed: the former process goes on serving.

use super::*;
use crate::operations::replacement::is_open;
use pollux_testkit::write_program;
use std::os::unix::net::UnixDatagram;

/// A command with which a script reports that it is ready to serve, as a new server does.
pub(super) const READY: &str = "printf 'PLXU\\0\\4\\3' >&$POLLUX_UPGRADE_FD";

/// The beginning of a script that receives the first message of idle connections from a server with
/// one worker. `accept()` answers it.
const RECEIVES_CONNECTIONS: &str = "exec python3 - <<'END'
import os, socket, time
server = socket.socket(fileno=int(os.environ['POLLUX_UPGRADE_FD']))
server.send(b'PLXU\\0\\4\\3')
CHANNEL = 5
while True:
    message, descriptors, *_ = socket.recv_fds(server, 65536, 253)
    if message[6] == CHANNEL:
        break
worker = socket.socket(fileno=descriptors[0])
message, descriptors, *_ = socket.recv_fds(worker, 65536, 253)
def accept():
    worker.send(b'PLXU\\0\\4\\x08' + len(descriptors).to_bytes(2, 'big'))
";

/// Replaces the program by a script for bash.
pub(crate) fn replace(program: &Path, script: &str) {
    fs::remove_file(program).unwrap();
    write_program(program, &format!("#!/bin/bash\n{script}\n"));
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
    let mut idle = idle_clients(&server, 50, 0);
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
    replace(&program, "printf 'PLXU\\0\\5\\3' >&$POLLUX_UPGRADE_FD; sleep 1000");
    fails(&["version 5"]);
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

/// Regression: the workers never accepted again, and the service manager regarded the process that had
/// ended as the main process.
#[test]
fn a_successor_that_ends_before_it_is_confirmed_leaves_the_service_here() {
    let folder = Folder::new();
    folder.write("workers = 1", "root = \"a\"\nheader = [\"X-Round: 0\"]");
    let program = own_program(&folder);
    let notify = folder.0.path().join("notify");
    let manager = UnixDatagram::bind(&notify).unwrap();
    manager.set_nonblocking(true).unwrap();
    let mut command = Command::new(&program);
    command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--config"]);
    command.arg(folder.config()).arg("--control").arg(folder.control());
    command.env("NOTIFY_SOCKET", &notify);
    let server = Serve::start_command(command);
    let mut lost = server.client();
    assert_eq!(round_of(&mut lost), 0);
    // The channel on which the confirmation would arrive is closed first.
    let script = format!("{RECEIVES_CONNECTIONS}server.close()\naccept()\ntime.sleep(1000)\nEND");
    replace(&program, &script);
    let reason = refused(&folder.ctl("upgrade"));
    assert!(reason.contains("the channel of the upgrade"), "{reason}");
    // The successor had accepted this connection.
    assert_eq!(lost.read_to_end_or_reset(), b"");
    let mut kept = server.client();
    assert_eq!(round_of(&mut kept), 0);
    let mut buffer = [0; 1024];
    while let Ok(count) = manager.recv(&mut buffer) {
        let message = String::from_utf8_lossy(&buffer[..count]);
        assert!(!message.contains("MAINPID="), "{message}");
    }
    server.stop();
}

/// The successor accepts one message of connections, and ends.
#[test]
fn a_successor_that_ends_half_way_loses_only_the_connections_that_it_has_accepted() {
    /// The number of connections in a message.
    const ACCEPTED: usize = 253;
    limits::raise_descriptor_limit();
    let folder = Folder::new();
    folder.write("workers = 1", "root = \"a\"\nheader = [\"X-Round: 0\"]");
    let program = own_program(&folder);
    let mut command = Command::new(&program);
    command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--config"]);
    command.arg(folder.config()).arg("--control").arg(folder.control());
    let server = Serve::start_command(command);
    let mut idle: Vec<_> = (0..3 * ACCEPTED).map(|_| server.client()).collect();
    idle.iter_mut().for_each(|client| assert_eq!(round_of(client), 0));
    replace(&program, &format!("{RECEIVES_CONNECTIONS}accept()\nEND"));
    let reason = refused(&folder.ctl("upgrade"));
    assert!(reason.contains("worker 0"), "{reason}");
    idle.retain(is_open);
    assert_eq!(idle.len(), 2 * ACCEPTED);
    idle.iter_mut().for_each(|client| assert_eq!(round_of(client), 0));
    assert_eq!(round_of(&mut server.client()), 0);
    server.stop();
}

/// A successor does not trust the messages of the former server either.
#[test]
fn a_malformed_hand_over_ends_the_successor() {
    let folder = Folder::new();
    folder.write("", "root = \"a\"");
    for (text, expected) in [
        ("garbage", "no message of a live upgrade"),
        ("PLXU\\0\\4\\1\\377\\377\\377\\377", "listeners"),
        ("PLXU\\0\\4\\6", "does not belong here"),
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
        let octal = octal.replace("\\1", "\\x01").replace("\\4", "\\x04");
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
        wait_until("the refusal", || server.stderr_text().contains("needs --architecture event"));
        assert_eq!(server.client().get("/").text(), "site a\n");
        server.stop();
    }
}

/// Regression: the reason was that the address is in use, namely by the server that was to be succeeded.
#[test]
fn another_architecture_is_the_reason_and_not_an_address_in_use() {
    let folder = Folder::new();
    let unix = folder.0.path().join("listener");
    let write = |architecture: &str| {
        let listen = format!("listen = [\"127.0.0.1:0\", \"unix:{}\"]", unix.display());
        folder.write(&format!("{listen}\narchitecture = \"{architecture}\""), "root = \"a\"");
    };
    write("event");
    let mut command = Command::new(BINARY);
    command.args(["serve", "--json", "--config"]).arg(folder.config());
    command.arg("--control").arg(folder.control());
    let server = Serve::start_command(command);
    write("threaded");
    let reason = refused(&folder.ctl("upgrade"));
    assert!(reason.contains("--architecture threaded: an upgrade without a gap"), "{reason}");
    // The socket's path may come first.
    let addresses = server.listening()["addresses"].as_array().unwrap().iter();
    let mut tcp = addresses.filter_map(|address| address.as_str()).filter(|a| !a.contains('/'));
    assert_eq!(Client::connect(tcp.next().unwrap()).get("/").text(), "site a\n");
    server.stop();
}
