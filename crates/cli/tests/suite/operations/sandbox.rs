//! Reload and upgrade of a server in a sandbox.

use super::*;
use crate::serve::sandbox::is_possible;
use pollux_testkit::{origin::Origin, serve::Process};

/// LANDLOCK_MAX_NUM_LAYERS of the kernel is 16.
const UPGRADES: usize = 18;

/// Starts an origin whose responses are `from`.
fn origin() -> Origin {
    Origin::start(|request| request.say("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nfrom"))
}

/// Creates a root directory with this name and index. It is not in the directory of the configuration
/// file, which the server may read completely.
fn root_of(sites: &tempfile::TempDir, (name, index): (&str, &str)) -> PathBuf {
    let root = sites.path().join(name);
    fs::create_dir(&root).unwrap();
    fs::write(root.join("index.html"), index).unwrap();
    root
}

/// With the default sandbox, a proxy may get other origins without an upgrade, and each server another
/// site below /srv.
#[test]
fn by_default_a_reload_has_room() {
    if !is_possible() {
        return;
    }
    let (first, second) = (origin(), origin());
    let (folder, sites) = (Folder::new(), tempfile::tempdir().unwrap());
    let [one, two] =
        [("one", "site one\n"), ("two", "site two\n")].map(|site| root_of(&sites, site));
    let site = |root: &Path, origin: &Origin| {
        format!("root = \"{}\"\norigin = [\"/o={}\"]", root.display(), origin.url())
    };
    folder.write("", &site(&one, &first));
    let server = folder.serve(&[]);
    assert_eq!(server.listening()["sandbox"]["seccomp"], "log");
    let mut client = server.client();
    assert_answers(&mut client, "site one\n");
    folder.write("", &format!("{}\nheader = [\"X-Is: new\"]", site(&one, &second)));
    printed(&folder.ctl("reload"));
    let reply = client.get("/o");
    assert_eq!((reply.text().as_str(), reply.field("x-is")), ("from", Some("new")));
    // Other directories than those for sites may hold anything.
    for root in [two.as_path(), Path::new("/etc/ssl")] {
        folder.write("", &site(root, &second));
        assert!(refused(&folder.ctl("reload")).contains("pollux ctl upgrade"));
        assert_answers(&mut client, "site one\n");
    }
    match tempfile::tempdir_in("/srv") {
        Ok(data) => {
            folder.write("", &site(&root_of(&data, ("three", "site three\n")), &second));
            printed(&folder.ctl("reload"));
            assert_answers(&mut client, "site three\n");
        }
        Err(error) => eprintln!("skipped: a site below /srv: {error}"),
    }
}

/// Regression: the message about a file of another folder did not say that an upgrade reads it.
#[test]
fn an_include_of_another_folder_needs_an_upgrade() {
    if !is_possible() {
        return;
    }
    let (folder, other) = (Folder::new(), tempfile::tempdir().unwrap());
    folder.write("", "root = \"a\"");
    let mut server = folder.serve(&[]);
    let mut client = server.client();
    assert_answers(&mut client, "site a\n");
    fs::write(other.path().join("more.toml"), "max-requests = 1000\n").unwrap();
    for name in ["more.toml", "*.toml"] {
        let include = format!("include = [\"{}\"]", other.path().join(name).display());
        folder.write(&include, "root = \"a\"");
        let reason = refused(&folder.ctl("reload"));
        assert!(reason.contains("pollux ctl upgrade"), "{reason}");
        assert_answers(&mut client, "site a\n");
    }
    printed(&folder.ctl("upgrade"));
    let process = server.next_process();
    assert_answers(&mut client, "site a\n");
    process.signal(rustix::process::Signal::TERM);
    process.wait();
}

/// Regression: the first file in a folder of `include` needed an upgrade, further ones did not.
#[test]
fn an_empty_folder_of_include_may_be_filled() {
    if !is_possible() {
        return;
    }
    let (folder, other) = (Folder::new(), tempfile::tempdir().unwrap());
    folder.write(&format!("include = [\"{}/*.toml\"]", other.path().display()), "root = \"a\"");
    let server = folder.serve(&[]);
    fs::write(other.path().join("more.toml"), "max-requests = 1000\n").unwrap();
    assert!(printed(&folder.ctl("reload")).contains("max-requests"));
    assert!(server.stop().0.success());
}

/// A server that connects to no other one gets no right to do so.
#[test]
fn by_default_the_first_origin_needs_an_upgrade() {
    if !is_possible() {
        return;
    }
    let origin = origin();
    let folder = Folder::new();
    folder.write("", "root = \"a\"");
    let mut server = folder.serve(&[]);
    let mut client = server.client();
    assert_answers(&mut client, "site a\n");
    folder.write("", &format!("root = \"a\"\norigin = [\"/o={}\"]", origin.url()));
    let reason = refused(&folder.ctl("reload"));
    assert!(reason.contains("port ") && reason.contains("pollux ctl upgrade"), "{reason}");
    printed(&folder.ctl("upgrade"));
    let process = server.next_process();
    assert_eq!(client.get("/o").text(), "from");
    process.signal(rustix::process::Signal::TERM);
    process.wait();
}

/// A reload refuses a configuration that the sandbox does not allow; an upgrade accepts it, because
/// the successor is started outside the sandbox.
#[test]
fn a_reload_stays_inside_and_an_upgrade_may_leave() {
    if !is_possible() {
        return;
    }
    let origin = origin();
    let (folder, sites) = (Folder::new(), tempfile::tempdir().unwrap());
    let [one, two] = [("one", "site a\n"), ("two", "site a\n")].map(|site| root_of(&sites, site));
    let root = |path: &Path| format!("root = \"{}\"", path.display());
    let with_origin = format!("{}\norigin = [\"/o={}\"]", root(&one), origin.url());
    folder.write("sandbox = \"kill\"", &root(&one));
    let mut server = folder.serve(&["--workers", "2"]);
    assert_eq!(server.listening()["sandbox"]["seccomp"], "kill");
    let mut idle: Vec<_> = (0..50).map(|_| server.client()).collect();
    idle.iter_mut().for_each(|client| assert_answers(client, "site a\n"));
    folder.write("sandbox = \"kill\"\nkeep-alive = \"100s\"", &root(&one));
    assert!(printed(&folder.ctl("reload")).contains("keep-alive"));

    for (site, part) in [(root(&two), two.to_str().unwrap()), (with_origin.clone(), "port ")] {
        folder.write("sandbox = \"kill\"", &site);
        let reason = refused(&folder.ctl("reload"));
        assert!(reason.contains(part) && reason.contains("pollux ctl upgrade"), "{reason}");
    }
    // A directory that was renamed to the name of the site's directory is another directory, too.
    fs::rename(&one, sites.path().join("old")).unwrap();
    fs::rename(&two, &one).unwrap();
    folder.write("sandbox = \"kill\"\nkeep-alive = \"90s\"", &root(&one));
    assert!(refused(&folder.ctl("reload")).contains("pollux ctl upgrade"));
    idle.iter_mut().for_each(|client| assert_answers(client, "site a\n"));

    // More upgrades than the kernel allows nested domains.
    let mut processes = Vec::new();
    for round in 0..UPGRADES {
        folder.write("sandbox = \"kill\"", &with_origin);
        let text = printed(&folder.ctl("upgrade"));
        assert!(text.contains("idle connections handed over: 50"), "{round}: {text}");
        let process = server.next_process();
        assert_eq!(process.listening()["sandbox"]["seccomp"], "kill");
        processes.push(process);
    }
    idle.iter_mut().for_each(|client| assert_answers(client, "site a\n"));
    assert_eq!(server.client().get("/o").text(), "from");
    // A successor that cannot start is reported, and nothing changes.
    folder.write("sandbox = \"kill\"", "root = \"nowhere\"");
    assert!(refused(&folder.ctl("upgrade")).contains("nowhere"));
    idle.iter_mut().for_each(|client| assert_answers(client, "site a\n"));
    processes.last().unwrap().signal(rustix::process::Signal::TERM);
    processes.iter().for_each(Process::wait);
}
