//! Several ranges in one response: `multipart/byteranges` (RFC 9110 §14.6, RFC 2046 §5.1).

use crate::{
    output::{ByteCounter, Output},
    range::{ByteRange, Parts},
    response::put_content_range,
};

const BOUNDARY_LEN: usize = 32;

/// The framing of the parts of a response.
///
/// For each range write [`Multipart::put_part_head`] and then its bytes; after the last range write
/// [`Multipart::put_end`]. [`Multipart::content_length`] computes the total length in advance.
///
/// ```
/// use pollux_http::{multipart::Multipart, range::{Selection, select}};
///
/// let content = b"0123456789";
/// let Selection::Parts(parts) = select(b"bytes=0-1,8-9", 10) else { panic!("two ranges") };
/// let nonce = 0x1234; // use a random number
/// let multipart = Multipart::new(nonce, b"text/plain", 10);
/// let mut body = Vec::new();
/// for (index, range) in parts.as_slice().iter().enumerate() {
///     multipart.put_part_head(&mut body, *range, index == 0);
///     body.extend_from_slice(&content[range.first as usize..=range.last as usize]);
/// }
/// multipart.put_end(&mut body);
/// assert_eq!(multipart.content_length(&parts), body.len() as u64);
/// ```
#[derive(Clone, Debug)]
pub struct Multipart<'c> {
    boundary: [u8; BOUNDARY_LEN],
    content_type: &'c [u8],
    size: u64,
}

impl<'c> Multipart<'c> {
    /// Creates the framing for a representation of `size` bytes and of `content_type` (empty for
    /// none).
    ///
    /// The boundary is derived from `nonce` and must not occur in the content. Use a random number,
    /// since an attacker could put a predictable boundary into a file.
    pub fn new(nonce: u128, content_type: &'c [u8], size: u64) -> Self {
        let mut boundary = [0; BOUNDARY_LEN];
        for (i, digit) in boundary.iter_mut().enumerate() {
            *digit = b"0123456789abcdef"[(nonce >> (i * 4)) as usize & 15];
        }
        Self { boundary, content_type, size }
    }

    /// Appends the `Content-Type` line of the response.
    pub fn put_content_type(&self, out: &mut impl Output) {
        out.put(b"Content-Type: multipart/byteranges; boundary=");
        out.put(&self.boundary);
        out.put(b"\r\n");
    }

    /// Appends the lines before the bytes of `range`; `is_first` for the first part.
    pub fn put_part_head(&self, out: &mut impl Output, range: ByteRange, is_first: bool) {
        out.put(if is_first { b"--" } else { b"\r\n--" });
        out.put(&self.boundary);
        out.put(b"\r\n");
        if !self.content_type.is_empty() {
            out.put(b"Content-Type: ");
            out.put(self.content_type);
            out.put(b"\r\n");
        }
        put_content_range(out, range, self.size);
        out.put(b"\r\n");
    }

    /// Appends the lines after the last part.
    pub fn put_end(&self, out: &mut impl Output) {
        out.put(b"\r\n--");
        out.put(&self.boundary);
        out.put(b"--\r\n");
    }

    /// The length of the whole body.
    pub fn content_length(&self, parts: &Parts) -> u64 {
        let mut counter = ByteCounter(0);
        for (i, &range) in parts.as_slice().iter().enumerate() {
            self.put_part_head(&mut counter, range, i == 0);
            counter.0 = counter.0.saturating_add(range.len());
        }
        self.put_end(&mut counter);
        counter.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::range::{Selection, select};

    #[test]
    fn the_body_has_the_computed_length() {
        let content: Vec<u8> = (0..=255).cycle().take(8000).collect();
        for (value, content_type) in
            [("bytes=500-999,7000-7999", &b"application/pdf"[..]), ("bytes=0-0,-1,17-33", b"")]
        {
            let Selection::Parts(parts) = select(value.as_bytes(), 8000) else { panic!() };
            let multipart = Multipart::new(0x1234, content_type, 8000);
            let mut body = Vec::new();
            for (i, range) in parts.as_slice().iter().enumerate() {
                multipart.put_part_head(&mut body, *range, i == 0);
                body.extend_from_slice(&content[range.first as usize..=range.last as usize]);
            }
            multipart.put_end(&mut body);
            assert_eq!(multipart.content_length(&parts), body.len() as u64);
        }
    }

    /// Found by the fuzz target `ranges`: the sum did not fit into 64 bits.
    #[test]
    fn the_length_of_the_largest_body_is_the_largest_number() {
        let Selection::Parts(parts) = select(b"bytes=10-", u64::MAX) else { panic!() };
        let multipart = Multipart::new(0, b"text/plain", u64::MAX);
        assert_eq!(multipart.content_length(&parts), u64::MAX);
    }

    #[test]
    fn the_parts_are_framed_as_in_rfc_9110_14_6() {
        let multipart = Multipart::new(u128::MAX, b"text/plain", 10);
        let boundary = "f".repeat(32);
        let mut out = Vec::new();
        multipart.put_content_type(&mut out);
        multipart.put_part_head(&mut out, ByteRange { first: 0, last: 0 }, true);
        multipart.put_part_head(&mut out, ByteRange { first: 2, last: 3 }, false);
        multipart.put_end(&mut out);
        let expected = format!(
            "Content-Type: multipart/byteranges; boundary={boundary}\r\n\
             --{boundary}\r\nContent-Type: text/plain\r\nContent-Range: bytes 0-0/10\r\n\r\n\
             \r\n--{boundary}\r\nContent-Type: text/plain\r\nContent-Range: bytes 2-3/10\r\n\r\n\
             \r\n--{boundary}--\r\n"
        );
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
