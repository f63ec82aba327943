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
//! | `X-HTTP-Method-Override`, `X-HTTP-Method`, `X-Method-Override` | method | dropped |
//! | `X-Original-URL`, `X-Rewrite-URL`, `X-Override-URL`, `X-Original-URI` | path | dropped |
//! | `X-Host`, `X-Original-Host`, `X-HTTP-Host-Override` | host | dropped |
//! | `Forwarded`, `X-Forwarded-*`, `X-Real-IP` | host, scheme, client | as `--forwarded` says: the default writes them anew; `append` and `keep` trust the proxy in front |
//! | `Host` | host | written anew, and part of the key |
//! | content of a GET | anything | forwarded, and the response is not stored |

use super::hop::is_alias;

/// Returns whether a framework may read `name` as a replacement of the method, path or host.
pub(super) fn is_override(name: &[u8]) -> bool {
    const OVERRIDES: [&[u8]; 10] = [
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
    ];
    matches!(name.first(), Some(b'x' | b'X')) && OVERRIDES.iter().any(|field| is_alias(name, field))
}
