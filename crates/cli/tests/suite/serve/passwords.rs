//! Basic authentication: files, origins, reload.

use super::{INDEX, serve, site};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use pollux_testkit::{origin::Origin, wait_until};
use std::{
    fs, thread,
    time::{Duration, Instant},
};

/// The password is `secret`.
const USER: &str = "u:$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n";

const ALL: [&[&str]; 4] = [
    &["--workers", "2"],
    &["--architecture", "prethreaded"],
    &["--architecture", "preforked"],
    &["--architecture", "forking"],
];

fn basic(credentials: &str) -> String {
    format!("Authorization: Basic {}", STANDARD.encode(credentials))
}

#[test]
fn a_path_with_a_password_is_served_to_its_users_alone() {
    for architecture in ALL {
        let site = site(0);
        fs::create_dir(site.path().join("admin")).unwrap();
        fs::write(site.path().join("admin/index.html"), "inside").unwrap();
        let users = tempfile::NamedTempFile::new().unwrap();
        fs::write(users.path(), USER).unwrap();
        let area = format!("/admin={}", users.path().display());
        let rewrite = "/open/* /admin/*";
        let flags = ["--basic-auth", &area, "--basic-auth-realm", "a b", "--rewrite", rewrite];
        let server = serve(site.path(), &[architecture, &flags].concat());
        let mut client = server.client();
        assert_eq!(client.get("/").text(), INDEX);
        for path in ["/admin/", "/%61dmin/", "/open/", "/admin/none", "/x/../ADMIN/", "//admin/"] {
            let reply = client.get(path);
            assert_eq!(reply.status, 401, "{path}");
            let challenge = "Basic realm=\"a b\", charset=\"UTF-8\"";
            assert_eq!(reply.field("www-authenticate"), Some(challenge));
            for wrong in ["u:wrong", "v:secret", "u:", ":"] {
                assert_eq!(client.request("GET", path, &[&basic(wrong)]).status, 401, "{wrong}");
            }
        }
        assert_eq!(client.get("/admin%2findex.html").status, 400);
        let head = client.request("HEAD", "/admin/", &[]);
        assert_eq!((head.status, head.text().as_str()), (401, ""));
        // Neither conditions nor ranges disclose anything about the file.
        for condition in ["If-None-Match: *", "Range: bytes=0-0", "If-Match: \"x\""] {
            assert_eq!(client.request("GET", "/admin/", &[condition]).status, 401, "{condition}");
        }
        for _ in 0..2 {
            assert_eq!(client.request("GET", "/admin/", &[&basic("u:secret")]).text(), "inside");
            assert_eq!(client.request("GET", "/open/", &[&basic("u:secret")]).text(), "inside");
        }
        let right = basic("u:secret");
        let part = client.request("GET", "/admin/", &[&right, "Range: bytes=0-1"]);
        assert_eq!((part.status, part.text().as_str()), (206, "in"));
        let head = client.request("HEAD", "/admin/", &[&right]);
        assert_eq!((head.status, head.field("content-length")), (200, Some("6")));
        let same = client.request("GET", "/admin/", &[&right, "If-None-Match: *"]);
        assert_eq!(same.status, 304);
        assert!(server.stop().0.success());
    }
}

/// Regression: the line of a refused request showed the token of a subscriber.
#[test]
fn the_log_of_a_refusal_has_no_token() {
    let site = site(0);
    let log = site.path().join("log");
    let users = tempfile::NamedTempFile::new().unwrap();
    fs::write(users.path(), USER).unwrap();
    let hub = ["--hub", "--hub-anonymous", "--hub-publish-anonymous"];
    let files =
        ["--basic-auth", users.path().to_str().unwrap(), "--access-log", log.to_str().unwrap()];
    let server = serve(site.path(), &[&hub[..], &files].concat());
    let mut client = server.client();
    let target = "/.well-known/mercure?match=a&access_token=secret";
    assert_eq!(client.request("GET", target, &[]).status, 401);
    assert!(server.stop().0.success());
    let text = fs::read_to_string(&log).unwrap();
    assert!(text.contains("match=a&access_token=- HTTP/1.1\" 401 "), "{text}");
}

/// Regression: the lines of a rewritten request, of a redirection and of a client with too many requests had the token.
#[test]
fn the_log_has_no_token_before_the_hub_has_the_request() {
    let site = site(0);
    let log = site.path().join("log");
    let hub = ["--hub", "--hub-anonymous", "--hub-publish-anonymous"];
    let rules = ["--rewrite", "/new /.well-known/mercure", "--redirect", "/old /new"];
    let others = ["--limit-request-rate", "1/m:3", "--access-log", log.to_str().unwrap()];
    let server = serve(site.path(), &[&hub[..], &rules, &others].concat());
    let mut client = server.client();
    for (path, status) in
        [("/new", 401), ("/old", 308), ("/.well-known/mercure", 401), ("/.well-known/mercure", 429)]
    {
        let target = format!("{path}?match=a&access_token=secret");
        assert_eq!(client.request("GET", &target, &[]).status, status, "{path}");
    }
    assert!(server.stop().0.success());
    let text = fs::read_to_string(&log).unwrap();
    assert_eq!(text.matches("match=a&access_token=- HTTP/1.1\" ").count(), 4, "{text}");
    assert!(!text.contains("secret"), "{text}");
}

/// Regression: the page for 401 was not used.
#[test]
fn the_page_for_401_is_sent_with_the_challenge() {
    for architecture in ALL {
        let site = site(0);
        fs::write(site.path().join("401.txt"), "members only").unwrap();
        let users = tempfile::NamedTempFile::new().unwrap();
        fs::write(users.path(), USER).unwrap();
        let file = users.path().to_str().unwrap();
        let flags = ["--basic-auth", file, "--error-page", "401 /401.txt"];
        let server = serve(site.path(), &[architecture, &flags].concat());
        let mut client = server.client();
        let wrong = basic("u:wrong");
        for fields in [Vec::new(), vec![wrong.as_str()]] {
            let reply = client.request("GET", "/", &fields);
            assert_eq!((reply.status, reply.text().as_str()), (401, "members only"));
            assert!(reply.field("www-authenticate").is_some());
        }
        assert_eq!(client.request("GET", "/", &[&basic("u:secret")]).text(), INDEX);
        assert!(server.stop().0.success());
    }
}

#[test]
fn an_origin_gets_no_password_without_the_flag_for_it() {
    for forwards in [false, true] {
        let origin = Origin::start(|request| request.ok("of origin"));
        let site = site(0);
        let log = site.path().join("log");
        let users = site.path().join("users");
        fs::write(&users, USER).unwrap();
        let area = format!("/={}", users.display());
        let mut flags = vec!["--basic-auth", &*area, "--access-log", log.to_str().unwrap()];
        let url = origin.url();
        flags.extend(["--origin", &*url, "--cache", "8M"]);
        if forwards {
            flags.push("--basic-auth-forward");
        }
        let server = serve(site.path(), &flags);
        let mut client = server.client();
        let credentials = basic("u:secret");
        let body = "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n";
        client.send(format!("{body}{credentials}\r\n\r\nbody"));
        assert_eq!(client.reply().text(), "of origin");
        let has_password = origin.last_head().to_ascii_lowercase().contains("authorization");
        assert_eq!(has_password, forwards);
        let requests = origin.requests();
        assert_eq!(client.get("/x").status, 401);
        assert_eq!(origin.requests(), requests);
        assert!(server.stop().0.success());
        let text = fs::read_to_string(log).unwrap();
        assert!(
            text.starts_with("127.0.0.1 - u [") && text.contains("\n127.0.0.1 - - ["),
            "{text}"
        );
    }
}

/// Tests the way of a line from the command that makes it to a request with its password.
#[test]
fn a_line_that_the_program_makes_is_accepted() {
    use std::{
        io::Write as _,
        process::{Command, Stdio},
    };
    let password = |name: &str, input: &str| {
        let mut child = Command::new(super::BINARY)
            .args(["password", name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // The command may have ended before it reads its input.
        let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
        child.wait_with_output().unwrap()
    };
    let made = password("u", "long secret\nnext line\n");
    assert!(made.status.success());
    let site = site(0);
    let users = site.path().join("users");
    fs::write(&users, made.stdout).unwrap();
    let area = users.display().to_string();
    let server = serve(site.path(), &["--basic-auth", &area]);
    let status = |credentials| server.client().request("GET", "/", &[&basic(credentials)]).status;
    assert_eq!((status("u:long secret"), status("u:long")), (200, 401));
    for (name, input) in [("u", ""), ("a:b", "x\n"), ("u", &*"x".repeat(73))] {
        let refused = password(name, input);
        assert_eq!(refused.status.code(), Some(2), "{name} {input}");
        assert!(refused.stdout.is_empty());
    }
    // Regression: a reader that has closed the pipe was an error.
    fs::write(&users, "long secret\n").unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(super::BINARY);
    command.args(["password", "u"]).stdin(fs::File::open(&users).unwrap()).stdout(writer);
    let unread = command.output().unwrap();
    assert!(unread.status.success() && unread.stderr.is_empty(), "{unread:?}");
}

/// RFC 9111 §3.5, with a password required for every request.
#[test]
fn a_cache_serves_nothing_without_a_password() {
    let origin = Origin::start(|request| {
        let more = if request.target() == "/public" { ", public" } else { "" };
        request.say(format!(
            "HTTP/1.1 200 OK\r\nCache-Control: max-age=60{more}\r\nContent-Length: 1\r\n\r\nx"
        ))
    });
    let site = site(0);
    let users = site.path().join("users");
    fs::write(&users, USER).unwrap();
    let (area, url) = (format!("/={}", users.display()), origin.url());
    let server = serve(
        site.path(),
        &["--basic-auth", &area, "--origin", &url, "--cache", "8M", "--cors", "*"],
    );
    let mut client = server.client();
    let right = basic("u:secret");
    for (path, requests) in [("/private", 3), ("/public", 1)] {
        let before = origin.requests();
        for _ in 0..3 {
            assert_eq!(client.get(path).status, 401);
            assert_eq!(client.request("GET", path, &[&right]).status, 200);
            assert_eq!(client.request("GET", path, &[&basic("u:wrong")]).status, 401);
        }
        assert_eq!(origin.requests() - before, requests, "{path}");
    }
    // Without a password, an origin receives neither a preflight nor a request for the whole server.
    let before = origin.requests();
    let preflight = ["Origin: https://a.example", "Access-Control-Request-Method: DELETE"];
    assert_eq!(client.request("OPTIONS", "/x", &preflight).status, 401);
    assert_eq!(client.request("OPTIONS", "*", &[]).status, 401);
    assert_eq!(origin.requests(), before);
}

/// A preflight has no credentials, and its response discloses nothing about the file.
#[test]
fn a_preflight_needs_no_password_where_scripts_may_read() {
    for has_cors in [false, true] {
        let site = site(0);
        let users = site.path().join("users");
        fs::write(&users, USER).unwrap();
        let area = users.display().to_string();
        let mut flags = vec!["--basic-auth", &*area, "--redirect", "/old https://b.example/new"];
        if has_cors {
            flags.extend(["--cors", "https://a.example"]);
        }
        let server = serve(site.path(), &flags);
        let mut client = server.client();
        let (from, method) = ("Origin: https://a.example", "Access-Control-Request-Method: GET");
        let expected = if has_cors { 204 } else { 401 };
        for path in ["/", "/none", "/old"] {
            let reply = client.request("OPTIONS", path, &[from, method]);
            assert_eq!(reply.status, expected, "{path}");
            assert_eq!(reply.field("location"), None);
        }
        for (name, fields) in
            [("GET", &[from, method][..]), ("OPTIONS", &[from]), ("OPTIONS", &[method])]
        {
            assert_eq!(client.request(name, "/", fields).status, 401, "{name} {fields:?}");
        }
        let body = "Content-Length: 0\r\nTransfer-Encoding: chunked";
        assert_ne!(client.request("OPTIONS", "/", &[from, method, body]).status, 204);
    }
}

/// Other clients are served while passwords are verified, and a flood of wrong passwords is refused.
#[test]
fn many_wrong_passwords_cost_other_clients_nothing() {
    let site = site(0);
    let users = site.path().join("users");
    // With this cost, all requests have arrived before some of the hashes are computed.
    let slow = "u:$2y$08$abcdefghijklmnopqrstuuKxCcvB7KZ7.BpDoK0bh6qM7Dl1/xiJa\n";
    fs::write(&users, slow).unwrap();
    let area = format!("/admin={}", users.display());
    let server = serve(site.path(), &["--basic-auth", &area]);
    let mut waiting: Vec<_> = (0..100)
        .map(|number| {
            let mut client = server.client();
            let field = basic(&format!("u:wrong{number}"));
            client.send(format!("GET /admin HTTP/1.1\r\nHost: a\r\n{field}\r\n\r\n"));
            client
        })
        .collect();
    let began_at = Instant::now();
    for _ in 0..10 {
        assert_eq!(server.client().get("/").text(), INDEX);
    }
    assert!(began_at.elapsed() < Duration::from_secs(20));
    let statuses: Vec<_> = waiting.iter_mut().map(|client| client.reply().status).collect();
    assert!(statuses.iter().all(|status| [401, 503].contains(status)), "{statuses:?}");
    assert!(statuses.contains(&401) && statuses.contains(&503), "{statuses:?}");
}

#[test]
fn a_reload_reads_the_passwords_again() {
    let site = site(0);
    let users = site.path().join("users");
    fs::write(&users, USER).unwrap();
    let area = users.display().to_string();
    let server = serve(site.path(), &["--basic-auth", &area]);
    let mut client = server.client();
    let mut status = |credentials: &str| client.request("GET", "/", &[&basic(credentials)]).status;
    assert_eq!(status("u:secret"), 200);
    fs::write(&users, USER.replace("u:", "w:")).unwrap();
    server.signal(rustix::process::Signal::HUP);
    wait_until("the new passwords", || status("w:secret") == 200);
    assert_eq!(status("u:secret"), 401);
    // A file that cannot be used changes nothing.
    fs::write(&users, "w:plain\n").unwrap();
    server.signal(rustix::process::Signal::HUP);
    wait_until("the refusal of the file", || server.stderr_text().contains("plain password"));
    assert_eq!(status("w:secret"), 200);
}

/// Regression: the guestbook and the hub answered with 404, because they had moved on to the new configuration.
#[test]
fn a_reload_while_a_password_is_verified_changes_nothing_for_its_request() {
    let site = site(0);
    let users = site.path().join("users");
    // The password is `secret`, and with this cost several hashes take longer than a reload.
    let slow = "u:$2b$11$abcdefghijklmnopqrstuuViuGI07N4McP9Kl.tD6XMEzyuvcY8LG\n";
    fs::write(&users, slow).unwrap();
    let store = format!("file:{}", site.path().join("book").display());
    let area = users.display().to_string();
    let book = ["--basic-auth", &*area, "--guestbook", "/book", "--store", &store];
    let hub = ["--hub", "--hub-anonymous", "--hub-publish-anonymous"];
    let server = serve(site.path(), &[&book[..], &hub].concat());
    let body = "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 14\r\n\r\ntopic=a&data=b";
    let requests = [
        ("GET /?", "u:wrong", "\r\n", 401),
        ("GET /", "u:secret", "\r\n", 200),
        ("GET /book", "u:secret", "\r\n", 200),
        // The credentials were for the site: the hub does not treat them as its own token.
        ("POST /.well-known/mercure", "u:secret", body, 200),
        ("GET /book", "u:secret", "\r\n", 200),
    ];
    let clients = requests.map(|(line, credentials, rest, _)| {
        let mut client = server.client();
        client.send(format!("{line} HTTP/1.1\r\nHost: a\r\n{}\r\n{rest}", basic(credentials)));
        client
    });
    // Each worker computes one hash after another, so that all requests are waiting by now.
    thread::sleep(Duration::from_millis(50));
    fs::write(&users, format!("{slow}# changed\n")).unwrap();
    server.signal(rustix::process::Signal::HUP);
    let statuses = clients.map(|mut client| client.reply().status);
    assert_eq!(statuses, requests.map(|(.., expected)| expected));
    assert!(server.stderr_text().contains("reload: "), "{}", server.stderr_text());
    assert!(server.stop().0.success());
}
