//! `--user`: files and ports that root opens, and the rights that remain afterwards. Only root can
//! test this.

use super::{BINARY, INDEX, serve, site};
use crate::users::{USER, number_of_user};
use pollux_testkit::{serve::Serve, threads::fields};
use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::Path,
    process::Command,
};
use tempfile::TempDir;

/// Creates a site that every user can read.
fn open_site() -> TempDir {
    let site = site(0);
    fs::set_permissions(site.path(), fs::Permissions::from_mode(0o755)).unwrap();
    site
}

fn children(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    children.split_whitespace().map(|child| child.parse().unwrap()).collect()
}

fn assert_has_no_rights(pid: u32, user: u32) {
    let number = user.to_string();
    let nothing = "0".repeat(16);
    for field in ["Uid:", "CapPrm:", "CapEff:", "CapInh:", "CapBnd:", "CapAmb:", "NoNewPrivs:"] {
        let wanted = match field {
            "Uid:" => [&*number; 4].join(" "),
            "NoNewPrivs:" => "1".to_owned(),
            _ => nothing.clone(),
        };
        let threads = fields(pid, field);
        assert!(threads.iter().all(|thread| *thread == wanted), "{field} {threads:?}");
    }
    let roots_groups =
        fields(pid, "Groups:").iter().any(|all| all.split(' ').any(|one| one == "0"));
    assert!(!roots_groups, "{:?}", fields(pid, "Groups:"));
}

#[test]
fn ports_and_log_are_roots_and_every_thread_is_the_users() {
    let Some(user) = number_of_user() else { return };
    for architecture in [
        &["--workers", "3"][..],
        &["--architecture", "prethreaded", "--pool", "3", "--accept", "reuseport"],
        &["--architecture", "preforked", "--pool", "3"],
        &["--architecture", "threaded"],
    ] {
        let (site, private) = (open_site(), tempfile::tempdir().unwrap());
        let log = private.path().join("log");
        let has_processes = architecture.contains(&"preforked");
        if has_processes {
            fs::set_permissions(private.path(), fs::Permissions::from_mode(0o755)).unwrap();
        }
        // An address of the loopback network that no other test listens on.
        let mut command = Command::new(BINARY);
        command.arg("serve").arg(site.path());
        command.args(["--json", "--listen", "127.0.71.33:81", "--user", USER, "--access-log"]);
        command.arg(&log).args(architecture);
        let mut server = Serve::start_command(command);
        assert_eq!(server.address(), "127.0.71.33:81");
        assert_eq!(server.client().get("/").text(), INDEX, "{architecture:?}");
        assert_has_no_rights(server.pid(), user);
        for child in children(server.pid()) {
            assert_has_no_rights(child, user);
        }
        assert_eq!(fs::metadata(&log).unwrap().uid(), user);
        assert!(!server.stderr_text().contains("root"), "{}", server.stderr_text());
        server.signal(rustix::process::Signal::TERM);
        server.wait();
        assert!(fs::read_to_string(&log).unwrap().contains("GET / HTTP/1.1"), "{architecture:?}");
    }
}

/// Regression: a server that already ran as the user kept the capabilities that it was started with,
/// as `AmbientCapabilities=` of systemd gives them, and said that it had none.
#[test]
fn a_server_that_is_the_user_already_gives_up_its_capabilities() {
    let Some(user) = number_of_user() else { return };
    let site = open_site();
    // The user must be able to execute the program.
    let program = site.path().join("pollux");
    fs::hard_link(BINARY, &program).or_else(|_| fs::copy(BINARY, &program).map(drop)).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid", USER, "--clear-groups", "--inh-caps=+net_bind_service"]);
    command.args(["--ambient-caps=+net_bind_service", program.to_str().unwrap(), "serve"]);
    command.arg(site.path()).args(["--json", "--listen", "127.0.71.36:81", "--user", USER]);
    let server = Serve::start_command(command);
    assert_eq!(server.client().get("/").text(), INDEX);
    let number = user.to_string();
    assert!(fields(server.pid(), "Uid:").iter().all(|ids| *ids == [&*number; 4].join(" ")));
    for field in ["CapPrm:", "CapEff:", "CapInh:", "CapAmb:"] {
        let threads = fields(server.pid(), field);
        assert!(threads.iter().all(|thread| *thread == "0".repeat(16)), "{field} {threads:?}");
    }
    assert!(server.stop().0.success());
}

#[test]
fn root_without_a_user_is_warned_and_serves() {
    if number_of_user().is_none() {
        return;
    }
    let site = site(0);
    let server = serve(site.path(), &[]);
    assert_eq!(server.client().get("/").text(), INDEX);
    let said = server.stderr_text();
    assert_eq!(said.matches("runs as root").count(), 1, "{said}");
    assert!(said.contains("--user NAME"), "{said}");
}

/// The capabilities that a server needs which stays root, as a bit set: CAP_DAC_OVERRIDE,
/// CAP_DAC_READ_SEARCH and CAP_FOWNER.
const NEEDED_BY_ROOT: u64 = 0b1110;

/// Regression: a server in the sandbox kept all capabilities if it stayed root.
#[test]
fn root_without_a_user_keeps_only_the_capabilities_for_files() {
    if number_of_user().is_none() || !super::sandbox::is_possible() {
        return;
    }
    let bits = |text: &str| u64::from_str_radix(text, 16).unwrap();
    for architecture in ["event", "prethreaded", "preforked"] {
        // Only its owner and root may read this site.
        let site = site(0);
        fs::set_permissions(site.path(), fs::Permissions::from_mode(0o700)).unwrap();
        std::os::unix::fs::chown(site.path(), number_of_user(), None).unwrap();
        let mut command = Command::new(BINARY);
        command.arg("serve").arg(site.path()).args(["--architecture", architecture, "--json"]);
        command.args(["--listen", "127.0.71.37:81", "--sandbox", "kill"]);
        let server = Serve::start_command(command);
        assert_eq!(server.client().get("/").text(), INDEX, "{architecture}");
        let mut processes = vec![server.pid()];
        // The launcher of upgrades keeps all capabilities.
        if architecture == "preforked" {
            processes.extend(children(server.pid()));
            assert!(processes.len() > 1);
        }
        for process in processes {
            for (field, needed) in [
                ("CapPrm:", NEEDED_BY_ROOT),
                ("CapEff:", NEEDED_BY_ROOT),
                ("CapBnd:", NEEDED_BY_ROOT),
                ("CapInh:", 0),
                ("CapAmb:", 0),
            ] {
                // In a container root may have fewer.
                let expected = bits(&fields(std::process::id(), field)[0]) & needed;
                for thread in fields(process, field) {
                    assert_eq!(bits(&thread), expected, "{architecture}: {field}");
                }
            }
        }
        let said = server.stderr_text();
        assert!(said.contains("capabilities: CAP_DAC_OVERRIDE, "), "{said}");
        assert_eq!(server.listening()["sandbox"]["capabilities"][0], "CAP_DAC_OVERRIDE");
        assert!(server.stop().0.success(), "{architecture}");
    }
}

#[test]
fn a_user_that_cannot_be_had_ends_the_start() {
    let site = site(0);
    let fails = |path: &Path, user: &str| {
        let mut command = Command::new("timeout");
        command.args(["60", BINARY, "serve"]).arg(path);
        let output = command.args(["--listen", "127.0.0.1:0", "--user", user]).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let said = fails(site.path(), "no-such-user");
    assert!(said.contains("there is no user no-such-user"), "{said}");
    // Regression: the server said "user root without capabilities" and kept all of them.
    for root in ["root", "0"] {
        let said = fails(site.path(), root);
        assert!(said.contains("this is root"), "{said}");
    }
    let said = fails(site.path(), ":adm");
    assert!(said.contains("NAME:GROUP"), "{said}");
}
