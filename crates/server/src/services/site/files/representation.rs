//! One file's content and the prepared head of its 200 response.

use super::{super::compress::background::Source, contents::Charge};
use crate::{
    policy::SiteRules,
    service::PreparedHead,
    transport::outbox::{Content as Output, SharedBytes},
};
use pollux_http::{
    Status, accept_encoding::Coding, conditional::Validators, date, etag::ETag, response::Head,
};
use std::{ops::Range, os::fd::OwnedFd, rc::Rc};

/// The codings of precompressed siblings, and the suffixes of their file names. The codings with the smallest
/// results are first, for clients that accept several codings equally.
pub(crate) const SIBLINGS: [(Coding, &str); 3] =
    [(Coding::Zstd, ".zst"), (Coding::Brotli, ".br"), (Coding::Gzip, ".gz")];

/// A representation (RFC 9110 §3.2): a file's content, in memory or open, with its metadata.
#[derive(Debug)]
pub(crate) struct Representation {
    prepared: PreparedContent,
    /// The bytes of `prepared` again, for pieces of an outbox: these are counted within the thread.
    bytes: Rc<SharedBytes>,
    open: Option<Rc<OwnedFd>>,
    /// The charge for the content in memory; `None` if there was no room for it.
    charge: Option<Charge>,
}

/// The part of a representation that is the same for all workers: it is prepared once, and shared.
#[derive(Clone, Debug)]
pub(crate) struct PreparedContent {
    /// The head of the 200 response and, if in memory, the content.
    head: PreparedHead,
    /// The length of those fields of the head that a 304 repeats.
    validators_len: usize,
    /// The length of those that a 206 repeats: all except Content-Type and Content-Length.
    metadata_len: usize,
    etag: Tag,
    /// The Unix second of the last change.
    modified: u64,
    content_type: String,
}

/// The parts of a representation.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    /// `Server` and the configured fields, each line with its CRLF.
    pub(crate) common_fields: &'a [u8],
    /// The fields of the file's path, each line with its CRLF. A 304 and a 206 repeat them.
    pub(crate) path_fields: &'a [u8],
    /// The entity tag.
    pub(crate) etag: Tag,
    /// The Unix second of the last change.
    pub(crate) modified: u64,
    /// The Content-Type field's value.
    pub(crate) content_type: String,
    /// The coding of the content.
    pub(crate) coding: Coding,
    /// Whether there are siblings, so that the response depends on Accept-Encoding.
    pub(crate) varies: bool,
    /// The content.
    pub(crate) content: Content,
}

/// An entity tag.
#[derive(Clone, Debug)]
pub(crate) struct Tag {
    /// The bytes between the quotes.
    pub(crate) opaque: String,
    /// Whether two contents may have the same tag.
    pub(crate) is_weak: bool,
}

impl Tag {
    fn etag(&self) -> ETag<'_> {
        ETag { weak: self.is_weak, opaque: self.opaque.as_bytes() }
    }
}

/// The place of the content.
#[derive(Debug)]
pub(crate) enum Content {
    /// In memory.
    Memory(Vec<u8>),
    /// In an open file of this length.
    Open(OwnedFd, u64),
}

impl Representation {
    /// Creates a representation, and prepares its head.
    pub(crate) fn new(parts: Parts<'_>) -> Self {
        let Parts {
            common_fields,
            path_fields,
            etag,
            modified,
            content_type,
            coding,
            varies,
            content,
        } = parts;
        let (memory, open, len) = match content {
            Content::Memory(bytes) => {
                let len = bytes.len() as u64;
                (bytes, None, len)
            }
            Content::Open(file, len) => (Vec::new(), Some(Rc::new(file)), len),
        };
        // First the fields that a 304 repeats, then those that a 206 repeats too, then the others.
        let mut fields = path_fields.to_vec();
        let _ = Head::resume(&mut fields)
            .etag(&etag.etag())
            .field("Last-Modified", &date::format(modified));
        if varies {
            fields.extend_from_slice(b"Vary: Accept-Encoding\r\n");
        }
        let validators_len = fields.len();
        if coding != Coding::Identity {
            let _ = Head::resume(&mut fields).field("Content-Encoding", coding.name().as_bytes());
        }
        fields.extend_from_slice(b"Accept-Ranges: bytes\r\n");
        let metadata_len = fields.len();
        let _ = Head::resume(&mut fields).field("Content-Type", content_type.as_bytes());
        let common_fields = SiteRules::without_replaced(common_fields, path_fields);
        let head = PreparedHead::prepare(&common_fields, Status::Ok, &fields, len, &memory);
        let prepared =
            PreparedContent { head, validators_len, metadata_len, etag, modified, content_type };
        Self { bytes: prepared.bytes(), prepared, open, charge: None }
    }

    /// Creates a representation whose content in memory is charged already.
    pub(crate) fn charged((prepared, charge): (PreparedContent, Charge)) -> Self {
        Self { bytes: prepared.bytes(), prepared, open: None, charge: Some(charge) }
    }

    /// Returns the part that may be shared.
    pub(crate) fn prepared(&self) -> &PreparedContent {
        &self.prepared
    }

    /// Returns the length of the content in bytes.
    #[allow(clippy::len_without_is_empty)]
    #[inline]
    pub(crate) fn len(&self) -> u64 {
        self.prepared.head.length()
    }

    /// Returns the value of the Content-Type field.
    pub(crate) fn content_type(&self) -> &[u8] {
        self.prepared.content_type.as_bytes()
    }

    /// Returns the validators with which preconditions are compared.
    pub(crate) fn validators(&self, now: u64) -> Validators<'_> {
        Validators {
            etag: Some(self.prepared.etag.etag()),
            last_modified: Some(self.prepared.modified),
            now,
        }
    }

    /// Returns whether its entity tag is weak.
    pub(crate) fn has_weak_tag(&self) -> bool {
        self.prepared.etag.is_weak
    }

    /// Returns the Unix second of the last change.
    pub(crate) fn modified(&self) -> u64 {
        self.prepared.modified
    }

    /// Returns whether the content is in memory; otherwise it is in an open file.
    #[inline]
    pub(crate) fn is_in_memory(&self) -> bool {
        self.open.is_none()
    }

    /// Returns a source from which another thread can read the whole content, or `None` if no descriptor is
    /// free.
    pub(crate) fn source(&self) -> Option<Source> {
        Some(match &self.open {
            Some(file) => Source::File(file.try_clone().ok()?, self.len()),
            None => {
                let (bytes, start) = self.prepared.head.content();
                Source::Memory(bytes.clone(), start)
            }
        })
    }

    /// Returns the content, if it is in memory.
    pub(crate) fn memory(&self) -> Option<&[u8]> {
        let (bytes, start) = self.prepared.head.content();
        self.is_in_memory().then(|| &bytes[start..])
    }

    /// Returns a range of the content, which is sent without a copy.
    pub(crate) fn content(&self, range: Range<u64>) -> Output {
        match &self.open {
            Some(file) => Output::File(file.clone(), range),
            None => {
                let (_, start) = self.prepared.head.content();
                let range = start + range.start as usize..start + range.end as usize;
                Output::Shared(self.bytes.clone(), range)
            }
        }
    }

    /// Returns whether it may be kept: its content in memory is charged, or its content is in an open file.
    pub(crate) fn is_charged(&self) -> bool {
        self.charge.is_some() || !self.is_in_memory()
    }

    /// Returns the bytes of memory that it uses.
    pub(crate) fn memory_bytes(&self) -> u64 {
        let content = if self.is_in_memory() { self.prepared.wire_bytes() } else { 0 };
        self.own_bytes() + content
    }

    /// Returns the bytes of memory that it uses without the content in memory, which other workers may share.
    pub(crate) fn own_bytes(&self) -> u64 {
        let head = if self.is_in_memory() { 0 } else { self.prepared.wire_bytes() };
        let strings = self.prepared.etag.opaque.len() + self.prepared.content_type.len();
        (size_of::<Self>() + size_of::<SharedBytes>() + strings) as u64 + head
    }

    /// Returns the head of the 200 response, which may contain the content.
    #[inline]
    pub(crate) fn head(&self) -> &PreparedHead {
        &self.prepared.head
    }

    /// Returns the fields of every response, without those that the file's path replaces.
    pub(crate) fn common_fields(&self) -> &[u8] {
        self.prepared.head.common_fields()
    }

    /// Returns the fields that a 304 repeats.
    pub(crate) fn validator_fields(&self) -> &[u8] {
        &self.prepared.head.fields()[..self.prepared.validators_len]
    }

    /// Returns the fields that a 206 repeats.
    pub(crate) fn metadata_fields(&self) -> &[u8] {
        &self.prepared.head.fields()[..self.prepared.metadata_len]
    }

    /// Returns the part that may be shared, for tests.
    #[cfg(test)]
    pub(crate) fn into_prepared(self) -> PreparedContent {
        self.prepared
    }

    /// Creates a representation with this content, for tests.
    #[cfg(test)]
    pub(crate) fn in_memory(content: &[u8]) -> Self {
        Self::new(Parts {
            common_fields: b"Server: test\r\n",
            path_fields: b"X-Path: 1\r\n",
            etag: Tag { opaque: "1-2".into(), is_weak: false },
            modified: 0,
            content_type: "text/plain".into(),
            coding: Coding::Gzip,
            varies: true,
            content: Content::Memory(content.to_vec()),
        })
    }
}

impl PreparedContent {
    fn bytes(&self) -> Rc<SharedBytes> {
        Rc::new(self.head.shared_bytes())
    }

    /// Returns the number of bytes of the head, and of the content in memory.
    pub(crate) fn wire_bytes(&self) -> u64 {
        self.head.wire_bytes()
    }

    /// Returns whether both share one copy.
    #[cfg(test)]
    pub(crate) fn shares_bytes_with(&self, other: &Self) -> bool {
        std::sync::Arc::ptr_eq(self.head.content().0, other.head.content().0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_304_repeats_the_validators_and_a_206_the_metadata() {
        let file = Representation::in_memory(b"body");
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let validators = "X-Path: 1\r\nETag: \"1-2\"\r\nLast-Modified: Thu, 01 Jan 1970 00:00:00 GMT\r\n\
                          Vary: Accept-Encoding\r\n";
        let metadata = format!("{validators}Content-Encoding: gzip\r\nAccept-Ranges: bytes\r\n");
        assert_eq!(text(file.validator_fields()), validators);
        assert_eq!(text(file.metadata_fields()), metadata);
        let fields = text(file.head().fields());
        assert_eq!(fields, format!("{metadata}Content-Type: text/plain\r\n"));
        assert_eq!(file.memory(), Some(&b"body"[..]));
    }
}
