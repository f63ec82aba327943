//! The settings of a TLS server, and the data that is prepared from them before workers start.

use super::kernel::KernelTls;
use crate::config::{ClientCertificates, KernelTlsMode, TlsConfig, date_faults};
use anyhow::Context as _;
use pollux_acme::{Challenge, StateDir};
use pollux_tls::{
    ACME_TLS_ALPN, CertificateSource, Certificates, ClientAuth, Handshake, HandshakeError, Reload,
    ServerSettings, check_secret_log, fingerprint, provider, self_signed,
};
use std::sync::{Arc, PoisonError, RwLock};

/// The TLS state that all workers share: certificates and ticket keys.
#[derive(Debug)]
pub struct Tls {
    settings: ServerSettings,
    /// A reload may replace it, together with the authorities of clients' certificates.
    config: RwLock<Arc<rustls::ServerConfig>>,
    certificates: Arc<Certificates>,
    requests_client_certificates: bool,
    requires_client_certificates: bool,
    kernel: Option<KernelTls>,
}

impl Tls {
    /// Reads the certificates, warns of those whose dates clients refuse, and makes the ticket keys. Must be called
    /// before there are workers: they share certificates and keys.
    ///
    /// # Errors
    /// The error names the file at fault; or the kernel must encrypt and cannot, or there is no place for the secrets.
    pub fn new(config: &TlsConfig) -> anyhow::Result<Self> {
        let kernel = match config.kernel {
            KernelTlsMode::Off => None,
            KernelTlsMode::Send => Some(KernelTls::find().context("--kernel-tls send")?),
        };
        if config.logs_secrets {
            check_secret_log().context("--tls-key-log")?;
        }
        let certificates = if config.certificates.is_empty() && config.acme.is_none() {
            let certificates = self_signed(config.self_signed_names.clone())?;
            let fingerprint = fingerprint(&certificates.default_certificate());
            tracing::info!("a certificate that signs itself, SHA-256 fingerprint {fingerprint}");
            certificates
        } else {
            let certificates = provided(config)?;
            warn_of_dates(&certificates);
            certificates
        };
        let mut alpn = vec![b"http/1.1".to_vec()];
        if config.acme.as_ref().is_some_and(|acme| acme.challenges.contains(&Challenge::TlsAlpn01))
        {
            alpn.push(ACME_TLS_ALPN.to_vec());
        }
        let certificates = Arc::new(certificates);
        let requests_client_certificates = config.client_certificates != ClientCertificates::None;
        let requires_client_certificates =
            matches!(config.client_certificates, ClientCertificates::Required(_));
        let settings = ServerSettings {
            min_version: config.min_version,
            client_auth: match &config.client_certificates {
                ClientCertificates::None => ClientAuth::None,
                ClientCertificates::Optional(path) => ClientAuth::Optional(path.clone()),
                ClientCertificates::Required(path) => ClientAuth::Required(path.clone()),
            },
            alpn,
            logs_secrets: config.logs_secrets,
        };
        let config = settings.build(Arc::clone(&certificates)).context("--tls-client-ca")?;
        Ok(Self {
            settings,
            config: RwLock::new(config),
            certificates,
            requests_client_certificates,
            requires_client_certificates,
            kernel,
        })
    }

    /// Lets the next handshake read certificates that were ordered just now.
    pub(crate) fn look_at_files(&self) {
        self.certificates.request_reload();
    }

    /// Returns the abilities of the kernel; `None` if it does not encrypt long files.
    #[inline]
    pub(super) fn kernel(&self) -> Option<KernelTls> {
        self.kernel
    }

    /// Returns whether the server requests certificates from clients.
    pub(crate) fn requests_client_certificates(&self) -> bool {
        self.requests_client_certificates
    }

    /// Returns whether clients without a certificate are refused.
    pub(crate) fn requires_client_certificates(&self) -> bool {
        self.requires_client_certificates
    }

    /// Begins a handshake, with the certificates that are in their files now.
    pub(super) fn begin(&self) -> Result<Handshake, HandshakeError> {
        self.look_for_new_certificates();
        Handshake::server(self.config())
    }

    /// Reads certificates whose files have changed. A process that forks a child for each connection calls this before
    /// it forks: otherwise each child would read the same files, and log that.
    pub(crate) fn look_for_new_certificates(&self) {
        match self.certificates.reload_if_changed() {
            Reload::Unchanged => {}
            Reload::Done => {
                tracing::info!("new certificates are in use");
                warn_of_dates(&self.certificates);
            }
            Reload::Rejected(reason) => tracing::error!(
                "some new certificates cannot be used, their former ones stay in use: {reason}"
            ),
        }
    }

    fn config(&self) -> Arc<rustls::ServerConfig> {
        Arc::clone(&self.config.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Uses other certificates from now on, and warns of those whose dates clients refuse.
    pub fn replace(&self, certificates: Certificates) {
        warn_of_dates(&certificates);
        self.certificates.replace(certificates);
    }

    /// Reads the certificate files again now, and leaves the present certificates in use until
    /// [`Tls::replace`]. Returns `None` if there are no files. A handshake also reads files that have
    /// changed.
    ///
    /// # Errors
    /// A certificate and its key cannot be used.
    pub fn read_again(&self) -> anyhow::Result<Option<Certificates>> {
        let read = self.certificates.read_again();
        read.context("the new certificates cannot be used, the former ones stay in use")
    }

    /// Reads the authorities of clients' certificates again, and leaves the present ones in use until
    /// [`Tls::use_authorities`]. Returns `None` if no client certificate is requested.
    ///
    /// # Errors
    /// The file cannot be read, or has no authority.
    pub(crate) fn read_authorities_again(
        &self,
    ) -> anyhow::Result<Option<Arc<rustls::ServerConfig>>> {
        if !self.requests_client_certificates {
            return Ok(None);
        }
        // Such a server makes no tickets, so no key of tickets is lost with the present configuration.
        let config = self.settings.build(Arc::clone(&self.certificates));
        config.context("--tls-client-ca: the former authorities stay in use").map(Some)
    }

    /// Verifies the certificates of new connections with other authorities from now on.
    pub(crate) fn use_authorities(&self, config: Arc<rustls::ServerConfig>) {
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
    }
}

fn warn_of_dates(certificates: &Certificates) {
    for fault in date_faults(certificates) {
        tracing::warn!("{fault}");
    }
}

/// Returns the certificates that are in files, or will be once they are issued.
pub(crate) fn provided(config: &TlsConfig) -> anyhow::Result<Certificates> {
    let mut sources: Vec<_> =
        config.certificates.iter().cloned().map(CertificateSource::Files).collect();
    let mut challenges = None;
    if let Some(acme) = &config.acme {
        let state = StateDir::new(&acme.state_dir, &acme.directory);
        sources.extend(acme.names.iter().map(|name| CertificateSource::Issued {
            file: state.certificate(name),
            name: name.clone(),
        }));
        challenges = Some(state.challenges().tls);
    }
    let flags = if config.acme.is_some() {
        "--tls-cert, --tls-key and --acme"
    } else {
        "--tls-cert and --tls-key"
    };
    let certificates = Certificates::from_sources(sources, Arc::new(provider())).context(flags)?;
    Ok(match challenges {
        Some(folder) => certificates.with_challenges(folder),
        None => certificates,
    })
}
