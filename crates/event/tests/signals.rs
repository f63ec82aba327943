//! Tests of properties that only signals have: the signal numbers, and the queue that can overflow.
//!
//! The queue's limit belongs to the process (and counts the signals queued for all processes of the
//! user), so these tests have a process of their own and run one after the other.

use pollux_event::{Error, Event, Interest, Mechanism, MechanismSpec, Token, registry};
use pollux_sys as sys;
use pollux_testkit::{Pair, drain, pairs::End, wait_until};
use std::{
    collections::HashMap,
    os::fd::{AsFd, OwnedFd},
    sync::{Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(20);

static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    pollux_testkit::raise_descriptor_limit();
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shortens the signal queue until it is dropped.
struct ShortQueue(u64);

impl ShortQueue {
    fn of(length: u64) -> Self {
        let (soft, _) = sys::signal_queue_limit().expect("RLIMIT_SIGPENDING");
        // Signals that are queued for other processes of this user count, too.
        let others = sys::queued_signals().expect("/proc/self/status");
        sys::set_signal_queue_limit(others + length).expect("lower the soft limit");
        Self(soft)
    }
}

impl Drop for ShortQueue {
    fn drop(&mut self) {
        sys::set_signal_queue_limit(self.0).expect("raise the soft limit again");
    }
}

fn on<V: registry::Visitor>(spec: &MechanismSpec, visitor: V) -> V::Output {
    registry::with_mechanism(&spec.name, visitor).expect("a name of the registry")
}

/// Every way to use signals; hybrids with their default options, and hybrids that switch at every
/// opportunity.
fn specs() -> Vec<MechanismSpec> {
    [
        "rtsig",
        "rtsig:dequeue=one",
        "rtsig:overflow=handoff",
        "rtsig:dequeue=one,overflow=handoff",
        "hybrid",
        "hybrid:partner=poll",
        "hybrid:high=8,low=1000000,dwell_ms=0",
        "hybrid:partner=poll,high=8,low=1000000,dwell_ms=0",
        "hybrid:high=64,low=64,dwell_ms=1",
        "hybrid:partner=devpoll",
        "hybrid:partner=devpoll,high=8,low=1000000,dwell_ms=0",
    ]
    .into_iter()
    .map(|spec| spec.parse().expect("a spec"))
    .filter(|spec| match registry::probe(spec) {
        // Only /dev/poll can be missing.
        Err(Error::Unavailable { mechanism: "devpoll", reason }) => {
            eprintln!("skipped: {spec}: {reason}");
            false
        }
        _ => true,
    })
    .collect()
}

fn figure<M: Mechanism>(set: &M, name: &str) -> u64 {
    let figures = set.statistics();
    let found = figures.iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no figure {name} in {figures:?}")).1
}

fn events<M: Mechanism>(set: &mut M, time: Duration) -> Vec<Event> {
    set.wait(Some(time)).expect("wait");
    std::iter::from_fn(|| set.next_event()).collect()
}

#[test]
fn what_a_partner_has_not_done_yet_is_counted_as_none() {
    struct Names(&'static str);
    impl registry::Visitor for Names {
        type Output = ();
        fn visit<M: Mechanism>(self) {
            let set = M::open(&self.0.parse::<MechanismSpec>().unwrap().options()).expect("open");
            for name in ["handed_over", "hand_over_ns", "partner_waits"] {
                assert_eq!(figure(&set, name), 0, "{}", self.0);
            }
        }
    }
    let _alone = alone();
    let spec = "rtsig:overflow=handoff";
    registry::with_mechanism("rtsig", Names(spec)).expect("rtsig");
}

#[test]
fn overflow_loses_nothing() {
    let _alone = alone();
    struct Burst<'a>(&'a MechanismSpec);
    impl registry::Visitor for Burst<'_> {
        type Output = ();
        fn visit<M: Mechanism>(self) {
            const COUNT: usize = 500;
            let mut set = M::open(&self.0.options()).expect("open");
            let waker = set.waker().expect("waker");
            let pairs: Vec<_> = (0..COUNT).map(|_| Pair::unix()).collect();
            let index: HashMap<Token, usize> = pairs
                .iter()
                .enumerate()
                .map(|(index, pair)| (set.add(pair.near.as_fd(), Interest::READ).unwrap(), index))
                .collect();
            assert_eq!(events(&mut set, Duration::from_millis(10)), []);
            let queue = ShortQueue::of(64);
            for round in 0..3 {
                pairs.iter().for_each(|pair| pair.send(b"x"));
                let mut missing = COUNT;
                let until = Instant::now() + PATIENCE;
                while missing > 0 {
                    assert!(Instant::now() < until, "{}: {missing} lost in {round}", self.0);
                    for event in events(&mut set, Duration::from_millis(100)) {
                        missing -= drain(&pairs[index[&event.token]].near).0;
                    }
                }
                // A wake-up for which the queue had no room.
                pairs.iter().for_each(|pair| pair.send(b"x"));
                waker.wake();
                set.wait(None).expect("wait");
                while let Some(event) = set.next_event() {
                    drain(&pairs[index[&event.token]].near);
                }
                for pair in &pairs {
                    drain(&pair.near);
                }
            }
            assert!(figure(&set, "overflows") > 0, "{}: the queue did not overflow", self.0);
            // After all that, with room in the queue again, the set works as a new one.
            drop(queue);
            let until = Instant::now() + PATIENCE;
            while !events(&mut set, Duration::ZERO).is_empty() {
                assert!(Instant::now() < until, "{}: no rest", self.0);
            }
            pairs[7].send(b"y");
            let mut received = 0;
            while received == 0 {
                assert!(Instant::now() < until, "{}: lost after the overflow", self.0);
                for event in events(&mut set, Duration::from_millis(100)) {
                    // An event of before may still arrive; it has no data then.
                    let index = index[&event.token];
                    let (count, _) = drain(&pairs[index].near);
                    assert!(count == 0 || index == 7, "{}: data at {index}", self.0);
                    received += count;
                }
            }
        }
    }
    for spec in specs() {
        on(&spec, Burst(&spec));
    }
}

/// If no partner thread can be started for `overflow=handoff`, the wait returns an error and signals
/// continue. Before, the set reported nothing from then on.
#[test]
fn an_overflow_without_a_partner_leaves_the_set_hearing() {
    let _alone = alone();
    struct Overflow(Vec<Pair>);
    impl registry::Visitor for Overflow {
        type Output = ();
        fn visit<M: Mechanism>(self) {
            let spec: MechanismSpec = "rtsig:overflow=handoff".parse().unwrap();
            let mut set = M::open(&spec.options()).expect("open");
            let add = |pair: &Pair| set.add(pair.near.as_fd(), Interest::READ).unwrap();
            let tokens: Vec<_> = self.0.iter().map(add).collect();
            assert_eq!(events(&mut set, Duration::from_millis(10)), []);
            {
                let _queue = ShortQueue::of(8);
                self.0.iter().for_each(|pair| pair.send(b"x"));
                let error = set.wait(Some(Duration::ZERO)).expect_err("no socket to a partner");
                assert_eq!(error.raw_os_error(), Some(libc::EMFILE), "{error}");
            }
            for round in 0..2 {
                let until = Instant::now() + PATIENCE;
                let mut missing: Vec<_> = tokens.clone();
                while !missing.is_empty() {
                    assert!(Instant::now() < until, "{} lost in {round}", missing.len());
                    for event in events(&mut set, Duration::from_millis(100)) {
                        let index = tokens.iter().position(|&token| token == event.token).unwrap();
                        drain(&self.0[index].near);
                        missing.retain(|&token| token != event.token);
                    }
                }
                self.0.iter().for_each(|pair| pair.send(b"y"));
            }
        }
    }
    let pairs = (0..100).map(|_| Pair::unix()).collect();
    pollux_testkit::denied(libc::SYS_socketpair, libc::EMFILE, || {
        registry::with_mechanism("rtsig", Overflow(pairs)).unwrap();
    });
}

/// Makes the signal queue overflow, so that a set with `overflow=handoff` hands `pairs`, all that it has,
/// over to its partner.
fn hand_over<M: Mechanism>(set: &mut M, pairs: &[Pair]) {
    assert_eq!(events(set, Duration::from_millis(10)), []);
    let _queue = ShortQueue::of(8);
    (0..100).for_each(|number| pairs[number % pairs.len()].send(b"x"));
    events(set, Duration::ZERO);
    assert_eq!(figure(set, "handed_over"), pairs.len() as u64);
}

/// With room for one event only, the partner once reported no event, and the wait never returned.
#[test]
fn a_partner_reports_one_event_at_a_time_beside_the_waker() {
    let _alone = alone();
    struct One;
    impl registry::Visitor for One {
        type Output = ();
        fn visit<M: Mechanism>(self) {
            let spec: MechanismSpec = "rtsig:overflow=handoff".parse().unwrap();
            let mut set = M::open(&spec.options().with_max_events(1)).expect("open");
            let waker = set.waker().expect("waker");
            let pairs: Vec<_> = (0..3).map(|_| Pair::unix()).collect();
            let add = |pair: &Pair| set.add(pair.near.as_fd(), Interest::READ).unwrap();
            let tokens: Vec<_> = pairs.iter().map(add).collect();
            hand_over(&mut set, &pairs);
            // All descriptors stay readable, and the waker is used at each wait: each of them must be
            // reported.
            let mut missing = tokens.clone();
            let until = Instant::now() + PATIENCE;
            while !missing.is_empty() {
                assert!(Instant::now() < until, "{missing:?} of {tokens:?} lost");
                waker.wake();
                let reported = events(&mut set, Duration::from_millis(100));
                assert!(reported.len() <= 1, "{reported:?}");
                missing.retain(|&token| reported.iter().all(|event| event.token != token));
            }
        }
    }
    registry::with_mechanism("rtsig", One).unwrap();
}

/// The partner's poll(2) accepts a file that is always ready, and would report it at every wait.
#[test]
fn a_file_is_refused_after_the_hand_over_too() {
    let _alone = alone();
    struct Add;
    impl registry::Visitor for Add {
        type Output = ();
        fn visit<M: Mechanism>(self) {
            let spec: MechanismSpec = "rtsig:overflow=handoff".parse().unwrap();
            let mut set = M::open(&spec.options()).expect("open");
            let pairs = [Pair::unix()];
            set.add(pairs[0].near.as_fd(), Interest::READ).unwrap();
            hand_over(&mut set, &pairs);
            for path in ["/dev/null", "/"] {
                let file = std::fs::File::open(path).expect(path);
                let error = set.add(file.as_fd(), Interest::READ).expect_err(path);
                assert!(matches!(error, Error::CannotWait { .. }), "{path}: {error}");
            }
            assert_eq!(set.len(), 1);
        }
    }
    registry::with_mechanism("rtsig", Add).unwrap();
}

/// A socket that becomes writable without write interest, as between two responses, ends no wait.
#[test]
fn room_without_interest_ends_no_wait() {
    struct Wait<'a>(&'a MechanismSpec);
    impl registry::Visitor for Wait<'_> {
        type Output = ();
        fn visit<M: Mechanism>(self) {
            const TIME: Duration = Duration::from_millis(100);
            let (mut set, pair) = (M::open(&self.0.options()).expect("open"), Pair::unix());
            let token = set.add(pair.near.as_fd(), Interest::WRITE).expect("add");
            assert_eq!(events(&mut set, PATIENCE).len(), 1, "{}", self.0);
            set.modify(token, Interest::READ).expect("modify");
            // This wait polls the modified descriptor; the next has nothing to poll.
            assert_eq!(events(&mut set, Duration::ZERO), [], "{}", self.0);
            rustix::io::write(&pair.near, b"a response").expect("write");
            drain(&pair.far);
            let started_at = Instant::now();
            assert_eq!(events(&mut set, TIME), [], "{}", self.0);
            let waited = started_at.elapsed();
            assert!(waited >= TIME, "{}: {waited:?}", self.0);
        }
    }
    let _alone = alone();
    for spec in specs() {
        on(&spec, Wait(&spec));
    }
}

/// Two sets of one thread share SIGIO: both recover, whichever of them takes it from the queue.
#[test]
fn overflow_concerns_every_set_of_the_thread() {
    let _alone = alone();
    struct Two;
    impl registry::Visitor for Two {
        type Output = ();
        fn visit<M: Mechanism>(self) {
            let spec: MechanismSpec = "rtsig".parse().unwrap();
            let mut sets = [(); 2].map(|()| M::open(&spec.options()).expect("open"));
            let pairs: Vec<_> = (0..200).map(|_| Pair::unix()).collect();
            for (index, pair) in pairs.iter().enumerate() {
                sets[index % 2].add(pair.near.as_fd(), Interest::READ).expect("add");
            }
            for set in &mut sets {
                assert_eq!(events(set, Duration::from_millis(10)), []);
            }
            let _queue = ShortQueue::of(8);
            pairs.iter().for_each(|pair| pair.send(b"x"));
            for set in &mut sets {
                let (mut seen, until) = (Vec::new(), Instant::now() + PATIENCE);
                while seen.len() < 100 {
                    assert!(Instant::now() < until, "only {} of 100", seen.len());
                    for event in events(set, Duration::from_millis(100)) {
                        if !seen.contains(&event.token) {
                            seen.push(event.token);
                        }
                    }
                }
                assert!(figure(set, "recoveries") > 0);
            }
        }
    }
    registry::with_mechanism("rtsig", Two).unwrap();
}

/// Opens the spec in a separate thread and keeps it open while `then` runs.
fn open_beside<T>(spec: &str, then: impl FnOnce(Result<(), Error>) -> T) -> T {
    struct Open<'a, T, F>(&'a MechanismSpec, F, std::marker::PhantomData<T>);
    impl<T, F: FnOnce(Result<(), Error>) -> T> registry::Visitor for Open<'_, T, F> {
        type Output = T;
        fn visit<M: Mechanism>(self) -> T {
            match M::open(&self.0.options()) {
                Ok(set) => {
                    let result = (self.1)(Ok(()));
                    drop(set);
                    result
                }
                Err(error) => (self.1)(Err(error)),
            }
        }
    }
    let spec: MechanismSpec = spec.parse().expect("a spec");
    on(&spec, Open(&spec, then, std::marker::PhantomData))
}

#[test]
fn a_number_that_is_taken_is_an_error() {
    let _alone = alone();
    let last = *sys::real_time_signals().end();
    let spec = format!("rtsig:signal={last}");
    open_beside(&spec, |first| {
        first.expect("the last real-time signal is free");
        // A second set of this thread cannot use the same signal; another thread's can.
        open_beside(&spec, |second| {
            let error = second.expect_err("taken").to_string();
            assert!(error.contains(&last.to_string()) && error.contains("in use"), "{error}");
        });
        thread::scope(|scope| {
            scope.spawn(|| open_beside(&spec, |other| other.expect("a queue of its own")));
        });
    });
    // A signal that has a handler is not taken from that handler.
    pollux_testkit::signals::handle(last - 1);
    open_beside(&format!("rtsig:signal={}", last - 1), |taken| {
        let error = taken.expect_err("handled").to_string();
        assert!(error.contains("handler"), "{error}");
    });
    for wrong in [1, 32, 33, 65] {
        open_beside(&format!("rtsig:signal={wrong}"), |wrong| {
            assert!(matches!(wrong, Err(Error::Spec(_))), "{wrong:?}");
        });
    }
    // As many sets can be opened as there are numbers, and no more.
    fn deeper(depth: usize) -> usize {
        assert!(depth < 64, "more sets than numbers");
        open_beside("rtsig", |opened| match opened {
            Ok(()) => deeper(depth + 1),
            Err(error) => {
                assert!(matches!(error, Error::Unavailable { .. }), "{error}");
                depth
            }
        })
    }
    let all = (last - sys::real_time_signals().start() + 1) as usize;
    assert_eq!(deeper(0), all - 1, "all but the one with a handler");
}

/// Signals that no set takes any more do no harm, regardless of their sender.
#[test]
fn a_dropped_set_leaves_no_danger() {
    let _alone = alone();
    let pair = Pair::unix();
    struct Arm<'a>(&'a Pair);
    impl registry::Visitor for Arm<'_> {
        type Output = ();
        fn visit<M: Mechanism>(self) {
            let spec: MechanismSpec = "rtsig".parse().unwrap();
            let mut set = M::open(&spec.options()).expect("open");
            set.add(self.0.near.as_fd(), Interest::READ).expect("add");
        }
    }
    registry::with_mechanism("rtsig", Arm(&pair)).unwrap();
    // The descriptor is still armed. The default action would end this process.
    pair.send(b"x");
    assert_eq!(drain(&pair.near), (1, End::WouldBlock));
}

/// The number of messages that a soak sends; POLLUX_SOAK_EVENTS=1000000 is the long form.
fn soak_events() -> u64 {
    let count = std::env::var("POLLUX_SOAK_EVENTS").ok();
    count.map_or(40_000, |text| text.parse().expect("POLLUX_SOAK_EVENTS: a number"))
}

const CONNECTIONS: usize = 2_000;
const QUEUE: u64 = 64;
const LAST: u32 = 1 << 31;

fn next_random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Sends numbered messages in bursts over all connections. Each connection ends after a while with a
/// marked last message; the other side opens another in its place.
fn send_bursts(mut fars: Vec<Option<(OwnedFd, u32)>>, fresh: mpsc::Receiver<(usize, OwnedFd)>) {
    let mut random = 0x9e37_79b9_7f4a_7c15;
    let mut left = soak_events();
    while left > 0 {
        // Small bursts are as frequent as large ones, up to 4,096 messages.
        let size = next_random(&mut random) % 13;
        let burst = 1 + next_random(&mut random) % (1 << size);
        for _ in 0..burst.min(left) {
            let index = next_random(&mut random) as usize % fars.len();
            let Some((far, sent)) = &mut fars[index] else { continue };
            let last = *sent >= 20 && next_random(&mut random).is_multiple_of(40);
            let message = (*sent | if last { LAST } else { 0 }).to_ne_bytes();
            // The buffer is full of messages that have not been read: this one is sent later.
            if rustix::io::write(&*far, &message).is_ok() {
                *sent += 1;
                left -= 1;
                if last {
                    fars[index] = None;
                }
            }
        }
        while let Ok((index, far)) = fresh.try_recv() {
            fars[index] = Some((far, 0));
        }
        // From time to time the sender pauses.
        if next_random(&mut random).is_multiple_of(4) {
            thread::sleep(Duration::from_millis(next_random(&mut random) % 8));
        }
    }
    for (far, sent) in fars.into_iter().flatten() {
        let message = (sent | LAST).to_ne_bytes();
        wait_until("room for the last message", || rustix::io::write(&far, &message).is_ok());
    }
}

struct Connection {
    near: OwnedFd,
    received: u32,
    ended: bool,
}

struct Soak<'a>(&'a MechanismSpec);

impl registry::Visitor for Soak<'_> {
    type Output = ();
    fn visit<M: Mechanism>(self) {
        let mut set = M::open(&self.0.options()).expect("open");
        let mut connections = HashMap::new();
        let mut places = HashMap::new();
        let mut fars = Vec::new();
        for index in 0..CONNECTIONS {
            let Pair { near, far } = Pair::unix();
            let token = set.add(near.as_fd(), Interest::READ).expect("add");
            connections.insert(token, Connection { near, received: 0, ended: false });
            places.insert(token, index);
            fars.push(Some((far, 0)));
        }
        let _queue = ShortQueue::of(QUEUE);
        let (offer, fresh) = mpsc::channel();
        let sender = thread::spawn(move || send_bursts(fars, fresh));
        let mut total = 0u64;
        let mut progress_at = Instant::now();
        while !connections.is_empty() {
            set.wait(Some(Duration::from_millis(50))).expect("wait");
            // Events are taken one at a time: a descriptor may be reported twice, and the first event
            // may end it.
            while let Some(event) = set.next_event() {
                let connection = connections.get_mut(&event.token).expect("a live one");
                let before = total;
                let closed = receive(connection, &mut total);
                if total > before {
                    progress_at = Instant::now();
                }
                if closed {
                    assert!(connection.ended, "{}: ended before its last message", self.0);
                    let connection = connections.remove(&event.token).expect("a live one");
                    set.close(event.token, connection.near).expect("close");
                    let index = places.remove(&event.token).expect("its place");
                    if total < soak_events() && !sender.is_finished() {
                        let Pair { near, far } = Pair::unix();
                        let token = set.add(near.as_fd(), Interest::READ).expect("add");
                        connections.insert(token, Connection { near, received: 0, ended: false });
                        places.insert(token, index);
                        // After its end the sender drops new connections: the receiver sees the end of
                        // the stream.
                        let _ = offer.send((index, far));
                    }
                    progress_at = Instant::now();
                }
            }
            assert!(
                progress_at.elapsed() < PATIENCE,
                "{}: {total} messages came, {} connections are stuck; {:?}",
                self.0,
                connections.len(),
                set.statistics()
            );
        }
        sender.join().expect("the sender");
        assert!(total >= soak_events());
        let figures = set.statistics();
        println!("{}: {total} messages, {figures:?}", self.0);
        assert!(figure(&set, "overflows") > 0, "{}: the queue did not overflow", self.0);
    }
}

/// Reads all available messages and checks their order; true at the end of the stream.
fn receive(connection: &mut Connection, total: &mut u64) -> bool {
    let mut buffer = [0; 4096];
    loop {
        match rustix::io::read(&connection.near, &mut buffer) {
            Ok(0) => {
                // A connection that was opened after the sender's end received no message.
                connection.ended |= connection.received == 0;
                return true;
            }
            Ok(taken) => {
                for message in buffer[..taken].chunks_exact(4) {
                    let number = u32::from_ne_bytes(message.try_into().expect("4 bytes"));
                    assert!(!connection.ended, "a message after the last");
                    assert_eq!(number & !LAST, connection.received, "lost or out of order");
                    connection.received += 1;
                    connection.ended = number & LAST != 0;
                    *total += 1;
                }
            }
            Err(rustix::io::Errno::AGAIN) => return false,
            Err(error) => panic!("read: {error}"),
        }
    }
}

#[test]
fn soak_over_two_thousand_connections() {
    let _alone = alone();
    pollux_testkit::with_descriptors(2 * CONNECTIONS as u64 + 100).expect("descriptors");
    for spec in specs() {
        on(&spec, Soak(&spec));
    }
}
