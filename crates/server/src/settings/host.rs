//! A site beside the default one.

use super::{FrontendConfig, GuestbookConfig, Realm};
use crate::config::SiteConfig;
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
