//! Tests of certificates from files: chosen by name, read again when the files change.

use pollux_tls::{
    ACME_TLS_ALPN, CertificateFiles, CertificateSource, Certificates, ClientSettings, Handshake,
    OutsideValidity, Reload, ServerSettings, ValidityFault, provider, read_roots, self_signed,
};
use rcgen::{BasicConstraints, CertificateParams, IsCa, KeyPair, date_time_ymd};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, ServerConfig, SignatureScheme,
    crypto::CryptoProvider,
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

fn client(alpn: &[&[u8]]) -> Arc<ClientConfig> {
    ClientSettings::trusting_anybody(alpn).build().unwrap()
}

/// The certificate that a client gets when it requests this name.
fn shown(server: &Arc<ServerConfig>, name: &str) -> CertificateDer<'static> {
    shown_by(server, name, &[]).unwrap()
}

/// The same for a client that offers these protocols; `None` if the handshake fails.
fn shown_by(
    server: &Arc<ServerConfig>,
    name: &str,
    alpn: &[&[u8]],
) -> Option<CertificateDer<'static>> {
    shown_to(server, name, &client(alpn))
}

/// The same for a client with this configuration.
fn shown_to(
    server: &Arc<ServerConfig>,
    name: &str,
    client: &Arc<ClientConfig>,
) -> Option<CertificateDer<'static>> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(Arc::clone(client), name).unwrap();
    let mut handshake = Handshake::server(Arc::clone(server)).unwrap();
    for _ in 0..3 {
        let (mut bytes, mut out) = (Vec::new(), Vec::new());
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        handshake.advance(&bytes, &mut out).ok()?;
        let mut rest = out.as_slice();
        while !rest.is_empty() {
            client.read_tls(&mut rest).unwrap();
            client.process_new_packets().unwrap();
        }
    }
    Some(client.peer_certificates().unwrap()[0].clone().into_owned())
}

/// Regression: the server used an expired certificate without a warning. The dates count whoever has signed the
/// certificate.
#[test]
fn certificates_outside_their_validity_are_known() {
    let directory = TempDir::new().unwrap();
    let write = |years: (i32, i32), is_ca: bool| {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        params.not_before = date_time_ymd(years.0, 1, 2);
        params.not_after = date_time_ymd(years.1, 1, 2);
        if is_ca {
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        }
        let files = ["pem", "key"].map(|end| directory.path().join(format!("{years:?}.{end}")));
        fs::write(&files[0], params.self_signed(&key).unwrap().pem()).unwrap();
        fs::write(&files[1], key.serialize_pem()).unwrap();
        let [chain, key] = files;
        CertificateFiles { chain, key }
    };
    for is_ca in [false, true] {
        let files = [(2001, 4001), (2001, 2002), (4001, 4002)].map(|years| write(years, is_ca));
        let certificates = Certificates::from_files(files.to_vec(), Arc::new(provider())).unwrap();
        let expected = [
            OutsideValidity {
                file: files[1].chain.clone(),
                reason: ValidityFault::ExpiredAt(1_009_929_600),
            },
            OutsideValidity {
                file: files[2].chain.clone(),
                reason: ValidityFault::ValidFrom(64_092_297_600),
            },
        ];
        assert_eq!(certificates.outside_validity(), expected, "{is_ca}");
    }
    assert_eq!(self_signed(vec!["a.example".to_owned()]).unwrap().outside_validity(), []);
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
        // "*" matches one label.
        ("x.y.b.example", &a_der),
        ("unknown.example", &a_der),
        ("192.0.2.1", &a_der),
    ];
    for (name, expected) in cases {
        assert_eq!(&shown(&server, name), expected, "{name}");
    }
}

/// Regression: the second certificate for a name was never used.
#[test]
fn a_name_may_have_certificates_for_several_kinds_of_keys() {
    let directory = TempDir::new().unwrap();
    let names = ["a.example", "*.a.example"];
    let (first, first_der) = write(directory.path(), "first", &names);
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let params = rcgen::CertificateParams::new(names.map(String::from)).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let second = CertificateFiles {
        chain: directory.path().join("second.pem"),
        key: directory.path().join("second.key"),
    };
    fs::write(&second.chain, certificate.pem()).unwrap();
    fs::write(&second.key, key.serialize_pem()).unwrap();
    let (other, other_der) = write(directory.path(), "other", &["b.example"]);
    let (exact, exact_der) = write(directory.path(), "exact", &["y.a.example"]);
    let files = vec![first, second, other, exact];
    let certificates = Certificates::from_files(files, Arc::new(provider())).unwrap();
    let server = server(&Arc::new(certificates));
    // A client that verifies the signatures of ED25519 alone, or all.
    let trusting = |provider: CryptoProvider, has_sni: bool| {
        let mut roots = RootCertStore::empty();
        for root in [&first_der, certificate.der(), &other_der, &exact_der] {
            roots.add(root.clone()).unwrap();
        }
        let builder = ClientConfig::builder_with_provider(Arc::new(provider));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.enable_sni = has_sni;
        Arc::new(config)
    };
    let ed25519 = || {
        let mut provider = provider();
        let algorithms = &mut provider.signature_verification_algorithms;
        let is_it = |(scheme, _): &&(SignatureScheme, _)| *scheme == SignatureScheme::ED25519;
        algorithms.mapping =
            algorithms.mapping.iter().filter(is_it).copied().collect::<Vec<_>>().leak();
        algorithms.all = algorithms.mapping[0].1;
        provider
    };
    for (provider, has_sni, name, expected) in [
        (provider(), true, "a.example", Some(&first_der)),
        // Without a name the default is sent.
        (provider(), false, "a.example", Some(&first_der)),
        (provider(), true, "b.example", Some(&other_der)),
        (ed25519(), true, "a.example", Some(certificate.der())),
        (ed25519(), true, "x.a.example", Some(certificate.der())),
        (provider(), true, "y.a.example", Some(&exact_der)),
        // Regression: the wildcard was not considered.
        (ed25519(), true, "y.a.example", Some(certificate.der())),
        (ed25519(), false, "a.example", Some(certificate.der())),
        (ed25519(), true, "b.example", None),
    ] {
        let shown = shown_to(&server, name, &trusting(provider, has_sni));
        assert_eq!(shown.as_ref(), expected, "{name}, {has_sni}");
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

/// Regression: a damaged pair kept the renewed certificates of all other names out of use.
#[test]
fn a_bad_pair_does_not_hinder_the_others() {
    let directory = TempDir::new().unwrap();
    let (a, a_der) = write(directory.path(), "a", &["a.example"]);
    let (b, _) = write(directory.path(), "b", &["b.example"]);
    let files = vec![a.clone(), b];
    let certificates = Arc::new(Certificates::from_files(files, Arc::new(provider())).unwrap());
    let server = server(&certificates);
    fs::remove_file(&a.key).unwrap();
    let (_, renewed) = write(directory.path(), "b", &["b.example"]);
    certificates.request_reload();
    let Reload::Rejected(reason) = certificates.reload_if_changed() else { panic!() };
    assert!(reason.contains("a.key") && !reason.contains("b.pem"), "{reason}");
    assert_eq!(shown(&server, "a.example"), a_der, "the former stays");
    assert_eq!(shown(&server, "b.example"), renewed);

    let (_, repaired) = write(directory.path(), "a", &["a.example"]);
    certificates.request_reload();
    assert_eq!(certificates.reload_if_changed(), Reload::Done);
    assert_eq!(shown(&server, "a.example"), repaired);
}

#[test]
fn certificates_that_are_read_again_are_used_when_the_caller_says_so() {
    let directory = TempDir::new().unwrap();
    let (files, first) = write(directory.path(), "a", &["a.example"]);
    let certificates =
        Arc::new(Certificates::from_files(vec![files.clone()], Arc::new(provider())).unwrap());
    let server = server(&certificates);
    let (_, second) = write(directory.path(), "a", &["a.example"]);
    let read = certificates.read_again().unwrap().expect("there are files");
    assert_eq!(shown(&server, "a.example"), first);
    certificates.replace(read);
    assert_eq!(shown(&server, "a.example"), second);
    assert_eq!(certificates.reload_if_changed(), Reload::Unchanged);

    fs::write(&files.chain, "no certificate").unwrap();
    assert!(certificates.read_again().unwrap_err().to_string().contains("a.pem"));
    assert_eq!(shown(&server, "a.example"), second);
    let without_files = self_signed(vec!["localhost".into()]).unwrap();
    assert!(without_files.read_again().unwrap().is_none());
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
    assert!(read(&files.chain, &files.chain).contains("no key is in it"));
}

/// Regression: "no items found", "base64 decode error" and "failed to parse private key", the last one
/// with the name of the certificate's file.
#[test]
fn a_key_that_cannot_be_used_is_explained() {
    let directory = TempDir::new().unwrap();
    let (files, _) = write(directory.path(), "a", &["a.example"]);
    let pkcs8 =
        "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    let older = "-----BEGIN EC PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\
                 DEK-Info: AES-128-CBC,00112233445566778899AABBCCDDEEFF\n\nAAAA\n\
                 -----END EC PRIVATE KEY-----\n";
    let unknown = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
    for (key, words) in [
        (pkcs8, "passphrase"),
        (older, "passphrase"),
        (unknown, "this kind of key is not supported"),
    ] {
        fs::write(&files.key, key).unwrap();
        let read = Certificates::from_files(vec![files.clone()], Arc::new(provider()));
        let error = read.unwrap_err().to_string();
        assert!(error.contains("a.key") && error.contains(words), "{error}");
    }
}

/// Regression: the first section of such a file was skipped, so another certificate of the chain took the place of the
/// server's own, and the first authority was missing.
#[test]
fn a_byte_order_mark_is_no_part_of_a_file() {
    let directory = TempDir::new().unwrap();
    let (files, own) = write(directory.path(), "a", &["a.example"]);
    let (other, _) = write(directory.path(), "b", &["b.example"]);
    let text = |path: &Path| fs::read_to_string(path).unwrap();
    let chain = text(&files.chain) + &text(&other.chain);
    fs::write(&files.chain, format!("\u{feff}{chain}")).unwrap();
    fs::write(&files.key, format!("\u{feff}{}", text(&files.key))).unwrap();
    let certificates = Certificates::from_files(vec![files.clone()], Arc::new(provider())).unwrap();
    assert_eq!(certificates.default_certificate(), own);
    assert_eq!(read_roots(&files.chain).unwrap().len(), 2);
}

/// Regression: "invalid peer certificate: Other(OtherError(UnsupportedCertVersion))".
#[test]
fn a_certificate_of_version_1_is_explained() {
    // Made by `openssl x509 -req` without -extfile.
    let certificate = "-----BEGIN CERTIFICATE-----\n\
        MIIBIjCByQIUDO9th5E5uwHI4TbgArGIvEXhgMMwCgYIKoZIzj0EAwIwFDESMBAG\n\
        A1UEAwwJYS5leGFtcGxlMB4XDTI2MTEyOTIzNDQ0M1oXDTI2MTEzMDIzNDQ0M1ow\n\
        FDESMBAGA1UEAwwJYS5leGFtcGxlMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE\n\
        QmYq0cWRI+L4BXaC8CcTqZLvonfJmq8kaPEEdoOhXygmO1UWdlfb5I+jL5yuJTNi\n\
        Yh3JZTpbYb8pMgEEA9EvcDAKBggqhkjOPQQDAgNIADBFAiA/M8hYCqCWzTYTlj2U\n\
        yT7/bIYEBZ4GQr74CfQIce7wVQIhAPm+97dpMBSA1pZ7UwPy4Dt/K6pmdeXax6MP\n\
        hXdXlfbm\n\
        -----END CERTIFICATE-----\n";
    let directory = TempDir::new().unwrap();
    let (files, _) = write(directory.path(), "a", &["a.example"]);
    fs::write(&files.chain, certificate).unwrap();
    let error = Certificates::from_files(vec![files], Arc::new(provider())).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("a.pem") && error.contains("version 3"), "{error}");
}

#[test]
fn a_chain_that_does_not_begin_with_the_own_certificate_is_explained() {
    let directory = TempDir::new().unwrap();
    let (files, _) = write(directory.path(), "a", &["a.example"]);
    let (other, _) = write(directory.path(), "b", &["b.example"]);
    let text = |path: &Path| fs::read_to_string(path).unwrap();
    fs::write(&files.chain, text(&other.chain) + &text(&files.chain)).unwrap();
    let error = Certificates::from_files(vec![files], Arc::new(provider())).unwrap_err();
    assert!(error.to_string().contains("own certificate first"), "{error}");
}

/// Regression: the error, and so the log, contained every byte of such a key.
#[test]
fn a_key_without_line_ends_is_not_shown() {
    let directory = TempDir::new().unwrap();
    let (files, _) = write(directory.path(), "a", &["a.example"]);
    let whole = fs::read_to_string(&files.key).unwrap();
    let begun = whole.replace("-----END PRIVATE KEY-----", "");
    let read = |chain: &Path| {
        let files = CertificateFiles { chain: chain.into(), key: files.key.clone() };
        let error = Certificates::from_files(vec![files], Arc::new(provider())).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("a.key") && error.contains("section"), "{error}");
        assert!(error.len() < directory.path().as_os_str().len() + 120, "{error}");
    };
    for key in [&whole, &begun] {
        fs::write(&files.key, key.replace('\n', "")).unwrap();
        read(&files.chain);
        // The chain is looked for in the same file.
        read(&files.key);
    }
    assert!(read_roots(&files.key).unwrap_err().to_string().contains("section"));
}

#[test]
fn a_certificate_for_trials_needs_no_file() {
    let certificates = Arc::new(self_signed(vec!["localhost".into(), "127.0.0.1".into()]).unwrap());
    let expected = certificates.default_certificate();
    assert_eq!(shown(&server(&certificates), "localhost"), expected);
    let fingerprint = pollux_tls::fingerprint(&expected);
    assert_eq!(fingerprint.len(), 32 * 3 - 1);
}

#[test]
fn a_certificate_that_is_not_there_yet_has_a_placeholder() {
    let directory = TempDir::new().unwrap();
    let (a, a_der) = write(directory.path(), "a", &["a.example"]);
    let file = directory.path().join("issued.pem");
    let sources = vec![
        CertificateSource::Files(a),
        CertificateSource::Issued { file: file.clone(), name: "b.example".into() },
    ];
    let certificates = Arc::new(Certificates::from_sources(sources, Arc::new(provider())).unwrap());
    let server = server(&certificates);
    assert_eq!(shown(&server, "a.example"), a_der);
    let placeholder = shown(&server, "b.example");
    assert_ne!(placeholder, a_der);

    let (b, b_der) = write(directory.path(), "b", &["b.example"]);
    let both = [fs::read(&b.chain).unwrap(), fs::read(&b.key).unwrap()].concat();
    fs::write(&file, both).unwrap();
    certificates.request_reload();
    assert_eq!(certificates.reload_if_changed(), Reload::Done);
    assert_eq!(shown(&server, "b.example"), b_der);

    fs::write(&file, "damaged").unwrap();
    certificates.request_reload();
    let Reload::Rejected(reason) = certificates.reload_if_changed() else { panic!() };
    assert!(reason.contains("issued.pem"), "{reason}");
    assert_eq!(shown(&server, "b.example"), b_der, "the former stays");
}

#[test]
fn a_challenge_is_answered_to_its_protocol_alone() {
    let directory = TempDir::new().unwrap();
    let folder = directory.path().join("challenges");
    fs::create_dir(&folder).unwrap();
    let (a, a_der) = write(directory.path(), "a", &["a.example"]);
    let (answer, answer_der) = write(directory.path(), "answer", &["a.example"]);
    let both = [fs::read(&answer.chain).unwrap(), fs::read(&answer.key).unwrap()].concat();
    fs::write(folder.join("a.example.pem"), both).unwrap();
    let certificates = Certificates::from_files(vec![a], Arc::new(provider())).unwrap();
    let settings = ServerSettings {
        alpn: vec![b"http/1.1".to_vec(), ACME_TLS_ALPN.to_vec()],
        ..ServerSettings::default()
    };
    let server = settings.build(Arc::new(certificates.with_challenges(folder))).unwrap();
    let shown = |name: &str, alpn: &[&[u8]]| shown_by(&server, name, alpn);
    assert_eq!(shown("A.example", &[ACME_TLS_ALPN]).unwrap(), answer_der);
    // There is no challenge for this name, and none for an address.
    assert_eq!(shown("b.example", &[ACME_TLS_ALPN]), None);
    assert_eq!(shown("192.0.2.1", &[ACME_TLS_ALPN]), None);
    // RFC 8737 §3: an authority offers no other protocol.
    assert_eq!(shown("a.example", &[ACME_TLS_ALPN, b"http/1.1"]).unwrap(), a_der);
    assert_eq!(shown("a.example", &[b"http/1.1"]).unwrap(), a_der);
    assert_eq!(shown("a.example", &[]).unwrap(), a_der);
}
