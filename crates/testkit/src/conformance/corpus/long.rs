//! Limits: the server accepts a request at a limit and refuses a request beyond it.

use crate::conformance::case::Case;

pub(super) fn cases() -> Vec<Case> {
    let a = |len: usize| "a".repeat(len);
    let request = |line: &str, fields: &str| format!("{line}\r\nHost: a\r\n{fields}\r\n");
    let get = |target: &str| request(&format!("GET {target} HTTP/1.1"), "");
    let mut cases = Vec::new();
    let mut add = |name: &'static str, text: String, wanted: &str| {
        cases.push(Case::new(name, text.into_bytes(), wanted));
    };
    add("a request line of 8000 bytes, RFC 9112 §3", get(&format!("/{}", a(7986))), "404 open");
    add("a query of 8000 bytes", get(&format!("/digits?{}", a(7970))), "200 open");
    add("a target of 8 KiB", get(&format!("/{}", a(8191))), "414 closed");
    add("a target of 60 KB", get(&format!("/{}", a(60_000))), "414 closed");
    add("a query of 60 KB", get(&format!("/?{}", a(60_000))), "414 closed");
    add("a file name of 255 bytes", get(&format!("/{}", a(255))), "404 open");
    add("a file name of 256 bytes", get(&format!("/{}", a(256))), "404 open");
    add("a path longer than PATH_MAX", get(&"/aaaaaaa".repeat(700)), "404 open");
    add("2000 dot segments", get(&format!("{}/digits", "/.".repeat(2000))), "200 open");
    add("up and down", get(&format!("{}/digits", "/dir/..".repeat(1000))), "200 open");
    add("a method of 1000 bytes", request(&format!("{} / HTTP/1.1", a(1000)), ""), "501 open");
    add(
        "a method of 60 KB, RFC 9112 §3",
        request(&format!("{} / HTTP/1.1", a(60_000)), ""),
        "501 closed",
    );
    add("100 fields", request("GET / HTTP/1.1", &"X: y\r\n".repeat(99)), "200 open");
    add("101 fields", request("GET / HTTP/1.1", &"X: y\r\n".repeat(100)), "431 closed");
    add("5000 fields", request("GET / HTTP/1.1", &"X: y\r\n".repeat(5000)), "431 closed");
    let field = |len| format!("X: {}\r\n", a(len));
    add("a field of 8 KB", request("GET / HTTP/1.1", &field(8000)), "200 open");
    add("a field of 17 KB", request("GET / HTTP/1.1", &field(17_000)), "431 closed");
    add("a field of 100 KB", request("GET / HTTP/1.1", &field(100_000)), "431 closed");
    let name = format!("{}: x\r\n", a(8000));
    add("a name of 8 KB", request("GET / HTTP/1.1", &name), "200 open");
    let name = format!("{}: x\r\n", a(20_000));
    add("a name of 20 KB", request("GET / HTTP/1.1", &name), "431 closed");
    let host = format!("GET / HTTP/1.1\r\nHost: {}\r\n\r\n", a(8000));
    add("a host of 8 KB", host, "200 open");
    let length = format!("Content-Length: {}1\r\n", "0".repeat(1000));
    add("a length of 1001 digits", request("GET / HTTP/1.1", &length) + "x", "200 open");
    let body = |len: usize| format!("Content-Length: {len}\r\n\r\n{}", a(len));
    let post = |rest: &str| format!("POST / HTTP/1.1\r\nHost: a\r\n{rest}");
    add("a body of 1 MiB", post(&body(1 << 20)), "405 open");
    add("a body of 1 MiB and a byte", post(&body((1 << 20) + 1)), "413 closed");
    let chunks = |body: &str| post(&format!("Transfer-Encoding: chunked\r\n\r\n{body}"));
    add("1000 chunks", chunks(&format!("{}0\r\n\r\n", "1\r\na\r\n".repeat(1000))), "405 open");
    let many = format!("8000\r\n{}\r\n", a(0x8000)).repeat(33);
    add("chunks beyond 1 MiB", chunks(&format!("{many}0\r\n\r\n")), "413 closed");
    add(
        "an extension of 10 KB",
        chunks(&format!("1;{}\r\na\r\n0\r\n\r\n", a(10_000))),
        "400 closed",
    );
    let extended = format!("1;{}\r\na\r\n", a(200)).repeat(100);
    add("extensions of 20 KB", chunks(&format!("{extended}0\r\n\r\n")), "400 closed");
    add("a trailer of 10 KB", chunks(&format!("0\r\nX: {}\r\n\r\n", a(10_000))), "431 closed");
    add("200 trailers", chunks(&format!("0\r\n{}\r\n", "X: y\r\n".repeat(200))), "431 closed");
    let ranges: Vec<String> = (0..1000).map(|i| format!("{i}-{i}")).collect();
    let range = format!("Range: bytes={}\r\n", ranges.join(","));
    add("1000 ranges", request("GET /large.bin HTTP/1.1", &range), "200 open");
    let tags = format!("If-None-Match: {}\"x\"\r\n", "\"y\", ".repeat(2000));
    add("2000 tags", request("GET /digits HTTP/1.1", &tags), "200 open");
    let codings = format!("Accept-Encoding: {}gzip\r\n", "x, ".repeat(4000));
    add(
        "4000 codings",
        request("GET /page.txt HTTP/1.1", &codings),
        "200 open | content-encoding: gzip",
    );
    add(
        "1000 requests at once",
        get("/digits").repeat(1000),
        &format!("{}open", "200 ".repeat(1000)),
    );
    cases
}
