//! A client, the cache, and an origin whose responses the test chooses.

use pollux_cache::{
    Conditions, Config, Decision, Fetch, Handle, Hit, Lookup, ResponseSource, Store,
    put_not_modified_fields_of,
};
use pollux_http::{
    Limits, date,
    reply::{Event, Reader, ReplyHead, RequestInfo},
    request::{Method, ParseStatus, Request, parse},
    response::put_status_line,
};

/// The time at which tests begin, in Unix seconds.
pub(crate) const START: u64 = 1_700_000_000;

pub(crate) struct Harness {
    pub(crate) cache: Handle,
    pub(crate) now: u64,
}

/// The response that a client received, and the requests that the origin received.
#[derive(Debug, Default)]
pub(crate) struct ClientResult {
    pub(crate) status: u16,
    /// The status line and the fields.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// The number of requests to the origin.
    pub(crate) origin_requests: u32,
    /// The conditions that replaced the client's own in the last request; `None` if its own were
    /// forwarded.
    pub(crate) conditions: Option<String>,
    /// A background refresh that the cache requires. The harness has not made it.
    pub(crate) refresh: Option<Fetch>,
}

impl ClientResult {
    /// The value of the last line of the field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().rev().find_map(|line| {
            let (other, value) = line.split_once(':')?;
            other.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    /// Whether the origin received no request.
    pub(crate) fn is_hit(&self) -> bool {
        self.origin_requests == 0
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// A request head from a request line and field lines with CRLF.
pub(crate) fn request(line: &str, fields: &str) -> String {
    format!("{line} HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
}

pub(crate) fn parse_request(head: &str) -> Request<'_> {
    match parse(head.as_bytes(), &Limits::DEFAULT) {
        Ok(ParseStatus::Complete { request, .. }) => request,
        other => panic!("{head:?}: {other:?}"),
    }
}

/// A response with the fields, a length and the body.
pub(crate) fn reply(status: u16, fields: &str, body: &str) -> String {
    let length = match status {
        204 | 304 => String::new(),
        _ => format!("Content-Length: {}\r\n", body.len()),
    };
    format!("HTTP/1.1 {status} X\r\n{fields}{length}\r\n{body}")
}

/// The HTTP date of a Unix second.
pub(crate) fn at(second: u64) -> String {
    String::from_utf8(date::format(second).to_vec()).unwrap()
}

/// Calls `then` with the response head in `wire`. Also returns the content.
pub(crate) fn read_reply<T>(
    wire: &str,
    is_head: bool,
    then: impl FnOnce(&ReplyHead<'_>) -> T,
) -> (T, Vec<u8>) {
    let mut reader = Reader::new(Reader::LIMITS);
    reader.begin(RequestInfo { head: is_head, upgrade: false });
    let step = reader.read(wire.as_bytes()).unwrap();
    let Event::Head(head) = step.event else { panic!("{wire:?}") };
    let outcome = then(&head);
    let content = wire.as_bytes()[step.consumed..].to_vec();
    (outcome, if is_head { Vec::new() } else { content })
}

impl Harness {
    pub(crate) fn new(config: Config) -> Self {
        Self { cache: Store::new(config).handle(), now: START }
    }

    /// The number of stored responses for URLs that begin with `prefix`.
    pub(crate) fn stored(&self, prefix: &str) -> usize {
        let mut walk = self.cache.store().walk(prefix.as_bytes());
        let batches = std::iter::from_fn(|| walk.next_batch(self.now));
        batches.flatten().map(|entry| entry.variants).sum()
    }

    pub(crate) fn lookup(&mut self, head: &str, waiter: Option<u64>, has_waited: bool) -> Decision {
        let request = &parse_request(head);
        self.cache.lookup(&Lookup { request, site: b"http://", waiter, has_waited }, self.now)
    }

    /// Sends GET `path` with `fields`. If the origin receives a request, it responds with `reply`.
    pub(crate) fn get(&mut self, path: &str, fields: &str, reply: &str) -> ClientResult {
        self.exchange(&request(&format!("GET {path}"), fields), Some(reply))
    }

    /// Like [`Self::get`], with an origin that cannot be reached.
    pub(crate) fn get_with_origin_down(&mut self, path: &str, fields: &str) -> ClientResult {
        self.exchange(&request(&format!("GET {path}"), fields), None)
    }

    pub(crate) fn exchange(&mut self, head: &str, reply: Option<&str>) -> ClientResult {
        match self.lookup(head, None, false) {
            Decision::Serve(hit) => self.serve_hit(head, &hit),
            Decision::ServeAndRefresh(hit, fetch) => {
                ClientResult { refresh: Some(fetch), ..self.serve_hit(head, &hit) }
            }
            Decision::Fetch(fetch) => self.complete_fetch(head, fetch, reply),
            Decision::Wait => panic!("no other request is pending"),
            Decision::OnlyIfCached => ClientResult { status: 504, ..ClientResult::default() },
        }
    }

    pub(crate) fn serve_hit(&self, head: &str, hit: &Hit) -> ClientResult {
        let reply = hit.response(&parse_request(head), self.now);
        let mut out = Vec::new();
        put_status_line(&mut out, reply.status());
        reply.put_fields(&mut out);
        if let Some(length) = reply.announced_length() {
            out.extend_from_slice(format!("Content-Length: {length}\r\n").as_bytes());
        }
        let body: Vec<u8> = reply.content().flat_map(|(piece, r)| piece[r].to_vec()).collect();
        assert_eq!(body.len() as u64, reply.content_length());
        // Field values may contain any bytes (RFC 9110 §5.5).
        let head = String::from_utf8_lossy(&out).into_owned();
        assert!(
            head.ends_with("\r\n") && head.starts_with(&format!("HTTP/1.1 {}", reply.status()))
        );
        ClientResult { status: reply.status(), head, body, ..ClientResult::default() }
    }

    /// Reports the origin's response to `fetch`: `wire`, or a failure.
    pub(crate) fn complete_fetch(
        &mut self,
        head: &str,
        fetch: Fetch,
        wire: Option<&str>,
    ) -> ClientResult {
        let conditions = match &fetch.conditions {
            Conditions::Own => None,
            Conditions::Replaced(lines) => Some(String::from_utf8(lines.clone()).unwrap()),
        };
        let Some(wire) = wire else {
            let hit = self.cache.fail(fetch.ticket, self.now);
            let got = hit.map_or(ClientResult { status: 502, ..ClientResult::default() }, |hit| {
                self.serve_hit(head, &hit)
            });
            return ClientResult { origin_requests: 1, conditions, ..got };
        };
        let request = parse_request(head);
        let now = self.now;
        let cache = &mut self.cache;
        let is_head = request.method == Method::Head && !fetch.is_refresh;
        let ((decision, mut head_out, status), content) = read_reply(wire, is_head, |reply| {
            let decision = cache.head(fetch.ticket, &request, reply, now, now);
            let mut out = Vec::new();
            let is_304 = matches!(decision.source, ResponseSource::NotModified);
            let status = if is_304 { 304 } else { reply.status };
            put_status_line(&mut out, status);
            if is_304 {
                put_not_modified_fields_of(reply, &mut out);
            } else {
                for field in reply.forwarded() {
                    out.extend_from_slice(&[field.name, b": ", field.value, b"\r\n"].concat());
                }
            }
            (decision, out, status)
        });
        if decision.should_store {
            for part in content.chunks(1000) {
                if !cache.append(fetch.ticket, part) {
                    break;
                }
            }
            cache.finish(fetch.ticket);
        }
        match decision.source {
            ResponseSource::Stored(hit) => {
                ClientResult { origin_requests: 1, conditions, ..self.serve_hit(head, &hit) }
            }
            ResponseSource::StoredPrefix(hit) => {
                let got = self.serve_hit(head, &hit);
                let body = [got.body, content].concat();
                assert_eq!(got.head.matches("Content-Length: ").count(), 1);
                assert!(got.head.contains(&format!("Content-Length: {}\r\n", body.len())));
                ClientResult { origin_requests: 1, conditions, body, ..got }
            }
            ResponseSource::Refetch(refetch) => {
                let got = self.complete_fetch(head, refetch, Some(wire));
                ClientResult { origin_requests: got.origin_requests + 1, ..got }
            }
            source => {
                decision.cache_status.put(&mut head_out);
                let body = if matches!(source, ResponseSource::NotModified) {
                    Vec::new()
                } else {
                    content
                };
                let head = String::from_utf8(head_out).unwrap();
                ClientResult { status, head, body, origin_requests: 1, conditions, refresh: None }
            }
        }
    }
}

impl Default for Harness {
    fn default() -> Self {
        Self::new(Config::default())
    }
}
