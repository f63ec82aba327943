//! Files that the server compresses itself (`--compress`).

use flate2::read::GzDecoder;
use pollux_server::{Server, Settings, config::Listen};
use pollux_testkit::{wait_for, wait_until};
use std::{
    fs::{self, File},
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    thread,
    time::{Duration, UNIX_EPOCH},
};

/// Longer than the files that a worker compresses itself.
const LONG: usize = 100_000;
/// Longer than the files that the server holds in memory.
const OPEN: usize = 400_000;

struct Site {
    server: Server,
    address: SocketAddr,
    directory: tempfile::TempDir,
}

struct Reply {
    head: String,
    body: Vec<u8>,
}

impl Reply {
    fn field(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }
}

/// Writes a file with an old modification time: the server does not compress a recently modified file.
fn write_old(path: &Path, content: &[u8], second: u64) {
    fs::write(path, content).unwrap();
    let file = File::options().write(true).open(path).unwrap();
    file.set_modified(UNIX_EPOCH + Duration::from_secs(second)).unwrap();
}

fn text(len: usize) -> Vec<u8> {
    (0..).flat_map(|line| format!("line {line}\n").into_bytes()).take(len).collect()
}

fn site(codings: &str, workers: usize) -> Site {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    write_old(&root.join("short.html"), &text(5000), 1);
    write_old(&root.join("long.html"), &text(LONG), 1);
    write_old(&root.join("open.html"), &text(OPEN), 1);
    write_old(&root.join("tiny.html"), b"tiny", 1);
    write_old(&root.join("picture.png"), &text(5000), 1);
    write_old(&root.join("packed.html"), &text(5000), 1);
    write_old(&root.join("packed.html.gz"), b"sibling", 1);
    let mut config = Settings::new(root);
    config.site.compress = Some(codings.parse().unwrap());
    config.workers = workers;
    let server = Server::start(config).unwrap();
    let Listen::Tcp(address) = server.addresses()[0] else { panic!("no TCP address") };
    Site { server, address, directory }
}

impl Site {
    fn request(&self, method: &str, path: &str, fields: &str) -> Reply {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n");
        stream.write_all(format!("{head}{fields}\r\n").as_bytes()).unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).unwrap();
        let end = reply.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
        let body = reply.split_off(end);
        Reply { head: String::from_utf8(reply).unwrap(), body }
    }

    fn get(&self, path: &str, accept: &str) -> Reply {
        self.request("GET", path, &format!("Accept-Encoding: {accept}\r\n"))
    }

    /// Sends requests until the reply is compressed.
    fn wait_for(&self, path: &str, accept: &str) -> Reply {
        wait_for(&format!("{path} to be compressed"), || {
            let reply = self.get(path, accept);
            assert_eq!(reply.field("Vary"), Some("Accept-Encoding"), "{}", reply.head);
            reply.field("Content-Encoding").is_some().then_some(reply)
        })
    }

    fn end(self) {
        self.server.stop(Duration::ZERO).unwrap();
        drop(self.directory);
    }
}

fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut text).unwrap();
    text
}

#[test]
fn files_are_compressed_for_clients_that_accept_it() {
    let site = site("zstd,br,gzip", 1);
    let short = site.get("/short.html", "gzip");
    assert_eq!(short.field("Content-Encoding"), Some("gzip"), "{}", short.head);
    assert!(gunzip(&short.body) == text(5000));
    for (accept, coding) in [
        ("gzip, br, zstd", Some("zstd")),
        ("gzip, br", Some("br")),
        ("gzip;q=0.9, br;q=0.1", Some("gzip")),
        ("gzip, identity;q=0", Some("gzip")),
        ("gzip;q=0.5, identity", None),
        ("gzip;q=0", None),
        ("deflate", None),
    ] {
        let reply = site.get("/short.html", accept);
        assert_eq!(reply.field("Content-Encoding"), coding, "{accept}");
        assert_eq!(reply.field("Vary"), Some("Accept-Encoding"), "{accept}");
    }
    for (path, len) in [("/long.html", LONG), ("/open.html", OPEN)] {
        let reply = site.wait_for(path, "gzip");
        assert!(gunzip(&reply.body) == text(len), "{path}");
    }
    for path in ["/tiny.html", "/picture.png"] {
        let reply = site.get(path, "gzip, br, zstd");
        assert_eq!(reply.field("Content-Encoding"), None, "{path}");
        assert_eq!(reply.field("Vary"), None, "{path}");
    }
    // A compressed sibling exists for gzip; the server makes the other codings.
    let reply = site.get("/packed.html", "gzip, br, zstd");
    assert_eq!((reply.field("Content-Encoding"), &reply.body[..]), (Some("gzip"), &b"sibling"[..]));
    assert_eq!(site.get("/packed.html", "br").field("Content-Encoding"), Some("br"));
    site.end();
}

/// Regression: a thread of one worker took the files of another worker. In the table of the first worker, their
/// descriptors were other files or connections, which the thread closed.
#[test]
fn workers_with_file_tables_of_their_own_compress_their_own_files() {
    const FILES: usize = 24;
    const CLIENTS: usize = 16;
    let directory = tempfile::tempdir().unwrap();
    for number in 0..FILES {
        write_old(&directory.path().join(format!("{number}.html")), &text(OPEN), 1);
    }
    let mut config = Settings::new(directory.path());
    config.site.compress = Some("gzip".parse().unwrap());
    config.workers = 4;
    config.own_file_tables = Some(pollux_testkit::own_file_tables());
    let server = Server::start(config).unwrap();
    let Listen::Tcp(address) = server.addresses()[0] else { panic!("no TCP address") };
    let site = Site { server, address, directory };
    thread::scope(|scope| {
        for first in 0..CLIENTS {
            let site = &site;
            scope.spawn(move || {
                for number in 0..FILES {
                    let path = format!("/{}.html", (first + number) % FILES);
                    let reply = site.get(&path, "gzip");
                    assert!(reply.head.starts_with("HTTP/1.1 200 "), "{}", reply.head);
                }
            });
        }
    });
    for number in 0..FILES {
        let path = format!("/{number}.html");
        let reply = site.wait_for(&path, "gzip");
        assert!(gunzip(&reply.body) == text(OPEN), "{path}");
        // The other workers have it now, too.
        for _ in 0..CLIENTS {
            assert_eq!(site.get(&path, "gzip").field("Content-Encoding"), Some("gzip"), "{path}");
        }
    }
    site.end();
}

#[test]
fn a_compressed_file_has_validators_ranges_and_heads_of_its_own() {
    let site = site("gzip", 1);
    let whole = site.wait_for("/long.html", "gzip");
    let etag = whole.field("ETag").unwrap();
    assert!(etag.starts_with('"'), "{etag} is strong");
    let plain = site.get("/long.html", "identity");
    assert_ne!(plain.field("ETag"), Some(etag));
    assert_eq!(plain.field("Content-Length"), Some(&*LONG.to_string()));
    let request = |method, fields: &str| {
        site.request(method, "/long.html", &format!("Accept-Encoding: gzip\r\n{fields}"))
    };
    let head = request("HEAD", "");
    assert_eq!((head.field("ETag"), head.body.len()), (Some(etag), 0));
    assert_eq!(head.field("Content-Length"), Some(&*whole.body.len().to_string()));
    let same = request("GET", &format!("If-None-Match: {etag}\r\n"));
    assert!(same.head.starts_with("HTTP/1.1 304"), "{}", same.head);
    assert_eq!(same.field("Vary"), Some("Accept-Encoding"));
    let part = request("GET", &format!("Range: bytes=10-19\r\nIf-Range: {etag}\r\n"));
    assert!(part.head.starts_with("HTTP/1.1 206"), "{}", part.head);
    assert_eq!(part.field("Content-Encoding"), Some("gzip"));
    assert!(part.body == whole.body[10..20]);
    let other = request("GET", "Range: bytes=10-19\r\nIf-Range: \"other\"\r\n");
    assert!(other.head.starts_with("HTTP/1.1 200") && other.body == whole.body);
    site.end();
}

#[test]
fn a_change_of_the_file_is_seen_and_all_workers_send_the_same() {
    let site = site("zstd,gzip", 3);
    let first = site.wait_for("/long.html", "gzip");
    for _ in 0..20 {
        let reply = site.wait_for("/long.html", "gzip");
        assert!(reply.body == first.body && reply.field("ETag") == first.field("ETag"));
    }
    write_old(&site.directory.path().join("long.html"), &text(LONG / 2), 2);
    wait_until("the changed file", || {
        gunzip(&site.wait_for("/long.html", "gzip").body).len() == LONG / 2
    });
    site.end();
}
