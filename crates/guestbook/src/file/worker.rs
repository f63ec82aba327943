//! A thread that waits for the disk on behalf of the server.

use super::File;
use crate::{Answer, Request, StoreError, limits};
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread::{self, JoinHandle},
};

/// The maximum number of requests per commit. It bounds how long the first of them waits.
const BATCH: usize = 1024;

type Outcome<T> = (T, Result<Answer, StoreError>);

/// Executes requests to a file in its own thread. Requests that arrive while the disk is busy share
/// the next commit. The caller identifies a request by a `T`.
#[derive(Debug)]
pub struct FileWorker<T> {
    requests: Option<SyncSender<(T, Request)>>,
    answers: Arc<Mutex<Vec<Outcome<T>>>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + 'static> FileWorker<T> {
    /// Starts the thread. It calls `notify` when there are answers to [take](FileWorker::take).
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(file: File, notify: impl Fn() + Send + 'static) -> std::io::Result<Self> {
        let (requests, queue) = sync_channel(limits::FILE_QUEUE);
        let answers = Arc::new(Mutex::new(Vec::new()));
        let thread = thread::Builder::new().name("guestbook".to_owned()).spawn({
            let answers = answers.clone();
            move || run(&file, &queue, &answers, &notify)
        })?;
        Ok(Self { requests: Some(requests), answers, thread: Some(thread) })
    }

    /// Queues a request. Never blocks.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if too many requests wait already.
    pub fn begin(&self, ticket: T, request: Request) -> Result<(), StoreError> {
        let Some(requests) = &self.requests else { return Err(StoreError::Busy) };
        requests.try_send((ticket, request)).map_err(|error| match error {
            TrySendError::Full(_) => StoreError::Busy,
            TrySendError::Disconnected(_) => {
                StoreError::Unreachable("the guestbook's thread has ended".to_owned())
            }
        })
    }

    /// Moves the available answers to the end of `into`.
    pub fn take(&self, into: &mut Vec<Outcome<T>>) {
        into.append(&mut self.answers.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Waits until all queued requests are executed.
impl<T> Drop for FileWorker<T> {
    fn drop(&mut self) {
        self.requests = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run<T>(
    file: &File,
    queue: &Receiver<(T, Request)>,
    answers: &Mutex<Vec<Outcome<T>>>,
    notify: &dyn Fn(),
) {
    while let Ok(first) = queue.recv() {
        let mut batch = vec![first];
        batch.extend(queue.try_iter().take(BATCH - 1));
        let outcomes = file.serve(batch.iter().map(|(_, request)| request));
        let tickets = batch.into_iter().map(|(ticket, _)| ticket);
        let mut answers = answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.extend(tickets.zip(outcomes));
        drop(answers);
        notify();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeSet, sync::mpsc::channel, time::Duration};

    #[test]
    fn every_request_is_answered_once_with_a_notification() {
        let directory = tempfile::tempdir().unwrap();
        let file = File::open(&directory.path().join("guestbook")).unwrap();
        let (sender, notifications) = channel();
        let notify = move || sender.send(()).expect("the test listens");
        // No commit is possible while the test holds the writer lock, so the requests wait.
        let writer = file.lock_writer();
        let worker = FileWorker::start(file.clone(), notify).unwrap();
        for ticket in 0..500_u32 {
            worker.begin(ticket, Request::Visit { shown: 1 }).unwrap();
        }
        drop(writer);
        let mut answers = Vec::new();
        let mut commits = 0;
        while answers.len() < 500 {
            notifications.recv_timeout(Duration::from_secs(60)).unwrap();
            commits += 1;
            worker.take(&mut answers);
        }
        let mut visitors = BTreeSet::new();
        for (at, (ticket, answer)) in answers.into_iter().enumerate() {
            assert_eq!(at, ticket as usize);
            let Answer::Visit { visitor, .. } = answer.unwrap() else { panic!("no visit") };
            visitors.insert(visitor);
        }
        assert_eq!(visitors, (1..=500).collect());
        // One commit for the requests that the thread had read by then, and one for all others.
        assert!(commits <= 2, "{commits} commits");
    }
}
