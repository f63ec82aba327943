//! A successor has no more rights than the server that it succeeds. Only root can test this.

use super::*;
use crate::users::{USER, number_of_user};
use pollux_testkit::threads::fields;
use std::os::unix::fs::{PermissionsExt, chown};

/// Creates a directory, and a server program in it, that belong to the user.
fn folder_of(user: u32) -> (Folder, PathBuf) {
    let folder = Folder::new();
    fs::set_permissions(folder.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
    chown(folder.0.path(), Some(user), None).unwrap();
    let program = own_program(&folder);
    (folder, program)
}

fn start(program: &Path, folder: &Folder, arguments: &[&str]) -> Serve {
    let mut command = Command::new(program);
    command.args(["serve", "--json", "--config"]).arg(folder.config());
    command.arg("--control").arg(folder.control()).args(arguments);
    Serve::start_command(command)
}

fn assert_is(user: u32, process: u32) {
    let numbers = [user; 4].map(|number| number.to_string()).join(" ");
    for (name, wanted) in [("Uid:", &*numbers), ("CapEff:", &"0".repeat(16)), ("NoNewPrivs:", "1")]
    {
        let threads = fields(process, name);
        assert!(threads.iter().all(|thread| thread == wanted), "{name} {threads:?}");
    }
}

/// The test includes a port that only root can bind.
#[test]
fn a_successor_is_the_same_user() {
    let Some(user) = number_of_user() else { return };
    let (folder, program) = folder_of(user);
    folder.write("keep-alive = \"10m\"", "root = \"a\"\nheader = [\"X-Round: 0\"]");
    let log = folder.0.path().join("log").display().to_string();
    // An address of the loopback network that no other test listens on.
    let address = ["--listen", "127.0.71.34:82", "--workers", "2", "--access-log", &log];
    let mut server = start(&program, &folder, &[&address[..], &["--user", USER]].concat());
    assert_is(user, server.pid());
    let mut idle = idle_clients(&server, 300, 0);
    let mut processes = Vec::new();
    for round in 1..=2 {
        let site = format!("root = \"a\"\nheader = [\"X-Round: {round}\"]");
        folder.write("keep-alive = \"10m\"", &site);
        assert_eq!(handed_over(&printed(&folder.ctl("upgrade"))), idle.len());
        let process = successor(&mut server);
        assert_is(user, process.pid());
        idle.iter_mut().for_each(|client| assert_eq!(round_of(client), round));
        assert_eq!(round_of(&mut Client::connect("127.0.71.34:82")), round);
        processes.push(process);
    }
    // The successor cannot bind this address, so the upgrade is refused and the running server
    // continues.
    folder.write("admin = \"127.0.71.34:83\"", "root = \"a\"");
    assert!(refused(&folder.ctl("upgrade")).contains("127.0.71.34:83"));
    idle.iter_mut().for_each(|client| assert_eq!(round_of(client), 2));
    end(processes);
}

/// The successor takes over the listeners of a server that runs as root, and does not bind them again.
#[test]
fn an_upgrade_may_give_rights_up() {
    let Some(user) = number_of_user() else { return };
    let (folder, program) = folder_of(user);
    let site = "root = \"a\"\nheader = [\"X-Round: 0\"]";
    let listeners = "listen = [\"127.0.71.35:82\"]\nadmin = \"127.0.71.35:83\"\nworkers = 2";
    folder.write(listeners, site);
    let mut server = start(&program, &folder, &[]);
    let mut client = server.client();
    assert_eq!(round_of(&mut client), 0);
    folder.write(&format!("{listeners}\nuser = \"{USER}\""), site);
    assert_eq!(handed_over(&printed(&folder.ctl("upgrade"))), 1);
    let process = successor(&mut server);
    assert_is(user, process.pid());
    assert_eq!(round_of(&mut client), 0);
    assert_eq!(round_of(&mut server.client()), 0);
    end(vec![process]);
}

/// A server that stays root gives up the right to bind its ports, too. Its successor has it.
#[test]
fn a_successor_of_root_may_bind_other_ports() {
    if number_of_user().is_none() || !crate::serve::sandbox::is_possible() {
        return;
    }
    let folder = Folder::new();
    let program = own_program(&folder);
    let site = "root = \"a\"\nheader = [\"X-Round: 0\"]";
    folder.write("listen = [\"127.0.71.38:82\"]", site);
    let mut server = start(&program, &folder, &[]);
    let mut client = server.client();
    assert_eq!(round_of(&mut client), 0);
    folder.write("listen = [\"127.0.71.38:82\", \"127.0.71.38:83\"]", site);
    assert_eq!(handed_over(&printed(&folder.ctl("upgrade"))), 1);
    let process = successor(&mut server);
    assert_eq!(round_of(&mut Client::connect("127.0.71.38:83")), 0);
    for thread in fields(process.pid(), "CapEff:") {
        let has_net_bind_service = u64::from_str_radix(&thread, 16).unwrap() & 1 << 10 != 0;
        assert!(!has_net_bind_service, "{thread}");
    }
    end(vec![process]);
}
