//! Tells each worker what the others publish.
//!
//! A thread of its own does it: workers may have file tables of their own, so that none of them
//! could write to what another one waits for.

use super::HubShared;
use crate::engine::control::Remote;
use std::{
    io,
    sync::Arc,
    thread::{self, JoinHandle},
};

/// The thread, for as long as this is.
#[derive(Debug)]
pub(crate) struct HubNews {
    shared: Arc<HubShared>,
    thread: Option<JoinHandle<()>>,
}

impl HubNews {
    /// Starts it; `workers` is how to reach each worker.
    ///
    /// # Errors
    /// There is no thread.
    pub(crate) fn start(shared: Arc<HubShared>, workers: Vec<Arc<Remote>>) -> io::Result<Self> {
        let thread = thread::Builder::new().name("hub-news".into()).spawn({
            let shared = shared.clone();
            move || {
                while shared.wait_for_news() {
                    for (index, worker) in workers.iter().enumerate() {
                        if shared.needs_notification(index) {
                            worker.notify();
                        }
                    }
                }
            }
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }
}

impl Drop for HubNews {
    fn drop(&mut self) {
        self.shared.end();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
