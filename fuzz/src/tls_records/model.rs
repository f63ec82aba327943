//! What must become of a record, by the text of RFC 8446 and of RFC 5246.

use crate::ends::is_tls13;
use pollux_tls::{
    DATA_PER_KEY_UPDATE, EMPTY_RECORDS_MAX, KEY_UPDATES_WITHOUT_DATA_MAX, Role, Suite,
};

const PLAINTEXT_MAX: usize = 1 << 14;
const FATAL: u8 = 2;
const UNEXPECTED_MESSAGE: Expectation = Expectation::Error(Some((FATAL, 10)));
const RECORD_OVERFLOW: Expectation = Expectation::Error(Some((FATAL, 22)));
const ILLEGAL_PARAMETER: Expectation = Expectation::Error(Some((FATAL, 47)));
const DECODE_ERROR: Expectation = Expectation::Error(Some((FATAL, 50)));
const NO_RENEGOTIATION: Expectation = Expectation::Error(Some((1, 100)));
/// The longest NewSessionTicket whose fields are full (RFC 8446 §4.6.1).
const TICKET_MAX: usize = 4 + 4 + 1 + 255 + 2 + 65_535 + 2 + 65_534;

#[derive(Debug)]
pub(super) enum Expectation {
    Data(Vec<u8>),
    Control,
    KeyUpdate {
        is_requested: bool,
    },
    Tickets,
    Closed,
    /// With the alert that answers it.
    Error(Option<(u8, u8)>),
}

pub(super) struct Model {
    suite: Suite,
    role: Role,
    /// What has come of a message that is not complete.
    partial: Vec<u8>,
    /// Everything that follows is ignored.
    pub(super) is_closed: bool,
    empty_records: u8,
    key_updates: u8,
}

impl Model {
    pub(super) fn new(suite: Suite, role: Role) -> Self {
        Self {
            suite,
            role,
            partial: Vec::new(),
            is_closed: false,
            empty_records: 0,
            key_updates: 0,
        }
    }

    pub(super) fn expect(&mut self, kind: u8, content: &[u8], padding: usize) -> Expectation {
        let is_tls13 = is_tls13(self.suite);
        if self.is_closed {
            return Expectation::Closed;
        }
        // The type is in the clear.
        if !is_tls13 && !matches!(kind, 21..=23) {
            return UNEXPECTED_MESSAGE;
        }
        let (expansion, expansion_max) = match self.suite {
            _ if is_tls13 => (1 + padding + 16, 256),
            Suite::Tls12ChaCha20 => (16, 16),
            _ => (8 + 16, 8 + 16),
        };
        if content.len() + expansion > PLAINTEXT_MAX + expansion_max {
            return RECORD_OVERFLOW;
        }
        if !is_tls13 {
            return self.expect_content(kind, content);
        }
        if content.len() + padding > PLAINTEXT_MAX {
            return RECORD_OVERFLOW;
        }
        // The last byte that is not zero is the type.
        let mut inner = content.to_vec();
        inner.push(kind);
        while inner.last() == Some(&0) {
            inner.pop();
        }
        match inner.pop() {
            Some(kind @ 21..=23) => self.expect_content(kind, &inner),
            _ => UNEXPECTED_MESSAGE,
        }
    }

    fn expect_content(&mut self, kind: u8, content: &[u8]) -> Expectation {
        match kind {
            _ if kind != 22 && !self.partial.is_empty() => UNEXPECTED_MESSAGE,
            23 if content.is_empty() => self.nothing(),
            23 => {
                let paid = 1 + content.len() / DATA_PER_KEY_UPDATE;
                self.empty_records = 0;
                self.key_updates = self.key_updates.saturating_sub(paid as u8);
                Expectation::Data(content.to_vec())
            }
            21 => self.expect_alert(content),
            _ if content.is_empty() => UNEXPECTED_MESSAGE,
            _ if !is_tls13(self.suite) => match (self.role, content[0]) {
                (Role::Server, 1) | (Role::Client, 0) => NO_RENEGOTIATION,
                _ => UNEXPECTED_MESSAGE,
            },
            _ => self.expect_message(content),
        }
    }

    /// Something of no use, which is bounded.
    fn nothing(&mut self) -> Expectation {
        self.empty_records += 1;
        match self.empty_records > EMPTY_RECORDS_MAX {
            true => UNEXPECTED_MESSAGE,
            false => Expectation::Control,
        }
    }

    fn expect_alert(&mut self, content: &[u8]) -> Expectation {
        let &[level, description] = content else {
            return if content.is_empty() { UNEXPECTED_MESSAGE } else { DECODE_ERROR };
        };
        match description {
            0 => {
                self.is_closed = true;
                Expectation::Closed
            }
            90 if is_tls13(self.suite) => self.nothing(),
            _ if level == 1 && !is_tls13(self.suite) => self.nothing(),
            _ => Expectation::Error(None),
        }
    }

    fn expect_message(&mut self, content: &[u8]) -> Expectation {
        let is_continued = !self.partial.is_empty();
        self.partial.extend_from_slice(content);
        let bytes = std::mem::take(&mut self.partial);
        let mut rest = bytes.as_slice();
        while let Some(&kind) = rest.first() {
            let is_ticket = match (kind, self.role) {
                (24, _) => false,
                (4, Role::Client) => true,
                _ => return UNEXPECTED_MESSAGE,
            };
            let Some(&[_, high, middle, low]) = rest.first_chunk() else { break };
            let len = u32::from_be_bytes([0, high, middle, low]) as usize;
            let is_possible = if is_ticket { (1..=TICKET_MAX).contains(&len) } else { len == 1 };
            if !is_possible {
                return DECODE_ERROR;
            }
            let Some(body) = rest[4..].get(..len) else { break };
            rest = &rest[4 + len..];
            if is_ticket {
                continue;
            }
            if body[0] > 1 {
                return ILLEGAL_PARAMETER;
            }
            if !rest.is_empty() {
                return UNEXPECTED_MESSAGE;
            }
            self.key_updates += 1;
            if self.key_updates > KEY_UPDATES_WITHOUT_DATA_MAX {
                return UNEXPECTED_MESSAGE;
            }
            return Expectation::KeyUpdate { is_requested: body[0] == 1 };
        }
        self.partial = rest.to_vec();
        let nothing = self.nothing();
        match nothing {
            Expectation::Control if !is_continued && self.partial.is_empty() => {
                Expectation::Tickets
            }
            nothing => nothing,
        }
    }
}
