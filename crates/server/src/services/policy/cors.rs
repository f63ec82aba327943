//! Cross-origin requests (the Fetch standard, §3.3): which other sites' scripts may read this one.

use pollux_http::request::Request;
use std::str::FromStr;

/// How long a browser may remember a preflight's answer.
const MAX_AGE_S: u32 = 86_400;

/// The origin whose pages may read: `*` for all, or one such as `https://example.org`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors {
    origin: String,
}

impl Cors {
    /// Field lines of every response.
    pub(crate) fn fields(&self) -> Vec<(String, String)> {
        let mut fields = vec![("Access-Control-Allow-Origin".into(), self.origin.clone())];
        if self.origin != "*" {
            fields.push(("Vary".into(), "Origin".into()));
        }
        fields
    }

    /// Field lines of the answer to a preflight, besides those of every response.
    pub(crate) fn preflight(&self, request: &Request<'_>) -> Vec<u8> {
        let mut lines = format!(
            "Access-Control-Allow-Methods: GET, HEAD, OPTIONS, POST, PUT, PATCH, DELETE\r\n\
             Access-Control-Max-Age: {MAX_AGE_S}\r\n"
        )
        .into_bytes();
        // The value should be a list of field names; anything else is ignored.
        if let Some(wanted) = request.field(b"access-control-request-headers")
            && wanted.iter().all(|&byte| byte.is_ascii_alphanumeric() || b"-_, ".contains(&byte))
        {
            lines.extend_from_slice(b"Access-Control-Allow-Headers: ");
            lines.extend_from_slice(wanted);
            lines.extend_from_slice(b"\r\n");
        }
        lines
    }
}

impl FromStr for Cors {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let is_origin = ["https://", "http://"].iter().any(|scheme| {
            text.strip_prefix(scheme).is_some_and(|host| {
                !host.is_empty()
                    && host
                        .bytes()
                        .all(|byte| byte.is_ascii_alphanumeric() || b"-.:[]".contains(&byte))
            })
        });
        if text == "*" || is_origin {
            Ok(Self { origin: text.into() })
        } else {
            Err("wants * or an origin without a path, such as https://example.org".into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_http::{
        Limits,
        request::{self, ParseStatus},
    };

    #[test]
    fn a_preflight_answer_lists_the_requested_fields() {
        let cors: Cors = "https://a.example".parse().unwrap();
        assert_eq!(cors.fields().len(), 2);
        for (wanted, allowed) in [("x-a, x-b", true), ("x\"a", false)] {
            let text = format!(
                "OPTIONS / HTTP/1.1\r\nHost: a\r\nAccess-Control-Request-Headers: {wanted}\r\n\r\n"
            );
            let Ok(ParseStatus::Complete { request, .. }) =
                request::parse(text.as_bytes(), &Limits::DEFAULT)
            else {
                panic!("it is complete");
            };
            let lines = String::from_utf8(cors.preflight(&request)).unwrap();
            assert_eq!(
                lines.contains("Access-Control-Allow-Headers: x-a, x-b\r\n"),
                allowed,
                "{lines}"
            );
        }
        for text in ["", "a.example", "https://", "https://a/b", "null"] {
            assert!(text.parse::<Cors>().is_err(), "{text}");
        }
    }
}
