//! Ctrl-C: stops the measurement and keeps the results so far.

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
    low_level,
};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

/// Whether the user interrupted the run.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

/// The error that propagates an interrupt to the code that ends the run.
#[derive(Debug)]
pub struct Interruption;

impl fmt::Display for Interruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interruption {}

impl Interrupt {
    /// Returns an interrupt that SIGINT, SIGTERM and SIGHUP raise. A later signal ends the process at
    /// once; its children end with it.
    ///
    /// # Errors
    /// When the handlers cannot be set, or their thread cannot be started.
    pub fn on_signals() -> std::io::Result<Self> {
        let interrupt = Self::default();
        let raised = interrupt.clone();
        let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
        thread::Builder::new().name("signals".into()).spawn(move || {
            let second = pollux_sys::second_interrupt(signals.forever(), || raised.raise());
            if let Some(signal) = second {
                low_level::exit(128 + signal);
            }
        })?;
        Ok(interrupt)
    }

    /// Returns an interrupt that only [`Interrupt::raise`] raises.
    pub fn never() -> Self {
        Self::default()
    }

    /// Requests a stop.
    pub fn raise(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether it was raised.
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Returns an error if the interrupt was raised.
    ///
    /// # Errors
    /// [`Interruption`] if the interrupt was raised.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.is_raised() { Err(Interruption.into()) } else { Ok(()) }
    }
}
