//! The fields that the server asks for: found in one pass over the section.

use crate::fields::Field;

macro_rules! known {
    ($($name:ident $text:literal)*) => {
        /// A field that is remembered while a head is parsed, so that it is found at once.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Known { $($name,)* }

        impl Known {
            /// Every one.
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

const COUNT: usize = Known::ALL.len();

/// The first value of each known field, and which were repeated.
#[derive(Clone, Debug)]
pub(super) struct KnownFields<'b> {
    first: [Option<&'b [u8]>; COUNT],
    repeated: u16,
}

impl<'b> KnownFields<'b> {
    pub(super) fn new() -> Self {
        const { assert!(COUNT <= u16::BITS as usize) };
        Self { first: [None; COUNT], repeated: 0 }
    }

    #[inline]
    pub(super) fn note(&mut self, known: Known, value: &'b [u8]) {
        let slot = &mut self.first[known as usize];
        if slot.is_some() {
            self.repeated |= 1 << known as u16;
        } else {
            *slot = Some(value);
        }
    }

    #[inline]
    pub(super) fn first(&self, known: Known) -> Option<&'b [u8]> {
        self.first[known as usize]
    }

    #[inline]
    pub(super) fn is_repeated(&self, known: Known) -> bool {
        self.repeated & 1 << known as u16 != 0
    }

    #[inline]
    pub(super) fn single(&self, known: Known) -> Option<&'b [u8]> {
        self.first(known).filter(|_| !self.is_repeated(known))
    }
}

/// What a field means to the parser.
#[derive(Clone, Copy)]
pub(super) enum Meaning {
    Known(Known),
    ContentLength,
    TransferEncoding,
    Expect,
    Other,
}

/// Tells the fields apart by the length of their names first: one comparison a field at most.
#[inline]
pub(super) fn classify(field: &Field<'_>) -> Meaning {
    use Known::*;
    let candidate = match (field.name.len(), field.name[0] | 0x20) {
        (4, _) => Host,
        (5, _) => Range,
        (6, _) => return special(field, b"expect", Meaning::Expect),
        (7, _) => Referer,
        (8, _) if field.is(IfRange.name()) => IfRange,
        (8, _) => IfMatch,
        (10, b'c') => Connection,
        (10, _) => UserAgent,
        (12, _) => ContentType,
        (13, _) => IfNoneMatch,
        (14, _) => return special(field, b"content-length", Meaning::ContentLength),
        (15, _) => AcceptEncoding,
        (17, b't') => return special(field, b"transfer-encoding", Meaning::TransferEncoding),
        (17, _) => IfModifiedSince,
        (19, _) => IfUnmodifiedSince,
        _ => return Meaning::Other,
    };
    special(field, candidate.name(), Meaning::Known(candidate))
}

#[inline]
fn special(field: &Field<'_>, name: &[u8], meaning: Meaning) -> Meaning {
    if field.is(name) { meaning } else { Meaning::Other }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_known_name_is_told_in_any_case() {
        for &known in Known::ALL {
            for name in [known.name().to_vec(), known.name().to_ascii_uppercase()] {
                let field = Field { name: &name, value: b"" };
                let found = matches!(classify(&field), Meaning::Known(found) if found == known);
                assert!(found, "{}", name.escape_ascii());
                let mut other = name.clone();
                *other.last_mut().unwrap() = b'_';
                let field = Field { name: &other, value: b"" };
                assert!(matches!(classify(&field), Meaning::Other), "{}", other.escape_ascii());
            }
        }
    }

    #[test]
    fn the_framing_fields_are_told() {
        let classify = |name: &'static [u8]| classify(&Field { name, value: b"" });
        assert!(matches!(classify(b"Content-Length"), Meaning::ContentLength));
        assert!(matches!(classify(b"TRANSFER-ENCODING"), Meaning::TransferEncoding));
        assert!(matches!(classify(b"Expect"), Meaning::Expect));
        assert!(matches!(classify(b"Transfer_Encoding"), Meaning::Other));
    }
}
