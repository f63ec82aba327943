//! Output buffers for messages.

/// A destination to which bytes are appended.
pub trait Output {
    /// Appends `bytes`.
    fn put(&mut self, bytes: &[u8]);
}

impl Output for Vec<u8> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// A buffer of fixed size, for responses on the stack or in a shared buffer.
///
/// ```
/// use pollux_http::output::{FixedBuffer, Output};
///
/// let mut room = [0; 8];
/// let mut out = FixedBuffer::new(&mut room);
/// out.put(b"four");
/// assert_eq!(out.written(), Some(&b"four"[..]));
/// out.put(b"five5");
/// assert_eq!(out.written(), None);
/// ```
#[derive(Debug)]
pub struct FixedBuffer<'o> {
    room: &'o mut [u8],
    len: usize,
    is_short: bool,
}

impl<'o> FixedBuffer<'o> {
    /// Creates a buffer that writes from the start of `room`.
    pub fn new(room: &'o mut [u8]) -> Self {
        Self { room, len: 0, is_short: false }
    }

    /// Returns the written bytes; `None` if they did not fit.
    pub fn written(&self) -> Option<&[u8]> {
        (!self.is_short).then(|| &self.room[..self.len])
    }
}

impl Output for FixedBuffer<'_> {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        match self.room.get_mut(self.len..self.len + bytes.len()) {
            Some(room) => {
                room.copy_from_slice(bytes);
                self.len += bytes.len();
            }
            None => self.is_short = true,
        }
    }
}

/// Counts bytes instead of writing them. A length computed in advance is exact, because the same
/// code writes later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteCounter(pub u64);

impl Output for ByteCounter {
    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        self.0 = self.0.saturating_add(bytes.len() as u64);
    }
}

/// Appends `number` in decimal.
#[inline]
pub fn put_decimal(out: &mut impl Output, number: u64) {
    out.put(itoa::Buffer::new().format(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overflow_is_remembered() {
        let mut room = [0; 8];
        let mut out = FixedBuffer::new(&mut room);
        out.put(b"123456");
        out.put(b"789");
        out.put(b"7");
        assert_eq!(out.written(), None);
    }

    #[test]
    fn a_buffer_can_be_filled_completely() {
        let mut room = [0; 20];
        let mut out = FixedBuffer::new(&mut room);
        put_decimal(&mut out, u64::MAX);
        assert_eq!(out.written(), Some(&b"18446744073709551615"[..]));
        let mut counter = ByteCounter::default();
        put_decimal(&mut counter, 0);
        assert_eq!(counter, ByteCounter(1));
    }
}
