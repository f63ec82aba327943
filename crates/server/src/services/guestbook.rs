//! The guestbook: remarks of guests and a count of visits, in a store that answers asynchronously.
//!
//! The crate `pollux-guestbook` implements the page and the form; this module handles requests. No
//! architecture depends on it: it reaches a store only through upstream connections and alarms.
//!
//! There is no defence against forged requests (CSRF), because a forged request gains nothing: there is no
//! session and no cookie, and all guests have the same rights. A page of another site can post a remark from
//! its reader's browser, but its author can do so with any other program too.

mod answer;
mod store;
mod tickets;

use crate::service::{Event, Flow, Part, RequestContext, ResponseWriter, Service, ServiceContext};
use crate::{
    reactor::{AlarmId, EventTarget, WakeReason},
    settings::GuestbookConfig,
};
use answer::Reader;
use pollux_guestbook::{Request as Query, StoreError, Template, form, limits};
use pollux_http::{
    Status,
    path::SafePath,
    request::{Framing, KnownField, Method, Request, Target},
};
use std::sync::Arc;
use store::Store;
use tickets::{Ticket, Tickets};

/// The time for which a store may be silent, in ticks of the clock: 5 s.
const STORE_TIMEOUT: u32 = 50;

/// The methods that a guestbook supports (RFC 9110 §10.2.1).
const ALLOW: &[u8] = b"Allow: GET, HEAD, POST, OPTIONS\r\n";

/// A guestbook at one path.
#[derive(Debug)]
pub(crate) struct Guestbook {
    config: Arc<GuestbookConfig>,
    template: Arc<Template>,
    store: Store,
    tickets: Tickets,
}

/// The time at which a store is opened, if opening it has a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StoreOpening {
    /// At the start, so that an error is reported then.
    Now,
    /// At the first request: for workers that serve one connection.
    AtFirstUse,
}

/// An exchange that is not answered at once.
#[derive(Debug)]
pub(crate) struct Exchange(Box<GuestbookExchange>);

#[derive(Debug)]
struct GuestbookExchange {
    reader: Reader,
    phase: GuestbookPhase,
}

#[derive(Debug)]
enum GuestbookPhase {
    /// A form is being received.
    Form(Vec<u8>),
    /// The body is ignored, but it must be received before the response is sent.
    Unwanted(Refusal),
    /// The request was sent to the store.
    Store(Ticket, AlarmId),
}

/// The reason why a request is not sent to the store.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    status: Status,
    reason: &'static str,
    fields: &'static [u8],
}

/// The refusal of a form that is longer than any remark. The rest of the form is not read.
const TOO_LONG: Refusal =
    Refusal { status: Status::ContentTooLarge, reason: "the form is too long", fields: b"" };

/// The refusals of content that is no plain form. Their fields say what would be accepted, so that a client can
/// distinguish them (RFC 9110 §15.5.16).
const CODED: Refusal = Refusal {
    status: Status::UnsupportedMediaType,
    reason: "a form is taken without a content coding",
    fields: b"Accept-Encoding: identity\r\n",
};
const NO_FORM: Refusal = Refusal {
    status: Status::UnsupportedMediaType,
    reason: "a remark is posted as application/x-www-form-urlencoded",
    fields: b"Accept: application/x-www-form-urlencoded\r\n",
};

impl Guestbook {
    /// Opens the template and the store of one worker.
    ///
    /// # Errors
    /// The template cannot be read or is invalid, or the file cannot be used as the store.
    pub(crate) fn open(
        config: &Arc<GuestbookConfig>,
        opening: StoreOpening,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            config: config.clone(),
            template: config.open_template()?,
            store: Store::open(config, opening)?,
            tickets: Tickets::default(),
        })
    }

    /// Returns whether a request is for the guestbook. Paths are compared after decoding and resolving dot
    /// segments, as for origins and files: `/%67uestbook` and `/x/../guestbook` are `/guestbook`.
    #[inline]
    pub(crate) fn has(&self, target: &Target<'_>) -> bool {
        let Target::Path { path, .. } = target else { return false };
        let mine = self.config.path.as_bytes();
        *path == mine
            || SafePath::new(path, &mut Vec::new()).is_ok_and(|path| path.as_bytes() == mine)
    }

    fn query(
        &mut self,
        context: &mut RequestContext<'_>,
        reader: Reader,
        request: Query,
    ) -> Flow<Exchange> {
        let exchange = context.id();
        let ticket = self.tickets.insert(exchange);
        let now = context.worker.clock.tick();
        self.store.submit(context.reactor, now, ticket, request);
        let alarm = context.reactor.timer(STORE_TIMEOUT, EventTarget::Exchange(exchange));
        self.store.deliver(&mut self.tickets, context.reactor);
        Flow::Waiting(Exchange(Box::new(GuestbookExchange {
            reader,
            phase: GuestbookPhase::Store(ticket, alarm),
        })))
    }

    /// Handles a complete form.
    fn post(
        &mut self,
        context: &mut RequestContext<'_>,
        reader: Reader,
        body: &[u8],
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        match form::parse(body) {
            Ok(remark) => self.query(context, reader, Query::Post { remark }),
            Err(error) => {
                let status = match error {
                    form::FormError::TooLong => Status::ContentTooLarge,
                    _ => Status::BadRequest,
                };
                reader.refuse(context, response, status, &error.to_string(), b"");
                Flow::Done
            }
        }
    }

    /// Returns the reason to refuse a request without a request to the store, if there is one.
    fn refusal(request: &Request<'_>) -> Option<Refusal> {
        let (status, reason) = match request.method {
            Method::Get | Method::Head => return None,
            Method::Post if request.field(b"content-encoding").is_some() => return Some(CODED),
            Method::Post if is_form(request) => return None,
            Method::Post => return Some(NO_FORM),
            Method::Options => (Status::NoContent, ""),
            Method::Other(_) => (Status::NotImplemented, "this server does not know the method"),
            _ => (Status::MethodNotAllowed, "there are GET, HEAD, POST and OPTIONS"),
        };
        Some(Refusal { status, reason, fields: ALLOW })
    }
}

/// Returns whether the body has the default type of an HTML form.
fn is_form(request: &Request<'_>) -> bool {
    const TYPE: &[u8] = b"application/x-www-form-urlencoded";
    request.single(KnownField::ContentType).is_some_and(|value| {
        let essence = value.split(|&byte| byte == b';').next().unwrap_or_default();
        essence.trim_ascii().eq_ignore_ascii_case(TYPE)
    })
}

/// Refuses a request whose body is not read to its end. The connection cannot continue after that and is
/// closed.
fn refuse_and_close(
    context: &mut RequestContext<'_>,
    reader: &Reader,
    response: &mut ResponseWriter<'_>,
    refusal: Refusal,
) -> Flow<Exchange> {
    context.close_after();
    reader.refuse(context, response, refusal.status, refusal.reason, refusal.fields);
    Flow::Done
}

impl Service for Guestbook {
    type Exchange = Exchange;

    fn begin(
        &mut self,
        context: &mut RequestContext<'_>,
        request: &Request<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        let reader = Reader::of(request);
        let is_too_long = |len: u64| len > limits::FORM_BYTES as u64;
        if request.method == Method::Post
            && matches!(request.framing, Framing::Length(len) if is_too_long(len))
        {
            return refuse_and_close(context, &reader, response, TOO_LONG);
        }
        let phase = match Self::refusal(request) {
            Some(refusal) if request.framing == Framing::None || request.expect_continue => {
                let preflight = context.rules.preflight(request, ALLOW);
                let fields = [refusal.fields, &preflight].concat();
                reader.refuse(context, response, refusal.status, refusal.reason, &fields);
                return Flow::Done;
            }
            Some(refusal) => GuestbookPhase::Unwanted(refusal),
            None => GuestbookPhase::Form(Vec::new()),
        };
        match phase {
            GuestbookPhase::Form(_)
                if request.method != Method::Post && request.framing == Framing::None =>
            {
                self.query(context, reader, Query::Visit { shown: self.config.shown })
            }
            phase => Flow::NeedBody(Exchange(Box::new(GuestbookExchange { reader, phase }))),
        }
    }

    fn body(
        &mut self,
        context: &mut RequestContext<'_>,
        mut exchange: Exchange,
        part: Part<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        let GuestbookExchange { reader, phase } = &mut *exchange.0;
        match (phase, part) {
            (GuestbookPhase::Form(form), Part::Data(bytes)) => {
                if reader.is_post() {
                    if form.len() + bytes.len() > limits::FORM_BYTES {
                        return refuse_and_close(context, reader, response, TOO_LONG);
                    }
                    form.extend_from_slice(bytes);
                }
                Flow::NeedBody(exchange)
            }
            (GuestbookPhase::Unwanted(_), Part::Data(_)) => Flow::NeedBody(exchange),
            (_, Part::End { .. }) => {
                let GuestbookExchange { reader, phase } = *exchange.0;
                match phase {
                    GuestbookPhase::Form(form) if reader.is_post() => {
                        self.post(context, reader, &form, response)
                    }
                    GuestbookPhase::Form(_) => {
                        self.query(context, reader, Query::Visit { shown: self.config.shown })
                    }
                    GuestbookPhase::Unwanted(Refusal { status, reason, fields }) => {
                        reader.refuse(context, response, status, reason, fields);
                        Flow::Done
                    }
                    // No body is requested after the store's query was sent.
                    GuestbookPhase::Store(..) => {
                        Flow::Waiting(Exchange(Box::new(GuestbookExchange { reader, phase })))
                    }
                }
            }
            (GuestbookPhase::Store(..), _) => Flow::Waiting(exchange),
        }
    }

    fn resume(
        &mut self,
        context: &mut RequestContext<'_>,
        exchange: Exchange,
        event: Event<'_>,
        response: &mut ResponseWriter<'_>,
    ) -> Flow<Exchange> {
        let &GuestbookExchange { ref reader, phase: GuestbookPhase::Store(ticket, alarm) } =
            &*exchange.0
        else {
            return Flow::NeedBody(exchange);
        };
        let answer = match event {
            Event::Woken(_) => self.tickets.take(ticket),
            Event::Time(late) if late == alarm => {
                // The answer may have arrived in the same pass of the loop.
                let answer = self.tickets.take(ticket);
                if answer.is_none() {
                    self.store.is_late(context.reactor, ticket);
                    self.store.deliver(&mut self.tickets, context.reactor);
                }
                answer.or(Some(Err(StoreError::TimedOut)))
            }
            _ => None,
        };
        let Some(answer) = answer else { return Flow::Waiting(exchange) };
        context.reactor.cancel(alarm);
        self.config.store_errors.note(&answer);
        reader.answer(context, response, &self.config, &self.template, answer);
        Flow::Done
    }

    fn cancel(&mut self, context: &mut RequestContext<'_>, exchange: Exchange) {
        if let GuestbookPhase::Store(ticket, alarm) = exchange.0.phase {
            context.reactor.cancel(alarm);
            self.tickets.take(ticket);
            self.store.is_gone(context.reactor, ticket);
        }
    }

    fn event(&mut self, context: &mut ServiceContext<'_>, event: Event<'_>) {
        let now = context.worker.clock.tick();
        let is_over = self.store.event(context.reactor, now, event);
        self.store.deliver(&mut self.tickets, context.reactor);
        if let Some(why) = is_over {
            for exchange in self.tickets.fail_all(&why) {
                context.reactor.wake(exchange, WakeReason::Ready);
            }
        }
    }
}
