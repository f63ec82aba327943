//! Updates stored responses with the fields of a 304 or of a response to HEAD (RFC 9111 §3.2, §4.3.3 to §4.3.5).

use crate::{
    cache_status::CacheStatus,
    config::FIELDS_MAX,
    content_range::PARTIAL,
    field_lines::{is_content_digest, put_field, without},
    pending_fetches::Ticket,
    receive::{ExchangeTimes, ResponseDecision, ResponseSource},
    record::{FreshnessTimes, Object, RecordTexts},
    response_metadata::{ResponseMetadata, is_dropped},
    rules::{self, Refusal},
    shard::Shard,
    vary,
};
use pollux_http::{
    date,
    fields::{Field, Fields},
    reply::ReplyHead,
    request::Request,
};

impl Shard {
    /// Handles a 304 to a validation request of this cache (§4.3.3, §4.3.4).
    pub(crate) fn handle_not_modified(
        &mut self,
        ticket: Ticket,
        request: &Request<'_>,
        reply: &ReplyHead<'_>,
        candidate: &Object,
        status: CacheStatus,
        exchange: ExchangeTimes,
    ) -> ResponseDecision {
        let metadata =
            ResponseMetadata::read(candidate.header().status, reply.fields(), &self.config);
        let matches_response = |object: &Object| match (&metadata.etag, object.etag()) {
            // A server that weakens a tag because it compresses the content (nginx) sends the strong form in its 304.
            (Some(new), Some(old)) if new.weak || old.weak => new.weakly_equals(&old),
            (Some(new), Some(old)) => new.strongly_equals(&old),
            // The stored response has no entity tag, so the 304 refers to another representation.
            (Some(_), None) => false,
            (None, _) => {
                let changed = object.header().last_modified();
                metadata.last_modified.is_none() || metadata.last_modified == changed
            }
        };
        if !matches_response(candidate) {
            return self.refetch_unconditionally(ticket, status);
        }
        self.statistics.revalidated += 1;
        let fetching = self.pending_fetches.get(ticket);
        let is_invalidated = fetching.as_ref().is_some_and(|fetching| fetching.is_invalidated);
        let hash = fetching.and_then(|f| f.key.as_ref().map(|(hash, _)| *hash)).unwrap_or(0);
        self.history.record_success(hash);
        let object = self.freshen(hash, candidate, request, reply, is_invalidated, exchange);
        if object.header().time_left(exchange.now) <= 0 || object.header().is_no_cache() {
            self.history.disable_coalescing(hash, exchange.now);
        }
        self.end(ticket);
        let hit = self.hit(object, status.clone(), exchange.now);
        ResponseDecision {
            source: ResponseSource::Stored(hit),
            should_store: false,
            cache_status: status,
        }
    }

    /// Returns `old` updated with the fields of `reply` (§3.2), for the client whose request was answered, and
    /// stores it, without the fields that must not be stored, unless that is forbidden.
    fn freshen(
        &mut self,
        hash: u64,
        old: &Object,
        request: &Request<'_>,
        reply: &ReplyHead<'_>,
        is_invalidated: bool,
        exchange: ExchangeTimes,
    ) -> Object {
        let status = old.header().status;
        let of_reply = ResponseMetadata::read(status, reply.fields(), &self.config);
        // A strong tag does not identify the bytes that are stored under a weak one (§4.3.4).
        let is_weak = old.etag().is_some_and(|etag| etag.weak);
        let updates_old = |field: &Field<'_>| updates(field) && !(is_weak && field.is(b"etag"));
        // Collected, because each stored field is compared with all of them. They are as many as a
        // head may have.
        let new_fields: Vec<_> = reply.forwarded().filter(updates_old).collect();
        let mut fields = Vec::new();
        for field in Fields::new(old.fields()) {
            let is_replaced = new_fields.iter().any(|new| new.is(field.name));
            // A 304 without `Date` is as old as its arrival, not as old as the response that it
            // validates.
            let is_old_date = field.is(b"date") && of_reply.date.is_none();
            if !is_replaced && !is_old_date {
                put_field(field.name, field.value, &mut fields);
            }
        }
        for field in &new_fields {
            put_field(field.name, field.value, &mut fields);
        }
        if of_reply.date.is_none() {
            put_field(b"Date", &date::format(exchange.now), &mut fields);
        }
        let request_metadata = self.request_metadata(request);
        let mut merged = ResponseMetadata::read(status, Fields::new(&fields), &self.config);
        // A response that was stored for all users stays so, even if the request that confirms it has a cookie.
        let is_for_all = !old.header().is_unstated() || old.header().stale_if_error > 0;
        merged.is_for_cookie = request_metadata.has_cookie && !is_for_all;
        let storable_fields = without(&fields, &merged.directives.withheld);
        let metadata = ResponseMetadata::read(status, Fields::new(&storable_fields), &self.config);
        let times = FreshnessTimes {
            initial_age: of_reply.initial_age(exchange.requested_at, exchange.now),
            ..FreshnessTimes::of(&merged, exchange.requested_at, exchange.now, &self.config)
        };
        // If the fields of `Vary` have changed, the values come from the current request (§4.1).
        let names = || merged.varies.names.iter().map(Vec::as_slice);
        let mut vary = old.vary().to_vec();
        let vary_changed = !names().eq(vary::names(old.vary()));
        if vary_changed {
            vary.clear();
            vary::put_lines(names(), request, &mut vary);
        }
        let is_too_long = storable_fields.len() > FIELDS_MAX || vary.len() > usize::from(u16::MAX);
        if is_too_long {
            // Too long for a record: only this client receives it.
            vary.clear();
        }
        let texts = RecordTexts { key: old.key(), vary: &vary, fields: &storable_fields };
        let pieces = old.pieces().cloned();
        let metadata = ResponseMetadata { directives: merged.directives.clone(), ..metadata };
        let new = Object::new(&metadata, times, texts, old.inline_content(), pieces.clone());
        let storable = rules::check_storable(
            &metadata,
            request_metadata.is_authorized,
            request_metadata.directives.no_store,
            exchange.now,
            &self.config,
        );
        // The 304 is not about a response that has replaced the validated one meanwhile (§4.3.4).
        let mut stored = self.memory.objects(hash, old.key()).iter();
        let is_replaced = stored.any(|stored| stored.vary() == old.vary() && !stored.is_same(old));
        match storable {
            Ok(()) if is_replaced => {}
            Ok(()) if vary_changed && !is_invalidated && !is_too_long => {
                self.remove_one(hash, old);
                self.put(hash, new.clone());
            }
            Ok(()) if !is_invalidated && !is_too_long => self.replace(hash, old, &new),
            // The 304 confirms the stored response; only its cookie must not be stored.
            Err(Refusal::SetCookie) if !is_invalidated => {}
            Err(refusal) if !is_invalidated && !refusal.evicts_stored() => {}
            _ => self.remove_one(hash, old),
        }
        if storable_fields.len() == fields.len() {
            return new;
        }
        // The origin sent this client fields that must not be stored, such as a cookie (RFC 9111 §5.2.2.7).
        let texts = RecordTexts { key: old.key(), vary: &vary, fields: &fields };
        Object::new(&metadata, times, texts, old.inline_content(), pieces)
    }

    /// Compares a response to HEAD with the stored response (§4.3.5): updates its fields if both
    /// have the same validators and length, and removes it otherwise.
    pub(crate) fn freshen_by_head(
        &mut self,
        hash: u64,
        key: &[u8],
        request: &Request<'_>,
        reply: &ReplyHead<'_>,
        exchange: ExchangeTimes,
    ) {
        if reply.status != 200 {
            return;
        }
        let metadata = ResponseMetadata::read(200, reply.fields(), &self.config);
        let mut scratch = Vec::new();
        let objects = self.memory.objects(hash, key);
        let Some(old) = objects
            .iter()
            .find(|object| vary::matches(object.vary(), request, &mut scratch))
            .filter(|object| matches!(object.header().status, 200 | PARTIAL))
            .cloned()
        else {
            return;
        };
        let (header, part) = (old.header(), old.part());
        let size = part.map_or(header.content_len, |part| part.size);
        let differs = metadata.etag.is_some_and(|new| Some(new) != old.etag())
            || metadata.last_modified.is_some_and(|new| Some(new) != header.last_modified())
            || metadata.content_length.is_some_and(|new| new != size);
        if differs {
            self.remove_one(hash, &old);
            self.statistics.invalidated += 1;
        } else if part.is_none() {
            self.freshen(hash, &old, request, reply, false, exchange);
        }
    }
}

/// Whether the field of a 304 replaces the stored field (§3.2). The coding, the range and the digest of
/// the stored content stay as they are.
fn updates(field: &Field<'_>) -> bool {
    !is_dropped(field)
        && !field.is(b"content-encoding")
        && !field.is(b"content-range")
        && !is_content_digest(field)
}
