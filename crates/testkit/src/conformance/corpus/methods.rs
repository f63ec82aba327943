//! RFC 9110 §9: methods.

use crate::conformance::case::Row;

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    ("HEAD", b"HEAD /digits HTTP/1.1\r\nHost: a\r\n\r\n", "H200 open | content-length: 10 | etag: {etag} | accept-ranges: bytes | =" ),
    ("HEAD of a large file", b"HEAD /large.bin HTTP/1.1\r\nHost: a\r\n\r\n", "H200 open | content-length: 300000"),
    ("HEAD of nothing", b"HEAD /none HTTP/1.1\r\nHost: a\r\n\r\n", "H404 open"),
    ("HEAD of a directory", b"HEAD /dir HTTP/1.1\r\nHost: a\r\n\r\n", "H301 open | location: /dir/"),
    ("HEAD in 1.0", b"HEAD /digits HTTP/1.0\r\n\r\n", "H200 closed"),
    ("HEAD that expects", b"HEAD / HTTP/1.1\r\nHost: a\r\nExpect: x\r\n\r\n", "H417 closed"),
    ("OPTIONS of all", b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", "204 open | allow: GET, HEAD, OPTIONS"),
    ("OPTIONS of all with an empty Host", b"OPTIONS * HTTP/1.1\r\nHost:\r\n\r\n", "204 open"),
    ("OPTIONS of all without Host", b"OPTIONS * HTTP/1.1\r\n\r\n", "400 closed"),
    ("OPTIONS in absolute-form", b"OPTIONS http://a HTTP/1.1\r\nHost: a\r\n\r\n", "204 open"),
    ("OPTIONS of a path", b"OPTIONS /digits HTTP/1.1\r\nHost: a\r\n\r\n", "204 open | allow: GET, HEAD, OPTIONS"),
    ("OPTIONS of **", b"OPTIONS ** HTTP/1.1\r\nHost: a\r\n\r\n", "400 closed"),
    ("a CORS preflight", b"OPTIONS /digits HTTP/1.1\r\nHost: a\r\nOrigin: http://b\r\nAccess-Control-Request-Method: PUT\r\n\r\n", "204 open | !access-control-allow-origin"),
    ("POST", b"POST /digits HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n", "405 open | allow: GET, HEAD, OPTIONS"),
    ("PUT", b"PUT /digits HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx", "405 open | allow: GET, HEAD, OPTIONS"),
    ("DELETE", b"DELETE /digits HTTP/1.1\r\nHost: a\r\n\r\n", "405 open | allow: GET, HEAD, OPTIONS"),
    ("PATCH", b"PATCH /digits HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\nx", "405 open | allow: GET, HEAD, OPTIONS"),
    ("TRACE reflects nothing", b"TRACE / HTTP/1.1\r\nHost: a\r\nCookie: <script>\r\n\r\n", "405 open | !set-cookie"),
    ("nothing is changed by all of that", b"GET /digits HTTP/1.1\r\nHost: a\r\n\r\n", "200 open | =0123456789"),
    ("what follows a refused CONNECT is no request (RFC 9931)", b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\n\r\n", "405 closed"),
    ("CONNECT without a port", b"CONNECT a HTTP/1.1\r\nHost: a\r\n\r\n", "400 closed"),
    ("CONNECT of a path", b"CONNECT / HTTP/1.1\r\nHost: a\r\n\r\n", "400 closed"),
    ("CONNECT of a URI", b"CONNECT http://a:80/ HTTP/1.1\r\nHost: a\r\n\r\n", "400 closed"),
    ("an unknown method", b"BREW /pot HTTP/1.1\r\nHost: a\r\n\r\n", "501 open"),
    ("an unknown method with a body", b"PROPFIND / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc", "501 open"),
    ("methods are case-sensitive", b"get / HTTP/1.1\r\nHost: a\r\n\r\n", "501 open"),
    ("a method that begins like another", b"GETX / HTTP/1.1\r\nHost: a\r\n\r\n", "501 open"),
    ("a method of odd characters", b"!#$%&'*+-.^_`|~ / HTTP/1.1\r\nHost: a\r\n\r\n", "501 open"),
    ("CONNECT with a body", b"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\nContent-Length: 3\r\n\r\nabc", "405 closed"),
    ("TRACE with Max-Forwards", b"TRACE / HTTP/1.1\r\nHost: a\r\nMax-Forwards: 0\r\n\r\n", "405 open"),
    ("an unknown method says what there is", b"LINK / HTTP/1.1\r\nHost: a\r\n\r\n", "501 open | allow: GET, HEAD, OPTIONS"),
];
