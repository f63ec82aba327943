//! Basic authentication (RFC 7617): the paths that need passwords, and the check of a request's password.
//!
//! A hash that resists guessing takes some 50 ms to compute, and an event loop must not block for that time.
//! The loop passes the password to a [thread](verify) of the worker, the exchange waits, and credentials that
//! were right are remembered. Workers that serve a single connection verify the password in line.
//!
//! # Which paths
//!
//! A request is judged by its path in the form in which services read it: decoded once, with dot segments
//! resolved ([`pollux_http::path::SafePath`]). An origin, or the file system of a site, may read paths in
//! another way, so the comparison is wider:
//! - ASCII case is ignored. In each segment, dots and spaces at the end are ignored, and so is the text after
//!   a semicolon.
//! - If dot segments were resolved, the path without that step is compared as well. If the two paths are in
//!   different areas, the request is refused.
//! - A path that is not safe, for example one with an encoded slash, is refused, unless the whole site is one
//!   area.
//!
//! The wider comparison may protect a path without need; it never makes one public.

mod area;
mod users;
mod verify;

pub use area::BasicAuth;
pub(crate) use users::Users;
pub use users::{PASSWORD_BYTES_MAX, password_line};
pub(crate) use verify::{Attempt, Outcome, Verification, Verifier};

use area::Areas;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use pollux_http::request::Request;
use sha2::{Digest, Sha256};
use std::{collections::HashMap, sync::Arc};
use verify::CredentialCache;

/// The maximum length of encoded credentials. Longer ones are wrong.
const CREDENTIALS_BYTES_MAX: usize = 1024;

/// The paths of a site that need passwords, and the users of each path. All workers share it.
#[derive(Debug)]
pub struct Realm {
    areas: Areas,
    /// The header line `WWW-Authenticate`.
    challenge: String,
    /// Whether passwords are forwarded to origins.
    forwards: bool,
    /// The digest of the password files, which shows whether a file has changed.
    digest: [u8; 32],
    known: CredentialCache,
}

/// Returns whether browsers can be given this name of a realm: whether a quoted string can have its characters.
pub(crate) fn is_realm_name(name: &str) -> bool {
    let is_plain = |b: u8| (b' '..=b'~').contains(&b) && b != b'"' && b != b'\\';
    !name.is_empty() && name.bytes().all(is_plain)
}

/// Whether a request may be answered.
pub(crate) enum Judgment {
    /// Its path needs no password.
    Open,
    /// Its password is right. The value is the name of the user.
    Granted(Box<[u8]>),
    /// It has no password, or a wrong one.
    Refused,
    /// Its path can be read in several ways.
    Ambiguous,
    /// The password must be verified.
    Unverified(Attempt),
}

impl Realm {
    /// Reads the password files. `name` is the name that a browser shows when it asks for a password.
    ///
    /// # Errors
    /// A file cannot be read, a line of it is not a name and a hash, or the name has characters that a quoted
    /// string cannot have.
    pub fn open(areas: &[BasicAuth], name: &str, forwards: bool) -> anyhow::Result<Self> {
        anyhow::ensure!(
            is_realm_name(name),
            "basic-auth-realm: {name:?} is empty or has other than printable ASCII without quotes"
        );
        let (mut files, mut digest, mut opened) = (HashMap::new(), Sha256::new(), Vec::new());
        for area in areas {
            let users = match files.get(area.file()) {
                Some(users) => Arc::clone(users),
                None => {
                    let (users, bytes) = Users::read(area.file())?;
                    digest.update(Sha256::digest(bytes));
                    let users = Arc::new(users);
                    files.insert(area.file(), users.clone());
                    users
                }
            };
            opened.push((area, users));
        }
        let areas = Areas::new(opened)?;
        let challenge = format!("WWW-Authenticate: Basic realm=\"{name}\", charset=\"UTF-8\"\r\n");
        let digest = digest.finalize().into();
        Ok(Self { areas, challenge, forwards, digest, known: CredentialCache::new() })
    }

    /// Returns the header line of the response to a request without the right password.
    pub(crate) fn challenge(&self) -> &[u8] {
        self.challenge.as_bytes()
    }

    /// Returns whether passwords are forwarded to origins.
    pub(crate) fn forwards(&self) -> bool {
        self.forwards
    }

    /// Returns whether both were read from the same password files.
    pub fn has_same_files(&self, other: &Self) -> bool {
        self.digest == other.digest
    }

    /// Judges a request by its path and its credentials.
    pub(crate) fn judge(&self, request: &Request<'_>) -> Judgment {
        let area = match self.areas.find(&request.target) {
            Ok(Some(area)) => area,
            Ok(None) => return Judgment::Open,
            Err(area::Ambiguous) => return Judgment::Ambiguous,
        };
        let Some(Credentials { name, password }) = credentials(request) else {
            return Judgment::Refused;
        };
        let key = self.known.key(area as u64, &[&name, &b":"[..], &password].concat());
        if self.known.has(&key) {
            return Judgment::Granted(name);
        }
        let stand_in = self.known.key(u64::MAX, &name);
        let users = self.areas.users(area).clone();
        // A name that is not valid UTF-8 becomes the empty name, which no user has.
        let name = String::from_utf8(name.into()).unwrap_or_default().into();
        Judgment::Unverified(Attempt { users, key, stand_in, name, password })
    }
}

/// The name and the password that a client has sent.
#[derive(PartialEq, Eq)]
struct Credentials {
    name: Box<[u8]>,
    password: Box<[u8]>,
}

/// Returns the name and the password of a request that has exactly one `Authorization` field.
fn credentials(request: &Request<'_>) -> Option<Credentials> {
    let mut lines = request.fields().filter(|field| field.is(b"authorization"));
    let (value, None) = (lines.next()?.value, lines.next()) else { return None };
    let (scheme, encoded) = value.split_at_checked(6)?;
    if !scheme.eq_ignore_ascii_case(b"basic ") || encoded.len() > CREDENTIALS_BYTES_MAX {
        return None;
    }
    let decoded = STANDARD.decode(encoded.trim_ascii()).ok()?;
    // RFC 7617 §2 allows no control characters, and for bcrypt, `a\0a` is the same password as `a`.
    if decoded.iter().any(u8::is_ascii_control) {
        return None;
    }
    let colon = decoded.iter().position(|byte| *byte == b':')?;
    Some(Credentials { name: decoded[..colon].into(), password: decoded[colon + 1..].into() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_http::{
        Limits,
        request::{ParseStatus, parse},
    };

    const USER: &str = "u:$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n";

    fn judge(realm: &Realm, path: &str, credentials: &str) -> &'static str {
        let field = match credentials {
            "" => String::new(),
            text => format!("Authorization: Basic {}\r\n", STANDARD.encode(text)),
        };
        let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\n{field}\r\n");
        let Ok(ParseStatus::Complete { request, .. }) = parse(head.as_bytes(), &Limits::DEFAULT)
        else {
            panic!("{head}")
        };
        match realm.judge(&request) {
            Judgment::Open => "open",
            Judgment::Granted(name) => {
                assert_eq!(&*name, b"u");
                "granted"
            }
            Judgment::Refused => "refused",
            Judgment::Ambiguous => "ambiguous",
            Judgment::Unverified(attempt) if attempt.verify(realm) => "right",
            Judgment::Unverified(_) => "wrong",
        }
    }

    fn realm(prefixes: &[&str]) -> (Realm, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("users");
        std::fs::write(&file, USER).unwrap();
        let area = |prefix: &&str| format!("{prefix}/={}", file.display()).parse().unwrap();
        let areas: Vec<_> = prefixes.iter().map(area).collect();
        (Realm::open(&areas, "a", false).unwrap(), directory)
    }

    #[test]
    fn only_the_right_credentials_are_accepted() {
        let (realm, _directory) = realm(&["/admin"]);
        assert_eq!(judge(&realm, "/", ""), "open");
        assert_eq!(judge(&realm, "/admin%2fx", "u:secret"), "ambiguous");
        for (credentials, expected) in [
            ("", "refused"),
            ("nocolon", "refused"),
            ("u:secret\0", "refused"),
            ("u:secret\0secret", "refused"),
            ("u:wrong", "wrong"),
            ("v:secret", "wrong"),
            (":", "wrong"),
            ("u:secret", "right"),
            ("u:secret", "granted"),
            ("u:wrong", "wrong"),
        ] {
            assert_eq!(judge(&realm, "/admin", credentials), expected, "{credentials:?}");
        }
        // Credentials that were right in one area are not accepted in another one without verification.
        let (two, _directory) = self::realm(&["/a", "/b"]);
        assert_eq!(judge(&two, "/a", "u:secret"), "right");
        assert_eq!(judge(&two, "/b", "u:secret"), "right");
    }

    #[test]
    fn credentials_are_read_once_and_in_one_scheme() {
        let head = |fields: &str| format!("GET / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let basic = format!("Authorization: bAsIc  {}\r\n", STANDARD.encode("a:b:c"));
        let long = format!("Authorization: Basic {}\r\n", STANDARD.encode([b'a'; 2000]));
        for (fields, is_read) in [
            (basic.clone(), true),
            (basic.repeat(2), false),
            (basic.replace("bAsIc ", "Bearer"), false),
            ("Authorization: Basic !\r\n".into(), false),
            ("Authorization: B\u{e9}\u{e9}\u{e9}\r\n".into(), false),
            (long, false),
            (String::new(), false),
        ] {
            let head = head(&fields);
            let Ok(ParseStatus::Complete { request, .. }) =
                parse(head.as_bytes(), &Limits::DEFAULT)
            else {
                panic!("{head}")
            };
            let expected =
                is_read.then(|| Credentials { name: b"a"[..].into(), password: b"b:c"[..].into() });
            assert!(credentials(&request) == expected, "{fields}");
        }
    }

    #[test]
    fn other_files_are_noticed_and_faults_refused() {
        let (realm, directory) = realm(&[""]);
        let file = directory.path().join("users");
        let area: BasicAuth = file.display().to_string().parse().unwrap();
        let open = |areas: &[BasicAuth], name| Realm::open(areas, name, false);
        let areas = [area.clone()];
        assert!(open(&areas, "a").unwrap().has_same_files(&realm));
        std::fs::write(&file, format!("# new\n{USER}")).unwrap();
        assert!(!open(&areas, "a").unwrap().has_same_files(&realm));
        assert!(open(&areas, "a\"b").is_err());
        assert!(open(&[area.clone(), area], "a").is_err());
        std::fs::remove_file(&file).unwrap();
        assert!(open(&areas, "a").unwrap_err().to_string().contains("basic-auth"));
    }
}
