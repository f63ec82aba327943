//! The keys about TLS.

use super::{ConfigFile, Fault, Key, SiteSection, Sources, value::TlsVersion};
use crate::config::{
    CertificateFiles, Certificates, ClientCertificates, Config, KernelTlsMode, MinVersion, Tls,
    TlsConfig,
};
use anyhow::bail;
use pollux_tls::provider;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{path::PathBuf, sync::Arc};

/// Names of a certificate for trials.
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
    /// Whether the listeners speak HTTPS.
    pub fn has_tls(&self) -> bool {
        self.tls.is_some() || !self.certificate_files().is_empty() || !self.acme_names().is_empty()
    }

    /// The certificates: those of the server, then those of the sites.
    fn certificate_files(&self) -> Vec<CertificateFiles> {
        let sites = self.site.iter().map(|site| (&site.tls_cert, &site.tls_key));
        let all = [(&self.tls_cert, &self.tls_key)].into_iter().chain(sites);
        all.flat_map(|(chains, keys)| pairs(chains, keys)).collect()
    }

    /// The files that TLS reads.
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

    /// The settings of TLS, for the names of `config` that are ordered by ACME.
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

    /// Selects the challenges of ACME, where names are ordered.
    ///
    /// # Errors
    /// [`Config::prepare_acme`].
    pub fn prepare_acme(&self, config: &mut Config) -> anyhow::Result<()> {
        config.prepare_acme(self.redirect_http.is_some(), &self.client_certificates())
    }

    /// Reads the certificates into `config`, which [`ConfigFile::prepare_acme`] has prepared, where the server
    /// has TLS. `present` replaces them where they have been read before.
    ///
    /// # Errors
    /// [`Tls::new`].
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

    /// What the named files lack on this machine: a pair of certificate and key that cannot be used, or a root that
    /// is no directory. The configuration may be meant for another machine, so these are no faults of it.
    pub fn file_warnings(&self) -> Vec<Fault> {
        let mut warnings = Vec::new();
        let sites = self.site.iter().enumerate().map(|(index, site)| {
            let site_key = vec![Key::Name("site"), Key::Index(index)];
            (site_key, &site.tls_cert, &site.tls_key)
        });
        for (key, chains, keys) in
            [(vec![], &self.tls_cert, &self.tls_key)].into_iter().chain(sites)
        {
            for (number, pair) in pairs(chains, keys).into_iter().enumerate() {
                let unusable = Certificates::from_files(vec![pair], Arc::new(provider()));
                if let Err(error) = unusable {
                    let own = [Key::Name("tls-cert"), Key::Index(number)];
                    warnings.push(Fault::at(&[&key[..], &own].concat(), error.to_string(), ""));
                }
            }
        }
        for (index, site) in self.site.iter().enumerate() {
            let Some(root) = site.root.as_ref().filter(|root| !root.is_dir()) else { continue };
            let key = [Key::Name("site"), Key::Index(index), Key::Name("root")];
            let message = format!("{} is no directory on this machine", root.display());
            warnings.push(Fault::at(&key, message, ""));
        }
        warnings
    }

    /// The faults of the keys about TLS.
    pub(super) fn tls_faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let sites = self.site.iter().enumerate().map(|(index, site)| {
            let site_key = vec![Key::Name("site"), Key::Index(index)];
            (site_key, &site.tls_cert, &site.tls_key)
        });
        for (mut key, chains, keys) in
            [(vec![], &self.tls_cert, &self.tls_key)].into_iter().chain(sites)
        {
            if !keys.is_empty() && keys.len() != chains.len() {
                key.push(Key::Name("tls-key"));
                faults.push(Fault::at(
                    &key,
                    format!("there are {} keys for {} certificates", keys.len(), chains.len()),
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
        let place = sources.place(&[Key::Name("tls-cert")]);
        let place = place.map(|place| format!("{place}: ")).unwrap_or_default();
        let (was, is) = if self.has_tls() { ("HTTP", "HTTPS") } else { ("HTTPS", "HTTP") };
        bail!(
            "{place}tls-cert: the listeners would change from {was} to {is}, which a running server cannot do; undo \
             the change, have a new process take over (pollux ctl upgrade), or restart the server"
        )
    }

    /// Reads the certificates of a running server anew, where other files are named than in `former`. They are
    /// used after [`Tls::replace`].
    ///
    /// # Errors
    /// A pair cannot be used.
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

/// Certificates with their keys. Chain and key may be in one file.
fn pairs(chains: &[PathBuf], keys: &[PathBuf]) -> Vec<CertificateFiles> {
    let keys = if keys.is_empty() { chains } else { keys };
    let pairs = chains.iter().zip(keys);
    pairs.map(|(chain, key)| CertificateFiles { chain: chain.clone(), key: key.clone() }).collect()
}

impl SiteSection {
    /// Adds the field of `hsts`, the site's own or the server's, unless the site sets the field itself.
    pub(super) fn add_hsts(&self, server: &ConfigFile, fields: &mut Vec<(String, String)>) {
        let Some(age) = self.hsts.or(server.hsts) else { return };
        if !fields.iter().any(|(name, _)| name.eq_ignore_ascii_case(HSTS)) {
            fields.push((HSTS.into(), format!("max-age={}", age.0.as_secs())));
        }
    }
}

impl std::str::FromStr for TlsVersion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "1.2" => Ok(Self(MinVersion::Tls12)),
            "1.3" => Ok(Self(MinVersion::Tls13)),
            _ => Err(format!("{text:?} is not a supported version of TLS: use 1.2 or 1.3")),
        }
    }
}

impl std::fmt::Display for TlsVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self.0 {
            MinVersion::Tls12 => "1.2",
            MinVersion::Tls13 => "1.3",
        })
    }
}
