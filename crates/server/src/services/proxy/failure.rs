//! The reasons why an origin's response is missing, and the responses to the client (RFC 9209).

use crate::service::{Page, RequestContext, ResponseWriter, worker_state::Answer};
use pollux_http::{Status, reply::ReplyError};
use std::{
    fmt,
    io::{ErrorKind, Write},
};

/// The reason why there is no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The origin's name has no address.
    Name,
    /// The name was not resolved in time.
    NameTimeout,
    /// The maximum number of connections to origins are in use, and none became free in time.
    NoCapacity,
    /// No connection could be made.
    Connect(ErrorKind),
    /// The certificate of the origin is not valid for it.
    TlsCertificate,
    /// The origin ended the TLS connection with this alert.
    TlsAlert(u8),
    /// The origin does not send valid TLS, or the handshake found no common parameters.
    TlsProtocol,
    /// The connection was closed or broke before the reply was complete.
    Ended,
    /// The origin was silent for too long.
    Silent,
    /// The origin sent an invalid or unsafe reply.
    Reply(ReplyError),
    /// The request cannot be forwarded in its present form.
    Request,
    /// The process that should receive the client's connection is not available, or accepts no more
    /// connections.
    NotTaken(ErrorKind),
}

impl Failure {
    /// Returns the status, the type of RFC 9209 §2.3, and a sentence.
    fn description(self) -> (Status, &'static str, &'static str) {
        use Status::{BadGateway, BadRequest, GatewayTimeout, ServiceUnavailable};
        match self {
            Self::Name => (BadGateway, "dns_error", "the origin's name cannot be resolved"),
            Self::NameTimeout => {
                (GatewayTimeout, "dns_timeout", "the origin's name was not resolved in time")
            }
            Self::NoCapacity => (
                ServiceUnavailable,
                "connection_limit_reached",
                "all connections to the origin are in use; please try again",
            ),
            Self::Connect(kind) => match kind {
                ErrorKind::TimedOut => {
                    (GatewayTimeout, "connection_timeout", "the origin does not answer")
                }
                ErrorKind::ConnectionRefused | ErrorKind::NotFound => {
                    (BadGateway, "connection_refused", "the origin is not there")
                }
                ErrorKind::NetworkUnreachable | ErrorKind::HostUnreachable => {
                    (BadGateway, "destination_ip_unroutable", "no way leads to the origin")
                }
                ErrorKind::WouldBlock => (
                    ServiceUnavailable,
                    "destination_unavailable",
                    "the origin takes no more connections; please try again",
                ),
                _ => (
                    ServiceUnavailable,
                    "proxy_internal_error",
                    "no connection to the origin can be made; please try again",
                ),
            },
            Self::TlsCertificate => (
                BadGateway,
                "tls_certificate_error",
                "the origin's certificate is not valid for it",
            ),
            Self::TlsAlert(_) => {
                (BadGateway, "tls_alert_received", "the origin has ended the TLS connection")
            }
            Self::TlsProtocol => {
                (BadGateway, "tls_protocol_error", "the origin does not speak valid TLS")
            }
            Self::Ended | Self::Reply(ReplyError::Empty) => {
                (BadGateway, "connection_terminated", "the origin has closed the connection")
            }
            Self::Silent => {
                (GatewayTimeout, "http_response_timeout", "the origin did not answer in time")
            }
            Self::Reply(ReplyError::Truncated) => {
                (BadGateway, "http_response_incomplete", "the origin's answer is not whole")
            }
            Self::Reply(ReplyError::HeadTooLong(_)) => (
                BadGateway,
                "http_response_header_section_size",
                "the head of the origin's answer is too long",
            ),
            Self::Reply(_) => {
                (BadGateway, "http_protocol_error", "the origin's answer is not valid HTTP")
            }
            Self::NotTaken(ErrorKind::WouldBlock) => (
                ServiceUnavailable,
                "destination_unavailable",
                "the process that answers this is busy; please try again",
            ),
            Self::NotTaken(_) => (
                ServiceUnavailable,
                "destination_unavailable",
                "the process that answers this is not there; please try again",
            ),
            Self::Request => (BadRequest, "http_request_error", "the request cannot be passed on"),
        }
    }

    /// Returns whether another immediate attempt would probably fail too. This includes names without an
    /// address, because no attempt is possible then. It excludes errors of this server alone and errors of
    /// the request, which a client could cause as often as it likes.
    pub(super) fn keeps_from_the_origin(self) -> bool {
        self.is_the_origins() || matches!(self, Self::Name | Self::NameTimeout)
    }

    /// Answers with a page. `name` is the name of this proxy; `fields` are additional lines.
    pub(super) fn put(
        self,
        context: &RequestContext<'_>,
        response: &mut ResponseWriter<'_>,
        name: &str,
        mut fields: Vec<u8>,
    ) -> Answer {
        let (status, error, reason) = self.description();
        let _ = write!(fields, "Proxy-Status: {name}; error={error}");
        if let Self::TlsAlert(alert) = self {
            let _ = write!(fields, "; alert-id={alert}");
        }
        fields.extend_from_slice(b"\r\n");
        if status == Status::ServiceUnavailable {
            fields.extend_from_slice(b"Retry-After: 1\r\n");
        }
        Page { status, reason, fields: &fields }.put(context, response)
    }

    /// Returns whether the failure concerns the origin, and not this server or the request.
    pub(super) fn is_the_origins(self) -> bool {
        match self {
            Self::Name
            | Self::NameTimeout
            | Self::NoCapacity
            | Self::Request
            | Self::NotTaken(_) => false,
            Self::Connect(kind) => matches!(
                kind,
                ErrorKind::TimedOut
                    | ErrorKind::ConnectionRefused
                    | ErrorKind::ConnectionReset
                    | ErrorKind::NotFound
                    | ErrorKind::NetworkUnreachable
                    | ErrorKind::HostUnreachable
                    | ErrorKind::WouldBlock
            ),
            Self::Ended
            | Self::Silent
            | Self::Reply(_)
            | Self::TlsCertificate
            | Self::TlsAlert(_)
            | Self::TlsProtocol => true,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connect(kind) => kind.fmt(f),
            Self::Reply(bad) => bad.fmt(f),
            other => f.write_str(other.description().2),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9209 §2.3: the types, each with the status that it recommends.
    #[test]
    fn each_failure_has_its_type_and_status() {
        for (failure, status, error) in [
            (Failure::Name, 502, "dns_error"),
            (Failure::NameTimeout, 504, "dns_timeout"),
            (Failure::NoCapacity, 503, "connection_limit_reached"),
            (Failure::Connect(ErrorKind::ConnectionRefused), 502, "connection_refused"),
            (Failure::Connect(ErrorKind::TimedOut), 504, "connection_timeout"),
            (Failure::TlsCertificate, 502, "tls_certificate_error"),
            (Failure::TlsAlert(40), 502, "tls_alert_received"),
            (Failure::TlsProtocol, 502, "tls_protocol_error"),
            (Failure::Ended, 502, "connection_terminated"),
            (Failure::Silent, 504, "http_response_timeout"),
            (Failure::Reply(ReplyError::Truncated), 502, "http_response_incomplete"),
            (Failure::Reply(ReplyError::HeadTooLong("")), 502, "http_response_header_section_size"),
            (Failure::Reply(ReplyError::StatusLine), 502, "http_protocol_error"),
            (Failure::Reply(ReplyError::TooManyInterim), 502, "http_protocol_error"),
        ] {
            let description = failure.description();
            assert_eq!((description.0.code(), description.1), (status, error), "{failure:?}");
        }
    }
}
