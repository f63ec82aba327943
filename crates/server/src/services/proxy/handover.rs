//! Requests that are another process' on this host: it is given the client's connection itself.

use super::{Exchange, Frontend, Going, RouteId, exchange::Step, failure::Failure, has_body};
use crate::{
    reactor::{HandOver, NotTaken},
    service::{Flow, Turn},
    transport::outbox::Outbox,
};
use pollux_http::request::Request;
use std::{ops::ControlFlow, path::Path, sync::Arc};

/// Replies to earlier requests have to leave first: after so many ticks it is tried again.
const AGAIN_TICKS: u32 = 1;

impl Frontend {
    /// Asks for the connection to be handed over.
    pub(super) fn begin_hand_over(
        &mut self,
        turn: &mut Turn<'_>,
        request: &Request<'_>,
        route: RouteId,
        path: &Arc<Path>,
    ) -> Going {
        let mut state = self.spare.pop().unwrap_or_default();
        state.begin(request, route, turn.local.clock.tick());
        state.step = Step::HandOver;
        turn.outside.hand_over(HandOver::new(turn.id(), path, state.head.clone(), request.line));
        ControlFlow::Continue(state)
    }

    /// Replies that were in the way may have left by now.
    pub(super) fn hand_over_again(
        &mut self,
        turn: &mut Turn<'_>,
        mut state: Box<super::State>,
        outbox: &mut Outbox,
    ) -> Going {
        state.alarm = None;
        let Some(path) = self.routes.receiver(state.route).cloned() else {
            return self.not_taken(turn, state, NotTaken::OutputFirst, outbox);
        };
        let (head, id) = (state.head.clone(), turn.id());
        turn.outside.hand_over(HandOver::new(id, &path, head, state.line()));
        ControlFlow::Continue(state)
    }

    /// It was not taken: the client is told so.
    pub(super) fn not_taken(
        &mut self,
        turn: &mut Turn<'_>,
        mut state: Box<super::State>,
        why: NotTaken,
        outbox: &mut Outbox,
    ) -> Going {
        let kind = match why {
            NotTaken::OutputFirst => {
                self.arm(turn, &mut state, AGAIN_TICKS);
                return ControlFlow::Continue(state);
            }
            NotTaken::Error(kind) => kind,
        };
        if has_body(state.framing) {
            // It may be long, and nobody wants it.
            turn.close_after();
        }
        let failure = Failure::NotTaken(kind);
        let answer = failure.put(turn, outbox, state.method(), &self.name, Vec::new());
        state.reply.sent = answer.len;
        self.end(turn, state, answer.status.code());
        ControlFlow::Break(Flow::<Exchange>::Done)
    }
}
