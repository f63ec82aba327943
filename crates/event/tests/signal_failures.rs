//! What sets told of by signals leave behind where a descriptor is not to be had. The limit on them
//! is a process's, so each test has a process of its own.

use pollux_event::{Error, Mechanism, MechanismSpec, registry};
use pollux_sys as sys;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Runs `body` while no further descriptor is to be had.
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

/// A set that cannot be opened takes no signal: it did for the life of the thread, and after some
/// thirty attempts none was left.
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
