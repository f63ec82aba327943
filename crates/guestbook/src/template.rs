//! The page template.

use crate::{
    escape::{ESCAPED_LEN_MAX, put_text},
    limits,
};

/// The paper's variable for the remarks.
const REMARKS: &[u8] = b"$GUEST_REMARKS$";
/// The paper's variable for the number of the visit.
const VISITORS: &[u8] = b"$VISITOR_COUNT$";

/// The HTML before and after each remark.
const BEFORE: &[u8] = b"<p class=\"guest-entry\">";
const AFTER: &[u8] = b"</p>\n";

/// A page with variables.
///
/// The template is split at its variables once, so that building a page only copies its pieces.
#[derive(Clone, Debug)]
pub struct Template {
    pieces: Vec<Piece>,
}

#[derive(Clone, Debug)]
enum Piece {
    Text(Vec<u8>),
    Remarks,
    Visitors,
}

/// The reason why a file is not a valid template.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The template is too long.
    #[error("the template is longer than {} bytes", limits::TEMPLATE_BYTES)]
    TooLong,
    /// The template is not UTF-8.
    #[error("the template is not UTF-8 (first invalid byte at offset {0})")]
    NotUtf8(usize),
    /// The template would show no remarks.
    #[error("the template has no variable $GUEST_REMARKS$, so it would show no remarks")]
    NoRemarks,
}

impl Template {
    /// Parses a template: HTML in UTF-8 with `$GUEST_REMARKS$` and, optionally, `$VISITOR_COUNT$`.
    /// Each may occur several times.
    ///
    /// # Errors
    /// The template is too long, not UTF-8, or has no variable for the remarks.
    pub fn parse(text: &[u8]) -> Result<Self, TemplateError> {
        if text.len() > limits::TEMPLATE_BYTES {
            return Err(TemplateError::TooLong);
        }
        if let Err(error) = std::str::from_utf8(text) {
            return Err(TemplateError::NotUtf8(error.valid_up_to()));
        }
        let mut pieces = Vec::new();
        let (mut from, mut at) = (0, 0);
        while at < text.len() {
            let (piece, len) = match &text[at..] {
                rest if rest.starts_with(REMARKS) => (Piece::Remarks, REMARKS.len()),
                rest if rest.starts_with(VISITORS) => (Piece::Visitors, VISITORS.len()),
                _ => {
                    at += 1;
                    continue;
                }
            };
            pieces.push(Piece::Text(text[from..at].to_vec()));
            pieces.push(piece);
            at += len;
            from = at;
        }
        pieces.push(Piece::Text(text[from..].to_vec()));
        if !pieces.iter().any(|piece| matches!(piece, Piece::Remarks)) {
            return Err(TemplateError::NoRemarks);
        }
        Ok(Self { pieces })
    }

    /// Appends the page with these remarks, in this order, and the number of the visit. If the
    /// remarks are longer than [`limits::PAGE_BYTES`] as HTML, only the newest of them, which are
    /// the last, are shown.
    pub fn put_page<R: AsRef<[u8]>>(&self, out: &mut Vec<u8>, remarks: &[R], visitor: i64) {
        let remarks = newest_that_fit(remarks);
        for piece in &self.pieces {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text),
                Piece::Visitors => out.extend_from_slice(visitor.to_string().as_bytes()),
                Piece::Remarks => {
                    for remark in remarks {
                        out.extend_from_slice(BEFORE);
                        put_text(out, remark.as_ref());
                        out.extend_from_slice(AFTER);
                    }
                }
            }
        }
    }
}

/// Returns the last remarks, as many as fit into a page.
fn newest_that_fit<R: AsRef<[u8]>>(remarks: &[R]) -> &[R] {
    let around = BEFORE.len() + AFTER.len();
    let bytes: usize = remarks.iter().map(|remark| remark.as_ref().len()).sum();
    // Common case: the remarks fit even if every byte has to be escaped.
    if bytes * ESCAPED_LEN_MAX + remarks.len() * around <= limits::PAGE_BYTES {
        return remarks;
    }
    let mut room = limits::PAGE_BYTES;
    let mut html = Vec::new();
    let too_long = |remark: &R| {
        let remark = remark.as_ref();
        // A remark from another program may have any length; do not even escape a huge one.
        if remark.len() > room {
            return true;
        }
        html.clear();
        put_text(&mut html, remark);
        match room.checked_sub(html.len() + around) {
            Some(left) => room = left,
            None => return true,
        }
        false
    };
    let first = remarks.iter().rposition(too_long).map_or(0, |last_left_out| last_left_out + 1);
    &remarks[first..]
}

impl Default for Template {
    /// A page without external resources.
    fn default() -> Self {
        Self::parse(include_bytes!("template.html")).expect("the built-in page is valid")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(template: &str, remarks: &[&str], visitor: i64) -> String {
        let mut out = Vec::new();
        Template::parse(template.as_bytes()).unwrap().put_page(&mut out, remarks, visitor);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn variables_are_replaced_everywhere() {
        assert_eq!(
            page("$VISITOR_COUNT$ a $GUEST_REMARKS$ b $VISITOR_COUNT$", &["x", "y"], 7),
            "7 a <p class=\"guest-entry\">x</p>\n<p class=\"guest-entry\">y</p>\n b 7"
        );
        assert_eq!(page("$GUEST_REMARKS$", &[], 1), "");
        assert_eq!(page("$$GUEST_REMARKS$$VISITOR_COUNT$", &[], 1), "$1");
    }

    #[test]
    fn a_remark_is_neither_markup_nor_a_variable() {
        assert_eq!(
            page("$GUEST_REMARKS$", &["<b>$VISITOR_COUNT$</b>$GUEST_REMARKS$"], 3),
            "<p class=\"guest-entry\">&lt;b&gt;$VISITOR_COUNT$&lt;/b&gt;$GUEST_REMARKS$</p>\n"
        );
    }

    #[test]
    fn invalid_templates_are_rejected() {
        let parse = |text: &[u8]| Template::parse(text).unwrap_err();
        assert_eq!(parse(b"no remarks: $GUEST_REMARKS"), TemplateError::NoRemarks);
        assert_eq!(parse(b"ab\xff$GUEST_REMARKS$"), TemplateError::NotUtf8(2));
        assert_eq!(parse(&vec![b'a'; limits::TEMPLATE_BYTES + 1]), TemplateError::TooLong);
    }

    #[test]
    fn the_built_in_page_posts_the_fields_that_the_form_reads() {
        let mut out = Vec::new();
        Template::default().put_page(&mut out, &["hello"], 42);
        let html = String::from_utf8(out).unwrap();
        for part in
            ["hello", "42", "name=\"guest-remarks\"", "name=\"guest-name\"", "method=\"post\""]
        {
            assert!(html.contains(part), "no {part}");
        }
    }

    /// A remark of quotation marks is six times as long on the page.
    #[test]
    fn a_page_is_bounded_and_shows_the_newest_remarks() {
        let remarks: Vec<_> = (0..100).map(|n| format!("{n} {}", "\"".repeat(4000))).collect();
        let remarks: Vec<_> = remarks.iter().map(String::as_str).collect();
        let all = page("$GUEST_REMARKS$", &remarks, 1);
        assert!(
            (limits::PAGE_BYTES / 2..=limits::PAGE_BYTES).contains(&all.len()),
            "{}",
            all.len()
        );
        assert!(all.contains(">99 ") && all.find(">98 ") < all.find(">99 "));
        assert!(!all.contains(">0 "));
        let huge = "x".repeat(limits::PAGE_BYTES);
        let shown = page("$GUEST_REMARKS$", &["old", &huge, "new"], 1);
        assert_eq!(shown, "<p class=\"guest-entry\">new</p>\n");
    }
}
