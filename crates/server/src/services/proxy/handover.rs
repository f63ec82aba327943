//! Passes a client's connection to another process on this host, which answers the request.

use super::{
    Exchange, Progress, Proxy, RouteId, State,
    exchange::{Phase, alarm_after},
    failure::Failure,
};
use crate::{
    reactor::{HandOver, HandoverError},
    service::{Flow, RequestContext, ResponseWriter},
};
use pollux_http::request::Request;
use std::{ops::ControlFlow, path::Path, sync::Arc};

/// The number of ticks (100 ms each) until the next attempt while earlier replies are unsent.
const AGAIN_TICKS: u32 = 1;

impl Proxy {
    /// Begins an exchange whose client is handed over.
    pub(super) fn begin_handover(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        route: RouteId,
        receiver: Arc<Path>,
    ) -> Progress {
        let state = self.new_exchange(context, request, route);
        ControlFlow::Continue(hand_over(context, state, receiver))
    }

    /// Handles a hand-over that did not happen. If earlier replies are unsent, it is tried again later;
    /// otherwise the client receives an error.
    pub(super) fn not_taken(
        &mut self,
        context: &mut RequestContext<'_>,
        mut state: Box<State>,
        why: HandoverError,
        response: &mut ResponseWriter<'_>,
    ) -> Progress {
        let receiver = match state.take_phase() {
            Phase::HandOver { receiver } => receiver,
            other => {
                state.phase = other;
                return ControlFlow::Continue(state);
            }
        };
        let kind = match why {
            HandoverError::OutputFirst => {
                let alarm = alarm_after(context, AGAIN_TICKS);
                state.phase = Phase::HandOverLater { receiver, alarm };
                return ControlFlow::Continue(state);
            }
            HandoverError::Error(kind) => kind,
        };
        if state.request.has_body() {
            // The rest of the body is dropped with the connection.
            context.close_after();
        }
        let failure = Failure::NotTaken(kind);
        let answer = failure.put(context, response, &self.name, Vec::new());
        state.reply.complete(answer.status, answer.len);
        self.end(context, state);
        ControlFlow::Break(Flow::<Exchange>::Done)
    }
}

/// Gives the engine the command to hand the connection over. This is repeated for another attempt, because
/// the earlier replies may have been sent meanwhile. The number of attempts is bounded by the time limit for
/// sending, which closes a connection whose client does not read.
pub(super) fn hand_over(
    context: &mut RequestContext<'_>,
    mut state: Box<State>,
    receiver: Arc<Path>,
) -> Box<State> {
    let (head, id) = (state.request.head.clone(), context.id());
    context.reactor.hand_over(HandOver::new(id, &receiver, head, state.request.line()));
    state.phase = Phase::HandOver { receiver };
    state
}
