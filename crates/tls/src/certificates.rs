//! The certificates of a server: read from files, chosen by the name a client asks for, read again when
//! the files change.

use crate::ConfigError;
use rustls::{
    crypto::CryptoProvider,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

/// How often, at most, the files are looked at.
pub const RELOAD_INTERVAL: Duration = Duration::from_secs(2);
/// How many certificates one server may have.
pub const CERTIFICATES_MAX: usize = 1024;

/// A certificate chain and its key, both PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate, then those of the authorities up to the root.
    pub chain: PathBuf,
    /// The private key: PKCS #8, SEC 1 or PKCS #1.
    pub key: PathBuf,
}

/// The certificates of a server, the first one being the default.
#[derive(Debug)]
pub struct Certificates {
    files: Vec<CertificateFiles>,
    provider: Arc<CryptoProvider>,
    current: RwLock<Arc<Names>>,
    watch: Mutex<Watch>,
    must_reload: AtomicBool,
}

/// What a client's name leads to.
#[derive(Debug)]
struct Names {
    exact: HashMap<Box<str>, Arc<CertifiedKey>>,
    /// By what stands behind "*.".
    wildcards: HashMap<Box<str>, Arc<CertifiedKey>>,
    default: Arc<CertifiedKey>,
}

#[derive(Debug)]
struct Watch {
    looked_at: Instant,
    versions: Vec<Option<Version>>,
}

/// What changes when a file is replaced or written.
type Version = (SystemTime, u64, u64);

/// What became of a reload.
#[derive(Debug, PartialEq, Eq)]
pub enum Reload {
    /// The files have not changed, or were looked at a moment ago.
    Unchanged,
    /// The new certificates are in use.
    Done,
    /// The new ones cannot be used, for this reason; the former stay.
    Rejected(String),
}

impl Certificates {
    /// Reads the files.
    ///
    /// # Errors
    /// A file cannot be read or is not PEM, a key does not belong to its certificate, there are none or
    /// too many.
    pub fn from_files(
        files: Vec<CertificateFiles>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, ConfigError> {
        let versions = versions(&files);
        let loaded = files.iter().map(|files| load(files, &provider));
        let names = Names::new(loaded.collect::<Result<_, _>>()?)?;
        Ok(Self::new(files, provider, names, versions))
    }

    /// One certificate that is in no file.
    ///
    /// # Errors
    /// The key does not belong to the certificate.
    pub fn from_der(
        chain: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, ConfigError> {
        let certified = CertifiedKey::from_der(chain, key, &provider).map_err(|error| {
            ConfigError::new(format!("the certificate cannot be used: {error}"))
        })?;
        let names = Names::new(vec![Arc::new(certified)])?;
        Ok(Self::new(Vec::new(), provider, names, Vec::new()))
    }

    fn new(
        files: Vec<CertificateFiles>,
        provider: Arc<CryptoProvider>,
        names: Names,
        versions: Vec<Option<Version>>,
    ) -> Self {
        let watch = Watch { looked_at: Instant::now(), versions };
        Self {
            files,
            provider,
            current: RwLock::new(Arc::new(names)),
            watch: Mutex::new(watch),
            must_reload: AtomicBool::new(false),
        }
    }

    /// Has the files read at the next [`Certificates::reload_if_changed`], whether they have changed or
    /// not. For a SIGHUP.
    pub fn request_reload(&self) {
        self.must_reload.store(true, Ordering::Release);
    }

    /// Reads the files again if they have changed. Looks at them every [`RELOAD_INTERVAL`] at most, and
    /// may be called as often as one likes: before each handshake, say.
    pub fn reload_if_changed(&self) -> Reload {
        if self.files.is_empty() {
            return Reload::Unchanged;
        }
        let is_requested = self.must_reload.swap(false, Ordering::AcqRel);
        let mut watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_requested && watch.looked_at.elapsed() < RELOAD_INTERVAL {
            return Reload::Unchanged;
        }
        watch.looked_at = Instant::now();
        let versions = versions(&self.files);
        if !is_requested && versions == watch.versions {
            return Reload::Unchanged;
        }
        // Remembered also where they are refused: else each look would read and refuse them anew.
        watch.versions = versions;
        let loaded = self.files.iter().map(|files| load(files, &self.provider));
        match loaded.collect::<Result<_, _>>().and_then(Names::new) {
            Ok(names) => {
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(names);
                Reload::Done
            }
            Err(error) => Reload::Rejected(error.to_string()),
        }
    }

    /// The default certificate, DER.
    pub fn default_certificate(&self) -> CertificateDer<'static> {
        self.names().default.cert[0].clone()
    }

    fn names(&self) -> Arc<Names> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let names = self.names();
        // An unknown name gets the default: the client decides whether to accept it.
        let certified = hello.server_name().and_then(|name| names.find(name));
        Some(Arc::clone(certified.unwrap_or(&names.default)))
    }
}

impl Names {
    fn new(all: Vec<Arc<CertifiedKey>>) -> Result<Self, ConfigError> {
        if all.len() > CERTIFICATES_MAX {
            return Err(ConfigError::new(format!("at most {CERTIFICATES_MAX} certificates")));
        }
        let Some(default) = all.first().cloned() else {
            return Err(ConfigError::new("no certificate is given".into()));
        };
        let (mut exact, mut wildcards) = (HashMap::new(), HashMap::new());
        for certified in all {
            for name in names_of(&certified) {
                let name = name.to_ascii_lowercase();
                // The first certificate that has a name keeps it.
                let (map, name) = match name.strip_prefix("*.") {
                    Some(rest) => (&mut wildcards, rest.into()),
                    None => (&mut exact, name.into()),
                };
                map.entry(name).or_insert_with(|| Arc::clone(&certified));
            }
        }
        Ok(Self { exact, wildcards, default })
    }

    /// RFC 6125 §6.4.3: "*" stands for exactly one label, the first.
    fn find(&self, name: &str) -> Option<&Arc<CertifiedKey>> {
        let name = name.to_ascii_lowercase();
        let name = name.strip_suffix('.').unwrap_or(&name);
        let wildcard = || self.wildcards.get(name.split_once('.')?.1);
        self.exact.get(name).or_else(wildcard)
    }
}

/// The DNS names of a certificate.
fn names_of(certified: &CertifiedKey) -> Vec<String> {
    let Some(certificate) = certified.cert.first() else { return Vec::new() };
    let parsed = webpki::EndEntityCert::try_from(certificate);
    parsed.map_or_else(|_| Vec::new(), |cert| cert.valid_dns_names().map(String::from).collect())
}

fn load(
    files: &CertificateFiles,
    provider: &CryptoProvider,
) -> Result<Arc<CertifiedKey>, ConfigError> {
    let fail = |path: &Path, reason: &dyn std::fmt::Display| {
        ConfigError::new(format!("{}: {reason}", path.display()))
    };
    let chain = CertificateDer::pem_file_iter(&files.chain)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| fail(&files.chain, &error))?;
    if chain.is_empty() {
        return Err(fail(&files.chain, &"no certificate is in it (PEM, BEGIN CERTIFICATE)"));
    }
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|error| fail(&files.key, &error))?;
    let certified = CertifiedKey::from_der(chain, key, provider);
    certified.map(Arc::new).map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => {
            let reason = format!("the key does not belong to {}", files.chain.display());
            fail(&files.key, &reason)
        }
        error => fail(&files.chain, &error),
    })
}

fn versions(files: &[CertificateFiles]) -> Vec<Option<Version>> {
    use std::os::unix::fs::MetadataExt as _;
    let version = |path: &Path| {
        let metadata = fs::metadata(path).ok()?;
        Some((metadata.modified().ok()?, metadata.len(), metadata.ino()))
    };
    files.iter().flat_map(|files| [version(&files.chain), version(&files.key)]).collect()
}
