//! Ctrl-C: stops the measurement and keeps the results so far.

use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM},
    flag,
};
use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
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
    /// Returns an interrupt that SIGINT, SIGTERM and SIGHUP raise. A second signal ends the process at
    /// once; its children end with it.
    ///
    /// # Errors
    /// When the handlers cannot be set.
    pub fn on_signals() -> std::io::Result<Self> {
        let raised = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&raised))?;
            flag::register(signal, Arc::clone(&raised))?;
        }
        Ok(Self(raised))
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
