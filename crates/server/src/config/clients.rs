//! The keys that say which clients are served, and the limits of each client.

use super::{Config, Fault, Key, Text};
use crate::config::{ClientConfig, NETWORKS_MAX, Network, PROXY_SOURCES_MAX};
use std::time::Duration;

impl Config {
    /// Returns the settings of these keys.
    pub(crate) fn clients(&self) -> ClientConfig {
        let networks = |list: &[Text<Network>]| list.iter().map(|network| network.value).collect();
        ClientConfig {
            allow: networks(&self.allow),
            deny: networks(&self.deny),
            connections: self.limit_connections_per_address.0,
            accept_rate: self.limit_accept_rate.as_ref().map(|rate| rate.value),
            proxy_protocol: self.proxy_protocol.iter().map(|source| source.value).collect(),
            request_rate: self.limit_request_rate.as_ref().map(|rate| rate.value),
        }
    }

    /// Returns the faults of these keys.
    pub(super) fn client_faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let both = self.allow.iter().position(|one| self.deny.iter().any(|d| d.value == one.value));
        if let Some(index) = both {
            let message = format!("{} is in `allow` and in `deny`", self.allow[index]);
            let key = [Key::Name("allow"), Key::Index(index)];
            faults.push(Fault::at(&key, &message, "remove it from one of them"));
        }
        if self.allow.len() + self.deny.len() > NETWORKS_MAX {
            let message = format!("`allow` and `deny` have more than {NETWORKS_MAX} networks");
            faults.push(Fault::at(&[Key::Name("deny")], &message, "join networks that touch"));
        }
        if self.proxy_protocol.len() > PROXY_SOURCES_MAX {
            let message = format!("there are more than {PROXY_SOURCES_MAX} sources");
            faults.push(Fault::at(
                &[Key::Name("proxy-protocol")],
                &message,
                "join networks that touch",
            ));
        }
        for (name, time, usual) in [
            ("header-timeout", self.header_timeout, "20s"),
            ("send-timeout", self.send_timeout, "30s"),
        ] {
            if time.0 < Duration::from_millis(1) {
                let message = "with a time of 0 nearly every client would be too slow";
                let help = format!("{usual} is usual; a very long time, such as 1y, is no limit");
                faults.push(Fault::at(&[Key::Name(name)], message, help));
            }
        }
        faults
    }
}
