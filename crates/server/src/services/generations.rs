//! The sites of a worker across changes of the configuration: new requests go to the current sites, and an
//! exchange that began under a former configuration also ends under it.
//!
//! A request that is answered at once has no additional cost. A waiting exchange holds a reference to its
//! generation, so that a former generation is dropped with its last exchange.

use super::{
    Hosts,
    hosts::{self},
};
use crate::{
    protocol::rules::Rules,
    reactor::{ClientId, ExchangeId, Reactor},
    service::{
        Event, Flow, Part, RequestContext, ResponseWriter, Service, ServiceContext, StreamSend,
    },
    stats::{Counter, Counters},
};
use pollux_http::request::Request;
use pollux_hub::subscribers::Delivery;
use std::{borrow::Cow, rc::Rc, sync::Arc};

/// All sites of one worker: those of the current configuration, and those of former configurations that have
/// unfinished exchanges.
pub(crate) struct Generations {
    current: Hosts,
    life: Life,
    former: Vec<Former>,
}

/// A counted reference. The generation holds one, and each of its waiting exchanges holds one.
type Life = Rc<()>;

/// A configuration that was replaced. Each of them has at least one waiting exchange or background task,
/// which bounds their number.
struct Former {
    hosts: Hosts,
    rules: Arc<Rules>,
    life: Life,
}

/// An exchange, and the generation to which it belongs.
pub(crate) struct Exchange {
    inner: hosts::Exchange,
    life: Life,
}

impl Generations {
    /// Creates the sites of the first configuration.
    pub(crate) fn new(hosts: Hosts) -> Self {
        Self { current: hosts, life: Rc::new(()), former: Vec::new() }
    }

    /// Replaces the current sites by `next`; `rules` are the rules of the replaced sites. The hub and the
    /// guestbooks continue: they are moved to the new sites.
    pub(crate) fn adopt(
        &mut self,
        next: Self,
        rules: Arc<Rules>,
        context: &mut ServiceContext<'_>,
    ) {
        let mut hosts = std::mem::replace(&mut self.current, next.current);
        let life = std::mem::replace(&mut self.life, next.life);
        self.current.take_over(&mut hosts);
        self.former.push(Former { hosts, rules, life });
        self.retire(context.reactor, &context.worker.counters);
    }

    /// Ends the former generations that have no exchange and no background task left, and counts the others.
    #[cold]
    fn retire(&mut self, reactor: &mut Reactor, counters: &Counters) {
        self.former.retain_mut(|former| {
            let is_used = Rc::strong_count(&former.life) > 1 || former.hosts.has_any_background();
            if !is_used {
                former.hosts.retire(reactor);
            }
            is_used
        });
        counters.set(Counter::FormerConfigurations, self.former.len() as u64);
    }

    /// Returns the index of the former generation to which an exchange belongs, or `None` for the current
    /// one.
    #[inline]
    fn owner(&self, exchange: &Exchange) -> Option<usize> {
        if Rc::ptr_eq(&exchange.life, &self.life) || exchange.inner.outlives_generations() {
            return None;
        }
        self.former.iter().position(|former| Rc::ptr_eq(&former.life, &exchange.life))
    }
}

/// Calls `$call` for the generation of an exchange, with the rules of that generation.
macro_rules! dispatch {
    ($self:ident, $context:ident, $exchange:ident, |$hosts:ident, $inner:ident, $ctx:ident| $call:expr) => {{
        let owner = $self.owner(&$exchange);
        let Exchange { inner: $inner, life } = $exchange;
        match owner {
            None => {
                // An exchange of the hub or of a guestbook moves to the current generation, but it may be the last one
                // that a former generation waits for.
                let is_former = !Rc::ptr_eq(&life, &$self.life);
                let $hosts = &mut $self.current;
                let $ctx = &mut *$context;
                ($call, life, is_former)
            }
            Some(index) => {
                let Former { hosts: $hosts, rules, .. } = &mut $self.former[index];
                let $ctx = &mut $context.with_rules(rules);
                ($call, life, true)
            }
        }
    }};
}

impl Service for Generations {
    type Exchange = Exchange;

    #[inline]
    fn begin(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        let flow = self.current.begin(context, request, response);
        flow.map(|inner| Exchange { inner, life: self.life.clone() })
    }

    fn log_line<'b>(&self, request: &Request<'b>) -> Cow<'b, [u8]> {
        self.current.log_line(request)
    }

    fn refuse_large(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> bool {
        self.current.refuse_large(context, request, response)
    }

    fn body(
        &mut self,
        context: &mut RequestContext<'_>,
        exchange: Exchange,
        part: Part<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        let (flow, life, is_former) = dispatch!(self, context, exchange, |hosts, inner, ctx| hosts
            .body(ctx, inner, part, response));
        let flow = flow.map(|inner| Exchange { inner, life });
        if is_former {
            self.retire(context.reactor, &context.worker.counters);
        }
        flow
    }

    fn resume(
        &mut self,
        context: &mut RequestContext<'_>,
        exchange: Exchange,
        event: Event<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        // The configuration may have changed while a password was verified. The hub and the guestbooks belong to the
        // current generation then, but the request may be for one of them: its own generation borrows them for this call.
        let owner = self.owner(&exchange);
        let borrower = owner.filter(|_| exchange.inner.awaits_password());
        if let Some(index) = borrower {
            self.former[index].hosts.take_over(&mut self.current);
        }
        let (flow, life, is_former) = dispatch!(self, context, exchange, |hosts, inner, ctx| hosts
            .resume(ctx, inner, event, response));
        if let Some(index) = borrower {
            self.current.take_over(&mut self.former[index].hosts);
        }
        let flow = flow.map(|inner| Exchange { inner, life });
        if is_former {
            self.retire(context.reactor, &context.worker.counters);
        }
        flow
    }

    fn cancel(&mut self, context: &mut RequestContext<'_>, exchange: Exchange) {
        let ((), life, is_former) =
            dispatch!(self, context, exchange, |hosts, inner, ctx| hosts.cancel(ctx, inner));
        drop(life);
        if is_former {
            self.retire(context.reactor, &context.worker.counters);
        }
    }

    fn exchange_has_left(&mut self, context: &mut ServiceContext<'_>) {
        // It may have been the last exchange of a former generation.
        if !self.former.is_empty() {
            self.retire(context.reactor, &context.worker.counters);
        }
    }

    #[inline]
    fn has_stream_work(&self) -> bool {
        self.current.has_stream_work()
    }

    fn pump_streams(
        &mut self,
        context: &mut ServiceContext<'_>,
        send: impl FnMut(ClientId, StreamSend<'_>) -> Delivery,
    ) {
        self.current.pump_streams(context, send);
        // An exchange may have become a stream.
        self.exchange_has_left(context);
    }

    fn stream_has_room(&mut self, number: u32) {
        self.current.stream_has_room(number);
    }

    fn stream_has_ended(&mut self, number: u32) {
        self.current.stream_has_ended(number);
    }

    fn hands_over_streams(&self) -> bool {
        self.current.hands_over_streams()
    }

    fn end_waiting(&mut self, context: &mut ServiceContext<'_>) {
        self.current.end_waiting(context);
    }

    fn release_stream(&mut self, number: u32) -> Option<Vec<u8>> {
        self.current.release_stream(number)
    }

    fn adopt_stream(
        &mut self,
        context: &mut ServiceContext<'_>,
        client: ClientId,
        state: &[u8],
    ) -> Option<u32> {
        self.current.adopt_stream(context, client, state)
    }

    fn park(
        &mut self,
        context: &mut ServiceContext<'_>,
        exchange: Exchange,
    ) -> Result<u32, Exchange> {
        let Exchange { inner, life } = exchange;
        if !inner.outlives_generations() {
            return Err(Exchange { inner, life });
        }
        let number = match self.current.park(context, inner) {
            Ok(number) => number,
            Err(inner) => return Err(Exchange { inner, life }),
        };
        drop(life);
        self.exchange_has_left(context);
        Ok(number)
    }

    fn unpark(
        &mut self,
        context: &mut ServiceContext<'_>,
        exchange: ExchangeId,
        number: u32,
        left: u32,
    ) -> Option<Exchange> {
        let inner = self.current.unpark(context, exchange, number, left)?;
        Some(Exchange { inner, life: self.life.clone() })
    }

    fn background(
        &mut self,
        context: &mut ServiceContext<'_>,
        background: ExchangeId,
        event: Event<'_>,
    ) -> bool {
        let former = self.former.iter_mut().find(|former| former.hosts.has_background(background));
        let Some(former) = former else {
            return self.current.background(context, background, event);
        };
        let mut own = context.with_rules(&former.rules);
        let exists = former.hosts.background(&mut own, background, event);
        // The event may have ended the last task of that generation.
        if !former.hosts.has_background(background) {
            self.retire(context.reactor, &context.worker.counters);
        }
        exists
    }

    fn event(&mut self, context: &mut ServiceContext<'_>, event: Event<'_>) {
        match self.former.iter_mut().find(|former| former.hosts.is_meant_by_origin(&event)) {
            Some(former) => former.hosts.event(&mut context.with_rules(&former.rules), event),
            None => self.current.event(context, event),
        }
    }
}
