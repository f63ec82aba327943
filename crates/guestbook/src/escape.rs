//! Escapes text for HTML.

/// The maximum length of one escaped byte (`&quot;`).
pub(crate) const ESCAPED_LEN_MAX: usize = 6;

/// Appends `text` so that nothing in it is markup, neither in content nor in an attribute value
/// (HTML Standard, 13.3). Invalid UTF-8 becomes U+FFFD; a line break becomes `<br>`.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &[u8]) {
    for chunk in text.utf8_chunks() {
        let valid = chunk.valid().as_bytes();
        let mut from = 0;
        for (at, &byte) in valid.iter().enumerate() {
            let replacement: &[u8] = match byte {
                b'&' => b"&amp;",
                b'<' => b"&lt;",
                b'>' => b"&gt;",
                b'"' => b"&quot;",
                b'\'' => b"&#39;",
                b'\n' => b"<br>\n",
                // Other control characters have no meaning in HTML, and NUL is an error in it.
                0..=8 | 11..=31 | 127 => b"",
                _ => continue,
            };
            out.extend_from_slice(&valid[from..at]);
            out.extend_from_slice(replacement);
            from = at + 1;
        }
        out.extend_from_slice(&valid[from..]);
        if !chunk.invalid().is_empty() {
            out.extend_from_slice("\u{fffd}".as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn escaped(text: &[u8]) -> String {
        let mut out = Vec::new();
        put_text(&mut out, text);
        String::from_utf8(out).expect("escaped text is UTF-8")
    }

    #[test]
    fn nothing_in_a_text_is_markup() {
        assert_eq!(
            escaped(b"<script>alert(\"1\" & '2')</script>"),
            "&lt;script&gt;alert(&quot;1&quot; &amp; &#39;2&#39;)&lt;/script&gt;"
        );
        assert_eq!(escaped(b"one\r\ntwo\0"), "one<br>\ntwo");
        assert_eq!(escaped(b"a\xffb\xc3"), "a\u{fffd}b\u{fffd}");
        assert_eq!(escaped("grüße 🐙".as_bytes()), "grüße 🐙");
    }

    proptest! {
        #[test]
        fn no_bytes_start_a_tag_or_end_an_attribute(text: Vec<u8>) {
            let html = escaped(&text).replace("<br>", "");
            prop_assert!(!html.contains(['<', '>', '"', '\'']));
            prop_assert!(escaped(&text).len() <= text.len() * ESCAPED_LEN_MAX);
        }
    }
}
