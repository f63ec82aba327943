//! Decides about a request: serve it from the store, forward it to the origin, or wait for another
//! request's fetch (RFC 9111 §4).

use crate::{
    cache_status::Forward,
    config::KEY_MAX,
    content_range::PARTIAL,
    field_lines::put_field,
    hit::Hit,
    key::Key,
    memory_tier::MemoryMatch,
    part,
    pending_fetches::{PendingFetch, Ticket, Waiter},
    record::{Object, RecordHeader},
    shard::{RequestMetadata, Shard},
    vary,
};
use pollux_http::{
    date,
    request::{Framing, KnownField, KnownFieldSet, Method, Request},
};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

/// A request to look up.
#[derive(Clone, Copy, Debug)]
pub struct Lookup<'a, 'b> {
    /// The request.
    pub request: &'a Request<'b>,
    /// The part of the key before the host: `http://`, or `https://` for clients that use TLS.
    pub site: &'a [u8],
    /// A number that the caller chooses. [`Handle::next_wakeup`](crate::Handle::next_wakeup)
    /// returns it when the fetch ends for which this request waits. With `None` the request never
    /// waits.
    pub waiter: Option<u64>,
    /// The request has waited before. It then waits once more only for its own variant, if the first
    /// fetch brought another one, or for a fetch, if it first waited for a stale response from disk.
    /// After two waits the caller passes no `waiter`.
    pub has_waited: bool,
}

/// The decision about a request.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one a request; a box would be an allocation")]
pub enum Decision {
    /// Send this response; no request to the origin is needed.
    Serve(Hit),
    /// Send this response, and fetch its replacement in the background (RFC 5861 §3).
    ServeAndRefresh(Hit, Fetch),
    /// Forward the request to the origin.
    Fetch(Fetch),
    /// Another request is already fetching this resource; wait for its response. The `waiter`
    /// number is returned when that fetch ends, or when its response turns out not to be shareable;
    /// then look up again with `has_waited`. The caller should also do so after a timeout of its
    /// own.
    Wait,
    /// Nothing suitable is stored and the request has `only-if-cached`: respond with 504 (RFC 9111
    /// §5.2.1.7).
    OnlyIfCached,
}

/// A request to forward to the origin.
#[derive(Clone, Debug)]
pub struct Fetch {
    /// Identifies the fetch in later calls.
    pub ticket: Ticket,
    /// The conditional fields and ranges to send.
    pub conditions: Conditions,
    /// A background refresh: its method is GET, regardless of the client's method, and no client waits
    /// for the response.
    pub is_refresh: bool,
    /// The reason for forwarding the request.
    pub forward: Forward,
}

/// The request fields that make it conditional or request a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conditions {
    /// The fields that the client sent.
    Own,
    /// These lines, possibly none, instead of the fields that [`is_condition`] names.
    Replaced(Vec<u8>),
}

/// Whether [`Conditions::Replaced`] replaces the field `name`.
pub fn is_condition(name: &[u8]) -> bool {
    [&b"if-none-match"[..], b"if-modified-since", b"if-range", b"range"]
        .iter()
        .any(|condition| name.eq_ignore_ascii_case(condition))
}

/// Whether, and why, a stored response may be served.
enum Usability {
    Fresh,
    Stale,
    /// It is stale; serve it and refresh it.
    WhileRevalidating,
    /// It is stale; serve it because the origin is failing.
    InsteadOfError,
    Not(Forward),
}

/// How to fetch a resource from the origin.
struct FetchPlan<'k> {
    key: Key<'k>,
    /// The key under which other requests find this fetch.
    coalescing_key: u64,
    forward: Forward,
    /// The stored response to validate.
    candidate: Option<Object>,
    /// The stored beginning of the resource; only the remainder is fetched.
    prefix: Option<Object>,
}

impl<'k> FetchPlan<'k> {
    /// Plans to fetch the complete resource.
    fn new(key: Key<'k>, coalescing_key: u64, forward: Forward) -> Self {
        Self { key, coalescing_key, forward, candidate: None, prefix: None }
    }
}

/// A [`Lookup`] together with the worker that makes it.
#[derive(Clone, Copy)]
pub(crate) struct WorkerLookup<'a, 'b> {
    pub(crate) lookup: &'a Lookup<'a, 'b>,
    pub(crate) worker: u32,
}

impl<'a, 'b> std::ops::Deref for WorkerLookup<'a, 'b> {
    type Target = Lookup<'a, 'b>;

    fn deref(&self) -> &Lookup<'a, 'b> {
        self.lookup
    }
}

impl Shard {
    /// Decides what to do with a request; see [`Decision`].
    pub(crate) fn lookup(
        &mut self,
        lookup: WorkerLookup<'_, '_>,
        key: Option<Key<'_>>,
        now: u64,
    ) -> Decision {
        let request = lookup.request;
        let request_metadata = self.request_metadata(request);
        if let Some(forward) = bypass_reason(request, &request_metadata, key) {
            return self.bypass(key, forward, &request_metadata, now);
        }
        let Some(key) = key else {
            return self.bypass(key, Forward::Bypass, &request_metadata, now);
        };
        match self.memory.find(key.hash, key.text, request) {
            MemoryMatch::Object(object) => {
                self.serve_stored(lookup, key, &request_metadata, object, now)
            }
            MemoryMatch::OtherVariants(other) => {
                let coalescing_key = coalescing_key_for(key.hash, other.vary(), request);
                if self.wait_for_disk(lookup, key, coalescing_key, now) {
                    return Decision::Wait;
                }
                self.fetch(
                    lookup,
                    &request_metadata,
                    FetchPlan::new(key, coalescing_key, Forward::VaryMiss),
                    now,
                )
            }
            MemoryMatch::Nothing if self.wait_for_disk(lookup, key, key.hash, now) => {
                Decision::Wait
            }
            MemoryMatch::Nothing => self.fetch(
                lookup,
                &request_metadata,
                FetchPlan::new(key, key.hash, Forward::UriMiss),
                now,
            ),
        }
    }

    /// Forwards the request unchanged.
    fn bypass(
        &mut self,
        key: Option<Key<'_>>,
        forward: Forward,
        request_metadata: &RequestMetadata,
        now: u64,
    ) -> Decision {
        if request_metadata.directives.only_if_cached && forward == Forward::Bypass {
            return self.only_if_cached();
        }
        self.statistics.bypasses += 1;
        let ticket = self.pending_fetches.begin(PendingFetch::new(key, forward, now));
        Decision::Fetch(Fetch { ticket, conditions: Conditions::Own, is_refresh: false, forward })
    }

    /// Whether the response is on disk and the request waits until it is loaded into memory.
    fn wait_for_disk(
        &mut self,
        lookup: WorkerLookup<'_, '_>,
        key: Key<'_>,
        coalescing_key: u64,
        now: u64,
    ) -> bool {
        let (Some(disk), Some(number)) = (self.disk.clone(), lookup.waiter) else { return false };
        // After a load that brought another variant, its own variant may be on disk, too.
        if lookup.has_waited && !self.history.was_loaded(key.hash, now) {
            return false;
        }
        let waiter = Waiter { worker: lookup.worker, number };
        if let Some(ticket) =
            self.pending_fetches.find(coalescing_key, now, self.config.coalescing_timeout_s)
        {
            // Waiting for another request's fetch from the origin is decided later, because not
            // every request may share one.
            let is_disk_load =
                self.pending_fetches.get(ticket).is_some_and(|fetching| fetching.is_disk_load);
            return is_disk_load && self.pending_fetches.wait(ticket, waiter);
        }
        let Some(file) = disk.find(key.hash, key.text, lookup.request) else { return false };
        let ticket = self.pending_fetches.begin(PendingFetch {
            coalescing_key: Some(coalescing_key),
            is_disk_load: true,
            ..PendingFetch::new(Some(key), Forward::UriMiss, now)
        });
        disk.load(key.hash, file, ticket);
        self.pending_fetches.wait(ticket, waiter)
    }

    /// Rejects a request that only a stored response could have answered.
    fn only_if_cached(&mut self) -> Decision {
        self.statistics.only_if_cached += 1;
        Decision::OnlyIfCached
    }

    /// Decides about a request whose URL and variant are stored: serves, validates or completes the
    /// stored response.
    fn serve_stored(
        &mut self,
        lookup: WorkerLookup<'_, '_>,
        key: Key<'_>,
        request_metadata: &RequestMetadata,
        object: Object,
        now: u64,
    ) -> Decision {
        // Computed only when the request is forwarded; a hit does not need it.
        let coalescing_key_of =
            |object: &Object| coalescing_key_for(key.hash, object.vary(), lookup.request);
        let is_part = object.header().status == PARTIAL;
        let is_backing_off = self.history.is_backing_off(key.hash, now, self.config.back_off_max_s);
        let usable =
            usability(&object.header(), request_metadata, lookup.has_waited, is_backing_off, now);
        if is_part && !part::answers(&object, lookup.request) {
            let coalescing_key = coalescing_key_of(&object);
            let is_fresh = matches!(usable, Usability::Fresh);
            let is_prefix =
                is_fresh && part::is_prefix_for(&object, lookup.request, self.max_object());
            let prefix = is_prefix.then_some(object);
            let plan =
                FetchPlan { prefix, ..FetchPlan::new(key, coalescing_key, Forward::Partial) };
            return self.fetch(lookup, request_metadata, plan, now);
        }
        let usable = match usable {
            Usability::WhileRevalidating if is_part => Usability::Not(Forward::Stale),
            usable => usable,
        };
        if let Usability::Not(forward) = usable {
            let coalescing_key = coalescing_key_of(&object);
            // A part is not validated but requested again: a 206 gives the same information and may
            // let the part grow.
            let candidate = if is_part { None } else { Some(object) };
            let plan = FetchPlan { candidate, ..FetchPlan::new(key, coalescing_key, forward) };
            return self.fetch(lookup, request_metadata, plan, now);
        }
        let mut status = self.status(None, key.text);
        if lookup.has_waited && self.history.was_loaded(key.hash, now) {
            status.detail = Some("disk");
        } else if lookup.has_waited {
            // Another request's fetch served this request (RFC 9211 §2.6).
            status.forward = Some(Forward::Miss);
            status.collapsed = Some(true);
        }
        let mut hit = self.hit(object, status, now);
        match usable {
            Usability::Fresh => self.statistics.hits += 1,
            Usability::InsteadOfError => {
                self.statistics.stale_hits += 1;
                hit.cache_status.detail = Some("origin-failing");
            }
            // A client that wants no request (§5.2.1.7) causes no refresh. Its directive would be
            // forwarded, and another cache would answer with 504.
            Usability::WhileRevalidating
                if !is_backing_off && !request_metadata.directives.only_if_cached =>
            {
                self.statistics.stale_hits += 1;
                let (coalescing_key, limit) =
                    (coalescing_key_of(&hit.object), self.config.coalescing_timeout_s);
                if self.pending_fetches.find(coalescing_key, now, limit).is_none() {
                    let fetch = self.refresh(key, coalescing_key, hit.object.clone(), now);
                    return Decision::ServeAndRefresh(hit, fetch);
                }
            }
            _ => self.statistics.stale_hits += 1,
        }
        Decision::Serve(hit)
    }

    fn refresh(&mut self, key: Key<'_>, coalescing_key: u64, object: Object, now: u64) -> Fetch {
        self.statistics.refreshes += 1;
        let forward = Forward::Stale;
        let conditions = Conditions::Replaced(validation_fields(&object));
        let ticket = self.pending_fetches.begin(PendingFetch {
            coalescing_key: Some(coalescing_key),
            candidate: Some(object),
            may_store: true,
            conditions_replaced: true,
            is_refresh: true,
            ..PendingFetch::new(Some(key), forward, now)
        });
        Fetch { ticket, conditions, is_refresh: true, forward }
    }

    /// Forwards a request to the origin (§4.3.1), or makes it wait for a pending fetch of the same
    /// resource. A request with `only-if-cached` receives neither.
    fn fetch(
        &mut self,
        lookup: WorkerLookup<'_, '_>,
        request_metadata: &RequestMetadata,
        plan: FetchPlan<'_>,
        now: u64,
    ) -> Decision {
        if request_metadata.directives.only_if_cached {
            return self.only_if_cached();
        }
        let FetchPlan { key, coalescing_key, forward, candidate, prefix } = plan;
        let request = lookup.request;
        let is_get = request.method == Method::Get;
        let is_coalescing_disabled = self.history.is_coalescing_disabled(key.hash, now);
        let is_conditional = request.has_any(
            const { KnownFieldSet::new(&[KnownField::IfNoneMatch, KnownField::IfModifiedSince]) },
        );
        // Range requests are forwarded as they are, because the complete representation may be a
        // thousand times as long. A conditional request is forwarded as it is if the last response
        // could not be stored, or if the response is for one user, which is rarely stored (§3.5): the
        // client may already have the current representation.
        let is_rarely_stored = is_coalescing_disabled || request_metadata.is_authorized;
        let is_fetched_for_store =
            is_get && !request.has(KnownField::Range) && !(is_conditional && is_rarely_stored);
        let conditions_replaced = candidate.is_some() || is_fetched_for_store;
        let may_share = is_get
            && conditions_replaced
            && !request_metadata.is_authorized
            && !is_coalescing_disabled;
        let other = match may_share {
            true => {
                self.pending_fetches.find(coalescing_key, now, self.config.coalescing_timeout_s)
            }
            false => None,
        };
        // A request that waited without result is forwarded at once. Exceptions, unless the origin
        // fails: if the first fetch brought another variant, the requests for one variant wait once more
        // for a common fetch, and so do the requests that waited for a response from disk, if that is
        // stale. A request with `no-cache` would wait in vain: it does not accept the response to an
        // earlier request.
        let has_waited_for_disk = lookup.has_waited && self.history.was_loaded(key.hash, now);
        let is_backing_off =
            || self.history.is_backing_off(key.hash, now, self.config.back_off_max_s);
        let may_wait_again =
            || (forward == Forward::VaryMiss || has_waited_for_disk) && !is_backing_off();
        let may_wait =
            !request_metadata.directives.no_cache && (!lookup.has_waited || may_wait_again());
        if let Some(ticket) = other
            && may_wait
            && let Some(number) = lookup.waiter
            && self.pending_fetches.wait(ticket, Waiter { worker: lookup.worker, number })
        {
            self.statistics.collapsed += 1;
            return Decision::Wait;
        }
        let conditions = match (&candidate, &prefix) {
            (Some(object), _) => Conditions::Replaced(validation_fields(object)),
            (None, Some(object)) => Conditions::Replaced(part::remainder_request_fields(object)),
            (None, None) if conditions_replaced && is_conditional => {
                Conditions::Replaced(Vec::new())
            }
            (None, None) => Conditions::Own,
        };
        match candidate {
            Some(_) => self.statistics.validations += 1,
            None => self.statistics.misses += 1,
        }
        let fetching = PendingFetch {
            coalescing_key: (may_share && other.is_none()).then_some(coalescing_key),
            requires_validation: candidate.is_some() && request_metadata.directives.no_cache,
            stale_if_error: request_metadata.directives.stale_if_error,
            candidate,
            prefix,
            may_store: is_get,
            conditions_replaced,
            // The request may have waited for a load from disk instead of another request.
            has_waited: lookup.has_waited && !has_waited_for_disk,
            ..PendingFetch::new(Some(key), forward, now)
        };
        let ticket = self.pending_fetches.begin(fetching);
        Decision::Fetch(Fetch { ticket, conditions, is_refresh: false, forward })
    }
}

/// Returns the reason to forward the request regardless of the stored responses.
fn bypass_reason(
    request: &Request<'_>,
    request_metadata: &RequestMetadata,
    key: Option<Key<'_>>,
) -> Option<Forward> {
    if !matches!(request.method, Method::Get | Method::Head) {
        return Some(Forward::Method);
    }
    let has_preconditions = request.has_any(
        const { KnownFieldSet::new(&[KnownField::IfMatch, KnownField::IfUnmodifiedSince]) },
    );
    let must_bypass = request.framing != Framing::None
        || request_metadata.has_upgrade
        || request_metadata.directives.no_store
        // §4.3.2: the origin evaluates preconditions.
        || has_preconditions
        || key.is_none_or(|key| key.text.len() > KEY_MAX);
    must_bypass.then_some(Forward::Bypass)
}

/// Decides whether a stored response may be served (§4, §4.2, §5.2.1).
fn usability(
    header: &RecordHeader,
    request_metadata: &RequestMetadata,
    has_waited: bool,
    is_backing_off: bool,
    now: u64,
) -> Usability {
    let directives = &request_metadata.directives;
    let left = header.time_left(now);
    let staleness = -left;
    if header.is_no_cache() {
        return Usability::Not(Forward::Stale);
    }
    // Validating an immutable response for a browser's reload would have no effect (RFC 8246 §2.1).
    // `no-cache` still forces validation.
    let is_immutable_and_fresh = header.is_immutable() && left > 0;
    // An age of 0 means anything below a second. A browser's reload (`max-age=0`) does not accept
    // that, except for a response that arrived while the request waited. The time that the origin
    // took for it, which is a part of its age, was a part of the wait.
    let age = match has_waited {
        true => header.age(now).saturating_sub(header.arrival_delay.into()),
        false => header.age(now),
    };
    let is_too_old = !is_immutable_and_fresh
        && directives.max_age.is_some_and(|max| max == 0 && !has_waited || age > u64::from(max));
    let is_not_fresh_enough = directives.min_fresh.is_some_and(|min| left < i64::from(min));
    if directives.no_cache || is_too_old || is_not_fresh_enough {
        return Usability::Not(Forward::Request);
    }
    if left > 0 {
        return Usability::Fresh;
    }
    let max_stale = directives.max_stale.filter(|_| !header.forbids_stale());
    if max_stale.is_some_and(|max| staleness <= i64::from(max)) {
        return Usability::Stale;
    }
    let within = |seconds: u32| seconds > 0 && staleness <= i64::from(seconds);
    if within(header.stale_while_revalidate) {
        return Usability::WhileRevalidating;
    }
    if is_backing_off && within(header.stale_if_error_for(directives.stale_if_error)) {
        return Usability::InsteadOfError;
    }
    Usability::Not(Forward::Stale)
}

/// Returns the field lines that validate `object`. Both validators are sent, because the origin may
/// know only one of them (RFC 9110 §13.1.2, §13.1.3).
fn validation_fields(object: &Object) -> Vec<u8> {
    let mut lines = Vec::new();
    if let Some(etag) = object.etag() {
        lines.extend_from_slice(b"If-None-Match: ");
        etag.write(&mut lines);
        lines.extend_from_slice(b"\r\n");
    }
    if let Some(changed) = object.header().last_modified() {
        put_field(b"If-Modified-Since", &date::format(changed), &mut lines);
    }
    lines
}

/// Returns the key under which requests find the fetch of `request`. Requests that differ in a
/// field that `vary_lines` names have different keys and do not wait for each other.
fn coalescing_key_for(hash: u64, vary_lines: &[u8], request: &Request<'_>) -> u64 {
    if vary_lines.is_empty() {
        return hash;
    }
    let mut lines = Vec::new();
    vary::put_lines(vary::names(vary_lines), request, &mut lines);
    hash ^ BuildHasherDefault::<DefaultHasher>::default().hash_one(&lines)
}
