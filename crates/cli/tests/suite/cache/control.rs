//! Commands that show stored responses and purge them.

use super::{BINARY, cache, content, counter, is_hit, origin, printed, serve};
use pollux_testkit::serve::Serve;
use std::{fs, os::unix::fs::PermissionsExt, process::Command};

#[test]
fn what_is_kept_can_be_listed_and_looked_at() {
    let directory = tempfile::tempdir().unwrap();
    let control = directory.path().join("control");
    let (origin, _) = origin();
    let server = serve(&origin, &["--control", control.to_str().unwrap(), "--workers", "2"]);
    assert_eq!(fs::metadata(&control).unwrap().permissions().mode() & 0o777, 0o600);
    let mut client = server.client();
    for target in ["/a/1", "/a/2", "/b/1", "/varied/x"] {
        assert!(!is_hit(&client.get(target)));
    }
    client.request("GET", "/varied/x", &["Accept-Language: de"]);
    for _ in 0..3 {
        assert!(is_hit(&client.get("/a/1")));
    }
    let list = printed(&control, &["list"]);
    let mut lines = list.lines();
    assert!(
        lines
            .next()
            .unwrap()
            .split_whitespace()
            .eq(["AGE", "LEFT", "HITS", "VAR", "SIZE", "TIER", "URL"])
    );
    let mut rows: Vec<Vec<&str>> = lines.map(|line| line.split_whitespace().collect()).collect();
    rows.sort_by_key(|row| row[6].to_owned());
    assert_eq!(rows.len(), 4, "{list}");
    assert!(rows[0][6].ends_with("/a/1") && rows[0][6].starts_with("http://"), "{list}");
    assert_eq!((rows[0][2], rows[0][3], rows[0][5]), ("3", "1", "memory"), "{list}");
    assert_eq!(rows[3][3], "2", "variants: {list}");
    let url = rows[0][6];
    let prefix = url.strip_suffix('1').unwrap();
    assert_eq!(printed(&control, &["list", "--prefix", prefix]).lines().count(), 3);
    assert_eq!(printed(&control, &["list", "--limit", "1"]).lines().count(), 2);
    assert_eq!(printed(&control, &["list", "--prefix", "http://nowhere/"]), "");
    let json = printed(&control, &["list", "--json"]);
    assert_eq!(json.lines().count(), 5);
    assert_eq!(json.lines().last(), Some(r#"{"event":"end","count":4}"#));

    let shown = printed(&control, &["show", url]);
    for part in [url, "status 200", "fresh up to an age of 1h00m", "X-Name: 1", "found by 3"] {
        assert!(shown.contains(part), "no {part:?} in {shown}");
    }
    assert!(shown.contains(&format!("{} bytes of content", content("/a/1", 1).len())), "{shown}");
    let varied = printed(&control, &["show", rows[3][6]]);
    assert!(varied.contains("for accept-language: de"), "{varied}");
    assert!(varied.contains("for requests without accept-language"), "{varied}");

    let none = cache(&control, &["show", "http://nowhere/"]);
    assert_eq!(none.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&none.stderr).contains("http://nowhere/ is not stored"));
    let no_url = cache(&control, &["show", "nonsense"]);
    assert_eq!(no_url.status.code(), Some(2));

    assert_eq!(counter(&control, "hits"), 3);
    assert_eq!((counter(&control, "misses"), counter(&control, "stored")), (5, 5));
    assert_eq!(counter(&control, "entries"), 4);
    let stats = printed(&control, &["stats"]);
    assert!(stats.contains("answered from the store, fresh"), "{stats}");
    assert!(server.stop().0.success());
    assert!(!control.exists(), "the socket's file is removed at the end");
    let gone = cache(&control, &["list"]);
    assert_eq!(gone.status.code(), Some(3));
    let stderr = String::from_utf8_lossy(&gone.stderr);
    assert!(stderr.contains("there is no such socket") && stderr.contains("--control"), "{stderr}");
}

#[test]
fn the_socket_may_be_named_before_the_command_or_after_it() {
    let expected = "--control /nonexistent/ctl: there is no such socket";
    let long = format!("/{}", "long".repeat(30));
    for (arguments, status, reason) in [
        (&["cache", "--control", "/nonexistent/ctl", "list"][..], 3, expected),
        (&["cache", "--json", "stats", "--control", "/nonexistent/ctl"], 3, expected),
        (&["ctl", "--control", "/nonexistent/ctl", "reload"], 3, expected),
        (&["ctl", "reload", "--control", "/nonexistent/ctl"], 3, expected),
        (&["ctl", "--control", &long, "reload"], 3, "the path of a socket has at most 107 bytes"),
        (&["cache", "list"], 2, "--control PATH is missing"),
        (&["ctl", "reload"], 2, "--control PATH is missing"),
    ] {
        let output = Command::new("timeout").args(["60", BINARY]).args(arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {stderr}");
        assert!(stderr.contains(reason), "{arguments:?}: {stderr}");
    }
}

#[test]
fn a_purged_response_is_fetched_again() {
    let directory = tempfile::tempdir().unwrap();
    let control = directory.path().join("control");
    let kept = directory.path().join("kept");
    let (origin, version) = origin();
    let arguments = ["--control", control.to_str().unwrap(), "--cache-dir", kept.to_str().unwrap()];
    let server = serve(&origin, &arguments);
    let mut client = server.client();
    let targets = ["/a/1", "/a/2", "/b/1", "/varied/x"];
    for target in targets {
        client.get(target);
    }
    client.request("GET", "/varied/x", &["Accept-Language: de"]);
    let list = printed(&control, &["list", "--json"]);
    let first = list.lines().find(|line| line.contains("/a/1")).unwrap();
    let first: serde_json::Value = serde_json::from_str(first).unwrap();
    let site = first["url"].as_str().unwrap().strip_suffix("/a/1").unwrap();
    let (one, two) = (format!("{site}/a/1"), format!("{site}/a/"));
    let varied = format!("{site}/varied/x#top");
    for (arguments, says, gone) in [
        (&["purge", &*one][..], "1 response purged\n", &["/a/1"][..]),
        (&["purge", &varied], "2 responses purged\n", &["/varied/x"]),
        (&["purge", "--prefix", &two], "2 responses purged\n", &["/a/1", "/a/2"]),
        (&["purge", "--surrogate-key", "b"], "1 response purged\n", &["/b/1"]),
        (&["purge", "--surrogate-key", "none"], "0 responses purged\n", &[]),
        (&["purge", "--all"], "4 responses purged\n", &targets),
    ] {
        let now = version.fetch_add(1, std::sync::atomic::Ordering::SeqCst) + 1;
        assert_eq!(printed(&control, arguments), says, "{arguments:?}");
        for target in targets {
            let reply = client.get(target);
            let is_gone = gone.contains(&target);
            assert_eq!(is_hit(&reply), !is_gone, "{arguments:?}: {target}");
            let is_now = reply.text() == content(target, now);
            assert_eq!(is_now, is_gone, "{arguments:?}: {target}");
        }
    }
    assert_eq!(counter(&control, "purged"), 10);
    for arguments in [
        &["purge"][..],
        &["purge", "--all", &one],
        &["purge", "--prefix", &two, "--surrogate-key", "b"],
    ] {
        assert_eq!(cache(&control, arguments).status.code(), Some(2), "{arguments:?}");
    }
    // A purge also removes the files on disk: none of them is there after a restart.
    assert_eq!(printed(&control, &["purge", "--all"]), "4 responses purged\n");
    assert!(server.stop().0.success());
    // The directory also contains the lock file.
    let is_object = |name: std::ffi::OsString| name.to_str().unwrap().ends_with(".object");
    let names = || fs::read_dir(&kept).unwrap().map(|entry| entry.unwrap().file_name());
    let files = || names().filter(|name| is_object(name.clone())).count();
    assert_eq!(files(), 0);

    // A stored response is still there after a restart, and is listed as on disk.
    let server = serve(&origin, &arguments);
    let reply = server.client().get("/a/1");
    let body = reply.text();
    assert!(server.stop().0.success());
    assert_eq!(files(), 1, "a stop writes what is to be written");
    let server = serve(&origin, &arguments);
    let url = printed(&control, &["list"]).split_whitespace().last().unwrap().to_owned();
    assert!(printed(&control, &["list"]).contains(" disk "), "{url}");
    assert!(printed(&control, &["show", &url]).contains("in disk"), "{url}");
    let requests = origin.requests();
    assert_eq!(server.client().get("/a/1").text().len(), body.len());
    assert!(printed(&control, &["list"]).contains(" both "), "{url}");
    assert_eq!(origin.requests(), requests);
}

#[test]
fn a_control_socket_that_is_taken_or_left_behind() {
    let directory = tempfile::tempdir().unwrap();
    let control = directory.path().join("control");
    let path = control.to_str().unwrap();
    let (origin, _) = origin();
    let first = serve(&origin, &["--control", path]);
    let mut second = std::process::Command::new("timeout");
    let command = super::command(&origin, &["--control", path]);
    let refused = second.arg("60").arg(command.get_program()).args(command.get_args()).output();
    let refused = refused.unwrap();
    let stderr = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("a running server listens there") && stderr.contains(path), "{stderr}");
    assert_eq!(counter(&control, "hits"), 0, "it still answers");
    first.signal(rustix::process::Signal::KILL);
    drop(first);
    assert!(control.exists());
    let dead = cache(&control, &["stats"]);
    assert_eq!(dead.status.code(), Some(3));
    assert!(String::from_utf8_lossy(&dead.stderr).contains("no server listens there any more"));
    let third = serve(&origin, &["--control", path]);
    assert_eq!(counter(&control, "hits"), 0);
    assert!(third.stop().0.success());

    let file = directory.path().join("data");
    fs::write(&file, "precious").unwrap();
    let command = super::command(&origin, &["--control", file.to_str().unwrap()]);
    let mut fourth = std::process::Command::new("timeout");
    let refused = fourth.arg("60").arg(command.get_program()).args(command.get_args()).output();
    let stderr = String::from_utf8_lossy(&refused.unwrap().stderr).into_owned();
    assert!(stderr.contains("no socket"), "{stderr}");
    assert_eq!(fs::read(&file).unwrap(), b"precious");
}

/// Regression: the commands and the metrics knew the cache of the default site only. A purge of another site's URL
/// purged nothing, with status 0.
#[test]
fn the_caches_of_all_sites_are_managed() {
    let directory = tempfile::tempdir().unwrap();
    let [control, file] = ["control", "pollux.toml"].map(|name| directory.path().join(name));
    let (origin, _) = origin();
    let sites = ["a.example", "b.example"].map(|name| {
        let url = origin.url();
        format!("[[site]]\nnames = [\"{name}\"]\norigin = [\"{url}\"]\ncache = \"64M\"\n")
    });
    fs::write(&file, sites.concat()).unwrap();
    let mut command = Command::new(BINARY);
    command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--config"]).arg(&file);
    command.arg("--control").arg(&control);
    let server = Serve::start_command(command);
    let mut client = server.client();
    let mut is_stored = |name: &str| {
        client.send(format!("GET /x HTTP/1.1\r\nHost: {name}\r\n\r\n"));
        is_hit(&client.reply())
    };
    for name in ["a.example", "b.example"] {
        assert!(!is_stored(name) && is_stored(name), "{name}");
    }
    let list = printed(&control, &["list"]);
    assert!(list.contains("http://a.example/x") && list.contains("http://b.example/x"), "{list}");
    assert_eq!(printed(&control, &["list", "--limit", "1"]).lines().count(), 2);
    assert!(printed(&control, &["show", "http://b.example/x"]).contains("status 200"));
    assert_eq!((counter(&control, "hits"), counter(&control, "entries")), (2, 2));
    assert!(printed(&control, &["purge", "http://b.example/x"]).contains("1 response"));
    assert!(!is_stored("b.example") && is_stored("a.example"));
    printed(&control, &["purge", "--all"]);
    assert!(!is_stored("a.example") && !is_stored("b.example"));
    assert!(server.stop().0.success());
}
