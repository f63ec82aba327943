//! The keys of a site from which its [`SiteRules`] are made.

use super::{Config, Fault, Key, SiteSection, Text};
use crate::config::SiteRules;

impl Config {
    /// Returns the faults of redirects that lead to one another without an end.
    pub(super) fn redirect_faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        for (index, site) in self.site.iter().enumerate() {
            for number in site.rules().endless_redirects() {
                let key = [
                    Key::Name("site"),
                    Key::Index(index),
                    Key::Name("redirect"),
                    Key::Index(number),
                ];
                let message = "its clients would be redirected again and again, and never arrive";
                let help = "take a target that no redirect of this site matches";
                faults.push(Fault::at(&key, message, help));
            }
        }
        faults
    }
}

impl SiteSection {
    /// Returns the rules that the keys set.
    pub(crate) fn rules(&self) -> SiteRules {
        SiteRules {
            redirects: values(&self.redirect),
            rewrites: values(&self.rewrite),
            cors: self
                .cors
                .as_ref()
                .map(|cors| cors.value.clone().with_credentials(self.cors_credentials)),
            security_headers: self.security_headers.as_ref().map(|preset| preset.value),
            fields: values(&self.header_for),
            error_pages: values(&self.error_page),
            fallback: self.fallback.clone(),
            listing: self.listing,
        }
    }
}

fn values<T: Clone>(texts: &[Text<T>]) -> Vec<T> {
    texts.iter().map(|text| text.value.clone()).collect()
}
