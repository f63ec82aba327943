//! Cross-origin requests (the Fetch standard, §3.3 "CORS protocol"): the other origins whose scripts may read
//! this site.
//!
//! With `*` or a single origin, every response has the same fields, and they are part of prepared heads. With
//! several origins a response names the origin of its request. That line is inserted after a service has
//! written the head, so that prepared heads are the same for all origins.

use pollux_http::request::{Framing, Method, Request};
use std::str::FromStr;

/// The time in seconds for which a browser may cache the response to a preflight request.
const MAX_AGE_S: u32 = 86_400;
/// The maximum number of origins of a site: they are compared one after the other.
const ORIGINS_MAX: usize = 64;

/// The origins whose pages may read responses: `*` for all, or some such as `https://example.org`, separated
/// by commas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cors {
    origins: Vec<String>,
    has_credentials: bool,
}

/// The number of an origin of [`Cors`]: its index in the list, counted from one.
pub(crate) type OriginNumber = std::num::NonZeroU8;

impl Cors {
    /// Returns the same origins; if `yes`, they may also send requests with credentials.
    #[must_use]
    pub(crate) fn with_credentials(self, yes: bool) -> Self {
        Self { has_credentials: yes, ..self }
    }

    /// Returns whether every origin may read.
    pub(crate) fn is_for_all(&self) -> bool {
        self.origins == ["*"]
    }

    /// Returns whether a response depends on the origin of its request.
    pub(crate) fn differs_by_origin(&self) -> bool {
        self.origins.len() > 1
    }

    /// Returns the fields of every response.
    pub(crate) fn fields(&self) -> Vec<(String, String)> {
        let mut fields = Vec::new();
        if let [origin] = &self.origins[..] {
            fields.push(("Access-Control-Allow-Origin".into(), origin.clone()));
            if self.has_credentials {
                fields.push(("Access-Control-Allow-Credentials".into(), "true".into()));
            }
        }
        if !self.is_for_all() {
            fields.push(("Vary".into(), "Origin".into()));
        }
        fields
    }

    /// Returns the number of the origin of a request, if it is in the list.
    pub(crate) fn find(&self, request: &Request<'_>) -> Option<OriginNumber> {
        let origin = request.field(b"origin")?;
        let index = self.origins.iter().position(|known| known.as_bytes() == origin)?;
        OriginNumber::new(u8::try_from(index + 1).ok()?)
    }

    /// Returns the field lines of a response that scripts of one of several origins may read.
    pub(crate) fn fields_for(&self, origin: OriginNumber) -> Option<String> {
        let origin = self.origins.get(usize::from(origin.get()) - 1)?;
        let credentials = if self.has_credentials { CREDENTIALS } else { "" };
        Some(format!("Access-Control-Allow-Origin: {origin}\r\n{credentials}"))
    }

    /// Returns the field lines for the response to a preflight request for a resource that has these methods,
    /// besides the fields of every response. Returns no lines for other requests and other origins.
    pub(crate) fn preflight(&self, request: &Request<'_>, methods: &str) -> Vec<u8> {
        if !is_preflight(request) || !self.is_for_all() && self.find(request).is_none() {
            return Vec::new();
        }
        let mut lines = format!(
            "Access-Control-Allow-Methods: {methods}\r\nAccess-Control-Max-Age: {MAX_AGE_S}\r\n"
        )
        .into_bytes();
        // The value should be a list of field names; anything else is ignored. The response has no `*`,
        // because that does not include `Authorization`, and has no effect on requests with credentials.
        let is_name =
            |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~, ".contains(byte);
        if let Some(wanted) = request.field(b"access-control-request-headers")
            && wanted.iter().all(is_name)
        {
            lines.extend_from_slice(b"Access-Control-Allow-Headers: ");
            lines.extend_from_slice(wanted);
            lines.extend_from_slice(b"\r\n");
        }
        lines
    }
}

const CREDENTIALS: &str = "Access-Control-Allow-Credentials: true\r\n";

/// Returns whether a request is a preflight request, which a browser sends before another request, without
/// credentials (the Fetch standard, §4.8).
pub(crate) fn is_preflight(request: &Request<'_>) -> bool {
    request.method == Method::Options
        && request.framing == Framing::None
        && request.field(b"origin").is_some()
        && request.field(b"access-control-request-method").is_some()
}

impl FromStr for Cors {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let origins: Vec<String> = text.split(',').map(|one| one.trim().to_owned()).collect();
        if origins.len() > ORIGINS_MAX {
            return Err(format!("{} origins: at most {ORIGINS_MAX} are allowed", origins.len()));
        }
        if origins != ["*"] {
            for (index, origin) in origins.iter().enumerate() {
                check(origin)?;
                if origins[..index].contains(origin) {
                    return Err(format!("{origin} is there twice"));
                }
            }
        }
        Ok(Self { origins, has_credentials: false })
    }
}

/// Checks that an origin is written as browsers write it in `Origin`, because the comparison is exact.
fn check(origin: &str) -> Result<(), String> {
    let wanted =
        "expected * or origins without a path, such as https://example.org,https://example.net";
    if origin == "*" {
        return Err("* is for every origin: leave out the others".into());
    }
    let (scheme, default_port) =
        if origin.starts_with("https://") { ("https://", ":443") } else { ("http://", ":80") };
    let host = origin.strip_prefix(scheme).filter(|host| !host.is_empty()).ok_or(wanted)?;
    if !host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte)) {
        return Err(wanted.into());
    }
    if host.bytes().any(|byte| byte.is_ascii_uppercase()) {
        let lower = origin.to_ascii_lowercase();
        return Err(format!("browsers write an origin in lower case: write {lower}"));
    }
    if let Some(name) = host.strip_suffix(default_port) {
        return Err(format!("browsers leave out the scheme's own port: write {scheme}{name}"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_http::{
        Limits,
        request::{self, ParseStatus},
    };

    fn with_request<T>(fields: &str, call: impl FnOnce(&Request<'_>) -> T) -> T {
        let text = format!("OPTIONS / HTTP/1.1\r\nHost: a\r\n{fields}\r\n");
        let Ok(ParseStatus::Complete { request, .. }) =
            request::parse(text.as_bytes(), &Limits::DEFAULT)
        else {
            panic!("it is complete: {text}");
        };
        call(&request)
    }

    #[test]
    fn a_preflight_answer_lists_methods_and_requested_fields() {
        let cors: Cors = "https://a.example".parse().unwrap();
        assert_eq!(cors.fields().len(), 2);
        let method = "Access-Control-Request-Method: PUT\r\n";
        for (fields, expected) in [
            (
                "Origin: https://a.example\r\nAccess-Control-Request-Headers: x-a, x-b\r\n",
                "x-a, x-b",
            ),
            ("Origin: https://a.example\r\nAccess-Control-Request-Headers: x\"a\r\n", ""),
            ("Origin: https://a.example\r\n", ""),
        ] {
            let lines =
                with_request(&format!("{fields}{method}"), |r| cors.preflight(r, "GET, HEAD"));
            let lines = String::from_utf8(lines).unwrap();
            assert!(lines.starts_with("Access-Control-Allow-Methods: GET, HEAD\r\n"), "{lines}");
            assert!(lines.contains("Access-Control-Max-Age: 86400\r\n"), "{lines}");
            let allowed = format!("Access-Control-Allow-Headers: {expected}\r\n");
            assert_eq!(lines.contains(&allowed), !expected.is_empty(), "{lines}");
            assert_eq!(lines.contains("Allow-Headers"), !expected.is_empty(), "{lines}");
        }
        // There are no lines for other origins, and for requests that are not preflight requests.
        for fields in [
            format!("Origin: https://b.example\r\n{method}"),
            format!("Origin: null\r\n{method}"),
            method.to_owned(),
            "Origin: https://a.example\r\n".to_owned(),
            format!("Origin: https://a.example\r\nContent-Length: 1\r\n{method}"),
        ] {
            assert!(with_request(&fields, |r| cors.preflight(r, "GET")).is_empty(), "{fields}");
        }
        let all: Cors = "*".parse().unwrap();
        let fields = format!("Origin: null\r\n{method}");
        assert!(!with_request(&fields, |r| all.preflight(r, "GET")).is_empty());
    }

    #[test]
    fn one_of_several_origins_is_named_in_the_head() {
        let cors: Cors = "https://a.example, http://b.example:8080,https://[::1]".parse().unwrap();
        assert!(cors.differs_by_origin());
        assert_eq!(cors.fields(), [("Vary".into(), "Origin".into())]);
        let find = |origin: &str| with_request(&format!("Origin: {origin}\r\n"), |r| cors.find(r));
        for other in
            ["https://a.example.org", "https://a.exampl", "null", "*", "", "HTTPS://A.EXAMPLE"]
        {
            assert_eq!(find(other), None, "{other}");
        }
        assert_eq!(with_request("", |r| cors.find(r)), None);
        let number = find("http://b.example:8080").unwrap();
        for (yes, more) in [(false, ""), (true, CREDENTIALS)] {
            let cors = cors.clone().with_credentials(yes);
            let expected = format!("Access-Control-Allow-Origin: http://b.example:8080\r\n{more}");
            assert_eq!(cors.fields_for(number), Some(expected));
        }
        let one: Cors = "https://a.example".parse().unwrap();
        let fields = one.with_credentials(true).fields();
        assert_eq!(fields[1], ("Access-Control-Allow-Credentials".into(), "true".into()));
    }

    #[test]
    fn origins_are_written_as_browsers_write_them() {
        for text in ["*", "https://a.example", "http://a.example:8080,https://a.example"] {
            text.parse::<Cors>().unwrap();
        }
        for (text, expected) in [
            ("", "expected"),
            ("a.example", "expected"),
            ("https://", "expected"),
            ("https://a/b", "expected"),
            ("null", "expected"),
            ("https://a.example/", "expected"),
            ("https://a,", "expected"),
            ("*,https://a", "leave out"),
            ("https://a,https://a", "twice"),
            ("https://A.example", "write https://a.example"),
            ("https://a.example:443", "write https://a.example"),
            ("http://a.example:80", "write http://a.example"),
        ] {
            let error = text.parse::<Cors>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let many = vec!["https://a.example"; ORIGINS_MAX + 1].join(",");
        assert_eq!(many.parse::<Cors>().unwrap_err(), "65 origins: at most 64 are allowed");
    }
}
