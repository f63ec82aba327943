//! Requests that are another process' on this host: it is given the client's connection itself.

use super::{
    Exchange, Progress, Proxy, RouteId, exchange::ExchangePhase, failure::Failure, has_body,
};
use crate::{
    reactor::{HandOver, NotTaken},
    service::{Flow, RequestContext},
    transport::outbox::Outbox,
};
use pollux_http::request::Request;
use std::{ops::ControlFlow, path::Path, sync::Arc};

/// Replies to earlier requests have to leave first: after so many ticks it is tried again.
const AGAIN_TICKS: u32 = 1;

impl Proxy {
    /// Requests that the connection is handed over.
    pub(super) fn begin_handover(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        route: RouteId,
        path: &Arc<Path>,
    ) -> Progress {
        let mut state = self.spare.pop().unwrap_or_default();
        state.begin(request, route, context.worker.clock.tick());
        state.phase = ExchangePhase::HandOver;
        context.reactor.hand_over(HandOver::new(
            context.id(),
            path,
            state.head.clone(),
            request.line,
        ));
        ControlFlow::Continue(state)
    }

    /// Replies that were in the way may have left by now.
    pub(super) fn hand_over_again(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<super::State>,
        outbox: &mut Outbox,
    ) -> Progress {
        state.alarm = None;
        let Some(path) = self.routes.receiver(state.route).cloned() else {
            return self.not_taken(context, state, NotTaken::OutputFirst, outbox);
        };
        let (head, id) = (state.head.clone(), context.id());
        context.reactor.hand_over(HandOver::new(id, &path, head, state.line()));
        ControlFlow::Continue(state)
    }

    /// It was not accepted: the client receives an error.
    pub(super) fn not_taken(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<super::State>,
        why: NotTaken,
        outbox: &mut Outbox,
    ) -> Progress {
        let kind = match why {
            NotTaken::OutputFirst => {
                self.arm(context, &mut state, AGAIN_TICKS);
                return ControlFlow::Continue(state);
            }
            NotTaken::Error(kind) => kind,
        };
        if has_body(state.framing) {
            // It may be long, and nobody wants it.
            context.close_after();
        }
        let failure = Failure::NotTaken(kind);
        let answer = failure.put(context, outbox, state.method(), &self.name, Vec::new());
        state.reply.sent = answer.len;
        self.end(context, state, answer.status.code());
        ControlFlow::Break(Flow::<Exchange>::Done)
    }
}
