//! Request fields that are not sent to an origin whose responses are cached.
//!
//! Some frameworks let a request field replace the method, the path or the host of the request. The
//! cache key does not contain these fields, so one request with such a field could store a wrong
//! response for all clients (cache poisoning). They are dropped from GET and HEAD requests if the
//! front end has a cache, and forwarded otherwise: responses to other methods are not stored, and a
//! POST with `X-HTTP-Method-Override` is a common way to send PUT.
//!
//! | field | replaces | decision |
//! |---|---|---|
//! | `X-HTTP-Method-Override`, `X-HTTP-Method`, `X-Method-Override`, `X-Original-Method` | method | dropped |
//! | `X-Original-URL`, `X-Rewrite-URL`, `X-Override-URL`, `X-Original-URI`, `X-Original-Path`, `X-Envoy-Original-Path`, `X-Script-Name` | path | dropped |
//! | `X-Host`, `X-Original-Host`, `X-HTTP-Host-Override`, `X-Backend-Host` | host | dropped |
//! | `X-Scheme`, `X-URL-Scheme`, `Front-End-Https` | scheme | dropped |
//! | `Forwarded`, `X-Forwarded-*`, `X-Real-IP` | host, scheme, client | as `--forwarded` says: the default writes them anew; `append` and `keep` trust the proxy in front, and a response is stored for one `X-Forwarded-Host` and `X-Forwarded-Proto` |
//! | `Host` | host | written anew in one spelling (lower case, no default port), which is part of the key |
//! | content of a GET | anything | forwarded, and the response is not stored |
//!
//! docs/proxy-and-cache.md has the same table for operators.

use pollux_http::fields::is_alias;

/// Returns whether a framework may read `name` as a replacement of the method, path, host or scheme.
pub(super) fn is_override(name: &[u8]) -> bool {
    const OVERRIDES: [&[u8]; 18] = [
        b"x-http-method-override",
        b"x-http-method",
        b"x-method-override",
        b"x-original-url",
        b"x-rewrite-url",
        b"x-override-url",
        b"x-original-uri",
        b"x-host",
        b"x-original-host",
        b"x-http-host-override",
        b"x-original-method",
        b"x-original-path",
        b"x-envoy-original-path",
        b"x-script-name",
        b"x-backend-host",
        b"x-scheme",
        b"x-url-scheme",
        b"front-end-https",
    ];
    matches!(name.first(), Some(b'x' | b'X' | b'f' | b'F'))
        && OVERRIDES.iter().any(|field| is_alias(name, field))
}

#[cfg(test)]
mod tests {
    use super::is_override;

    #[test]
    fn fields_that_override_are_found_in_any_spelling() {
        for name in ["X-Original-URL", "x_original_url", "FRONT-END-HTTPS", "X-Script-Name"] {
            assert!(is_override(name.as_bytes()), "{name}");
        }
        for name in ["", "X-Original", "Host", "From", "X-Request-Id", "Accept"] {
            assert!(!is_override(name.as_bytes()), "{name}");
        }
    }
}
