//! The settings of a front end: the origins, and the data that they receive.

use crate::{
    config::{
        ForwardedPolicy, HandoverConfig, HostPolicy, PROXY_NAMES, ROUTES_MAX, RouteConfig,
        is_proxy_name,
    },
    transport::tls::OriginTls,
};
use anyhow::ensure;
use pollux_http::{host::Authority, proxy_protocol::Version};
use std::{num::NonZeroUsize, time::Duration};

/// A reverse proxy: which requests go to which origins. [`FrontendConfig::new`] has the defaults of
/// the command line.
#[derive(Clone, Debug)]
pub struct FrontendConfig {
    /// The origins and the paths of each. Requests for a prefix that several origins share are
    /// given to them in turn.
    pub routes: Vec<RouteConfig>,
    /// Processes on this host that take over a client's connection when a request matches.
    pub handovers: Vec<HandoverConfig>,
    /// The `Host` field that an origin receives.
    pub host: HostPolicy,
    /// The information about the client that an origin receives.
    pub forwarded: ForwardedPolicy,
    /// The version of the PROXY protocol whose header names the client at the start of a connection
    /// to an origin. `keep` must then be 0, because such a connection is for one client only.
    pub proxy_protocol: Option<Version>,
    /// The name of this proxy in `Via` and in `Proxy-Status`: a token. `None` omits `Via`.
    pub via: Option<String>,
    /// The time limit for connecting to an origin; also for waiting in the queue and for a name
    /// lookup.
    pub connect_timeout: Duration,
    /// The maximum time without progress of an origin: before its response, between two parts of
    /// it, and while the origin accepts no more bytes of a request's body.
    pub timeout: Duration,
    /// The maximum number of connections to origins at a time, including idle ones, for each
    /// worker. Tunnels do not count, because their clients' connections are counted.
    pub connections: NonZeroUsize,
    /// The maximum number of idle connections to one origin that each worker keeps for further
    /// requests.
    pub keep: usize,
    /// The time for which an idle connection is kept.
    pub keep_timeout: Duration,
    /// The cache for responses, which all workers share; `None` stores no responses.
    pub cache: Option<pollux_cache::Store>,
    /// The TLS settings for https origins; required if there are any.
    pub tls: Option<OriginTls>,
}

impl FrontendConfig {
    /// Returns the default settings of a front end with these routes.
    pub fn new(routes: Vec<RouteConfig>) -> Self {
        Self {
            routes,
            handovers: Vec::new(),
            host: HostPolicy::default(),
            forwarded: ForwardedPolicy::default(),
            proxy_protocol: None,
            via: Some("pollux".into()),
            connect_timeout: Duration::from_secs(5),
            timeout: Duration::from_secs(60),
            connections: const { NonZeroUsize::new(1024).expect("1024 is not 0") },
            keep: 32,
            keep_timeout: Duration::from_secs(60),
            cache: None,
            tls: None,
        }
    }

    /// Returns whether the server uses TLS for an origin.
    pub(crate) fn has_tls_origin(&self) -> bool {
        self.routes.iter().any(|route| route.origin.tls_name().is_some())
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// There is no route, there are too many, two of them contradict each other, or a name or a time is invalid.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        let count = self.routes.len() + self.handovers.len();
        ensure!(count > 0, "a front end without an origin");
        ensure!(count <= ROUTES_MAX, "{count} origins: {ROUTES_MAX} are the most");
        for (index, handover) in self.handovers.iter().enumerate() {
            let prefix = &handover.prefix;
            let (of, what) = match prefix {
                Some(prefix) if prefix.is_empty() => ("what is at ", "/"),
                Some(prefix) => ("what is at ", &**prefix),
                None => ("what is no file", ""),
            };
            ensure!(
                !self.handovers[..index].iter().any(|other| other.prefix == *prefix),
                "--handover is given twice for {of}{what}: one process can be given a connection"
            );
            ensure!(
                !self.routes.iter().any(|route| route.prefix == *prefix),
                "--handover and --origin are both given for {of}{what}: a request goes one way; \
                 give one of them another prefix (--handover /PREFIX=unix:PATH)"
            );
        }
        ensure!(
            self.cache.is_none() || !self.routes.is_empty(),
            "--cache keeps replies of origins, and there is no --origin: what is handed over is \
             answered elsewhere"
        );
        ensure!(
            self.proxy_protocol.is_none() || self.keep == 0,
            "--origin-proxy-protocol: a connection to an origin speaks for one client, so that none can \
             be kept for others"
        );
        ensure!(
            self.proxy_protocol.is_none() || !self.has_tls_origin(),
            "--origin-proxy-protocol is for http:// and unix: origins: its header would have to be sent \
             ahead of the TLS handshake, which is not supported"
        );
        ensure!(
            self.tls.is_some() || !self.has_tls_origin(),
            "an https origin without settings for TLS"
        );
        if let HostPolicy::Named(name) = &self.host {
            ensure!(
                Authority::parse(name.as_bytes()).is_some(),
                "--origin-host {name:?} is no host name (HOST or HOST:PORT)"
            );
        }
        if let Some(via) = &self.via {
            ensure!(is_proxy_name(via), "--via {via:?}: {PROXY_NAMES}");
        }
        let shortest = Duration::from_millis(1);
        ensure!(
            self.connect_timeout >= shortest && self.timeout >= shortest,
            "an origin's timeout of 0 would end every request"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_tls::ClientTrust;

    #[test]
    fn routes_are_read_and_shown() {
        for (text, shown) in [
            ("http://a:8080", "http://a:8080"),
            ("http://a", "http://a"),
            ("http://a:80/", "http://a"),
            ("http://[::1]:9", "http://[::1]:9"),
            ("http://a:443", "http://a:443"),
            ("unix:/run/app.sock", "unix:/run/app.sock"),
            ("/api=http://a:1", "/api=http://a:1"),
            ("/api/=unix:/x=y", "/api=unix:/x=y"),
            ("/=http://a:1", "/=http://a:1"),
        ] {
            let route: RouteConfig = text.parse().unwrap();
            assert_eq!(route.to_string(), shown);
            FrontendConfig::new(vec![route]).check().unwrap();
        }
        for (text, expected) in [
            ("", "expected http://"),
            ("a:80", "expected http://"),
            ("https://a_b..c", "no name that a certificate"),
            ("http://a/b", "no path"),
            ("http://a?b", "no path"),
            ("http://", "no HOST:PORT"),
            ("http://u@a", "no HOST:PORT"),
            ("http://a:0", "port 0"),
            ("http://a:99999", "no HOST:PORT"),
            ("unix:", "expected a path"),
            ("/api", "/PREFIX=URL"),
            ("/a b=http://a", "prefix"),
            ("/a/../b=http://a", "prefix"),
            ("//a=http://a", "prefix"),
        ] {
            let error = text.parse::<RouteConfig>().unwrap_err();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }

    #[test]
    fn an_https_origin_has_the_usual_port_and_needs_settings() {
        for (text, shown) in [
            ("https://a", "https://a"),
            ("https://a:443/", "https://a"),
            ("https://a:80", "https://a:80"),
            ("/x=https://[::1]:8443", "/x=https://[::1]:8443"),
        ] {
            let route: RouteConfig = text.parse().unwrap();
            assert_eq!(route.to_string(), shown);
            assert!(route.origin.tls_name().is_some());
            let mut config = FrontendConfig::new(vec![route]);
            assert!(config.check().unwrap_err().to_string().contains("settings for TLS"));
            config.tls = Some(OriginTls::new(&ClientTrust::Anybody).unwrap());
            config.check().unwrap();
            config.proxy_protocol = Some(Version::V1);
            config.keep = 0;
            assert!(config.check().unwrap_err().to_string().contains("--origin-proxy-protocol"));
        }
    }

    #[test]
    fn handovers_have_a_way_of_their_own() {
        let read = |text: &str| text.parse::<HandoverConfig>();
        let at = |prefix: Option<&str>| {
            Ok(HandoverConfig { prefix: prefix.map(Into::into), path: "/run/a=b".into() })
        };
        assert_eq!(read("unix:/run/a=b"), at(None));
        assert_eq!(read("/api/=unix:/run/a=b"), at(Some("/api")));
        for text in ["", "unix:", "/run/a", "http://a", "/api=http://a", "/a b=unix:/x", "unix:\0"]
        {
            assert!(read(text).is_err(), "{text:?}");
        }
        assert!(read(&format!("unix:/{}", "x".repeat(107))).unwrap_err().contains("107"));
        let check = |origins: &[&str], handovers: &[&str]| {
            let mut config =
                FrontendConfig::new(origins.iter().map(|one| one.parse().unwrap()).collect());
            config.handovers = handovers.iter().map(|one| read(one).unwrap()).collect();
            config.check().map_err(|error| error.to_string())
        };
        check(&[], &["unix:/a"]).unwrap();
        check(&["http://a"], &["/x=unix:/a"]).unwrap();
        check(&["/x=http://a"], &["unix:/a"]).unwrap();
        assert!(check(&["http://a"], &["unix:/a"]).unwrap_err().contains("what is no file"));
        assert!(check(&["/x=http://a"], &["/x/=unix:/a"]).unwrap_err().contains("at /x"));
        assert!(check(&[], &["/x=unix:/a", "/x=unix:/b"]).unwrap_err().contains("twice"));
    }

    #[test]
    fn names_that_would_break_a_field_are_refused() {
        let mut config = FrontendConfig::new(vec!["http://a".parse().unwrap()]);
        for name in ["", "a b", "a\r\nX: y", "1", "a,b", "\"a\""] {
            config.via = Some(name.into());
            assert!(config.check().is_err(), "{name:?}");
        }
        config.via = None;
        config.check().unwrap();
        for name in ["", "a b", "a\r\n", "a/b"] {
            config.host = name.parse().unwrap();
            assert!(config.check().is_err(), "{name:?}");
        }
        assert_eq!("keep".parse(), Ok(ForwardedPolicy::Keep));
        assert!("off".parse::<ForwardedPolicy>().is_err());
    }
}
