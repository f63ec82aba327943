//! What the control socket leaves to the main thread, which alone may change the server.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Sender, channel},
    },
    time::Duration,
};

/// How long the main thread may take for a task: longer than all that it waits for itself.
const PATIENCE: Duration = Duration::from_secs(110);

/// Something that the main thread is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Read the configuration again.
    Reload,
    /// Leave the service to a new process.
    Upgrade,
}

/// What became of a task: lines for its operator, or why it was not done.
pub(crate) type Outcome = Result<Vec<String>, String>;

/// A task, and where its outcome is sent.
pub(crate) type PendingTask = (Task, Sender<Outcome>);

type Queue = VecDeque<PendingTask>;

/// Tasks that wait for the main thread.
#[derive(Clone, Debug)]
pub(crate) struct Tasks {
    queue: Arc<Mutex<Queue>>,
    wake: fn(),
}

impl Tasks {
    /// None yet; `wake` wakes the main thread.
    pub(crate) fn new(wake: fn()) -> Self {
        Self { queue: Arc::default(), wake }
    }

    /// Has the main thread do `task`, and waits for the outcome.
    ///
    /// # Errors
    /// Why it was not done.
    pub(crate) fn run(&self, task: Task) -> Outcome {
        let (sender, outcome) = channel();
        self.queue().push_back((task, sender));
        (self.wake)();
        let late = |_| Err("the server is stopping, or too busy to answer; try again".into());
        outcome.recv_timeout(PATIENCE).unwrap_or_else(late)
    }

    /// The task that waits longest, and where its outcome is sent.
    pub(crate) fn next(&self) -> Option<PendingTask> {
        self.queue().pop_front()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
