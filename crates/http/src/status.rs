//! Status codes (RFC 9110 §15) with their prepared status lines.

macro_rules! statuses {
    ($($name:ident $code:literal $reason:literal)*) => {
        /// A status code that Pollux sends.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Status {
            $(#[doc = concat!($code, " ", $reason)] $name = $code,)*
        }

        impl Status {
            /// Every status in this table.
            pub const ALL: &[Self] = &[$(Self::$name),*];

            /// The reason phrase of RFC 9110 §15.
            pub const fn reason(self) -> &'static str {
                match self { $(Self::$name => $reason,)* }
            }

            /// `HTTP/1.1 CODE REASON CRLF`. A server sends its own version, also in response to
            /// HTTP/1.0 (RFC 9110 §6.2).
            pub const fn line(self) -> &'static [u8] {
                match self {
                    $(Self::$name => concat!("HTTP/1.1 ", $code, " ", $reason, "\r\n").as_bytes(),)*
                }
            }
        }
    };
}

statuses! {
    Continue 100 "Continue"
    Ok 200 "OK"
    Created 201 "Created"
    Accepted 202 "Accepted"
    NoContent 204 "No Content"
    PartialContent 206 "Partial Content"
    MovedPermanently 301 "Moved Permanently"
    Found 302 "Found"
    SeeOther 303 "See Other"
    NotModified 304 "Not Modified"
    TemporaryRedirect 307 "Temporary Redirect"
    PermanentRedirect 308 "Permanent Redirect"
    BadRequest 400 "Bad Request"
    Unauthorized 401 "Unauthorized"
    Forbidden 403 "Forbidden"
    NotFound 404 "Not Found"
    MethodNotAllowed 405 "Method Not Allowed"
    NotAcceptable 406 "Not Acceptable"
    RequestTimeout 408 "Request Timeout"
    LengthRequired 411 "Length Required"
    PreconditionFailed 412 "Precondition Failed"
    ContentTooLarge 413 "Content Too Large"
    UriTooLong 414 "URI Too Long"
    UnsupportedMediaType 415 "Unsupported Media Type"
    RangeNotSatisfiable 416 "Range Not Satisfiable"
    ExpectationFailed 417 "Expectation Failed"
    MisdirectedRequest 421 "Misdirected Request"
    UpgradeRequired 426 "Upgrade Required"
    TooManyRequests 429 "Too Many Requests"
    FieldsTooLarge 431 "Request Header Fields Too Large"
    InternalServerError 500 "Internal Server Error"
    NotImplemented 501 "Not Implemented"
    BadGateway 502 "Bad Gateway"
    ServiceUnavailable 503 "Service Unavailable"
    GatewayTimeout 504 "Gateway Timeout"
    VersionNotSupported 505 "HTTP Version Not Supported"
}

impl Status {
    /// The numeric code.
    pub const fn code(self) -> u16 {
        self as u16
    }

    /// Whether a response with this status never has a body (RFC 9110 §6.4.1): 1xx, 204, 304.
    pub const fn is_bodiless(self) -> bool {
        matches!(self.code(), 100..=199 | 204 | 304)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_lines_are_those_of_rfc_9112_4() {
        for status in Status::ALL {
            let line = format!("HTTP/1.1 {} {}\r\n", status.code(), status.reason());
            assert_eq!(status.line(), line.as_bytes());
        }
        assert_eq!(Status::NotFound.line(), b"HTTP/1.1 404 Not Found\r\n");
    }

    /// Regression: 302 was `HeadInfo`.
    #[test]
    fn a_status_is_named_by_its_reason_phrase() {
        for status in Status::ALL {
            let (name, phrase) = (format!("{status:?}"), status.reason().replace(' ', ""));
            // The names of two long phrases are shorter.
            let is_short = matches!(status.code(), 431 | 505);
            assert!(is_short || name.eq_ignore_ascii_case(&phrase), "{name}: {phrase}");
        }
    }

    #[test]
    fn bodiless_statuses_are_1xx_204_and_304() {
        let bodiless: Vec<u16> =
            Status::ALL.iter().filter(|s| s.is_bodiless()).map(|s| s.code()).collect();
        assert_eq!(bodiless, [100, 204, 304]);
    }
}
