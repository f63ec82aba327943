//! Signals that interrupt a system call of one thread.

use crate::sys;
use std::{
    sync::{
        Arc, Once,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

/// Gives `signal` a handler that does nothing, as a library does that uses the signal.
pub fn handle(signal: i32) {
    sys::handle_quietly(signal);
}

/// Interrupts the thread that created it, every few milliseconds, until it is dropped.
///
/// The signal is SIGUSR2 with a handler that does nothing and without SA_RESTART, so that system
/// calls return EINTR. It is sent more than once, since the first may arrive before the call.
#[derive(Debug)]
pub struct Interrupter {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Interrupter {
    /// Starts to interrupt the calling thread every `period`.
    pub fn start(period: Duration) -> Self {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| sys::handle_quietly(libc::SIGUSR2));
        let target = rustix::thread::gettid();
        let process = rustix::process::getpid();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                // The pace of the interruptions.
                thread::sleep(period);
                sys::signal_thread(process, target, libc::SIGUSR2);
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Interrupter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the interrupting thread");
        }
    }
}
