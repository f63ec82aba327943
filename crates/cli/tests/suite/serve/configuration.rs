//! Configuration files: `--config`, `pollux config`, several sites.

use super::{BINARY, INDEX, site};
use pollux_testkit::serve::Serve;
use std::{fs, path::Path, process::Command};

/// Runs `pollux config` with these arguments; returns its status and its output on both descriptors.
fn config(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(BINARY).arg("config").args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

#[test]
fn the_examples_have_no_faults() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/config");
    let mut count = 0;
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|end| end == "toml") {
            let (status, text) = config(&["check", path.to_str().unwrap()]);
            assert_eq!(status, Some(0), "{}: {text}", path.display());
            count += 1;
        }
    }
    assert!(count >= 5, "only {count} examples");
}

#[test]
fn a_fault_is_shown_with_its_place_and_flags_win_over_the_file() {
    let directory = site(0);
    let path = directory.path().join("p.toml");
    let name = path.to_str().unwrap();
    fs::write(&path, "workers = 2\nmax-conections = 1\n").unwrap();
    let (status, text) = config(&["check", name]);
    assert_eq!(status, Some(1), "{text}");
    assert!(text.contains("p.toml:2:1: ") && text.contains("`max-connections`?"), "{text}");
    fs::write(&path, "workers = 2\nbacklog = 7\n[[site]]\nroot = \".\"\n").unwrap();
    let (status, text) = config(&["show", "--config", name, "--workers", "3"]);
    assert_eq!(status, Some(0), "{text}");
    let line = |key: &str| text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
    assert!(line("workers = 3").ends_with("# flag"), "{text}");
    assert!(line("backlog = 7").ends_with("p.toml:2"), "{text}");
    assert!(line("grace = ").ends_with("# default"), "{text}");
}

/// Regression: after the message was found, the whole file was read once more, until no memory was left.
#[test]
fn a_file_without_an_end_is_a_fault() {
    for file in ["/dev/zero", "/dev/urandom"] {
        let script = "ulimit -v 4194304; exec \"$0\" config check \"$1\"";
        let output = Command::new("sh").args(["-c", script, BINARY, file]).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{file}: {text}");
        assert!(text.contains(file), "{text}");
    }
}

/// Regression: the values were relative to the current directory, so that the output was not a file that could replace
/// the flags in another one.
#[test]
fn the_paths_that_are_shown_are_absolute() {
    let directory = site(0);
    // The current directory of the program is not that of a link that leads there.
    let here = directory.path().canonicalize().unwrap();
    fs::write(here.join("p.toml"), "access-log = \"log\"\n[[site]]\nroot = \"www\"\n").unwrap();
    let shown = |arguments: &[&str]| {
        let mut command = Command::new(BINARY);
        command.args(["config", "show"]).args(arguments).current_dir(&here);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let text = shown(&["--config", "p.toml", "--control", "ctl"]);
    for (key, name, source) in
        [("access-log", "log", "p.toml:1"), ("root", "www", "p.toml:3"), ("control", "ctl", "flag")]
    {
        let start = format!("{key} = \"{}\"", here.join(name).display());
        let line = text.lines().find(|line| line.starts_with(&start)).unwrap_or_default();
        assert!(line.ends_with(&format!("# {source}")), "{text}");
    }
    let root = format!("root = \"{}\"", here.join("www").display());
    assert!(shown(&["www"]).contains(&root));
}

/// The file has no fault, so the message must not send its reader there.
#[test]
fn a_fault_of_a_flag_is_not_a_fault_of_the_file() {
    let directory = site(0);
    let path = directory.path().join("p.toml");
    fs::write(&path, "max-header = \"8K\"\n[[site]]\nroot = \".\"\n").unwrap();
    let output = Command::new(BINARY)
        .args(["serve", "--max-header", "1", "--config"])
        .arg(&path)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("--max-header") && !text.contains("p.toml"), "{text}");
}

#[test]
fn a_switch_can_be_turned_off_and_a_cache_goes_to_sites_with_origins() {
    let directory = site(0);
    let path = directory.path().join("p.toml");
    let text = "[[site]]\nroot = \".\"\nlisting = true\n[[site]]\nnames = [\"b\"]\n\
                origin = [\"http://127.0.0.1:9\"]\n";
    fs::write(&path, text).unwrap();
    let name = path.to_str().unwrap();
    let lines = |arguments: &[&str], start: &str| -> Vec<String> {
        let (status, text) = config(&[&["show", "--config", name], arguments].concat());
        assert_eq!(status, Some(0), "{text}");
        text.lines().filter(|line| line.starts_with(start)).map(str::to_owned).collect()
    };
    assert!(lines(&[], "listing = true")[0].ends_with("p.toml:3"));
    assert!(lines(&["--listing=false"], "listing = true").is_empty());
    assert_eq!(lines(&["--listing"], "listing = true").len(), 2);
    assert_eq!(lines(&["--cache", "64M"], "cache = ").len(), 1);
}

#[test]
fn the_hub_is_shown_key_by_key_and_without_its_password() {
    let directory = site(0);
    let path = directory.path().join("p.toml");
    let text = "[hub]\nanonymous = true\nstore = \"redis://:secret@h/1\"\n";
    fs::write(&path, text).unwrap();
    let (status, text) = config(&["show", "--config", path.to_str().unwrap()]);
    assert_eq!(status, Some(0), "{text}");
    let line = |key: &str| text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
    assert!(line("anonymous = true").ends_with("p.toml:2"), "{text}");
    assert!(line("store = \"redis://…@h:6379/1\"").ends_with("p.toml:3"), "{text}");
    assert!(line("history = ").ends_with("# default"), "{text}");
    assert!(!text.contains("secret"), "{text}");
}

#[test]
fn a_request_finds_its_site_by_name() {
    let directory = site(0);
    fs::create_dir(directory.path().join("other")).unwrap();
    fs::write(directory.path().join("other/index.html"), "other").unwrap();
    let path = directory.path().join("p.toml");
    fs::write(
        &path,
        "listen = [\"127.0.0.1:0\"]\n[[site]]\nroot = \".\"\n\
         [[site]]\nnames = [\"other.example\", \"*.other.example\"]\nroot = \"other\"\n\
         header = [\"X-Site: other\"]\nmax-body = 10\n",
    )
    .unwrap();
    for architecture in ["event", "prethreaded", "forking"] {
        let mut command = Command::new(BINARY);
        command.args(["serve", "--json", "--config", path.to_str().unwrap()]);
        command.args(["--architecture", architecture]);
        let server = Serve::start_command(command);
        let mut client = server.client();
        let mut get = |host: &str| {
            client.send(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n"));
            let reply = client.reply();
            (reply.text(), reply.field("x-site").map(str::to_owned))
        };
        assert_eq!(get("first.example"), (INDEX.to_owned(), None));
        for host in ["other.example", "OTHER.example:80", "a.b.other.example"] {
            assert_eq!(get(host), ("other".to_owned(), Some("other".to_owned())), "{host}");
        }
    }
}

/// Regression: the connection was closed without a response.
#[test]
fn a_chunked_body_that_is_too_long_for_its_site_gets_413() {
    let directory = site(0);
    let path = directory.path().join("p.toml");
    fs::write(
        &path,
        "listen = [\"127.0.0.1:0\"]\n[[site]]\nroot = \".\"\n\
         [[site]]\nnames = [\"small.example\"]\nroot = \".\"\nmax-body = 10\n",
    )
    .unwrap();
    for architecture in ["event", "prethreaded", "forking"] {
        let mut command = Command::new(BINARY);
        command.args(["serve", "--json", "--config", path.to_str().unwrap()]);
        command.args(["--architecture", architecture]);
        let server = Serve::start_command(command);
        for (host, chunk, status) in [
            ("small.example", "b\r\n12345678901\r\n", 413),
            ("small.example", "a\r\n1234567890\r\n", 405),
            ("large.example", "b\r\n12345678901\r\n", 405),
        ] {
            let mut client = server.client();
            client.send(format!(
                "POST / HTTP/1.1\r\nHost: {host}\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}0\r\n\r\n"
            ));
            let reply = client.reply();
            assert_eq!(reply.status, status, "{architecture} {host} {chunk:?}");
            let is_closed = reply.field("connection") == Some("close");
            assert_eq!(is_closed, status == 413, "{architecture} {host} {chunk:?}");
        }
    }
}
