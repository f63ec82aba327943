//! Names are resolved by a thread of the worker's own, since the C library's resolver blocks.

use super::Engine;
use crate::{
    application::{Application, Wake},
    outside::Question,
    table::Peer,
};
use anyhow::Context;
use pollux_event::{Interest, Mechanism};
use pollux_sys as sys;
use std::{
    net::{IpAddr, SocketAddr},
    os::fd::{AsFd, AsRawFd, OwnedFd, RawFd},
    sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel},
    thread,
};

/// Names that wait to be resolved, besides the one that is; more are refused.
const QUESTIONS_MAX: usize = 64;

/// What a name was resolved to, or why it was not.
type Answer = Result<Vec<SocketAddr>, String>;

/// The thread, once a name has been asked for.
#[derive(Debug, Default)]
pub(super) struct Resolver(Option<Running>);

#[derive(Debug)]
struct Running {
    questions: SyncSender<Question>,
    answers: Receiver<(Question, Answer)>,
}

impl<M: Mechanism, A: Application> Engine<M, A> {
    /// Resolves a name; who asked is told later, or at once if it is an address or cannot be asked.
    pub(super) fn resolve(&mut self, question: Question) {
        if let Ok(address) = question.name.parse::<IpAddr>() {
            let answer = Ok(vec![SocketAddr::new(address, question.port)]);
            self.tell(question.to, Wake::Resolved(question.note, answer));
            return;
        }
        let (to, note) = (question.to, question.note);
        if let Err(reason) = self.hand_to_resolver(question) {
            self.tell(to, Wake::Resolved(note, Err(reason)));
        }
    }

    fn hand_to_resolver(&mut self, question: Question) -> Result<(), String> {
        if self.resolver.0.is_none() {
            let running = self.start_resolver().map_err(|error| format!("{error:#}"))?;
            self.resolver.0 = Some(running);
        }
        let Some(running) = &self.resolver.0 else { return Ok(()) };
        running
            .questions
            .try_send(question)
            .map_err(|_| format!("{QUESTIONS_MAX} names wait to be resolved already"))
    }

    fn start_resolver(&mut self) -> anyhow::Result<Running> {
        let (near, far) = sys::stream_pair().context("no sockets to talk to a resolver with")?;
        let (questions, to_resolve) = sync_channel(QUESTIONS_MAX);
        let (answer, answers) = channel();
        // The thread first, which can fail for want of one (EAGAIN): nothing is to be undone then. Where
        // it is what follows that fails, the thread ends, since nobody is left who could ask.
        thread::Builder::new()
            .name("resolver".into())
            .spawn(move || resolve_all(&to_resolve, &answer, &far))
            .context("no thread to resolve names")?;
        let token = self.mechanism.add(near.as_fd(), Interest::READ)?;
        self.table.insert(near, token, Peer::Bell);
        Ok(Running { questions, answers })
    }

    /// The resolver has rung.
    #[cold]
    pub(super) fn answers_have_come(&mut self, fd: RawFd) {
        let mut rings = [0; 64];
        let mut has_ended = false;
        let slot = self.table.get_mut(fd);
        if let Some(socket) = slot.and_then(|slot| slot.socket()) {
            debug_assert_eq!(socket.as_raw_fd(), fd);
            while let Ok(count) = sys::read(socket.as_fd(), &mut rings) {
                has_ended = count == 0;
                if has_ended {
                    break;
                }
            }
        }
        let running = self.resolver.0.as_ref();
        let answers: Vec<_> = running.into_iter().flat_map(|one| one.answers.try_iter()).collect();
        if has_ended {
            // The thread is gone: its bell would ring for ever. The next question starts another.
            self.close_socket(fd);
            self.resolver.0 = None;
        }
        for (question, answer) in answers {
            self.tell(question.to, Wake::Resolved(question.note, answer));
        }
    }
}

/// Answers questions until the worker has ended.
fn resolve_all(
    questions: &Receiver<Question>,
    answers: &Sender<(Question, Answer)>,
    bell: &OwnedFd,
) {
    while let Ok(question) = questions.recv() {
        let answer = sys::resolve(&question.name, question.port)
            .map_err(|error| format!("{} cannot be resolved: {error}", question.name));
        if answers.send((question, answer)).is_err() {
            return;
        }
        // When it is full, it has rung already.
        let _ = sys::send(bell.as_fd(), &[1], false);
    }
}
