//! Answers to challenges: the thread that orders certificates writes them, and the server's workers read them.

use crate::{Challenge, Challenges, state};
use instant_acme::KeyAuthorization;
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The path that the authority requests, before the token (RFC 8555 §8.3).
pub const HTTP_PREFIX: &[u8] = b"/.well-known/acme-challenge/";
/// The longest token: it has at least 128 bits (RFC 8555 §8.1), and authorities use 32 to 43 characters.
const TOKEN_BYTES_MAX: usize = 128;

/// The answer to a request for this path; `None` if there is no challenge for it.
pub fn http_answer(folder: &Path, path: &[u8]) -> Option<Vec<u8>> {
    let token = path.strip_prefix(HTTP_PREFIX)?;
    if !is_token(token) {
        return None;
    }
    let answer = fs::read(folder.join(std::str::from_utf8(token).ok()?)).ok()?;
    (!answer.is_empty()).then_some(answer)
}

/// Whether it consists of the characters of a token (base64url), so that it is also the name of a file
/// in one folder.
fn is_token(token: &[u8]) -> bool {
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
    (1..=TOKEN_BYTES_MAX).contains(&token.len()) && token.iter().all(is_allowed)
}

/// An answer that exists until this value is dropped.
#[derive(Debug)]
pub(crate) struct Answer(PathBuf);

impl Answer {
    /// Makes the answer to a challenge available to the server.
    pub(crate) fn publish(
        folders: &Challenges,
        challenge: Challenge,
        name: &str,
        token: &str,
        authorization: &KeyAuthorization,
    ) -> io::Result<Self> {
        let (path, content) = match challenge {
            Challenge::Http01 => {
                if !is_token(token.as_bytes()) {
                    return Err(io::Error::other(
                        "the authority's token has characters that none may have",
                    ));
                }
                (folders.http.join(token), authorization.as_str().to_owned())
            }
            Challenge::TlsAlpn01 => {
                let pem = certificate(name, authorization.digest().as_ref());
                (folders.tls.join(format!("{name}.pem")), pem.map_err(io::Error::other)?)
            }
        };
        state::write(&path, content.as_bytes())?;
        Ok(Self(path))
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Removes the answers of a process that was killed.
pub(crate) fn remove_old(folders: &Challenges) {
    for folder in [&folders.http, &folders.tls] {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.for_each(|entry| drop(fs::remove_file(entry.path())));
    }
}

/// The certificate of RFC 8737 §3, with its key, PEM.
fn certificate(name: &str, digest: &[u8]) -> Result<String, rcgen::Error> {
    let mut params = CertificateParams::new(vec![name.to_owned()])?;
    params.distinguished_name = DistinguishedName::new();
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let key = KeyPair::generate()?;
    Ok(params.self_signed(&key)?.pem() + &key.serialize_pem())
}

#[cfg(test)]
mod tests {
    use super::*;
    use x509_parser::prelude::{FromDer as _, X509Certificate};

    #[test]
    fn only_a_token_is_looked_up() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("a-_9"), "answer").unwrap();
        let answer = |path: &str| http_answer(folder.path(), path.as_bytes());
        assert_eq!(answer("/.well-known/acme-challenge/a-_9").unwrap(), b"answer");
        for path in [
            "/.well-known/acme-challenge/",
            "/.well-known/acme-challenge/other",
            "/.well-known/acme-challenge/../a-_9",
            "/.well-known/acme-challenge/.",
            "/.well-known/acme-challenge/a-_9/",
            "/a-_9",
        ] {
            assert_eq!(answer(path), None, "{path}");
        }
        let long = "a".repeat(TOKEN_BYTES_MAX + 1);
        fs::write(folder.path().join(&long), "answer").unwrap();
        assert_eq!(answer(&format!("/.well-known/acme-challenge/{long}")), None);
    }

    #[test]
    fn the_certificate_of_a_challenge_has_one_name_and_a_critical_identifier() {
        use rustls::pki_types::{CertificateDer, pem::PemObject as _};
        let pem = certificate("x.example", &[7; 32]).unwrap();
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        let (_, parsed) = X509Certificate::from_der(&der).unwrap();
        let names = parsed.subject_alternative_name().unwrap().unwrap();
        assert_eq!(names.value.general_names.len(), 1);
        let identifier = parsed
            .extensions()
            .iter()
            .find(|extension| extension.oid.to_id_string() == "1.3.6.1.5.5.7.1.31")
            .unwrap();
        assert!(identifier.critical);
        assert_eq!(identifier.value, [&[4u8, 32][..], &[7; 32]].concat());
    }
}
