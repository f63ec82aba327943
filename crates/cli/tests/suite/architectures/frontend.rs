//! The front end in the architectures with processes: origins, tunnels, and connections that are
//! handed over to another process. The server's own tests check it in the architectures with threads.

use super::{PROCESSES, in_each, serve, site, stop};
use pollux_testkit::{origin::Origin, serve::describe};
use std::{
    io::{Read, Write},
    process::Command,
    thread,
};

#[path = "../../../../server/examples/handover_receiver.rs"]
#[allow(dead_code, unreachable_pub, reason = "it is a program of its own, too")]
mod receiver;

#[test]
fn processes_pass_on_tunnel_and_hand_over() {
    in_each(&PROCESSES, |architecture| {
        let site = site(10);
        let path = site.path().join("sock");
        let listener = receiver::listen(&path).unwrap();
        thread::spawn(move || {
            receiver::receive_all(&listener, |first, client| {
                receiver::answer(first, client).unwrap();
            })
        });
        let origin = Origin::start(|request| {
            if request.field("upgrade").is_none() {
                let body = request.body();
                return request.ok(format!("{} bytes", body.len()));
            }
            request.say(
                "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\npong",
            );
            !request.wait_for_close()
        });
        let handover = format!("/given=unix:{}", path.display());
        let server =
            serve(site.path(), architecture, &["--origin", &origin.url(), "--handover", &handover]);
        let mut client = server.client();
        assert_eq!(client.get("/").text(), "hello");
        let body = "b".repeat(200_000);
        client.send(format!("POST /x HTTP/1.1\r\nHost: t\r\nContent-Length: 200000\r\n\r\n{body}"));
        assert_eq!(client.reply().text(), "200000 bytes");
        client.send("GET /t HTTP/1.1\r\nHost: t\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n");
        let mut got = Vec::new();
        while !got.ends_with(b"pong") {
            let mut byte = [0];
            client.socket().read_exact(&mut byte).unwrap();
            got.push(byte[0]);
        }
        assert!(got.starts_with(b"HTTP/1.1 101 "));
        drop(client);
        let mut client = server.client();
        client.socket().write_all(b"GET /given/x HTTP/1.1\r\nHost: t\r\n\r\n").unwrap();
        assert!(client.reply().text().starts_with("GET /given/x HTTP/1.1\r\n"));
        assert!(client.is_closed());
        assert_eq!(stop(server)["connections"]["handed_over"], 1);
    });
}

#[test]
fn what_makes_no_sense_together_is_refused() {
    for (arguments, expected) in [
        (&["--origin", "http://a", "--handover", "unix:/x"][..], "forwarded to an origin"),
        (&["--origin", "/a=http://a", "--handover", "/a=unix:/x"], "forwarded to an origin"),
        (&["--handover", "unix:/x", "--handover", "unix:/y"], "already"),
        (&["--handover", "http://a"], "expected unix:PATH"),
        (&["--handover", "unix:/x", "--cache", "1M"], "--origin"),
    ] {
        let output = Command::new(super::BINARY).arg("serve").args(arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "{arguments:?}: {}", describe(output.status));
        assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
    }
}
