//! Our record layer beside rustls' own client and rustls' own server, in every suite: random record boundaries and
//! pieces, storms of KeyUpdates, warnings between other records, closing and fatal alerts, in both directions.

mod support;

use pollux_tls::{
    CONTROL_RECORD_MAX, DATA_PER_KEY_UPDATE, Error, KEY_UPDATES_WITHOUT_DATA_MAX, Role,
};
use proptest::prelude::*;
use std::io::{Read as _, Write as _};
use support::{Ours, Peer, Relay, SUITES, connect, relay::Dice};

const BOTH_ROLES: [Role; 2] = [Role::Server, Role::Client];

#[derive(Clone, Debug)]
enum Act {
    TheySend(usize),
    /// So many KeyUpdates, each of which requests one of ours.
    TheyUpdate(u8),
    WeSend(usize, usize),
    WePark,
    WeMoveOn,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        3 => prop_oneof![1usize..200, 200usize..40_000].prop_map(Act::TheySend),
        2 => prop_oneof![Just(1), 2..=KEY_UPDATES_WITHOUT_DATA_MAX].prop_map(Act::TheyUpdate),
        3 => (prop_oneof![1usize..200, 200usize..80_000], CONTROL_RECORD_MAX + 30..70_000)
            .prop_map(|(len, room)| Act::WeSend(len, room)),
        1 => Just(Act::WePark),
        1 => Just(Act::WeMoveOn),
    ]
}

/// How rustls' bytes reach our end, and ours reach rustls.
struct Path {
    /// Absent: the records are those that rustls has made.
    relay: Option<Relay>,
    piece: usize,
    dice: Dice,
}

impl Path {
    fn deliver_to_us(&mut self, peer: &mut Peer, ours: &mut Ours) -> Result<(), Error> {
        let mut bytes = peer.output();
        if let Some(relay) = &mut self.relay {
            bytes = relay.pass(&bytes, &mut self.dice);
        }
        // A long input in single bytes would take long in a debug build.
        let piece = self.piece.max(bytes.len() / 2000);
        bytes.chunks(piece).try_for_each(|piece| ours.receive(piece))
    }

    fn to_them(&self, bytes: &[u8], peer: &mut Peer) -> Vec<u8> {
        let piece = self.piece.max(bytes.len() / 500);
        bytes.chunks(piece).flat_map(|piece| peer.input(piece)).collect()
    }
}

/// Different bytes for each act.
fn content(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + seed) as u8).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]
    #[test]
    fn any_order_of_data_updates_alerts_and_parking(
        suite in 0usize..6,
        role in prop::sample::select(&BOTH_ROLES[..]),
        has_relay in any::<bool>(),
        fragment in prop_oneof![Just(None), (32usize..16_000).prop_map(Some)],
        piece in prop_oneof![Just(1usize), 2usize..50, 50usize..40_000],
        seed in any::<u64>(),
        acts in prop::collection::vec(act(), 1..20),
        we_close_first in any::<bool>(),
    ) {
        let (mut ours, mut peer, relay) = connect(role, SUITES[suite], 4096, fragment);
        let mut path = Path { relay: has_relay.then_some(relay), piece, dice: Dice(seed) };
        let mut updates = 0;
        for (index, act) in acts.into_iter().enumerate() {
            match act {
                Act::TheySend(len) => {
                    let data = content(len, index);
                    peer.0.writer().write_all(&data).unwrap();
                    path.deliver_to_us(&mut peer, &mut ours).unwrap();
                    prop_assert!(std::mem::take(&mut ours.data) == data, "other data");
                    // The least that it pays for, however it was divided.
                    updates -= updates.min((len / DATA_PER_KEY_UPDATE).max(1));
                }
                Act::TheyUpdate(count) => {
                    for _ in 0..count {
                        let is_allowed = updates < KEY_UPDATES_WITHOUT_DATA_MAX.into();
                        if is_allowed && peer.0.refresh_traffic_keys().is_ok() {
                            updates += 1;
                        }
                    }
                    path.deliver_to_us(&mut peer, &mut ours).unwrap();
                }
                Act::WeSend(len, room) => {
                    let data = content(len, index);
                    let sent = ours.send(&data, room);
                    prop_assert!(!ours.session.owes_key_update());
                    prop_assert!(path.to_them(&sent, &mut peer) == data, "other data");
                }
                Act::WePark => ours.park(),
                Act::WeMoveOn => ours.move_on(),
            }
        }
        // Each end closes its direction, and the other direction goes on until then.
        let close_ours = |ours: &mut Ours, peer: &mut Peer| {
            let mut sent = ours.send(b"our last words", 4096);
            let mut out = [0; CONTROL_RECORD_MAX];
            let len = ours.session.seal_close(&mut ours.keys, &mut out);
            sent.extend_from_slice(&out[..len]);
            peer.input(&sent) == b"our last words" && is_closed(peer)
        };
        if we_close_first {
            prop_assert!(close_ours(&mut ours, &mut peer));
        }
        peer.0.writer().write_all(b"their last words").unwrap();
        peer.0.send_close_notify();
        path.deliver_to_us(&mut peer, &mut ours).unwrap();
        prop_assert_eq!(&ours.data, b"their last words");
        prop_assert!(ours.is_closed && ours.session.has_received_close());
        if !we_close_first {
            prop_assert!(close_ours(&mut ours, &mut peer));
        }
    }
}

fn is_closed(peer: &mut Peer) -> bool {
    peer.0.process_new_packets().unwrap().peer_has_closed()
}

/// The relay of the test above adds what it should: otherwise that test would prove less than it says.
#[test]
fn warnings_and_divided_updates_are_ignored_and_counted() {
    for role in BOTH_ROLES {
        for suite in SUITES {
            let (mut ours, mut peer, relay) = connect(role, suite, 4096, None);
            let is_tls13 = ours.session.suite().is_tls13();
            let mut path = Path { relay: Some(relay), piece: 1, dice: Dice(7) };
            for round in 0..40 {
                let data = content(200, round);
                peer.0.writer().write_all(&data).unwrap();
                let _ = peer.0.refresh_traffic_keys();
                path.deliver_to_us(&mut peer, &mut ours).unwrap();
                assert_eq!(std::mem::take(&mut ours.data), data, "{role:?} {suite:?} {round}");
            }
            let relay = path.relay.unwrap();
            assert!(relay.warnings > 10, "{suite:?}: {}", relay.warnings);
            assert_eq!(relay.divided_updates > 10, is_tls13, "{suite:?}");
        }
    }
}

#[test]
fn a_storm_is_allowed_up_to_its_limit_in_both_roles() {
    for role in BOTH_ROLES {
        for suite in &SUITES[..3] {
            for has_relay in [false, true] {
                let (mut ours, mut peer, relay) = connect(role, *suite, 4096, None);
                let mut path = Path { relay: has_relay.then_some(relay), piece: 1, dice: Dice(3) };
                for _ in 0..KEY_UPDATES_WITHOUT_DATA_MAX {
                    peer.0.refresh_traffic_keys().unwrap();
                }
                path.deliver_to_us(&mut peer, &mut ours).unwrap();
                // The whole storm is answered by one KeyUpdate.
                let sent = ours.send(b"answer", 4096);
                assert_eq!(peer.input(&sent), b"answer");
                peer.0.refresh_traffic_keys().unwrap();
                let outcome = path.deliver_to_us(&mut peer, &mut ours);
                assert_eq!(outcome, Err(Error::TooManyUselessRecords), "{role:?} {suite:?}");
            }
        }
    }
}

/// The alert is in the middle of data, and both ends agree on the reason.
#[test]
fn a_damaged_record_ends_the_connection_with_an_alert_at_either_end() {
    const BAD_RECORD_MAC: u8 = 20;
    for role in BOTH_ROLES {
        for suite in SUITES {
            let (mut ours, mut peer, _) = connect(role, suite, 4096, Some(200));
            peer.0.writer().write_all(&content(1000, 1)).unwrap();
            let mut bytes = peer.output();
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            let error = ours.receive(&bytes).unwrap_err();
            assert_eq!(error, Error::BadRecordMac, "{role:?} {suite:?}");
            assert!(content(1000, 1).starts_with(&ours.data) && ours.data.len() >= 500);
            let mut out = [0; CONTROL_RECORD_MAX];
            let len = ours.session.seal_alert(&mut ours.keys, error, &mut out);
            peer.0.read_tls(&mut &out[..len]).unwrap();
            let error = peer.0.process_new_packets().unwrap_err();
            assert_eq!(error, rustls::Error::AlertReceived(rustls::AlertDescription::BadRecordMac));

            let (mut ours, mut peer, _) = connect(role, suite, 4096, None);
            let mut bytes = ours.send(&content(10_000, 2), 1 << 16);
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            let mut rest = bytes.as_slice();
            let error = loop {
                assert!(peer.0.read_tls(&mut rest).unwrap() > 0, "no error");
                match peer.0.process_new_packets() {
                    Ok(_) => {}
                    Err(error) => break error,
                }
            };
            assert_eq!(error, rustls::Error::DecryptError);
            let mut received = Vec::new();
            let _ = peer.0.reader().read_to_end(&mut received);
            assert!(content(10_000, 2).starts_with(&received) && received.len() >= 8000);
            let outcome = ours.receive(&peer.output());
            assert_eq!(outcome, Err(Error::PeerAlert(BAD_RECORD_MAC)), "{role:?} {suite:?}");
        }
    }
}
