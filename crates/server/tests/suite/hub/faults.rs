//! Clients that misbehave do not harm other clients.

use super::*;

#[test]
fn garbage_behind_a_subscription_is_thrown_away_up_to_a_bound() {
    on_every_mechanism(|mechanism| {
        let hub = Hub::start(1, |config, _| config.mechanism = mechanism.clone());
        let mut stream = hub.subscribe("match=a", &[]);
        stream.reader.get_mut().write_all(b"GET / HTTP/1.1\r\n\r\n garbage").unwrap();
        hub.publish("a", "still here");
        assert_eq!(stream.data(), "still here", "{mechanism:?}");
        // More input than the bound is abuse. The write may fail, because the hub closes the
        // connection.
        let _ = stream.reader.get_mut().write_all(&vec![b'x'; 200_000]);
        assert_eq!(stream.event(), None, "{mechanism:?}");
        hub.publish("a", "and goes on");
    });
}

#[test]
fn a_client_that_goes_is_noticed() {
    on_every_mechanism(|mechanism| {
        let hub = Hub::start(1, |config, hub| {
            config.mechanism = mechanism.clone();
            hub.limits.subscribers_per_address = 3;
        });
        let mut all: Vec<_> = (0..3).map(|_| hub.subscribe("match=a", &[])).collect();
        let target = format!("{PATH}?match=a");
        let reply = hub.request("GET", &target, &[]);
        assert_eq!(reply.status, 429, "{mechanism:?}");
        assert!(reply.field("retry-after").is_some());
        all.pop();
        wait_until("room for another", || {
            let mut client = hub.client();
            client.send(format!("HEAD {target} HTTP/1.1\r\nHost: h\r\n\r\n"));
            drop(client);
            let mut socket = TcpStream::connect(hub.address).unwrap();
            socket.set_read_timeout(Some(PATIENCE)).unwrap();
            write!(socket, "GET {target} HTTP/1.1\r\nHost: h\r\n\r\n").unwrap();
            let mut start = [0; 12];
            socket.read_exact(&mut start).unwrap();
            start == *b"HTTP/1.1 200"
        });
    });
}

#[test]
fn a_flood_of_updates_is_limited() {
    let hub = Hub::start(1, |_, hub| hub.limits.updates_per_second = 5);
    let mut client = hub.client();
    let statuses: Vec<_> =
        (0..20).map(|_| post(&mut client, "topic=a&data=x", &[]).status).collect();
    assert!(statuses.starts_with(&[200; 5]), "{statuses:?}");
    assert!(statuses.contains(&429), "{statuses:?}");
    assert!(statuses.iter().all(|status| matches!(status, 200 | 429)));
}

#[test]
fn an_update_over_the_limit_is_refused_however_it_is_framed() {
    let hub = Hub::start(1, |_, hub| hub.limits.update_bytes = 1000);
    let form = format!("topic=a&data={}", "x".repeat(2000));
    assert_eq!(hub.post(&form, &[]).status, 413);
    let mut client = hub.client();
    client.send(format!(
        "POST {PATH} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\
         Content-Type: application/x-www-form-urlencoded\r\n\r\n7d0\r\n{}\r\n",
        "x".repeat(2000)
    ));
    assert_eq!(client.reply_to("POST").status, 413);
    hub.publish("a", "fits");
}

#[test]
fn a_form_of_another_kind_is_415_and_other_methods_405() {
    let hub = Hub::open();
    let mut client = hub.client();
    client.send(format!(
        "POST {PATH} HTTP/1.1\r\nHost: h\r\nContent-Type: text/plain\r\nContent-Length: 7\r\n\r\n\
         topic=a"
    ));
    assert_eq!(client.reply_to("POST").status, 415);
    // The connection stays open.
    let reply = client.request("DELETE", PATH, &[]);
    assert_eq!(reply.status, 405);
    assert!(reply.field("allow").is_some());
    assert_eq!(client.request("HEAD", &format!("{PATH}?match=a"), &[]).status, 200);
}

#[test]
fn patterns_of_explosive_cost_are_400() {
    let hub = Hub::open();
    let pattern = "%2F%3Aa((x%7B1%2C1000%7D)%7B1%2C1000%7D)";
    let reply = hub.request("GET", &format!("{PATH}?matchURLPattern={pattern}"), &[]);
    assert_eq!(reply.status, 400);
    assert!(reply.text().contains("URL pattern"), "{}", reply.text());
}
