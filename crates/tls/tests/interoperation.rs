//! Our server and rustls' own client, in every suite. Random sequences are in `properties.rs`.

mod support;

use pollux_tls::{
    Cipher, ClientSettings, Content, DATA_PER_KEY_UPDATE, Error, HEADER_LEN, MinVersion,
    RECORD_MAX, Role, ServerSettings, Suite, self_signed,
};
use std::{io::Write as _, sync::Arc};
use support::{Ours, Peer, SUITES, configs, shake_hands, shake_hands_as};

#[test]
fn a_request_and_its_reply_in_every_suite() {
    for suite in SUITES {
        let (server, client) = configs(suite);
        let (established, mut peer) = shake_hands(server, client, usize::MAX >> 1);
        assert_eq!(established.alpn.as_deref(), Some(b"http/1.1".as_slice()));
        let mut ours = Ours::new(established.session, established.input);
        for round in 0..5 {
            peer.0.writer().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            let bytes = peer.output();
            ours.receive(&bytes).unwrap();
            assert_eq!(
                std::mem::take(&mut ours.data),
                b"GET / HTTP/1.1\r\n\r\n",
                "{suite:?} {round}"
            );
            let reply = vec![round; 100_000];
            let sent = ours.send(&reply, 1 << 16);
            assert_eq!(peer.input(&sent), reply, "{suite:?} {round}");
            ours.park();
        }
        peer.0.send_close_notify();
        let bytes = peer.output();
        ours.receive(&bytes).unwrap();
        assert!(ours.is_closed && ours.session.has_received_close());
        let mut out = [0; 64];
        let len = ours.session.seal_close(&mut ours.keys, &mut out);
        let mut reader = &out[..len];
        peer.0.read_tls(&mut reader).unwrap();
        assert!(peer.0.process_new_packets().unwrap().peer_has_closed(), "{suite:?}");
    }
}

#[test]
fn a_handshake_may_come_byte_by_byte() {
    for suite in SUITES {
        let (server, client) = configs(suite);
        for piece in [1, 2, 7, 64] {
            let (established, mut peer) = shake_hands(server.clone(), client.clone(), piece);
            let mut ours = Ours::new(established.session, established.input);
            peer.0.writer().write_all(b"hello").unwrap();
            let bytes = peer.output();
            ours.receive(&bytes).unwrap();
            assert_eq!(ours.data, b"hello");
        }
    }
}

#[test]
fn a_request_may_come_with_the_end_of_the_handshake() {
    for suite in SUITES {
        let (server, client) = configs(suite);
        let mut peer = Peer::new(client);
        let mut handshake = pollux_tls::Handshake::server(server).unwrap();
        // rustls buffers it until the client may send.
        peer.0.writer().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut is_complete = false;
        for _ in 0..4 {
            let mut out = Vec::new();
            let progress = handshake.advance(&peer.output(), &mut out).unwrap();
            peer.input(&out);
            if progress == pollux_tls::Progress::Complete {
                is_complete = true;
                break;
            }
        }
        assert!(is_complete, "{suite:?}");
        let established = handshake.finish().unwrap();
        let mut ours = Ours::new(established.session, established.input);
        let bytes = peer.output();
        ours.receive(&bytes).unwrap();
        assert_eq!(ours.data, b"GET / HTTP/1.1\r\n\r\n", "{suite:?}");
    }
}

#[test]
fn a_client_offers_only_the_cipher_that_it_was_given() {
    let certificates = Arc::new(self_signed(vec!["localhost".into()]).unwrap());
    let server = ServerSettings::default().build(certificates).unwrap();
    let ciphers = [
        (None, Suite::Tls13Aes128Gcm),
        (Some(Cipher::Aes128Gcm), Suite::Tls13Aes128Gcm),
        (Some(Cipher::Aes256Gcm), Suite::Tls13Aes256Gcm),
        (Some(Cipher::ChaCha20Poly1305), Suite::Tls13ChaCha20),
    ];
    for (cipher, suite) in ciphers {
        let mut settings = ClientSettings::trusting_anybody(&[b"http/1.1"]);
        (settings.cipher, settings.min_version) = (cipher, MinVersion::Tls12);
        let client = settings.build().unwrap();
        let (result, ..) = shake_hands_as(Role::Client, server.clone(), client, 4096);
        assert_eq!(result.session.suite(), suite, "{cipher:?}");
    }
}

/// A server decides how many tickets it sends, and each is stored with its certificates.
#[test]
fn a_client_stores_a_limited_number_of_tickets() {
    let certificates = Arc::new(self_signed(vec!["localhost".into()]).unwrap());
    let server = ServerSettings::default().build(certificates).unwrap();
    let mut settings = ClientSettings::trusting_anybody(&[b"http/1.1"]);
    settings.tickets_max = 2;
    let client = settings.build().unwrap();
    let connect = || {
        let (mut result, mut peer, _) =
            shake_hands_as(Role::Client, server.clone(), client.clone(), 4096);
        let mut keys = result.session.derive_keys();
        let (mut records, mut receiver) = (peer.output(), result.tickets.take().unwrap());
        let opened = result.session.open(&mut keys, &mut records).unwrap();
        let Content::Tickets(range) = opened.content else { panic!("{opened:?}") };
        (result.is_resumed, move || receiver.receive_messages(&records[range.clone()]).unwrap())
    };
    let mut connections: Vec<_> = (0..4).map(|_| connect()).collect();
    connections.iter_mut().for_each(|(_, receive)| receive());
    let resumed: Vec<_> = (0..4).map(|_| connect().0).collect();
    assert_eq!(resumed, [true, true, false, false]);
}

#[test]
fn tickets_resume_a_session() {
    for suite in SUITES {
        let (server, client) = configs(suite);
        let (first, _) = shake_hands(server.clone(), client.clone(), 4096);
        assert!(!first.is_resumed);
        let (second, _) = shake_hands(server, client, 4096);
        assert!(second.is_resumed, "{suite:?}");
    }
}

#[test]
fn a_storm_of_key_updates_ends_the_connection() {
    let (server, client) = configs(SUITES[0]);
    let (established, mut peer) = shake_hands(server, client, 4096);
    let mut ours = Ours::new(established.session, established.input);
    for _ in 0..pollux_tls::KEY_UPDATES_WITHOUT_DATA_MAX {
        peer.0.refresh_traffic_keys().unwrap();
        let bytes = peer.output();
        ours.receive(&bytes).unwrap();
    }
    peer.0.refresh_traffic_keys().unwrap();
    let bytes = peer.output();
    assert_eq!(ours.receive(&bytes), Err(Error::TooManyUselessRecords));
}

#[test]
fn a_byte_pays_for_one_key_update_and_more_data_for_more() {
    let (server, client) = configs(SUITES[0]);
    let (established, mut peer) = shake_hands(server, client, 4096);
    let mut ours = Ours::new(established.session, established.input);
    let update = |peer: &mut Peer, ours: &mut Ours| {
        peer.0.refresh_traffic_keys().unwrap();
        ours.receive(&peer.output())
    };
    for _ in 0..pollux_tls::KEY_UPDATES_WITHOUT_DATA_MAX {
        update(&mut peer, &mut ours).unwrap();
    }
    for (len, paid) in [(1, 1), (2 * DATA_PER_KEY_UPDATE, 3), (1, 1)] {
        peer.0.writer().write_all(&vec![b'x'; len]).unwrap();
        ours.receive(&peer.output()).unwrap();
        for _ in 0..paid {
            update(&mut peer, &mut ours).unwrap();
        }
    }
    assert_eq!(update(&mut peer, &mut ours), Err(Error::TooManyUselessRecords));
}

#[test]
fn altered_records_are_refused_wherever_they_are_altered() {
    for suite in SUITES {
        let (server, client) = configs(suite);
        let (mut established, mut peer) = shake_hands(server, client, 4096);
        let mut keys = established.session.derive_keys();
        peer.0.writer().write_all(b"hello").unwrap();
        let record = peer.output();
        for index in 0..record.len() {
            let mut altered = record.clone();
            altered[index] ^= 1;
            let result = established.session.open(&mut keys, &mut altered);
            let is_longer = index == HEADER_LEN - 1;
            match result {
                Err(_) => {}
                Ok(opening) => {
                    assert!(is_longer || index == 3, "{suite:?}: byte {index}");
                    assert!(
                        matches!(opening.content, Content::Incomplete(_)),
                        "{suite:?}: {index}"
                    );
                }
            }
        }
        let mut record = record;
        let opening = established.session.open(&mut keys, &mut record).unwrap();
        assert!(matches!(opening.content, Content::Data(_)));
    }
}

#[test]
fn records_begin_small_and_grow() {
    let (server, client) = configs(SUITES[0]);
    let (established, _peer) = shake_hands(server, client, 4096);
    let mut ours = Ours::new(established.session, established.input);
    let mut lengths = Vec::new();
    let sent = ours.send(&vec![0; 60_000], 1 << 17);
    let mut rest = sent.as_slice();
    while !rest.is_empty() {
        let len = usize::from(u16::from_be_bytes([rest[3], rest[4]]));
        lengths.push(len - 17);
        rest = &rest[HEADER_LEN + len..];
    }
    assert_eq!(lengths, [4000, 4000, 4000, 4000, 16384, 16384, 11232]);
    assert!(lengths.iter().all(|len| len + 22 <= RECORD_MAX));
    assert_eq!(ours.session.suite(), Suite::Tls13Aes128Gcm);
}
