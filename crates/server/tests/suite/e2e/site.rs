//! Paths to files: the files that are served, the paths that are refused, and changes of files.

use super::{Fixture, write};
use pollux_server::config::Symlinks;
use pollux_testkit::{http::Reply, wait_until};
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    time::Instant,
};

#[test]
fn directories_have_a_slash_and_an_index_or_nothing_to_show() {
    let files: [(&str, &[u8]); 5] = [
        ("index.html", b"top"),
        ("with/index.html", b"first"),
        ("with/index.htm", b"second"),
        ("other/index.htm", b"only"),
        ("without/file", b"x"),
    ];
    let fixture = Fixture::new(&files, |config| {
        config.site.index = vec!["index.html".into(), "index.htm".into()];
    });
    for (path, expected) in [
        ("/", (200, "top")),
        ("/with/", (200, "first")),
        ("/other/", (200, "only")),
        ("/?query", (200, "top")),
        ("/./with/../", (200, "top")),
    ] {
        assert_eq!(fixture.get(path), (expected.0, expected.1.into()), "{path}");
    }
    assert_eq!(fixture.get("/without/").0, 403);
    assert_eq!(fixture.get("/none/").0, 404);
    for (path, location) in [
        ("/with", "/with/"),
        ("/with?a=b", "/with/?a=b"),
        // Not `//with`, which would be another host.
        ("//with", "/with/"),
        ("/%77ith", "/with/"),
    ] {
        let reply = fixture.client().get(path);
        assert_eq!((reply.status, reply.field("location")), (301, Some(location)), "{path}");
    }
}

#[test]
fn no_path_leads_out_of_the_directory() {
    let above = tempfile::tempdir().unwrap();
    write(above.path(), "secret", b"secret");
    let root = above.path().join("root");
    write(&root, "file", b"file");
    write(&root, "sub/file", b"sub");
    symlink("../secret", root.join("out")).unwrap();
    symlink(above.path(), root.join("up")).unwrap();
    symlink("file", root.join("in")).unwrap();
    for (rule, within, out) in
        [(Symlinks::Deny, 403, 403), (Symlinks::Within, 200, 403), (Symlinks::Follow, 200, 200)]
    {
        let fixture = Fixture::new(&[], |config| {
            config.site.directory = Some(root.clone());
            config.site.symlinks = rule;
        });
        for (path, status) in [("/in", within), ("/out", out), ("/up/secret", out)] {
            assert_eq!(fixture.get(path).0, status, "{path} under {rule:?}");
        }
        for path in [
            "/../secret",
            "/%2e%2e/secret",
            "/sub/../../secret",
            "/..%2fsecret",
            "/sub%2f..%2f..%2fsecret",
            "/file%00",
            "/..\\secret",
        ] {
            assert_eq!(fixture.get(path).0, 400, "{path} under {rule:?}");
        }
        assert_eq!(fixture.get("/sub/../file").0, 200);
        assert_eq!(fixture.get("/file/").0, 404);
        assert_eq!(fixture.get(&format!("/{}", "a".repeat(300))).0, 404);
        assert_eq!(fixture.get(&"/a".repeat(3000)).0, 404);
    }
}

#[test]
fn dotfiles_and_what_is_no_file_are_not_served() {
    let files: [(&str, &[u8]); 4] = [
        (".hidden", b"h"),
        (".git/config", b"g"),
        (".well-known/security.txt", b"s"),
        ("a/.hidden", b"h"),
    ];
    let fixture = Fixture::new(&files, |_| {});
    rustix::fs::mknodat(
        rustix::fs::CWD,
        fixture.path().join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o666),
        0,
    )
    .unwrap();
    for path in ["/.hidden", "/.git/config", "/a/.hidden", "/%2ehidden"] {
        assert_eq!(fixture.get(path).0, 404, "{path}");
    }
    assert_eq!(fixture.get("/.well-known/security.txt"), (200, "s".into()));
    assert_eq!(fixture.get("/fifo").0, 403);
    // Such a file is not served through a link either, although the link stays within the directory.
    symlink(".git/config", fixture.path().join("config")).unwrap();
    assert_eq!(fixture.get("/config").0, 403);
    let fixture = Fixture::new(&files, |config| config.site.dotfiles = true);
    assert_eq!(fixture.get("/.hidden"), (200, "h".into()));
}

#[test]
fn types_follow_names() {
    let names = [
        ("a.html", "text/html; charset=utf-8"),
        ("a.css", "text/css; charset=utf-8"),
        ("a.js", "text/javascript; charset=utf-8"),
        ("a.json", "application/json"),
        ("a.png", "image/png"),
        ("a.svg", "image/svg+xml"),
        ("a.wasm", "application/wasm"),
        ("README", "application/octet-stream"),
    ];
    let files: Vec<(&str, &[u8])> = names.iter().map(|(name, _)| (*name, &b"x"[..])).collect();
    let fixture = Fixture::new(&files, |_| {});
    for (name, content_type) in names {
        let reply = fixture.client().get(&format!("/{name}"));
        assert_eq!(reply.field("content-type"), Some(content_type), "{name}");
    }
}

#[test]
fn precompressed_siblings_go_to_clients_that_accept_them() {
    let files: [(&str, &[u8]); 5] = [
        ("a.js", b"plain"),
        ("a.js.gz", b"gzip"),
        ("a.js.br", b"brotli"),
        ("a.js.zst", b"zstandard"),
        ("b.js", b"alone"),
    ];
    let fixture = Fixture::new(&files, |_| {});
    let mut client = fixture.client();
    let mut etags = std::collections::BTreeSet::new();
    for (accepted, coding, body) in [
        ("", None, "plain"),
        ("gzip", Some("gzip"), "gzip"),
        ("gzip, br", Some("br"), "brotli"),
        ("gzip, deflate, br, zstd", Some("zstd"), "zstandard"),
        ("gzip;q=1, br;q=0.5", Some("gzip"), "gzip"),
        ("gzip;q=0", None, "plain"),
        ("deflate", None, "plain"),
        ("*", Some("zstd"), "zstandard"),
    ] {
        let reply = client.request("GET", "/a.js", &[&format!("Accept-Encoding: {accepted}")]);
        assert_eq!((reply.field("content-encoding"), &*reply.text()), (coding, body), "{accepted}");
        assert_eq!(reply.field("vary"), Some("Accept-Encoding"), "{accepted}");
        assert_eq!(reply.field("content-type"), Some("text/javascript; charset=utf-8"));
        etags.insert(reply.field("etag").unwrap().to_owned());
    }
    assert_eq!(etags.len(), 4, "each coding has a tag of its own: {etags:?}");
    let reply = client.request("GET", "/b.js", &["Accept-Encoding: gzip"]);
    assert_eq!((reply.field("vary"), &*reply.text()), (None, "alone"));
    let fixture = Fixture::new(&files, |config| config.site.precompressed = false);
    let reply = fixture.client().request("GET", "/a.js", &["Accept-Encoding: gzip"]);
    assert_eq!(reply.text(), "plain");
}

/// Waits until `is_so` accepts the response for `path`. A test of the cache checks how soon that is,
/// on the server's clock.
fn until(fixture: &Fixture, path: &str, is_so: impl Fn(&Reply) -> bool) {
    wait_until(&format!("the change of {path}"), || {
        is_so(&fixture.client().request("GET", path, &["Accept-Encoding: gzip"]))
    });
}

#[test]
fn changes_are_seen() {
    let fixture = Fixture::new(&[("file", b"first"), ("page.html", b"plain")], |_| {});
    assert_eq!(fixture.get("/file"), (200, "first".into()));
    // A change of the content, with the same length and in place, right after the file was read.
    write(fixture.path(), "file", b"again");
    until(&fixture, "/file", |reply| reply.text() == "again");
    write(fixture.path(), "new", b"replaced");
    fs::rename(fixture.path().join("new"), fixture.path().join("file")).unwrap();
    until(&fixture, "/file", |reply| reply.text() == "replaced");
    fs::remove_file(fixture.path().join("file")).unwrap();
    until(&fixture, "/file", |reply| reply.status == 404);
    assert_eq!(fixture.get("/later").0, 404);
    write(fixture.path(), "later", b"there");
    assert_eq!(fixture.get("/later"), (200, "there".into()));
    // An index that is created after it was found missing, and a sibling that is created after its
    // file was read.
    assert_eq!(fixture.get("/").0, 403);
    write(fixture.path(), "index.html", b"index");
    assert_eq!(fixture.get("/"), (200, "index".into()));
    assert_eq!(fixture.get("/page.html"), (200, "plain".into()));
    write(fixture.path(), "page.html.gz", b"packed");
    until(&fixture, "/page.html", |reply| reply.text() == "packed");
}

#[test]
fn a_cache_too_small_or_none_changes_nothing_but_the_cost() {
    let content = |name: usize| format!("{name}").repeat(10_000).into_bytes();
    let files: Vec<(String, Vec<u8>)> =
        (0..40).map(|name| (name.to_string(), content(name))).collect();
    let files: Vec<(&str, &[u8])> = files.iter().map(|(n, c)| (n.as_str(), &c[..])).collect();
    for cache_bytes in [0, 50_000, 64 << 20] {
        let fixture = Fixture::new(&files, |config| config.site.cache_bytes = cache_bytes);
        let mut client = fixture.client();
        let started_at = Instant::now();
        for _ in 0..3 {
            for name in 0..40 {
                let reply = client.get(&format!("/{name}"));
                assert!(reply.body == content(name), "{name} with a cache of {cache_bytes}");
            }
        }
        // On a busy machine the requests take seconds, and the server compares entries that are a
        // second old with the disk again.
        let seconds = started_at.elapsed().as_secs();
        let opened = fixture.stop().system_calls.of(pollux_sys::Call::Open);
        // Two opens for each file that is read, and three for the siblings that do not exist.
        let of_misses = |misses: u64| (misses * 5)..=(misses * 5 + 10);
        match cache_bytes {
            0 => assert!(of_misses(120).contains(&opened), "{opened}"),
            50_000 => assert!(opened > 60 * 5, "{opened}"),
            _ => {
                let most = of_misses(40).end() + seconds * 40 * 5;
                assert!((200..=most).contains(&opened), "{opened} in {seconds} s");
            }
        }
    }
}

#[test]
fn what_may_not_be_read_is_forbidden() {
    let fixture = Fixture::new(&[("closed", b"x")], |_| {});
    let path = fixture.path().join("closed");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::read(&path).is_ok() {
        eprintln!("skipped: this user may read everything");
        return;
    }
    assert_eq!(fixture.get("/closed").0, 403);
}
