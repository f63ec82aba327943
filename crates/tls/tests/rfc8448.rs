//! The trace of RFC 8448 §3, "Simple 1-RTT Handshake", whose application data and alerts our record layer
//! must open and produce to the byte.

use pollux_tls::{Content, Direction, Role, Session, Suite};

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| !byte.is_ascii_whitespace()).collect();
    let pairs = digits.chunks(2).map(|pair| std::str::from_utf8(pair).unwrap());
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

/// client_application_traffic_secret_0.
const CLIENT_SECRET: &str = "9e40646ce79a7f9dc05af8889bce6552 875afa0b06df0087f792ebb7c17504a5";
/// server_application_traffic_secret_0.
const SERVER_SECRET: &str = "a11af9f05531f856ad47116b45a95032 8204b4f44bfb6b3a4b4f1f3fcb631643";
/// "{client} send application_data record": 50 bytes, 0 to 49.
const CLIENT_DATA: &str = "17 03 03 00 43 a2 3f 70 54 b6 2c 94
    d0 af fa fe 82 28 ba 55 cb ef ac ea 42 f9 14 aa 66 bc ab 3f 2b
    98 19 a8 a5 b4 6b 39 5b d5 4a 9a 20 44 1e 2b 62 97 4e 1f 5a 62
    92 a2 97 70 14 bd 1e 3d ea e6 3a ee bb 21 69 49 15 e4";
/// "{server} send application_data record": the same content, after one ticket.
const SERVER_DATA: &str = "17 03 03 00 43 2e 93 7e 11 ef 4a c7
    40 e5 38 ad 36 00 5f c4 a4 69 32 fc 32 25 d0 5f 82 aa 1b 36 e3
    0e fa f9 7d 90 e6 df fc 60 2d cb 50 1a 59 a8 fc c4 9c 4b f2 e5
    f0 a2 1c 00 47 c2 ab f3 32 54 0d d0 32 e1 67 c2 95 5d";
/// "{client} send alert record": close_notify.
const CLIENT_CLOSE: &str = "17 03 03 00 13 c9 87 27 60 65 56 66
    b7 4d 7f f1 15 3e fd 6d b6 d0 b0 e3";
/// "{server} send alert record": close_notify.
const SERVER_CLOSE: &str = "17 03 03 00 13 b5 8f d6 71 66 eb f5
    99 d2 47 20 cf be 7e fa 7a 88 64 a9";

/// Both ends after the handshake: the server has sent one ticket.
fn ends() -> (Session, Session) {
    let (client, server) = (hex(CLIENT_SECRET), hex(SERVER_SECRET));
    let from_client = Direction { secret: &client, sequence: 0 };
    let from_server = Direction { secret: &server, sequence: 1 };
    let suite = Suite::Tls13Aes128Gcm;
    (
        Session::new(suite, Role::Client, &from_server, &from_client),
        Session::new(suite, Role::Server, &from_client, &from_server),
    )
}

#[test]
fn both_ends_seal_and_open_what_the_rfc_shows() {
    let content: Vec<u8> = (0..50).collect();
    let (mut client, mut server) = ends();
    let (mut client_keys, mut server_keys) = (client.derive_keys(), server.derive_keys());
    let mut out = [0; 256];

    let sealing = client.seal(&mut client_keys, &content, &mut out).unwrap();
    assert_eq!(out[..sealing.written], hex(CLIENT_DATA));
    let opening = server.open(&mut server_keys, &mut out[..sealing.written]).unwrap();
    let Content::Data(range) = opening.content else { panic!("{opening:?}") };
    assert_eq!(out[range], content);

    let sealing = server.seal(&mut server_keys, &content, &mut out).unwrap();
    assert_eq!(out[..sealing.written], hex(SERVER_DATA));
    let opening = client.open(&mut client_keys, &mut out[..sealing.written]).unwrap();
    assert!(matches!(opening.content, Content::Data(_)));

    let len = client.seal_close(&mut client_keys, &mut out);
    assert_eq!(out[..len], hex(CLIENT_CLOSE));
    assert_eq!(server.open(&mut server_keys, &mut out[..len]).unwrap().content, Content::Closed);

    let len = server.seal_close(&mut server_keys, &mut out);
    assert_eq!(out[..len], hex(SERVER_CLOSE));
    assert_eq!(client.open(&mut client_keys, &mut out[..len]).unwrap().content, Content::Closed);
}

#[test]
fn what_follows_close_notify_is_ignored_and_nothing_is_sealed_after_it() {
    let (mut client, mut server) = ends();
    let (mut client_keys, mut server_keys) = (client.derive_keys(), server.derive_keys());
    let mut out = [0; 256];
    let len = client.seal_close(&mut client_keys, &mut out);
    server.open(&mut server_keys, &mut out[..len]).unwrap();
    // RFC 8446 §6.1: whatever it is.
    for len in [5, len, 200] {
        let opening = server.open(&mut server_keys, &mut out[..len]).unwrap();
        assert_eq!((opening.consumed, opening.content), (len, Content::Closed));
    }
    let sealing = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        client.seal(&mut client_keys, b"more", &mut out)
    }));
    assert!(sealing.is_err(), "nothing is sealed after close_notify");
}
