//! Passes a client's connection to another process on this host, which answers the request.

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

/// Ticks (100 ms each) until the next try while earlier replies are unsent.
const AGAIN_TICKS: u32 = 1;

impl Proxy {
    /// Gives the engine the command to hand the connection over.
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

    /// Tries again, because the earlier replies may have been sent by now. The number of tries is
    /// bounded by the time limit for sending: it closes a connection whose client does not read.
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

    /// Handles a hand-over that did not happen. If earlier replies are unsent, it is tried again later;
    /// otherwise the client receives an error.
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
            // The rest of the body is dropped with the connection.
            context.close_after();
        }
        let failure = Failure::NotTaken(kind);
        let answer = failure.put(context, outbox, state.method(), &self.name, Vec::new());
        state.reply.sent = answer.len;
        self.end(context, state, answer.status.code());
        ControlFlow::Break(Flow::<Exchange>::Done)
    }
}
