//! An input that is a sequence of acts, each a byte with its arguments.

/// The rest of the input.
pub(crate) struct Script<'a>(pub(crate) &'a [u8]);

impl<'a> Script<'a> {
    pub(crate) fn byte(&mut self) -> Option<u8> {
        let (&byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(byte)
    }

    pub(crate) fn number(&mut self) -> Option<usize> {
        Some(usize::from(self.byte()?) << 8 | usize::from(self.byte()?))
    }

    /// So many bytes, or as many as there are.
    pub(crate) fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}
