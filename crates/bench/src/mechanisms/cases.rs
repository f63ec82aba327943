//! One measurement of one variant: opens a set, fills it, uses it for a slice of time, and drops it.

use super::pool::Pool;
use anyhow::{Context, Result, bail};
use pollux_event::{
    Capabilities, Error, Interest, Mechanism, MechanismSpec, Options, Token,
    registry::{self, Visitor},
};
use pollux_sys::thread_cpu_time;
use std::{
    os::fd::AsFd,
    time::{Duration, Instant},
};

/// The most iterations in a slice; a fast one is measured well enough by then.
const MAX_ITERATIONS: u32 = 20_000;

/// The longest time to wait for an event.
const PATIENCE: Duration = Duration::from_secs(30);

/// The case to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// One of `size` connections becomes ready.
    Wait { size: usize },
    /// The interest in `changed` of `size` connections is changed.
    Change { size: usize, changed: usize },
    /// All `size` connections are ready.
    AllReady { size: usize },
}

/// The results, in nanoseconds: per iteration, per change, per event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cost {
    pub(crate) ns: f64,
    /// Per write, while all connections were made ready.
    pub(crate) arrival_ns: Option<f64>,
}

/// The result of a measurement, or the reason why a variant has no figure for a case.
pub(crate) enum Outcome {
    Measured(Cost),
    /// It cannot hold this many connections (`select`).
    DoesNotFit(String),
}

/// Measures `variant` once; `None` is the same work without any mechanism.
pub(crate) fn measure(
    variant: Option<&MechanismSpec>,
    case: Case,
    pool: &Pool,
    slice: Duration,
) -> Result<Outcome> {
    let Some(spec) = variant else {
        return Ok(Outcome::Measured(without(case, pool, slice)?));
    };
    let visitor = Measure { case, pool, slice, options: spec.options() };
    registry::with_mechanism(&spec.name, visitor)
        .map_err(anyhow::Error::from)
        .and_then(|outcome| outcome)
        .with_context(|| format!("{spec}, {case:?}"))
}

/// Measures the writes and reads alone.
fn without(case: Case, pool: &Pool, slice: Duration) -> Result<Cost> {
    match case {
        Case::Wait { .. } => {
            let ns = per_iteration(slice, |number| {
                let index = number as usize % pool.active();
                pool.send(index);
                pool.receive(index);
                Ok(())
            })?;
            Ok(Cost { ns, arrival_ns: None })
        }
        Case::Change { .. } => Ok(Cost { ns: 0.0, arrival_ns: None }),
        Case::AllReady { size } => {
            let arrival = pool.send_to_all(size)?.as_nanos() as f64 / size as f64;
            pool.drain(size)?;
            Ok(Cost { ns: 0.0, arrival_ns: Some(arrival) })
        }
    }
}

/// Runs iterations for a slice of time. Returns the nanoseconds of each iteration, of this thread's
/// CPU time, which varies less than the wall clock when other processes run, too. Reading it takes a
/// system call, so it is read before and after a slice, never before and after an iteration.
fn per_iteration(slice: Duration, mut iterate: impl FnMut(u32) -> Result<()>) -> Result<f64> {
    // The first iterations bring code and data into the caches.
    for warm_up in 0..3 {
        iterate(warm_up)?;
    }
    let (started_at, before) = (Instant::now(), thread_cpu_time());
    let mut iterations = 0;
    loop {
        iterate(iterations)?;
        iterations += 1;
        if started_at.elapsed() >= slice || iterations == MAX_ITERATIONS {
            return Ok((thread_cpu_time() - before).as_nanos() as f64 / f64::from(iterations));
        }
    }
}

struct Measure<'a> {
    case: Case,
    pool: &'a Pool,
    slice: Duration,
    options: Options,
}

impl Visitor for Measure<'_> {
    type Output = Result<Outcome>;

    fn visit<M: Mechanism>(self) -> Self::Output {
        let cost = match self.case {
            Case::Wait { size } => self.wait::<M>(size),
            Case::Change { size, changed } => self.change::<M>(size, changed),
            Case::AllReady { size } => self.all_ready::<M>(size),
        };
        match cost {
            Ok(cost) => Ok(Outcome::Measured(cost)),
            Err(error) => match error.downcast_ref::<Error>() {
                Some(Error::DescriptorTooLarge { .. }) => {
                    Ok(Outcome::DoesNotFit(error.to_string()))
                }
                _ => Err(error),
            },
        }
    }
}

impl Measure<'_> {
    /// Creates a set with the first `size` connections, and waits until the kernel has them.
    fn filled<M: Mechanism>(&self, size: usize) -> Result<(M, Vec<Token>)> {
        let mut set = M::open(&self.options)?;
        let mut tokens = Vec::with_capacity(size);
        for near in &self.pool.near()[..size] {
            tokens.push(set.add(near.as_fd(), Interest::READ)?);
        }
        set.wait(Some(Duration::ZERO))?;
        Ok((set, tokens))
    }

    fn wait<M: Mechanism>(&self, size: usize) -> Result<Cost> {
        let (mut set, tokens) = self.filled::<M>(size)?;
        while set.next_event().is_some() {}
        let ns = per_iteration(self.slice, |number| {
            let index = number as usize % self.pool.active().min(size);
            self.pool.send(index);
            collect(&mut set, 1, |token| token == tokens[index])?;
            self.pool.receive(index);
            Ok(())
        })?;
        Ok(Cost { ns, arrival_ns: None })
    }

    fn change<M: Mechanism>(&self, size: usize, changed: usize) -> Result<Cost> {
        let (mut set, tokens) = self.filled::<M>(size)?;
        let quiet = |set: &mut M| -> Result<()> {
            set.wait(Some(Duration::ZERO))?;
            while set.next_event().is_some() {}
            Ok(())
        };
        // None of them has data, so neither interest makes an event.
        let mut interest = Interest::READ;
        let mut change = |set: &mut M| -> Result<()> {
            interest ^= Interest::READ;
            for token in &tokens[..changed] {
                set.modify(*token, interest)?;
            }
            Ok(())
        };
        // The cost of batched changes is in the wait. Other changes have no part of their cost in the
        // wait, and the cost of a scanning wait would hide them.
        let batched = M::DESCRIPTION.capabilities.contains(Capabilities::BATCHED_CHANGES);
        let ns = if batched {
            let alone = per_iteration(self.slice, |_| quiet(&mut set))?;
            let with_changes = per_iteration(self.slice, |_| {
                change(&mut set)?;
                quiet(&mut set)
            })?;
            with_changes - alone
        } else {
            per_iteration(self.slice, |_| change(&mut set))?
        };
        Ok(Cost { ns: ns / changed as f64, arrival_ns: None })
    }

    fn all_ready<M: Mechanism>(self, size: usize) -> Result<Cost> {
        let options = self.options.clone().with_max_events(size);
        let this = Measure { options, ..self };
        let (mut set, _) = this.filled::<M>(size)?;
        while set.next_event().is_some() {}
        let arrival = this.pool.send_to_all(size)?;
        let before = thread_cpu_time();
        collect(&mut set, size, |_| true)?;
        let taken = thread_cpu_time() - before;
        // Unread bytes would fill the receive buffers in the long run.
        this.pool.drain(size)?;
        let each = |time: Duration| time.as_nanos() as f64 / size as f64;
        Ok(Cost { ns: each(taken), arrival_ns: Some(each(arrival)) })
    }
}

/// Waits until `count` events that are `wanted` have been taken.
#[inline]
fn collect<M: Mechanism>(set: &mut M, count: usize, wanted: impl Fn(Token) -> bool) -> Result<()> {
    let mut missing = count;
    let mut deadline = None;
    loop {
        set.wait(Some(PATIENCE))?;
        while let Some(event) = set.next_event() {
            if wanted(event.token) {
                missing = missing.saturating_sub(1);
            }
        }
        if missing == 0 {
            return Ok(());
        }
        // The clock is read only when one wait was not enough.
        if Instant::now() > *deadline.get_or_insert_with(|| Instant::now() + PATIENCE) {
            bail!("{missing} of {count} events did not come within {PATIENCE:?}");
        }
    }
}
