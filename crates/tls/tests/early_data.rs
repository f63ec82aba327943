//! Early data is refused: the server skips it, and the handshake goes on as if it had not been sent.

mod support;

use pollux_tls::{Handshake, HandshakeError, Progress};
use rustls::{
    CipherSuite, ClientConfig, ClientConnection, NoKeyLog, ServerConfig,
    server::{ProducesTickets, ServerSessionMemoryCache},
};
use std::{io::Write as _, sync::Arc};
use support::{Peer, SUITES, configs, name};

/// Without tickets, rustls' server keeps its sessions: only then does it accept early data.
#[derive(Debug)]
struct NoTickets;

impl ProducesTickets for NoTickets {
    fn enabled(&self) -> bool {
        false
    }
    fn lifetime(&self) -> u32 {
        0
    }
    fn encrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
    fn decrypt(&self, _: &[u8]) -> Option<Vec<u8>> {
        None
    }
}

/// Our server's configuration, and that of a client with the session of another server with the same name, which
/// accepts early data.
fn client_of_another_server(suite: CipherSuite) -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let (server, mut client) = configs(suite);
    Arc::make_mut(&mut client).enable_early_data = true;
    let mut other = server.as_ref().clone();
    other.ticketer = Arc::new(NoTickets);
    other.session_storage = ServerSessionMemoryCache::new(8);
    other.max_early_data_size = 1 << 14;
    // The secrets of both must not be taken for those of our handshake, which runs on the same thread.
    other.key_log = Arc::new(NoKeyLog {});
    Arc::make_mut(&mut client).key_log = Arc::new(NoKeyLog {});
    let (mut one, mut other) = (Peer::new(Arc::clone(&client)), Peer::server(Arc::new(other)));
    for _ in 0..3 {
        other.input(&one.output());
        one.input(&other.output());
    }
    (server, client)
}

/// Regression: rustls keeps each record that it skips, and counted it again with each later record. Later headers and
/// tags counted as data, so that 12 records could not have 2^14 bytes of it.
#[test]
fn early_data_is_skipped_in_any_records() {
    let divisions: [&[usize]; 7] =
        [&[], &[1 << 14], &[1 << 13; 2], &[3000; 5], &[1; 100], &[1 << 10; 16], &[8; 1 << 11]];
    for suite in &SUITES[..3] {
        for division in divisions {
            let (server, client) = client_of_another_server(*suite);
            let mut early = ClientConnection::new(client, name()).unwrap();
            let mut writer = early.early_data().expect("the session permits early data");
            for len in division {
                writer.write_all(&vec![b'e'; *len]).unwrap();
            }
            let mut peer = Peer(early.into());
            let mut ours = Handshake::server(server).unwrap();
            let (mut out, mut progress) = (Vec::new(), Progress::NeedsInput);
            for _ in 0..3 {
                let bytes = peer.output();
                if !bytes.is_empty() {
                    progress = ours.advance(&bytes, &mut out).unwrap();
                }
                peer.input(&std::mem::take(&mut out));
            }
            assert_eq!(progress, Progress::Complete, "{suite:?}, {division:?}");
            assert!(!peer.0.is_handshaking(), "{suite:?}, {division:?}");
        }
    }
}

#[test]
fn records_without_data_are_limited_too() {
    for record in [[&[23, 3, 3, 0, 17][..], &[7; 17]].concat(), vec![23, 3, 3, 0, 0]] {
        let (server, client) = client_of_another_server(SUITES[0]);
        let mut peer = Peer(ClientConnection::new(client, name()).unwrap().into());
        let mut ours = Handshake::server(server).unwrap();
        let mut out = Vec::new();
        assert_eq!(ours.advance(&peer.output(), &mut out).unwrap(), Progress::NeedsInput);
        let many = record.repeat(1000);
        let skipped = (0..20).take_while(|_| ours.advance(&many, &mut out).is_ok()).count();
        assert!(skipped > 10 && skipped <= 16, "{skipped}");
    }
}

#[test]
fn more_early_data_than_a_record_ends_the_handshake() {
    let (server, client) = client_of_another_server(SUITES[0]);
    let mut peer = Peer(ClientConnection::new(client, name()).unwrap().into());
    let mut ours = Handshake::server(server).unwrap();
    let mut out = Vec::new();
    assert_eq!(ours.advance(&peer.output(), &mut out).unwrap(), Progress::NeedsInput);
    let record = [&[23, 3, 3, 0x1f, 0x40][..], &[b'e'; 0x1f40]].concat();
    for _ in 0..2 {
        out.clear();
        assert_eq!(ours.advance(&record, &mut out).unwrap(), Progress::NeedsInput);
    }
    let error = ours.advance(&record, &mut out).unwrap_err();
    assert!(matches!(error, HandshakeError::Refused(_)), "{error}");
    // An alert of two bytes, the inner type and the tag.
    assert_eq!((out[0], out.len()), (23, 5 + 2 + 1 + 16));
    // A second alert would use the nonce of the first.
    out.clear();
    assert!(ours.advance(&record, &mut out).is_err() && out.is_empty());
}
