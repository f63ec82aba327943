//! Tasks that the control socket passes to the main thread, because only that may change the
//! server.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Sender, channel},
    },
    time::Duration,
};

/// The time that the main thread may take for a task; longer than all its own waits together.
const PATIENCE: Duration = Duration::from_secs(110);

/// A task for the main thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OperatorTask {
    /// Read the configuration again.
    Reload,
    /// Hand the service over to a new process.
    Upgrade,
}

/// The result of a task: lines for the operator, or the reason why it failed.
pub(crate) type Outcome = Result<Vec<String>, String>;

/// A task, and the channel for its result.
pub(crate) type PendingTask = (OperatorTask, Sender<Outcome>);

type Queue = VecDeque<PendingTask>;

/// Tasks that wait for the main thread.
#[derive(Clone, Debug)]
pub(crate) struct Tasks {
    queue: Arc<Mutex<Queue>>,
    wake: fn(),
}

impl Tasks {
    /// Creates an empty queue. `wake` wakes the main thread.
    pub(crate) fn new(wake: fn()) -> Self {
        Self { queue: Arc::default(), wake }
    }

    /// Makes the main thread do `task`, and waits for the result.
    ///
    /// # Errors
    /// The reason why it failed.
    pub(crate) fn run(&self, task: OperatorTask) -> Outcome {
        let (sender, outcome) = channel();
        self.queue().push_back((task, sender));
        (self.wake)();
        let late = |_| Err("the server is stopping, or too busy to answer; try again".into());
        outcome.recv_timeout(PATIENCE).unwrap_or_else(late)
    }

    /// Returns the task that has waited longest, with the channel for its result.
    pub(crate) fn next(&self) -> Option<PendingTask> {
        self.queue().pop_front()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
