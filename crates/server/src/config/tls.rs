//! The keys about TLS.

use super::{Config, Fault, Key, SiteSection, Sources};
use crate::{
    config::{CertificateFiles, ClientCertificates, KernelTlsMode},
    policy::HSTS,
};
use anyhow::bail;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// A certificate that is not in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum TrialCertificate {
    /// It is made at the start, and signs itself.
    SelfSigned,
}

impl Config {
    /// Returns whether the listeners use HTTPS.
    pub fn has_tls(&self) -> bool {
        self.tls.is_some() || !self.certificate_files().is_empty() || !self.acme_names().is_empty()
    }

    /// Returns whether the listeners or an origin use HTTPS, so that the server has keys of connections.
    pub fn has_tls_keys(&self) -> bool {
        let mut origins = self.site.iter().flat_map(|site| &site.origin);
        self.has_tls() || origins.any(|route| route.value.origin.tls_name().is_some())
    }

    /// Returns the certificates with their keys: those of the server, then those of the sites.
    pub(crate) fn certificate_files(&self) -> Vec<CertificateFiles> {
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

    pub(crate) fn client_certificates(&self) -> ClientCertificates {
        match self.tls_client_ca.clone() {
            None => ClientCertificates::None,
            Some(path) if self.tls_client_optional => ClientCertificates::Optional(path),
            Some(path) => ClientCertificates::Required(path),
        }
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
        let has_handover = |site: &SiteSection| self.has_tls() && !site.handover.is_empty();
        for (index, _) in self.site.iter().enumerate().filter(|(_, site)| has_handover(site)) {
            faults.push(Fault::at(
                &[Key::Name("site"), Key::Index(index), Key::Name("handover")],
                "a connection with TLS cannot be handed over: its session stays here",
                "use `origin` (--origin) for these paths, or serve them without TLS",
            ));
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
    pub(crate) fn add_hsts(&self, server: &Config, fields: &mut Vec<(String, String)>) {
        let Some(age) = self.hsts.or(server.hsts) else { return };
        if !fields.iter().any(|(name, _)| name.eq_ignore_ascii_case(HSTS)) {
            fields.push((HSTS.into(), format!("max-age={}", age.0.as_secs())));
        }
    }
}
