//! Handshakes that one end refuses: it reports the reason, the other end receives the alert, and
//! neither panics, regardless of the pieces in which the bytes arrive.

use pollux_tls::{
    Certificates, ClientAuth, ClientSettings, Handshake, HandshakeError, MinVersion, Progress,
    ServerSettings, Trust, prepare_client, provider, self_signed,
};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer, ServerName},
};
use std::{fs, sync::Arc};

type Outcome = Result<(), HandshakeError>;

/// Lets both ends exchange bytes in pieces of `piece` bytes until each is complete or has failed.
fn talk(mut client: Handshake, mut server: Handshake, piece: usize) -> (Outcome, Outcome) {
    let mut ends = [None, None];
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    client.advance(&[], &mut to_server).unwrap();
    for _ in 0..8 {
        for (at, handshake) in [&mut server, &mut client].into_iter().enumerate() {
            let (input, output) = match at {
                0 => (std::mem::take(&mut to_server), &mut to_client),
                _ => (std::mem::take(&mut to_client), &mut to_server),
            };
            for bytes in input.chunks(piece) {
                if ends[at].is_some() {
                    break;
                }
                match handshake.advance(bytes, output) {
                    Ok(Progress::NeedsInput) => {}
                    Ok(Progress::Complete) => ends[at] = Some(Ok(())),
                    Err(error) => ends[at] = Some(Err(error)),
                }
            }
        }
    }
    let [server, client] = ends.map(|end| end.expect("both ends have come to an end"));
    (client, server)
}

fn server(client_auth: ClientAuth, certificates: Certificates) -> Handshake {
    let settings = ServerSettings { client_auth, ..ServerSettings::default() };
    Handshake::server(settings.build(Arc::new(certificates)).unwrap()).unwrap()
}

/// A certificate for localhost, and a store that trusts it.
fn server_certificate() -> (Certificates, RootCertStore) {
    let certificates = self_signed(vec!["localhost".into()]).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(certificates.default_certificate()).unwrap();
    (certificates, roots)
}

fn client(trust: Trust) -> Handshake {
    let settings = ClientSettings {
        trust,
        min_version: MinVersion::Tls12,
        alpn: Vec::new(),
        tickets_max: 8,
        cipher: None,
        logs_secrets: false,
    };
    let name = ServerName::try_from("localhost").unwrap();
    Handshake::client(settings.build().unwrap(), name).unwrap()
}

/// A store with one authority that has signed nothing here.
fn other_authority() -> (RootCertStore, String) {
    let other = rcgen::generate_simple_self_signed(vec!["other".into()]).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(other.cert.der().clone()).unwrap();
    (roots, other.cert.pem())
}

const PIECES: [usize; 4] = [1, 7, 100, usize::MAX];

#[test]
fn a_client_refuses_a_certificate_that_it_does_not_trust() {
    for piece in PIECES {
        let roots = Arc::new(other_authority().0);
        let client = client(Trust::Roots(roots));
        let (client, server) =
            talk(client, server(ClientAuth::None, server_certificate().0), piece);
        let error = client.unwrap_err();
        assert!(error.is_certificate(), "{piece}: {error}");
        // The error may be unknown_ca or bad_certificate; the server receives the alert.
        assert!(server.unwrap_err().received_alert().is_some(), "{piece}");
    }
}

#[test]
fn a_server_refuses_a_client_certificate_that_it_does_not_trust() {
    let folder = tempfile::TempDir::new().unwrap();
    let authorities = folder.path().join("ca.pem");
    fs::write(&authorities, other_authority().1).unwrap();
    for piece in PIECES {
        let own = rcgen::generate_simple_self_signed(vec!["me".into()]).unwrap();
        let key = PrivatePkcs8KeyDer::from(own.signing_key.serialize_der());
        let (certificates, trusted) = server_certificate();
        let builder = ClientConfig::builder_with_provider(Arc::new(provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(trusted);
        let chain = vec![own.cert.der().clone()];
        let mut config = builder.with_client_auth_cert(chain, PrivateKeyDer::Pkcs8(key)).unwrap();
        prepare_client(&mut config, false);
        let name = ServerName::try_from("localhost").unwrap();
        let client = Handshake::client(Arc::new(config), name).unwrap();
        let required = ClientAuth::Required(authorities.clone());
        let server = server(required, certificates);
        let (_, server) = talk(client, server, piece);
        assert!(server.unwrap_err().is_certificate(), "{piece}");
    }
}

#[test]
fn rubbish_gets_an_alert_in_whatever_pieces_it_comes() {
    for piece in PIECES {
        // For a message of 16 MB, the last of these, rustls sends no alert.
        let too_long = [22, 3, 1, 0, 4, 1, 255, 255, 255];
        for rubbish in
            [&[22, 3, 1, 0, 4, 1, 0, 0, 0][..], &[22, 3, 3, 0, 1, 99], &[99; 40], &too_long]
        {
            let mut server = server(ClientAuth::None, server_certificate().0);
            let mut out = Vec::new();
            let failed =
                rubbish.chunks(piece).any(|bytes| server.advance(bytes, &mut out).is_err());
            assert!(!failed || out.first() == Some(&21), "{piece} {rubbish:?}: {out:?}");
            assert!(failed || rubbish != too_long, "{piece}");
        }
    }
}
