//! `--hub-max-lifetime` with the clients that users run: streams end, and no update is lost or repeated.

use super::{Reader, metric, push, serve};
use std::{process::Command, thread, time::Duration};

/// Returns how many streams the hub has ended because of their age.
fn ended(admin: &str) -> u64 {
    metric(admin, "pollux_hub_subscribers_disconnected_total{reason=\"lifetime\"} ")
}

#[test]
fn subscribers_connect_again_and_miss_nothing() {
    let admin = free_address();
    let (_directory, server) =
        serve(&["--hub-max-lifetime", "3s", "--admin", &admin, "--workers", "2"]);
    // The publisher's `retry` sets the time after which a subscriber connects again.
    let publish = |number: u32| {
        let data = number.to_string();
        let arguments = ["--topic", "a", "--data", &data, "--retry", "50"];
        assert!(push(&server, &arguments).output().unwrap().status.success());
    };
    publish(0);
    let from_start = ["--topic", "a", "--last-event-id", "earliest"];
    let readers: Vec<_> = (0..4).map(|_| Reader::subscribe(&server, &from_start)).collect();
    let url =
        format!("http://{}/.well-known/mercure?match=a&last_event_id=earliest", server.address());
    let curl = Command::new("curl").args(["-sSN", &url]).output();
    let mut number = 0;
    while ended(&admin) < 10 {
        number += 1;
        assert!(number < 600, "{} streams have ended", ended(&admin));
        publish(number);
        // The pace of a publisher: streams end between its updates.
        thread::sleep(Duration::from_millis(50));
    }
    publish(number + 1);
    for reader in &readers {
        for expected in 0..=number + 1 {
            assert_eq!(reader.line(), expected.to_string());
        }
        assert!(reader.lines.try_recv().is_err(), "nothing comes twice");
    }
    // curl reads a stream to its end and reports one that is cut off.
    match curl {
        Ok(output) => assert!(output.status.success(), "{output:?}"),
        Err(_) => println!("skipped: there is no curl"),
    }
}

/// Returns an address at which no server listened a moment ago.
pub(super) fn free_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}
