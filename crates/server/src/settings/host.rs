//! A site beside the default one.

use super::{FrontendConfig, GuestbookConfig, Realm};
use crate::config::{OWN_FIELDS, SiteConfig};
use anyhow::ensure;
use pollux_http::Limits;
use std::sync::Arc;

/// A site that is selected by the Host of a request.
#[derive(Clone, Debug)]
pub struct VirtualHost {
    /// Its names in lower case: `example.org`, or `*.example.org` for all names below
    /// `example.org`.
    pub names: Vec<String>,
    /// Its files.
    pub site: SiteConfig,
    /// Its origins.
    pub frontend: Option<Arc<FrontendConfig>>,
    /// Its guestbook.
    pub guestbook: Option<Arc<GuestbookConfig>>,
    /// Its passwords.
    pub auth: Option<Arc<Realm>>,
    /// Fields that are added to every response, as name and value.
    pub headers: Vec<(String, String)>,
    /// The maximum size of a request's body, at most `Settings::limits.body`.
    pub max_body: u64,
}

impl VirtualHost {
    /// Returns a site with these names and files, and nothing else.
    pub fn new(names: &[&str], site: SiteConfig) -> Self {
        Self {
            names: names.iter().map(|&name| name.into()).collect(),
            site,
            frontend: None,
            guestbook: None,
            auth: None,
            headers: Vec::new(),
            max_body: Limits::DEFAULT.body,
        }
    }

    /// Returns the parts that are checked.
    pub(super) fn parts(&self) -> SiteParts<'_> {
        SiteParts {
            site: &self.site,
            frontend: self.frontend.as_deref(),
            guestbook: self.guestbook.as_deref(),
            headers: &self.headers,
        }
    }
}

/// The parts of a site, of the default one or another, that are checked.
#[derive(Debug)]
pub(super) struct SiteParts<'a> {
    pub(super) site: &'a SiteConfig,
    pub(super) frontend: Option<&'a FrontendConfig>,
    pub(super) guestbook: Option<&'a GuestbookConfig>,
    pub(super) headers: &'a [(String, String)],
}

impl SiteParts<'_> {
    /// Checks that the values are valid together. `has_tls` says whether the listeners use HTTPS.
    ///
    /// # Errors
    /// The message names the setting at fault.
    pub(super) fn check(&self, has_tls: bool) -> anyhow::Result<()> {
        ensure!(
            !has_tls || self.frontend.is_none_or(|frontend| frontend.handovers.is_empty()),
            "--handover passes a connection on, and its TLS session cannot go with it: serve that prefix \
             with --origin, or without TLS"
        );
        for (name, value) in self.headers {
            ensure!(
                !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'),
                "header {name:?}: not a field name"
            );
            ensure!(
                value.bytes().all(|b| b == b'\t' || (b' '..0x7f).contains(&b)),
                "header {name:?}: its value holds characters other than printable ASCII"
            );
            ensure!(
                !OWN_FIELDS.contains(&name.to_ascii_lowercase().as_str()),
                "header {name:?}: the server writes this field itself"
            );
        }
        if let Some(guestbook) = self.guestbook {
            guestbook.check()?;
        }
        if let Some(frontend) = self.frontend {
            frontend.check()?;
        }
        self.site.rules.check()?;
        for index in &self.site.index {
            ensure!(
                !index.is_empty() && !index.contains(['/', '\0']),
                "index {index:?}: a file name is wanted, without a slash"
            );
        }
        Ok(())
    }
}
