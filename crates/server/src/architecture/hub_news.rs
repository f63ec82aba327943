//! Notifies workers of the updates that other workers publish, and of answers.
//!
//! A separate thread does that: workers may have separate file tables, so that no worker could write to the
//! wakeup descriptor of another one.

use crate::{
    engine::control::Remote,
    services::hub::{HubShared, NewsRound},
};
use std::{
    io,
    sync::Arc,
    thread::{self, JoinHandle},
};

/// The thread that notifies workers. It ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct HubNews {
    shared: Arc<HubShared>,
    thread: Option<JoinHandle<()>>,
}

impl HubNews {
    /// Starts the thread. `workers` has the handle of each worker.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(shared: Arc<HubShared>, workers: Vec<Arc<Remote>>) -> io::Result<Self> {
        let thread = thread::Builder::new().name("hub-news".into()).spawn({
            let shared = shared.clone();
            move || {
                let mut round = NewsRound::default();
                while shared.wait_for_news() {
                    shared.wake_workers(&mut round, |index| workers[index].notify());
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
