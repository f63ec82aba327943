//! Warnings about files that a configuration names but that this machine cannot use.

use super::{Config, Fault, Key};
use pollux_tls::{Certificates, provider};
use std::sync::Arc;

impl Config {
    /// Returns warnings for certificates that cannot be used with their keys, and for roots that
    /// are not directories. The configuration may be meant for another machine, so these are not
    /// faults.
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
        warnings
    }
}
