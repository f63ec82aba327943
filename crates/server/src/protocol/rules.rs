//! The rules that all workers share: limits, timeouts, the fields of every response. They do not change.

use crate::{
    clients::{ClientLimits, ProxySource},
    config::Cors,
    policy::HSTS,
    settings::{Settings, Tls},
    stats::Counters,
    time::clock::ticks,
    transport::{
        Transport,
        tls::{self, HANDSHAKE_TIMEOUT},
    },
};
use pollux_http::{Limits, request::Request};
use std::{io, net::IpAddr, os::fd::OwnedFd, sync::Arc};

/// The part of the configuration that is necessary to answer a request, in the form in which it is used.
#[derive(Debug)]
pub(crate) struct Rules {
    /// The limits of a request.
    pub(crate) limits: Limits,
    /// The number of requests after which a connection is closed.
    pub(crate) max_requests: u32,
    /// `Server` and the configured fields: lines with CRLF, for every response.
    pub(crate) common_fields: Vec<u8>,
    /// `common_fields` without those for scripts of other sites, for the hub, which has its own list of origins.
    pub(crate) fields_without_cors: Vec<u8>,
    /// The configured fields alone, for responses that come from an origin.
    pub(crate) added_fields: Vec<u8>,
    /// Whether these contain Strict-Transport-Security.
    pub(crate) adds_hsts: bool,
    /// The sites whose scripts may read the responses.
    pub(crate) cors: Option<Cors>,
    /// The timeouts, in ticks.
    pub(crate) timeouts: TimeoutTicks,
    /// The rules and limits for clients; `None` if there are none.
    pub(crate) guard: Option<Arc<ClientLimits>>,
    /// The sources whose connections begin with a PROXY protocol header.
    proxy_sources: Vec<ProxySource>,
    /// TLS for each connection; `None` without TLS.
    tls: Option<Arc<Tls>>,
}

/// [`crate::config::Timeouts`] in ticks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeoutTicks {
    /// The timeout for a head or a body.
    pub(crate) header: u32,
    /// The timeout between requests.
    pub(crate) keep_alive: u32,
    /// The timeout for progress in sending.
    pub(crate) send: u32,
}

impl Rules {
    /// Creates the rules of a configuration.
    pub(crate) fn new(config: &Settings) -> Self {
        let mut common_fields = Vec::new();
        if let Some(name) = &config.server_name {
            common_fields.extend_from_slice(format!("Server: {name}\r\n").as_bytes());
        }
        let mut added_fields = Vec::new();
        for (name, value) in &config.headers {
            added_fields.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        if let Some(hub) = &config.hub {
            // Clients find the hub from any page (draft-dunglas-mercure §9.1).
            let link = format!("Link: <{}>; rel=\"mercure\"\r\n", hub.path);
            added_fields.extend_from_slice(link.as_bytes());
        }
        common_fields.extend_from_slice(&added_fields);
        let safety_fields = config.site.rules.safety_fields(&config.headers, config.tls.is_some());
        common_fields.extend_from_slice(&safety_fields);
        let fields_without_cors = common_fields.clone();
        common_fields.extend_from_slice(&config.site.rules.cors_fields(&config.headers));
        Self {
            // A server must accept every target in absolute-form (RFC 9112 §3.2.2), so with TLS also those
            // with https.
            limits: Limits { https: config.tls.is_some(), ..config.limits },
            max_requests: config.max_requests.map_or(u32::MAX, Into::into),
            common_fields,
            fields_without_cors,
            added_fields,
            adds_hsts: config.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case(HSTS)),
            cors: config.site.rules.cors.clone(),
            timeouts: TimeoutTicks {
                header: ticks(config.timeouts.header),
                keep_alive: ticks(config.timeouts.keep_alive),
                send: ticks(config.timeouts.send),
            },
            guard: ClientLimits::new(&config.clients).map(Arc::new),
            proxy_sources: config.clients.proxy_protocol.clone(),
            tls: config.tls.clone(),
        }
    }

    /// Creates the rules of a server whose workers have slots of a scoreboard. Processes count their
    /// clients in memory that they share, so they must be forked later.
    ///
    /// # Errors
    /// No memory is left.
    pub(crate) fn of_slots(config: &Settings, slots: usize) -> io::Result<Self> {
        let mut rules = Self::new(config);
        if config.architecture.has_processes() {
            rules.guard = ClientLimits::for_processes(&config.clients, slots)?.map(Arc::new);
        }
        Ok(rules)
    }

    /// Returns the field lines of the response to a CORS preflight, for a resource with this `Allow` line.
    /// The result is empty for other requests.
    pub(crate) fn preflight(&self, request: &Request<'_>, allow: &[u8]) -> Vec<u8> {
        let methods = allow.strip_prefix(b"Allow: ").and_then(|line| str::from_utf8(line).ok());
        let methods = methods.unwrap_or_default().trim_end();
        self.cors.as_ref().map(|cors| cors.preflight(request, methods)).unwrap_or_default()
    }

    /// Returns these rules with the client counts of `former`, so that open connections stay counted.
    pub(crate) fn counting_on(self, former: &Self) -> Self {
        Self { guard: former.guard.clone(), ..self }
    }

    /// Begins an iteration of this thread's loop.
    #[inline]
    pub(crate) fn begin_iteration(&self) {
        if self.tls.is_some() {
            tls::begin_iteration();
        }
    }

    /// Ends an iteration of this thread's loop, and adds its TLS handshakes to the counters.
    #[inline]
    pub(crate) fn end_iteration(&self, counters: &Counters) {
        if self.tls.is_some() {
            tls::count_handshakes(counters);
        }
    }

    /// Returns whether clients use TLS.
    pub(crate) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Returns whether the server requests certificates from clients.
    pub(crate) fn requests_client_certificates(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.requests_client_certificates())
    }

    /// Returns whether the addresses of clients are needed.
    #[inline]
    pub(crate) fn looks_at_clients(&self) -> bool {
        self.guard.is_some() || !self.proxy_sources.is_empty()
    }

    /// Returns whether a connection from this address begins with a PROXY protocol header.
    pub(crate) fn has_preamble(&self, address: Option<IpAddr>) -> bool {
        self.proxy_sources.iter().any(|source| source.has(address))
    }

    /// Creates the transport of an accepted connection. Also returns the number of ticks within which its
    /// handshake must be complete; without TLS, its first request. `client` is the client's address if it is
    /// known; otherwise handshakes are counted under the address of the peer. If a TLS session cannot be
    /// created, the socket is returned, to be closed.
    #[inline]
    pub(crate) fn accept(
        &self,
        socket: OwnedFd,
        client: Option<IpAddr>,
    ) -> Result<(Transport, u32), OwnedFd> {
        match &self.tls {
            None => Ok((Transport::Plain(socket), self.timeouts.header)),
            Some(tls) => match Transport::accept_tls(socket, client, tls) {
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

    /// Creates the transport of an idle connection that another process has parked, with its TLS session if
    /// it has one. If the session cannot be used, the socket is returned, to be closed.
    #[cold]
    pub(crate) fn resume(&self, socket: OwnedFd, session: &[u8]) -> Result<Transport, OwnedFd> {
        match (&self.tls, session) {
            (None, []) => Ok(Transport::Plain(socket)),
            // A session that was handed over has no client certificate.
            (Some(tls), [_, ..]) if tls.requires_client_certificates() => Err(socket),
            (Some(tls), [_, ..]) => Transport::resume_tls(socket, session, tls),
            // The configuration has changed between TLS and plain HTTP.
            (None, [_, ..]) | (Some(_), []) => Err(socket),
        }
    }
}
