//! A request comes: answer it from the store, ask the origin, or wait for somebody who asks already
//! (RFC 9111 §4).

use crate::{
    Hit,
    cache_status::Forward,
    config::KEY_MAX,
    engine::{Engine, Key, Seen},
    flights::{Fetching, Ticket, Waiter},
    hit::put_field,
    part::{self, PARTIAL},
    record::{Numbers, Object},
    shelf::Found,
    vary,
};
use pollux_http::{
    date,
    request::{Framing, Known, KnownSet, Method, Request},
};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// A request, and who asks.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a, 'b> {
    /// The request.
    pub request: &'a Request<'b>,
    /// What stands before the host in keys: `http://`.
    pub site: &'a [u8],
    /// Who is told when somebody else's fetch is over: a number of the caller's own. Without it the
    /// request never waits.
    pub waiter: Option<u64>,
    /// It has waited already. It will be told to wait again only for a fetch of its own variant, where
    /// what it waited for turned out to be another one. Who has waited for both gives no `waiter`.
    pub has_waited: bool,
}

/// What is to be done.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one a request; a box would be an allocation")]
pub enum Decision {
    /// Send this; nobody else is to be asked.
    Answer(Hit),
    /// Send this, and fetch what it is to be replaced by, in the background (RFC 5861 §3).
    AnswerAndRefresh(Hit, Fetch),
    /// Ask the origin.
    Fetch(Fetch),
    /// Somebody asks already. The caller's number comes back when it is over, or when this fetch turns
    /// out to be good for nobody else; then ask again, having waited. Ask again also when that takes
    /// too long.
    Wait,
    /// Nothing is stored, and the client wants nothing else: 504 (RFC 9111 §5.2.1.7).
    OnlyIfCached,
}

/// A request that is to be sent on.
#[derive(Clone, Debug)]
pub struct Fetch {
    /// What its outcome is told with.
    pub ticket: Ticket,
    /// Which conditions and ranges it has.
    pub conditions: Conditions,
    /// Its method is GET, whatever the client's is: nobody waits for it.
    pub is_refresh: bool,
    /// Why it is sent on.
    pub forward: Forward,
}

/// The fields of a request that make it conditional or ask for a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conditions {
    /// Those that the client sent.
    Own,
    /// These lines, perhaps none, instead of those that [`is_condition`] names.
    Replaced(Vec<u8>),
}

/// Whether the field is one of those that [`Conditions::Replaced`] replaces.
pub fn is_condition(name: &[u8]) -> bool {
    [&b"if-none-match"[..], b"if-modified-since", b"if-range", b"range"]
        .iter()
        .any(|condition| name.eq_ignore_ascii_case(condition))
}

/// May a stored response be used, and how?
enum Usable {
    Fresh,
    Stale,
    /// Stale, and to be refreshed.
    WhileRevalidating,
    /// Stale, while the origin fails.
    InsteadOfError,
    Not(Forward),
}

/// What the origin is to be asked for.
struct Wanted<'k> {
    key: Key<'k>,
    /// Under which others find it.
    flight: u64,
    /// Why.
    forward: Forward,
    /// What is to be validated.
    candidate: Option<Object>,
    /// The beginning of what is asked for: the rest is to be fetched.
    beginning: Option<Object>,
}

impl<'k> Wanted<'k> {
    /// All of it.
    fn new(key: Key<'k>, flight: u64, forward: Forward) -> Self {
        Self { key, flight, forward, candidate: None, beginning: None }
    }
}

/// An [`Ask`] of a worker.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a, 'b> {
    pub(crate) ask: &'a Ask<'a, 'b>,
    pub(crate) worker: u32,
}

impl<'a, 'b> std::ops::Deref for Asked<'a, 'b> {
    type Target = Ask<'a, 'b>;

    fn deref(&self) -> &Ask<'a, 'b> {
        self.ask
    }
}

impl Engine {
    pub(crate) fn lookup(
        &mut self,
        ask: Asked<'_, '_>,
        key: Option<Key<'_>>,
        now: u64,
    ) -> Decision {
        let request = ask.request;
        let seen = self.see(request);
        if let Some(forward) = passes(request, &seen, key) {
            return self.pass(key, forward, &seen, now);
        }
        let Some(key) = key else { return self.pass(key, Forward::Bypass, &seen, now) };
        match self.shelf.find(key.hash, key.text, request) {
            Found::Object(object) => self.with_object(ask, key, &seen, object, now),
            Found::OtherVariants(other) => {
                let flight = flight_of(key.hash, other.vary(), request);
                if self.loads(ask, key, flight, now) {
                    return Decision::Wait;
                }
                self.fetch(ask, &seen, Wanted::new(key, flight, Forward::VaryMiss), now)
            }
            Found::Nothing if self.loads(ask, key, key.hash, now) => Decision::Wait,
            Found::Nothing => {
                self.fetch(ask, &seen, Wanted::new(key, key.hash, Forward::UriMiss), now)
            }
        }
    }

    /// Sends the request on as it is.
    fn pass(&mut self, key: Option<Key<'_>>, forward: Forward, seen: &Seen, now: u64) -> Decision {
        if seen.wants.only_if_cached && forward == Forward::Bypass {
            return self.only_if_cached();
        }
        self.statistics.bypasses += 1;
        let ticket = self.flights.begin(Fetching::new(key, forward, now));
        Decision::Fetch(Fetch { ticket, conditions: Conditions::Own, is_refresh: false, forward })
    }

    /// Whether the second tier has it, and the caller waits until it is in memory.
    fn loads(&mut self, ask: Asked<'_, '_>, key: Key<'_>, flight: u64, now: u64) -> bool {
        let (Some(disk), Some(number)) = (self.disk.clone(), ask.waiter) else { return false };
        if ask.has_waited {
            return false;
        }
        let waiter = Waiter { worker: ask.worker, number };
        if let Some(ticket) = self.flights.find(flight, now, self.config.flight_limit) {
            // Whether to wait for what another one asks the origin is not decided here: not every
            // request may.
            let is_load = self.flights.get(ticket).is_some_and(|fetching| fetching.is_load);
            return is_load && self.flights.wait(ticket, waiter);
        }
        let Some(file) = disk.find(key.hash, key.text, ask.request) else { return false };
        let ticket = self.flights.begin(Fetching {
            flight: Some(flight),
            is_load: true,
            ..Fetching::new(Some(key), Forward::UriMiss, now)
        });
        disk.load(key.hash, file, ticket);
        self.flights.wait(ticket, waiter)
    }

    fn only_if_cached(&mut self) -> Decision {
        self.statistics.only_if_cached += 1;
        Decision::OnlyIfCached
    }

    fn with_object(
        &mut self,
        ask: Asked<'_, '_>,
        key: Key<'_>,
        seen: &Seen,
        object: Object,
        now: u64,
    ) -> Decision {
        // Only for those who ask the origin: a hit has no use for it.
        let flight_for = |object: &Object| flight_of(key.hash, object.vary(), ask.request);
        let is_part = object.numbers().status == PARTIAL;
        let backs_off = self.notes.backs_off(key.hash, now, self.config.back_off_max);
        let usable = judge(&object.numbers(), seen, ask.has_waited, backs_off, now);
        if is_part && !part::answers(&object, ask.request) {
            let flight = flight_for(&object);
            let is_fresh = matches!(usable, Usable::Fresh);
            let is_beginning =
                is_fresh && part::is_beginning_for(&object, ask.request, self.max_object());
            let beginning = is_beginning.then_some(object);
            let wanted = Wanted { beginning, ..Wanted::new(key, flight, Forward::Partial) };
            return self.fetch(ask, seen, wanted, now);
        }
        let usable = match usable {
            Usable::WhileRevalidating if is_part => Usable::Not(Forward::Stale),
            usable => usable,
        };
        if let Usable::Not(forward) = usable {
            let flight = flight_for(&object);
            // A part is not validated but asked for again: that tells the same, and may make it grow.
            let candidate = if is_part { None } else { Some(object) };
            let wanted = Wanted { candidate, ..Wanted::new(key, flight, forward) };
            return self.fetch(ask, seen, wanted, now);
        }
        let mut status = self.status(None, key.text);
        if ask.has_waited && self.notes.was_loaded(key.hash, now) {
            status.detail = Some("disk");
        } else if ask.has_waited {
            // It was sent on together with another one (RFC 9211 §2.6).
            status.forward = Some(Forward::Miss);
            status.collapsed = Some(true);
        }
        let mut hit = self.hit(object, status, now);
        match usable {
            Usable::Fresh => self.statistics.hits += 1,
            Usable::InsteadOfError => {
                self.statistics.stale_hits += 1;
                hit.cache_status.detail = Some("origin-failing");
            }
            Usable::WhileRevalidating if !backs_off => {
                self.statistics.stale_hits += 1;
                let (flight, limit) = (flight_for(&hit.object), self.config.flight_limit);
                if self.flights.find(flight, now, limit).is_none() {
                    let fetch = self.refresh(key, flight, hit.object.clone(), now);
                    return Decision::AnswerAndRefresh(hit, fetch);
                }
            }
            _ => self.statistics.stale_hits += 1,
        }
        Decision::Answer(hit)
    }

    fn refresh(&mut self, key: Key<'_>, flight: u64, object: Object, now: u64) -> Fetch {
        self.statistics.refreshes += 1;
        let forward = Forward::Stale;
        let conditions = Conditions::Replaced(conditions_of(&object));
        let ticket = self.flights.begin(Fetching {
            flight: Some(flight),
            candidate: Some(object),
            may_keep: true,
            is_stripped: true,
            is_refresh: true,
            ..Fetching::new(Some(key), forward, now)
        });
        Fetch { ticket, conditions, is_refresh: true, forward }
    }

    /// Asks the origin (§4.3.1): joins a flight, or begins one, or goes alone; nothing of these for a
    /// client that wants what is stored, or nothing.
    fn fetch(&mut self, ask: Asked<'_, '_>, seen: &Seen, wanted: Wanted<'_>, now: u64) -> Decision {
        if seen.wants.only_if_cached {
            return self.only_if_cached();
        }
        let Wanted { key, flight, forward, candidate, beginning } = wanted;
        let request = ask.request;
        let is_get = request.method == Method::Get;
        let is_apart = self.notes.is_apart(key.hash, now);
        let is_conditional =
            request.has_any(const { KnownSet::new(&[Known::IfNoneMatch, Known::IfModifiedSince]) });
        // A part is fetched as a part: the whole may be a thousand times as long. And what was not
        // to be stored lately is not fetched whole for a client that may have it already.
        let is_for_the_store =
            is_get && !request.has(Known::Range) && !(is_conditional && is_apart);
        let is_stripped = candidate.is_some() || is_for_the_store;
        let may_share = is_get && is_stripped && !seen.is_authorized && !is_apart;
        let other = match may_share {
            true => self.flights.find(flight, now, self.config.flight_limit),
            false => None,
        };
        // Who waited in vain goes on at once, except for a variant that nobody had asked for yet: of those
        // who wait for it one is enough, too, unless the origin fails.
        let backs_off = || self.notes.backs_off(key.hash, now, self.config.back_off_max);
        let may_wait = !ask.has_waited || forward == Forward::VaryMiss && !backs_off();
        if let Some(ticket) = other
            && may_wait
            && let Some(number) = ask.waiter
            && self.flights.wait(ticket, Waiter { worker: ask.worker, number })
        {
            self.statistics.collapsed += 1;
            return Decision::Wait;
        }
        let conditions = match (&candidate, &beginning) {
            (Some(object), _) => Conditions::Replaced(conditions_of(object)),
            (None, Some(object)) => Conditions::Replaced(part::rest_of(object)),
            (None, None) if is_stripped && is_conditional => Conditions::Replaced(Vec::new()),
            (None, None) => Conditions::Own,
        };
        match candidate {
            Some(_) => self.statistics.validations += 1,
            None => self.statistics.misses += 1,
        }
        let fetching = Fetching {
            flight: (may_share && other.is_none()).then_some(flight),
            wants_confirmed: candidate.is_some() && seen.wants.no_cache,
            candidate,
            beginning,
            may_keep: is_get,
            is_stripped,
            // What was waited for may have been the folder, and no other request.
            has_waited: ask.has_waited && !self.notes.was_loaded(key.hash, now),
            ..Fetching::new(Some(key), forward, now)
        };
        let ticket = self.flights.begin(fetching);
        Decision::Fetch(Fetch { ticket, conditions, is_refresh: false, forward })
    }
}

/// Why the request is sent on whatever is stored.
fn passes(request: &Request<'_>, seen: &Seen, key: Option<Key<'_>>) -> Option<Forward> {
    if !matches!(request.method, Method::Get | Method::Head) {
        return Some(Forward::Method);
    }
    let has_preconditions =
        request.has_any(const { KnownSet::new(&[Known::IfMatch, Known::IfUnmodifiedSince]) });
    let is_odd = request.framing != Framing::None
        || seen.has_upgrade
        || seen.wants.no_store
        // §4.3.2: they are the origin's affair.
        || has_preconditions
        || key.is_none_or(|key| key.text.len() > KEY_MAX);
    is_odd.then_some(Forward::Bypass)
}

/// §4, §4.2, §5.2.1
fn judge(numbers: &Numbers, seen: &Seen, has_waited: bool, backs_off: bool, now: u64) -> Usable {
    let wants = &seen.wants;
    let left = numbers.time_left(now);
    let lateness = -left;
    if numbers.is_no_cache() {
        return Usable::Not(Forward::Stale);
    }
    // The origin would tell a browser's reload no news of what does not change (RFC 8246 §2.1). Who
    // wants it confirmed all the same says `no-cache`.
    let is_as_young_as_any = numbers.is_immutable() && left > 0;
    // An age of 0 is any below a second, which `max-age=0`, a browser's reload, does not want. Who has
    // waited has waited for what came since.
    let is_too_old = !is_as_young_as_any
        && wants
            .max_age
            .is_some_and(|max| max == 0 && !has_waited || numbers.age(now) > u64::from(max));
    let is_too_late = wants.min_fresh.is_some_and(|min| left < i64::from(min));
    if wants.no_cache || is_too_old || is_too_late {
        return Usable::Not(Forward::Request);
    }
    if left > 0 {
        return Usable::Fresh;
    }
    let max_stale = wants.max_stale.filter(|_| !numbers.forbids_stale());
    if max_stale.is_some_and(|max| lateness <= i64::from(max)) {
        return Usable::Stale;
    }
    let within = |seconds: u32| seconds > 0 && lateness <= i64::from(seconds);
    if within(numbers.stale_while_revalidate) {
        return Usable::WhileRevalidating;
    }
    if backs_off && within(numbers.stale_if_error) {
        return Usable::InsteadOfError;
    }
    Usable::Not(Forward::Stale)
}

/// The lines that ask whether `object` is still good: both validators, since the origin may know but
/// one of them (RFC 9110 §13.1.2, §13.1.3).
fn conditions_of(object: &Object) -> Vec<u8> {
    let mut lines = Vec::new();
    if let Some(etag) = object.etag() {
        lines.extend_from_slice(b"If-None-Match: ");
        etag.write(&mut lines);
        lines.extend_from_slice(b"\r\n");
    }
    if let Some(changed) = object.numbers().last_modified() {
        put_field(b"If-Modified-Since", &date::format(changed), &mut lines);
    }
    lines
}

/// Under which a fetch for `request` is found: those whose varying fields differ, as far as these are
/// known, do not wait for each other.
fn flight_of(hash: u64, vary_lines: &[u8], request: &Request<'_>) -> u64 {
    if vary_lines.is_empty() {
        return hash;
    }
    let mut lines = Vec::new();
    vary::put_lines(vary::names(vary_lines), request, &mut lines);
    hash ^ BuildHasherDefault::<DefaultHasher>::default().hash_one(&lines)
}
