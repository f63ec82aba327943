//! Checks that the table's text and the option types agree.

use super::*;
#[cfg(feature = "io_uring")]
use crate::mechanism::uring_poll::{TaskWork, UringPollOptions};
use crate::{
    Capabilities, Mechanism,
    mechanism::{
        devpoll::{DevPoll, DevPollOptions, Results, Scan, Update},
        poll::{Poll, PollOptions},
        select::{Select, SelectOptions},
        signals::{Dequeue, Hybrid, HybridOptions, Overflow, Partner, RtSignals, RtSignalsOptions},
    },
    registry,
};
use std::time::Duration;

/// Converts each value of each option in the table to text and back; returns the number of options.
fn agrees<Own: OwnOptions>() -> usize {
    let description = registry::find(Own::MECHANISM).unwrap();
    let name = description.name;
    assert_eq!(MechanismSpec::from(Own::default()).to_string(), name);
    for (key, values, _) in description.own_options {
        // A default value is not written. A number without a default value is.
        let default = values.first();
        for value in if values.is_empty() { &["40"] } else { *values } {
            let spec: MechanismSpec = format!("{name}:{key}={value}").parse().unwrap();
            let own: Own = spec.own_options().unwrap_or_else(|error| panic!("{spec}: {error}"));
            let is_default = default == Some(value);
            assert_eq!(own == Own::default(), is_default, "{spec}: {own:?}");
            let again = MechanismSpec::from(own.clone());
            let wanted = if is_default { name.to_owned() } else { spec.to_string() };
            assert_eq!(again.to_string(), wanted);
            let options = Options::from(Options::of(own.clone()).with_max_events(7));
            assert_eq!(options.typed().unwrap(), Options { max_events: 7, own });
        }
        for wrong in ["", "x", "-1", "99999999999999999999"] {
            let message = Own::default().set(key, wrong).unwrap_err().to_string();
            assert!(message.contains(&format!("{name}: {key}={wrong}: expected ")), "{message}");
        }
    }
    let message = Own::default().set("nonsense", "1").unwrap_err().to_string();
    assert!(message.contains(name) && message.contains("no option \"nonsense\""), "{message}");
    description.own_options.len()
}

#[test]
fn types_and_text_say_the_same() {
    let mut options = agrees::<SelectOptions>();
    options += agrees::<PollOptions>() + agrees::<DevPollOptions>();
    options += agrees::<RtSignalsOptions>() + agrees::<HybridOptions>();
    #[cfg(feature = "io_uring")]
    {
        options += agrees::<UringPollOptions>();
    }
    let all: usize = registry::ALL.iter().map(|one| one.own_options.len()).sum();
    assert_eq!(options, all, "a mechanism has options without types");
}

#[test]
fn what_is_built_is_what_is_written() {
    let spec = |own: MechanismSpec| own.to_string();
    let own = DevPollOptions::default()
        .with_results(Results::Mapped)
        .with_update(Update::Combined)
        .with_hints(false)
        .with_scan(Scan::Table);
    assert_eq!(spec(own.into()), "devpoll:hints=off,results=mmap,scan=table,update=combined");
    let own = RtSignalsOptions::default()
        .with_dequeue(Dequeue::One)
        .with_overflow(Overflow::HandOff)
        .with_signal(Some(40));
    assert_eq!(spec(own.into()), "rtsig:dequeue=one,overflow=handoff,signal=40");
    let own = HybridOptions::default()
        .with_partner(Partner::DevPoll)
        .with_high(1)
        .with_low(0)
        .with_dwell(Duration::from_secs(2));
    assert_eq!(spec(own.into()), "hybrid:dwell_ms=2000,high=1,low=0,partner=devpoll");
    assert_eq!(spec(PollOptions::default().with_hints(true).into()), "poll:hints=on");
    #[cfg(feature = "io_uring")]
    {
        let own =
            UringPollOptions::default().with_completions(64).with_task_work(TaskWork::Deferred);
        assert_eq!(spec(own.into()), "uring-poll:completions=64,taskrun=defer");
    }
}

#[test]
fn options_of_another_mechanism_are_refused() {
    let spec: MechanismSpec = "poll:hints=on".parse().unwrap();
    assert!(matches!(spec.own_options::<DevPollOptions>(), Err(Error::Spec(_))));
    // Every mechanism rejects an unknown option.
    for description in registry::ALL {
        let nonsense = Options::default().with("nonsense", 1);
        let outcome = registry::AnyMechanism::open(description.name, &nonsense);
        assert!(matches!(outcome, Err(Error::Spec(_))), "{}: {outcome:?}", description.name);
    }
}

/// The capabilities of a mechanism depend on its options in either form.
#[test]
fn capabilities_follow_the_options() {
    let edge = |one: Capabilities| one.contains(Capabilities::EDGE);
    let of = |own: HybridOptions| Hybrid::capabilities(&Options::of(own).into());
    assert!(edge(of(HybridOptions::default())));
    assert!(!edge(of(HybridOptions::default().with_partner(Partner::Poll))));
    let of = |own: RtSignalsOptions| RtSignals::capabilities(&Options::of(own).into());
    assert!(edge(of(RtSignalsOptions::default())));
    assert!(!edge(of(RtSignalsOptions::default().with_overflow(Overflow::HandOff))));
    let of = |own: DevPollOptions| DevPoll::capabilities(&Options::of(own).into());
    assert!(!of(DevPollOptions::default()).contains(Capabilities::SCANS));
    assert!(of(DevPollOptions::default().with_hints(false)).contains(Capabilities::SCANS));
}

/// The buffer of events has a maximum. Once the library panicked because there was not so much memory.
#[test]
fn any_number_of_events_is_allowed() {
    let options = Options::default().with_max_events(usize::MAX);
    for description in registry::ALL {
        match registry::AnyMechanism::open(description.name, &options) {
            Ok(_) | Err(Error::Unavailable { .. }) => {}
            Err(error) => panic!("{}: {error}", description.name),
        }
    }
}

/// A set opened with typed options behaves like any other.
#[test]
fn a_set_is_opened_with_types() {
    let mut set = Poll::open_with(&Options::default().with_max_events(0)).unwrap();
    set.waker().unwrap().wake();
    assert_eq!(set.wait(Some(Duration::from_secs(20))).unwrap(), 1);
    let own = RtSignalsOptions::default().with_signal(Some(1));
    let message = RtSignals::open_with(&Options::of(own)).unwrap_err().to_string();
    assert!(message.contains("signal=1: the real-time signals"), "{message}");
    for descriptors in [0, 1_048_577] {
        let own = SelectOptions::default().with_descriptors(descriptors);
        let message = Select::open_with(&Options::of(own)).unwrap_err().to_string();
        assert!(
            message.contains(&format!("descriptors={descriptors}: expected 1 to 1048576")),
            "{message}"
        );
    }
    #[cfg(feature = "io_uring")]
    for completions in [0, 65_537] {
        let own = UringPollOptions::default().with_completions(completions);
        let set = crate::mechanism::uring_poll::UringPoll::open_with(&Options::of(own));
        let message = set.unwrap_err().to_string();
        assert!(
            message.contains(&format!("completions={completions}: expected 1 to 65536")),
            "{message}"
        );
    }
}
