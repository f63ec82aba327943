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

/// A notifier is connected from the start: any time will do.
const BELL_TIMEOUT: u32 = 100;

/// The files that this process has open: each of them once, however many workers there are. A
/// forked child opens them anew ([`std::process::id`] tells).
static OPEN: Mutex<Option<(u32, HashMap<PathBuf, File>)>> = Mutex::new(None);

/// A worker's way to the file. The thread answers over a connection like any other: a pair of
/// sockets, so that the engine needs nothing new.
#[derive(Debug)]
pub(in crate::services::guestbook) struct FileStore {
    path: PathBuf,
    /// `None` until the first request: many units of an architecture may never send one.
    open: Option<Open>,
    answers: Vec<Outcome>,
}

#[derive(Debug)]
struct Open {
    keeper: FileWorker<Ticket>,
    /// Our end of the notifier, until it becomes a link.
    notifier: Option<OwnedFd>,
    upstream: Option<UpstreamId>,
}

impl FileStore {
    /// Opens the file and starts the thread, or does so at the first request.
    ///
    /// # Errors
    /// The file cannot be the store; there are no descriptors or threads.
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

    /// Handles an event. Returns an error where no earlier request will be answered any more: then
    /// the thread and its notifier are closed, and the next request gets new ones.
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
        // When it is full, it has rung already.
        let ring = move || drop((&far_end).write(&[1]));
        let keeper = FileWorker::start(file, ring).context("a thread for the guestbook's file")?;
        Ok(Self { keeper, notifier: Some(notifier.into()), upstream: None })
    }

    /// Ends the thread without waiting for it here: it may be waiting for the disk. Where there is no
    /// thread to wait in, it is waited for here after all.
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
            // What the parent has open must not be used here, and closing it would take the
            // parent's place among the readers away: it is forgotten.
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
            "the guestbook's file {} has lost its end: what was kept last is not there",
            path.display()
        );
    }
    files.insert(path.to_owned(), file.clone());
    Ok(file)
}
