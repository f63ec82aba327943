//! Warnings about files that a configuration names but that this machine cannot use.

use super::{Config, Fault, Key, KeySource};
use pollux_tls::{Certificates, provider};
use std::{fs, path::Path, sync::Arc};

impl Config {
    /// Returns warnings for certificates that cannot be used with their keys, for roots that are not
    /// directories, and for other files that are missing. The configuration may be meant for another
    /// machine, so these are not faults.
    pub fn file_warnings(&self) -> Vec<Fault> {
        let mut warnings = Vec::new();
        for list in self.certificate_lists() {
            for (number, pair) in list.pairs().into_iter().enumerate() {
                if let Err(error) = Certificates::from_files(vec![pair], Arc::new(provider())) {
                    let key = list.key(&[Key::Name("tls-cert"), Key::Index(number)]);
                    warnings.push(Fault::at(&key, error.to_string(), ""));
                }
            }
        }
        for (index, site) in self.site.iter().enumerate() {
            if let Some(root) = site.root.as_ref().filter(|root| !root.is_dir()) {
                let key = [Key::Name("site"), Key::Index(index), Key::Name("root")];
                let message = format!("{} is no directory on this machine", root.display());
                warnings.push(Fault::at(&key, message, ""));
            }
        }
        for (key, path) in self.files_to_read() {
            if let Err(error) = fs::metadata(path) {
                warnings.push(Fault::at(&key, format!("{}: {error}", path.display()), ""));
            }
        }
        warnings
    }

    /// Returns the files without which the server does not start, except certificates, each with its key.
    fn files_to_read(&self) -> Vec<(Vec<Key<'static>>, &Path)> {
        let server = [("tls-client-ca", &self.tls_client_ca), ("acme-ca", &self.acme_ca)]
            .map(|(name, path)| (vec![Key::Name(name)], path.as_deref()));
        let hub = self.hub.iter().flat_map(|hub| {
            let jwks = match hub.jwks.as_ref().map(|source| &source.value) {
                Some(KeySource::File(path)) => Some(path.as_path()),
                _ => None,
            };
            [
                ("jwt-key", hub.jwt_key.as_deref()),
                ("jwks", jwks),
                ("jwks-ca", hub.jwks_ca.as_deref()),
                ("publisher-key", hub.publisher_key.as_deref()),
            ]
            .map(|(name, path)| (vec![Key::Name("hub"), Key::Name(name)], path))
        });
        let sites = self.site.iter().enumerate().flat_map(|(index, site)| {
            let key = move |name| vec![Key::Name("site"), Key::Index(index), Key::Name(name)];
            let passwords = site.basic_auth.iter().enumerate().map(move |(number, area)| {
                ([key("basic-auth"), vec![Key::Index(number)]].concat(), Some(area.value.file()))
            });
            let others = [
                ("origin-ca", site.origin_ca.as_deref()),
                ("guestbook-template", site.guestbook_template.as_deref()),
            ]
            .map(|(name, path)| (key(name), path));
            passwords.chain(others)
        });
        let all = server.into_iter().chain(hub).chain(sites);
        all.filter_map(|(key, path)| Some((key, path?))).collect()
    }
}
