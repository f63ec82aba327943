//! The input of subscribers: the head of a stream, then events.

use super::{Subscriber, SubscriberPhase};
use crate::{
    event_stream::{is_event_stream, media_type},
    outcome::Failure,
    push::{
        order::{Delivery, Order},
        payload::{ContentCheck, Payloads},
        plan::PushPlan,
        record::{IntervalRecorder, SubscriberRecord},
        stream::{Line, split},
    },
    schedule::nanoseconds,
};
use pollux_http::reply::{Event, ReplyHead};
use std::sync::atomic::Ordering::Relaxed;

/// The longest identifier that is sent back as Last-Event-ID.
const MAX_ID_BYTES: usize = 1024;

/// The number of bytes of a refusal's text that are shown.
const SHOWN_BYTES: usize = 200;

/// Refuses content that is no event stream.
///
/// # Errors
/// The reason, with the type that the server names.
fn check_type(head: &ReplyHead<'_>) -> Result<(), (Failure, String)> {
    let essence = media_type(head);
    if is_event_stream(&essence) {
        return Ok(());
    }
    let found = match &essence[..] {
        "" => "without a type".to_owned(),
        essence => format!("of the type {}", essence.chars().take(SHOWN_BYTES).collect::<String>()),
    };
    let text = format!("the answer is {found}, not text/event-stream: is this a subscription?");
    Err((Failure::BadReply, text))
}

/// Processes the input of the subscribers of one thread.
pub(super) struct Receiver<'a> {
    plan: &'a PushPlan,
    payloads: Payloads,
    order: Order,
    pub(super) record: SubscriberRecord,
    /// Deliveries that were the first of their publication to their subscriber.
    pub(super) unique: u64,
    intervals: Option<IntervalRecorder>,
    /// The server's identifiers of the publications, as far as they are known; they are the same for
    /// all subscribers.
    ids: Vec<Option<Box<[u8]>>>,
    /// The subscriber that is receiving an event, and the event's identifier so far.
    id: (u32, Vec<u8>),
    request: Vec<u8>,
}

impl<'a> Receiver<'a> {
    pub(super) fn new(plan: &'a PushPlan, order: Order, record: SubscriberRecord) -> Self {
        Self {
            plan,
            payloads: plan.payloads.clone(),
            order,
            record,
            unique: 0,
            intervals: plan.config.intervals.then(|| IntervalRecorder::new(false)),
            ids: vec![None; plan.schedule.len() as usize],
            id: (u32::MAX, Vec::new()),
            request: Vec::new(),
        }
    }

    /// Writes the request of a subscriber: it continues after the last update that it received.
    pub(super) fn request(&mut self, subscriber: u32) -> &[u8] {
        self.request.clear();
        self.request.extend_from_slice(&self.plan.head);
        let last = self.order.next(subscriber).checked_sub(1);
        if let Some(id) = last.and_then(|last| self.ids.get(last as usize)?.as_ref()) {
            self.request.extend_from_slice(b"Last-Event-ID: ");
            self.request.extend_from_slice(id);
            self.request.extend_from_slice(b"\r\n");
        }
        self.request.extend_from_slice(b"\r\n");
        &self.request
    }

    /// Processes bytes that `subscriber` received.
    ///
    /// # Errors
    /// The reply is no event stream, or the stream has ended.
    pub(super) fn feed(
        &mut self,
        subscriber: &mut Subscriber,
        bytes: &[u8],
    ) -> Result<(), (Failure, String)> {
        let now_ns = self.plan.now_ns();
        self.record.bytes_received += bytes.len() as u64;
        let Subscriber { reader, rest, content: found, phase, index, .. } = subscriber;
        let mut unread = bytes;
        let mut refusal = None;
        loop {
            let output = match reader.read(unread) {
                Ok(output) => output,
                Err(error) => return Err((Failure::BadReply, error.to_string())),
            };
            unread = &unread[output.consumed..];
            match output.event {
                Event::NeedMore => break,
                Event::Interim(_) => {}
                Event::Head(head) if head.status == 200 => {
                    check_type(&head)?;
                    *phase = SubscriberPhase::Streaming;
                }
                Event::Head(head) => refusal = Some(format!("the server answers {}", head.status)),
                Event::Content(content) => {
                    if let Some(refusal) = &mut refusal {
                        let text = &content[..content.len().min(SHOWN_BYTES)];
                        refusal.push_str(": ");
                        refusal.push_str(String::from_utf8_lossy(text).trim());
                        break;
                    }
                    let taken = split(rest, content, |line| self.line(*index, found, line, now_ns));
                    taken.map_err(|kind| (kind, "a line of the stream is too long".into()))?;
                }
                Event::End { .. } => {
                    return Err(match refusal {
                        Some(refusal) => (Failure::Status, refusal),
                        None => (Failure::ClosedEarly, "the server ended the stream".into()),
                    });
                }
            }
        }
        refusal.map_or(Ok(()), |refusal| Err((Failure::Status, refusal)))
    }

    /// Processes a line of an event. `found` is the check of the event's earlier lines of data.
    fn line(
        &mut self,
        subscriber: u32,
        found: &mut Option<ContentCheck>,
        line: Line<'_>,
        now_ns: u64,
    ) {
        match line {
            Line::Other => {}
            Line::Id(id) => {
                self.id.0 = subscriber;
                self.id.1.clear();
                let is_safe = id.iter().all(|byte| *byte >= b' ' && *byte != 0x7f);
                if id.len() <= MAX_ID_BYTES && is_safe {
                    self.id.1.extend_from_slice(id);
                }
            }
            Line::Data(data) => {
                let is_exact = self.plan.config.is_exact;
                let check = match self.payloads.check(data, is_exact) {
                    ContentCheck::Whole(number)
                        if u64::from(number) >= self.plan.schedule.len() =>
                    {
                        ContentCheck::Corrupt
                    }
                    check => check,
                };
                *found = Some(found.map_or(check, |before| before.with_line(check, is_exact)));
            }
            Line::End => {
                let number = match found.take() {
                    Some(ContentCheck::Whole(number)) => number,
                    Some(ContentCheck::Corrupt) => return self.record.corrupt += 1,
                    Some(ContentCheck::Foreign) => return self.record.foreign += 1,
                    None => return,
                };
                self.deliver(subscriber, number, now_ns);
                // The identifier may have arrived in an earlier piece of input, and the event of another
                // subscriber may have replaced it since. Then the stored identifier stays until the other event
                // ends.
                if self.id.0 != subscriber {
                    return;
                }
                self.id.0 = u32::MAX;
                let known = &mut self.ids[number as usize];
                if known.is_none() && !self.id.1.is_empty() {
                    *known = Some(self.id.1.as_slice().into());
                }
            }
        }
    }

    fn deliver(&mut self, subscriber: u32, number: u32, now_ns: u64) {
        match self.order.deliver(subscriber, number) {
            Delivery::InOrder => {}
            Delivery::Late => self.record.reordered += 1,
            Delivery::Duplicate => {
                self.record.duplicated += 1;
                return;
            }
        }
        self.unique += 1;
        self.record.delivered[number as usize] += 1;
        self.plan.progress.delivered.fetch_add(1, Relaxed);
        let Some(start_ns) = self.plan.start_ns() else { return };
        let since_ns = now_ns.saturating_sub(start_ns);
        self.record.last_ns[number as usize] = since_ns;
        let scheduled_ns = self.plan.schedule.at(number.into()).unwrap_or(0);
        if !self.plan.is_measured(scheduled_ns) {
            return;
        }
        let latency_ns = since_ns.saturating_sub(scheduled_ns);
        self.record.latency.saturating_record(latency_ns);
        if let Some(intervals) = &mut self.intervals {
            let warmup_ns = nanoseconds(self.plan.config.warmup);
            intervals.record(latency_ns, since_ns.saturating_sub(warmup_ns));
        }
    }

    /// Returns the measurements.
    pub(super) fn finish(mut self) -> SubscriberRecord {
        self.record.intervals = self.intervals.map(IntervalRecorder::finish).unwrap_or_default();
        self.record
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::Config,
        push::{PublishOptions, PushConfig},
        target::Url,
    };
    use std::time::Duration;

    fn plan() -> PushPlan {
        let url: Url = "http://127.0.0.1/".parse().unwrap();
        let base = Config::new(url.clone(), 10.0, Duration::from_secs(1));
        let publish = PublishOptions { url, headers: Vec::new(), body: "data={data}".into() };
        PushPlan::new(&PushConfig::new(&base, 2, publish).unwrap(), 7).unwrap()
    }

    fn receiver(plan: &PushPlan) -> Receiver<'_> {
        Receiver::new(plan, Order::new(2), SubscriberRecord::new(plan.schedule.len()))
    }

    /// Regression test: the first event to end once discarded the identifier of another one. Then none was ever
    /// known, and the updates that came while a subscriber connected again counted as lost.
    #[test]
    fn an_identifier_may_arrive_before_the_rest_of_its_event() {
        let plan = plan();
        let mut receiver = receiver(&plan);
        let content = plan.payloads.clone().get(0).to_vec();
        let mut found = [None, None];
        // The server sends each line by itself: to all subscribers, before the next one.
        for line in [Line::Id(b"7"), Line::Data(&content), Line::End] {
            for (subscriber, found) in (0..).zip(&mut found) {
                receiver.line(subscriber, found, line, 0);
            }
        }
        assert_eq!(receiver.unique, 2);
        for subscriber in [0, 1] {
            let request = String::from_utf8_lossy(receiver.request(subscriber)).into_owned();
            assert!(request.ends_with("\r\nLast-Event-ID: 7\r\n\r\n"), "{request}");
        }
    }
}
