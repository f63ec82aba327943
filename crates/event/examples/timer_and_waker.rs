//! A timer and a waker: a loop that does some work every 20 ms, and takes work that another thread
//! passes to it: `cargo run --example timer_and_waker -- poll`.
//!
//! A set has no timers of its own. The loop stores its deadlines, and waits until the next one: `wait`
//! takes the time, rounded up, so that it never spins.

use pollux_event::{
    Error, Mechanism, MechanismSpec, Options,
    registry::{self, Visitor},
};
use std::{
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

const PERIOD: Duration = Duration::from_millis(20);
const TICKS: u32 = 5;

/// The number of timer expiries, and the work that the other thread sent.
#[derive(Debug)]
struct Outcome {
    ticks: u32,
    received: Vec<u32>,
}

struct Loop<'a>(&'a Options);

impl Visitor for Loop<'_> {
    type Output = Result<Outcome, Error>;

    fn visit<M: Mechanism>(self) -> Self::Output {
        let mut set = M::open(self.0)?;
        let waker = set.waker()?;
        let (sender, work) = mpsc::channel();
        let other = thread::spawn(move || {
            for number in 0..3 {
                // The pace at which work arrives.
                thread::sleep(Duration::from_millis(15));
                // First the work, then the waker: the loop checks for work after each wait.
                let _ = sender.send(number);
                waker.wake();
            }
        });
        let mut outcome = Outcome { ticks: 0, received: Vec::new() };
        let mut deadline = Instant::now() + PERIOD;
        while outcome.ticks < TICKS || outcome.received.len() < 3 {
            set.wait(Some(deadline.saturating_duration_since(Instant::now())))?;
            let event = set.next_event();
            assert!(event.is_none(), "nothing was added, so nothing is reported: {event:?}");
            outcome.received.extend(work.try_iter());
            // A wait may return early, so the clock decides.
            if Instant::now() >= deadline {
                outcome.ticks += 1;
                deadline += PERIOD;
            }
        }
        let _ = other.join();
        Ok(outcome)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let spec = std::env::args().nth(1).unwrap_or_else(|| "epoll".into());
    let spec: MechanismSpec = spec.parse()?;
    let outcome = registry::with_mechanism(&spec.name, Loop(&spec.options()))??;
    println!("{}: {outcome:?}", spec.name);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mechanism_keeps_time_and_takes_what_is_handed_over() {
        let mut ran = 0;
        for description in registry::ALL {
            let spec: MechanismSpec = description.name.parse().unwrap();
            if let Err(reason) = registry::probe(&spec) {
                eprintln!("skipped: {reason}");
                continue;
            }
            let started_at = Instant::now();
            let outcome = registry::with_mechanism(&spec.name, Loop(&spec.options())).unwrap();
            let outcome = outcome.unwrap();
            assert_eq!(outcome.received, [0, 1, 2], "{spec}");
            // If the other thread is late because the machine is busy, the timer continues.
            let periods = started_at.elapsed().as_nanos() / PERIOD.as_nanos();
            let in_time = TICKS.into()..=periods;
            assert!(in_time.contains(&u128::from(outcome.ticks)), "{spec}: {outcome:?}, {periods}");
            ran += 1;
        }
        assert!(ran >= 5, "only {ran} mechanisms ran");
    }
}
