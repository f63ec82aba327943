//! Names are resolved by a thread beside, since the C library's resolver blocks: for as long as
//! servers of names are silent, which may be half a minute and more.

use crate::reactor::Question;
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

/// What a name was resolved to, or why it was not.
pub(super) type Answer = Result<Vec<SocketAddr>, String>;

/// A question, and where its answer goes.
struct Job {
    question: Question,
    answers: Sender<(Question, Answer)>,
    notifier: Arc<OwnedFd>,
}

/// Where to put questions.
type Jobs = SyncSender<Job>;

/// The one thread of all the units of a process that block: each of them may live for one connection
/// only, and a thread that waits for a silent server cannot be ended. With the process that started
/// it: a forked child has none of its parent's threads.
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
    /// With a thread of its own, and room for so many questions. Returns also what becomes readable
    /// when there are answers.
    ///
    /// # Errors
    /// There is no thread, or no pair of sockets to ring with.
    pub(super) fn open(questions_max: usize) -> io::Result<(Self, OwnedFd)> {
        Self::at(start(questions_max)?)
    }

    /// With the thread that all blocking workers share.
    ///
    /// # Errors
    /// As [`Resolver::open`].
    pub(super) fn open_shared(questions_max: usize) -> io::Result<(Self, OwnedFd)> {
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        let me = std::process::id();
        let jobs = match &*shared {
            Some((process, jobs)) if *process == me => jobs.clone(),
            _ => {
                let jobs = start(questions_max)?;
                // The parent's is forgotten: its thread is not here, and its memory is the parent's.
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
    /// Too many questions wait already.
    pub(super) fn submit(&mut self, question: Question) -> Result<(), String> {
        let (answers, notifier) = (self.answer.clone(), self.far_end.clone());
        let job = Job { question, answers, notifier };
        match self.jobs.try_send(job) {
            Ok(()) => {
                self.pending += 1;
                Ok(())
            }
            Err(TrySendError::Full(_)) => Err("too many names wait to be resolved".to_owned()),
            Err(TrySendError::Disconnected(_)) => {
                self.has_ended = true;
                Err("the thread that resolves names has ended".to_owned())
            }
        }
    }

    /// Whether an answer is still to come.
    pub(super) fn is_pending(&self) -> bool {
        self.pending > 0
    }

    /// Whether its thread has ended: nobody will answer.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The answers that have come; the notifier has been reset.
    pub(super) fn take(&mut self) -> Vec<(Question, Answer)> {
        let answers: Vec<_> = self.answers.try_iter().collect();
        self.pending -= answers.len();
        answers
    }
}

/// Reads all signals of a notifier. Returns whether its other end is closed: it would be readable for ever.
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

/// The answer to a question whose name is an address: there is nothing to resolve.
pub(super) fn known(question: &Question) -> Option<Answer> {
    let address = question.name.parse::<IpAddr>().ok()?;
    Some(Ok(vec![SocketAddr::new(address, question.port)]))
}

fn start(questions_max: usize) -> io::Result<Jobs> {
    let (jobs, to_do) = sync_channel(questions_max);
    spawn_detached(c"resolver", move || resolve_all(&to_do))?;
    Ok(jobs)
}

/// Answers questions until all senders are gone.
fn resolve_all(to_do: &Receiver<Job>) {
    let mut waiting = VecDeque::new();
    loop {
        let Some(first) = waiting.pop_front().or_else(|| to_do.recv().ok()) else { return };
        let Question { name, port, .. } = first.question.clone();
        let answer = resolve(&name, port);
        tell(first, answer.clone());
        // The same question that arrived meanwhile gets the same answer: a thousand workers that
        // start together all resolve the name of the one store.
        waiting.extend(to_do.try_iter());
        let is_same = |job: &Job| job.question.name == name && job.question.port == port;
        let (same, others): (VecDeque<_>, VecDeque<_>) = waiting.into_iter().partition(is_same);
        waiting = others;
        same.into_iter().for_each(|job| tell(job, answer.clone()));
    }
}

fn resolve(name: &str, port: u16) -> Answer {
    #[cfg(test)]
    if name == silence::NAME {
        silence::wait();
    }
    sys::resolve(name, port).map_err(|error| format!("{name} cannot be resolved: {error}"))
}

fn tell(job: Job, answer: Answer) {
    if job.answers.send((job.question, answer)).is_ok() {
        // When it is full, it has rung already.
        let _ = sys::send(job.notifier.as_fd(), &[1], false);
    }
}

/// A name whose server is silent until a test ends that.
#[cfg(test)]
pub(super) mod silence {
    use std::{
        sync::{Condvar, Mutex},
        time::Duration,
    };

    pub(in crate::engine) const NAME: &str = "silent.invalid";
    /// However the test goes, it is over then.
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
