//! Connections to a Redis server: one a request, one for all, or a pool.

use super::{Outcome, Ticket};
use crate::{
    config::StoreConnections,
    reactor::{AlarmId, Endpoint, LinkId, Outside, Question, To},
    service::Wake,
    services::guestbook::STORE_TIMEOUT,
};
use pollux_guestbook::{
    Request, StoreError,
    redis::{Address, Session, Url},
};
use std::{
    collections::VecDeque,
    io::ErrorKind,
    net::{IpAddr, SocketAddr},
};

/// For how long connecting may take, in ticks: 2 s.
const DIAL_TIMEOUT: u32 = 20;
/// Requests that may wait for the server's name to be resolved.
const UNRESOLVED_MAX: usize = 4096;
/// After a server could not be reached it is left alone for this long, in ticks; each further time
/// for twice as long, up to the other.
const BACK_OFF: (u32, u32) = (1, 20);

/// A worker's way to a Redis server.
#[derive(Debug)]
pub(in crate::services::guestbook) struct RedisStore {
    url: Url,
    policy: StoreConnections,
    place: Place,
    /// By the number of their link's place.
    connections: Vec<Option<Connection>>,
    /// Those that take further requests.
    pool: Vec<LinkId>,
    /// Where each ticket was asked last, by its number.
    asked: Vec<Option<LinkId>>,
    back_off: BackOff,
    answers: Vec<Outcome>,
}

#[derive(Debug)]
struct Connection {
    link: LinkId,
    session: Session<Ticket>,
    /// It has been connected: the server is there. Until then nothing is put into the link, so that
    /// another address can be tried with the same requests.
    is_connected: bool,
    /// When it was dialled first.
    dialled_at: u32,
    /// Which of the addresses was dialled last, and how many have failed.
    address: usize,
    failed: usize,
    /// Since when the server owes a reply and has said nothing.
    silent_since: u32,
    /// Looks whether it is silent for too long. Only connections of a pool have one: they may be owed
    /// replies that no guest waits for any more.
    alarm: Option<AlarmId>,
}

/// What is known of where the server is.
#[derive(Debug)]
enum Place {
    /// At these addresses; `next` is dialled next, and is another one after it has failed.
    Known { all: Vec<Endpoint>, next: usize },
    /// A name that nobody has asked for yet, or whose answer has turned out wrong.
    Unknown,
    /// A name that is being resolved, and who waits for that.
    Asked(VecDeque<(Ticket, Request)>),
}

/// For how long nobody is dialled. It ends with the first good reply, not with a connection: a server
/// that accepts and refuses every user is not there either.
#[derive(Debug, Default)]
struct BackOff {
    failures: u32,
    until: u32,
}

impl RedisStore {
    pub(super) fn new(url: Url, policy: StoreConnections) -> Self {
        let at = |endpoint| Place::Known { all: vec![endpoint], next: 0 };
        let place = match &url.address {
            Address::Unix(path) => at(Endpoint::Unix(path.clone())),
            Address::Tcp(host, port) => match host.parse::<IpAddr>() {
                Ok(address) => at(Endpoint::Tcp(SocketAddr::new(address, *port))),
                Err(_) => Place::Unknown,
            },
        };
        Self {
            url,
            policy,
            place,
            connections: Vec::new(),
            pool: Vec::new(),
            asked: Vec::new(),
            back_off: BackOff::default(),
            answers: Vec::new(),
        }
    }

    pub(super) fn answers(&mut self) -> &mut Vec<Outcome> {
        &mut self.answers
    }

    pub(super) fn ask(
        &mut self,
        outside: &mut Outside,
        now: u32,
        ticket: Ticket,
        request: &Request,
    ) {
        let Some(link) = self.connection(outside, now) else {
            return match &mut self.place {
                Place::Asked(waiting) if waiting.len() < UNRESOLVED_MAX => {
                    waiting.push_back((ticket, request.clone()));
                }
                Place::Asked(_) => self.answers.push((ticket, Err(StoreError::Busy))),
                _ => {
                    let why = format!("{} was not there a moment ago", self.url);
                    self.answers.push((ticket, Err(StoreError::Unreachable(why))));
                }
            };
        };
        if ticket.index() >= self.asked.len() {
            self.asked.resize(ticket.index() + 1, None);
        }
        self.asked[ticket.index()] = Some(link);
        let is_pooled = matches!(self.policy, StoreConnections::Pooled(_));
        let Some(connection) = self.get_mut(link) else { return };
        if connection.session.pending_requests() == 0 {
            connection.silent_since = now;
        }
        if is_pooled && connection.alarm.is_none() {
            connection.alarm = Some(outside.timer(STORE_TIMEOUT, To::Application));
        }
        connection.session.begin(ticket, request);
        self.flush(outside, link);
        self.collect(link);
    }

    /// A connection for one more request; none while the server's name is being resolved, or while
    /// it is left alone.
    fn connection(&mut self, outside: &mut Outside, now: u32) -> Option<LinkId> {
        let StoreConnections::Pooled(most) = self.policy else { return self.dial(outside, now) };
        let least = self.pool.iter().copied().min_by_key(|&link| self.under_way(link));
        if let Some(link) = least
            && (self.under_way(link) == 0 || self.pool.len() >= most.get())
        {
            return Some(link);
        }
        // Where no further one can be had, those that are there have room.
        self.dial(outside, now).or_else(|| {
            let is_connected = |link: &LinkId| self.get(*link).is_some_and(|c| c.is_connected);
            let connected = self.pool.iter().copied().filter(is_connected);
            connected.min_by_key(|&link| self.under_way(link))
        })
    }

    /// How many requests are under way on a connection.
    fn under_way(&self, link: LinkId) -> usize {
        self.get(link).map_or(0, |connection| connection.session.pending_requests())
    }

    /// A new connection, unless the server is left alone or has no known address.
    fn dial(&mut self, outside: &mut Outside, now: u32) -> Option<LinkId> {
        if now < self.back_off.until {
            return None;
        }
        let (address, endpoint) = match &self.place {
            Place::Known { all, next } => (*next, all[*next].clone()),
            Place::Asked(_) => return None,
            Place::Unknown => {
                let Address::Tcp(name, port) = &self.url.address else { return None };
                let (name, port) = (name.clone(), *port);
                outside.resolve(Question { name, port, to: To::Application, note: 0 });
                self.place = Place::Asked(VecDeque::new());
                return None;
            }
        };
        let link = outside.dial(endpoint, DIAL_TIMEOUT, To::Application);
        if matches!(self.policy, StoreConnections::Pooled(_)) {
            self.pool.push(link);
        }
        self.put(Connection {
            link,
            session: Session::new(&self.url),
            is_connected: false,
            dialled_at: now,
            address,
            failed: 0,
            silent_since: now,
            alarm: None,
        });
        Some(link)
    }

    pub(super) fn event(&mut self, outside: &mut Outside, now: u32, wake: Wake<'_>) {
        match wake {
            Wake::Connected(link) => {
                if let Some(connection) = self.get_mut(link) {
                    connection.is_connected = true;
                }
                self.flush(outside, link);
            }
            Wake::Received(link, octets) => self.received(outside, now, link, octets),
            Wake::Failed(link, why) if self.get(link).is_some_and(|c| !c.is_connected) => {
                self.not_reached(outside, now, link, why);
            }
            Wake::Failed(link, error) => {
                let why = format!("{}: {}", self.url, std::io::Error::from(error));
                self.give_up(outside, link, &StoreError::Unreachable(why));
            }
            Wake::Ended(link) => {
                let why = format!("{} has closed the connection", self.url);
                self.give_up(outside, link, &StoreError::Unreachable(why));
            }
            Wake::Resolved(_, outcome) => self.resolved(outside, now, outcome),
            Wake::Time(alarm) => self.look_whether_silent(outside, now, alarm),
            _ => {}
        }
    }

    fn received(&mut self, outside: &mut Outside, now: u32, link: LinkId, octets: &[u8]) {
        let Some(connection) = self.get_mut(link) else { return };
        connection.silent_since = now;
        let dialled_at = connection.dialled_at;
        match connection.session.receive(octets) {
            Ok(()) => {
                self.collect(link);
                self.flush(outside, link);
            }
            Err(why) => {
                // A server that does not let us in is asked again later, not at once.
                self.back_off.extend(now, dialled_at);
                self.give_up(outside, link, &why);
            }
        }
        let is_over = self.get(link).is_some_and(|c| !c.session.is_waiting());
        if is_over && self.policy == StoreConnections::PerRequest {
            self.remove(outside, link);
        }
    }

    /// Nobody could be reached at one address: the same requests are tried at the others. Only when
    /// all have failed is the server left alone.
    fn not_reached(&mut self, outside: &mut Outside, now: u32, link: LinkId, why: ErrorKind) {
        let Some(connection) = self.get_mut(link) else { return };
        // That says nothing about the server.
        if matches!(why, ErrorKind::QuotaExceeded | ErrorKind::OutOfMemory) {
            let why = "this host has no descriptor or no memory left for a connection to it";
            let why = StoreError::Unreachable(why.to_owned());
            return self.give_up(outside, link, &why);
        }
        connection.failed += 1;
        let (failed, address, dialled_at) =
            (connection.failed, connection.address, connection.dialled_at);
        let is_wanted = connection.session.pending_requests() > 0;
        if let Place::Known { all, next } = &mut self.place {
            // Of several that failed there, one moves it.
            if address == *next {
                *next = (*next + 1) % all.len();
            }
            if failed < all.len() && is_wanted {
                let (address, endpoint) = (*next, all[*next].clone());
                return self.dial_instead(outside, link, address, endpoint);
            }
        }
        self.back_off.extend(now, dialled_at);
        self.forget_place();
        let why = format!("{}: {}", self.url, std::io::Error::from(why));
        self.give_up(outside, link, &StoreError::Unreachable(why));
    }

    /// Dials another address for a connection, with what was begun on it.
    fn dial_instead(
        &mut self,
        outside: &mut Outside,
        link: LinkId,
        address: usize,
        endpoint: Endpoint,
    ) {
        let place = self.connections.get_mut(link.index() as usize).and_then(Option::take);
        let Some(mut connection) = place else { return };
        let instead = outside.dial(endpoint, DIAL_TIMEOUT, To::Application);
        for ticket in connection.session.tickets() {
            self.asked[ticket.index()] = Some(instead);
        }
        for pooled in self.pool.iter_mut().filter(|pooled| **pooled == link) {
            *pooled = instead;
        }
        connection.link = instead;
        connection.address = address;
        self.put(connection);
    }

    /// A connection of a pool may be owed replies for some time. When it has said nothing for too long
    /// it is given up, and another one is made.
    fn look_whether_silent(&mut self, outside: &mut Outside, now: u32, alarm: AlarmId) {
        let mut all = self.connections.iter_mut().flatten();
        let Some(connection) = all.find(|c| c.alarm == Some(alarm)) else { return };
        connection.alarm = None;
        if connection.session.pending_requests() == 0 {
            return;
        }
        let silent = now.saturating_sub(connection.silent_since);
        if silent < STORE_TIMEOUT {
            connection.alarm = Some(outside.timer(STORE_TIMEOUT - silent, To::Application));
        } else {
            let link = connection.link;
            self.give_up(outside, link, &StoreError::TimedOut);
        }
    }

    /// One request's answer did not come in time: nor will those behind it, so the connection is
    /// given up.
    pub(super) fn is_late(&mut self, outside: &mut Outside, ticket: Ticket) {
        if let Some(link) = self.link_of(ticket) {
            self.give_up(outside, link, &StoreError::TimedOut);
        }
        self.forget(ticket);
    }

    /// Nobody waits for this answer any more. A connection of its own ends with it: nothing else would
    /// end one that the server leaves open and says nothing on.
    pub(super) fn is_gone(&mut self, outside: &mut Outside, ticket: Ticket) {
        if self.policy == StoreConnections::PerRequest
            && let Some(link) = self.link_of(ticket)
        {
            self.remove(outside, link);
        }
        self.forget(ticket);
    }

    /// The connection on which a ticket is under way.
    fn link_of(&self, ticket: Ticket) -> Option<LinkId> {
        let link = (*self.asked.get(ticket.index())?)?;
        self.get(link).filter(|c| c.session.has(ticket)).map(|c| c.link)
    }

    /// It does not wait for the server's name any more.
    fn forget(&mut self, ticket: Ticket) {
        if let Place::Asked(waiting) = &mut self.place {
            waiting.retain(|(waiting, _)| *waiting != ticket);
        }
    }

    fn resolved(
        &mut self,
        outside: &mut Outside,
        now: u32,
        outcome: Result<Vec<SocketAddr>, String>,
    ) {
        let Place::Asked(waiting) = std::mem::replace(&mut self.place, Place::Unknown) else {
            return;
        };
        let why = match outcome {
            Ok(addresses) if !addresses.is_empty() => {
                let all = addresses.into_iter().map(Endpoint::Tcp).collect();
                self.place = Place::Known { all, next: 0 };
                for (ticket, request) in waiting {
                    self.ask(outside, now, ticket, &request);
                }
                return;
            }
            Ok(_) => "the name has no address".to_owned(),
            Err(why) => why,
        };
        self.back_off.extend(now, now);
        for (ticket, _) in waiting {
            let why = StoreError::Unreachable(format!("{}: {why}", self.url));
            self.answers.push((ticket, Err(why)));
        }
    }

    /// A name may have moved: it is resolved again when all of its addresses have failed.
    fn forget_place(&mut self) {
        if let (Address::Tcp(host, _), Place::Known { .. }) = (&self.url.address, &self.place)
            && host.parse::<IpAddr>().is_err()
        {
            self.place = Place::Unknown;
        }
    }

    fn give_up(&mut self, outside: &mut Outside, link: LinkId, why: &StoreError) {
        if let Some(connection) = self.get_mut(link) {
            connection.session.fail(why);
            self.collect(link);
            self.remove(outside, link);
        }
    }

    fn remove(&mut self, outside: &mut Outside, link: LinkId) {
        outside.close(link);
        if self.get(link).is_some()
            && let Some(connection) = self.connections[link.index() as usize].take()
            && let Some(alarm) = connection.alarm
        {
            outside.cancel(alarm);
        }
        self.pool.retain(|other| *other != link);
    }

    /// Puts what a connection has to say into its link, once somebody is there.
    fn flush(&mut self, outside: &mut Outside, link: LinkId) {
        let Some(connection) = self.get_mut(link).filter(|c| c.is_connected) else { return };
        let output = connection.session.output();
        if output.is_empty() {
            return;
        }
        outside.send(link).bytes().extend_from_slice(output);
        let len = output.len();
        connection.session.sent(len);
    }

    /// Moves the answers of a connection to the others.
    fn collect(&mut self, link: LinkId) {
        let Self { connections, answers, back_off, .. } = self;
        if let Some(Some(connection)) = connections.get_mut(link.index() as usize)
            && connection.link == link
        {
            while let Some((ticket, answer)) = connection.session.next_answer() {
                if answer.is_ok() {
                    *back_off = BackOff::default();
                }
                answers.push((ticket, answer));
            }
        }
    }

    fn put(&mut self, connection: Connection) {
        let index = connection.link.index() as usize;
        if index >= self.connections.len() {
            self.connections.resize_with(index + 1, || None);
        }
        self.connections[index] = Some(connection);
    }

    fn get(&self, link: LinkId) -> Option<&Connection> {
        self.connections.get(link.index() as usize)?.as_ref().filter(|c| c.link == link)
    }

    fn get_mut(&mut self, link: LinkId) -> Option<&mut Connection> {
        self.connections.get_mut(link.index() as usize)?.as_mut().filter(|c| c.link == link)
    }
}

impl BackOff {
    /// A connection that was dialled then has failed. Of those that were dialled before the last
    /// failure each would tell the same once more.
    fn extend(&mut self, now: u32, dialled_at: u32) {
        if dialled_at < self.until {
            return;
        }
        let (first, most) = BACK_OFF;
        self.until = now + (first << self.failures.min(8)).min(most);
        self.failures += 1;
    }
}

#[cfg(test)]
mod tests;
