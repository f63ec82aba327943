//! The data about the client that an origin receives: `Forwarded` (RFC 7239) and the older `X-Forwarded-*`.

use super::hop::ConnectionOptions;
use crate::config::ForwardedPolicy;
use pollux_http::{
    fields::{Field, has_alias_prefix, is_alias},
    request::Request,
};
use std::{io::Write, net::IpAddr};

/// The facts about a client that an origin may receive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client {
    /// Its address; `None` for a UNIX socket.
    pub(super) address: Option<IpAddr>,
    /// Whether the client uses TLS.
    pub(super) is_tls: bool,
    /// Whether the client is requested to present a certificate.
    pub(super) requests_certificates: bool,
}

/// The name of the field with the certificate that a client has presented (RFC 9440).
pub(super) const CLIENT_CERTIFICATE: &[u8] = b"Client-Cert";

/// Returns whether a field of the request describes a client's certificate and is not forwarded: the
/// certificate that this server has verified replaces it. Such a field may be accepted only from a trusted
/// proxy in front of this server.
pub(super) fn is_forged_certificate(policy: ForwardedPolicy, client: Client, name: &[u8]) -> bool {
    let has_trusted_client = matches!(policy, ForwardedPolicy::Keep | ForwardedPolicy::Append);
    (is_alias(name, b"client-cert") || is_alias(name, b"client-cert-chain"))
        && (client.requests_certificates || !has_trusted_client)
}

/// Returns whether a field of the request describes clients, and is therefore not forwarded unchanged.
pub(super) fn is_taken(policy: ForwardedPolicy, name: &[u8]) -> bool {
    policy != ForwardedPolicy::Keep
        && (has_alias_prefix(name, b"x-forwarded-")
            || is_alias(name, b"forwarded")
            || is_alias(name, b"x-real-ip"))
}

/// Passes the fields that replace them to `put`, as name and value. `host` is the client's host, as the origin
/// may see it. `named` are the fields that `Connection` names; they are ignored. `scratch` is overwritten.
///
/// # Errors
/// The error of `put`.
pub(super) fn fields<E>(
    policy: ForwardedPolicy,
    request: &Request<'_>,
    named: &ConnectionOptions<'_>,
    host: Option<&[u8]>,
    client: Client,
    scratch: &mut Vec<u8>,
    mut put: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    if matches!(policy, ForwardedPolicy::Keep | ForwardedPolicy::Remove) {
        return Ok(());
    }
    let appends = |name: &[u8]| policy == ForwardedPolicy::Append && !named.has(name);
    // A write to a vector does not fail.
    scratch.clear();
    if appends(b"forwarded") {
        append_values(scratch, request, b"forwarded");
    }
    let _ = match client.address {
        Some(IpAddr::V4(address)) => write!(scratch, "for={address}"),
        Some(IpAddr::V6(address)) => write!(scratch, "for=\"[{address}]\""),
        None => write!(scratch, "for=unknown"),
    };
    if let Some(host) = host {
        scratch.extend_from_slice(b";host=\"");
        scratch.extend_from_slice(host);
        scratch.push(b'"');
    }
    let proto: &[u8] = if client.is_tls { b"https" } else { b"http" };
    scratch.extend_from_slice(b";proto=");
    scratch.extend_from_slice(proto);
    put(b"Forwarded", scratch)?;

    scratch.clear();
    if appends(b"x-forwarded-for") {
        append_values(scratch, request, b"x-forwarded-for");
    }
    let _ = match client.address {
        Some(address) => write!(scratch, "{address}"),
        None => write!(scratch, "unknown"),
    };
    put(b"X-Forwarded-For", scratch)?;

    // Of several proxies, the first one has the original value, which is used.
    let came = |name: &[u8]| request.field(name).filter(|_| appends(name));
    if let Some(host) = came(b"x-forwarded-host").or(host) {
        put(b"X-Forwarded-Host", host)?;
    }
    put(b"X-Forwarded-Proto", came(b"x-forwarded-proto").unwrap_or(proto))?;
    if let Some(address) = came(b"x-real-ip") {
        put(b"X-Real-IP", address)?;
    }
    Ok(())
}

/// Appends the values of all lines of a field, each followed by a comma.
fn append_values(out: &mut Vec<u8>, request: &Request<'_>, name: &[u8]) {
    let is_meant = |field: &Field<'_>| field.is(name) && !field.value.is_empty();
    for field in request.fields().filter(is_meant) {
        out.extend_from_slice(field.value);
        out.extend_from_slice(b", ");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pollux_http::{
        Limits,
        request::{ParseStatus, parse},
    };

    fn fields_of(policy: ForwardedPolicy, address: Option<&str>, fields: &str) -> String {
        let head = format!("GET / HTTP/1.1\r\nHost: a.example:8080\r\n{fields}\r\n");
        let Ok(ParseStatus::Complete { request, .. }) = parse(head.as_bytes(), &Limits::DEFAULT)
        else {
            panic!("{head}")
        };
        let client = Client {
            address: address.map(|text| text.parse().unwrap()),
            is_tls: false,
            requests_certificates: false,
        };
        let mut out = String::new();
        let mut put = |name: &[u8], value: &[u8]| {
            out.push_str(&format!("{}: {}\n", name.escape_ascii(), value.escape_ascii()));
            Ok::<(), ()>(())
        };
        let named = ConnectionOptions::of(request.fields()).unwrap();
        let host = request.host;
        super::fields(policy, &request, &named, host, client, &mut Vec::new(), &mut put).unwrap();
        out.replace("\\\"", "\"")
    }

    #[test]
    fn what_the_client_says_of_itself_is_replaced_or_appended_to() {
        let spoofed = "X-Forwarded-For: 10.0.0.1\r\nX-Forwarded-For: 10.0.0.2\r\n\
                       Forwarded: for=x\r\nX-Forwarded-Proto: https\r\nX-Real-IP: 10.0.0.1\r\n";
        assert_eq!(
            fields_of(ForwardedPolicy::Replace, Some("192.0.2.1"), spoofed),
            "Forwarded: for=192.0.2.1;host=\"a.example:8080\";proto=http\n\
             X-Forwarded-For: 192.0.2.1\nX-Forwarded-Host: a.example:8080\n\
             X-Forwarded-Proto: http\n"
        );
        assert_eq!(
            fields_of(ForwardedPolicy::Append, Some("2001:db8::1"), spoofed),
            "Forwarded: for=x, for=\"[2001:db8::1]\";host=\"a.example:8080\";proto=http\n\
             X-Forwarded-For: 10.0.0.1, 10.0.0.2, 2001:db8::1\n\
             X-Forwarded-Host: a.example:8080\nX-Forwarded-Proto: https\nX-Real-IP: 10.0.0.1\n"
        );
        for policy in [ForwardedPolicy::Keep, ForwardedPolicy::Remove] {
            assert_eq!(fields_of(policy, Some("192.0.2.1"), spoofed), "");
        }
        assert!(
            fields_of(ForwardedPolicy::Replace, None, "").starts_with("Forwarded: for=unknown;")
        );
    }

    /// RFC 9110 §7.6.1. A cache also stores the response as one to a request without these fields.
    #[test]
    fn fields_that_connection_names_are_not_believed() {
        let fields = "Connection: close, Forwarded, X-Forwarded-For\r\nForwarded: for=x\r\n\
                      Connection: x-forwarded-host, x-forwarded-proto\r\nX-Forwarded-For: 10.0.0.1\r\n\
                      X-Forwarded-Host: b.example\r\nX-Forwarded-Proto: https\r\n";
        let [appended, replaced] = [ForwardedPolicy::Append, ForwardedPolicy::Replace]
            .map(|policy| fields_of(policy, Some("192.0.2.1"), fields));
        assert_eq!(appended, replaced);
    }

    #[test]
    fn a_certificate_is_believed_only_behind_a_trusted_proxy() {
        let client = |requests_certificates| Client {
            address: None,
            is_tls: requests_certificates,
            requests_certificates,
        };
        use ForwardedPolicy::{Append, Keep, Remove, Replace};
        for name in [&b"Client-Cert"[..], b"client_cert", b"CLIENT-CERT_CHAIN"] {
            for (policy, is_forged) in
                [(Replace, true), (Remove, true), (Append, false), (Keep, false)]
            {
                assert_eq!(is_forged_certificate(policy, client(false), name), is_forged);
                assert!(is_forged_certificate(policy, client(true), name));
            }
        }
        assert!(!is_forged_certificate(Replace, client(true), b"Client-Certificate"));
    }

    #[test]
    fn spellings_that_programs_take_for_the_same_are_taken_too() {
        for name in ["X-Forwarded-For", "x_forwarded_for", "X-FORWARDED_PREFIX", "Forwarded"] {
            assert!(is_taken(ForwardedPolicy::Replace, name.as_bytes()), "{name}");
            assert!(is_taken(ForwardedPolicy::Remove, name.as_bytes()), "{name}");
            assert!(!is_taken(ForwardedPolicy::Keep, name.as_bytes()), "{name}");
        }
        assert!(!is_taken(ForwardedPolicy::Replace, b"X-Forward"));
    }
}
