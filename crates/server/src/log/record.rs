//! What is kept of a request beyond its first line until its response is logged.
//!
//! Only servers whose log shows more than Common Log Format have this. A request that is answered at once uses
//! the same buffers as the one before; for one that waits, a copy is kept.

use super::LogWriter;
use crate::{config::RequestIds, service::request_id};
use pollux_http::{fields::Fields, request::Request};
use std::mem;

/// What is kept of one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestRecord {
    /// When its head had come, in milliseconds of the worker's clock.
    begun_ms: u32,
    /// Its authority, if it has one.
    host: Vec<u8>,
    /// Its field lines; nothing where no line shows any.
    fields: Vec<u8>,
    /// Its identifier; nothing where requests have none.
    id: Vec<u8>,
    /// Whose password it had; nothing where it had none.
    user: Vec<u8>,
    /// The head of its response has the identifier.
    has_sent_id: bool,
    /// A line was written for it.
    is_logged: bool,
}

impl RequestRecord {
    /// Replaces the record of the request before.
    pub(super) fn begin(&mut self, request: &Request<'_>, now_ms: u32, keeps_head: bool) {
        self.begun_ms = now_ms;
        (self.is_logged, self.has_sent_id) = (false, false);
        self.host.clear();
        self.user.clear();
        self.fields.clear();
        if keeps_head {
            self.host.extend_from_slice(request.host.unwrap_or_default());
            request.put_fields(&mut self.fields);
        }
    }

    /// The identifier, if requests have one.
    pub(crate) fn id(&self) -> Option<&[u8]> {
        (!self.id.is_empty()).then_some(&*self.id)
    }

    /// The name of the user, if the request had a password.
    pub(super) fn user(&self) -> Option<&[u8]> {
        (!self.user.is_empty()).then_some(&*self.user)
    }

    /// When the head had come.
    pub(crate) fn begun_ms(&self) -> u32 {
        self.begun_ms
    }

    /// The first value of a field.
    pub(super) fn field(&self, name: &str) -> Option<&[u8]> {
        Fields::new(&self.fields).find(|field| field.is(name.as_bytes())).map(|field| field.value)
    }

    /// The authority of the request.
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
    /// Of the request that a service is called for, if there is one.
    present: RequestRecord,
    is_present: bool,
    /// Of requests that wait, at the index of their connection's descriptor: a connection has one at a time.
    waiting: Vec<Option<Box<RequestRecord>>>,
}

impl Records {
    /// For a worker with this log; `None` if requests have no identifiers and Common Log Format has everything
    /// already.
    pub(crate) fn of(
        log: Option<&LogWriter>,
        ids: RequestIds,
        has_users: bool,
    ) -> Option<Box<Self>> {
        let config = log.map(LogWriter::config);
        let keeps_head = config.is_some_and(|config| config.needs_head());
        let has_slow = config.is_some_and(|config| config.slow.is_some());
        (keeps_head || has_slow || ids != RequestIds::Off || has_users && log.is_some()).then(
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

    /// A request has come.
    pub(crate) fn begin(&mut self, request: &Request<'_>, now_ms: u32) {
        self.present.begin(request, now_ms, self.keeps_head);
        request_id::identify(self.ids, request, &mut self.present.id);
        self.is_present = true;
    }

    /// The present request is this user's.
    pub(crate) fn set_user(&mut self, name: &[u8]) {
        self.present.user.clear();
        self.present.user.extend_from_slice(name);
    }

    /// Whether requests have identifiers.
    pub(crate) fn has_ids(&self) -> bool {
        self.ids != RequestIds::Off
    }

    /// Whether the response to the present request is to have its identifier, and has not.
    pub(crate) fn has_id_to_send(&self) -> bool {
        self.is_present && self.has_ids() && !self.present.has_sent_id
    }

    /// Puts the identifier of the present request into the head of its response, if it begins at `start`.
    pub(crate) fn put_id(&mut self, bytes: &mut Vec<u8>, start: usize) {
        self.present.has_sent_id = request_id::put(bytes, start, &self.present.id);
    }

    /// The service is called again for a request that waits.
    pub(crate) fn resume(&mut self, fd: i32) {
        let record = self.waiting.get_mut(fd as usize).and_then(Option::take);
        self.is_present = record.is_some();
        if let Some(record) = record {
            self.present = *record;
        }
    }

    /// The call is over; the request goes on waiting, or is answered.
    pub(crate) fn leave(&mut self, fd: i32, waits: bool) {
        // A stream that was logged at its start needs nothing any more.
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

    /// The record of the request that a service is called for.
    pub(crate) fn present(&self) -> Option<&RequestRecord> {
        self.is_present.then_some(&self.present)
    }

    /// A line was written.
    pub(crate) fn set_logged(&mut self) {
        self.present.is_logged = true;
    }
}
