//! The guestbook of a site that is not the default one, beside the events of another site.

use super::*;
use pollux_testkit::{
    guestbook::{counts_each_visit_once, is_a_guestbook},
    origin::Origin,
    redis::Redis,
};

/// Sends requests to the default site until the flag is set. Each has an exchange with the origin.
fn load(address: &str, ends: Arc<AtomicBool>) -> JoinHandle<u64> {
    let address = address.to_owned();
    thread::spawn(move || {
        let (mut client, mut requests) = (Client::connect(&address), 0);
        while !ends.load(SeqCst) {
            client.send(b"GET / HTTP/1.1\r\nHost: default\r\n\r\n");
            assert_eq!(client.reply().text(), "origin");
            requests += 1;
        }
        requests
    })
}

/// The answers to look-ups, and the events of the connections to Redis and to the origin, reach the
/// site that waits for them: also after a reload, after which the guestbook is the former one, and
/// after an upgrade.
#[test]
fn a_guestbook_of_another_site_gets_its_own_events() {
    let Some(redis) = Redis::start(&[]) else { return };
    let origin =
        Origin::start(|request| request.say("HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\norigin"));
    let folder = Folder::new();
    // Both names are looked up when a request needs them.
    let write = |round: usize| {
        let (origin, redis) = (origin.address().port(), redis.port);
        let default = format!("origin = [\"http://localhost:{origin}\"]");
        let other = format!(
            "names = [\"test\", \"t\"]\nroot = \"b\"\nheader = [\"X-Round: {round}\"]\n\
             guestbook = \"/guestbook\"\nstore = \"redis://localhost:{redis}/0\""
        );
        folder.write("", &format!("{default}\n[[site]]\n{other}"));
    };
    write(0);
    let mut server = folder.serve(&[]);
    let ends = Arc::new(AtomicBool::new(false));
    let load = load(server.address(), ends.clone());
    let works = |server: &Serve, round: usize| {
        assert_eq!(server.client().get("/").field("x-round"), Some(round.to_string().as_str()));
        is_a_guestbook(&|| server.client(), "site b\n");
        counts_each_visit_once(&|| server.client(), 8, 5);
    };
    works(&server, 0);
    for round in 1..=2 {
        write(round);
        assert!(printed(&folder.ctl("reload")).contains("site[1].header"));
        works(&server, round);
    }
    write(3);
    printed(&folder.ctl("upgrade"));
    let process = server.next_process();
    works(&server, 3);
    ends.store(true, SeqCst);
    assert!(load.join().unwrap() > 0);
    process.signal(rustix::process::Signal::TERM);
    process.wait();
}
