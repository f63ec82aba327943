//! The `Cache-Status` field (RFC 9211): how this cache handled a request.

use pollux_http::output::{Output, put_decimal};
use std::sync::Arc;

/// The reason why a request was forwarded to the origin (§2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Forward {
    /// The cache was configured not to handle the request.
    Bypass,
    /// The request's method must reach the origin.
    Method,
    /// No stored response matches; the reason is either of the next two.
    Miss,
    /// No response is stored for the URL.
    UriMiss,
    /// A response is stored for the URL, but `Vary` excludes it for this request.
    VaryMiss,
    /// Only a part is stored, and it does not contain the requested range.
    Partial,
    /// The client's `Cache-Control` requires it.
    Request,
    /// The stored response is stale.
    Stale,
}

impl Forward {
    const fn name(self) -> &'static str {
        match self {
            Self::Bypass => "bypass",
            Self::Method => "method",
            Self::Miss => "miss",
            Self::UriMiss => "uri-miss",
            Self::VaryMiss => "vary-miss",
            Self::Partial => "partial",
            Self::Request => "request",
            Self::Stale => "stale",
        }
    }
}

/// The list member that this cache adds to the field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheStatus {
    pub(crate) name: Arc<str>,
    /// `None` for a hit.
    pub(crate) forward: Option<Forward>,
    pub(crate) forward_status: Option<u16>,
    pub(crate) ttl: Option<i64>,
    pub(crate) is_stored: bool,
    /// Set if the request waited for the fetch of another request: `true` if the response of that
    /// fetch served it, `false` if it had to be forwarded after all (§2.6).
    pub(crate) collapsed: Option<bool>,
    pub(crate) key: Option<Arc<[u8]>>,
    pub(crate) detail: Option<&'static str>,
}

impl CacheStatus {
    pub(crate) fn new(name: &Arc<str>, forward: Option<Forward>) -> Self {
        Self {
            name: name.clone(),
            forward,
            forward_status: None,
            ttl: None,
            is_stored: false,
            collapsed: None,
            key: None,
            detail: None,
        }
    }

    /// Appends the field line of a response that this server generates itself, such as an error
    /// page. `forward` is the reason for which the request was to be forwarded, if it was; `detail`
    /// is a token (§2.8).
    pub fn put_for_own_response(
        name: &str,
        forward: Option<Forward>,
        detail: Option<&str>,
        out: &mut impl Output,
    ) {
        out.put(b"Cache-Status: ");
        out.put(name.as_bytes());
        for (key, value) in [("fwd", forward.map(Forward::name)), ("detail", detail)] {
            if let Some(value) = value {
                out.put(b"; ");
                out.put(key.as_bytes());
                out.put(b"=");
                out.put(value.as_bytes());
            }
        }
        out.put(b"\r\n");
    }

    /// The reason why the request was forwarded; `None` for a hit.
    pub fn forward(&self) -> Option<Forward> {
        self.forward
    }

    /// Whether the cache stores the response.
    pub fn is_stored(&self) -> bool {
        self.is_stored
    }

    /// Appends the field line. It must follow the lines of caches nearer to the origin (§2).
    pub fn put(&self, out: &mut impl Output) {
        out.put(b"Cache-Status: ");
        out.put(self.name.as_bytes());
        match self.forward {
            None => out.put(b"; hit"),
            Some(forward) => {
                out.put(b"; fwd=");
                out.put(forward.name().as_bytes());
            }
        }
        if let Some(status) = self.forward_status {
            out.put(b"; fwd-status=");
            put_decimal(out, status.into());
        }
        if let Some(ttl) = self.ttl {
            out.put(if ttl < 0 { b"; ttl=-" } else { b"; ttl=" });
            put_decimal(out, ttl.unsigned_abs());
        }
        if self.is_stored {
            out.put(b"; stored");
        }
        match self.collapsed {
            Some(true) => out.put(b"; collapsed"),
            Some(false) => out.put(b"; collapsed=?0"),
            None => {}
        }
        if let Some(key) = &self.key {
            out.put(b"; key=\"");
            // A structured-field string holds visible ASCII; quotes and backslashes are escaped
            // (RFC 9651 §3.3.3).
            for &byte in key.iter().filter(|byte| matches!(byte, b' '..=b'~')) {
                if matches!(byte, b'"' | b'\\') {
                    out.put(b"\\");
                }
                out.put(&[byte]);
            }
            out.put(b"\"");
        }
        if let Some(detail) = self.detail {
            out.put(b"; detail=");
            out.put(detail.as_bytes());
        }
        out.put(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_field_is_a_structured_list_rfc_9211_2() {
        let mut status = CacheStatus::new(&"Pollux".into(), None);
        let line = |status: &CacheStatus| {
            let mut out = Vec::new();
            status.put(&mut out);
            let text = String::from_utf8(out).unwrap();
            let value = text.strip_prefix("Cache-Status: ").unwrap().trim_end();
            let list: sfv::List = sfv::Parser::new(value).parse().unwrap();
            assert_eq!(list.len(), 1);
            value.to_owned()
        };
        status.ttl = Some(-5);
        assert_eq!(line(&status), "Pollux; hit; ttl=-5");
        status.forward = Some(Forward::Stale);
        status.forward_status = Some(304);
        status.ttl = Some(60);
        status.is_stored = true;
        status.collapsed = Some(true);
        status.key = Some(Arc::from(&b"http://a/\"\\"[..]));
        status.detail = Some("no-store");
        assert_eq!(
            line(&status),
            "Pollux; fwd=stale; fwd-status=304; ttl=60; stored; collapsed; \
             key=\"http://a/\\\"\\\\\"; detail=no-store"
        );
        let not_collapsed = CacheStatus {
            collapsed: Some(false),
            ..CacheStatus::new(&"Pollux".into(), Some(Forward::UriMiss))
        };
        assert_eq!(line(&not_collapsed), "Pollux; fwd=uri-miss; collapsed=?0");
        let mut page = Vec::new();
        CacheStatus::put_for_own_response("Pollux", None, Some("only-if-cached"), &mut page);
        CacheStatus::put_for_own_response("Pollux", Some(Forward::Miss), None, &mut page);
        assert_eq!(
            page,
            b"Cache-Status: Pollux; detail=only-if-cached\r\nCache-Status: Pollux; fwd=miss\r\n"
        );
        for forward in [
            Forward::Bypass,
            Forward::Method,
            Forward::UriMiss,
            Forward::VaryMiss,
            Forward::Request,
        ] {
            line(&CacheStatus::new(&"Pollux".into(), Some(forward)));
        }
    }
}
