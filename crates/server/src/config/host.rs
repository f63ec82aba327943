//! A site beside the default one.

use super::{FrontendConfig, GuestbookConfig, Realm, SiteConfig};
use std::sync::Arc;

/// A site that requests find by their Host.
#[derive(Clone, Debug)]
pub struct VirtualHost {
    /// Its names in lower case: `example.org`, or `*.example.org` for all names below it.
    pub names: Vec<String>,
    /// Its files.
    pub site: SiteConfig,
    /// Its origins.
    pub frontend: Option<Arc<FrontendConfig>>,
    /// Its guestbook.
    pub guestbook: Option<Arc<GuestbookConfig>>,
    /// Its passwords.
    pub auth: Option<Arc<Realm>>,
    /// Fields added to every response: name and value.
    pub headers: Vec<(String, String)>,
    /// The most that it takes of a request's body, at most `Config::limits.body`.
    pub max_body: u64,
}
