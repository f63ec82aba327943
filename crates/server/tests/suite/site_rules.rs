//! The rules of a site for paths: redirects, rewrites, error pages, directory listings, fields.

use pollux_server::{
    Server, Settings,
    config::{Listen, SiteRules},
};
use std::{
    fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    str::FromStr,
    time::Duration,
};

struct Site {
    server: Server,
    address: SocketAddr,
    directory: tempfile::TempDir,
}

fn parse<T: FromStr<Err = String>>(texts: &[&str]) -> Vec<T> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn site(rules: SiteRules, fill: impl FnOnce(&Path)) -> Site {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("index.html"), "home").unwrap();
    fill(directory.path());
    let mut config = Settings::new(directory.path());
    config.site.rules = rules;
    let server = Server::start(config).unwrap();
    let Listen::Tcp(address) = server.addresses()[0] else { panic!("no TCP address") };
    Site { server, address, directory }
}

impl Site {
    fn request(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }

    fn get(&self, path: &str, fields: &str) -> String {
        self.request(&format!(
            "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n"
        ))
    }

    #[track_caller]
    fn expect(&self, path: &str, parts: &[&str]) {
        let reply = self.get(path, "");
        for part in parts {
            assert!(reply.contains(part), "{path}: no {part:?} in {reply}");
        }
    }

    fn end(self) {
        self.server.stop(Duration::ZERO).unwrap();
        drop(self.directory);
    }
}

#[test]
fn clients_are_sent_elsewhere_and_paths_rewritten() {
    let rules = SiteRules {
        redirects: parse(&[
            "/old /new 301",
            "/blog/:year/:slug /posts/:slug",
            "/out/* https://b.example/*",
        ]),
        rewrites: parse(&["/user/:name /users/:name.html", "/both /old"]),
        ..SiteRules::default()
    };
    let site = site(rules, |root| {
        fs::create_dir(root.join("users")).unwrap();
        fs::write(root.join("users/ada.html"), "Ada's").unwrap();
        fs::write(root.join("old"), "not seen").unwrap();
    });
    site.expect("/old?a=1", &["HTTP/1.1 301 ", "Location: /new?a=1\r\n"]);
    site.expect("/blog/2026/x%0d%0aA:b", &["HTTP/1.1 308 ", "Location: /posts/x%0D%0AA:b\r\n"]);
    site.expect("/out/a", &["Location: https://b.example/a\r\n"]);
    site.expect("/user/ada", &["HTTP/1.1 200 ", "\r\n\r\nAda's"]);
    // The result of a rewrite is not looked up again, so that redirects and rewrites cannot form a
    // loop.
    site.expect("/both", &["HTTP/1.1 200 ", "not seen"]);
    site.expect("/user/..", &["HTTP/1.1 404 "]);
    site.expect("/user/%2e%2e%2f%2e%2e%2fetc%2fpasswd", &["HTTP/1.1 40"]);
    site.expect("/", &["HTTP/1.1 200 ", "home"]);
    let reply = site.request("POST /old HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabc");
    assert!(reply.starts_with("HTTP/1.1 301 ") && reply.contains("Connection: close"), "{reply}");
    let reply = site.request("HEAD /old HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(reply.starts_with("HTTP/1.1 301 ") && reply.ends_with("\r\n\r\n"), "{reply}");
    site.end();
}

/// Regression: only errors of missing and forbidden files had pages.
#[test]
fn every_error_of_a_file_has_its_page_and_keeps_its_fields() {
    let rules = SiteRules {
        error_pages: parse(&["405 /e.txt", "412 /e.txt", "416 /e.txt", "501 /e.txt"]),
        ..SiteRules::default()
    };
    let site = site(rules, |root| fs::write(root.join("e.txt"), "sorry").unwrap());
    for (method, fields, parts) in [
        ("POST", "", ["HTTP/1.1 405 ", "Allow: GET, HEAD, OPTIONS\r\n"]),
        ("BREW", "", ["HTTP/1.1 501 ", "Allow: GET, HEAD, OPTIONS\r\n"]),
        ("GET", "Range: bytes=9-\r\n", ["HTTP/1.1 416 ", "Content-Range: bytes */4\r\n"]),
        ("GET", "If-Match: \"x\"\r\n", ["HTTP/1.1 412 ", "Content-Length: 5\r\n"]),
        ("HEAD", "If-Match: \"x\"\r\n", ["HTTP/1.1 412 ", "Content-Length: 5\r\n"]),
    ] {
        let reply = site.request(&format!(
            "{method} / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{fields}\r\n"
        ));
        for part in parts {
            assert!(reply.contains(part), "{method} {fields}: no {part:?} in {reply}");
        }
        let content = if method == "HEAD" { "" } else { "sorry" };
        assert!(reply.ends_with(&format!("\r\n\r\n{content}")), "{method} {fields}: {reply}");
    }
    site.end();
}

#[test]
fn errors_have_pages_and_an_application_its_fallback() {
    let rules = SiteRules {
        error_pages: parse(&["404 /errors/404.html", "403 /none.html"]),
        ..SiteRules::default()
    };
    let errors = site(rules, |root| {
        fs::create_dir(root.join("errors")).unwrap();
        fs::write(root.join("errors/404.html"), "<p>lost").unwrap();
    });
    errors.expect("/none", &["HTTP/1.1 404 ", "Content-Type: text/html", "\r\n\r\n<p>lost"]);
    errors.expect("/none.js", &["HTTP/1.1 404 ", "<p>lost"]);
    // The error page itself is missing, so the server sends its own page.
    errors.expect("/errors/", &["HTTP/1.1 403 ", "403 Forbidden"]);
    let reply = errors.request("HEAD /none HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    assert!(reply.contains("Content-Length: 7\r\n") && reply.ends_with("\r\n\r\n"), "{reply}");
    errors.end();

    let rules = SiteRules { fallback: Some("/index.html".into()), ..SiteRules::default() };
    let application = site(rules, |root| {
        for name in ["bare", "docs"] {
            fs::create_dir(root.join(name)).unwrap();
        }
        fs::write(root.join("docs/index.html"), "manual").unwrap();
    });
    application.expect("/users/7", &["HTTP/1.1 200 ", "ETag: ", "\r\n\r\nhome"]);
    // Regression: a directory without an index hid the page of the application with the same name.
    application.expect("/bare", &["HTTP/1.1 200 ", "\r\n\r\nhome"]);
    application.expect("/bare/", &["HTTP/1.1 200 ", "\r\n\r\nhome"]);
    application.expect("/docs", &["HTTP/1.1 301 ", "Location: /docs/\r\n"]);
    application.expect("/docs/", &["HTTP/1.1 200 ", "\r\n\r\nmanual"]);
    application.expect("/app.js", &["HTTP/1.1 404 "]);
    application.expect("/users/../..", &["HTTP/1.1 40"]);
    application.end();
}

#[test]
fn directories_are_listed_where_that_is_wanted() {
    let fill = |root: &Path| {
        fs::create_dir_all(root.join("d/sub")).unwrap();
        fs::write(root.join("d/a<b.txt"), "12345").unwrap();
        fs::write(root.join("d/.secret"), "").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", root.join("d/out")).unwrap();
        std::os::unix::fs::symlink("a<b.txt", root.join("d/in")).unwrap();
    };
    let listed = site(SiteRules { listing: true, ..SiteRules::default() }, fill);
    listed
        .expect("/d/", &["HTTP/1.1 200 ", "./sub/\"", "a&lt;b.txt</a><td>5<td>", "./in\"", "../"]);
    let page = listed.get("/d/", "Accept: text/html, application/json\r\n");
    assert!(page.contains("text/html; charset"), "{page}");
    assert!(!page.contains("secret") && !page.contains("out"), "{page}");
    // Regression: the weights of media types were ignored.
    let page = listed.get("/d/", "Accept: application/json;q=0, text/plain\r\n");
    assert!(page.contains("text/html; charset"), "{page}");
    for reply in [
        listed.get("/d/?format=json", ""),
        listed.get("/d/", "Accept: application/json\r\n"),
        listed.get("/d/", "Accept: text/html;q=0.5\r\nAccept: application/json\r\n"),
    ] {
        let (_, json) = reply.split_once("\r\n\r\n").unwrap();
        let json: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(json.as_array().unwrap().len(), 3, "{json}");
        assert_eq!((&json[0]["name"], &json[1]["size"]), (&"sub".into(), &5.into()));
    }
    // Regression: a listing ignored preconditions. It has no entity tag, so only `*` can match.
    for (fields, status) in [
        ("If-None-Match: *\r\n", 304),
        ("If-None-Match: \"x\"\r\n", 200),
        ("If-Match: *\r\n", 200),
        ("If-Match: \"x\"\r\n", 412),
    ] {
        let reply = listed.get("/d/", fields);
        assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{fields}: {reply}");
        assert!(status == 412 || reply.contains("\r\nVary: Accept\r\n"), "{fields}: {reply}");
    }
    listed.expect("/d", &["HTTP/1.1 301 ", "Location: /d/"]);
    listed.expect("/none/", &["HTTP/1.1 404 "]);
    listed.end();
    let unlisted = site(SiteRules::default(), fill);
    unlisted.expect("/d/", &["HTTP/1.1 403 "]);
    unlisted.end();
}

/// Regression: a listing for programs ended after 10,000 entries as if there were no more.
#[test]
fn a_listing_that_is_cut_says_so() {
    const MOST: usize = 10_000;
    let listed = site(SiteRules { listing: true, ..SiteRules::default() }, |root| {
        fs::create_dir(root.join("d")).unwrap();
        for number in 0..MOST {
            fs::write(root.join(format!("d/{number}")), "").unwrap();
        }
    });
    let count = |is_cut: bool| {
        let reply = listed.get("/d/?format=json", "");
        let (head, json) = reply.split_once("\r\n\r\n").unwrap();
        assert_eq!(head.contains("\r\nX-Listing-Truncated: true"), is_cut, "{head}");
        let json: serde_json::Value = serde_json::from_str(json).unwrap();
        json.as_array().unwrap().len()
    };
    assert_eq!(count(false), MOST);
    fs::write(listed.directory.path().join("d/more"), "").unwrap();
    assert_eq!(count(true), MOST);
    let page = listed.get("/d/", "");
    assert!(page.contains("\r\nX-Listing-Truncated: true\r\n"), "no field");
    assert!(page.contains("<p>There are more: 10000 are listed."), "no paragraph");
    listed.end();
}

#[test]
fn fields_are_added_by_path_and_by_preset() {
    let rules = SiteRules {
        fields: parse(&[
            "/assets/* Cache-Control: max-age=31536000, immutable",
            "/index.html X-Page: home",
        ]),
        cors: Some("https://b.example".parse().unwrap()),
        security_headers: Some("basic".parse().unwrap()),
        ..SiteRules::default()
    };
    let site = site(rules, |root| {
        fs::create_dir(root.join("assets")).unwrap();
        fs::write(root.join("assets/a.css"), "a{}").unwrap();
        fs::write(root.join("assets/a.css.gz"), "gz").unwrap();
    });
    let cache = "Cache-Control: max-age=31536000, immutable\r\n";
    let cors = "Access-Control-Allow-Origin: https://b.example\r\n";
    site.expect(
        "/assets/a.css",
        &["HTTP/1.1 200 ", cache, cors, "X-Content-Type-Options: nosniff\r\n"],
    );
    let packed = site.get("/assets/a.css", "Accept-Encoding: gzip\r\n");
    assert!(packed.contains(cache) && packed.contains("Content-Encoding: gzip"), "{packed}");
    let part = site.get("/assets/a.css", "Range: bytes=0-0\r\n");
    assert!(part.starts_with("HTTP/1.1 206 ") && part.contains(cache), "{part}");
    site.expect("/", &["X-Page: home\r\n", cors]);
    assert!(!site.get("/", "").contains("immutable"));
    site.expect("/none", &["HTTP/1.1 404 ", cors]);
    let preflight = "OPTIONS /assets/a.css HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\
                 Origin: https://b.example\r\nAccess-Control-Request-Method: GET\r\n\
                 Access-Control-Request-Headers: x-a\r\n\r\n";
    let reply = site.request(preflight);
    for part in
        ["HTTP/1.1 204 ", cors, "Access-Control-Allow-Headers: x-a\r\n", "Access-Control-Max-Age"]
    {
        assert!(reply.contains(part), "{part} in {reply}");
    }
    site.end();
}

/// Regression: responses over plain HTTP had Strict-Transport-Security (RFC 6797 §7.2).
#[test]
fn the_strict_preset_has_no_hsts_without_tls() {
    let rules =
        SiteRules { security_headers: Some("strict".parse().unwrap()), ..SiteRules::default() };
    let site = site(rules, |_| {});
    let reply = site.get("/", "");
    assert!(reply.contains("\r\nContent-Security-Policy: default-src 'self'"), "{reply}");
    assert!(!reply.contains("Strict-Transport-Security"), "{reply}");
    site.end();
}

/// Regression: a response had the fields of the path and of the site, and browsers refuse two of them or obey
/// the stricter one.
#[test]
fn a_field_of_a_path_replaces_the_one_of_the_site() {
    for origins in ["https://b.example", "https://b.example,https://c.example"] {
        let rules = SiteRules {
            fields: parse(&[
                "/index.html X-Frame-Options: DENY",
                "/index.html Access-Control-Allow-Origin: *",
            ]),
            cors: Some(origins.parse().unwrap()),
            security_headers: Some("basic".parse().unwrap()),
            ..SiteRules::default()
        };
        let site = site(rules, |_| {});
        for (fields, status) in [
            ("", 200),
            ("If-None-Match: *\r\n", 304),
            ("Range: bytes=0-0\r\n", 206),
            ("Range: bytes=0-0,2-2\r\n", 206),
        ] {
            let reply = site.get("/", &format!("Origin: https://b.example\r\n{fields}"));
            assert!(reply.starts_with(&format!("HTTP/1.1 {status} ")), "{reply}");
            for (name, value) in [("X-Frame-Options", "DENY"), ("Access-Control-Allow-Origin", "*")]
            {
                assert!(reply.contains(&format!("\r\n{name}: {value}\r\n")), "{reply}");
                assert_eq!(reply.matches(name).count(), 1, "{reply}");
            }
            assert!(reply.contains("\r\nX-Content-Type-Options: nosniff\r\n"), "{reply}");
        }
        site.end();
    }
}
