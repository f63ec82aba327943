//! The data of a request beyond its first line, which is kept until its response is logged.
//!
//! It exists only in servers that log more than Common Log Format contains. A request that is
//! answered at once uses the buffers of the previous request; for a request that waits, a copy is
//! made.

use super::{LogWriter, request_id};
use crate::config::RequestIds;
use pollux_http::{fields::Fields, request::Request};
use std::mem;

/// The data that is kept of one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestRecord {
    /// The time at which its head was complete, in milliseconds of the worker's clock.
    begun_ms: u32,
    /// Its authority, if it has one.
    host: Vec<u8>,
    /// Its field lines; empty if no log line shows any.
    fields: Vec<u8>,
    /// Its identifier; empty if requests have none.
    id: Vec<u8>,
    /// The user whose password it contained; empty if it contained none.
    user: Vec<u8>,
    /// Its request line, if a rewrite has replaced that for the services; otherwise empty.
    line: Vec<u8>,
    /// Whether the head of its response contains the identifier.
    has_sent_id: bool,
    /// Whether a line was written for it.
    is_logged: bool,
}

impl RequestRecord {
    /// Replaces the record of the previous request.
    pub(super) fn begin(&mut self, request: &Request<'_>, now_ms: u32, keeps_head: bool) {
        self.begun_ms = now_ms;
        (self.is_logged, self.has_sent_id) = (false, false);
        self.host.clear();
        self.user.clear();
        self.line.clear();
        self.fields.clear();
        if keeps_head {
            self.host.extend_from_slice(request.host.unwrap_or_default());
            request.put_fields(&mut self.fields);
        }
    }

    /// Returns the identifier, if requests have one.
    pub(crate) fn id(&self) -> Option<&[u8]> {
        (!self.id.is_empty()).then_some(&*self.id)
    }

    /// Returns the name of the user, if the request contained a password.
    pub(super) fn user(&self) -> Option<&[u8]> {
        (!self.user.is_empty()).then_some(&*self.user)
    }

    /// Returns the request line that the client sent, if services got another one.
    pub(crate) fn line(&self) -> Option<&[u8]> {
        (!self.line.is_empty()).then_some(&*self.line)
    }

    /// Returns the time at which the head was complete.
    pub(crate) fn begun_ms(&self) -> u32 {
        self.begun_ms
    }

    /// Returns the first value of a field.
    pub(super) fn field(&self, name: &str) -> Option<&[u8]> {
        Fields::new(&self.fields).find(|field| field.is(name.as_bytes())).map(|field| field.value)
    }

    /// Returns the authority of the request.
    pub(super) fn host(&self) -> Option<&[u8]> {
        (!self.host.is_empty()).then_some(&*self.host)
    }
}

/// The records of one worker.
#[derive(Debug)]
pub(crate) struct Records {
    /// Whether a line shows fields of the request.
    keeps_head: bool,
    ids: RequestIds,
    /// The record of the request for which a service is called, if there is one.
    present: RequestRecord,
    is_present: bool,
    /// The records of waiting requests, indexed by the descriptor of the connection; a connection
    /// has one request at a time.
    waiting: Vec<Option<Box<RequestRecord>>>,
}

impl Records {
    /// Creates the records for a worker with this log. `is_needed` says whether each line needs
    /// data of the record: sites have users, or rewrites. Returns `None` if there is no need:
    /// requests have no identifiers, and Common Log Format contains all data that is logged.
    pub(crate) fn of(
        log: Option<&LogWriter>,
        ids: RequestIds,
        is_needed: bool,
    ) -> Option<Box<Self>> {
        let config = log.map(LogWriter::config);
        let keeps_head = config.is_some_and(|config| config.needs_head());
        let has_slow = config.is_some_and(|config| config.slow.is_some());
        (keeps_head || has_slow || ids != RequestIds::Off || is_needed && log.is_some()).then(
            || {
                Box::new(Self {
                    keeps_head,
                    ids,
                    present: RequestRecord::default(),
                    is_present: false,
                    waiting: Vec::new(),
                })
            },
        )
    }

    /// Begins the record of a request that has arrived.
    pub(crate) fn begin(&mut self, request: &Request<'_>, now_ms: u32) {
        self.present.begin(request, now_ms, self.keeps_head);
        request_id::identify(self.ids, request, &mut self.present.id);
        self.is_present = true;
    }

    /// Sets the user of the present request.
    pub(crate) fn set_user(&mut self, name: &[u8]) {
        self.present.user.clear();
        self.present.user.extend_from_slice(name);
    }

    /// Keeps the request line of the present request, because services get another one.
    pub(crate) fn set_line(&mut self, line: &[u8]) {
        self.present.line.clear();
        self.present.line.extend_from_slice(line);
    }

    /// Returns whether requests have identifiers.
    pub(crate) fn has_ids(&self) -> bool {
        self.ids != RequestIds::Off
    }

    /// Returns whether the response to the present request still needs its identifier.
    pub(crate) fn has_id_to_send(&self) -> bool {
        self.is_present && self.has_ids() && !self.present.has_sent_id
    }

    /// Inserts the identifier of the present request into the head of its response, if a head
    /// begins at `start`.
    pub(crate) fn put_id(&mut self, bytes: &mut Vec<u8>, start: usize) {
        self.present.has_sent_id = request_id::put(bytes, start, &self.present.id);
    }

    /// Makes the record of a waiting request the present one: the service is called again for it.
    pub(crate) fn resume(&mut self, fd: i32) {
        let record = self.waiting.get_mut(fd as usize).and_then(Option::take);
        self.is_present = record.is_some();
        if let Some(record) = record {
            self.present = *record;
        }
    }

    /// Ends a call of the service. The record is kept if the request `waits`.
    pub(crate) fn leave(&mut self, fd: i32, waits: bool) {
        // A stream that was logged at its start needs its record no longer.
        if self.is_present && waits && !self.present.is_logged {
            let index = fd as usize;
            if index >= self.waiting.len() {
                self.waiting.resize_with(index + 1, || None);
            }
            self.waiting[index] = Some(Box::new(mem::take(&mut self.present)));
        } else if let Some(waiting) = self.waiting.get_mut(fd as usize) {
            *waiting = None;
        }
        self.is_present = false;
    }

    /// Returns the record of the request for which a service is called.
    pub(crate) fn present(&self) -> Option<&RequestRecord> {
        self.is_present.then_some(&self.present)
    }

    /// Notes that a line was written.
    pub(crate) fn set_logged(&mut self) {
        self.present.is_logged = true;
    }
}
