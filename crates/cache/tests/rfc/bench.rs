//! A client, the cache, and an origin that says what the test wants it to.

use pollux_cache::{
    Answer, Ask, Conditions, Config, Decision, Fetch, Handle, Hit, Store, put_304_fields,
    put_status_line,
};
use pollux_http::{
    Limits, date,
    reply::{Asked, Event, Reader, ReplyHead},
    request::{Method, Parsed, Request, parse},
};

/// When tests begin.
pub(crate) const START: u64 = 1_700_000_000;

pub(crate) struct Bench {
    pub(crate) cache: Handle,
    pub(crate) now: u64,
}

/// What a client got, and what the origin saw of it.
#[derive(Debug, Default)]
pub(crate) struct Got {
    pub(crate) status: u16,
    /// Status line and fields.
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// The origin was asked, so often.
    pub(crate) asked: u32,
    /// What replaced the client's conditions in the last question; nothing if they were passed on.
    pub(crate) conditions: Option<String>,
    /// A refresh in the background was wanted as well; the bench has not made it.
    pub(crate) refresh: Option<Fetch>,
}

impl Got {
    /// The value of the last line of the field.
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().rev().find_map(|line| {
            let (other, value) = line.split_once(':')?;
            other.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    /// It came from the store alone.
    pub(crate) fn is_hit(&self) -> bool {
        self.asked == 0
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }
}

/// A request's head: a line, and fields each with CRLF.
pub(crate) fn request(line: &str, fields: &str) -> String {
    format!("{line} HTTP/1.1\r\nHost: a\r\n{fields}\r\n")
}

pub(crate) fn parsed(head: &str) -> Request<'_> {
    match parse(head.as_bytes(), &Limits::DEFAULT) {
        Ok(Parsed::Complete { request, .. }) => request,
        other => panic!("{head:?}: {other:?}"),
    }
}

/// A reply with the fields, a length and the body.
pub(crate) fn reply(status: u16, fields: &str, body: &str) -> String {
    let length = match status {
        204 | 304 => String::new(),
        _ => format!("Content-Length: {}\r\n", body.len()),
    };
    format!("HTTP/1.1 {status} X\r\n{fields}{length}\r\n{body}")
}

/// An HTTP date.
pub(crate) fn at(second: u64) -> String {
    String::from_utf8(date::format(second).to_vec()).unwrap()
}

/// Calls `then` with the head of `wire`, and returns its content too.
pub(crate) fn read_reply<T>(
    wire: &str,
    is_head: bool,
    then: impl FnOnce(&ReplyHead<'_>) -> T,
) -> (T, Vec<u8>) {
    let mut reader = Reader::new(Reader::LIMITS);
    reader.begin(Asked { head: is_head, upgrade: false });
    let step = reader.read(wire.as_bytes()).unwrap();
    let Event::Head(head) = step.event else { panic!("{wire:?}") };
    let outcome = then(&head);
    let content = wire.as_bytes()[step.consumed..].to_vec();
    (outcome, if is_head { Vec::new() } else { content })
}

impl Bench {
    pub(crate) fn new(config: Config) -> Self {
        Self { cache: Store::new(config).handle(), now: START }
    }

    /// How many responses are stored for URLs that begin with `prefix`.
    pub(crate) fn stored(&self, prefix: &str) -> usize {
        let mut walk = self.cache.store().walk(prefix.as_bytes());
        let batches = std::iter::from_fn(|| walk.next_batch(self.now));
        batches.flatten().map(|entry| entry.variants).sum()
    }

    pub(crate) fn ask(&mut self, head: &str, waiter: Option<u64>, has_waited: bool) -> Decision {
        let request = &parsed(head);
        self.cache.lookup(&Ask { request, site: b"http://", waiter, has_waited }, self.now)
    }

    /// Sends GET `path` with `fields`; the origin, if it is asked, says `reply`.
    pub(crate) fn get(&mut self, path: &str, fields: &str, reply: &str) -> Got {
        self.exchange(&request(&format!("GET {path}"), fields), Some(reply))
    }

    /// The same, from an origin that cannot be reached.
    pub(crate) fn get_from_nobody(&mut self, path: &str, fields: &str) -> Got {
        self.exchange(&request(&format!("GET {path}"), fields), None)
    }

    pub(crate) fn exchange(&mut self, head: &str, reply: Option<&str>) -> Got {
        match self.ask(head, None, false) {
            Decision::Answer(hit) => self.answered(head, &hit),
            Decision::AnswerAndRefresh(hit, fetch) => {
                Got { refresh: Some(fetch), ..self.answered(head, &hit) }
            }
            Decision::Fetch(fetch) => self.fetched(head, fetch, reply),
            Decision::Wait => panic!("nobody else asks"),
            Decision::OnlyIfCached => Got { status: 504, ..Got::default() },
        }
    }

    pub(crate) fn answered(&self, head: &str, hit: &Hit) -> Got {
        let reply = hit.reply(&parsed(head), self.now);
        let mut out = Vec::new();
        reply.put_head(&mut out);
        let body: Vec<u8> = reply.content().flat_map(|(piece, r)| piece[r].to_vec()).collect();
        assert_eq!(body.len() as u64, reply.content_length());
        // Fields may have any octets (RFC 9110 §5.5).
        let head = String::from_utf8_lossy(&out).into_owned();
        assert!(
            head.ends_with("\r\n") && head.starts_with(&format!("HTTP/1.1 {}", reply.status()))
        );
        Got { status: reply.status(), head, body, ..Got::default() }
    }

    /// Tells the outcome of `fetch`.
    pub(crate) fn fetched(&mut self, head: &str, fetch: Fetch, wire: Option<&str>) -> Got {
        let conditions = match &fetch.conditions {
            Conditions::Own => None,
            Conditions::Replaced(lines) => Some(String::from_utf8(lines.clone()).unwrap()),
        };
        let Some(wire) = wire else {
            let hit = self.cache.fail(fetch.ticket, self.now);
            let got =
                hit.map_or(Got { status: 502, ..Got::default() }, |hit| self.answered(head, &hit));
            return Got { asked: 1, conditions, ..got };
        };
        let request = parsed(head);
        let now = self.now;
        let cache = &mut self.cache;
        let is_head = request.method == Method::Head && !fetch.is_refresh;
        let ((verdict, mut head_out, status), content) = read_reply(wire, is_head, |reply| {
            let verdict = cache.head(fetch.ticket, &request, reply, now, now);
            let mut out = Vec::new();
            let is_304 = matches!(verdict.answer, Answer::NotModified);
            let status = if is_304 { 304 } else { reply.status };
            put_status_line(status, &mut out);
            if is_304 {
                put_304_fields(reply, &mut out);
            } else {
                for field in reply.forwarded() {
                    out.extend_from_slice(&[field.name, b": ", field.value, b"\r\n"].concat());
                }
            }
            (verdict, out, status)
        });
        if verdict.keep {
            for part in content.chunks(1000) {
                if !cache.append(fetch.ticket, part) {
                    break;
                }
            }
            cache.finish(fetch.ticket);
        }
        match verdict.answer {
            Answer::Stored(hit) => Got { asked: 1, conditions, ..self.answered(head, &hit) },
            Answer::Continue(hit) => {
                let got = self.answered(head, &hit);
                let body = [got.body, content].concat();
                assert_eq!(got.head.matches("Content-Length: ").count(), 1);
                assert!(got.head.contains(&format!("Content-Length: {}\r\n", body.len())));
                Got { asked: 1, conditions, body, ..got }
            }
            Answer::AskAgain(again) => {
                let got = self.fetched(head, again, Some(wire));
                Got { asked: got.asked + 1, ..got }
            }
            answer => {
                verdict.cache_status.put(&mut head_out);
                let body = if matches!(answer, Answer::NotModified) { Vec::new() } else { content };
                let head = String::from_utf8(head_out).unwrap();
                Got { status, head, body, asked: 1, conditions, refresh: None }
            }
        }
    }
}

impl Default for Bench {
    fn default() -> Self {
        Self::new(Config::default())
    }
}
