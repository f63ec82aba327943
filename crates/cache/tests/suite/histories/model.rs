//! A model of RFC 9111: a list of records that is searched from end to end.

use crate::{
    harness::{ClientResult, Harness, reply, request},
    histories::traffic::{
        ClientRequest, OriginPolicy, SIZE, Span, WHOLE, body, client_request, policy,
    },
};
use pollux_cache::Config;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Action {
    Get(ClientRequest, OriginPolicy),
    /// A request while the origin cannot be reached.
    GetWithOriginDown(ClientRequest),
    Post(usize),
    /// The resource changes.
    Change(usize),
    AdvanceClock(u64),
}

/// A stored response.
#[derive(Clone, Debug)]
struct StoredRecord {
    path: usize,
    x: Option<u8>,
    policy: OriginPolicy,
    version: u32,
    received_at: u64,
    /// The complete representation, or a part.
    span: Span,
}

impl StoredRecord {
    /// §3.3.
    fn has(&self, client_request: &ClientRequest) -> bool {
        let (first, last) = client_request.range.unwrap_or(WHOLE);
        self.span == WHOLE || self.span.0 <= first && last <= self.span.1
    }

    /// Whether it must be validated before its first use.
    fn needs_validation_at_once(&self) -> bool {
        self.staleness(self.received_at) >= 0 || self.policy.is("no-cache")
    }

    fn is_same_variant(&self, other: &Self) -> bool {
        self.path == other.path
            && self.policy.varies == other.policy.varies
            && (!self.policy.varies || self.x == other.x)
    }

    fn lifetime(&self) -> i64 {
        self.policy.s_maxage.or(self.policy.max_age).unwrap_or(0).into()
    }

    fn age(&self, now: u64) -> i64 {
        (now - self.received_at) as i64 + i64::from(self.policy.age.unwrap_or(0))
    }

    fn staleness(&self, now: u64) -> i64 {
        self.age(now) - self.lifetime()
    }

    fn is_strict(&self) -> bool {
        self.policy.is("must-revalidate")
            || self.policy.is("proxy-revalidate")
            || self.policy.is("no-cache")
    }
}

#[derive(Default)]
struct Model {
    stored: Vec<StoredRecord>,
    versions: [u32; 2],
    /// For each path: the number of consecutive failures, and the end of the back-off.
    backoff: [(u32, u64); 2],
    /// Before this time a client's conditions are forwarded, because the last response could not be
    /// shared.
    no_coalescing_until: [u64; 2],
}

/// The expected status, body, and whether the origin receives a request.
#[derive(Debug, PartialEq, Eq)]
struct ExpectedResponse {
    status: u16,
    body: Option<String>,
    is_origin_request: bool,
}

impl ExpectedResponse {
    fn page(status: u16, is_origin_request: bool) -> Self {
        Self { status, body: None, is_origin_request }
    }
}

impl Model {
    fn find(&self, client_request: &ClientRequest) -> Option<StoredRecord> {
        let is_match = |stored: &&StoredRecord| {
            stored.path == client_request.path
                && (!stored.policy.varies || stored.x == client_request.x)
        };
        self.stored.iter().rev().find(is_match).cloned()
    }

    /// §4: whether it may be used without validation; `Ok(true)` requires a refresh. `Err` tells
    /// whether the reason is staleness.
    fn usable(
        &self,
        stored: &StoredRecord,
        client_request: &ClientRequest,
        now: u64,
    ) -> Result<bool, bool> {
        let staleness = stored.staleness(now);
        if stored.policy.is("no-cache") {
            return Err(true);
        }
        if client_request.is("no-cache")
            || client_request.is("max-age=0")
            || client_request.is("max-age=5") && stored.age(now) > 5
            || client_request.is("min-fresh=5") && -staleness < 5
        {
            return Err(false);
        }
        let is_strict = stored.is_strict();
        let is_stated = stored.policy.max_age.is_some() || stored.policy.is("public");
        let may_be_stale = !is_strict && stored.policy.s_maxage.is_none() && is_stated;
        if staleness < 0
            || may_be_stale
                && (client_request.is("max-stale")
                    || client_request.is("max-stale=5") && staleness <= 5)
        {
            return Ok(false);
        }
        let within = |seconds: Option<u32>| {
            !is_strict && seconds.is_some_and(|seconds| seconds > 0 && staleness <= seconds.into())
        };
        if within(stored.policy.swr) {
            return Ok(true);
        }
        let is_backing_off = self.backoff[stored.path].1 > now;
        if is_backing_off && within(stored.policy.sie) { Ok(false) } else { Err(true) }
    }

    /// The response of the origin or the store with the complete representation; a part if
    /// `takes_ranges`.
    fn response(
        client_request: &ClientRequest,
        policy: &OriginPolicy,
        version: u32,
        takes_ranges: bool,
        is_origin_request: bool,
    ) -> ExpectedResponse {
        if policy.has_etag && client_request.has_version == Some(version) {
            return ExpectedResponse::page(304, is_origin_request);
        }
        let (status, span) = match client_request.range.filter(|_| takes_ranges) {
            Some(span) => (206, span),
            None => (200, WHOLE),
        };
        ExpectedResponse { status, body: Some(body(version, span)), is_origin_request }
    }

    fn get(
        &mut self,
        client_request: &ClientRequest,
        policy: Option<&OriginPolicy>,
        now: u64,
    ) -> ExpectedResponse {
        if client_request.is("no-store") {
            return self.bypass(client_request, policy);
        }
        let stored = self.find(client_request);
        let usable = stored.as_ref().map(|stored| match self.usable(stored, client_request, now) {
            // A part is not refreshed in the background.
            Ok(true) if stored.span != WHOLE => Err(true),
            _ if !stored.has(client_request) => Err(true),
            usable => usable,
        });
        if let (Some(stored), Some(Ok(refreshes))) = (&stored, &usable) {
            // The refresh is made at once, and the origin responds in the same way.
            let is_backing_off = self.backoff[client_request.path].1 > now;
            let response =
                Self::response(client_request, &stored.policy, stored.version, true, false);
            if *refreshes && !is_backing_off && !client_request.is("only-if-cached") {
                match policy {
                    Some(policy) => {
                        self.receive(client_request, policy, Some(stored), now);
                    }
                    None => self.fail(client_request.path, now),
                }
            }
            return response;
        }
        if client_request.is("only-if-cached") {
            return ExpectedResponse::page(504, false);
        }
        let prefix = stored.as_ref().map(|stored| {
            let is_fresh =
                stored.staleness(now) < 0 && self.usable(stored, client_request, now) == Ok(false);
            let wants_all = client_request.range.is_none() && client_request.has_version.is_none();
            let is_prefix = stored.span != WHOLE && stored.span.0 == 0 && stored.policy.has_etag;
            (stored.clone(), is_fresh && wants_all && is_prefix)
        });
        // A part is neither validated nor served instead of an error.
        let stored = stored.filter(|stored| stored.span == WHOLE);
        let Some(policy) = policy else {
            self.fail(client_request.path, now);
            // RFC 5861 §4: regardless of the freshness that the client requires.
            let may_stand_in = usable.is_some() && !client_request.is("no-cache");
            let stands_in = stored.filter(|stored| {
                let staleness = stored.staleness(now);
                let sie = stored.policy.sie.unwrap_or(0);
                may_stand_in && !stored.is_strict() && sie > 0 && staleness <= sie.into()
            });
            return match stands_in {
                Some(stored) => {
                    Self::response(client_request, &stored.policy, stored.version, true, true)
                }
                None => ExpectedResponse::page(502, true),
            };
        };
        let version = self.versions[client_request.path];
        // Of a stored prefix only the remainder is requested, if the representation is the same.
        if let Some((old, true)) = prefix
            && policy.has_etag
            && old.version == version
        {
            self.backoff[client_request.path] = (0, 0);
            self.receive_part(client_request, policy, (old.span.1 + 1, SIZE - 1), now);
            return Self::response(client_request, policy, version, false, true);
        }
        let is_coalescing_disabled = self.no_coalescing_until[client_request.path] > now;
        let is_conditional = client_request.has_version.is_some();
        let is_rarely_stored = is_coalescing_disabled || client_request.is_authorized;
        if stored.is_none()
            && (client_request.range.is_some() || is_conditional && is_rarely_stored)
        {
            // The request is forwarded as it is; the origin may respond with 304.
            let response = Self::response(client_request, policy, version, true, true);
            self.backoff[client_request.path] = (0, 0);
            match (response.status, client_request.range) {
                (304, _) if policy.is("no-store") => {
                    self.no_coalescing_until[client_request.path] = now + 10
                }
                (304, _) => {}
                (_, Some(span)) => self.receive_part(client_request, policy, span, now),
                (_, None) => {
                    self.receive(client_request, policy, None, now);
                }
            }
            return response;
        }
        // A response that the origin confirmed is served with its range; a new one is served whole.
        let is_304 = self.receive(client_request, policy, stored.as_ref(), now);
        Self::response(client_request, policy, version, is_304, true)
    }

    fn bypass(
        &mut self,
        client_request: &ClientRequest,
        policy: Option<&OriginPolicy>,
    ) -> ExpectedResponse {
        let Some(policy) = policy else { return ExpectedResponse::page(502, true) };
        self.backoff[client_request.path] = (0, 0);
        Self::response(client_request, policy, self.versions[client_request.path], true, true)
    }

    fn fail(&mut self, path: usize, now: u64) {
        let (failures, _) = self.backoff[path];
        let wait = (1u64 << failures.min(10)).min(30);
        self.backoff[path] = (failures + 1, now + wait);
    }

    /// §3, §3.5: the reason why it is not stored, if there is one; whether the reason concerns the URL
    /// and not one request.
    fn refusal(client_request: &ClientRequest, new: &StoredRecord) -> Option<bool> {
        let policy = &new.policy;
        let is_shared =
            policy.is("public") || policy.is("must-revalidate") || policy.s_maxage.is_some();
        let may_be_stale = policy.swr.is_some() || policy.sie.unwrap_or(0) > 0;
        let is_usable = new.lifetime() > 0 && !policy.is("no-cache")
            || policy.has_etag
            || may_be_stale && !policy.is("no-cache");
        if policy.is("no-store") || policy.is("private") {
            Some(true)
        } else if client_request.is_authorized && !is_shared {
            Some(false)
        } else {
            (!is_usable).then_some(true)
        }
    }

    /// §3: handles the origin's response to a request for the complete representation. Returns
    /// whether it is a 304. `old` is the stored response that was validated.
    fn receive(
        &mut self,
        client_request: &ClientRequest,
        policy: &OriginPolicy,
        old: Option<&StoredRecord>,
        now: u64,
    ) -> bool {
        self.backoff[client_request.path] = (0, 0);
        let version = self.versions[client_request.path];
        let is_304 =
            policy.has_etag && old.is_some_and(|o| o.policy.has_etag && o.version == version);
        let (path, x) = (client_request.path, client_request.x);
        let new = StoredRecord { path, x, policy: *policy, version, received_at: now, span: WHOLE };
        let is_old = |other: &StoredRecord| old.is_some_and(|old| old.is_same_variant(other));
        let refusal = Self::refusal(client_request, &new);
        let is_refused = refusal == Some(true) && !is_304;
        if is_refused || (refusal.is_none() || is_304) && new.needs_validation_at_once() {
            self.no_coalescing_until[path] = now + 10;
        }
        match refusal {
            Some(true) => self.stored.retain(|other| !is_old(other)),
            Some(false) => {}
            None if is_304 => {
                // §3.2: fields that the 304 lacks are unchanged. §4.1: values of new `Vary` fields
                // come from the current request.
                let old = old.expect("a 304 validates a stored response").clone();
                let vary_changed = policy.varies && !old.policy.varies;
                let x = if vary_changed { client_request.x } else { old.x };
                let policy = OriginPolicy { varies: policy.varies || old.policy.varies, ..*policy };
                for other in self.stored.iter_mut().filter(|other| is_old(other)) {
                    *other = StoredRecord { policy, x, received_at: now, ..old.clone() };
                }
            }
            None => self.put(new),
        }
        is_304
    }

    /// §3.3, §3.4: stores a part, joined with the stored one if possible.
    fn receive_part(
        &mut self,
        client_request: &ClientRequest,
        policy: &OriginPolicy,
        span: Span,
        now: u64,
    ) {
        let (path, x, version) =
            (client_request.path, client_request.x, self.versions[client_request.path]);
        let mut new = StoredRecord { path, x, policy: *policy, version, received_at: now, span };
        let refusal = Self::refusal(client_request, &new);
        if refusal == Some(true) || refusal.is_none() && new.needs_validation_at_once() {
            self.no_coalescing_until[path] = now + 10;
        }
        if refusal.is_some() {
            return;
        }
        if let Some(old) = self.stored.iter().find(|old| old.is_same_variant(&new)) {
            let has_same_tag = old.policy.has_etag && policy.has_etag && old.version == version;
            let touches = span.0 <= old.span.1 + 1 && old.span.0 <= span.1 + 1;
            if has_same_tag && touches {
                new.span = (span.0.min(old.span.0), span.1.max(old.span.1));
            }
        }
        self.put(new);
    }

    /// Replaces the same variant and removes variants by other fields.
    fn put(&mut self, new: StoredRecord) {
        self.stored.retain(|other| {
            other.path != new.path
                || other.policy.varies == new.policy.varies && !other.is_same_variant(&new)
        });
        self.stored.push(new);
    }
}

fn steps() -> impl Strategy<Value = Vec<Action>> {
    let step = prop_oneof![
        8 => (client_request(), policy()).prop_map(|(client_request, policy)| Action::Get(client_request, policy)),
        2 => client_request().prop_map(Action::GetWithOriginDown),
        1 => (0..2usize).prop_map(Action::Post),
        1 => (0..2usize).prop_map(Action::Change),
        4 => (0..12u64).prop_map(Action::AdvanceClock),
    ];
    prop::collection::vec(step, 1..60)
}

/// The response of an origin at `version`.
fn origin(conditions: Option<&str>, own: &str, policy: &OriginPolicy, version: u32) -> String {
    let conditions = conditions.unwrap_or(own);
    let fields = policy.fields(version);
    if policy.has_etag && conditions.contains(&format!("If-None-Match: \"{version}\"\r\n")) {
        return reply(304, &fields, "");
    }
    let field = |name: &str| conditions.lines().find_map(|line| line.strip_prefix(name));
    let is_same = |tag: &str| policy.has_etag && tag == format!("\"{version}\"");
    let range = field("Range: bytes=").filter(|_| field("If-Range: ").is_none_or(is_same));
    let Some((first, last)) = range.and_then(|range| range.split_once('-')) else {
        return reply(200, &fields, &body(version, WHOLE));
    };
    let span = (first.parse().unwrap(), last.parse().unwrap_or(SIZE - 1));
    let fields = format!("{fields}Content-Range: bytes {}-{}/{SIZE}\r\n", span.0, span.1);
    reply(206, &fields, &body(version, span))
}

/// Sends the request, and responds to forwarded requests and refreshes as the origin would.
fn send(
    harness: &mut Harness,
    client_request: &ClientRequest,
    policy: Option<&OriginPolicy>,
    version: u32,
) -> ClientResult {
    use pollux_cache::{Conditions, Decision, Fetch};
    let fields = client_request.fields();
    let head = request(&format!("GET /{}", client_request.path), &fields);
    let response = |fetch: &Fetch| {
        let conditions = match &fetch.conditions {
            Conditions::Own => None,
            Conditions::Replaced(lines) => Some(String::from_utf8_lossy(lines).into_owned()),
        };
        policy.map(|policy| origin(conditions.as_deref(), &fields, policy, version))
    };
    match harness.lookup(&head, None, false) {
        Decision::Fetch(fetch) => {
            let wire = response(&fetch);
            harness.complete_fetch(&head, fetch, wire.as_deref())
        }
        Decision::ServeAndRefresh(hit, fetch) => {
            let got = harness.serve_hit(&head, &hit);
            let wire = response(&fetch);
            harness.complete_fetch(&head, fetch, wire.as_deref());
            got
        }
        Decision::Serve(hit) => harness.serve_hit(&head, &hit),
        Decision::OnlyIfCached => ClientResult { status: 504, ..ClientResult::default() },
        Decision::Wait => panic!("no other request is pending"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_cache_does_what_the_rfc_says(steps in steps()) {
        let mut harness = Harness::new(Config::default());
        let mut model = Model::default();
        for (at, step) in steps.iter().enumerate() {
            let (client_request, policy) = match step {
                Action::AdvanceClock(seconds) => {
                    harness.now += seconds;
                    continue;
                }
                Action::Change(path) => {
                    model.versions[*path] += 1;
                    continue;
                }
                Action::Post(path) => {
                    let head = request(&format!("POST /{path}"), "");
                    harness.exchange(&head, Some(&reply(200, "", "")));
                    model.stored.retain(|stored| stored.path != *path);
                    model.backoff[*path] = (0, 0);
                    continue;
                }
                Action::Get(client_request, policy) => (client_request, Some(policy)),
                Action::GetWithOriginDown(client_request) => (client_request, None),
            };
            let version = model.versions[client_request.path];
            let expected = model.get(client_request, policy, harness.now);
            let got = send(&mut harness, client_request, policy, version);
            let body = Some(got.text().to_owned()).filter(|body| !body.is_empty());
            let got = ExpectedResponse { status: got.status, body, is_origin_request: !got.is_hit() };
            prop_assert_eq!(got, expected, "step {} of {:#?}", at, steps);
        }
        prop_assert_eq!(harness.cache.store().statistics().fetching, 0);
    }
}
