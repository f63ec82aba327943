//! Certificates from files: chosen by name, read again when the files change.

use pollux_tls::{
    CertificateFiles, Certificates, ClientSettings, Handshake, MinVersion, Reload, ServerSettings,
    Trust, provider, self_signed,
};
use rustls::{
    ClientConfig, ClientConnection, ServerConfig,
    pki_types::{CertificateDer, ServerName},
};
use std::{fs, path::Path, sync::Arc};
use tempfile::TempDir;

/// Writes a certificate for these names.
fn write(
    directory: &Path,
    stem: &str,
    names: &[&str],
) -> (CertificateFiles, CertificateDer<'static>) {
    let names: Vec<String> = names.iter().copied().map(String::from).collect();
    let certified = rcgen::generate_simple_self_signed(names).unwrap();
    let files = CertificateFiles {
        chain: directory.join(format!("{stem}.pem")),
        key: directory.join(format!("{stem}.key")),
    };
    fs::write(&files.chain, certified.cert.pem()).unwrap();
    fs::write(&files.key, certified.signing_key.serialize_pem()).unwrap();
    (files, certified.cert.der().clone())
}

fn server(certificates: &Arc<Certificates>) -> Arc<ServerConfig> {
    ServerSettings::default().build(Arc::clone(certificates)).unwrap()
}

fn client() -> Arc<ClientConfig> {
    let settings = ClientSettings {
        trust: Trust::Anybody,
        min_version: MinVersion::Tls12,
        alpn: Vec::new(),
        resumes: false,
        logs_secrets: false,
    };
    settings.build().unwrap()
}

/// The certificate that a client is shown who asks for this name.
fn shown(server: &Arc<ServerConfig>, name: &str) -> CertificateDer<'static> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(client(), name).unwrap();
    let mut handshake = Handshake::server(Arc::clone(server)).unwrap();
    for _ in 0..3 {
        let (mut bytes, mut out) = (Vec::new(), Vec::new());
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        handshake.advance(&bytes, &mut out).unwrap();
        let mut rest = out.as_slice();
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            client.process_new_packets().unwrap();
        }
    }
    client.peer_certificates().unwrap()[0].clone().into_owned()
}

#[test]
fn a_certificate_is_chosen_by_name() {
    let directory = TempDir::new().unwrap();
    let (a, a_der) = write(directory.path(), "a", &["a.example", "www.a.example"]);
    let (b, b_der) = write(directory.path(), "b", &["*.b.example", "b.example"]);
    let certificates = Certificates::from_files(vec![a, b], Arc::new(provider())).unwrap();
    let server = server(&Arc::new(certificates));
    let cases = [
        ("a.example", &a_der),
        ("WWW.a.Example", &a_der),
        ("b.example", &b_der),
        ("x.b.example", &b_der),
        // "*" is one label.
        ("x.y.b.example", &a_der),
        ("unknown.example", &a_der),
        ("192.0.2.1", &a_der),
    ];
    for (name, expected) in cases {
        assert_eq!(&shown(&server, name), expected, "{name}");
    }
}

#[test]
fn files_that_change_are_read_again_and_bad_ones_refused() {
    let directory = TempDir::new().unwrap();
    let (files, first) = write(directory.path(), "a", &["a.example"]);
    let certificates =
        Arc::new(Certificates::from_files(vec![files.clone()], Arc::new(provider())).unwrap());
    let server = server(&certificates);
    assert_eq!(certificates.reload_if_changed(), Reload::Unchanged);
    assert_eq!(shown(&server, "a.example"), first);

    let (_, second) = write(directory.path(), "a", &["a.example"]);
    certificates.request_reload();
    assert_eq!(certificates.reload_if_changed(), Reload::Done);
    assert_eq!(shown(&server, "a.example"), second);

    // The key of another certificate.
    let (other, _) = write(directory.path(), "other", &["a.example"]);
    fs::copy(&other.key, &files.key).unwrap();
    certificates.request_reload();
    let Reload::Rejected(reason) = certificates.reload_if_changed() else { panic!() };
    assert!(reason.contains("a.key") && reason.contains("does not belong"), "{reason}");
    assert_eq!(shown(&server, "a.example"), second, "the former stays");

    fs::write(&files.chain, "no certificate").unwrap();
    certificates.request_reload();
    let Reload::Rejected(reason) = certificates.reload_if_changed() else { panic!() };
    assert!(reason.contains("a.pem"), "{reason}");
    assert_eq!(shown(&server, "a.example"), second);

    fs::copy(&other.chain, &files.chain).unwrap();
    certificates.request_reload();
    assert_eq!(certificates.reload_if_changed(), Reload::Done);
}

#[test]
fn what_is_missing_is_named() {
    let directory = TempDir::new().unwrap();
    let (files, _) = write(directory.path(), "a", &["a.example"]);
    let missing = directory.path().join("missing.pem");
    let read = |chain: &Path, key: &Path| {
        let files = CertificateFiles { chain: chain.into(), key: key.into() };
        Certificates::from_files(vec![files], Arc::new(provider())).unwrap_err().to_string()
    };
    assert!(read(&missing, &files.key).contains("missing.pem"));
    assert!(read(&files.chain, &missing).contains("missing.pem"));
    assert!(read(&files.key, &files.key).contains("no certificate is in it"));
    assert!(read(&files.chain, &files.chain).contains("a.pem"));
}

#[test]
fn a_certificate_for_trials_needs_no_file() {
    let certificates = Arc::new(self_signed(vec!["localhost".into(), "127.0.0.1".into()]).unwrap());
    let expected = certificates.default_certificate();
    assert_eq!(shown(&server(&certificates), "localhost"), expected);
    let fingerprint = pollux_tls::fingerprint(&expected);
    assert_eq!(fingerprint.len(), 32 * 3 - 1);
}
