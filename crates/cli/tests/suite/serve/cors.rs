//! Scripts of other sites: several origins, preflights, credentials.

use super::{INDEX, serve, site};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use pollux_testkit::{http::Reply, origin::Origin};
use std::{fs, process::Command};

const A: &str = "https://a.example";
const B: &str = "http://b.example:8080";
const PUT: &str = "Access-Control-Request-Method: PUT";

/// Returns the values of all Access-Control-Allow-Origin fields, and of `Vary`.
fn fields(reply: &Reply) -> (Vec<&str>, String) {
    let all = |name: &str| {
        let of_name = reply.fields.iter().filter(|(field, _)| field.eq_ignore_ascii_case(name));
        of_name.map(|(_, value)| value.as_str()).collect::<Vec<_>>()
    };
    (all("access-control-allow-origin"), all("vary").join(", "))
}

#[test]
fn a_response_names_the_origin_of_its_request() {
    for architecture in [&["--workers", "2"][..], &["--architecture", "prethreaded"]] {
        let site = site(100_000);
        let origins = format!("{A},{B}");
        let rules = ["--cors", &origins, "--redirect", "/old /new", "--guestbook", "/book"];
        let server = serve(site.path(), &[architecture, &rules].concat());
        let mut client = server.client();
        for (path, more, status) in [
            ("/", "A: b", 200),
            ("/large.bin", "A: b", 200),
            ("/large.bin", "Range: bytes=1-2", 206),
            ("/", "If-None-Match: *", 304),
            ("/none", "A: b", 404),
            ("/old", "A: b", 308),
            ("/book", "A: b", 200),
        ] {
            for (origin, expected) in [(A, vec![A]), (B, vec![B]), ("https://c.example", vec![])] {
                let from = format!("Origin: {origin}");
                for method in ["GET", "HEAD"] {
                    // RFC 9110 §14.2: a HEAD has no ranges.
                    let status = if method == "HEAD" && status == 206 { 200 } else { status };
                    let reply = client.request(method, path, &[&from, more]);
                    assert_eq!(reply.status, status, "{path}");
                    let (allowed, vary) = fields(&reply);
                    assert_eq!(allowed, expected, "{path} {origin}");
                    assert!(vary.contains("Origin"), "{path}: {vary}");
                }
            }
            assert!(fields(&client.request("GET", path, &[more])).0.is_empty(), "{path}");
        }
        for (path, methods) in [
            ("/", "GET, HEAD, OPTIONS"),
            ("/none", "GET, HEAD, OPTIONS"),
            ("/old", "GET, HEAD, OPTIONS"),
            ("/book", "GET, HEAD, POST, OPTIONS"),
        ] {
            let wanted = "Access-Control-Request-Headers: authorization,x-a";
            let from = format!("Origin: {B}");
            let reply = client.request("OPTIONS", path, &[&from, PUT, wanted]);
            assert_eq!(reply.status, 204, "{path}");
            assert_eq!(fields(&reply).0, [B], "{path}");
            assert_eq!(reply.field("access-control-allow-methods"), Some(methods), "{path}");
            let allowed = reply.field("access-control-allow-headers");
            assert_eq!(allowed, Some("authorization,x-a"), "{path}");
            assert_eq!(reply.field("access-control-allow-credentials"), None);
            let other = client.request("OPTIONS", path, &["Origin: https://c.example", PUT]);
            assert_eq!(fields(&other).0, [""; 0], "{path}");
            assert_eq!(other.field("access-control-allow-methods"), None, "{path}");
        }
        // Pipelined requests of several origins: each response gets its own field.
        let get = |origin: &str| format!("GET / HTTP/1.1\r\nHost: a\r\nOrigin: {origin}\r\n\r\n");
        client.send([get(A), get("https://c.example"), get(B)].concat());
        for expected in [vec![A], vec![], vec![B]] {
            let reply = client.reply();
            assert_eq!((fields(&reply).0, reply.text().as_str()), (expected, INDEX));
        }
        assert!(server.stop().0.success());
    }
}

#[test]
fn origins_behind_the_server_speak_for_themselves() {
    let origin = Origin::start(|request| request.ok("of origin"));
    let site = site(0);
    let url = format!("/api={}", origin.url());
    let origins = format!("{A},{B}");
    let server = serve(site.path(), &["--cors", &origins, "--origin", &url, "--cache", "8M"]);
    let mut client = server.client();
    let from = format!("Origin: {A}");
    for _ in 0..2 {
        assert!(fields(&client.request("GET", "/api", &[&from])).0.is_empty());
    }
    assert_eq!(client.request("OPTIONS", "/api", &[&from, PUT]).status, 200);
    assert!(origin.last_head().starts_with("OPTIONS /api "));
    assert_eq!(fields(&client.request("GET", "/", &[&from])).0, [A]);
}

/// A browser ignores the field if a response has two of this name.
#[test]
fn the_hub_answers_by_its_own_list() {
    let site = site(0);
    for origins in ["*".to_owned(), A.to_owned(), format!("{A},https://c.example")] {
        let hub = [
            &["--hub", "--hub-anonymous", "--hub-publish-anonymous"][..],
            &["--hub-cors", B, "--cors", &origins],
        ]
        .concat();
        let server = serve(site.path(), &hub);
        let mut client = server.client();
        for (from, expected) in [(B, vec![B]), ("https://d.example", vec![])] {
            // A request without a topic is refused; scripts may read the refusal as well.
            let from = format!("Origin: {from}");
            let reply = client.request("GET", "/.well-known/mercure", &[&from]);
            assert_eq!(reply.status, 400, "{origins}");
            assert_eq!(fields(&reply).0, expected, "{origins}");
        }
    }
}

/// Regression: browsers send no password with a preflight request, and got 401.
#[test]
fn a_preflight_request_to_the_hub_needs_no_password() {
    let site = site(0);
    let users = site.path().join("users");
    fs::write(&users, "u:$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n").unwrap();
    let area = users.display().to_string();
    let hub = ["--hub", "--hub-anonymous", "--hub-publish-anonymous", "--basic-auth", &area];
    let post = "Access-Control-Request-Method: POST";
    let from = format!("Origin: {B}");
    for (flags, status, expected) in [(&["--hub-cors", B][..], 204, &[B][..]), (&[], 401, &[])] {
        let server = serve(site.path(), &[flags, &hub].concat());
        let mut client = server.client();
        let reply = client.request("OPTIONS", "/.well-known/mercure", &[&from, post]);
        assert_eq!(reply.status, status, "{flags:?}");
        assert_eq!(fields(&reply).0, expected, "{flags:?}");
        assert_eq!(client.request("OPTIONS", "/", &[&from, post]).status, 401, "{flags:?}");
        assert_eq!(
            client.request("GET", "/.well-known/mercure", &[&from]).status,
            401,
            "{flags:?}"
        );
    }
}

#[test]
fn credentials_are_for_origins_that_are_named() {
    let site = site(0);
    let users = site.path().join("users");
    // The password is `secret`.
    let user = "u:$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n";
    fs::write(&users, user).unwrap();
    let password = format!("Authorization: Basic {}", STANDARD.encode("u:secret"));
    let area = users.display().to_string();
    for origins in [A.to_owned(), format!("{A},{B}")] {
        let flags = ["--cors", &origins, "--cors-credentials", "--basic-auth", &area];
        let server = serve(site.path(), &flags);
        let mut client = server.client();
        let from = format!("Origin: {A}");
        let credentials = "access-control-allow-credentials";
        // A preflight, a refusal that the script may read, and a response after the password was
        // verified.
        for (method, fields_of_request, status) in [
            ("OPTIONS", vec![&*from, PUT], 204),
            ("GET", vec![&*from], 401),
            ("GET", vec![&*from, &*password], 200),
            ("GET", vec![&*from, &*password], 200),
        ] {
            let reply = client.request(method, "/", &fields_of_request);
            assert_eq!(reply.status, status, "{method}");
            assert_eq!(fields(&reply).0, [A], "{method}");
            assert_eq!(reply.field(credentials), Some("true"), "{method}");
        }
    }
    for (flags, expected) in [
        (&["--cors", "*", "--cors-credentials"][..], "instead of `*`"),
        (&["--cors-credentials"], "has no effect"),
        (&["--cors", "https://A.example"], "write https://a.example"),
    ] {
        let run = Command::new(super::BINARY)
            .args(["serve", site.path().to_str().unwrap(), "--listen", "127.0.0.1:0"])
            .args(flags)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&run.stderr);
        assert!(!run.status.success() && text.contains(expected), "{flags:?}: {text}");
    }
}
