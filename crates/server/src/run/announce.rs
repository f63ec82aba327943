//! The messages that a server prints when it has started: what it serves, and its addresses.

use super::say;
use crate::{
    Server, Settings,
    config::{Architecture, HubConfig, Listen, SiteConfig},
    settings::{FrontendConfig, GuestbookConfig},
};

/// The messages about a configuration. They are made before the server takes the configuration.
pub(super) struct Announcement {
    tls: bool,
    /// The content that is served: that of the only site, or the number of sites.
    subject: String,
    /// The origins, handovers, guestbook and hub; with several sites, the names and the content of each site
    /// come first.
    details: Vec<String>,
}

impl Announcement {
    pub(super) fn new(config: &Settings) -> Self {
        let frontend = config.frontend.as_deref();
        let default =
            content(&config.site, frontend, config.guestbook.is_some(), config.hub.is_some());
        let default_details = details(frontend, config.guestbook.as_deref(), config.hub.as_deref());
        let tls = config.tls.is_some();
        if config.hosts.is_empty() {
            return Self { tls, subject: default, details: default_details };
        }
        let names = match &config.default_names[..] {
            [] => "every other name".to_owned(),
            names => format!("{}, and every other name", names.join(", ")),
        };
        let mut lines = vec![format!("{names}: {default}")];
        lines.extend(default_details.into_iter().map(indented));
        for host in &config.hosts {
            let frontend = host.frontend.as_deref();
            let content = content(&host.site, frontend, host.guestbook.is_some(), false);
            lines.push(format!("{}: {content}", host.names.join(", ")));
            let details = details(frontend, host.guestbook.as_deref(), None);
            lines.extend(details.into_iter().map(indented));
        }
        Self { tls, subject: format!("{} sites", config.hosts.len() + 1), details: lines }
    }

    /// Prints the messages for a server that listens.
    pub(super) fn print(&self, server: &Server) {
        let workers = server.workers().len();
        let how = match server.architecture() {
            Architecture::Event => server.mechanism().to_string(),
            Architecture::Preforked => format!("preforked, {workers} processes"),
            Architecture::Prethreaded => format!("prethreaded, {workers} threads"),
            // The number of workers is that of the clients.
            one_by_one => one_by_one.to_string(),
        };
        for address in server.addresses() {
            let scheme = match (address, self.tls) {
                (Listen::Tcp(_), true) => "https://",
                (Listen::Tcp(_), false) => "http://",
                _ => "",
            };
            say(&format!("pollux serves {} on {scheme}{address} ({how})", self.subject));
        }
        self.details.iter().for_each(|line| say(line));
        if let Some(address) = server.admin_address() {
            say(&admin_line(address));
        }
    }
}

/// Returns the message about the listener of `--admin`. Terminals open the address of a TCP listener as a link.
fn admin_line(address: &Listen) -> String {
    let scheme = if matches!(address, Listen::Tcp(_)) { "http://" } else { "" };
    format!("its page and its metrics are at {scheme}{address}")
}

fn indented(line: String) -> String {
    format!("  {line}")
}

/// Returns the messages about the origins of a site, its handovers, its guestbook and its hub.
fn details(
    frontend: Option<&FrontendConfig>,
    guestbook: Option<&GuestbookConfig>,
    hub: Option<&HubConfig>,
) -> Vec<String> {
    let routes = frontend.iter().flat_map(|frontend| &frontend.routes);
    let origins = routes.map(|route| match &route.prefix {
        Some(prefix) => format!("{prefix}/ is passed on to {}", route.origin),
        None => format!("paths that are not found here are passed on to {}", route.origin),
    });
    let handovers = frontend.iter().flat_map(|frontend| &frontend.handovers);
    let handovers = handovers.map(|handover| {
        let path = handover.path.display();
        match &handover.prefix {
            Some(prefix) => format!("{prefix}/ is handed over to {path}"),
            None => format!("paths that are not found here are handed over to {path}"),
        }
    });
    let guestbook = guestbook.map(|it| format!("its guestbook is at {}, on {}", it.path, it.store));
    let hub = hub.map(|hub| format!("its hub is at {}", hub.path));
    origins.chain(handovers).chain(guestbook).chain(hub).collect()
}

/// Returns a description of a site's content.
fn content(
    site: &SiteConfig,
    frontend: Option<&FrontendConfig>,
    has_guestbook: bool,
    has_hub: bool,
) -> String {
    match &site.directory {
        Some(directory) => directory.display().to_string(),
        None if frontend.is_some() => "its origins' pages".to_owned(),
        None if has_guestbook => "a guestbook".to_owned(),
        None if has_hub => "a hub".to_owned(),
        None => "no files".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    /// Regression: a server with nothing but a hub announced a guestbook.
    #[test]
    fn a_hub_alone_is_announced_as_one() {
        let mut config = Settings::new(".");
        config.site.directory = None;
        config.hub = Some(Arc::new(HubConfig::new("/hub")));
        assert_eq!(Announcement::new(&config).subject, "a hub");
    }

    #[test]
    fn the_admin_page_is_a_link() {
        let line = |address: &str| admin_line(&address.parse().unwrap());
        assert_eq!(line("127.0.0.1:9100"), "its page and its metrics are at http://127.0.0.1:9100");
        assert_eq!(line("unix:/run/a"), "its page and its metrics are at unix:/run/a");
    }

    /// Regression: the lines of the start named origins and the guestbook only.
    #[test]
    fn hubs_and_handovers_are_announced() {
        let mut config = Settings::new(".");
        config.hub = Some(Arc::new(HubConfig::new("/hub")));
        let mut frontend = FrontendConfig::new(Vec::new());
        frontend.handovers = vec!["/x=unix:/run/a".parse().unwrap()];
        config.frontend = Some(Arc::new(frontend));
        let details = Announcement::new(&config).details;
        assert_eq!(details, ["/x/ is handed over to /run/a", "its hub is at /hub"]);
    }
}
