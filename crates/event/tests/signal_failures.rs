//! The state of signal-driven sets after a descriptor could not be opened. The limit on descriptors
//! belongs to a process, so each test has a process of its own.

use pollux_event::{Error, Interest, Mechanism, MechanismSpec, registry};
use pollux_sys as sys;
use pollux_testkit::Pair;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{os::fd::AsFd, time::Duration};

const PATIENCE: Duration = Duration::from_secs(20);

/// Runs `body` while no further descriptor is available.
fn without_descriptors<T>(body: impl FnOnce() -> T) -> T {
    let limit = getrlimit(Resource::Nofile);
    let none_more = Rlimit { current: Some(0), maximum: limit.maximum };
    setrlimit(Resource::Nofile, none_more).expect("lower the soft limit");
    let result = body();
    setrlimit(Resource::Nofile, limit).expect("raise the soft limit again");
    result
}

/// The signals that this thread blocks.
fn blocked() -> String {
    format!("{:?}", sys::SignalSet::blocked())
}

struct Open<'a>(&'a MechanismSpec);

impl registry::Visitor for Open<'_> {
    type Output = Result<(), Error>;
    fn visit<M: Mechanism>(self) -> Result<(), Error> {
        M::open(&self.0.options()).map(drop)
    }
}

fn open(spec: &MechanismSpec) -> Result<(), Error> {
    registry::with_mechanism(&spec.name, Open(spec)).expect("a name of the registry")
}

/// A set that cannot be opened claims no signal. Once the signal stayed claimed until the thread ended,
/// and after about thirty attempts none was left.
#[test]
fn a_failed_open_takes_no_signal() {
    pollux_testkit::in_child(|| {
        let before = blocked();
        for spec in ["rtsig", "rtsig:dequeue=one", "hybrid"] {
            let spec: MechanismSpec = spec.parse().unwrap();
            without_descriptors(|| {
                for attempt in 0..100 {
                    let error = open(&spec).expect_err("no descriptor is to be had");
                    let number = error.raw_os_error();
                    assert_eq!(number, Some(libc::EMFILE), "{spec}, {attempt}: {error}");
                    assert_eq!(blocked(), before, "{spec}, {attempt}: a signal is blocked");
                }
            });
            open(&spec).expect("open");
            assert_eq!(blocked(), before, "{spec}");
        }
    });
}

/// Whether its events send signals (fcntl(2), F_GETFL).
fn sends_signals(pair: &Pair) -> bool {
    let flags = rustix::fs::fcntl_getfl(&pair.near).expect("F_GETFL");
    flags.bits() & libc::O_ASYNC as u32 != 0
}

/// A descriptor that cannot be watched for writability is not in the set, and must send no signals to
/// it. When it can be watched, it is added.
#[test]
fn a_descriptor_that_cannot_be_watched_for_room_is_not_armed() {
    struct Add<'a>(&'a Pair);
    impl registry::Visitor for Add<'_> {
        type Output = ();
        fn visit<M: Mechanism>(self) {
            let spec: MechanismSpec = "rtsig".parse().unwrap();
            let mut set = M::open(&spec.options()).expect("open");
            let token = without_descriptors(|| {
                let added = set.add(self.0.near.as_fd(), Interest::WRITE);
                let error = added.expect_err("no epoll set is to be had");
                assert_eq!(error.raw_os_error(), Some(libc::EMFILE), "{error}");
                assert!(!sends_signals(self.0), "armed, and in no set");
                assert_eq!(set.len(), 0);
                // The number is not mistaken for a descriptor that needs no watching.
                let token = set.add(self.0.near.as_fd(), Interest::READ).expect("add");
                set.modify(token, Interest::WRITE).expect_err("no epoll set is to be had");
                token
            });
            let before = sys::counters().of(sys::Call::EpollCtl);
            set.modify(token, Interest::WRITE).expect("modify");
            let calls = sys::counters().of(sys::Call::EpollCtl) - before;
            assert_eq!(calls, 1, "it is watched for room");
            set.wait(Some(PATIENCE)).expect("wait");
            let event = set.next_event().expect("an event");
            assert!(event.token == token && event.readiness.is_writable());
        }
    }
    pollux_testkit::in_child(|| {
        registry::with_mechanism("rtsig", Add(&Pair::unix())).unwrap();
    });
}
