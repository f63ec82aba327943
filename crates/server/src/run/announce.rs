//! What a server says when it has started: what it serves, and where.

use super::say;
use crate::{
    Config, Server,
    config::{Architecture, FrontendConfig, GuestbookConfig, Listen, SiteConfig},
};
use std::sync::Arc;

/// The sentences about a configuration, kept because the server takes the configuration.
pub(super) struct Announcement {
    tls: bool,
    /// What is served: the only site, or how many there are.
    subject: String,
    /// For each of several sites: its names, and what it has.
    sites: Vec<String>,
    frontend: Option<Arc<FrontendConfig>>,
    guestbook: Option<Arc<GuestbookConfig>>,
}

impl Announcement {
    pub(super) fn new(config: &Config) -> Self {
        let default = content(&config.site, config.frontend.is_some());
        let mut sites = Vec::new();
        let mut subject = default.clone();
        if !config.hosts.is_empty() {
            subject = format!("{} sites", config.hosts.len() + 1);
            let names = match &config.default_names[..] {
                [] => "every other name".to_owned(),
                names => format!("{}, and every other name", names.join(", ")),
            };
            sites.push(format!("{names}: {default}"));
            sites.extend(config.hosts.iter().map(|host| {
                let content = content(&host.site, host.frontend.is_some());
                format!("{}: {content}", host.names.join(", "))
            }));
        }
        Self {
            tls: config.tls.is_some(),
            subject,
            sites,
            frontend: config.frontend.clone(),
            guestbook: config.guestbook.clone(),
        }
    }

    /// Prints it for a server that listens.
    pub(super) fn print(&self, server: &Server) {
        let workers = server.workers().len();
        let how = match server.architecture() {
            Architecture::Event => server.mechanism().to_string(),
            Architecture::Forking => "forking".into(),
            Architecture::Preforked => format!("preforked, {workers} processes"),
            threads => format!("{threads}, {workers} threads"),
        };
        for address in server.addresses() {
            let scheme = match (address, self.tls) {
                (Listen::Tcp(_), true) => "https://",
                (Listen::Tcp(_), false) => "http://",
                _ => "",
            };
            say(&format!("pollux serves {} on {scheme}{address} ({how})", self.subject));
        }
        self.sites.iter().for_each(|site| say(site));
        for route in self.frontend.iter().flat_map(|frontend| &frontend.routes) {
            let origin = &route.origin;
            say(&match &route.prefix {
                Some(prefix) => format!("{prefix}/ is passed on to {origin}"),
                None => format!("paths that are not found here are passed on to {origin}"),
            });
        }
        if let Some(address) = server.admin_address() {
            say(&format!("its figures are at {address}"));
        }
        if let Some(guestbook) = &self.guestbook {
            say(&format!("its guestbook is at {}, on {}", guestbook.path, guestbook.store));
        }
    }
}

/// What a site has.
fn content(site: &SiteConfig, has_origins: bool) -> String {
    match &site.directory {
        Some(directory) => directory.display().to_string(),
        None if has_origins => "its origins' pages".to_owned(),
        None => "a guestbook".to_owned(),
    }
}
