use super::*;
use crate::reactor::WakeReason;
use crate::{
    protocol::rules::Rules,
    reactor::{ClientId, ExchangeId, Reactor},
    service::{ExchangeTerms, ResponseWriter, worker_state::WorkerState},
    settings::Settings,
};
use pollux_cache::{Config, Decision, Lookup, Store};
use pollux_http::{
    Limits,
    reply::{self, Reader, RequestInfo},
    request::{ParseStatus, parse},
};
use std::cell::Cell;

/// A front end without an engine: its commands are not performed.
struct Bench {
    proxy: Proxy,
    rules: Rules,
    worker: WorkerState,
    reactor: Reactor,
    outbox: Outbox,
}

impl Bench {
    fn new(change: impl FnOnce(&mut FrontendConfig)) -> Self {
        let mut config = FrontendConfig::new(vec!["http://127.0.0.1:1".parse().unwrap()]);
        change(&mut config);
        Self {
            proxy: Proxy::new(&Arc::new(config), false),
            rules: Rules::new(&Settings::new(".")),
            worker: WorkerState::new(None),
            reactor: Reactor::default(),
            outbox: Outbox::default(),
        }
    }

    /// Calls the front end for the client with this descriptor.
    fn call<T>(
        &mut self,
        fd: i32,
        act: impl FnOnce(&mut Proxy, &mut RequestContext<'_>, &mut ResponseWriter<'_>) -> T,
    ) -> T {
        let Self { proxy, rules, worker, reactor, outbox } = self;
        let exchange = ExchangeId { client: ClientId { fd, generation: 1 }, number: 0 };
        let mut context = ServiceContext { rules, worker, reactor };
        let mut terms = ExchangeTerms::NOBODYS;
        let mut written = terms;
        let mut response = ResponseWriter::new(outbox, Cell::from_mut(&mut written));
        act(proxy, &mut context.context(exchange, &mut terms), &mut response)
    }

    fn begin(&mut self, fd: i32, path: &str) -> Exchange {
        let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n");
        let Ok(ParseStatus::Complete { request, .. }) = parse(head.as_bytes(), &Limits::DEFAULT)
        else {
            panic!("a request")
        };
        waiting(self.call(fd, |proxy, context, outbox| proxy.begin(context, &request, outbox)))
    }

    fn wake(&mut self, fd: i32, exchange: Exchange, reason: WakeReason) -> Exchange {
        waiting(self.call(fd, |proxy, context, outbox| {
            proxy.resume(context, exchange, Event::Woken(reason), outbox)
        }))
    }
}

/// Returns the name of the event for which an exchange waits.
fn phase(exchange: &Exchange) -> &'static str {
    match exchange.0.phase {
        Phase::AwaitingFetch(_) => "fetch",
        Phase::Queued(_) => "queue",
        Phase::Connecting { .. } => "connection",
        _ => "another phase",
    }
}

fn waiting(flow: Flow<Exchange>) -> Exchange {
    match flow {
        Flow::Waiting(exchange) => exchange,
        _ => panic!("it is over, or wants a body"),
    }
}

/// An exchange that has waited in vain for another exchange's fetch sends its own request, and may find no
/// free connection. The notification that the fetch is over may arrive only then: it does not mean that a
/// connection has become free.
#[test]
fn an_exchange_that_waits_for_a_connection_is_queued_once() {
    let mut bench = Bench::new(|config| config.connections = 1.try_into().unwrap());
    let first = bench.begin(3, "/");
    let second = bench.begin(4, "/");
    assert_eq!((phase(&first), phase(&second)), ("connection", "queue"));
    let second = bench.wake(4, second, WakeReason::Ready);
    assert_eq!((phase(&second), bench.proxy.pool.waiting()), ("queue", 1));
    // The connection that becomes free goes to the second exchange, and no exchange remains in the queue.
    bench.call(3, |proxy, context, _| proxy.cancel(context, first));
    let second = bench.wake(4, second, WakeReason::Capacity);
    assert_eq!((phase(&second), bench.proxy.pool.waiting()), ("connection", 0));
}

/// Regression: each exchange that ended in this way moved the first exchange of the queue to its end.
#[test]
fn an_exchange_that_waits_for_a_fetch_and_ends_does_not_change_the_queue() {
    let mut bench = Bench::new(|config| {
        config.connections = 1.try_into().unwrap();
        config.cache = Some(pollux_cache::Store::new(pollux_cache::Config::default()));
    });
    let (first, other) = (bench.begin(3, "/"), bench.begin(4, "/"));
    let queued = bench.begin(5, "/other");
    let phases = [phase(&first), phase(&other), phase(&queued)];
    assert_eq!(phases, ["connection", "fetch", "queue"]);
    bench.call(4, |proxy, context, _| proxy.cancel(context, other));
    assert_eq!(bench.proxy.pool.waiting(), 1);
}

/// Stores a response to a request with the field `X`, which chooses the variant.
fn store_variant(store: &Store, now: u64) {
    let mut handle = store.handle();
    let head = b"GET / HTTP/1.1\r\nHost: a\r\nX: 1\r\n\r\n";
    let Ok(ParseStatus::Complete { request, .. }) = parse(head, &Limits::DEFAULT) else {
        panic!("a request")
    };
    let site = pollux_cache::site(false);
    let lookup = Lookup { request: &request, site, waiter: None, has_waited: false };
    let Decision::Fetch(fetch) = handle.lookup(&lookup, now) else { panic!("nothing is stored") };
    let wire =
        b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nVary: X\r\nContent-Length: 0\r\n\r\n";
    let mut reader = Reader::new(Reader::LIMITS);
    reader.begin(RequestInfo::default());
    let reply::Event::Head(reply) = reader.read(wire).unwrap().event else { panic!("a head") };
    assert!(handle.head(fetch.ticket, &request, &reply, now, now).should_store);
    handle.finish(fetch.ticket);
}

/// Regression: a request for another variant than the stored one then waited once more, as long as before.
#[test]
fn an_exchange_whose_wait_for_a_fetch_was_too_long_sends_its_own_request() {
    let store = Store::new(Config::default());
    let mut bench = Bench::new(|config| config.cache = Some(store.clone()));
    store_variant(&store, bench.worker.clock.date().unix_second());
    let (first, mut second) = (bench.begin(3, "/"), bench.begin(4, "/"));
    assert_eq!((phase(&first), phase(&second)), ("connection", "fetch"));
    let Phase::AwaitingFetch(fetch) = &mut second.0.phase else { return };
    fetch.until = 0;
    let alarm = fetch.alarm;
    let second = waiting(bench.call(4, |proxy, context, response| {
        proxy.resume(context, second, Event::Time(alarm), response)
    }));
    assert_eq!(phase(&second), "connection");
}

/// Regression: `OPTIONS *` was answered as if a path was missing.
#[test]
fn options_of_the_server_itself_concern_no_path() {
    for (target, status) in [("*", 204), ("/", 404)] {
        let mut bench = Bench::new(|_| {});
        let head = format!("OPTIONS {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        let Ok(ParseStatus::Complete { request, .. }) = parse(head.as_bytes(), &Limits::DEFAULT)
        else {
            panic!("a request")
        };
        bench.call(3, |_, context, response| Proxy::refuse(context, &request, response));
        let reply = String::from_utf8_lossy(bench.outbox.bytes());
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{target}: {reply}");
    }
}
