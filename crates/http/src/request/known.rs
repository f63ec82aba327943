//! The fields that a server reads often, found in one pass over the header section.

use crate::fields::{Field, is_name};

macro_rules! known {
    ($($name:ident $text:literal)*) => {
        /// A field whose value is recorded while a head is parsed, so that it can be read without a
        /// search.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum KnownField { $($name,)* }

        impl KnownField {
            /// All known fields.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The field name in lower case.
            pub const fn name(self) -> &'static [u8] {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

known! {
    Host b"host"
    Connection b"connection"
    IfMatch b"if-match"
    IfNoneMatch b"if-none-match"
    IfModifiedSince b"if-modified-since"
    IfUnmodifiedSince b"if-unmodified-since"
    IfRange b"if-range"
    Range b"range"
    AcceptEncoding b"accept-encoding"
    ContentType b"content-type"
    Referer b"referer"
    UserAgent b"user-agent"
}

const COUNT: usize = KnownField::ALL.len();

/// A set of known fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownFieldSet(u16);

impl KnownFieldSet {
    /// Creates the set of `fields`.
    pub const fn new(fields: &[KnownField]) -> Self {
        let mut bits = 0;
        let mut at = 0;
        while at < fields.len() {
            bits |= 1 << fields[at] as u16;
            at += 1;
        }
        Self(bits)
    }
}

/// The first value of each known field, and which fields were repeated.
///
/// Values are stored as offset and length, not as slices: this structure is initialised and copied
/// for every request, and is half as large that way.
#[derive(Clone, Debug)]
pub(super) struct KnownFieldValues<'b> {
    section: &'b [u8],
    first: [(u32, u32); COUNT],
    repeated: u16,
    /// One bit for each field that was sent.
    sent: u16,
}

impl<'b> KnownFieldValues<'b> {
    /// Creates an empty set of values for `section`, whose length
    /// [`SectionLimits`](crate::fields::SectionLimits) keeps below 4 GiB.
    pub(super) fn new(section: &'b [u8]) -> Self {
        const { assert!(COUNT <= u16::BITS as usize) };
        Self { section, first: [(0, 0); COUNT], repeated: 0, sent: 0 }
    }

    /// Sets the end of the section, once it is known.
    #[inline]
    pub(super) fn end_at(&mut self, len: usize) {
        self.section = &self.section[..len];
    }

    /// All field lines, each with its CRLF.
    #[inline]
    pub(super) fn section(&self) -> &'b [u8] {
        self.section
    }

    /// Records a value, which must be a part of the section, or empty.
    #[inline]
    pub(super) fn add(&mut self, known: KnownField, value: &'b [u8]) {
        let bit = 1 << known as u16;
        if self.sent & bit != 0 {
            self.repeated |= bit;
            return;
        }
        self.sent |= bit;
        if !value.is_empty() {
            let start = value.as_ptr().addr() - self.section.as_ptr().addr();
            self.first[known as usize] = (start as u32, value.len() as u32);
        }
    }

    /// Whether one of the fields in `set` was sent.
    #[inline]
    pub(super) fn has_any(&self, set: KnownFieldSet) -> bool {
        self.sent & set.0 != 0
    }

    #[inline]
    pub(super) fn first(&self, known: KnownField) -> Option<&'b [u8]> {
        if self.sent & 1 << known as u16 == 0 {
            return None;
        }
        let (start, len) = self.first[known as usize];
        self.section.get(start as usize..)?.get(..len as usize)
    }

    #[inline]
    pub(super) fn is_repeated(&self, known: KnownField) -> bool {
        self.repeated & 1 << known as u16 != 0
    }

    #[inline]
    pub(super) fn single(&self, known: KnownField) -> Option<&'b [u8]> {
        self.first(known).filter(|_| !self.is_repeated(known))
    }
}

/// The meaning of a field for the parser.
#[derive(Clone, Copy)]
pub(super) enum FieldRole {
    Known(KnownField),
    ContentLength,
    TransferEncoding,
    Expect,
    Other,
}

/// Distinguishes fields by length and first letter: at most one comparison per field.
#[inline]
pub(super) fn classify(field: &Field<'_>) -> FieldRole {
    use FieldRole::{ContentLength, Expect, Other, TransferEncoding};
    macro_rules! when {
        ($lower:literal, $meaning:expr) => {
            if is_name(field.name, $lower) { $meaning } else { Other }
        };
    }
    match (field.name.len(), field.name[0] | 0x20) {
        (4, b'h') => when!(b"host", FieldRole::Known(KnownField::Host)),
        (5, b'r') => when!(b"range", FieldRole::Known(KnownField::Range)),
        (6, b'e') => when!(b"expect", Expect),
        (7, b'r') => when!(b"referer", FieldRole::Known(KnownField::Referer)),
        (8, b'i') if is_name(field.name, b"if-range") => FieldRole::Known(KnownField::IfRange),
        (8, b'i') => when!(b"if-match", FieldRole::Known(KnownField::IfMatch)),
        (10, b'c') => when!(b"connection", FieldRole::Known(KnownField::Connection)),
        (10, b'u') => when!(b"user-agent", FieldRole::Known(KnownField::UserAgent)),
        (12, b'c') => when!(b"content-type", FieldRole::Known(KnownField::ContentType)),
        (13, b'i') => when!(b"if-none-match", FieldRole::Known(KnownField::IfNoneMatch)),
        (14, b'c') => when!(b"content-length", ContentLength),
        (15, b'a') => when!(b"accept-encoding", FieldRole::Known(KnownField::AcceptEncoding)),
        (17, b't') => when!(b"transfer-encoding", TransferEncoding),
        (17, b'i') => when!(b"if-modified-since", FieldRole::Known(KnownField::IfModifiedSince)),
        (19, b'i') => {
            when!(b"if-unmodified-since", FieldRole::Known(KnownField::IfUnmodifiedSince))
        }
        _ => Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_name_is_recognised_in_any_case() {
        for &known in KnownField::ALL {
            for name in [known.name().to_vec(), known.name().to_ascii_uppercase()] {
                let field = Field { name: &name, value: b"" };
                let found = matches!(classify(&field), FieldRole::Known(found) if found == known);
                assert!(found, "{}", name.escape_ascii());
                let mut other = name.clone();
                *other.last_mut().unwrap() = b'_';
                let field = Field { name: &other, value: b"" };
                assert!(matches!(classify(&field), FieldRole::Other), "{}", other.escape_ascii());
            }
        }
    }

    #[test]
    fn the_framing_fields_are_recognised() {
        let classify = |name: &'static [u8]| classify(&Field { name, value: b"" });
        assert!(matches!(classify(b"Content-Length"), FieldRole::ContentLength));
        assert!(matches!(classify(b"TRANSFER-ENCODING"), FieldRole::TransferEncoding));
        assert!(matches!(classify(b"Expect"), FieldRole::Expect));
        assert!(matches!(classify(b"Transfer_Encoding"), FieldRole::Other));
        assert!(matches!(classify(b"Content-Lengti"), FieldRole::Other));
    }
}
