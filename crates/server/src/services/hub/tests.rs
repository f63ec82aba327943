//! The parts of several workers, without an engine: their commands are not performed.

mod announcements;
mod bursts;
mod keys;
mod load;
mod notifications;

use super::*;
use crate::{
    config::{HubConfig, HubStoreConfig},
    protocol::rules::Rules,
    reactor::{Command, Reactor, WakeReason},
    service::{ExchangeTerms, StreamSend, worker_state::WorkerState},
    settings::Settings,
    transport::outbox::Outbox,
};
use pollux_http::{
    Limits,
    request::{ParseStatus, parse},
};
use pollux_hub::{subscribers::Delivery, update::Publication};
use pollux_testkit::wait_until;
use std::{
    cell::Cell,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

/// One worker's part of a hub.
struct Bench {
    hub: Hub,
    rules: Rules,
    worker: WorkerState,
    reactor: Reactor,
    outbox: Outbox,
}

/// Creates the shared part of a hub at which every client may subscribe.
fn shared(change: impl FnOnce(&mut HubConfig)) -> Arc<HubShared> {
    let mut config = HubConfig::new("/hub");
    config.anonymous = true;
    change(&mut config);
    HubShared::open(&Arc::new(config), "http://h", 2).unwrap()
}

fn publish(shared: &HubShared, id: &str) {
    shared.publish(publication(id), None).unwrap();
}

fn publish_private(shared: &HubShared, id: &str) {
    shared.publish(Publication { private: true, ..publication(id) }, None).unwrap();
}

fn publication(id: &str) -> Publication {
    Publication {
        topics: vec!["a".into()],
        data: format!("data of {id}"),
        id: Some(id.into()),
        ..Publication::default()
    }
}

impl Bench {
    fn new(shared: &Arc<HubShared>, worker: usize) -> Self {
        Self {
            hub: Hub::new(shared.clone(), worker),
            rules: Rules::new(&Settings::new(".")),
            worker: WorkerState::new(None),
            reactor: Reactor::default(),
            outbox: Outbox::default(),
        }
    }

    /// Calls the hub for the client with this descriptor.
    fn call<T>(
        &mut self,
        fd: i32,
        act: impl FnOnce(&mut Hub, &mut RequestContext<'_>, &mut ResponseWriter<'_>) -> T,
    ) -> T {
        let Self { hub, rules, worker, reactor, outbox } = self;
        let mut context = ServiceContext { rules, worker, reactor };
        let mut terms = ExchangeTerms::NOBODYS;
        let mut written = terms;
        let mut response = ResponseWriter::new(outbox, Cell::from_mut(&mut written));
        act(hub, &mut context.context(exchange_of(fd), &mut terms), &mut response)
    }

    /// Begins a stream, and returns its number.
    fn stream(&mut self, fd: i32, field: &str) -> u32 {
        match self.wait(fd, field).0.phase {
            HubPhase::Stream(id) => id.number(),
            ref other => panic!("no stream: {other:?}"),
        }
    }

    /// Sends a request for the topic `a` with this field.
    fn get(&mut self, fd: i32, field: &str) -> Flow<Exchange> {
        self.request(fd, "/hub?match=a", field)
    }

    fn request(&mut self, fd: i32, target: &str, field: &str) -> Flow<Exchange> {
        let head = format!("GET {target} HTTP/1.1\r\nHost: h\r\n{field}\r\n\r\n");
        let Ok(ParseStatus::Complete { request, .. }) = parse(head.as_bytes(), &Limits::DEFAULT)
        else {
            panic!("a request")
        };
        self.call(fd, |hub, context, response| hub.begin(context, &request, response))
    }

    /// Begins a stream or a poll that waits.
    fn wait(&mut self, fd: i32, field: &str) -> Exchange {
        match self.get(fd, field) {
            Flow::Waiting(exchange) => exchange,
            _ => panic!("it is over: {}", self.response()),
        }
    }

    /// Sends a request that is answered at once. Returns the response.
    fn answer(&mut self, fd: i32, field: &str) -> String {
        self.response();
        assert!(matches!(self.get(fd, field), Flow::Done), "it waits");
        self.response()
    }

    /// Sets the address of a client.
    fn at(&mut self, fd: i32, address: &str) {
        let address = (address.parse::<IpAddr>().unwrap(), 1).into();
        self.worker.clients.enter(None, fd, Some(address)).unwrap();
    }

    /// Wakes an exchange. Returns what it has written.
    fn wake(&mut self, fd: i32, exchange: Exchange) -> (Flow<Exchange>, String) {
        self.resume(fd, exchange, Event::Woken(WakeReason::Ready))
    }

    /// Calls an exchange again. Returns what it has written.
    fn resume(
        &mut self,
        fd: i32,
        exchange: Exchange,
        event: Event<'_>,
    ) -> (Flow<Exchange>, String) {
        self.response();
        let flow =
            self.call(fd, |hub, context, response| hub.resume(context, exchange, event, response));
        (flow, self.response())
    }

    fn cancel(&mut self, fd: i32, exchange: Exchange) {
        self.call(fd, |hub, context, _| hub.cancel(context, exchange));
    }

    fn ticket(&self, fd: i32) -> Ticket {
        Ticket { worker: self.hub.worker, exchange: exchange_of(fd) }
    }

    /// Lets the hub send as often as it wants to. Returns what each client gets.
    fn pump(&mut self) -> Vec<(i32, String)> {
        let mut sent = Vec::new();
        while self.hub.has_stream_work() {
            sent.extend(self.pump_once());
        }
        sent
    }

    /// Lets the hub send what it sends in one iteration.
    fn pump_once(&mut self) -> Vec<(i32, String)> {
        let mut sent = Vec::new();
        let Self { hub, rules, worker, reactor, .. } = self;
        let mut context = ServiceContext { rules, worker, reactor };
        hub.pump(&mut context, |client, what| {
            if let StreamSend::Chunk(chunk) = what {
                let text = String::from_utf8(chunk.bytes().to_vec()).unwrap();
                sent.push((client.fd, text));
            }
            Delivery::Taken
        });
        sent
    }

    /// Takes all commands. Returns the clients that are woken.
    fn commands(&mut self) -> Vec<i32> {
        let commands = std::iter::from_fn(|| self.reactor.next_command());
        commands
            .filter_map(|command| match command {
                Command::Wake(exchange, _) => Some(exchange.client.fd),
                _ => None,
            })
            .collect()
    }

    /// Returns what was written for clients since the last call.
    fn response(&mut self) -> String {
        let text = String::from_utf8(self.outbox.only_bytes().unwrap_or_default().to_vec());
        self.outbox.clear();
        text.unwrap()
    }
}

fn exchange_of(fd: i32) -> ExchangeId {
    let number = ExchangeTerms::NOBODYS.number;
    ExchangeId { client: ClientId { fd, generation: 1 }, number }
}

/// Returns the identifiers of the events that were sent.
fn ids(sent: &[(i32, String)]) -> Vec<(i32, String)> {
    let id =
        |text: &String| text.lines().find_map(|line| line.strip_prefix("id: ")).map(str::to_owned);
    sent.iter().filter_map(|(fd, text)| Some((*fd, id(text)?))).collect()
}

/// Regression: an answer was dropped if another one arrived before the engine had woken its exchange, which
/// then waited for ever. The engine performs a limited number of commands at a time.
#[test]
fn answers_are_kept_until_their_exchanges_are_woken() {
    let shared = shared(|_| ());
    let mut bench = Bench::new(&shared, 0);
    shared.hold();
    let waiting: Vec<_> = (3..6).map(|fd| (fd, bench.wait(fd, "X: y"))).collect();
    for fd in 3..6 {
        shared.answer(bench.ticket(fd), Ok("".into()));
        bench.pump();
    }
    assert_eq!(bench.commands(), [3, 4, 5]);
    for (fd, exchange) in waiting {
        let (_, response) = bench.wake(fd, exchange);
        assert!(response.starts_with("HTTP/1.1 200 "), "{fd}: {response}");
    }
    // Answers for exchanges that end before or after their answer arrives do not stay.
    let [early, late] = [6, 7].map(|fd| bench.wait(fd, "X: y"));
    bench.cancel(6, early);
    shared.answer(bench.ticket(6), Ok("".into()));
    shared.answer(bench.ticket(7), Ok("".into()));
    bench.pump();
    bench.cancel(7, late);
    assert_eq!(bench.hub.outcomes.len(), 1);
    bench.commands();
    shared.answer(bench.ticket(8), Ok("".into()));
    bench.pump();
    assert!(bench.hub.outcomes.keys().eq([&exchange_of(8)]));
}

/// Regression: a subscriber that reconnected during an upgrade, and named an update that the log had, began with
/// the next update.
#[test]
fn a_subscriber_that_is_held_begins_after_the_update_that_it_names() {
    let shared = shared(|_| ());
    let mut bench = Bench::new(&shared, 0);
    ["1", "2"].iter().for_each(|id| publish(&shared, id));
    bench.pump();
    shared.hold();
    let known = bench.wait(3, "Last-Event-ID: 1");
    let unknown = bench.wait(4, "Last-Event-ID: 0");
    let new = bench.wait(5, "X: y");
    publish(&shared, "3");
    shared.release();
    bench.pump();
    let (_, response) = bench.wake(3, known);
    assert!(response.contains("\r\nLast-Event-ID: 1\r\n"), "{response}");
    let (_, response) = bench.wake(4, unknown);
    assert!(response.contains("\r\nLast-Event-ID: earliest\r\n"), "{response}");
    bench.wake(5, new);
    publish(&shared, "4");
    let mut sent = ids(&bench.pump());
    sent.sort();
    let of =
        |fd: i32, ids: &[&str]| ids.iter().map(|id| (fd, (*id).to_owned())).collect::<Vec<_>>();
    let expected = [of(3, &["2", "3", "4"]), of(4, &["1", "2", "3", "4"]), of(5, &["4"])].concat();
    assert_eq!(sent, expected);
}

/// Regression: such a subscriber began before the history, and was sent all of it as new updates when Redis came.
#[test]
fn until_the_history_has_been_read_new_subscribers_wait_too() {
    // No process listens at this port.
    let shared = shared(|hub| hub.store = "redis://127.0.0.1:1".parse().unwrap());
    let mut bench = Bench::new(&shared, 0);
    let new = bench.wait(3, "X: y");
    assert!(matches!(new.0.phase, HubPhase::CatchUp(_)), "{:?}", new.0.phase);
    wait_until("an answer", || {
        let is_woken = bench.commands() == [3];
        if !is_woken {
            bench.pump();
        }
        is_woken
    });
    let (_, response) = bench.wake(3, new);
    assert!(response.starts_with("HTTP/1.1 503 "), "{response}");
}

/// Regression: updates became too old only when another one was published, and a worker that read the log late kept
/// them longer.
#[test]
fn updates_become_too_old_in_quiet_times_too() {
    let shared = shared(|hub| hub.limits.history_age = Duration::from_secs(2));
    let mut early = Bench::new(&shared, 0);
    let mut late = Bench::new(&shared, 1);
    ["1", "2"].iter().for_each(|id| publish(&shared, id));
    early.pump();
    // The updates grow older, but stay far below the age, also on a busy machine.
    thread::sleep(Duration::from_millis(300));
    late.pump();
    // Now they are too old.
    thread::sleep(Duration::from_millis(1800));
    for bench in [&mut early, &mut late] {
        bench.wait(3, "Last-Event-ID: earliest");
        // The newest update stays, whatever its age.
        assert_eq!(ids(&bench.pump()), [(3, "2".to_owned())]);
    }
    assert_eq!(shared.statistics().history_updates, 2);
    early.hub.care_is_due = Some(care::CARE_INTERVAL);
    early.pump();
    assert_eq!(shared.statistics().history_updates, 1);
}

/// Regression: after a restart, the age of each update began anew.
#[test]
fn a_restart_makes_no_update_younger() {
    let directory = tempfile::tempdir().unwrap();
    let open = || shared(|hub| hub.store = HubStoreConfig::File(directory.path().join("history")));
    let former = open();
    publish(&former, "1");
    // The thread of the store has finished when it has no reference any more.
    wait_until("the update to be stored", || former.head() > 0 && Arc::strong_count(&former) == 1);
    drop(former);
    // The update grows older while no hub runs.
    thread::sleep(Duration::from_millis(1100));
    let shared = open();
    let log = shared::lock(&shared.log);
    let ages: Vec<_> = log.entries().map(|(.., at)| shared.now() - at).collect();
    assert!(matches!(ages[..], [age] if age >= Duration::from_secs(1)), "{ages:?}");
}

/// Regression: long polls did not count, and each address of an IPv6 network counted alone.
#[test]
fn long_polls_and_all_addresses_of_a_network_count() {
    let shared = shared(|hub| hub.limits.subscribers_per_address = 2);
    let mut bench = Bench::new(&shared, 0);
    for (fd, address) in
        [(3, "2001:db8::1"), (4, "2001:db8::2"), (5, "2001:db8::3"), (6, "2001:db8:0:1::1")]
    {
        bench.at(fd, address);
    }
    bench.wait(3, "X: y");
    let poll = bench.wait(4, "Prefer: wait=30");
    for field in ["X: y", "Prefer: wait=30"] {
        let response = bench.answer(5, field);
        assert!(response.starts_with("HTTP/1.1 429 "), "{response}");
    }
    bench.wait(6, "X: y");
    bench.cancel(4, poll);
    let poll = bench.wait(5, "Prefer: wait=30");
    publish(&shared, "1");
    bench.pump();
    let (_, response) = bench.wake(5, poll);
    assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    bench.wait(4, "X: y");
}

/// Regression: a long poll whose client had disconnected counted until its time was over.
#[test]
fn a_long_poll_ends_with_its_client() {
    let shared = shared(|hub| hub.limits.subscribers_per_address = 1);
    let mut bench = Bench::new(&shared, 0);
    bench.at(3, "192.0.2.1");
    bench.at(4, "192.0.2.1");
    let poll = bench.wait(3, "Prefer: wait=30");
    assert!(bench.answer(4, "Prefer: wait=30").starts_with("HTTP/1.1 429 "));
    let (flow, response) = bench.resume(3, poll, Event::ClientEnded);
    // The client may have closed its own side only.
    assert!(matches!(flow, Flow::Done) && response.starts_with("HTTP/1.1 204 "), "{response}");
    bench.wait(4, "Prefer: wait=30");
}

/// Regression: an upgrade dropped a subscriber if another connection had taken its place meanwhile.
#[test]
fn a_subscriber_that_is_handed_over_is_admitted_already() {
    let limit = |hub: &mut HubConfig| hub.limits.subscribers_per_address = 1;
    let (former, present) = (shared(limit), shared(limit));
    let mut old = Bench::new(&former, 0);
    let mut new = Bench::new(&present, 0);
    old.at(3, "192.0.2.1");
    [4, 5].into_iter().for_each(|fd| {
        new.at(fd, "192.0.2.1");
    });
    let number = old.stream(3, "X: y");
    new.wait(4, "X: y");
    *shared::lock(&former.transfer) = transfer::Transfer::Frozen;
    former.is_transferring.store(true, Ordering::Release);
    let state = old.hub.release_stream(number).unwrap();
    let Bench { hub, rules, worker, reactor, .. } = &mut new;
    let mut context = ServiceContext { rules, worker, reactor };
    let client = ClientId { fd: 6, generation: 1 };
    let number = hub.adopt_stream(&mut context, client, &state).expect("it is adopted");
    publish(&present, "1");
    let mut sent = ids(&new.pump());
    sent.sort();
    assert_eq!(sent, [(4, "1".to_owned()), (6, "1".to_owned())]);
    // Both count.
    new.hub.stream_has_ended(number);
    assert!(new.answer(5, "X: y").starts_with("HTTP/1.1 429 "));
}

/// Regression: the response to a poll without an identifier had none either, so that the client lost what was
/// published before its next poll.
#[test]
fn a_poll_that_has_no_update_yet_learns_where_to_continue() {
    let shared = shared(|_| ());
    let mut bench = Bench::new(&shared, 0);
    let named = |response: &str| {
        let line = response.lines().find_map(|line| line.strip_prefix("Mercure-Last-Event-ID: "));
        line.unwrap_or(response).to_owned()
    };
    let poll = |bench: &mut Bench, id: &str| {
        bench.answer(3, &format!("Prefer: wait=0\r\nLast-Event-ID: {id}"))
    };
    assert_eq!(named(&bench.answer(3, "Prefer: wait=0")), "earliest");
    publish(&shared, "1");
    let response = poll(&mut bench, "earliest");
    assert!(response.contains("\r\n\r\nid: 1\ndata: data of 1\n\n"), "{response}");
    // It names no update that the client may not read, and it does so after any number of them.
    for number in 0..2000 {
        publish_private(&shared, &format!("private {number}"));
    }
    assert_eq!(named(&bench.answer(3, "Prefer: wait=0")), "1");
    assert_eq!(named(&poll(&mut bench, "")), "1");
    let waiting = bench.wait(4, "Prefer: wait=30");
    publish(&shared, "2");
    publish(&shared, "3");
    bench.pump();
    let (_, response) = bench.wake(4, waiting);
    assert_eq!((named(&response), response.matches("\nid: ").count()), ("1".into(), 2));
    // A client that has named an update gets the confirmation of that one.
    assert_eq!(named(&poll(&mut bench, "3")), "3");
    let response = poll(&mut bench, "2");
    assert!(named(&response) == "2" && response.contains("\nid: 3\n"), "{response}");
}
