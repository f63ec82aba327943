//! The keys about TLS.

use super::{ConfigFile, Fault, Key, SiteSection, Sources};
use crate::config::{
    CertificateFiles, Certificates, ClientCertificates, Config, KernelTlsMode, MinVersion, Tls,
    TlsConfig,
};
use anyhow::bail;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, sync::Arc};

/// The names in a self-signed certificate for trials.
const TRIAL_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "::1"];
/// The field that `hsts` sets.
const HSTS: &str = "Strict-Transport-Security";

/// A certificate that is not in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TrialCertificate {
    /// It is made at the start, and signs itself.
    SelfSigned,
}

impl ConfigFile {
    /// Returns whether the listeners use HTTPS.
    pub fn has_tls(&self) -> bool {
        self.tls.is_some() || !self.certificate_files().is_empty() || !self.acme_names().is_empty()
    }

    /// Returns the certificates with their keys: those of the server, then those of the sites.
    fn certificate_files(&self) -> Vec<CertificateFiles> {
        self.certificate_lists().into_iter().flat_map(|list| list.pairs()).collect()
    }

    /// Returns the lists that name certificates.
    pub(super) fn certificate_lists(&self) -> Vec<CertificateList<'_>> {
        let server = CertificateList { table: vec![], chains: &self.tls_cert, keys: &self.tls_key };
        let sites = self.site.iter().enumerate().map(|(index, site)| CertificateList {
            table: vec![Key::Name("site"), Key::Index(index)],
            chains: &site.tls_cert,
            keys: &site.tls_key,
        });
        std::iter::once(server).chain(sites).collect()
    }

    /// Returns the files that TLS reads.
    pub(crate) fn tls_files(&self) -> Vec<PathBuf> {
        let pairs = self.certificate_files().into_iter().flat_map(|pair| [pair.chain, pair.key]);
        pairs.chain(self.tls_client_ca.clone()).collect()
    }

    fn client_certificates(&self) -> ClientCertificates {
        match self.tls_client_ca.clone() {
            None => ClientCertificates::None,
            Some(path) if self.tls_client_optional => ClientCertificates::Optional(path),
            Some(path) => ClientCertificates::Required(path),
        }
    }

    /// Returns the settings of TLS, including the names of `config` for which ACME orders
    /// certificates.
    pub(super) fn tls_config(&self, config: &Config) -> TlsConfig {
        TlsConfig {
            certificates: self.certificate_files(),
            acme: config.acme.clone(),
            min_version: self.tls_min.map_or(MinVersion::Tls12, |version| version.0),
            client_certificates: self.client_certificates(),
            self_signed_names: TRIAL_NAMES.map(String::from).to_vec(),
            logs_secrets: self.tls_key_log,
            kernel: self.kernel_tls,
        }
    }

    /// Selects the challenges of ACME, if certificates are ordered.
    ///
    /// # Errors
    /// The errors of [`Config::prepare_acme`].
    pub fn prepare_acme(&self, config: &mut Config) -> anyhow::Result<()> {
        config.prepare_acme(self.redirect_http.is_some(), &self.client_certificates())
    }

    /// Reads the certificates into `config`, which [`ConfigFile::prepare_acme`] has prepared, if
    /// the server has TLS. `present` is used instead if the certificates have been read before.
    ///
    /// # Errors
    /// The errors of [`Tls::new`].
    pub fn open_tls(&self, config: &mut Config, present: Option<Arc<Tls>>) -> anyhow::Result<()> {
        if !self.has_tls() {
            return Ok(());
        }
        config.tls = Some(match present {
            Some(present) => present,
            None => Arc::new(Tls::new(&self.tls_config(config))?),
        });
        Ok(())
    }

    /// Returns the faults of the keys about TLS.
    pub(super) fn tls_faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        for list in self.certificate_lists() {
            if !list.keys.is_empty() && list.keys.len() != list.chains.len() {
                let (keys, chains) = (list.keys.len(), list.chains.len());
                faults.push(Fault::at(
                    &list.key(&[Key::Name("tls-key")]),
                    format!("there are {keys} keys for {chains} certificates"),
                    "name a key for each tls-cert, in the same order; leave out tls-key if the files of the \
                     certificates contain the keys",
                ));
            }
        }
        let mut add = |name, message: &str, help: &str| {
            faults.push(Fault::at(&[Key::Name(name)], message, help));
        };
        if self.tls.is_some()
            && !(self.certificate_files().is_empty() && self.acme_names().is_empty())
        {
            let message = "self-signed and other certificates (tls-cert, acme) exclude each other";
            add("tls", message, "remove one of them");
        }
        if self.tls_client_optional && self.tls_client_ca.is_none() {
            let message = "no authority is named whose certificates clients may show";
            add("tls-client-optional", message, "add tls-client-ca");
        }
        if !self.has_tls() {
            let useless = [
                ("tls-min", self.tls_min.is_some()),
                ("tls-client-ca", self.tls_client_ca.is_some()),
                ("tls-key-log", self.tls_key_log),
                ("kernel-tls", self.kernel_tls != KernelTlsMode::Off),
                ("redirect-http", self.redirect_http.is_some()),
                ("hsts", self.hsts.is_some() || self.site.iter().any(|site| site.hsts.is_some())),
            ];
            for (name, _) in useless.into_iter().filter(|(_, is_set)| *is_set) {
                add(
                    name,
                    "the server has no TLS",
                    "add --tls-cert FILE --tls-key FILE, --acme NAME, or --tls self-signed",
                );
            }
        }
        faults
    }

    /// Checks that a running server, which was started with `former`, can use these keys.
    pub(super) fn keep_tls(&self, former: &Self, sources: &Sources) -> anyhow::Result<()> {
        if self.has_tls() == former.has_tls() {
            return Ok(());
        }
        let location = sources.location(&[Key::Name("tls-cert")]);
        let location = location.map(|location| format!("{location}: ")).unwrap_or_default();
        let (was, is) = if self.has_tls() { ("HTTP", "HTTPS") } else { ("HTTPS", "HTTP") };
        bail!(
            "{location}tls-cert: the listeners would change from {was} to {is}, which a running server cannot do; undo \
             the change, have a new process take over (pollux ctl upgrade), or restart the server"
        )
    }

    /// Reads the certificates again for a running server, if their files are not the same as in
    /// `former`. They are used after [`Tls::replace`].
    ///
    /// # Errors
    /// A certificate and its key cannot be used together.
    pub fn changed_certificates(
        &self,
        former: &Self,
        config: &Config,
    ) -> anyhow::Result<Option<Certificates>> {
        if self.certificate_files() == former.certificate_files() || self.tls.is_some() {
            return Ok(None);
        }
        crate::transport::tls::provided(&self.tls_config(config)).map(Some)
    }
}

/// The certificates and keys that one table of the file names.
pub(super) struct CertificateList<'c> {
    /// The key of the table.
    table: Vec<Key<'static>>,
    chains: &'c [PathBuf],
    keys: &'c [PathBuf],
}

impl CertificateList<'_> {
    /// Returns each certificate with its key, which may be in the same file.
    pub(super) fn pairs(&self) -> Vec<CertificateFiles> {
        let keys = if self.keys.is_empty() { self.chains } else { self.keys };
        let pairs = self.chains.iter().zip(keys);
        pairs
            .map(|(chain, key)| CertificateFiles { chain: chain.clone(), key: key.clone() })
            .collect()
    }

    /// Returns the full key of a value in the table.
    pub(super) fn key(&self, own: &[Key<'static>]) -> Vec<Key<'static>> {
        [&self.table, own].concat()
    }
}

impl SiteSection {
    /// Adds the field for `hsts` (the site's value or the server's), unless the site sets the field
    /// itself.
    pub(super) fn add_hsts(&self, server: &ConfigFile, fields: &mut Vec<(String, String)>) {
        let Some(age) = self.hsts.or(server.hsts) else { return };
        if !fields.iter().any(|(name, _)| name.eq_ignore_ascii_case(HSTS)) {
            fields.push((HSTS.into(), format!("max-age={}", age.0.as_secs())));
        }
    }
}
