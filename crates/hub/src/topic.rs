//! Topics, and the URL of the hub against which relative ones are resolved.

use crate::{fields::has_invisible, limits, reject::Reject};
use url::Url;

/// The path of a hub, and of the topics that only the hub itself publishes.
pub const WELL_KNOWN: &str = "/.well-known/mercure";

/// The URL of a hub: the base of relative topics and patterns.
#[derive(Clone, Debug)]
pub struct HubUrl {
    url: Url,
    /// The path under which the hub generates its own topics, without a slash at the end.
    namespace: String,
}

impl HubUrl {
    /// Parses the hub's public URL, such as `https://example.com/.well-known/mercure`.
    ///
    /// # Errors
    /// It is not an absolute `http` or `https` URL.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let url = Url::parse(text)
            .ok()
            .filter(|url| matches!(url.scheme(), "http" | "https"))
            .ok_or("the hub's URL must be an absolute http or https URL")?;
        let namespace = url.path().trim_end_matches('/').to_owned();
        Ok(Self { url, namespace })
    }

    /// The URL itself.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.url.as_str()
    }

    /// The URL against which relative ones are resolved.
    pub(crate) fn base(&self) -> &Url {
        &self.url
    }

    /// The path of the hub, as in requests.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.namespace
    }

    /// The URL of the protected resource metadata (RFC 9728 §3.1: the well-known part goes between
    /// the host and the path).
    #[must_use]
    pub fn metadata_url(&self) -> String {
        let mut url = self.url.clone();
        url.set_path(&format!("/.well-known/oauth-protected-resource{}", self.namespace));
        url.to_string()
    }

    /// A topic as a URL, resolved against the hub's; `None` if it is not a URL.
    #[must_use]
    pub fn resolve(&self, topic: &str) -> Option<Url> {
        self.url.join(topic).ok()
    }

    /// Whether a topic is in the namespace of the hub, regardless of its scheme and host. The resolved
    /// and percent-decoded path is compared, because an absolute URL, dot segments or an escape could
    /// circumvent a comparison of the text. The text itself is compared as well: the URI templates of 0.x do not resolve
    /// it, so that dot segments in it could pass for the parts of a subscription's topic.
    #[must_use]
    pub fn reserves(&self, topic: &str) -> bool {
        let is_reserved = |path: &str| {
            [WELL_KNOWN, &self.namespace].into_iter().filter(|space| !space.is_empty()).any(
                |space| {
                    path.strip_prefix(space)
                        .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
                },
            )
        };
        is_reserved(topic)
            || self.resolve(topic).is_some_and(|url| is_reserved(&decode(url.path())))
    }
}

/// Decodes percent escapes of unreserved characters (RFC 3986 §2.3). Other escapes, such as that of a
/// slash, stay, because without the escape it would be another path.
fn decode(path: &str) -> String {
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        decoded.push_str(&rest[..at]);
        let code = rest.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match code.filter(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(byte)) {
            Some(byte) => {
                decoded.push(char::from(byte));
                rest = &rest[at + 3..];
            }
            None => {
                decoded.push('%');
                rest = &rest[at + 1..];
            }
        }
    }
    decoded.push_str(rest);
    decoded
}

/// Checks a topic or a matcher: text of a bounded length without control or format characters.
///
/// # Errors
/// 400 for empty or control characters, 413 for a length over [`limits::TEXT_BYTES`].
pub fn check(text: &str) -> Result<(), Reject> {
    if text.is_empty() {
        return Err(Reject::invalid("a topic is empty: name one"));
    }
    if text.len() > limits::TEXT_BYTES {
        return Err(Reject::too_large("a topic is longer than 4096 bytes: use a shorter one"));
    }
    if has_invisible(text) {
        return Err(Reject::invalid("a topic has control or invisible characters: remove them"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub() -> HubUrl {
        HubUrl::parse("https://hub.example.com/.well-known/mercure").unwrap()
    }

    #[test]
    fn the_namespace_is_found_by_its_path() {
        for topic in [
            "/.well-known/mercure",
            "/.well-known/mercure/subscriptions/Exact/a/b",
            "https://hub.example.com/.well-known/mercure/subscriptions/x",
            "http://elsewhere/.well-known/mercure/",
            "/a/../.well-known/mercure/x",
            "/.well-known/%6dercure/x",
            "//other/.well-known/mercure?x",
            "mercure",
            "mercure/x",
            "https:/.well-known/mercure/x",
            "\\.well-known\\mercure",
            "/.well-known/me%72cure/x",
            "https:mercure/x",
            "https:",
            "?x",
            // Regression: the template `/.well-known/mercure/subscriptions{/topic}{/subscriber}` matches these.
            "/.well-known/mercure/subscriptions/../..",
            "/.well-known/mercure/subscriptions/%2e%2e/..",
            "/.well-known/mercure/subscriptions/../../https://example.com",
        ] {
            assert!(hub().reserves(topic), "{topic}");
        }
        for topic in ["/.well-known/mercurey", "https://a/b", "foo", "urn:x:y", "/mercure", "*"] {
            assert!(!hub().reserves(topic), "{topic}");
        }
        for topic in
            ["/.well-known%2Fmercure", "/a/.well-known/mercure/b", "../mercure/x", "http:x"]
        {
            assert!(!hub().reserves(topic), "{topic}");
        }
    }

    #[test]
    fn another_path_is_reserved_as_well() {
        let hub = HubUrl::parse("http://h/push").unwrap();
        assert!(hub.reserves("/push/subscriptions"));
        assert!(hub.reserves("/.well-known/mercure/x"));
        assert_eq!(hub.metadata_url(), "http://h/.well-known/oauth-protected-resource/push");
        assert!(HubUrl::parse("/push").is_err());
        assert!(HubUrl::parse("ftp://h/").is_err());
    }

    #[test]
    fn topics_are_checked() {
        assert!(check("a b").is_ok());
        for (text, status) in
            [("", 400), ("a\nb", 400), ("a\u{85}", 400), ("a\u{7f}", 400), ("a\u{200b}", 400)]
        {
            assert_eq!(check(text).unwrap_err().status, status);
        }
        assert_eq!(check(&"a".repeat(4097)).unwrap_err().status, 413);
    }
}
