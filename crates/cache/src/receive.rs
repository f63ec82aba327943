//! The origin answers: store it, freshen what is stored, or stand in for it (RFC 9111 §3, §4.3, §4.4).

use crate::{
    cache_status::{CacheStatus, Forward},
    config::FIELDS_MAX,
    engine::Engine,
    facts::{Facts, is_dropped},
    flights::Ticket,
    gather::Gather,
    hit::{Hit, put_field, put_not_modified_fields},
    lookup::{Conditions, Fetch},
    part::{self, PARTIAL},
    record::{Object, Texts, Times},
    rules::{self, Refusal},
    vary,
};
use pollux_http::{
    conditional::{self, Validators},
    date,
    etag::ETag,
    fields::{Field, Fields},
    output::Output,
    reply::ReplyHead,
    request::{Known, Method, Request},
};

/// What becomes of a response.
#[derive(Debug)]
pub struct Verdict {
    /// What the client is sent.
    pub answer: Answer,
    /// The content is wanted: append it, then finish or abort. Otherwise the fetch is over.
    pub keep: bool,
    /// For the client's response, unless it is a stored one, which has its own.
    pub cache_status: CacheStatus,
}

/// What the client is sent.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "one a response; a box would be an allocation")]
pub enum Answer {
    /// The response.
    Reply,
    /// 304: the client has what came. Its fields are those of [`put_304_fields`].
    NotModified,
    /// A stored response; that of the origin is not needed.
    Stored(Hit),
    /// A stored response, whose content that of the origin follows: it is the rest, and no more.
    Continue(Hit),
    /// Nothing yet: the origin spoke of something that is not stored. Ask again, as told.
    AskAgain(Fetch),
}

/// Appends the fields of `reply` that a 304 has (RFC 9110 §15.4.5).
pub fn put_304_fields(reply: &ReplyHead<'_>, out: &mut impl Output) {
    let mut lines = Vec::new();
    for field in reply.forwarded() {
        put_field(field.name, field.value, &mut lines);
    }
    put_not_modified_fields(&lines, out);
}

/// When a request was sent on, and when its response came; Unix seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) asked_at: u64,
    pub(crate) now: u64,
}

impl Engine {
    /// The head of the final response is there.
    pub(crate) fn head(
        &mut self,
        ticket: Ticket,
        request: &Request<'_>,
        reply: &ReplyHead<'_>,
        sent: Sent,
    ) -> Verdict {
        let Some(fetching) = self.flights.get(ticket) else {
            return self.passed_on(self.status(Some(Forward::Bypass), b""));
        };
        let (forward, has_waited) = (fetching.forward, fetching.has_waited);
        let (may_keep, candidate) = (fetching.may_keep, fetching.candidate.clone());
        let (wants_confirmed, is_refresh) = (fetching.wants_confirmed, fetching.is_refresh);
        let (key, beginning) = (fetching.key.clone(), fetching.beginning.clone());
        let mut status =
            self.status(Some(forward), key.as_ref().map_or(&[][..], |(_, key)| &key[..]));
        status.forward_status = Some(reply.status);
        status.collapsed = has_waited.then_some(false);
        let Some((hash, key)) = key else {
            self.end(ticket);
            return self.passed_on(status);
        };

        if reply.status == 304
            && let Some(candidate) = &candidate
        {
            return self.validated(ticket, request, reply, candidate, status, sent);
        }
        if let Some(beginning) = beginning
            && matches!(reply.status, PARTIAL | 304 | 416)
        {
            self.notes.succeeded(hash);
            return self.go_on(ticket, request, reply, &beginning, status, sent);
        }
        if is_failure(reply.status) {
            if may_keep || candidate.is_some() {
                self.statistics.failures += 1;
                self.notes.failed(hash, sent.now, self.config.back_off_max);
            }
            let other = candidate.as_ref().filter(|_| !wants_confirmed);
            if let Some(hit) = self.stand_in(other, forward, &status, sent.now) {
                // The client of a refresh has been answered.
                self.statistics.stale_if_error += u64::from(!is_refresh);
                self.end(ticket);
                return Verdict { answer: Answer::Stored(hit), keep: false, cache_status: status };
            }
        } else {
            self.notes.succeeded(hash);
        }
        if request.method == Method::Head && forward != Forward::Bypass {
            self.freshen_by_head(hash, &key, request, reply, sent);
        }
        if !may_keep {
            self.end(ticket);
            return self.passed_on(status);
        }
        self.keep(ticket, request, reply, candidate.as_ref(), status, sent)
    }

    /// A response to the question for the rest of `beginning` (§3.4), other than the whole.
    fn go_on(
        &mut self,
        ticket: Ticket,
        request: &Request<'_>,
        reply: &ReplyHead<'_>,
        beginning: &Object,
        status: CacheStatus,
        sent: Sent,
    ) -> Verdict {
        let facts = Facts::read(reply.status, reply.fields(), &self.config);
        let times = Times::of(&facts, sent.asked_at, sent.now, &self.config);
        let mut fields = Vec::new();
        put_stored_fields(reply, &facts, sent.now, &mut fields);
        let begun = part::begun(beginning, &facts, &fields, times, &self.config);
        let Some((object, size)) = begun else {
            // There is no such rest: the beginning is of nothing that there is now.
            let Some(fetching) = self.flights.get(ticket) else { return self.passed_on(status) };
            if let Some((hash, _)) = fetching.key {
                self.remove_one(hash, beginning);
            }
            return self.ask_again(ticket, status);
        };
        let verdict = self.keep(ticket, request, reply, None, status, sent);
        let mut hit = self.hit(object, verdict.cache_status.clone(), sent.now);
        hit.announced = Some(size);
        Verdict { answer: Answer::Continue(hit), ..verdict }
    }

    /// The same question once more, with no condition.
    fn ask_again(&mut self, ticket: Ticket, status: CacheStatus) -> Verdict {
        let Some(fetching) = self.flights.get(ticket) else { return self.passed_on(status) };
        (fetching.candidate, fetching.beginning) = (None, None);
        fetching.is_stripped = true;
        let fetch = Fetch {
            ticket,
            conditions: Conditions::Replaced(Vec::new()),
            is_refresh: fetching.is_refresh,
            forward: fetching.forward,
        };
        Verdict { answer: Answer::AskAgain(fetch), keep: false, cache_status: status }
    }

    fn passed_on(&self, cache_status: CacheStatus) -> Verdict {
        Verdict { answer: Answer::Reply, keep: false, cache_status }
    }

    /// Begins to store the response to a GET, if that may be.
    fn keep(
        &mut self,
        ticket: Ticket,
        request: &Request<'_>,
        reply: &ReplyHead<'_>,
        candidate: Option<&Object>,
        mut status: CacheStatus,
        sent: Sent,
    ) -> Verdict {
        let Some(fetching) = self.flights.get(ticket) else { return self.passed_on(status) };
        let (is_doomed, is_stripped) = (fetching.is_doomed, fetching.is_stripped);
        let is_rest = fetching.beginning.is_some();
        let hash = fetching.key.as_ref().map_or(0, |(hash, _)| *hash);
        let seen = self.see(request);
        let facts = Facts::read(reply.status, reply.fields(), &self.config);
        let answer = if is_stripped && is_not_modified(request, &facts, sent.now) {
            Answer::NotModified
        } else {
            Answer::Reply
        };
        let judged =
            rules::judge(&facts, seen.is_authorized, seen.wants.no_store, sent.now, &self.config);
        // A part that was not asked for may be one of anything.
        let is_asked = is_rest || !is_stripped && request.has(Known::Range);
        let is_unasked = facts.part.is_some() && !is_asked;
        let judged = judged.and(if is_unasked { Err(Refusal::Status) } else { Ok(()) });
        let room = self.max_object().min(self.gathering_max.saturating_sub(self.gathering));
        let is_too_large = content_length(&facts).is_some_and(|length| length > room);
        let judged = judged.and(if is_too_large { Err(Refusal::TooLarge) } else { Ok(()) });
        let gather = judged.and_then(|()| self.gather(request, reply, &facts, sent));
        let refusal = match gather {
            Ok(gather) if !is_doomed => {
                status.is_stored = true;
                status.ttl =
                    Some(i64::from(gather.times.lifetime) - i64::from(gather.times.initial_age));
                // What may not be reused at once would only make others wait in vain.
                let is_shareable = status.ttl > Some(0) && !facts.directives.no_cache;
                if !is_shareable {
                    self.notes.keep_apart(hash, sent.now);
                    self.flights.release(ticket);
                }
                if let Some(fetching) = self.flights.get(ticket) {
                    fetching.kept = Some(gather);
                }
                return Verdict { answer, keep: true, cache_status: status };
            }
            Ok(_) => None,
            Err(refusal) => Some(refusal),
        };
        self.statistics.not_stored += 1;
        status.detail = refusal.map(Refusal::detail);
        if refusal.is_some_and(Refusal::is_lasting) {
            self.notes.keep_apart(hash, sent.now);
        }
        // What is there now must not be stored, and what is stored is not there now.
        if let Some(candidate) = candidate
            && matches!(reply.status, 200..=299 | 404 | 410)
            && refusal.is_none_or(Refusal::is_of_what_is_stored)
        {
            self.remove_one(hash, candidate);
        }
        self.end(ticket);
        Verdict { answer, keep: false, cache_status: status }
    }

    fn gather(
        &self,
        request: &Request<'_>,
        reply: &ReplyHead<'_>,
        facts: &Facts<'_>,
        sent: Sent,
    ) -> Result<Gather, Refusal> {
        let times = Times::of(facts, sent.asked_at, sent.now, &self.config);
        let mut gather = Gather::new(reply.status, times);
        gather.expected = content_length(facts);
        let names = facts.varies.names.iter().map(Vec::as_slice);
        vary::put_lines(names, request, &mut gather.vary);
        put_stored_fields(reply, facts, sent.now, &mut gather.fields);
        if gather.fields.len() > FIELDS_MAX || gather.vary.len() > usize::from(u16::MAX) {
            return Err(Refusal::TooLarge);
        }
        Ok(gather)
    }

    /// More content. False when it is no longer wanted; the fetch is over then.
    pub(crate) fn append(&mut self, ticket: Ticket, octets: &[u8]) -> bool {
        let max = self.max_object();
        let is_full = self.gathering + octets.len() as u64 > self.gathering_max;
        let Some(fetching) = self.flights.get(ticket) else { return false };
        let hash = fetching.key.as_ref().map_or(0, |(hash, _)| *hash);
        let Some(gather) = &mut fetching.kept else { return false };
        let now = fetching.began;
        if !is_full && !fetching.is_doomed && gather.append(octets, max) {
            self.gathering += octets.len() as u64;
            return true;
        }
        self.notes.keep_apart(hash, now);
        self.statistics.not_stored += 1;
        self.end(ticket);
        false
    }

    /// The content is whole.
    pub(crate) fn finish(&mut self, ticket: Ticket) {
        let Some(fetching) = self.flights.get(ticket) else { return };
        let is_doomed = fetching.is_doomed;
        let gather = fetching.kept.take();
        let key = fetching.key.clone();
        self.gathering -= gather.as_ref().map_or(0, Gather::len);
        let stored = gather.filter(|_| !is_doomed).zip(key).and_then(|(gather, (hash, key))| {
            let object = gather.finish(&key, &self.config)?;
            match object.numbers().status {
                PARTIAL => self.put_part(hash, object),
                _ => self.put(hash, object),
            }
            Some(())
        });
        match stored {
            Some(()) => self.statistics.stored += 1,
            None => self.statistics.not_stored += 1,
        }
        // Only now, so that those who wait find it.
        self.end(ticket);
    }

    /// The content broke off, or nobody wants it any more.
    pub(crate) fn abort(&mut self, ticket: Ticket) {
        if let Some(fetching) = self.end(ticket)
            && fetching.kept.is_some()
        {
            self.statistics.not_stored += 1;
        }
    }

    /// No response came. What may be sent instead (RFC 5861 §4, RFC 9111 §4.2.4).
    pub(crate) fn fail(&mut self, ticket: Ticket, is_the_origins: bool, now: u64) -> Option<Hit> {
        let fetching = self.end(ticket)?;
        let (hash, key) = fetching.key.as_ref()?;
        self.statistics.failures += 1;
        if is_the_origins {
            self.notes.failed(*hash, now, self.config.back_off_max);
        }
        let mut status = self.status(Some(fetching.forward), key);
        status.collapsed = fetching.has_waited.then_some(false);
        if fetching.is_refresh {
            // Its client has been answered.
            return None;
        }
        let candidate = fetching.candidate.as_ref().filter(|_| !fetching.wants_confirmed);
        let hit = self.stand_in(candidate, fetching.forward, &status, now)?;
        self.statistics.stale_if_error += 1;
        Some(hit)
    }

    /// A stale response for an origin that fails, "regardless of other freshness information" (RFC 5861
    /// §4): also for a client that wanted a younger one (`max-age`, `min-fresh`), as a browser's reload
    /// does. Not for one that said `no-cache`, which is about confirmation and not about freshness.
    fn stand_in(
        &self,
        candidate: Option<&Object>,
        forward: Forward,
        status: &CacheStatus,
        now: u64,
    ) -> Option<Hit> {
        let object = candidate.filter(|_| matches!(forward, Forward::Stale | Forward::Request))?;
        let numbers = object.numbers();
        let lateness = -numbers.time_left(now);
        if numbers.stale_if_error == 0 || lateness > i64::from(numbers.stale_if_error) {
            return None;
        }
        let mut hit = self.hit(object.clone(), status.clone(), now);
        hit.cache_status.detail = Some("stale-if-error");
        Some(hit)
    }

    /// A 304 to a question of ours (§4.3.3, §4.3.4).
    fn validated(
        &mut self,
        ticket: Ticket,
        request: &Request<'_>,
        reply: &ReplyHead<'_>,
        candidate: &Object,
        status: CacheStatus,
        sent: Sent,
    ) -> Verdict {
        let facts = Facts::read(candidate.numbers().status, reply.fields(), &self.config);
        let speaks_of = |object: &Object| match (&facts.etag, object.etag()) {
            (Some(new), Some(old)) if new.weak || old.weak => new.weakly_equals(&old),
            (Some(new), Some(old)) => new.strongly_equals(&old),
            // A tag that nothing here has: it speaks of something else.
            (Some(_), None) => false,
            (None, _) => {
                let changed = object.numbers().last_modified();
                facts.last_modified.is_none() || facts.last_modified == changed
            }
        };
        if !speaks_of(candidate) {
            return self.ask_again(ticket, status);
        }
        self.statistics.revalidated += 1;
        let fetching = self.flights.get(ticket);
        let is_doomed = fetching.as_ref().is_some_and(|fetching| fetching.is_doomed);
        let hash = fetching.and_then(|f| f.key.as_ref().map(|(hash, _)| *hash)).unwrap_or(0);
        self.notes.succeeded(hash);
        let object = self.freshen(hash, candidate, request, reply, is_doomed, sent);
        if object.numbers().time_left(sent.now) <= 0 || object.numbers().is_no_cache() {
            self.notes.keep_apart(hash, sent.now);
        }
        self.end(ticket);
        let hit = self.hit(object, status.clone(), sent.now);
        Verdict { answer: Answer::Stored(hit), keep: false, cache_status: status }
    }

    /// `old` with the fields of `reply` (§3.2), in the store too unless it must not be.
    fn freshen(
        &mut self,
        hash: u64,
        old: &Object,
        request: &Request<'_>,
        reply: &ReplyHead<'_>,
        is_doomed: bool,
        sent: Sent,
    ) -> Object {
        let status = old.numbers().status;
        let of_reply = Facts::read(status, reply.fields(), &self.config);
        let mut fields = Vec::new();
        for field in Fields::new(old.fields()) {
            let is_replaced = reply.forwarded().any(|new| updates(&new) && new.is(field.name));
            // A response without a date is as old as its arrival, not as what it confirms.
            let is_old_date = field.is(b"date") && of_reply.date.is_none();
            if !is_replaced && !is_old_date {
                put_field(field.name, field.value, &mut fields);
            }
        }
        for field in reply.forwarded().filter(updates) {
            put_field(field.name, field.value, &mut fields);
        }
        if of_reply.date.is_none() {
            put_field(b"Date", &date::format(sent.now), &mut fields);
        }
        let merged = Facts::read(status, Fields::new(&fields), &self.config);
        let fields = without(&fields, &merged.directives.withheld);
        let facts = Facts::read(status, Fields::new(&fields), &self.config);
        let times = Times {
            initial_age: of_reply.initial_age(sent.asked_at, sent.now),
            ..Times::of(&merged, sent.asked_at, sent.now, &self.config)
        };
        // What else it varies by now, the request at hand tells (§4.1).
        let names = || merged.varies.names.iter().map(Vec::as_slice);
        let mut vary = old.vary().to_vec();
        let varies_anew = !names().eq(vary::names(old.vary()));
        if varies_anew {
            vary.clear();
            vary::put_lines(names(), request, &mut vary);
        }
        let is_too_long = fields.len() > FIELDS_MAX || vary.len() > usize::from(u16::MAX);
        if is_too_long {
            // This client alone gets it, and a record has no room for more.
            vary.clear();
        }
        let texts = Texts { key: old.key(), vary: &vary, fields: &fields };
        let pieces = old.pieces().cloned();
        let facts = Facts { directives: merged.directives.clone(), ..facts };
        let new = Object::new(&facts, times, texts, old.inline_content(), pieces);
        let seen = self.see(request);
        let judged =
            rules::judge(&facts, seen.is_authorized, seen.wants.no_store, sent.now, &self.config);
        match judged {
            Ok(()) if varies_anew && !is_doomed && !is_too_long => {
                self.remove_one(hash, old);
                self.put(hash, new.clone());
            }
            Ok(()) if !is_doomed && !is_too_long => self.replace(hash, old, &new),
            Err(refusal) if !is_doomed && !refusal.is_of_what_is_stored() => {}
            _ => self.remove_one(hash, old),
        }
        new
    }

    /// What a response to HEAD says of what is stored (§4.3.5): the same, then its fields are the
    /// stored ones'; another, then what is stored is of no more use.
    fn freshen_by_head(
        &mut self,
        hash: u64,
        key: &[u8],
        request: &Request<'_>,
        reply: &ReplyHead<'_>,
        sent: Sent,
    ) {
        if reply.status != 200 {
            return;
        }
        let facts = Facts::read(200, reply.fields(), &self.config);
        let mut scratch = Vec::new();
        let objects = self.shelf.objects(hash, key);
        let Some(old) = objects
            .iter()
            .find(|object| vary::matches(object.vary(), request, &mut scratch))
            .filter(|object| matches!(object.numbers().status, 200 | PARTIAL))
            .cloned()
        else {
            return;
        };
        let (numbers, part) = (old.numbers(), old.part());
        let size = part.map_or(numbers.content_len, |part| part.size);
        let differs = facts.etag.is_some_and(|new| Some(new) != old.etag())
            || facts.last_modified.is_some_and(|new| Some(new) != numbers.last_modified())
            || facts.content_length.is_some_and(|new| new != size);
        if differs {
            self.remove_one(hash, &old);
            self.statistics.invalidated += 1;
        } else if part.is_none() {
            self.freshen(hash, &old, request, reply, false, sent);
        }
    }
}

/// What RFC 5861 §4 calls an error.
fn is_failure(status: u16) -> bool {
    matches!(status, 500 | 502 | 503 | 504)
}

/// Whether the field of a 304 replaces the stored one (§3.2). How the stored content is coded, and how
/// long it is, the origin of a 304 need not know.
fn updates(field: &Field<'_>) -> bool {
    !is_dropped(field) && !field.is(b"content-encoding") && !field.is(b"content-range")
}

/// The fields that are kept: without those that no cache keeps, and those withheld from it. A response
/// without a date gets that of its arrival (RFC 9110 §6.6.1).
fn put_stored_fields(reply: &ReplyHead<'_>, facts: &Facts<'_>, now: u64, lines: &mut Vec<u8>) {
    let is_said_anew = |field: &Field<'_>| facts.part.is_some() && field.is(b"content-range");
    for field in reply.forwarded().filter(|field| !is_dropped(field) && !is_said_anew(field)) {
        if !is_withheld(field.name, &facts.directives.withheld) {
            put_field(field.name, field.value, lines);
        }
    }
    if facts.date.is_none() {
        let all = std::mem::take(lines);
        *lines = without(&all, &[b"date".to_vec()]);
        put_field(b"Date", &date::format(now), lines);
    }
    if let Some(part) = facts.part {
        part.put(lines);
    }
}

/// The length of the content, as far as the head tells.
fn content_length(facts: &Facts<'_>) -> Option<u64> {
    facts.part.map(|part| part.range.len()).or(facts.content_length)
}

fn is_withheld(name: &[u8], withheld: &[Vec<u8>]) -> bool {
    withheld.iter().any(|other| name.eq_ignore_ascii_case(other))
}

/// The lines of `fields` without those of these names, in lower case.
pub(crate) fn without(fields: &[u8], withheld: &[Vec<u8>]) -> Vec<u8> {
    let mut lines = Vec::with_capacity(fields.len());
    for field in Fields::new(fields).filter(|field| !is_withheld(field.name, withheld)) {
        put_field(field.name, field.value, &mut lines);
    }
    lines
}

/// Whether the client, whose conditions were left out, has what came.
fn is_not_modified(request: &Request<'_>, facts: &Facts<'_>, now: u64) -> bool {
    let etag: Option<ETag<'_>> = facts.etag;
    let current = Validators { etag, last_modified: facts.last_modified, now };
    facts.status == 200
        && conditional::evaluate(request, Some(&current)) == conditional::Verdict::NotModified
}
