//! Ctrl-C: stop measuring, keep what there is.

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

/// The error that carries an interrupt up to where the run is wound up.
#[derive(Debug)]
pub struct Interruption;

impl fmt::Display for Interruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interruption {}

impl Interrupt {
    /// Raised by SIGINT, SIGTERM and SIGHUP. A second one ends the process at once; its children
    /// die with it.
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

    /// Raised only by [`Interrupt::raise`].
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

    /// # Errors
    /// `Interrupted` when it was raised.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.is_raised() { Err(Interruption.into()) } else { Ok(()) }
    }
}
