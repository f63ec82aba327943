//! Tests that the output is always the same, regardless of how the input is split, how slowly the peer
//! takes the output, and in which order the calls occur.

mod ends;

use super::*;
use crate::stats::Counter;
use crate::{
    protocol::rules::Rules,
    reactor::{ClientId, ExchangeId, Reactor},
    service::{
        Adapter, Event, Page, RequestContext, ResponseWriter, Service, ServiceContext,
        worker_state::{Answer, WorkerState},
    },
    services::{Hosts, site::Contents},
    settings::Settings,
    transport::outbox::{Content, Next, OUTBOX_FULL, Outbox, SharedBytes},
};
use pollux_http::{
    Status,
    request::{Request, Target},
    response::{self, Head, LAST_CHUNK},
};
use proptest::prelude::*;
use std::{os::unix::fs::FileExt, rc::Rc, sync::Arc};

/// A connection, its service and worker state, and the bytes that were sent.
struct Bench<A: Service> {
    connection: Connection<A::Exchange>,
    service: A,
    rules: Rules,
    worker: WorkerState,
    reactor: Reactor,
    scratch: Outbox,
    sent: Vec<u8>,
    directory: Rc<tempfile::TempDir>,
}

impl<A: Service> Bench<A> {
    fn new(directory: Rc<tempfile::TempDir>, service: impl FnOnce(&Settings, &Rules) -> A) -> Self {
        let mut config = Settings::new(directory.path());
        config.max_requests = None;
        let rules = Rules::new(&config);
        Self {
            connection: Connection::default(),
            service: service(&config, &rules),
            rules,
            worker: WorkerState::new(None),
            reactor: Reactor::default(),
            scratch: Outbox::default(),
            sent: Vec::new(),
            directory,
        }
    }

    fn iteration<R>(
        &mut self,
        act: impl FnOnce(&mut Iteration<'_, A::Exchange>, &Rules, &mut Adapter<'_, A>) -> R,
    ) -> R {
        let Self { connection, service, rules, worker, reactor, scratch, .. } = self;
        let client = ClientId { fd: 3, generation: 1 };
        let mut adapter = Adapter { service, rules, worker, reactor, client, socket: None };
        act(&mut connection.iteration(scratch), rules, &mut adapter)
    }

    fn receive(&mut self, input: impl AsRef<[u8]>) {
        self.iteration(|iteration, rules, adapter| {
            iteration.receive(rules, adapter, input.as_ref())
        });
        assert!(self.scratch.is_empty(), "what has not left is kept");
    }

    fn wake(&mut self, event: Event<'_>) {
        self.iteration(|iteration, rules, adapter| {
            iteration.resume(rules, adapter, |adapter, terms, exchange, outbox| {
                adapter.wake(terms, exchange, event, outbox)
            });
        });
    }

    /// Sends up to `limit` bytes of the output.
    fn send(&mut self, limit: usize) {
        let mut sent = std::mem::take(&mut self.sent);
        self.iteration(|iteration, _, _| take(iteration.output(), limit, &mut sent));
        self.sent = sent;
    }

    /// Does what the connection needs until it waits for input or for the service.
    fn work(&mut self, mut limits: impl Iterator<Item = usize>) -> Need {
        loop {
            match self.connection.need() {
                Need::Send => self.send(limits.next().unwrap()),
                Need::Requeue => {
                    self.iteration(|iteration, rules, adapter| iteration.go_on(rules, adapter))
                }
                Need::Service if self.iteration(|iteration, _, _| iteration.takes_owed_room()) => {
                    self.wake(Event::Room);
                }
                need => return need,
            }
        }
    }

    fn work_fast(&mut self) -> Need {
        self.work(std::iter::repeat(usize::MAX >> 1))
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.sent).into_owned()
    }
}

/// Moves up to `limit` bytes from the outbox to `sent`.
fn take(outbox: &mut Outbox, limit: usize, sent: &mut Vec<u8>) {
    let mut left = limit;
    while left > 0 {
        let start = sent.len();
        match outbox.next() {
            Next::Nothing => return,
            Next::Bytes(bytes) | Next::BytesBeforeFile(bytes) => sent.extend_from_slice(bytes),
            Next::Two(first, second) => sent.extend([first, second].concat()),
            Next::File { file, offset, len } => {
                let file = std::fs::File::from(file.try_clone_to_owned().unwrap());
                sent.resize(start + len as usize, 0);
                file.read_exact_at(&mut sent[start..], offset).unwrap();
            }
        }
        sent.truncate(start + left.min(sent.len() - start));
        let taken = sent.len() - start;
        left -= taken;
        outbox.advance(taken);
    }
}

/// Creates a directory with a short, a long and an open file.
fn files() -> Rc<tempfile::TempDir> {
    let directory = tempfile::tempdir().unwrap();
    for (name, len) in [("short", 1), ("long", 40_000), ("open", 300_000)] {
        let content: Vec<u8> = (0..len).map(|i| (i / 5) as u8).collect();
        std::fs::write(directory.path().join(name), content).unwrap();
    }
    directory.into()
}

fn site() -> Bench<Hosts> {
    site_of(files())
}

fn site_of(directory: Rc<tempfile::TempDir>) -> Bench<Hosts> {
    Bench::new(directory, |config, rules| {
        Hosts::open(config, rules, Contents::new(config.site.cache_bytes, 1)).unwrap()
    })
}

fn bytes(bytes: &[u8]) -> Rc<SharedBytes> {
    Rc::new(SharedBytes::from(Arc::from(bytes)))
}

/// Splits `bytes` at these positions.
fn cut<'b>(bytes: &'b [u8], places: &[usize]) -> Vec<&'b [u8]> {
    let mut places: Vec<usize> = places.iter().map(|place| place % (bytes.len() + 1)).collect();
    places.push(0);
    places.push(bytes.len());
    places.sort_unstable();
    places.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).filter(|p| !p.is_empty()).collect()
}

const REQUESTS: [&str; 9] = [
    "GET /short HTTP/1.1\r\nHost: test\r\n\r\n",
    "GET /long HTTP/1.1\r\nHost: test\r\n\r\n",
    "GET /open HTTP/1.1\r\nHost: test\r\nRange: bytes=5-200004\r\n\r\n",
    "HEAD /open HTTP/1.1\r\nHost: test\r\n\r\n",
    "GET /none HTTP/1.1\r\nHost: test\r\n\r\n",
    "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 30\r\n\r\nGET / HTTP/1.1\r\nHost: test\r\n\r\n",
    "PUT / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nGET /\r\n0\r\n\r\n",
    "GET /short HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n",
    "GET /short HTTP/1.1\r\n\r\n",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn any_cut_any_pace_and_any_order_give_the_same_output(
        // The last two requests end the connection, so they are rarer than the others.
        requests in prop::collection::vec(prop_oneof![60 => 0..7usize, 1 => 7..9usize], 1..120),
        places in prop::collection::vec(any::<usize>(), 0..40),
        takes in prop::collection::vec(1..200_000usize, 1..12),
        // The work between two pieces: nothing, some sending, an iteration, or everything.
        between in prop::collection::vec(0..4u8, 1..8),
    ) {
        let all: String = requests.iter().map(|&index| REQUESTS[index]).collect();
        let mut whole = site();
        whole.receive(&all);
        let end = whole.work_fast();
        let mut pieces = site_of(whole.directory.clone());
        // Both use the same clock, so that the Date is the same.
        pieces.worker = whole.worker;
        let mut takes = takes.iter().copied().cycle();
        let mut between = between.iter().copied().cycle();
        for piece in cut(all.as_bytes(), &places) {
            pieces.receive(piece);
            match between.next().unwrap() {
                0 => {}
                1 => pieces.send(takes.next().unwrap()),
                2 => pieces.iteration(|iteration, rules, adapter| iteration.go_on(rules, adapter)),
                _ => drop(pieces.work(&mut takes)),
            }
        }
        pieces.connection.end_of_input();
        let need = pieces.work(&mut takes);
        // prop_assert_eq would print a very long list of numbers.
        prop_assert!(
            whole.sent == pieces.sent,
            "{} bytes became {}", whole.sent.len(), pieces.sent.len()
        );
        prop_assert_eq!(need, Need::Close);
        let is_over = requests.iter().any(|&index| index >= 7);
        prop_assert_eq!(matches!(end, Need::Close | Need::Linger), is_over);
    }
}

/// Regression: the end of the stream closed a connection that still had requests to answer.
#[test]
fn requests_that_wait_are_answered_after_the_end_of_the_stream() {
    let mut bench = site();
    bench.receive(REQUESTS[1].repeat(5));
    bench.connection.end_of_input();
    assert_eq!(bench.work_fast(), Need::Close);
    assert_eq!(bench.text().matches("HTTP/1.1 200 OK").count(), 5);
}

/// Regression: a response was sent before stored output, or replaced it.
#[test]
fn what_is_received_while_output_is_kept_is_answered_behind_it() {
    let mut bench = site();
    bench.receive(REQUESTS[1]);
    assert_eq!(bench.connection.need(), Need::Send);
    bench.send(100);
    for _ in 0..3 {
        bench.receive(REQUESTS[0]);
    }
    bench.receive(REQUESTS[4]);
    assert_eq!(bench.work_fast(), Need::Receive(Awaits::Next));
    let text = bench.text();
    let statuses: Vec<&str> =
        text.match_indices("HTTP/1.1 ").map(|(at, _)| &text[at + 9..][..3]).collect();
    assert_eq!(statuses, ["200", "200", "200", "200", "404"]);
    assert!(text.len() > 40_000);
}

#[test]
fn one_turn_answers_so_many_requests_and_no_more() {
    let mut bench = site();
    bench.receive(REQUESTS[0].repeat(200));
    for round in 1..=3 {
        bench.send(usize::MAX >> 1);
        assert_eq!(bench.worker.counters.get(Counter::Requests), 64 * round);
        assert_eq!(bench.connection.need(), Need::Requeue);
        bench.iteration(|iteration, rules, adapter| iteration.go_on(rules, adapter));
    }
    assert_eq!(bench.work_fast(), Need::Receive(Awaits::Next));
    assert_eq!(bench.worker.counters.get(Counter::Requests), 200);
}

#[test]
fn nothing_is_owned_between_requests() {
    let mut bench = site();
    assert_eq!(bench.connection.need(), Need::Receive(Awaits::Request));
    for request in &REQUESTS[..7] {
        for piece in request.as_bytes().chunks(7) {
            bench.receive(piece);
            bench.work_fast();
        }
        assert!(bench.connection.is_idle() && bench.connection.ongoing.is_none(), "{request}");
        assert_eq!(bench.connection.need(), Need::Receive(Awaits::Next));
    }
    bench.receive("GET /");
    assert_eq!(bench.connection.need(), Need::Receive(Awaits::Request));
    assert_eq!(bench.connection.requests(), 7);
}

#[test]
fn a_connection_is_sixteen_bytes() {
    assert_eq!(size_of::<Connection<[u64; 9]>>(), 16);
}

/// A service that performs the steps in the path, in their order; each character is one step.
#[derive(Default)]
struct ScriptService {
    cancelled: usize,
    seen: String,
}

/// The steps that are still to be performed.
struct Script(Vec<u8>);

impl ScriptService {
    fn go_on(&mut self, mut script: Script, outbox: &mut Outbox) -> Flow<Script> {
        if script.0.is_empty() {
            return Flow::Done;
        }
        match script.0.remove(0) {
            b'w' => Flow::Waiting(script),
            b'b' => Flow::NeedBody(script),
            b'x' => Flow::Cut,
            b'h' => {
                let ok = Head::new(outbox.bytes(), Status::Ok);
                ok.chunked().end();
                self.go_on(script, outbox)
            }
            b'f' => {
                let memory = bytes(&[b'f'; OUTBOX_FULL]);
                response::chunk(outbox.bytes(), b"before");
                outbox.bytes().extend_from_slice(b"10000\r\n");
                outbox.push(Content::Shared(memory, 0..OUTBOX_FULL));
                outbox.bytes().extend_from_slice(b"\r\n");
                assert!(outbox.is_full());
                Flow::Waiting(script)
            }
            b'p' => {
                let chunk = bytes(b"1\r\np\r\n");
                outbox.push(Content::Shared(chunk, 0..6));
                self.go_on(script, outbox)
            }
            b'e' => {
                outbox.bytes().extend_from_slice(LAST_CHUNK);
                self.go_on(script, outbox)
            }
            upstream_request => {
                response::chunk(outbox.bytes(), &[upstream_request]);
                self.go_on(script, outbox)
            }
        }
    }
}

impl Service for ScriptService {
    type Exchange = Script;

    fn begin(
        &mut self,
        _: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Script> {
        let Target::Path { path, .. } = request.target else { panic!("{:?}", request.target) };
        if path.starts_with(b"/h") {
            response.note_raw_head();
        }
        self.go_on(Script(path[1..].to_vec()), response.raw())
    }

    fn body(
        &mut self,
        context: &mut RequestContext<'_>,
        script: Script,
        part: Part<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Script> {
        let outbox = response.raw();
        match part {
            Part::Data(bytes) => {
                self.seen.push_str(std::str::from_utf8(bytes).unwrap());
                Flow::NeedBody(script)
            }
            Part::End { trailers } => {
                self.seen.push_str(&format!("|{}", String::from_utf8_lossy(trailers)));
                context.log(b"-", Answer { status: 200, len: 0 });
                self.go_on(script, outbox)
            }
        }
    }

    fn resume(
        &mut self,
        _: &mut RequestContext<'_>,
        script: Script,
        event: Event<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Script> {
        let outbox = response.raw();
        match event {
            Event::Room => self.seen.push('R'),
            Event::ClientEnded => self.seen.push('E'),
            other => panic!("{other:?} was not expected"),
        }
        self.go_on(script, outbox)
    }

    fn cancel(&mut self, _: &mut RequestContext<'_>, _: Script) {
        self.cancelled += 1;
    }
}

fn scripted() -> Bench<ScriptService> {
    Bench::new(files(), |_, _| ScriptService::default())
}

fn get(script: &str) -> String {
    format!("GET /{script} HTTP/1.1\r\nHost: test\r\n\r\n")
}

/// Returns the response in short form: `<` for a head, the chunks, `>` for the last chunk.
fn content(mut text: &str) -> String {
    let mut content = String::new();
    while !text.is_empty() {
        if let Some(rest) =
            text.strip_prefix("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        {
            content.push('<');
            text = rest;
        } else if let Some(rest) = text.strip_prefix("0\r\n\r\n") {
            content.push('>');
            text = rest;
        } else {
            let (size, rest) = text.split_once("\r\n").unwrap();
            let size = usize::from_str_radix(size, 16).unwrap();
            content.push_str(&rest[..size]);
            text = &rest[size + 2..];
        }
    }
    content
}

#[test]
fn a_waiting_request_is_answered_later_and_the_following_ones_after_it() {
    let mut bench = scripted();
    bench.receive(get("h1w2we") + &get("h3e") + &get("wh4e"));
    assert_eq!(bench.work_fast(), Need::Service);
    assert_eq!(content(&bench.text()), "<1");
    bench.wake(Event::ClientEnded);
    assert_eq!(bench.work_fast(), Need::Service);
    assert_eq!(content(&bench.text()), "<12");
    // The third exchange begins without a further call, and waits.
    bench.wake(Event::ClientEnded);
    assert_eq!(bench.work_fast(), Need::Service);
    assert_eq!(content(&bench.text()), "<12><3>");
    bench.connection.end_of_input();
    assert_eq!(
        bench.work_fast(),
        Need::Service,
        "a request before the end of input is still answered"
    );
    bench.wake(Event::ClientEnded);
    assert_eq!(bench.work_fast(), Need::Close);
    assert_eq!(content(&bench.text()), "<12><3><4>");
}

#[test]
fn an_exchange_that_fills_the_outbox_gets_one_event_when_it_is_low() {
    let mut bench = scripted();
    bench.receive(get("hffwe"));
    bench.send(1000);
    assert!(!bench.iteration(|iteration, _, _| iteration.takes_owed_room()));
    // All output is sent: first the second portion, and then no further event is due.
    assert_eq!(bench.work_fast(), Need::Service);
    assert_eq!(bench.service.seen, "RR");
    assert!(bench.sent.len() > 2 * OUTBOX_FULL && !bench.text().ends_with("0\r\n\r\n"));
    bench.wake(Event::ClientEnded);
    assert_eq!(bench.work_fast(), Need::Receive(Awaits::Next));
    assert!(bench.text().ends_with("0\r\n\r\n") && bench.connection.is_idle());
}

#[test]
fn a_body_is_handed_over_when_it_is_wanted() {
    let body = "5\r\nhello\r\n3\r\nyou\r\n0\r\nX: y\r\n\r\n";
    let post = |script| {
        format!("POST /{script} HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n{body}")
    };
    let next = get("h2e");
    for (script, wakes, seen, answered) in [
        ("bh1e", 0, "helloyou|X: y\r\n", "<1><2>"),
        // The exchange first waits for something else, then for the body.
        ("wbh1e", 1, "Ehelloyou|X: y\r\n", "<1><2>"),
        // After the body, the exchange waits for something else, although it requests more of the body.
        ("bbh1e", 1, "helloyou|X: y\r\nE", "<1><2>"),
        // The body is not wanted: it is discarded.
        ("h1e", 0, "", "<1><2>"),
        ("wh1e", 1, "E", "<1><2>"),
    ] {
        for piece in [1, 7, 1000] {
            let mut bench = scripted();
            for piece in (post(script) + &next).as_bytes().chunks(piece) {
                bench.receive(piece);
                bench.work_fast();
            }
            for _ in 0..wakes {
                assert_eq!(bench.connection.need(), Need::Service, "{script}");
                bench.wake(Event::ClientEnded);
                bench.work_fast();
            }
            assert_eq!(bench.service.seen, seen, "{script} in pieces of {piece}");
            assert_eq!(content(&bench.text()), answered, "{script} in pieces of {piece}");
            assert!(bench.connection.is_idle());
        }
    }
}

#[test]
fn continue_is_sent_when_the_body_is_wanted_and_not_before() {
    let post = |script| {
        format!(
            "POST /{script} HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n"
        )
    };
    let mut bench = scripted();
    bench.receive(post("wbh1e"));
    assert_eq!(bench.work_fast(), Need::Service);
    assert_eq!(bench.text(), "");
    bench.wake(Event::ClientEnded);
    assert_eq!(bench.work_fast(), Need::Receive(Awaits::Request));
    assert_eq!(bench.text(), "HTTP/1.1 100 Continue\r\n\r\n");
    bench.receive("ab");
    assert_eq!(bench.work_fast(), Need::Receive(Awaits::Next));
    // The request is answered without its body: nothing shows whether the body follows.
    let mut bench = scripted();
    bench.receive(post("h1e"));
    assert_eq!(bench.work_fast(), Need::Linger);
    assert_eq!(content(&bench.text()), "<1>");
}

#[test]
fn an_exchange_that_was_answering_is_notified_of_the_end() {
    // The client has disconnected.
    let mut bench = scripted();
    bench.receive(get("w"));
    bench.iteration(|_, _, _| ());
    let Bench { connection, service, rules, worker, reactor, .. } = &mut bench;
    let client = ClientId { fd: 3, generation: 1 };
    connection.abandon(&mut Adapter { service, rules, worker, reactor, client, socket: None });
    assert_eq!(bench.service.cancelled, 1);
    // The body is malformed: a refusal is sent, or the connection ends if a response has begun.
    for (script, answered) in
        [("b", "HTTP/1.1 400"), ("hb", "HTTP/1.1 200"), ("hpb", "HTTP/1.1 200")]
    {
        let mut bench = scripted();
        bench.receive(format!(
            "POST /{script} HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\nnonsense"
        ));
        assert_eq!(bench.work_fast(), Need::Linger);
        assert_eq!(bench.service.cancelled, 1, "{script}");
        assert!(bench.text().starts_with(answered), "{script}: {}", bench.text());
        assert_eq!(bench.text().matches("HTTP/1.1").count(), 1, "{script}: {}", bench.text());
    }
    // The body does not arrive in time.
    let mut bench = scripted();
    bench.receive("POST /b HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\n\r\na");
    bench.iteration(|iteration, _, adapter| iteration.on_timeout(adapter));
    assert_eq!(bench.work_fast(), Need::Linger);
    assert_eq!(bench.service.cancelled, 1);
    assert!(bench.text().starts_with("HTTP/1.1 408"));
    // The body can never arrive.
    let mut bench = scripted();
    bench.receive("POST /b HTTP/1.1\r\nHost: test\r\nContent-Length: 3\r\n\r\na");
    bench.connection.end_of_input();
    assert_eq!(bench.work_fast(), Need::Close);
}

#[test]
fn an_answer_that_is_cut_ends_the_connection() {
    let mut bench = scripted();
    bench.receive(get("h1wx") + &get("h2e"));
    bench.work_fast();
    bench.wake(Event::ClientEnded);
    assert_eq!(bench.work_fast(), Need::Linger);
    assert_eq!(content(&bench.text()), "<1");
}

/// The length of a refusal's content is the length that its head announces.
#[test]
fn a_refusal_has_the_content_that_it_announces() {
    let rules = Rules::new(&Settings::new("."));
    let (mut worker, mut reactor) = (WorkerState::new(None), Reactor::default());
    let page = Page { status: Status::NotFound, reason: "none", fields: b"" };
    let id = ExchangeId { client: ClientId { fd: 3, generation: 1 }, number: 1 };
    let mut heads = Vec::new();
    for is_head in [false, true] {
        let mut outbox = Outbox::default();
        let mut terms = ExchangeTerms::of_refusal(is_head, 0);
        let mut context =
            ServiceContext { rules: &rules, worker: &mut worker, reactor: &mut reactor };
        let context = context.context(id, &mut terms);
        let answer = page.put(&context, &mut context.writer_to(&mut outbox));
        let mut sent = Vec::new();
        take(&mut outbox, 10_000, &mut sent);
        let text = String::from_utf8(sent).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert_eq!(body.len() as u64, answer.len);
        assert_eq!(body.is_empty(), is_head);
        heads.push(head.to_owned());
    }
    assert_eq!(heads[0], heads[1]);
}
