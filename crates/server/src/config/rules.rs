//! The keys of a site from which its [`SiteRules`] are made.

use super::{SiteSection, Text};
use crate::config::SiteRules;

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
