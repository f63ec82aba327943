//! One file's content and the prepared head of its 200 response.

use super::{super::compress::background::Source, contents::Charge};
use crate::{
    protocol::KeepAlive,
    transport::outbox::{Content as Output, SharedBytes},
};
use pollux_http::{
    Status,
    accept_encoding::Coding,
    conditional::Validators,
    date::{self, DateCache},
    etag::ETag,
    response::Head,
};
use std::{ops::Range, os::fd::OwnedFd, rc::Rc, sync::Arc};

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
    /// The head of the 200 response without its empty line, CRLF and, if in memory, the content.
    wire: Arc<[u8]>,
    layout: Layout,
    len: u64,
    etag: Tag,
    /// The Unix second of the last change.
    modified: u64,
    content_type: String,
}

/// Offsets in `wire`.
#[derive(Clone, Copy, Debug, Default)]
struct Layout {
    /// The start of the Date line.
    date: usize,
    date_end: usize,
    /// The end of the fields that a 304 repeats.
    validators_end: usize,
    /// The end of the fields that a 206 repeats: all except Content-Type and Content-Length.
    metadata_end: usize,
    /// The end of the last field.
    head_end: usize,
}

/// The parts of a representation.
#[derive(Debug)]
pub(crate) struct Parts<'a> {
    /// `Server` and the configured fields, each line with its CRLF.
    pub(crate) common_fields: &'a [u8],
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
        let Parts { common_fields, etag, modified, content_type, coding, varies, content } = parts;
        let (memory, open, len) = match content {
            Content::Memory(bytes) => {
                let len = bytes.len() as u64;
                (bytes, None, len)
            }
            Content::Open(file, len) => (Vec::new(), Some(Rc::new(file)), len),
        };
        let mut metadata = Vec::new();
        let mut wire = Vec::with_capacity(512 + memory.len());
        let mut layout = Layout::default();
        let mut head = Head::new(&mut wire, Status::Ok);
        layout.date = Status::Ok.line().len();
        let date = DateCache::new(0);
        layout.date_end = layout.date + date.line().len();
        // First the fields that a 304 repeats, then those that a 206 repeats too, then the others.
        metadata.extend_from_slice(common_fields);
        metadata.extend_from_slice(b"ETag: ");
        etag.etag().write(&mut metadata);
        metadata.extend_from_slice(b"\r\n");
        metadata.extend_from_slice(b"Last-Modified: ");
        metadata.extend_from_slice(&date::format(modified));
        metadata.extend_from_slice(b"\r\n");
        if varies {
            metadata.extend_from_slice(b"Vary: Accept-Encoding\r\n");
        }
        layout.validators_end = layout.date_end + metadata.len();
        if coding != Coding::Identity {
            metadata
                .extend_from_slice(format!("Content-Encoding: {}\r\n", coding.name()).as_bytes());
        }
        metadata.extend_from_slice(b"Accept-Ranges: bytes\r\n");
        layout.metadata_end = layout.date_end + metadata.len();
        head = head.date(&date).lines(&metadata);
        head = head.field("Content-Type", content_type.as_bytes()).content_length(len);
        head.end();
        layout.head_end = wire.len() - 2;
        wire.extend_from_slice(&memory);
        let prepared =
            PreparedContent { wire: wire.into(), layout, len, etag, modified, content_type };
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
        self.prepared.len
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
            Some(file) => Source::File(file.try_clone().ok()?, self.prepared.len),
            None => Source::Memory(self.prepared.wire.clone(), self.prepared.layout.head_end + 2),
        })
    }

    /// Returns the content, if it is in memory.
    pub(crate) fn memory(&self) -> Option<&[u8]> {
        self.is_in_memory().then(|| &self.prepared.wire[self.prepared.layout.head_end + 2..])
    }

    /// Returns a range of the content, which is sent without a copy.
    pub(crate) fn content(&self, range: Range<u64>) -> Output {
        match &self.open {
            Some(file) => Output::File(file.clone(), range),
            None => {
                let start = self.prepared.layout.head_end + 2;
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

    /// Appends a 200: its head with the empty line and, if `content` (and it is in memory), the
    /// content.
    #[inline]
    pub(crate) fn put_ok(
        &self,
        out: &mut Vec<u8>,
        date: &DateCache,
        keep: KeepAlive,
        content: bool,
    ) {
        let date_at = out.len() + self.prepared.layout.date;
        let end =
            if content { self.prepared.wire.len() } else { self.prepared.layout.head_end + 2 };
        let line = keep.line();
        if line.is_empty() {
            out.extend_from_slice(&self.prepared.wire[..end]);
        } else {
            out.extend_from_slice(&self.prepared.wire[..self.prepared.layout.head_end]);
            out.extend_from_slice(line);
            out.extend_from_slice(&self.prepared.wire[self.prepared.layout.head_end..end]);
        }
        let date_line = date.line();
        out[date_at..date_at + date_line.len()].copy_from_slice(date_line);
    }

    /// Appends a 304.
    pub(crate) fn put_not_modified(&self, out: &mut Vec<u8>, date: &DateCache, keep: KeepAlive) {
        Head::new(out, Status::NotModified)
            .date(date)
            .lines(
                &self.prepared.wire
                    [self.prepared.layout.date_end..self.prepared.layout.validators_end],
            )
            .lines(keep.line())
            .end();
    }

    /// Begins a 206; Content-Type, Content-Range and Content-Length must follow.
    pub(crate) fn begin_partial<'o>(
        &self,
        out: &'o mut Vec<u8>,
        date: &DateCache,
        keep: KeepAlive,
    ) -> Head<'o, Vec<u8>> {
        Head::new(out, Status::PartialContent)
            .date(date)
            .lines(
                &self.prepared.wire
                    [self.prepared.layout.date_end..self.prepared.layout.metadata_end],
            )
            .lines(keep.line())
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
        Rc::new(SharedBytes::from(self.wire.clone()))
    }

    /// Returns the number of bytes of the head, and of the content in memory.
    pub(crate) fn wire_bytes(&self) -> u64 {
        self.wire.len() as u64
    }

    /// Returns whether both share one copy.
    #[cfg(test)]
    pub(crate) fn shares_bytes_with(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.wire, &other.wire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_http::request::Version;

    #[test]
    fn the_laid_out_heads_are_whole() {
        let file = Representation::in_memory(b"body");
        let date = DateCache::new(784_111_777);
        let common = "Date: Sun, 06 Nov 1994 08:49:37 GMT\r\nServer: test\r\nETag: \"1-2\"\r\n\
                      Last-Modified: Thu, 01 Jan 1970 00:00:00 GMT\r\nVary: Accept-Encoding\r\n";
        let coding = "Content-Encoding: gzip\r\nAccept-Ranges: bytes\r\n";
        let head = format!(
            "HTTP/1.1 200 OK\r\n{common}{coding}Content-Type: text/plain\r\nContent-Length: 4\r\n"
        );
        let text = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut out = b"before".to_vec();
            write(&mut out);
            String::from_utf8(out).unwrap().strip_prefix("before").unwrap().to_owned()
        };
        let keep = KeepAlive { alive: true, version: Version::Http11 };
        let close = KeepAlive { alive: false, version: Version::Http11 };
        let keep_old = KeepAlive { alive: true, version: Version::Http10 };
        let ok = |keep, content| text(&|out| file.put_ok(out, &date, keep, content));
        assert_eq!(ok(keep, true), format!("{head}\r\nbody"));
        assert_eq!(ok(keep, false), format!("{head}\r\n"));
        assert_eq!(ok(close, true), format!("{head}Connection: close\r\n\r\nbody"));
        assert_eq!(ok(keep_old, false), format!("{head}Connection: keep-alive\r\n\r\n"));
        assert_eq!(
            text(&|out| file.put_not_modified(out, &date, keep)),
            format!("HTTP/1.1 304 Not Modified\r\n{common}\r\n")
        );
        assert_eq!(
            text(&|out| file.begin_partial(out, &date, keep).end()),
            format!("HTTP/1.1 206 Partial Content\r\n{common}{coding}\r\n")
        );
    }
}
