//! The guestbook's file, and the thread that waits for its disk.

use super::{super::StoreOpening, Outcome, Ticket};
use crate::{
    reactor::{ConnectedSocket, Endpoint, EventTarget, Reactor, UpstreamId},
    service::Event,
};
use anyhow::Context;
use pollux_guestbook::{
    Request, StoreError,
    file::{File, FileWorker},
};
use pollux_sys::spawn_detached;
use std::{
    collections::HashMap,
    io::Write,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// The timeout for dialling the notifier, in ticks. The notifier is connected from the start, so any value
/// works.
const BELL_TIMEOUT: u32 = 100;

/// The files that this process has open. Each is opened once, for all workers. A forked child opens them
/// again: it has another [`std::process::id`].
static OPEN: Mutex<Option<(u32, HashMap<PathBuf, File>)>> = Mutex::new(None);

/// The access of one worker to the file. The thread notifies the worker over a pair of sockets, which the
/// engine handles like any other connection.
#[derive(Debug)]
pub(in crate::services::guestbook) struct FileStore {
    path: PathBuf,
    /// `None` until the first request: many workers of an architecture may never send one.
    open: Option<Open>,
    answers: Vec<Outcome>,
}

#[derive(Debug)]
struct Open {
    keeper: FileWorker<Ticket>,
    /// The worker's end of the notifier, until it becomes an upstream connection.
    notifier: Option<OwnedFd>,
    upstream: Option<UpstreamId>,
}

impl FileStore {
    /// Opens the file and starts the thread, now or at the first request.
    ///
    /// # Errors
    /// The file cannot be used as the store, or there are no descriptors or threads left.
    pub(super) fn open(path: &Path, opening: StoreOpening) -> anyhow::Result<Self> {
        let open = match opening {
            StoreOpening::Now => Some(Open::new(path)?),
            StoreOpening::AtFirstUse => None,
        };
        Ok(Self { path: path.to_owned(), open, answers: Vec::new() })
    }

    pub(super) fn answers(&mut self) -> &mut Vec<Outcome> {
        &mut self.answers
    }

    pub(super) fn submit(&mut self, reactor: &mut Reactor, ticket: Ticket, request: Request) {
        if self.open.is_none() {
            match Open::new(&self.path) {
                Ok(open) => self.open = Some(open),
                Err(error) => {
                    let why = StoreError::Unreachable(format!("{error:#}"));
                    return self.answers.push((ticket, Err(why)));
                }
            }
        }
        let Some(open) = &mut self.open else { return };
        if let Some(notifier) = open.notifier.take() {
            let endpoint = Endpoint::Connected(ConnectedSocket::new(notifier));
            open.upstream = Some(reactor.dial(endpoint, BELL_TIMEOUT, EventTarget::Service));
        }
        if let Err(why) = open.keeper.begin(ticket, request) {
            self.answers.push((ticket, Err(why)));
        }
    }

    /// Handles an event. Returns an error if no earlier request will be answered any more. In that case the
    /// thread and its notifier are closed, and the next request gets new ones.
    pub(super) fn event(&mut self, reactor: &mut Reactor, event: Event<'_>) -> Option<StoreError> {
        let open = self.open.as_mut()?;
        let (upstream, why) = match event {
            Event::Received(upstream, _) if Some(upstream) == open.upstream => {
                open.keeper.take(&mut self.answers);
                return None;
            }
            Event::Ended(upstream) if Some(upstream) == open.upstream => {
                (upstream, "it has ended".to_owned())
            }
            Event::Failed(upstream, why) if Some(upstream) == open.upstream => {
                (upstream, format!("its notifier is broken: {why}"))
            }
            _ => return None,
        };
        open.keeper.take(&mut self.answers);
        reactor.close(upstream);
        if let Some(open) = self.open.take() {
            open.retire();
        }
        Some(StoreError::Unreachable(format!("the guestbook's thread: {why}")))
    }
}

impl Open {
    fn new(path: &Path) -> anyhow::Result<Self> {
        let file = open_once(path)?;
        let (notifier, far_end) =
            UnixStream::pair().context("a notifier for the guestbook's thread")?;
        notifier.set_nonblocking(true)?;
        far_end.set_nonblocking(true)?;
        // A full socket has notified the worker already.
        let ring = move || drop((&far_end).write(&[1]));
        let keeper = FileWorker::start(file, ring).context("a thread for the guestbook's file")?;
        Ok(Self { keeper, notifier: Some(notifier.into()), upstream: None })
    }

    /// Ends the thread. A helper thread waits for its end, because it may be waiting for the disk. If no
    /// helper thread can be started, this function waits itself.
    fn retire(self) {
        let keeper = self.keeper;
        let _ = spawn_detached(c"guestbook-end", move || drop(keeper));
    }
}

fn open_once(path: &Path) -> anyhow::Result<File> {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let me = std::process::id();
    let files = match &mut *open {
        Some((process, files)) if *process == me => files,
        other => {
            // The child must not use the files that the parent has open. Closing them would remove the parent
            // from the table of readers, so they are leaked.
            if let Some((_, parents)) = other.take() {
                std::mem::forget(parents);
            }
            &mut other.insert((me, HashMap::new())).1
        }
    };
    if let Some(file) = files.get(path) {
        return Ok(file.clone());
    }
    let file = File::open(path)?;
    if file.is_truncated() {
        tracing::warn!(
            "the guestbook's file {} was cut off at its end: the last remarks are missing",
            path.display()
        );
    }
    files.insert(path.to_owned(), file.clone());
    Ok(file)
}
