//! `--cache-dir`: the successor takes the directory over, with everything that is stored in it.

use super::*;
use pollux_testkit::{http::Reply, origin::Origin};
use std::{sync::mpsc::Sender, time::Duration};

/// Starts an origin. Its reply for `/slow` waits for the sender; all other replies may be stored.
fn origin() -> (Origin, Sender<()>) {
    let (release, wait) = gate();
    let origin = Origin::start(move |request| {
        let mut fields = "Cache-Control: max-age=3600\r\n";
        if request.target() == "/slow" {
            wait();
            fields = "Cache-Control: no-store\r\n";
        }
        let body = request.target().repeat(100);
        request
            .say(format!("HTTP/1.1 200 OK\r\n{fields}Content-Length: {}\r\n\r\n{body}", body.len()))
    });
    (origin, release)
}

/// Returns `Cache-Status`, which shows whether a response came from the disk.
fn status(reply: &Reply) -> String {
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.field("cache-status").unwrap().to_owned()
}

fn get(server: &Serve, target: &str) -> String {
    let reply = server.client().get(target);
    assert_eq!(reply.text(), target.repeat(100));
    status(&reply)
}

/// The responses with which a test finds out whether the directory is in use by the new process. A
/// response that is requested too early is stored in memory and says nothing afterwards.
struct Probes(std::ops::Range<usize>);

impl Probes {
    fn await_disk(&mut self, server: &Serve) {
        for probe in self.0.by_ref() {
            if get(server, &format!("/probe/{probe}")).contains("disk") {
                return;
            }
            // The pace of the probes: each is a response that the directory then keeps.
            thread::sleep(Duration::from_millis(100));
        }
        panic!("no response comes from the disk: {}", server.stderr_text());
    }
}

fn assert_on_disk(server: &Serve, targets: &[&str]) {
    for target in targets {
        let status = get(server, target);
        assert!(status.contains("; hit") && status.contains("disk"), "{target}: {status}");
    }
}

/// Regression: a server with `--cache-dir` could not be upgraded, because its directory was in use.
#[test]
fn the_successor_takes_over_the_directory_of_the_cache() {
    let (origin, release) = origin();
    let folder = Folder::new();
    let kept = folder.0.path().join("kept");
    let write = |server: &str, size: &str| {
        let (url, kept) = (origin.url(), kept.display());
        let cache = format!("cache = \"{size}\"\ncache-dir = \"{kept}\"");
        folder.write(
            &format!("keep-alive = \"10m\"\n{server}"),
            &format!("origin = [\"{url}\"]\n{cache}"),
        );
    };
    write("", "8M");
    let mut server = folder.serve(&["--workers", "2"]);
    let mut idle: Vec<_> = (0..20).map(|_| server.client()).collect();
    let mut probes = Probes(0..100);
    probes.0.clone().for_each(|probe| drop(get(&server, &format!("/probe/{probe}"))));
    ["/one", "/two", "/three"].iter().for_each(|target| drop(get(&server, target)));
    idle.iter_mut().for_each(|client| assert!(status(&client.get("/one")).contains("; hit")));
    // The old process has to complete this exchange, so it stays.
    let mut waiting = server.client();
    waiting.send(b"GET /slow HTTP/1.1\r\nHost: h\r\n\r\n");
    wait_until("the request at the origin", || origin.last_head().starts_with("GET /slow"));

    // A successor that fails leaves the directory to the old process, which goes on writing.
    write("admin = \"unix:/nowhere/admin\"", "8M");
    assert!(refused(&folder.ctl("upgrade")).contains("/nowhere"));
    assert!(get(&server, "/four").contains("stored"));
    // The settings of the cache may change, too.
    write("", "16M");
    assert!(handed_over(&printed(&folder.ctl("upgrade"))) >= idle.len());
    let first = successor(&mut server);
    assert!(server.is_running(), "it has a response to send");
    probes.await_disk(&server);
    assert_on_disk(&server, &["/one", "/two", "/three", "/four"]);
    idle.iter_mut().for_each(|client| assert!(status(&client.get("/one")).contains("; hit")));
    assert!(get(&server, "/five").contains("stored"));

    // The oldest process still drains while the next one takes over.
    printed(&folder.ctl("upgrade"));
    let second = successor(&mut server);
    probes.await_disk(&server);
    let all = ["/one", "/two", "/three", "/four", "/five"];
    assert_on_disk(&server, &all);
    assert!(server.is_running(), "it has a response to send");
    release.send(()).unwrap();
    assert_eq!(waiting.reply().text(), "/slow".repeat(100));
    server.wait_for_end();
    assert!(!server.stderr_text().contains("cache directory"), "{}", server.stderr_text());
    end(vec![first, second]);

    // A server that starts later finds everything as well.
    let server = folder.serve(&[]);
    assert_on_disk(&server, &all);
    server.stop();
}
