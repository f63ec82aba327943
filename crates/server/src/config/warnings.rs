//! Warnings about files that a configuration names but that this machine cannot use.

use super::{Config, Fault, HubStoreConfig, Key, KeySource, LogTarget, SiteSection, Store};
use crate::auth::Users;
use pollux_http::{date, path::SafePath};
use pollux_tls::{Certificates, OutsideValidity, ValidityFault, provider, read_roots};
use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, path::Path, sync::Arc};

/// Returns a text for each certificate that clients refuse now because of its dates: the file and the date.
pub(crate) fn date_faults(certificates: &Certificates) -> Vec<String> {
    let text = |OutsideValidity { file, reason }: OutsideValidity| {
        let (what, second) = match reason {
            ValidityFault::ExpiredAt(second) => ("has expired on", second),
            ValidityFault::ValidFrom(second) => ("is not valid before", second),
        };
        let date = date::format(second);
        let date = String::from_utf8_lossy(&date);
        format!("{}: the certificate {what} {date}: clients refuse it", file.display())
    };
    certificates.outside_validity().into_iter().map(text).collect()
}

impl Config {
    /// Returns warnings for certificates that cannot be used with their keys or are not valid now, for files of
    /// authorities that cannot be read, for roots that are not directories, for passwords and keys of the hub that
    /// cannot be used, for folders of logs and stores that are missing, and for other files that are missing, pages of
    /// sites included. The configuration may be meant for another machine, so these are not faults.
    pub fn file_warnings(&self) -> Vec<Fault> {
        let mut warnings = Vec::new();
        for list in self.certificate_lists() {
            for (number, pair) in list.pairs().into_iter().enumerate() {
                let read = Certificates::from_files(vec![pair], Arc::new(provider()));
                let faults = read.map_or_else(
                    |error| vec![error.to_string()],
                    |certificates| date_faults(&certificates),
                );
                let key = list.key(&[Key::Name("tls-cert"), Key::Index(number)]);
                warnings.extend(faults.into_iter().map(|fault| Fault::at(&key, fault, "")));
            }
        }
        let mut read = |path: Option<&Path>, key: &[Key<'static>]| {
            if let Some(Err(error)) = path.map(read_roots) {
                warnings.push(Fault::at(key, error.to_string(), ""));
            }
        };
        read(self.tls_client_ca.as_deref(), &[Key::Name("tls-client-ca")]);
        read(self.acme_ca.as_deref(), &[Key::Name("acme-ca")]);
        for (index, site) in self.site.iter().enumerate() {
            let key = [Key::Name("site"), Key::Index(index), Key::Name("origin-ca")];
            read(site.origin_ca.as_deref(), &key);
        }
        for (index, site) in self.site.iter().enumerate() {
            let Some(root) = &site.root else { continue };
            let mut warn = |key: &[Key<'static>], message: String| {
                let key = [&[Key::Name("site"), Key::Index(index)][..], key].concat();
                warnings.push(Fault::at(&key, message, ""));
            };
            let shown = root.display();
            if !root.is_dir() {
                warn(&[Key::Name("root")], format!("{shown} is no directory on this machine"));
                continue;
            }
            for (key, path) in site.pages().filter(|(_, path)| !site.has_page(root, path)) {
                warn(&key, format!("{shown} has no file for the path {path}"));
            }
        }
        for (key, path) in self.files_to_read() {
            if let Err(error) = fs::metadata(path) {
                warnings.push(Fault::at(&key, format!("{}: {error}", path.display()), ""));
            }
        }
        self.warn_of_contents(&mut warnings);
        for (key, path) in self.files_to_write() {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            let folder = folder.unwrap_or(Path::new("."));
            if !folder.is_dir() {
                let message = format!("{} is no folder on this machine", folder.display());
                warnings.push(Fault::at(&key, message, ""));
            }
        }
        warnings
    }

    /// Returns the files that the server makes, in folders that it does not make, each with its key.
    fn files_to_write(&self) -> Vec<(Vec<Key<'static>>, &Path)> {
        let logs = [("access-log", &self.access_log), ("slow-log", &self.slow_log)];
        let logs = logs.into_iter().filter_map(|(name, target)| match &target.as_ref()?.value {
            LogTarget::File(path) => Some((vec![Key::Name(name)], path.as_path())),
            _ => None,
        });
        let hub = self.hub.iter().filter_map(|hub| match &hub.store.as_ref()?.value {
            HubStoreConfig::File(path) => {
                Some((vec![Key::Name("hub"), Key::Name("store")], path.as_path()))
            }
            _ => None,
        });
        let sites = self.site.iter().enumerate().filter_map(|(index, site)| {
            let Store::File(path) = &site.store.as_ref()?.value else { return None };
            let key = vec![Key::Name("site"), Key::Index(index), Key::Name("store")];
            Some((key, path.as_path()))
        });
        logs.chain(hub).chain(sites).collect()
    }

    /// Adds warnings about password files and keys of the hub that are there and cannot be used.
    fn warn_of_contents(&self, warnings: &mut Vec<Fault>) {
        let is_known = |warnings: &[Fault], key: &[Key<'static>]| {
            warnings.iter().any(|warning| warning.key.starts_with(key))
        };
        for (index, site) in self.site.iter().enumerate() {
            for (number, area) in site.basic_auth.iter().enumerate() {
                let key = [
                    Key::Name("site"),
                    Key::Index(index),
                    Key::Name("basic-auth"),
                    Key::Index(number),
                ];
                if !is_known(warnings, &key)
                    && let Err(error) = Users::read(area.value.file())
                {
                    warnings.push(Fault::at(&key, format!("{error:#}"), ""));
                }
            }
        }
        let key = [Key::Name("hub")];
        if let Some(hub) = &self.hub
            && !is_known(warnings, &key)
            && let Err(error) = hub.config().read_keys()
        {
            warnings.push(Fault::at(&key, format!("{error:#}"), ""));
        }
    }

    /// Returns the files without which the server does not start, except those with certificates, each with its key.
    fn files_to_read(&self) -> Vec<(Vec<Key<'static>>, &Path)> {
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
            let template = (key("guestbook-template"), site.guestbook_template.as_deref());
            passwords.chain([template])
        });
        hub.chain(sites).filter_map(|(key, path)| Some((key, path?))).collect()
    }
}

impl SiteSection {
    /// Returns the paths of the pages that replace other responses, each with its key.
    fn pages(&self) -> impl Iterator<Item = (Vec<Key<'static>>, &str)> {
        let fallback = self.fallback.iter().map(|path| (vec![Key::Name("fallback")], &**path));
        let errors = self.error_page.iter().enumerate().map(|(number, page)| {
            (vec![Key::Name("error-page"), Key::Index(number)], page.value.path())
        });
        fallback.chain(errors)
    }

    /// Returns whether `root` has the file that a request for `path` gets.
    fn has_page(&self, root: &Path, path: &str) -> bool {
        let mut scratch = Vec::new();
        let Ok(path) = SafePath::new(path.as_bytes(), &mut scratch) else { return false };
        let file = root.join(OsStr::from_bytes(path.relative()));
        if path.is_directory() {
            self.index.iter().any(|name| file.join(name).is_file())
        } else {
            file.is_file()
        }
    }
}
