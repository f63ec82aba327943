//! The content of publications: each contains its number, and all of it can be checked.

/// The shortest content: the mark and the number.
pub(super) const MIN_BYTES: usize = MARK_BYTES + DIGITS + 1;

/// `pollux-`, eight digits of the run, `-`.
const MARK_BYTES: usize = 16;
/// Digits of the number.
const DIGITS: usize = 10;

/// The result of checking a received content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentCheck {
    /// The whole content of this publication.
    Whole(u32),
    /// It has the mark of this run, but the rest differs from the published content.
    Corrupt,
    /// Content that this run did not publish, such as a greeting of the server.
    Foreign,
}

impl ContentCheck {
    /// The check of an event's data with one more line: `self` is the check of the lines before. With `exact` the data
    /// must be the content, which is one line. Otherwise any of the lines may contain it, as in a document of JSON.
    pub(super) fn with_line(self, line: Self, exact: bool) -> Self {
        match (self, line) {
            (Self::Foreign, Self::Foreign) => Self::Foreign,
            _ if exact => Self::Corrupt,
            (_, Self::Whole(_)) => line,
            (Self::Whole(_), _) => self,
            _ => Self::Corrupt,
        }
    }
}

/// The contents of a run. All have the same length, and consist of letters, digits and hyphens only, so
/// that they need no escapes in forms, JSON and URLs.
#[derive(Clone, Debug)]
pub(crate) struct Payloads {
    mark: [u8; MARK_BYTES],
    bytes: usize,
    /// The last content that was made: most subscribers receive the same one in turn.
    last: (Option<u32>, Vec<u8>),
}

impl Payloads {
    /// Creates the contents of the run with this number, each of `bytes` bytes, at least [`MIN_BYTES`].
    pub(super) fn new(run: u32, bytes: usize) -> Self {
        let mut mark = [0; MARK_BYTES];
        mark.copy_from_slice(format!("pollux-{run:08x}-").as_bytes());
        Self { mark, bytes, last: (None, Vec::new()) }
    }

    /// The content of a publication.
    pub(super) fn get(&mut self, number: u32) -> &[u8] {
        if self.last.0 != Some(number) {
            self.last.0 = Some(number);
            let text = &mut self.last.1;
            text.clear();
            text.extend_from_slice(&self.mark);
            text.extend_from_slice(format!("{number:010}-").as_bytes());
            // Each publication has different bytes, so that a piece of another publication is detected.
            let mut bits = u64::from(number);
            while text.len() < self.bytes {
                bits = bits.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                text.extend_from_slice(format!("{:08x}", bits >> 32).as_bytes());
            }
            text.truncate(self.bytes);
        }
        &self.last.1
    }

    /// Compares received data with the published content. `exact`: the data must contain nothing else.
    pub(super) fn check(&mut self, data: &[u8], exact: bool) -> ContentCheck {
        let start = if data.starts_with(&self.mark) {
            0
        } else {
            match memchr::memmem::find(data, &self.mark) {
                Some(start) => start,
                None => return ContentCheck::Foreign,
            }
        };
        let content = &data[start..];
        let number = content
            .get(MARK_BYTES..MARK_BYTES + DIGITS)
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| digits.parse().ok());
        let Some(number) = number else { return ContentCheck::Corrupt };
        let expected = self.get(number);
        let is_whole = if exact { data == expected } else { content.starts_with(expected) };
        if is_whole { ContentCheck::Whole(number) } else { ContentCheck::Corrupt }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_content_is_known_again_and_every_change_is_noticed() {
        let mut payloads = Payloads::new(7, 100);
        for number in [0, 1, 12, 4_294_967_295] {
            let content = payloads.get(number).to_vec();
            assert_eq!(content.len(), 100);
            assert_eq!(payloads.check(&content, true), ContentCheck::Whole(number));
            for at in MARK_BYTES..100 {
                let mut changed = content.clone();
                changed[at] ^= 1;
                assert_eq!(payloads.check(&changed, true), ContentCheck::Corrupt, "byte {at}");
            }
            assert_eq!(payloads.check(&content[..99], true), ContentCheck::Corrupt);
            let wrapped = [b"{\"data\":\"", &content[..], b"\"}"].concat();
            assert_eq!(payloads.check(&wrapped, false), ContentCheck::Whole(number));
            assert_eq!(payloads.check(&wrapped, true), ContentCheck::Corrupt);
        }
        assert_eq!(payloads.check(b"hello", true), ContentCheck::Foreign);
        let other = Payloads::new(8, 100).get(1).to_vec();
        assert_eq!(payloads.check(&other, true), ContentCheck::Foreign, "another run's");
        assert_eq!(Payloads::new(1, MIN_BYTES).get(5).len(), MIN_BYTES);
    }
}
