//! Tests of the hybrid's switches, each forced separately. (The soak in `signals.rs` tests that no
//! event is lost under load and churn; the contract suite tests the contract in both modes.)
//!
//! The limit of the signal queue belongs to the process, so these tests run one after the other.

use pollux_event::{
    Event, Interest, Mechanism, MechanismSpec, Token, mechanism::signals::Hybrid, registry,
};
use pollux_sys as sys;
use pollux_testkit::{Pair, drain};
use std::{
    collections::HashMap,
    os::fd::{AsFd, AsRawFd},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

const PATIENCE: Duration = Duration::from_secs(20);

static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    pollux_testkit::raise_descriptor_limit();
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A hybrid with connections.
struct Fixture {
    set: Hybrid,
    pairs: Vec<Pair>,
    index: HashMap<Token, usize>,
}

impl Fixture {
    fn new(spec: &str, count: usize) -> Self {
        let spec: MechanismSpec = spec.parse().expect("a spec");
        let mut set = Hybrid::open(&spec.options()).expect("open");
        let pairs: Vec<_> = (0..count).map(|_| Pair::unix()).collect();
        let mut index = HashMap::new();
        for (number, pair) in pairs.iter().enumerate() {
            let token = set.add(pair.near.as_fd(), Interest::READ).expect("add");
            index.insert(token, number);
        }
        let mut fixture = Self { set, pairs, index };
        // The first wait polls all added descriptors, which may take a slow machine longer than any
        // timeout; so only the second wait certainly waits for signals.
        for time in [Duration::ZERO, Duration::from_millis(10)] {
            assert_eq!(fixture.events(time), []);
        }
        fixture
    }

    fn figure(&self, name: &str) -> u64 {
        let figures = self.set.statistics();
        figures.iter().find(|(known, _)| *known == name).expect("a figure of this name").1
    }

    fn is_on_partner(&self) -> bool {
        self.figure("on_partner") == 1
    }

    fn events(&mut self, time: Duration) -> Vec<Event> {
        self.set.wait(Some(time)).expect("wait");
        std::iter::from_fn(|| self.set.next_event()).collect()
    }

    fn send_to(&self, numbers: impl Iterator<Item = usize>) -> usize {
        numbers.map(|number| self.pairs[number].send(b"x")).count()
    }

    /// Reads until `bytes` bytes have arrived.
    fn receive(&mut self, mut bytes: usize) {
        let until = Instant::now() + PATIENCE;
        while bytes > 0 {
            assert!(Instant::now() < until, "{bytes} lost; {:?}", self.set.statistics());
            for event in self.events(Duration::from_millis(50)) {
                bytes -= drain(&self.pairs[self.index[&event.token]].near).0;
            }
        }
    }

    /// Makes the partner take over by the high-water mark, and reads everything.
    fn load(&mut self) {
        let bytes = self.send_to(0..self.pairs.len());
        self.receive(bytes);
        assert!(self.is_on_partner(), "{:?}", self.set.statistics());
    }

    /// Waits until signals have taken over again.
    fn rest(&mut self) {
        let until = Instant::now() + PATIENCE;
        while self.is_on_partner() {
            assert!(Instant::now() < until, "no way back; {:?}", self.set.statistics());
            assert_eq!(self.events(Duration::from_millis(20)), []);
        }
    }
}

/// Shortens the signal queue until it is dropped.
struct ShortQueue(u64);

impl ShortQueue {
    fn of(length: u64) -> Self {
        let (soft, _) = sys::signal_queue_limit().expect("RLIMIT_SIGPENDING");
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

/// The partners that this kernel has; prints which it lacks.
fn partners() -> Vec<&'static str> {
    let there = |partner: &&str| {
        let spec: MechanismSpec = format!("hybrid:partner={partner}").parse().expect("a spec");
        registry::probe(&spec).inspect_err(|error| eprintln!("skipped: {spec}: {error}")).is_ok()
    };
    let partners: Vec<_> = ["epoll", "poll", "devpoll"].into_iter().filter(there).collect();
    assert!(partners.len() >= 2, "every kernel has epoll and poll: {partners:?}");
    partners
}

#[test]
fn it_starts_with_signals_and_stays_there_when_quiet() {
    let _alone = alone();
    for partner in partners() {
        let mut fixture = Fixture::new(&format!("hybrid:partner={partner}"), 50);
        for round in 0..20 {
            let bytes = fixture.send_to(round..round + 10);
            fixture.receive(bytes);
        }
        assert_eq!(fixture.figure("switches_to_partner"), 0, "{partner}");
        assert!(fixture.figure("signals") >= 200, "{partner}");
    }
}

#[test]
fn the_high_water_mark_brings_the_partner_in() {
    let _alone = alone();
    for partner in partners() {
        let mut fixture = Fixture::new(&format!("hybrid:partner={partner},high=100"), 500);
        let bytes = fixture.send_to(0..60);
        fixture.receive(bytes);
        assert!(!fixture.is_on_partner(), "{partner}: below the mark");
        fixture.load();
        assert_eq!(fixture.figure("switches_to_partner"), 1, "{partner}");
        assert_eq!(fixture.figure("switches_by_overflow"), 0, "{partner}");
    }
}

#[test]
fn overflow_brings_the_partner_in() {
    let _alone = alone();
    for partner in partners() {
        let spec = format!("hybrid:partner={partner},high=1000000,dwell_ms=60000");
        let mut fixture = Fixture::new(&spec, 500);
        let _queue = ShortQueue::of(16);
        let bytes = fixture.send_to(0..500);
        fixture.receive(bytes);
        assert!(fixture.is_on_partner(), "{partner}");
        assert_eq!(fixture.figure("switches_by_overflow"), 1, "{partner}");
    }
}

/// With the partner, nothing is queued: a byte sent during that time never causes a signal later.
#[test]
fn it_returns_to_signals_when_quiet() {
    let _alone = alone();
    for partner in partners() {
        let mut fixture =
            Fixture::new(&format!("hybrid:partner={partner},high=100,dwell_ms=50"), 500);
        fixture.load();
        let taken = fixture.figure("signals");
        let bytes = fixture.send_to(0..500);
        fixture.receive(bytes);
        fixture.rest();
        assert_eq!(fixture.figure("switches_to_signals"), 1, "{partner}");
        assert_eq!(fixture.figure("signals"), taken, "{partner}: signals of the partner's time");
        let bytes = fixture.send_to(3..4);
        fixture.receive(bytes);
        assert!(fixture.figure("signals") > taken, "{partner}: not by a signal");
        assert!(fixture.figure("on_partner_ns") >= 50_000_000, "{partner}: the dwell");
    }
}

/// A wait without a timeout must not keep the hybrid with the partner.
#[test]
fn it_returns_within_one_long_wait() {
    let _alone = alone();
    let mut fixture = Fixture::new("hybrid:high=100,dwell_ms=20", 300);
    fixture.load();
    assert_eq!(fixture.events(Duration::from_millis(500)), []);
    assert!(!fixture.is_on_partner(), "{:?}", fixture.set.statistics());
}

#[test]
fn it_stays_with_the_partner_while_load_lasts() {
    let _alone = alone();
    let mut fixture = Fixture::new("hybrid:high=100,low=8,dwell_ms=1", 300);
    fixture.load();
    for _ in 0..50 {
        let bytes = fixture.send_to(0..50);
        // All at once: one wait finds more events than the low-water mark.
        fixture.receive(bytes);
    }
    // The machine may have paused this thread between two waits, but not fifty times.
    assert!(fixture.figure("switches_to_signals") <= 5, "{:?}", fixture.set.statistics());
}

/// If load returns soon after a switch back, each stay is twice as long as the previous one, up to
/// eight times the first.
#[test]
fn a_relapse_makes_it_slower_to_return() {
    let _alone = alone();
    let mut fixture = Fixture::new("hybrid:high=50,dwell_ms=10", 300);
    let mut stays = Vec::new();
    for _ in 0..6 {
        fixture.load();
        stays.push(fixture.figure("stay_ms"));
        fixture.rest();
    }
    // Each stay may also have the first length, if the machine paused this process for long.
    assert_eq!(stays[0], 10);
    for pair in stays.windows(2) {
        assert!(pair[1] == (pair[0] * 2).min(80) || pair[1] == 10, "{stays:?}");
    }
    assert!(stays.contains(&20), "{stays:?}");
}

/// System calls of a wait that switches to the partner, finds it idle, and switches back to signals.
fn calls_to_switch_twice(count: usize) -> u64 {
    let mut fixture = Fixture::new("hybrid:high=1,low=1000000,dwell_ms=0", count);
    fixture.send_to(0..1);
    // The wait after one that found the queue empty takes one signal, and does not notice that the
    // queue is empty again.
    assert_eq!(fixture.events(PATIENCE).len(), 1);
    drain(&fixture.pairs[0].near);
    let before = sys::counters();
    assert_eq!(fixture.events(Duration::ZERO), []);
    let calls = sys::counters().since(&before).total();
    let (there, back) =
        (fixture.figure("switches_to_partner"), fixture.figure("switches_to_signals"));
    assert_eq!((there, back), (1, 1), "{:?}", fixture.set.statistics());
    calls
}

#[test]
fn a_switch_costs_the_same_however_many_are_registered() {
    let _alone = alone();
    let few = calls_to_switch_twice(10);
    assert_eq!(few, calls_to_switch_twice(3_000));
    // Two mask changes, the old SIGIO, two calls of the partner, one of the signals.
    assert!(few <= 6, "{few}");
}

/// Under load no descriptor is armed for signals. A connection that is still open when the load ends is
/// armed before the switch, and a signal then reports it.
#[test]
fn a_connection_accepted_under_load_is_armed_when_it_is_quiet() {
    let _alone = alone();
    for partner in partners() {
        let mut fixture =
            Fixture::new(&format!("hybrid:partner={partner},high=100,dwell_ms=2000"), 300);
        fixture.load();
        let before = sys::counters();
        for round in 0..3 {
            // The descriptors of the first two rounds are closed again, and their numbers are reused.
            for _ in 0..1_000 {
                let pair = Pair::unix();
                let token = fixture.set.add(pair.near.as_fd(), Interest::READ).expect("add");
                fixture.index.insert(token, fixture.pairs.len());
                fixture.pairs.push(pair);
            }
            let bytes = fixture.send_to(300..1_300);
            fixture.receive(bytes);
            if round < 2 {
                for pair in fixture.pairs.split_off(300) {
                    let Pair { near, far } = pair;
                    let gone = |(token, _): &(&Token, &usize)| token.fd == near.as_raw_fd();
                    let (&token, _) = fixture.index.iter().find(gone).expect("its token");
                    fixture.index.remove(&token);
                    fixture.set.close(token, near).expect("close");
                    drop(far);
                }
            }
        }
        let calls = sys::counters().since(&before);
        assert!(fixture.is_on_partner(), "{partner}: it was to stay for this test");
        assert_eq!(calls.of(sys::Call::Fcntl), 0, "{partner}: armed under load");
        fixture.rest();
        let taken = fixture.figure("signals");
        let bytes = fixture.send_to(1_299..1_300);
        fixture.receive(bytes);
        assert!(fixture.figure("signals") > taken, "{partner}: not by a signal");
        assert!(!fixture.is_on_partner(), "{partner}");
        for number in 0..fixture.pairs.len() {
            let bytes = fixture.send_to(number..number + 1);
            fixture.receive(bytes);
        }
    }
}

fn is_armed(pair: &Pair) -> bool {
    // The rustix library knows only flags that POSIX has; O_ASYNC is not one of them.
    let flags = rustix::fs::fcntl_getfl(&pair.near).expect("F_GETFL").bits();
    flags & libc::O_ASYNC as u32 != 0
}

/// A listener is the usual case: the kernel would look up a process to signal for each connection.
#[test]
fn a_frequent_descriptor_is_disarmed_until_it_is_quiet() {
    let _alone = alone();
    for partner in partners() {
        let mut fixture =
            Fixture::new(&format!("hybrid:partner={partner},high=100,dwell_ms=1500"), 300);
        assert!(is_armed(&fixture.pairs[7]), "{partner}");
        fixture.load();
        let hot = *fixture.index.iter().find(|(_, number)| **number == 7).expect("its token").0;
        for round in 0..20 {
            let bytes = fixture.send_to(7..8);
            fixture.receive(bytes);
            // The interest is modified, regardless of the present mode.
            let interest = if round % 2 == 0 { Interest::all() } else { Interest::READ };
            fixture.set.modify(hot, interest).expect("modify");
        }
        assert!(fixture.is_on_partner(), "{partner}: it was to stay for this test");
        assert_eq!(fixture.figure("disarmed"), 1, "{partner}: {:?}", fixture.set.statistics());
        assert!(!is_armed(&fixture.pairs[7]) && is_armed(&fixture.pairs[8]), "{partner}");
        while fixture.is_on_partner() {
            // The last interest is in reading, and there is no input.
            assert_eq!(fixture.events(Duration::from_millis(20)), [], "{partner}");
        }
        assert!(is_armed(&fixture.pairs[7]), "{partner}");
        let taken = fixture.figure("signals");
        for number in 0..300 {
            let bytes = fixture.send_to(number..number + 1);
            fixture.receive(bytes);
        }
        assert!(fixture.figure("signals") >= taken + 300, "{partner}: not by signals");
    }
}

/// The number of a descriptor that was disarmed and closed may belong to another descriptor.
#[test]
fn a_disarmed_number_used_again_is_reported() {
    let _alone = alone();
    for partner in partners() {
        for closes in [true, false] {
            let spec = format!("hybrid:partner={partner},high=100,dwell_ms=300");
            let mut fixture = Fixture::new(&spec, 300);
            fixture.load();
            for _ in 0..10 {
                let bytes = fixture.send_to(299..300);
                fixture.receive(bytes);
            }
            assert_eq!(fixture.figure("disarmed"), 1, "{partner}");
            let token = *fixture.index.iter().find(|(_, number)| **number == 299).expect("there").0;
            fixture.set.modify(token, Interest::READ).expect("modify");
            let Pair { near, far } = fixture.pairs.pop().expect("the last");
            fixture.index.remove(&token);
            if closes {
                fixture.set.close(token, near).expect("close");
            } else {
                fixture.set.remove(token).expect("remove");
                drop(near);
            }
            drop(far);
            fixture.rest();
            let pair = Pair::unix();
            let anew = fixture.set.add(pair.near.as_fd(), Interest::READ).expect("add");
            fixture.index.insert(anew, 299);
            fixture.pairs.push(pair);
            let bytes = fixture.send_to(0..300);
            fixture.receive(bytes);
        }
    }
}

/// An eventfd sends no signals: a set that contains one uses the partner.
#[test]
fn what_sends_no_signals_is_the_partners() {
    let _alone = alone();
    for partner in partners() {
        for under_load in [false, true] {
            let spec = format!("hybrid:partner={partner},high=100,dwell_ms=50");
            let mut fixture = Fixture::new(&spec, 300);
            if under_load {
                fixture.load();
            }
            let eventfd = pollux_testkit::pairs::eventfd();
            let token = fixture.set.add(eventfd.as_fd(), Interest::READ).expect("add");
            // Several times as long as a stay.
            let until = Instant::now() + Duration::from_millis(1_000);
            while Instant::now() < until {
                assert_eq!(fixture.events(Duration::from_millis(100)), [], "{partner}");
            }
            assert!(fixture.is_on_partner(), "{partner}: {:?}", fixture.set.statistics());
            assert_eq!(fixture.figure("unsupported"), 1, "{partner}");
            rustix::io::write(&eventfd, &1u64.to_ne_bytes()).expect("written");
            let events = fixture.events(PATIENCE);
            assert!(events.iter().all(|event| event.token == token), "{partner}: {events:?}");
            assert_eq!(events.len(), 1, "{partner}");
            drain(&eventfd);
            let bytes = fixture.send_to(0..300);
            fixture.receive(bytes);
            fixture.set.remove(token).expect("remove");
            fixture.rest();
            let bytes = fixture.send_to(0..300);
            fixture.receive(bytes);
        }
    }
}

/// Signals overflow while the partner is being drained during the switch back.
#[test]
fn overflow_during_the_return() {
    let _alone = alone();
    let mut overflowed = 0;
    for partner in partners() {
        for _ in 0..10 {
            let spec = format!("hybrid:partner={partner},high=50,low=1000000,dwell_ms=0");
            let mut fixture = Fixture::new(&spec, 600);
            let _queue = ShortQueue::of(32);
            let mut bytes = fixture.send_to(0..600);
            // Takes a few events at a time and sends more in each iteration, in either mode.
            let until = Instant::now() + PATIENCE;
            let mut round = 0;
            while bytes > 0 {
                assert!(Instant::now() < until, "{bytes} lost; {:?}", fixture.set.statistics());
                fixture.set.wait(Some(Duration::from_millis(50))).expect("wait");
                if round < 40 {
                    bytes +=
                        fixture.send_to((round * 10..round * 10 + 200).map(|number| number % 600));
                    round += 1;
                }
                while let Some(event) = fixture.set.next_event() {
                    bytes -= drain(&fixture.pairs[fixture.index[&event.token]].near).0;
                }
            }
            overflowed += fixture.figure("switches_by_overflow");
            assert!(fixture.figure("switches_to_signals") > 0, "{:?}", fixture.set.statistics());
        }
    }
    assert!(overflowed > 20, "only {overflowed} overflows");
}

/// No thread waits with the partner while signals are in use: the changes that /dev/poll gathers for
/// its next wait are sent before they exceed a batch, so that a switch sends at most one batch.
#[test]
fn a_partner_that_gathers_keeps_up() {
    let _alone = alone();
    if !partners().contains(&"devpoll") {
        return;
    }
    let writes = |fixture: &mut Fixture| {
        let before = sys::counters();
        assert_eq!(fixture.events(Duration::ZERO), []);
        sys::counters().since(&before).of(sys::Call::Write)
    };
    let mut fixture = Fixture::new("hybrid:partner=devpoll", 0);
    let mut pairs = Vec::new();
    for (added, expected) in [(1000, 0), (24, 1), (1000, 0), (2000, 3)] {
        for _ in 0..added {
            let pair = Pair::unix();
            fixture.set.add(pair.near.as_fd(), Interest::READ).expect("add");
            pairs.push(pair);
        }
        assert_eq!(writes(&mut fixture), expected, "with {} registered", pairs.len());
    }
    assert!(!fixture.is_on_partner());
}
