//! What all workers go by: limits, timeouts, the fields of every response. Nothing here changes.

use crate::{
    clients::{Guard, ProxySource},
    config::{Config, Cors, Tls},
    stats::Counters,
    time::clock::ticks,
    transport::{Transport, tls, tls::HANDSHAKE_TIMEOUT},
};
use pollux_http::{Limits, request::Request};
use std::{net::IpAddr, os::fd::OwnedFd, sync::Arc};

/// The part of the configuration that answering a request needs, in the form in which it is needed.
#[derive(Debug)]
pub(crate) struct Rules {
    /// What is taken of a request.
    pub(crate) limits: Limits,
    /// Requests after which a connection is closed.
    pub(crate) max_requests: u32,
    /// `Server` and the configured fields: lines with CRLF, for every response.
    pub(crate) common_fields: Vec<u8>,
    /// `common_fields` without those for scripts of other sites, for the hub, which has its own list of origins.
    pub(crate) fields_without_cors: Vec<u8>,
    /// The configured fields alone, for responses that are an origin's.
    pub(crate) added_fields: Vec<u8>,
    /// Whose scripts may read the responses.
    pub(crate) cors: Option<Cors>,
    /// The timeouts, in ticks.
    pub(crate) timeouts: TimeoutTicks,
    /// Which clients are served, and how much each may have; `None` where nothing is limited.
    pub(crate) guard: Option<Arc<Guard>>,
    /// Whose connections begin with a PROXY protocol header.
    proxy_sources: Vec<ProxySource>,
    /// TLS beneath each connection.
    tls: Option<Arc<Tls>>,
}

/// [`crate::config::Timeouts`] in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeoutTicks {
    /// For a head or a body.
    pub(crate) header: u32,
    /// Between requests.
    pub(crate) keep_alive: u32,
    /// For progress in sending.
    pub(crate) send: u32,
}

impl Rules {
    /// Those of `config`.
    pub(crate) fn new(config: &Config) -> Self {
        let mut common_fields = Vec::new();
        if let Some(name) = &config.server_name {
            common_fields.extend_from_slice(format!("Server: {name}\r\n").as_bytes());
        }
        let mut added_fields = Vec::new();
        for (name, value) in &config.headers {
            added_fields.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        if let Some(hub) = &config.hub {
            // Clients of any page find the hub (draft-dunglas-mercure §9.1).
            let link = format!("Link: <{}>; rel=\"mercure\"\r\n", hub.path);
            added_fields.extend_from_slice(link.as_bytes());
        }
        common_fields.extend_from_slice(&added_fields);
        common_fields.extend_from_slice(&config.site.rules.safety_fields(&config.headers));
        let fields_without_cors = common_fields.clone();
        common_fields.extend_from_slice(&config.site.rules.cors_fields());
        Self {
            limits: config.limits,
            max_requests: config.max_requests.map_or(u32::MAX, Into::into),
            common_fields,
            fields_without_cors,
            added_fields,
            cors: config.site.rules.cors.clone(),
            timeouts: TimeoutTicks {
                header: ticks(config.timeouts.header),
                keep_alive: ticks(config.timeouts.keep_alive),
                send: ticks(config.timeouts.send),
            },
            guard: Guard::new(&config.clients).map(Arc::new),
            proxy_sources: config.clients.proxy_protocol.clone(),
            tls: config.tls.clone(),
        }
    }

    /// Field lines of the answer to a CORS preflight for a resource with this line of `Allow`; nothing for other
    /// requests.
    pub(crate) fn preflight(&self, request: &Request<'_>, allow: &[u8]) -> Vec<u8> {
        let methods = allow.strip_prefix(b"Allow: ").and_then(|line| str::from_utf8(line).ok());
        let methods = methods.unwrap_or_default().trim_end();
        self.cors.as_ref().map(|cors| cors.preflight(request, methods)).unwrap_or_default()
    }

    /// These rules, with what `former` has counted of each client: connections that are open stay counted.
    pub(crate) fn counting_on(self, former: &Self) -> Self {
        Self { guard: former.guard.clone(), ..self }
    }

    /// An iteration of this thread's loop begins.
    #[inline]
    pub(crate) fn begin_iteration(&self) {
        if self.tls.is_some() {
            tls::begin_iteration();
        }
    }

    /// An iteration of this thread's loop ends: what it has not counted yet is counted.
    #[inline]
    pub(crate) fn end_iteration(&self, counters: &Counters) {
        if self.tls.is_some() {
            tls::count_handshakes(counters);
        }
    }

    /// Whether clients speak TLS.
    pub(crate) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Whether clients are to show certificates.
    pub(crate) fn requests_client_certificates(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.requests_client_certificates())
    }

    /// Whether anything depends on the addresses of clients.
    #[inline]
    pub(crate) fn looks_at_clients(&self) -> bool {
        self.guard.is_some() || !self.proxy_sources.is_empty()
    }

    /// Whether a connection from this address begins with a PROXY protocol header.
    pub(crate) fn has_preamble(&self, address: Option<IpAddr>) -> bool {
        self.proxy_sources.iter().any(|source| source.has(address))
    }

    /// The transport of a connection that was accepted, and after how many ticks its first request must be
    /// there. A socket that can have none comes back, to be closed.
    #[inline]
    pub(crate) fn accept(&self, socket: OwnedFd) -> Result<(Transport, u32), OwnedFd> {
        match &self.tls {
            None => Ok((Transport::Plain(socket), self.timeouts.header)),
            Some(tls) => match Transport::accept_tls(socket, tls) {
                Ok(transport) => {
                    Ok((transport, self.timeouts.header.min(ticks(HANDSHAKE_TIMEOUT))))
                }
                Err((socket, error)) => {
                    tracing::warn!("closing a connection, it can have no TLS session: {error}");
                    Err(socket)
                }
            },
        }
    }

    /// The transport of an idle connection that another process has parked, with its TLS session or none. A
    /// socket that can have none comes back, to be closed.
    #[cold]
    pub(crate) fn resume(&self, socket: OwnedFd, session: &[u8]) -> Result<Transport, OwnedFd> {
        match (&self.tls, session) {
            (None, []) => Ok(Transport::Plain(socket)),
            // A session that was handed over has no client certificate.
            (Some(tls), [_, ..]) if tls.requires_client_certificates() => Err(socket),
            (Some(tls), [_, ..]) => Transport::resume_tls(socket, session, tls),
            // Clients now have to speak the other way.
            (None, [_, ..]) | (Some(_), []) => Err(socket),
        }
    }
}
