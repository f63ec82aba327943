//! Resolves names in a separate thread, because the C library's resolver blocks. It blocks for as long as
//! name servers do not answer, which may be half a minute or more.

use crate::reactor::{Question, ResolveError};
use pollux_sys::{self as sys, spawn_detached};
use std::{
    collections::VecDeque,
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel},
    },
};

/// The addresses of a name, or the reason why the lookup failed.
pub(super) type Answer = Result<Vec<SocketAddr>, ResolveError>;

/// A question, and the channel and notifier for its answer.
struct LookupJob {
    question: Question,
    answers: Sender<(Question, Answer)>,
    notifier: Arc<OwnedFd>,
}

/// The sending end of the queue of questions.
type Jobs = SyncSender<LookupJob>;

/// The queue of the one resolver thread that all blocking workers of a process share. A blocking worker may
/// exist for one connection only, and a thread that waits for a silent server cannot be ended. The process
/// ID is that of the process that started the thread: a forked child has none of its parent's threads.
static SHARED: Mutex<Option<(u32, Jobs)>> = Mutex::new(None);

/// A client of the resolver thread: its questions and their answers.
pub(super) struct Resolver {
    jobs: Jobs,
    answer: Sender<(Question, Answer)>,
    answers: Receiver<(Question, Answer)>,
    far_end: Arc<OwnedFd>,
    pending: usize,
    has_ended: bool,
}

impl Resolver {
    /// Starts a thread for this client alone, with room for `questions_max` questions. Also returns the
    /// descriptor that becomes readable when there are answers.
    ///
    /// # Errors
    /// The thread or the pair of sockets for notifications cannot be created.
    pub(super) fn open(questions_max: usize) -> io::Result<(Self, OwnedFd)> {
        Self::at(start(questions_max)?)
    }

    /// Uses the thread that all blocking workers of the process share, and starts it if necessary.
    ///
    /// # Errors
    /// The same as [`Resolver::open`].
    pub(super) fn open_shared(questions_max: usize) -> io::Result<(Self, OwnedFd)> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let me = std::process::id();
        let jobs = match &*shared {
            Some((process, jobs)) if *process == me => jobs.clone(),
            _ => {
                let jobs = start(questions_max)?;
                // The parent's queue is leaked: its thread does not exist in this process, and its memory
                // belongs to the parent.
                std::mem::forget(shared.replace((me, jobs.clone())));
                jobs
            }
        };
        drop(shared);
        Self::at(jobs)
    }

    fn at(jobs: Jobs) -> io::Result<(Self, OwnedFd)> {
        let (near, far) = sys::stream_pair()?;
        let (answer, answers) = channel();
        Ok((
            Self { jobs, answer, answers, far_end: Arc::new(far), pending: 0, has_ended: false },
            near,
        ))
    }

    /// Submits a question.
    ///
    /// # Errors
    /// Too many questions are already waiting, or the thread has ended.
    pub(super) fn submit(&mut self, question: Question) -> Result<(), ResolveError> {
        let (answers, notifier) = (self.answer.clone(), self.far_end.clone());
        let job = LookupJob { question, answers, notifier };
        match self.jobs.try_send(job) {
            Ok(()) => {
                self.pending += 1;
                Ok(())
            }
            Err(TrySendError::Full(_)) => Err(ResolveError::Busy),
            Err(TrySendError::Disconnected(_)) => {
                self.has_ended = true;
                Err(ResolveError::ThreadEnded)
            }
        }
    }

    /// Returns whether an answer is still pending.
    pub(super) fn is_pending(&self) -> bool {
        self.pending > 0
    }

    /// Returns whether the thread has ended: then no answer will arrive.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Takes the answers that have arrived. The caller has drained the notifier.
    pub(super) fn take(&mut self) -> Vec<(Question, Answer)> {
        let answers: Vec<_> = self.answers.try_iter().collect();
        self.pending -= answers.len();
        answers
    }
}

/// Reads all notifications of a notifier. Returns whether its other end is closed: then the notifier would
/// stay readable forever.
pub(super) fn drain_notifier(notifier: BorrowedFd<'_>) -> bool {
    let mut rings = [0; 64];
    loop {
        match sys::read(notifier, &mut rings) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(_) => return false,
        }
    }
}

/// Returns the answer to a question whose name is an address: there is nothing to resolve.
pub(super) fn known(question: &Question) -> Option<Answer> {
    let address = question.name.parse::<IpAddr>().ok()?;
    Some(Ok(vec![SocketAddr::new(address, question.port)]))
}

fn start(questions_max: usize) -> io::Result<Jobs> {
    let (jobs, to_do) = sync_channel(questions_max);
    spawn_detached(c"resolver", move || resolve_all(&to_do))?;
    Ok(jobs)
}

/// Answers questions until all senders are dropped.
fn resolve_all(to_do: &Receiver<LookupJob>) {
    let mut waiting = VecDeque::new();
    loop {
        let Some(first) = waiting.pop_front().or_else(|| to_do.recv().ok()) else { return };
        let Question { name, port, .. } = first.question.clone();
        let answer = resolve(&name, port);
        deliver(first, answer.clone());
        // Equal questions that arrived meanwhile get the same answer: a thousand workers that start
        // together all resolve the name of the same store.
        waiting.extend(to_do.try_iter());
        let is_same = |job: &LookupJob| job.question.name == name && job.question.port == port;
        let (same, others): (VecDeque<_>, VecDeque<_>) = waiting.into_iter().partition(is_same);
        waiting = others;
        same.into_iter().for_each(|job| deliver(job, answer.clone()));
    }
}

fn resolve(name: &str, port: u16) -> Answer {
    #[cfg(test)]
    if name == silence::NAME {
        silence::wait();
    }
    sys::resolve(name, port)
        .map_err(|error| ResolveError::Failed(format!("{name} cannot be resolved: {error}").into()))
}

fn deliver(job: LookupJob, answer: Answer) {
    if job.answers.send((job.question, answer)).is_ok() {
        // If the socket is full, the notification is already pending.
        let _ = sys::send(job.notifier.as_fd(), &[1], false);
    }
}

/// A name whose server does not answer until a test ends the silence.
#[cfg(test)]
pub(super) mod silence {
    use std::{
        sync::{Condvar, Mutex},
        time::Duration,
    };

    pub(in crate::engine) const NAME: &str = "silent.invalid";
    /// The time after which the silence ends in any case.
    pub(in crate::engine) const LONGEST: Duration = Duration::from_secs(60);

    static HAS_ENDED: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

    pub(super) fn wait() {
        let has_ended = HAS_ENDED.0.lock().unwrap();
        drop(HAS_ENDED.1.wait_timeout_while(has_ended, LONGEST, |has_ended| !*has_ended));
    }

    pub(in crate::engine) fn end() {
        *HAS_ENDED.0.lock().unwrap() = true;
        HAS_ENDED.1.notify_all();
    }
}
