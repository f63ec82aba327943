//! A client's session tickets: a bounded queue for each server, the newest used first.

use rustls::{
    NamedGroup,
    client::{ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue},
    pki_types::ServerName,
};
use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::Mutex,
};

/// The most servers; tickets of further servers are not stored.
const SERVERS_MAX: usize = 256;

/// Replaces rustls' own store, which has 8 tickets per server, too few for a load generator: with more
/// than 8 connections at a time the further handshakes would be full ones.
pub(crate) struct TicketStore {
    servers: Mutex<HashMap<ServerName<'static>, Server>>,
    /// The most tickets that are stored for one server; the oldest give way.
    most: usize,
}

#[derive(Default)]
struct Server {
    group: Option<NamedGroup>,
    tls12: Option<Tls12ClientSessionValue>,
    tls13: VecDeque<Tls13ClientSessionValue>,
}

impl TicketStore {
    pub(crate) fn new(most: usize) -> Self {
        Self { servers: Mutex::default(), most }
    }

    fn with<R>(&self, name: ServerName<'static>, act: impl FnOnce(&mut Server) -> R) -> Option<R> {
        let mut servers = self.servers.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if servers.len() >= SERVERS_MAX && !servers.contains_key(&name) {
            return None;
        }
        Some(act(servers.entry(name).or_default()))
    }

    fn find<R>(
        &self,
        name: &ServerName<'_>,
        act: impl FnOnce(&mut Server) -> Option<R>,
    ) -> Option<R> {
        let mut servers = self.servers.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        act(servers.get_mut(&name.to_owned())?)
    }
}

impl ClientSessionStore for TicketStore {
    fn set_kx_hint(&self, server_name: ServerName<'static>, group: NamedGroup) {
        self.with(server_name, |server| server.group = Some(group));
    }

    fn kx_hint(&self, server_name: &ServerName<'_>) -> Option<NamedGroup> {
        self.find(server_name, |server| server.group)
    }

    fn set_tls12_session(&self, server_name: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.with(server_name, |server| server.tls12 = Some(value));
    }

    fn tls12_session(&self, server_name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.find(server_name, |server| server.tls12.clone())
    }

    fn remove_tls12_session(&self, server_name: &ServerName<'static>) {
        self.find(server_name, |server| server.tls12.take());
    }

    fn insert_tls13_ticket(
        &self,
        server_name: ServerName<'static>,
        value: Tls13ClientSessionValue,
    ) {
        self.with(server_name, |server| {
            if server.tls13.len() >= self.most {
                server.tls13.pop_front();
            }
            server.tls13.push_back(value);
        });
    }

    fn take_tls13_ticket(
        &self,
        server_name: &ServerName<'static>,
    ) -> Option<Tls13ClientSessionValue> {
        self.find(server_name, |server| server.tls13.pop_back())
    }
}

impl fmt::Debug for TicketStore {
    /// Without the secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketStore")
    }
}
