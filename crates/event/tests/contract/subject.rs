//! The subject of a test (a mechanism with its options), and the test itself (a case).

use crate::fixture::BROKEN_SILENCE;
use libtest_mimic::{Completion, Failed, Trial};
use pollux_event::{Capabilities, Description, Error, MechanismSpec, Options, registry};
use std::{sync::Arc, sync::mpsc, thread, time::Duration};

/// The longest time of one case before it counts as hung: a lost event causes a wait without end.
/// Generous, since machines that run tests are loaded.
const TIME: Duration = Duration::from_secs(120);

/// The most combinations of own options with which one mechanism is tested.
const MOST_COMBINATIONS: usize = 32;

/// The maximum number of attempts of a case that got an event where it expected none. With edges, one
/// arrival may be reported twice. This happens on a loaded machine, where interrupt work is deferred:
/// an arrival that the scan found is then reported a second time. A real fault of a mechanism occurs
/// each time.
const TRIES: u32 = 3;

/// Numbers with which a mechanism takes paths that it does not take by default: a hybrid that switches
/// at every opportunity, one that stays with its partner, both with each partner.
const BESIDES: &[&str] = &[
    "hybrid:high=1,low=1000000,dwell_ms=0",
    "hybrid:high=1,low=0,dwell_ms=86400000",
    "hybrid:high=1,low=1000000,dwell_ms=0,partner=poll",
    "hybrid:high=1,low=0,dwell_ms=86400000,partner=poll",
    "hybrid:high=1,low=1000000,dwell_ms=0,partner=devpoll",
    "hybrid:high=1,low=0,dwell_ms=86400000,partner=devpoll",
];

/// select(2) with bitmaps for more descriptors than the C library's hold.
const WIDE_SELECT: &str = "select:descriptors=1048576";

/// A mechanism with one combination of its options.
#[derive(Debug)]
pub struct Subject {
    pub spec: MechanismSpec,
    pub capabilities: Capabilities,
    /// It switches at every opportunity, and then reports ready descriptors again.
    pub restless: bool,
    /// The reason why this kernel lacks it, if it does.
    unavailable: Option<String>,
}

impl Subject {
    fn new(spec: MechanismSpec) -> Self {
        let unavailable = match registry::probe(&spec) {
            Ok(()) => None,
            // Only an `Unavailable` error is a reason to skip; the cases must show any other error.
            Err(Error::Unavailable { reason, .. }) => Some(reason),
            Err(_) => None,
        };
        let capabilities = registry::capabilities(&spec).expect("the name is from the registry");
        Self { spec, capabilities, restless: false, unavailable }
    }

    /// The mechanism with no options given.
    pub fn of(description: &Description) -> Self {
        let spec = MechanismSpec { name: description.name.into(), own: Default::default() };
        Self::new(spec)
    }

    pub fn has(&self, capability: Capabilities) -> bool {
        self.capabilities.contains(capability)
    }

    pub fn is_edge(&self) -> bool {
        self.has(Capabilities::EDGE)
    }

    pub fn options(&self) -> Options {
        self.spec.options()
    }

    /// The last part of the test's name: `epoll_et`, `devpoll_results_mmap`.
    fn label(&self) -> String {
        self.spec.to_string().replace(|c: char| !c.is_ascii_alphanumeric(), "_")
    }
}

/// Every mechanism of the registry, in every combination of those options that name their values.
/// A default is left out of the spec, so that the plain name is tested too.
pub fn all() -> Vec<Arc<Subject>> {
    let mut subjects = Vec::new();
    for description in registry::ALL {
        let plain = MechanismSpec { name: description.name.into(), own: Default::default() };
        let mut specs = vec![plain];
        for (key, values, _) in description.own_options {
            for spec in specs.clone() {
                for value in values.iter().skip(1) {
                    let mut spec = spec.clone();
                    spec.own.insert((*key).into(), (*value).into());
                    specs.push(spec);
                }
            }
        }
        assert!(specs.len() <= MOST_COMBINATIONS, "{}: {specs:?}", description.name);
        subjects.extend(specs.into_iter().map(|spec| Arc::new(Subject::new(spec))));
    }
    subjects.push(Arc::new(Subject::new(WIDE_SELECT.parse().expect("a spec of the registry"))));
    let besides = BESIDES.iter().map(|spec| spec.parse().expect("a spec of the registry"));
    subjects.extend(besides.map(|spec| Arc::new(Subject { restless: true, ..Subject::new(spec) })));
    subjects
}

/// The result of a case that did not panic.
pub enum Outcome {
    Passed,
    /// Not applicable after all, with the reason.
    Skipped(String),
}

impl From<()> for Outcome {
    fn from((): ()) -> Self {
        Self::Passed
    }
}

impl From<Result<(), String>> for Outcome {
    fn from(result: Result<(), String>) -> Self {
        result.map_or_else(Self::Skipped, Self::from)
    }
}

pub type Run = fn(&Subject) -> Outcome;

/// One case, for any mechanism.
#[derive(Clone, Copy)]
pub struct Case {
    pub name: &'static str,
    /// Whether mechanisms with these capabilities are to be tested; otherwise the reason why not.
    pub applies: fn(Capabilities) -> Result<(), &'static str>,
    pub run: Run,
}

impl Case {
    /// The case for this subject, for the harness.
    pub fn trial(self, subject: &Arc<Subject>) -> Trial {
        let subject = subject.clone();
        let name = format!("contract::{}::{}", self.name, subject.label());
        Trial::ignorable_test(name, move || {
            if let Err(reason) = (self.applies)(subject.capabilities) {
                return Ok(Completion::ignored_with(reason));
            }
            if let Some(reason) = &subject.unavailable {
                return Ok(Completion::ignored_with(reason));
            }
            let mut outcome = self.within_time(&subject);
            for _ in 1..TRIES {
                match &outcome {
                    Err(failed) if subject.is_edge() && is_broken_silence(failed) => {}
                    _ => break,
                }
                outcome = self.within_time(&subject);
            }
            match outcome? {
                Outcome::Passed => Ok(Completion::Completed),
                Outcome::Skipped(reason) => Ok(Completion::ignored_with(reason)),
            }
        })
    }

    /// Runs the case in a thread of its own; a case that hangs is reported, and its thread is left
    /// running.
    fn within_time(self, subject: &Arc<Subject>) -> Result<Outcome, Failed> {
        let (done, finished) = mpsc::channel();
        let subject = subject.clone();
        let thread = thread::Builder::new().name(self.name.into()).spawn(move || {
            let outcome = (self.run)(&subject);
            let _ = done.send(());
            outcome
        })?;
        if let Err(mpsc::RecvTimeoutError::Timeout) = finished.recv_timeout(TIME) {
            return Err(format!("hung: not done after {TIME:?}").into());
        }
        thread.join().map_err(|panic| {
            let message = panic
                .downcast_ref::<String>()
                .cloned()
                .or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string()));
            Failed::from(message.unwrap_or_else(|| "panicked".into()))
        })
    }
}

fn is_broken_silence(failed: &Failed) -> bool {
    failed.message().is_some_and(|message| message.starts_with(BROKEN_SILENCE))
}
