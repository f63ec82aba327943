//! What is to be sent: bytes, and after them perhaps a part of a file.

use crate::site::Representation;
use std::{
    collections::VecDeque,
    ops::Range,
    os::fd::{AsFd, BorrowedFd},
    rc::Rc,
};

/// Once this many bytes are to be sent, no further pipelined request is answered until they are
/// gone: what bounds the memory of a connection that asks and does not read.
pub(crate) const OUTBOX_FULL: usize = 64 << 10;

/// Output in order: `bytes`, then `tail`, then the `later` parts.
///
/// Each worker has one as scratch. What a send did not take moves into one of the connection's own
/// ([`Outbox::take_rest`]).
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    bytes: Vec<u8>,
    sent: usize,
    tail: Option<Tail>,
    later: VecDeque<Part>,
}

/// A range of a file's content, held in memory or open.
#[derive(Clone, Debug)]
pub(crate) struct Tail {
    /// Whose content.
    pub(crate) file: Rc<Representation>,
    /// Which octets of it.
    pub(crate) range: Range<u64>,
}

/// A part of a multipart body: its head and its content.
#[derive(Debug)]
pub(crate) struct Part {
    /// What comes before the content.
    pub(crate) head: Vec<u8>,
    /// The content; the closing delimiter has none.
    pub(crate) tail: Option<Tail>,
}

/// What to send next.
#[derive(Debug)]
pub(crate) enum Next<'a> {
    /// Nothing is left.
    Nothing,
    /// These bytes.
    Bytes(&'a [u8]),
    /// These bytes and those, in one call if that can be.
    Two(&'a [u8], &'a [u8]),
    /// These bytes, and then a file's: the bytes may wait for the file's first.
    BytesBeforeFile(&'a [u8]),
    /// So many octets of the file from the offset.
    File {
        /// An open regular file.
        file: BorrowedFd<'a>,
        /// Where to begin.
        offset: u64,
        /// How many; not 0.
        len: u64,
    },
}

impl Outbox {
    /// Appends here. Only while [`Outbox::takes_more`].
    #[inline]
    pub(crate) fn bytes(&mut self) -> &mut Vec<u8> {
        debug_assert!(self.tail.is_none());
        &mut self.bytes
    }

    /// Puts a file's content after the bytes.
    pub(crate) fn set_tail(&mut self, tail: Tail) {
        debug_assert!(self.tail.is_none());
        if !tail.range.is_empty() {
            self.tail = Some(tail);
        }
    }

    /// Puts parts after the bytes and the tail.
    pub(crate) fn set_parts(&mut self, parts: VecDeque<Part>) {
        debug_assert!(self.later.is_empty());
        self.later = parts;
    }

    /// Whether another response may be appended.
    #[inline]
    pub(crate) fn takes_more(&self) -> bool {
        self.bytes.len() < OUTBOX_FULL && self.tail.is_none() && self.later.is_empty()
    }

    /// Whether there is nothing to send.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.sent == self.bytes.len() && self.tail.is_none() && self.later.is_empty()
    }

    /// Whether there is nothing but bytes.
    #[inline]
    pub(crate) fn is_all_bytes(&self) -> bool {
        self.tail.is_none() && self.later.is_empty()
    }

    /// Whether octets of an open file come after the bytes.
    pub(crate) fn has_file(&self) -> bool {
        self.tail.as_ref().is_some_and(|tail| tail.file.memory().is_none())
    }

    /// What to send next.
    #[inline]
    pub(crate) fn next(&self) -> Next<'_> {
        let bytes = &self.bytes[self.sent..];
        let Some(Tail { file, range }) = &self.tail else {
            return if bytes.is_empty() { Next::Nothing } else { Next::Bytes(bytes) };
        };
        match (file.memory(), bytes) {
            (Some(memory), []) => Next::Bytes(&memory[range.start as usize..range.end as usize]),
            (Some(memory), _) => {
                Next::Two(bytes, &memory[range.start as usize..range.end as usize])
            }
            (None, []) => match file.open_file() {
                Some(open) => Next::File {
                    file: open.as_fd(),
                    offset: range.start,
                    len: range.end - range.start,
                },
                // Not reached: a representation is in memory or open.
                None => Next::Nothing,
            },
            (None, _) => Next::BytesBeforeFile(bytes),
        }
    }

    /// So many octets of [`Outbox::next`] have been sent.
    #[inline]
    pub(crate) fn advance(&mut self, count: usize) {
        let of_bytes = count.min(self.bytes.len() - self.sent);
        self.sent += of_bytes;
        let of_tail = (count - of_bytes) as u64;
        if let Some(tail) = &mut self.tail {
            tail.range.start += of_tail;
            if tail.range.is_empty() {
                self.tail = None;
            }
        }
        if self.sent == self.bytes.len() && self.tail.is_none() {
            self.begin_next_part();
        }
    }

    /// All before the next part is sent: its turn.
    #[inline]
    fn begin_next_part(&mut self) {
        self.bytes.clear();
        self.sent = 0;
        if let Some(part) = self.later.pop_front() {
            self.bytes.extend_from_slice(&part.head);
            self.tail = part.tail;
        }
    }

    /// Moves what is left into an outbox of its own; this one is empty then and keeps its memory.
    pub(crate) fn take_rest(&mut self) -> Outbox {
        let rest = Outbox {
            bytes: self.bytes[self.sent..].to_vec(),
            sent: 0,
            tail: self.tail.take(),
            later: std::mem::take(&mut self.later),
        };
        self.clear();
        rest
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.sent = 0;
        self.tail = None;
        // Emptying an empty deque is not free, and this is once a request.
        if !self.later.is_empty() {
            self.later.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(outbox: &mut Outbox, step: usize) -> Vec<u8> {
        let mut sent = Vec::new();
        loop {
            let taken = match outbox.next() {
                Next::Nothing => return sent,
                Next::Bytes(bytes) => bytes[..step.min(bytes.len())].to_vec(),
                Next::Two(first, second) => {
                    let mut both = [first, second].concat();
                    both.truncate(step);
                    both
                }
                other => panic!("{other:?}"),
            };
            outbox.advance(taken.len());
            sent.extend_from_slice(&taken);
        }
    }

    #[test]
    fn any_split_of_the_sends_gives_the_same_bytes() {
        let file = Rc::new(Representation::in_memory(b"0123456789"));
        for step in 1..30 {
            for parked in [false, true] {
                let mut outbox = Outbox::default();
                outbox.bytes().extend_from_slice(b"head");
                outbox.set_tail(Tail { file: file.clone(), range: 2..7 });
                outbox.set_parts(VecDeque::from([
                    Part {
                        head: b"-part-".to_vec(),
                        tail: Some(Tail { file: file.clone(), range: 8..10 }),
                    },
                    Part { head: b"-end".to_vec(), tail: None },
                ]));
                assert!(!outbox.takes_more());
                if parked {
                    outbox.advance(1);
                    let mut rest = outbox.take_rest();
                    assert!(outbox.is_empty() && outbox.takes_more());
                    assert_eq!(drain(&mut rest, step), b"ead23456-part-89-end");
                } else {
                    assert_eq!(drain(&mut outbox, step), b"head23456-part-89-end");
                    assert!(outbox.is_empty() && outbox.takes_more());
                }
            }
        }
    }
}
