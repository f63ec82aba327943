//! Handles responses of the origin: stores them, or replaces failures by stale responses (RFC 9111 §3, §4.3, §4.4).

use crate::{
    cache_status::{CacheStatus, Forward},
    config::FIELDS_MAX,
    content_range::PARTIAL,
    field_lines::{is_withheld, put_field, put_not_modified_fields, without},
    hit::Hit,
    lookup::{Conditions, Fetch},
    object_builder::ObjectBuilder,
    part,
    pending_fetches::Ticket,
    record::{FreshnessTimes, Object},
    response_metadata::{ResponseMetadata, is_dropped},
    rules::{self, Refusal},
    shard::Shard,
    vary,
};
use pollux_http::{
    conditional::{self, Validators},
    date,
    etag::ETag,
    fields::Field,
    output::Output,
    reply::ReplyHead,
    request::{KnownField, Method, Request},
};

/// The decision about a response of the origin.
#[derive(Debug)]
pub struct ResponseDecision {
    /// The response to send to the client.
    pub source: ResponseSource,
    /// Whether the content is being stored. If so, pass it to `append`, then call `finish` or
    /// `abort`. If not, the fetch has ended.
    pub should_store: bool,
    /// For the client's response, unless it is a stored one, which has its own.
    pub cache_status: CacheStatus,
}

/// The response that the client receives.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one a response; a box would be an allocation")]
pub enum ResponseSource {
    /// The origin's response.
    Origin,
    /// A 304: the client has the current representation. [`put_not_modified_fields_of`] writes its
    /// fields.
    NotModified,
    /// A stored response; the origin's response is not needed.
    Stored(Hit),
    /// A stored prefix, followed by the content of the origin's response, which is the remainder.
    StoredPrefix(Hit),
    /// None yet: the origin's response does not match the stored one. Send this request instead.
    Refetch(Fetch),
}

/// Appends the fields of `reply` that a 304 contains (RFC 9110 §15.4.5).
pub fn put_not_modified_fields_of(reply: &ReplyHead<'_>, out: &mut impl Output) {
    let mut lines = Vec::new();
    for field in reply.forwarded() {
        put_field(field.name, field.value, &mut lines);
    }
    put_not_modified_fields(&lines, out);
}

/// The times at which a request was sent and its response was received, in Unix seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExchangeTimes {
    pub(crate) requested_at: u64,
    pub(crate) now: u64,
}

impl Shard {
    /// Decides, by the head of the final response, what the client receives and whether it is stored.
    pub(crate) fn head(
        &mut self,
        ticket: Ticket,
        request: &Request<'_>,
        reply: &ReplyHead<'_>,
        exchange: ExchangeTimes,
    ) -> ResponseDecision {
        let Some(fetching) = self.pending_fetches.get(ticket) else {
            return self.forward_uncached(self.status(Some(Forward::Bypass), b""));
        };
        let (forward, has_waited) = (fetching.forward, fetching.has_waited);
        let (may_store, candidate) = (fetching.may_store, fetching.candidate.clone());
        let is_refresh = fetching.is_refresh;
        let (key, prefix) = (fetching.key.clone(), fetching.prefix.clone());
        let mut status =
            self.status(Some(forward), key.as_ref().map_or(&[][..], |(_, key)| &key[..]));
        status.forward_status = Some(reply.status);
        status.collapsed = has_waited.then_some(false);
        let Some((hash, key)) = key else {
            self.end(ticket);
            return self.forward_uncached(status);
        };

        if reply.status == 304
            && let Some(candidate) = &candidate
        {
            return self.handle_not_modified(ticket, request, reply, candidate, status, exchange);
        }
        if let Some(prefix) = prefix
            && matches!(reply.status, PARTIAL | 304 | 416)
        {
            self.history.record_success(hash);
            return self.continue_prefix(ticket, request, reply, &prefix, status, exchange);
        }
        if is_failure(reply.status) {
            if may_store || candidate.is_some() {
                self.statistics.failures += 1;
                self.history.record_failure(hash, exchange.now, self.config.back_off_max_s);
            }
            let fetching = self.pending_fetches.get(ticket);
            let substitute = fetching.and_then(|fetching| fetching.substitute(exchange.now));
            if let Some(object) = substitute.cloned() {
                // The client of a background refresh was served earlier.
                self.statistics.stale_if_error += u64::from(!is_refresh);
                self.end(ticket);
                let hit = self.hit_instead_of_error(object, &status, exchange.now);
                return ResponseDecision {
                    source: ResponseSource::Stored(hit),
                    should_store: false,
                    cache_status: status,
                };
            }
        } else {
            self.history.record_success(hash);
        }
        // The response to a refresh is one to GET, whatever the method of the client was.
        if request.method == Method::Head && !is_refresh && forward != Forward::Bypass {
            self.freshen_by_head(hash, &key, request, reply, exchange);
        }
        if !may_store {
            let fetching = self.end(ticket);
            let mut decision = self.forward_uncached(status);
            if fetching.is_some_and(|fetching| fetching.conditions_replaced) {
                let metadata = ResponseMetadata::read(reply.status, reply.fields(), &self.config);
                if is_not_modified(request, &metadata, exchange.now) {
                    decision.source = ResponseSource::NotModified;
                }
            }
            return decision;
        }
        self.begin_storing(ticket, request, reply, candidate.as_ref(), status, exchange)
    }

    /// Handles the response to a request for the remainder of `prefix` (§3.4), unless it is the
    /// complete representation.
    fn continue_prefix(
        &mut self,
        ticket: Ticket,
        request: &Request<'_>,
        reply: &ReplyHead<'_>,
        prefix: &Object,
        status: CacheStatus,
        exchange: ExchangeTimes,
    ) -> ResponseDecision {
        let metadata = ResponseMetadata::read(reply.status, reply.fields(), &self.config);
        let times =
            FreshnessTimes::of(&metadata, exchange.requested_at, exchange.now, &self.config);
        let mut fields = Vec::new();
        put_stored_fields(reply, &metadata, exchange.now, &mut fields);
        let prefix_head = part::join_prefix_head(prefix, &metadata, &fields, times, &self.config);
        let Some((object, size)) = prefix_head else {
            // It is not the remainder: the stored prefix is outdated.
            let Some(fetching) = self.pending_fetches.get(ticket) else {
                return self.forward_uncached(status);
            };
            if let Some((hash, _)) = fetching.key {
                self.remove_one(hash, prefix);
            }
            return self.refetch_unconditionally(ticket, status);
        };
        let decision = self.begin_storing(ticket, request, reply, None, status, exchange);
        let mut hit = self.hit(object, decision.cache_status.clone(), exchange.now);
        hit.total_len = Some(size);
        ResponseDecision { source: ResponseSource::StoredPrefix(hit), ..decision }
    }

    /// Repeats the request without conditions.
    pub(crate) fn refetch_unconditionally(
        &mut self,
        ticket: Ticket,
        status: CacheStatus,
    ) -> ResponseDecision {
        let Some(fetching) = self.pending_fetches.get(ticket) else {
            return self.forward_uncached(status);
        };
        (fetching.candidate, fetching.prefix) = (None, None);
        fetching.conditions_replaced = true;
        let fetch = Fetch {
            ticket,
            conditions: Conditions::Replaced(Vec::new()),
            is_refresh: fetching.is_refresh,
            forward: fetching.forward,
        };
        ResponseDecision {
            source: ResponseSource::Refetch(fetch),
            should_store: false,
            cache_status: status,
        }
    }

    /// The client receives the origin's response, which is not stored.
    fn forward_uncached(&self, cache_status: CacheStatus) -> ResponseDecision {
        ResponseDecision { source: ResponseSource::Origin, should_store: false, cache_status }
    }

    /// Starts to store the response to a GET, if it is storable.
    fn begin_storing(
        &mut self,
        ticket: Ticket,
        request: &Request<'_>,
        reply: &ReplyHead<'_>,
        candidate: Option<&Object>,
        mut status: CacheStatus,
        exchange: ExchangeTimes,
    ) -> ResponseDecision {
        let Some(fetching) = self.pending_fetches.get(ticket) else {
            return self.forward_uncached(status);
        };
        let (is_invalidated, conditions_replaced) =
            (fetching.is_invalidated, fetching.conditions_replaced);
        let is_remainder = fetching.prefix.is_some();
        let hash = fetching.key.as_ref().map_or(0, |(hash, _)| *hash);
        let request_metadata = self.request_metadata(request);
        let mut metadata = ResponseMetadata::read(reply.status, reply.fields(), &self.config);
        metadata.is_for_cookie = request_metadata.has_cookie;
        let source = if conditions_replaced && is_not_modified(request, &metadata, exchange.now) {
            ResponseSource::NotModified
        } else {
            ResponseSource::Origin
        };
        let storable = rules::check_storable(
            &metadata,
            request_metadata.is_authorized,
            request_metadata.directives.no_store,
            exchange.now,
            &self.config,
        );
        // An unrequested part could be any part.
        let is_requested = is_remainder || !conditions_replaced && request.has(KnownField::Range);
        let is_unrequested = metadata.part.is_some() && !is_requested;
        let storable = storable.and(if is_unrequested { Err(Refusal::Status) } else { Ok(()) });
        let room = self.max_object().min(self.pending_bytes_max.saturating_sub(self.pending_bytes));
        let is_too_large = content_length(&metadata).is_some_and(|length| length > room);
        let storable = storable.and(if is_too_large { Err(Refusal::TooLarge) } else { Ok(()) });
        let builder = storable.and_then(|()| self.builder(request, reply, &metadata, exchange));
        let refusal = match builder {
            Ok(builder) if !is_invalidated => {
                status.is_stored = true;
                status.ttl =
                    Some(i64::from(builder.times.lifetime) - i64::from(builder.times.initial_age));
                // Waiting for a response that cannot be reused at once would be useless.
                let is_shareable = status.ttl > Some(0) && !metadata.directives.no_cache;
                if !is_shareable {
                    self.history.disable_coalescing(hash, exchange.now);
                    self.pending_fetches.release(ticket);
                }
                self.pending_fetches.store_in(ticket, builder);
                return ResponseDecision { source, should_store: true, cache_status: status };
            }
            Ok(_) => None,
            Err(refusal) => Some(refusal),
        };
        self.statistics.not_stored += 1;
        status.detail = refusal.map(Refusal::detail);
        if refusal.is_some_and(|refusal| refusal.disables_coalescing(reply.status)) {
            self.history.disable_coalescing(hash, exchange.now);
        }
        // The new response must not be stored, and the stored one is outdated, unless the new one may be
        // for one user and the stored one is only used if the origin fails.
        let is_personal = metadata.is_personal() && refusal == Some(Refusal::NeverUsable);
        if let Some(candidate) = candidate
            && matches!(reply.status, 200..=299 | 404 | 410)
            && refusal.is_none_or(Refusal::evicts_stored)
            && !(is_personal && candidate.header().is_unstated())
        {
            self.remove_one(hash, candidate);
        }
        self.end(ticket);
        ResponseDecision { source, should_store: false, cache_status: status }
    }

    /// Returns a builder with the fields to store, or the reason why they are too large.
    fn builder(
        &self,
        request: &Request<'_>,
        reply: &ReplyHead<'_>,
        metadata: &ResponseMetadata<'_>,
        exchange: ExchangeTimes,
    ) -> Result<ObjectBuilder, Refusal> {
        let times = FreshnessTimes::of(metadata, exchange.requested_at, exchange.now, &self.config);
        let mut builder = ObjectBuilder::new(reply.status, times);
        builder.expected = content_length(metadata);
        let names = metadata.varies.names.iter().map(Vec::as_slice);
        vary::put_lines(names, request, &mut builder.vary);
        put_stored_fields(reply, metadata, exchange.now, &mut builder.fields);
        if builder.fields.len() > FIELDS_MAX || builder.vary.len() > usize::from(u16::MAX) {
            return Err(Refusal::TooLarge);
        }
        Ok(builder)
    }

    /// Appends content. Returns false if it is no longer stored; the fetch has ended then.
    pub(crate) fn append(&mut self, ticket: Ticket, bytes: &[u8]) -> bool {
        let max = self.max_object();
        let is_full = self.pending_bytes + bytes.len() as u64 > self.pending_bytes_max;
        let Some(fetching) = self.pending_fetches.get(ticket) else { return false };
        let hash = fetching.key.as_ref().map_or(0, |(hash, _)| *hash);
        let Some(builder) = &mut fetching.builder else { return false };
        let began = fetching.began;
        if !is_full && !fetching.is_invalidated && builder.append(bytes, max) {
            self.pending_bytes += bytes.len() as u64;
            return true;
        }
        self.history.disable_coalescing(hash, began);
        self.statistics.not_stored += 1;
        self.end(ticket);
        false
    }

    /// Stores the response: its content is complete.
    pub(crate) fn finish(&mut self, ticket: Ticket) {
        let Some(fetching) = self.pending_fetches.get(ticket) else { return };
        let is_invalidated = fetching.is_invalidated;
        let builder = fetching.builder.take();
        let key = fetching.key.clone();
        self.pending_bytes -= builder.as_ref().map_or(0, ObjectBuilder::len);
        let stored =
            builder.filter(|_| !is_invalidated).zip(key).and_then(|(builder, (hash, key))| {
                let object = builder.finish(&key, &self.config)?;
                match object.header().status {
                    PARTIAL => self.put_part(hash, object),
                    _ => {
                        self.pending_fetches.outdate_earlier(ticket, object.vary());
                        self.put(hash, object);
                    }
                }
                Some(())
            });
        match stored {
            Some(()) => self.statistics.stored += 1,
            None => self.statistics.not_stored += 1,
        }
        // Ends the fetch after storing, so that woken requests find the response.
        self.end(ticket);
    }

    /// Ends the fetch: the content is incomplete or no longer needed.
    pub(crate) fn abort(&mut self, ticket: Ticket) {
        if let Some(fetching) = self.end(ticket)
            && fetching.builder.is_some()
        {
            self.statistics.not_stored += 1;
        }
    }

    /// Ends a fetch without response. Returns the stale response to serve instead (RFC 5861 §4, RFC
    /// 9111 §4.2.4).
    pub(crate) fn fail(
        &mut self,
        ticket: Ticket,
        is_origin_failure: bool,
        now: u64,
    ) -> Option<Hit> {
        let fetching = self.end(ticket)?;
        let (hash, key) = fetching.key.as_ref()?;
        self.statistics.failures += 1;
        // A POST without an answer says nothing about GET: its client may be the cause.
        if is_origin_failure && (fetching.may_store || fetching.candidate.is_some()) {
            self.history.record_failure(*hash, now, self.config.back_off_max_s);
        }
        let mut status = self.status(Some(fetching.forward), key);
        status.collapsed = fetching.has_waited.then_some(false);
        if fetching.is_refresh {
            // Its client was served earlier.
            return None;
        }
        let object = fetching.substitute(now)?.clone();
        self.statistics.stale_if_error += 1;
        Some(self.hit_instead_of_error(object, &status, now))
    }

    /// Serves a stale response because the origin fails.
    fn hit_instead_of_error(&self, object: Object, status: &CacheStatus, now: u64) -> Hit {
        let mut hit = self.hit(object, status.clone(), now);
        hit.cache_status.detail = Some("stale-if-error");
        hit
    }
}

/// Whether RFC 5861 §4 counts the status as an error.
fn is_failure(status: u16) -> bool {
    matches!(status, 500 | 502 | 503 | 504)
}

/// Appends the fields to store: without those that no cache stores and those that the response
/// withholds from caches. A response without `Date` receives that of its arrival (RFC 9110 §6.6.1).
fn put_stored_fields(
    reply: &ReplyHead<'_>,
    metadata: &ResponseMetadata<'_>,
    now: u64,
    lines: &mut Vec<u8>,
) {
    let is_replaced = |field: &Field<'_>| metadata.part.is_some() && field.is(b"content-range");
    for field in reply.forwarded().filter(|field| !is_dropped(field) && !is_replaced(field)) {
        if !is_withheld(field.name, &metadata.directives.withheld) {
            put_field(field.name, field.value, lines);
        }
    }
    if metadata.date.is_none() {
        let all = std::mem::take(lines);
        *lines = without(&all, &[b"date".to_vec()]);
        put_field(b"Date", &date::format(now), lines);
    }
    if let Some(part) = metadata.part {
        part.put(lines);
    }
}

/// The content length, if the head states it.
fn content_length(metadata: &ResponseMetadata<'_>) -> Option<u64> {
    metadata.part.map(|part| part.range.len()).or(metadata.content_length)
}

/// Whether the client, whose conditions were not forwarded, already has this representation.
fn is_not_modified(request: &Request<'_>, metadata: &ResponseMetadata<'_>, now: u64) -> bool {
    let etag: Option<ETag<'_>> = metadata.etag;
    let current = Validators { etag, last_modified: metadata.last_modified, now };
    metadata.status == 200
        && conditional::evaluate(request, Some(&current)) == conditional::Precondition::NotModified
}
