//! The guestbook: remarks of guests and a count of visits, on a store that answers later.
//!
//! What a page and a form are is `pollux-guestbook`'s; here is what becomes of a request. No
//! architecture knows of it: a store is reached through links and alarms alone.
//!
//! There is no defence against forged requests (CSRF), since there is nothing to forge: no session,
//! no cookie, no right that one guest has and another has not. A page elsewhere can post a remark in
//! its reader's browser, as its author can with any other program.

mod answer;
mod store;
mod tickets;
mod trouble;

pub(crate) use trouble::Trouble;

use crate::service::{Application, Flow, Part, Turn, Wake, World};
use crate::{
    config::GuestbookConfig,
    reactor::{AlarmId, To},
    transport::outbox::Outbox,
};
use answer::Reader;
use pollux_guestbook::{Request as Asked, StoreError, Template, form, limits};
use pollux_http::{
    Status,
    path::SafePath,
    request::{Framing, KnownField, Method, Request, Target},
};
use std::sync::Arc;
use store::Store;
use tickets::{Ticket, Tickets};

/// For how long a store may be silent, in ticks of the clock: 5 s.
const STORE_TIMEOUT: u32 = 50;

/// The methods that a guestbook has (RFC 9110 §10.2.1).
const ALLOW: &[u8] = b"Allow: GET, HEAD, POST, OPTIONS\r\n";

/// A guestbook at one path.
#[derive(Debug)]
pub(crate) struct Guestbook {
    config: Arc<GuestbookConfig>,
    template: Arc<Template>,
    store: Store,
    tickets: Tickets,
}

/// When a store is opened that costs something to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// At the start, so that what is wrong with it is told then.
    Now,
    /// When it is asked: for units that live for one connection.
    AtFirstUse,
}

/// An exchange that is not answered at once.
#[derive(Debug)]
pub(crate) struct Exchange(Box<State>);

#[derive(Debug)]
struct State {
    reader: Reader,
    step: Step,
}

#[derive(Debug)]
enum Step {
    /// A form is being received.
    Form(Vec<u8>),
    /// Nothing in the body is wanted, but it has to come before the answer.
    Unwanted(Refusal),
    /// The store has been asked.
    Store(Ticket, AlarmId),
}

/// Why a request is not put to the store.
#[derive(Clone, Copy, Debug)]
struct Refusal {
    status: Status,
    reason: &'static str,
    fields: &'static [u8],
}

/// A form that is longer than any remark: the rest of it is not waited for.
const TOO_LONG: Refusal =
    Refusal { status: Status::ContentTooLarge, reason: "the form is too long", fields: b"" };

impl Guestbook {
    /// Opens the template and the store of one worker.
    ///
    /// # Errors
    /// The template cannot be read or is none; a file cannot be the store.
    pub(crate) fn open(config: &Arc<GuestbookConfig>, opening: Opening) -> anyhow::Result<Self> {
        Ok(Self {
            config: config.clone(),
            template: config.open_template()?,
            store: Store::open(config, opening)?,
            tickets: Tickets::default(),
        })
    }

    /// Whether a request is for the guestbook. Paths are compared as they are meant, as those of
    /// origins and files are: `/%67uestbook` and `/x/../guestbook` are `/guestbook`.
    #[inline]
    pub(crate) fn has(&self, target: &Target<'_>) -> bool {
        let Target::Path { path, .. } = target else { return false };
        let mine = self.config.path.as_bytes();
        *path == mine
            || SafePath::new(path, &mut Vec::new()).is_ok_and(|path| path.as_bytes() == mine)
    }

    fn ask(&mut self, turn: &mut Turn<'_>, reader: Reader, request: Asked) -> Flow<Exchange> {
        let exchange = turn.id();
        let ticket = self.tickets.insert(exchange);
        let now = turn.local.clock.tick();
        self.store.ask(turn.outside, now, ticket, request);
        let alarm = turn.outside.timer(STORE_TIMEOUT, To::Exchange(exchange));
        self.store.deliver(&mut self.tickets, turn.outside);
        Flow::Waiting(Exchange(Box::new(State { reader, step: Step::Store(ticket, alarm) })))
    }

    /// The whole form has come.
    fn post(
        &mut self,
        turn: &mut Turn<'_>,
        reader: Reader,
        body: &[u8],
        outbox: &mut Outbox,
    ) -> Flow<Exchange> {
        match form::parse(body) {
            Ok(remark) => self.ask(turn, reader, Asked::Post { remark }),
            Err(error) => {
                let status = match error {
                    form::FormError::TooLong => Status::ContentTooLarge,
                    _ => Status::BadRequest,
                };
                reader.refuse(turn, outbox, status, &error.to_string(), b"");
                Flow::Done
            }
        }
    }

    /// What of a request is not put to the store.
    fn refusal(request: &Request<'_>) -> Option<Refusal> {
        let (status, reason) = match request.method {
            Method::Get | Method::Head => return None,
            Method::Post if request.field(b"content-encoding").is_some() => {
                (Status::UnsupportedMediaType, "a form is taken without a content coding")
            }
            Method::Post if is_form(request) => return None,
            Method::Post => {
                let status = Status::UnsupportedMediaType;
                (status, "a remark is posted as application/x-www-form-urlencoded")
            }
            Method::Options => (Status::NoContent, ""),
            Method::Other(_) => (Status::NotImplemented, "this server does not know the method"),
            _ => (Status::MethodNotAllowed, "there are GET, HEAD, POST and OPTIONS"),
        };
        Some(Refusal { status, reason, fields: ALLOW })
    }
}

/// Whether the body is what an HTML form posts unless it is told otherwise.
fn is_form(request: &Request<'_>) -> bool {
    const TYPE: &[u8] = b"application/x-www-form-urlencoded";
    request.single(KnownField::ContentType).is_some_and(|value| {
        let essence = value.split(|&byte| byte == b';').next().unwrap_or_default();
        essence.trim_ascii().eq_ignore_ascii_case(TYPE)
    })
}

/// Refuses a request whose body is not read to its end: the connection cannot go on behind it.
fn refuse_and_close(
    turn: &mut Turn<'_>,
    reader: &Reader,
    outbox: &mut Outbox,
    refusal: Refusal,
) -> Flow<Exchange> {
    turn.close_after();
    reader.refuse(turn, outbox, refusal.status, refusal.reason, refusal.fields);
    Flow::Done
}

impl Application for Guestbook {
    type Exchange = Exchange;

    fn begin(
        &mut self,
        turn: &mut Turn<'_>,
        request: &Request<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Exchange> {
        let reader = Reader::of(request);
        let is_too_long = |len: u64| len > limits::FORM_BYTES as u64;
        if request.method == Method::Post
            && matches!(request.framing, Framing::Length(len) if is_too_long(len))
        {
            return refuse_and_close(turn, &reader, outbox, TOO_LONG);
        }
        let step = match Self::refusal(request) {
            Some(refusal) if request.framing == Framing::None || request.expect_continue => {
                reader.refuse(turn, outbox, refusal.status, refusal.reason, refusal.fields);
                return Flow::Done;
            }
            Some(refusal) => Step::Unwanted(refusal),
            None => Step::Form(Vec::new()),
        };
        match step {
            Step::Form(_) if request.method != Method::Post && request.framing == Framing::None => {
                self.ask(turn, reader, Asked::Visit { shown: self.config.shown })
            }
            step => Flow::NeedBody(Exchange(Box::new(State { reader, step }))),
        }
    }

    fn body(
        &mut self,
        turn: &mut Turn<'_>,
        mut exchange: Exchange,
        part: Part<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Exchange> {
        let State { reader, step } = &mut *exchange.0;
        match (step, part) {
            (Step::Form(form), Part::Octets(octets)) => {
                if reader.is_post() {
                    if form.len() + octets.len() > limits::FORM_BYTES {
                        return refuse_and_close(turn, reader, outbox, TOO_LONG);
                    }
                    form.extend_from_slice(octets);
                }
                Flow::NeedBody(exchange)
            }
            (Step::Unwanted(_), Part::Octets(_)) => Flow::NeedBody(exchange),
            (_, Part::End { .. }) => {
                let State { reader, step } = *exchange.0;
                match step {
                    Step::Form(form) if reader.is_post() => self.post(turn, reader, &form, outbox),
                    Step::Form(_) => {
                        self.ask(turn, reader, Asked::Visit { shown: self.config.shown })
                    }
                    Step::Unwanted(Refusal { status, reason, fields }) => {
                        reader.refuse(turn, outbox, status, reason, fields);
                        Flow::Done
                    }
                    // No body is asked for once the store is.
                    Step::Store(..) => Flow::Waiting(Exchange(Box::new(State { reader, step }))),
                }
            }
            (Step::Store(..), _) => Flow::Waiting(exchange),
        }
    }

    fn resume(
        &mut self,
        turn: &mut Turn<'_>,
        exchange: Exchange,
        wake: Wake<'_>,
        outbox: &mut Outbox,
    ) -> Flow<Exchange> {
        let &State { ref reader, step: Step::Store(ticket, alarm) } = &*exchange.0 else {
            return Flow::NeedBody(exchange);
        };
        let answer = match wake {
            Wake::Note(_) => self.tickets.take(ticket),
            Wake::Time(late) if late == alarm => {
                // The answer may have come in the same pass of the loop.
                let answer = self.tickets.take(ticket);
                if answer.is_none() {
                    self.store.is_late(turn.outside, ticket);
                    self.store.deliver(&mut self.tickets, turn.outside);
                }
                answer.or(Some(Err(StoreError::TimedOut)))
            }
            _ => None,
        };
        let Some(answer) = answer else { return Flow::Waiting(exchange) };
        turn.outside.cancel(alarm);
        self.config.trouble.note(&answer);
        reader.answer(turn, outbox, &self.config, &self.template, answer);
        Flow::Done
    }

    fn cancel(&mut self, turn: &mut Turn<'_>, exchange: Exchange) {
        if let Step::Store(ticket, alarm) = exchange.0.step {
            turn.outside.cancel(alarm);
            self.tickets.take(ticket);
            self.store.is_gone(turn.outside, ticket);
        }
    }

    fn event(&mut self, world: &mut World<'_>, wake: Wake<'_>) {
        let now = world.local.clock.tick();
        let is_over = self.store.event(world.outside, now, wake);
        self.store.deliver(&mut self.tickets, world.outside);
        if let Some(why) = is_over {
            for exchange in self.tickets.fail_all(&why) {
                world.outside.wake(exchange, 0);
            }
        }
    }
}
