//! Connections to a Redis server: one a request, one for all, or a pool.

use super::{Outcome, Ticket};
use crate::{
    application::Wake,
    config::StoreConnections,
    outside::{Endpoint, LinkId, Outside, Question, To},
};
use pollux_guestbook::{
    Request, StoreError,
    redis::{Address, Session, Url},
};
use std::{
    collections::VecDeque,
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
pub(in crate::application::guestbook) struct RedisStore {
    url: Url,
    policy: StoreConnections,
    place: Place,
    /// By the number of their link's place.
    connections: Vec<Option<Connection>>,
    /// Those that take further requests.
    pool: Vec<LinkId>,
    back_off: BackOff,
    answers: Vec<Outcome>,
}

#[derive(Debug)]
struct Connection {
    link: LinkId,
    session: Session<Ticket>,
    /// It has been connected: the server is there.
    is_connected: bool,
}

/// What is known of where the server is.
#[derive(Debug)]
enum Place {
    /// At one of these addresses, which are tried in turn.
    Known(Vec<Endpoint>),
    /// A name that nobody has asked for yet, or whose answer has turned out wrong.
    Unknown,
    /// A name that is being resolved, and who waits for that.
    Asked(VecDeque<(Ticket, Request)>),
}

#[derive(Debug, Default)]
struct BackOff {
    failures: u32,
    until: u32,
}

impl RedisStore {
    pub(super) fn new(url: Url, policy: StoreConnections) -> Self {
        let place = match &url.address {
            Address::Unix(path) => Place::Known(vec![Endpoint::Unix(path.clone())]),
            Address::Tcp(host, port) => match host.parse::<IpAddr>() {
                Ok(address) => Place::Known(vec![Endpoint::Tcp(SocketAddr::new(address, *port))]),
                Err(_) => Place::Unknown,
            },
        };
        Self {
            url,
            policy,
            place,
            connections: Vec::new(),
            pool: Vec::new(),
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
        let Some(connection) = self.get_mut(link) else { return };
        connection.session.begin(ticket, request);
        let output = connection.session.output();
        outside.send(link).bytes().extend_from_slice(output);
        let len = output.len();
        connection.session.sent(len);
        self.collect(link);
    }

    /// A connection for one more request; none while the server's name is being resolved, or while
    /// it is left alone.
    fn connection(&mut self, outside: &mut Outside, now: u32) -> Option<LinkId> {
        if let StoreConnections::Pooled(most) = self.policy {
            let waiting = |link: &LinkId| self.get(*link).map_or(0, |c| c.session.under_way());
            let least = self.pool.iter().copied().min_by_key(waiting);
            if let Some(link) = least
                && (waiting(&link) == 0 || self.pool.len() >= most.get())
            {
                return Some(link);
            }
        }
        if now < self.back_off.until {
            return None;
        }
        let endpoint = match &self.place {
            // After a failure the next of its addresses has its turn.
            Place::Known(all) => all[self.back_off.failures as usize % all.len()].clone(),
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
        let connection = Connection { link, session: Session::new(&self.url), is_connected: false };
        let index = link.index() as usize;
        if index >= self.connections.len() {
            self.connections.resize_with(index + 1, || None);
        }
        self.connections[index] = Some(connection);
        if matches!(self.policy, StoreConnections::Pooled(_)) {
            self.pool.push(link);
        }
        Some(link)
    }

    pub(super) fn event(&mut self, outside: &mut Outside, now: u32, wake: Wake<'_>) {
        match wake {
            Wake::Connected(link) => {
                self.back_off = BackOff::default();
                if let Some(connection) = self.get_mut(link) {
                    connection.is_connected = true;
                }
            }
            Wake::Received(link, octets) => {
                let Some(connection) = self.get_mut(link) else { return };
                match connection.session.receive(octets) {
                    Ok(()) => {
                        // What a login has held back leaves now.
                        let output = connection.session.output();
                        if !output.is_empty() {
                            outside.send(link).bytes().extend_from_slice(output);
                            let len = output.len();
                            connection.session.sent(len);
                        }
                        self.collect(link);
                    }
                    Err(why) => {
                        // A server that does not let us in is asked again later, not at once.
                        self.back_off.extend(now);
                        self.give_up(outside, link, &why);
                    }
                }
                let is_over = self.get(link).is_some_and(|c| !c.session.is_waiting());
                if is_over && self.policy == StoreConnections::PerRequest {
                    self.remove(outside, link);
                }
            }
            Wake::Failed(link, error) => {
                let is_connected = self.get(link).is_some_and(|c| c.is_connected);
                if !is_connected {
                    self.back_off.extend(now);
                    self.forget_place();
                }
                let why = format!("{}: {}", self.url, std::io::Error::from(error));
                self.give_up(outside, link, &StoreError::Unreachable(why));
            }
            Wake::Ended(link) => {
                let why = format!("{} has closed the connection", self.url);
                self.give_up(outside, link, &StoreError::Unreachable(why));
            }
            Wake::Resolved(_, outcome) => self.resolved(outside, now, outcome),
            _ => {}
        }
    }

    /// One request's answer did not come in time: nor will those behind it, so the connection is
    /// given up.
    pub(super) fn is_late(&mut self, outside: &mut Outside, ticket: Ticket) {
        let slow = self.connections.iter().flatten().find(|c| c.session.has(ticket));
        if let Some(link) = slow.map(|connection| connection.link) {
            self.give_up(outside, link, &StoreError::TimedOut);
        }
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
                self.place = Place::Known(addresses.into_iter().map(Endpoint::Tcp).collect());
                for (ticket, request) in waiting {
                    self.ask(outside, now, ticket, &request);
                }
                return;
            }
            Ok(_) => "the name has no address".to_owned(),
            Err(why) => why,
        };
        self.back_off.extend(now);
        for (ticket, _) in waiting {
            let why = StoreError::Unreachable(format!("{}: {why}", self.url));
            self.answers.push((ticket, Err(why)));
        }
    }

    /// A name may have moved: it is resolved again when all of its addresses have failed.
    fn forget_place(&mut self) {
        if let (Address::Tcp(host, _), Place::Known(all)) = (&self.url.address, &self.place)
            && host.parse::<IpAddr>().is_err()
            && self.back_off.failures as usize >= all.len()
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
        if self.get(link).is_some() {
            self.connections[link.index() as usize] = None;
        }
        self.pool.retain(|other| *other != link);
    }

    /// Moves the answers of a connection to the others.
    fn collect(&mut self, link: LinkId) {
        let Self { connections, answers, .. } = self;
        if let Some(Some(connection)) = connections.get_mut(link.index() as usize)
            && connection.link == link
        {
            answers.extend(std::iter::from_fn(|| connection.session.next_answer()));
        }
    }

    fn get(&self, link: LinkId) -> Option<&Connection> {
        self.connections.get(link.index() as usize)?.as_ref().filter(|c| c.link == link)
    }

    fn get_mut(&mut self, link: LinkId) -> Option<&mut Connection> {
        self.connections.get_mut(link.index() as usize)?.as_mut().filter(|c| c.link == link)
    }
}

impl BackOff {
    fn extend(&mut self, now: u32) {
        let (first, most) = BACK_OFF;
        self.until = now + (first << self.failures.min(8)).min(most);
        self.failures += 1;
    }
}
