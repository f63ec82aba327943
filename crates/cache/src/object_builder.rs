//! Builds a stored object from a response as it arrives.

use crate::record::{
    ContentPieces, FreshnessTimes, INLINE_MAX, Object, PIECE, Pieces, RecordTexts,
};
use crate::{config::Config, response_metadata::ResponseMetadata};
use pollux_http::fields::Fields;
use std::sync::Arc;

/// A response whose head has arrived and whose content is being collected.
#[derive(Debug)]
pub(crate) struct ObjectBuilder {
    pub(crate) status: u16,
    pub(crate) times: FreshnessTimes,
    pub(crate) vary: Vec<u8>,
    pub(crate) fields: Vec<u8>,
    /// The content length that the head announced.
    pub(crate) expected: Option<u64>,
    last: Vec<u8>,
    pieces: Vec<Arc<[u8]>>,
}

impl ObjectBuilder {
    pub(crate) fn new(status: u16, times: FreshnessTimes) -> Self {
        Self {
            status,
            times,
            vary: Vec::new(),
            fields: Vec::new(),
            expected: None,
            last: Vec::new(),
            pieces: Vec::new(),
        }
    }

    pub(crate) fn len(&self) -> u64 {
        (self.pieces.len() * PIECE + self.last.len()) as u64
    }

    /// Appends content. Returns false if the total would exceed `max` or the announced length.
    pub(crate) fn append(&mut self, mut bytes: &[u8], max: u64) -> bool {
        let limit = self.expected.unwrap_or(max).min(max);
        if self.len() + bytes.len() as u64 > limit {
            return false;
        }
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(PIECE - self.last.len()));
            self.last.extend_from_slice(now);
            bytes = later;
            if self.last.len() == PIECE {
                self.pieces.push(Arc::from(&self.last[..]));
                self.last.clear();
            }
        }
        true
    }

    /// Appends content of a stored object. Whole pieces at piece boundaries are shared instead of
    /// copied. Copied bytes are subtracted from `copies`; returns `None` if that budget does not
    /// suffice.
    pub(crate) fn append_content(
        &mut self,
        content: ContentPieces,
        copies: &mut u64,
    ) -> Option<()> {
        for (piece, range) in content {
            if self.last.is_empty() && range == (0..PIECE) && piece.len() == PIECE {
                self.pieces.push(piece);
            } else {
                *copies = copies.checked_sub(range.len() as u64)?;
                self.append(&piece[range], u64::MAX);
            }
        }
        Some(())
    }

    /// Returns the object; `None` if the content is shorter than announced.
    pub(crate) fn finish(mut self, key: &[u8], config: &Config) -> Option<Object> {
        if self.expected.is_some_and(|expected| expected != self.len()) {
            return None;
        }
        let mut pieces = None;
        if self.len() > INLINE_MAX as u64 {
            if !self.last.is_empty() {
                self.pieces.push(Arc::from(&self.last[..]));
                self.last.clear();
            }
            pieces = Some(Arc::new(Pieces(self.pieces.into())));
        }
        let metadata = ResponseMetadata::read(self.status, Fields::new(&self.fields), config);
        let (vary, fields) = (&self.vary[..], &self.fields[..]);
        Some(Object::new(
            &metadata,
            self.times,
            RecordTexts { key, vary, fields },
            &self.last,
            pieces,
        ))
    }
}
