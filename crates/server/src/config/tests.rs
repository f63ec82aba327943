//! Tests for reading, merging and checking configuration files.

use super::*;
use proptest::prelude::*;
use std::{fs, path::Path};

/// Returns the faults of a text, as they are shown to the user.
fn faults(text: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("p.toml");
    fs::write(&path, text).unwrap();
    let shown = match Config::load(&path) {
        Err(fault) => fault.to_string(),
        Ok((config, sources)) => {
            let mut all = config.validate().expect_err("a fault");
            all.iter_mut().for_each(|fault| sources.point(fault));
            all.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
        }
    };
    shown.replace(&format!("{}/", directory.path().display()), "")
}

const THREADED_ORIGIN: &str = "architecture = \"threaded\"\n[[site]]\norigin = [\"http://a\"]";
const FORKING_HANDOVER: &str = "architecture = \"forking\"\n[[site]]\nhandover = [\"unix:/a\"]";
const LISTEN_TWICE: &str = "listen = [\":80\", \"[::]:80\"]\n[[site]]\nroot = \"x\"";
const ADMIN_AT_LISTEN: &str = "listen = [\":80\"]\nadmin = \"[::]:80\"\n[[site]]\nroot = \"x\"";
const ADMIN_OF_SYSTEMD: &str =
    "listen = [\"systemd\"]\nadmin = \"systemd:admin\"\n[[site]]\nroot = \"x\"";
const REALM: &str = "[[site]]\nroot = \"x\"\nbasic-auth = [\"u\"]\nbasic-auth-realm = \"a\\\"b\"";
const PASSWORDS_TWICE: &str = "[[site]]\nroot = \"x\"\nbasic-auth = [\"/a=u\", \"/A/=v\"]";
const NO_PORT: &str = "listen = [\"unix:/a\"]\ntls = \"self-signed\"\nredirect-http = \":80\"\n[[site]]\nroot = \"x\"";
const ACME_OF_CLIENTS: &str = "acme = [\"a.example\"]\nacme-directory = \"letsencrypt\"\nstate-dir = \"s\"\n\
     tls-client-ca = \"c\"\n[[site]]\nroot = \"x\"";
const CONTROL_AT_ADMIN: &str =
    "admin = \"unix:/run/a\"\ncontrol = \"/run/a\"\n[[site]]\nroot = \"x\"";
const FIELDS: &str = "access-log = \"l\"\nlog-format = \"json\"\nlog-fields = [\"time\", \"time\"]\n\
     [[site]]\nroot = \"x\"";
const FORKING_ADMIN: &str = "architecture = \"forking\"\nadmin = \":1\"\n[[site]]\nroot = \"x\"";
const PUBLIC_HUB: &str = "listen = [\":80\"]\n[hub]\nanonymous = true\npublish-anonymous = true";
const CACHES: &str = "[[site]]\norigin = [\"http://a\"]\ncache = \"1M\"\ncache-dir = \"c\"\n\
     [[site]]\nnames = [\"b\"]\norigin = [\"http://a\"]\ncache = \"1M\"\ncache-dir = \"c\"\n";
const TLS_HANDOVER: &str = "tls = \"self-signed\"\n[[site]]\nhandover = [\"/x=unix:/a\"]";
const ITERATIVE_HUB: &str = "architecture = \"iterative\"\n[hub]\njwt-key = \"k\"";

#[test]
fn every_fault_has_its_place_and_a_way_out() {
    for (text, location, words) in [
        ("workers = 1\nmax-conections = 1", "p.toml:2:1:", "did you mean `max-connections`?"),
        ("max_connections = 1", "p.toml:1:1:", "did you mean `max-connections`?"),
        ("root = \"x\"", "p.toml:1:1:", "below a line [[site]]"),
        ("[[site]]\nroot = \"x\"\nworkers = 2", "p.toml:3:1:", "before the first [[site]]"),
        ("[[site]]\n  rot = \"x\"", "p.toml:2:3:", "did you mean `root`?"),
        ("zzzzzz = 1", "p.toml:1:1:", "pollux config schema"),
        ("keep-alive = \"soon\"", "p.toml:1:14:", "10s"),
        ("workers = \"2\"", "p.toml:1:11:", "a whole number from 1 to 1024"),
        ("workers = 70000", "p.toml:1:11:", "a whole number from 1 to 1024"),
        ("header-timeout = 0\n[hub]", "p.toml:1:1:", "20s is usual"),
        ("send-timeout = \"0s\"\n[hub]", "p.toml:1:1:", "such as 1y"),
        ("workers = ", "p.toml:1:", ""),
        ("workers = 1\nworkers = 2", "p.toml:2:1:", "duplicate"),
        ("mechanism = \"kqueue\"", "p.toml:1:13:", "kqueue"),
        ("listen = [\":80\", \"nowhere\"]", "p.toml:1:18:", "ADDRESS:PORT"),
        ("[[site]]\norigin = [\"ftp://a\"]", "p.toml:2:11:", "https://"),
        ("[[site]]\norigin = [\"http://a\"]\norigin-ca = \"x\"", "p.toml:3:1:", "https origins"),
        ("[[site]]\nroot = \"x\"\nheader = [\"Date: now\"]", "p.toml:3:11:", "Date"),
        ("[[site]]\nroot = \"x\"\nheader = [\"ETag: a\"]", "p.toml:3:11:", "writes the field ETag"),
        ("[[site]]\nroot = \"x\"\nheader = [\"A: b\\r\\nC: d\"]", "p.toml:3:11:", "ASCII"),
        ("[[site]]\nroot = \"x\"\nnames = [\"a\", \"b c\"]", "p.toml:3:15:", "host name"),
        ("[[site]]\nroot = \"x\"\nnames = [\"b\u{fc}cher.example\"]", "p.toml:3:10:", "xn--"),
        ("[[site]]\nroot = \"x\"\n[[site]]\nroot = \"y\"", "p.toml:3:1:", "default"),
        ("pool = 3\n[[site]]\nroot = \"x\"", "p.toml:1:1:", "preforked"),
        ("[[site]]\nroot = \"x\"\ncache = \"1M\"", "p.toml:3:1:", "origin"),
        ("[[site]]\nnames = [\"a\"]", "p.toml:1:1:", "serves nothing"),
        ("[[site]]\nredirect = [\"/* /a\"]", "p.toml:2:13:", "never arrive"),
        (CACHES, "p.toml:9:1:", "another site has this folder"),
        (TLS_HANDOVER, "p.toml:3:1:", "use `origin`"),
        (REALM, "p.toml:4:1:", "neither quotes nor backslashes"),
        (PASSWORDS_TWICE, "p.toml:3:23:", "put all users into one file"),
        (NO_PORT, "p.toml:3:1:", "no port that clients could be redirected to"),
        (ACME_OF_CLIENTS, "p.toml:1:1:", "tls-client-optional"),
        ("user = \"root\"\n[[site]]\nroot = \"x\"", "p.toml:1:1:", "this is root"),
        (LISTEN_TWICE, "p.toml:1:18:", "[::]:80 is listened on already"),
        (ADMIN_AT_LISTEN, "p.toml:2:1:", "listened on already"),
        (ADMIN_OF_SYSTEMD, "p.toml:2:1:", "systemd:admin is listened on already"),
        (ADMIN_OF_SYSTEMD, "p.toml:2:1:", "name each (systemd:NAME)"),
        (CONTROL_AT_ADMIN, "p.toml:2:1:", "unix:/run/a is listened on already"),
        (FIELDS, "p.toml:3:23:", "`time` is there twice"),
        (FORKING_ADMIN, "p.toml:2:1:", "forking cannot have beside its processes"),
        (PUBLIC_HUB, "p.toml:2:2:", "every client that can reach [::]:80 could publish"),
        (THREADED_ORIGIN, "p.toml:3:1:", "threaded serves files and the guestbook only"),
        (THREADED_ORIGIN, "p.toml:3:1:", "--architecture event"),
        (FORKING_HANDOVER, "p.toml:3:1:", "forking serves files and the guestbook only"),
        (ITERATIVE_HUB, "p.toml:2:2:", "iterative serves files and the guestbook only"),
        ("workers = 1\ninclude = [\"none.toml\"]", "p.toml:2:1:", "none.toml: cannot be read"),
        ("include = [\"p.toml\"]", "p.toml:1:1:", "include itself"),
        (
            "[hub]\njwt-key = \"k\"\nlisten = [\":80\"]",
            "p.toml:3:1:",
            "before the first [[site]] or [hub]",
        ),
        ("[hub]\nanonymos = true", "p.toml:2:1:", "did you mean `anonymous`?"),
        // Regression: `no-server-header` was the advice.
        ("[server]\nlisten = [\":80\"]", "p.toml:1:2:", "stand before the first of them"),
        ("[[sites]]\nroot = \"x\"", "p.toml:1:3:", "did you mean `site`?"),
        // Regression: `workers` was the advice.
        ("[[ site ]]\nroot = \"x\"\nworkers = 2", "p.toml:3:1:", "before the first [[site]]"),
        ("[hub]\nhub-jwt-key = \"k\"", "p.toml:2:1:", "write `jwt-key`: "),
        ("hub-jwt-key = \"k\"", "p.toml:1:1:", "write `jwt-key` below a line [hub]"),
        ("[[site]]\nroot = \"x\"\njwt-key = \"k\"", "p.toml:3:1:", "below a line [hub]"),
        ("", "", "nothing to serve"),
        ("[hub]\nanonymous = true", "p.toml:1:2:", "publishers have neither a key"),
        ("[hub]\nstore = \"rediss://a\"", "p.toml:2:9:", "TLS"),
        ("[hub]\nslow = \"wait\"", "p.toml:2:8:", "close"),
        ("[hub]\njwks = \"http://a.example/k\"", "p.toml:2:8:", "https://"),
    ] {
        let shown = faults(text);
        assert!(shown.starts_with(location) && shown.contains(words), "{text:?}: {shown}");
    }
}

/// Regression: the check found no fault, and the server did not start. With such an origin, each request failed.
#[test]
fn the_path_of_a_socket_can_be_too_long() {
    let path = format!("/run/{}", "x".repeat(102));
    let site = "[[site]]\nroot = \"x\"\n";
    let hub = "[hub]\nanonymous = true\npublish-anonymous = true\n";
    for (before, line, behind) in [
        ("", format!("control = \"{path}\""), site),
        ("", format!("admin = \"unix:{path}\""), site),
        ("", format!("listen = [\"unix:{path}\"]"), site),
        ("", format!("access-log = \"syslog:{path}\""), site),
        ("", format!("slow-log = \"journald:{path}\""), site),
        (site, format!("origin = [\"unix:{path}\"]"), ""),
        (site, format!("origin = [\"/a=unix:{path}\"]"), ""),
        (site, format!("handover = [\"/a=unix:{path}\"]"), ""),
        ("[[site]]\nguestbook = \"/g\"\n", format!("store = \"unix://{path}\""), ""),
        (hub, format!("store = \"unix://{path}\""), ""),
    ] {
        let text = format!("{before}{line}\n{behind}");
        Config::parse("p", &text).unwrap().validate().unwrap();
        let shown = faults(&text.replace(&path, &format!("{path}y")));
        let number = before.lines().count() + 1;
        assert!(shown.starts_with(&format!("p.toml:{number}:")), "{shown}");
        assert!(shown.contains("107 bytes"), "{shown}");
    }
}

/// Regression: the site refused the larger updates that the hub is configured to take.
#[test]
fn the_site_of_a_hub_takes_its_updates() {
    const HUB: &str = "[hub]\nanonymous = true\npublish-anonymous = true\n";
    for (rest, is_valid) in [
        ("max-update = \"4M\"\n", false),
        ("max-update = \"4M\"\n[[site]]\nroot = \"x\"\n", false),
        ("max-update = \"4M\"\n[[site]]\nroot = \"x\"\nmax-body = \"4M\"\n", true),
        ("max-update = \"4M\"\n[[site]]\nroot = \"x\"\nmax-body = \"inf\"\n", true),
        ("max-update = \"1K\"\n", true),
        // The hub has its default, which a site may lower.
        ("[[site]]\nroot = \"x\"\nmax-body = \"1K\"\n", true),
    ] {
        let text = format!("{HUB}{rest}");
        let outcome = Config::parse("p", &text).unwrap().validate();
        assert_eq!(outcome.is_ok(), is_valid, "{text}");
    }
    let shown = faults(&format!("{HUB}max-update = \"4M\"\n"));
    assert!(shown.starts_with("p.toml:4:") && shown.contains("--max-body"), "{shown}");
}

#[test]
fn a_site_with_too_many_origins_is_a_fault() {
    let origins = |count: usize| {
        let all: Vec<_> = (0..count).map(|number| format!("\"http://a:{}\"", number + 1)).collect();
        Config::parse("p", &format!("[[site]]\norigin = [{}]\n", all.join(","))).unwrap()
    };
    origins(64).validate().unwrap();
    let faults = origins(65).validate().unwrap_err();
    assert!(faults[0].message.contains("at most 64"), "{faults:?}");
}

#[test]
fn a_hub_has_the_keys_of_its_flags() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("p.toml");
    let text = "[hub]\njwt-key = \"k\"\nstore = \"redis://a/1\"\nhistory-bytes = \"1K\"\n\
                slow = \"close\"\nmax-rate = 7\nheartbeat = \"5s\"\ndialect = \"1\"";
    fs::write(&path, text).unwrap();
    let (config, _) = Config::load(&path).unwrap();
    config.validate().unwrap();
    let hub = config.open(|| anyhow::bail!("no guestbook")).unwrap().hub.unwrap();
    assert_eq!(hub.path, "/.well-known/mercure");
    assert_eq!(hub.store, "redis://a/1".parse().unwrap());
    assert_eq!(hub.on_loss, pollux_hub::subscribers::OnLoss::Disconnect);
    assert_eq!((hub.limits.history_bytes, hub.limits.updates_per_second), (1024, 7));
    assert_eq!(hub.heartbeat.as_secs(), 5);
}

#[test]
fn included_files_add_sites_and_give_way() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    fs::create_dir(directory.path().join("sites")).unwrap();
    write("main.toml", "include = [\"sites/*.toml\"]\nworkers = 2\n[[site]]\nroot = \"www\"\n");
    write("sites/b.toml", "workers = 3\npin = [1]\n[[site]]\nnames = [\"b\"]\nroot = \"b\"\n");
    write("sites/a.toml", "[[site]]\nnames = [\"a\"]\nroot = \"/a\"\n");
    write("sites/c.txt", "no configuration");
    // Regression: an editor's lock, a link that leads nowhere, was read.
    let lock = directory.path().join("sites/.#a.toml");
    std::os::unix::fs::symlink("somebody@host.123", lock).unwrap();
    let (config, sources) = Config::load(&directory.path().join("main.toml")).unwrap();
    config.validate().unwrap();
    assert_eq!((config.workers, &config.pin[..]), (2, &[1][..]));
    let roots: Vec<_> = config.site.iter().map(|site| site.root.clone().unwrap()).collect();
    let [own, a, b] = &roots[..] else { panic!("{roots:?}") };
    assert_eq!(own, &directory.path().join("www"));
    assert_eq!(a, Path::new("/a"));
    assert_eq!(b, &directory.path().join("sites/b"));
    let location = |key: &[Key<'_>]| sources.location(key).unwrap_or_default();
    assert!(location(&[Key::Name("workers")]).ends_with("main.toml:2"));
    assert!(location(&[Key::Name("pin")]).ends_with("sites/b.toml:2"));
    assert!(location(&[Key::Name("site"), Key::Index(2), Key::Name("root")]).ends_with("b.toml:5"));
    assert_eq!(location(&[Key::Name("backlog")]), "");
    assert_eq!(location(&[Key::Name("site"), Key::Index(1), Key::Name("index")]), "");
}

/// All paths are relative to their file, also those within addresses, stores and the table of the hub.
#[test]
fn every_path_is_relative_to_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("main.toml");
    let text = "listen = [\"unix:l\", \"unix:/abs\"]\nadmin = \"unix:a\"\nredirect-http = \"unix:p\"\n\
                access-log = \"syslog:d\"\nslow-log = \"journald:j\"\n\
                [hub]\njwt-key = \"k\"\njwks-ca = \"ca\"\nstore = \"file:h\"\n\
                [[site]]\nroot = \"r\"\norigin = [\"unix:o\", \"/p=unix:q\", \"http://h\"]\n\
                handover = [\"/x=unix:y\"]\nguestbook = \"/g\"\nstore = \"file:s\"\n";
    fs::write(&file, text).unwrap();
    let table = Config::load(&file).unwrap().0.to_table();
    let of = |value: &toml::Value, key: &str| value.get(key).unwrap().to_string();
    let within = |name: &str| directory.path().join(name).display().to_string();
    let whole = toml::Value::Table(table);
    let (hub, site) =
        (whole.get("hub").unwrap(), &whole.get("site").unwrap().as_array().unwrap()[0]);
    for (text, wanted) in [
        (of(&whole, "listen"), vec![format!("unix:{}", within("l")), "\"unix:/abs\"".into()]),
        (of(&whole, "admin"), vec![format!("unix:{}", within("a"))]),
        (of(&whole, "redirect-http"), vec![format!("unix:{}", within("p"))]),
        (of(&whole, "access-log"), vec![format!("syslog:{}", within("d"))]),
        (of(&whole, "slow-log"), vec![format!("journald:{}", within("j"))]),
        (of(hub, "jwt-key"), vec![within("k")]),
        (of(hub, "jwks-ca"), vec![within("ca")]),
        (of(hub, "store"), vec![format!("file:{}", within("h"))]),
        (
            of(site, "origin"),
            vec![
                format!("\"unix:{}\"", within("o")),
                format!("\"/p=unix:{}\"", within("q")),
                "\"http://h".into(),
            ],
        ),
        (of(site, "handover"), vec![format!("/x=unix:{}", within("y"))]),
        (of(site, "store"), vec![format!("file:{}", within("s"))]),
    ] {
        wanted.iter().for_each(|wanted| assert!(text.contains(wanted), "{text}: {wanted}"));
    }
    fs::write(&file, "[hub]\njwks = \"https://h/keys\"\n").unwrap();
    let table = Config::load(&file).unwrap().0.to_table();
    assert_eq!(of(table.get("hub").unwrap(), "jwks"), "\"https://h/keys\"");
    fs::write(&file, "access-log = \"-\"\nslow-log = \"syslog\"\n").unwrap();
    let whole = toml::Value::Table(Config::load(&file).unwrap().0.to_table());
    assert_eq!(
        (of(&whole, "access-log"), of(&whole, "slow-log")),
        ("\"-\"".into(), "\"syslog\"".into())
    );
}

/// One of two lists would be dropped, and with it for example half of the denied networks.
#[test]
fn a_list_in_two_files_is_a_fault() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
    let fault = || Config::load(&directory.path().join("main.toml")).unwrap_err().to_string();
    write("main.toml", "include = [\"a.toml\"]\nworkers = 2\ndeny = [\"10.0.0.0/8\"]\n");
    write("a.toml", "workers = 3\ndeny = [\"192.0.2.0/24\"]\n");
    let text = fault();
    assert!(text.contains("main.toml:3:") && text.contains("`deny` is already in"), "{text}");
    assert!(text.contains("a.toml"), "{text}");
    write("main.toml", "include = [\"a.toml\", \"b.toml\"]\n");
    write("b.toml", "\ndeny = [\"10.0.0.0/8\"]\n");
    assert!(fault().contains("b.toml:2:"), "{}", fault());
    write("a.toml", "[hub]\nhistory = 5\n");
    write("b.toml", "[hub]\nanonymous = true\n");
    assert!(fault().contains("`hub` is already in"), "{}", fault());
}

#[test]
fn a_file_in_another_encoding_is_named_with_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("main.toml");
    fs::write(&file, b"workers = 2\n# \xe9\n").unwrap();
    let text = Config::load(&file).unwrap_err().to_string();
    assert!(text.contains("main.toml:2:3: ") && text.contains("line 2 is not UTF-8"), "{text}");
}

/// Regression: of the files that are read at the start, roots and certificates alone were looked for.
#[test]
fn files_that_are_missing_are_warned_of() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("main.toml");
    let user = "bcrypt:$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n";
    fs::write(directory.path().join("users"), user).unwrap();
    let text = "tls-client-ca = \"none\"\nacme-ca = \"none\"\n\
                [hub]\njwt-key = \"none\"\njwks = \"https://h/keys\"\njwks-ca = \"none\"\n\
                publisher-key = \"none\"\n\
                [[site]]\nbasic-auth = [\"users\", \"/a=none\"]\norigin-ca = \"none\"\n\
                guestbook-template = \"none\"\n";
    fs::write(&file, text).unwrap();
    let warnings = Config::load(&file).unwrap().0.file_warnings();
    let keys: Vec<_> = warnings.iter().map(Fault::key_name).collect();
    let expected = [
        "tls-client-ca",
        "acme-ca",
        "site[0].origin-ca",
        "hub.jwt-key",
        "hub.jwks-ca",
        "hub.publisher-key",
        "site[0].basic-auth[1]",
        "site[0].guestbook-template",
    ];
    assert_eq!(keys, expected, "{warnings:?}");
}

/// Regression: a server with an expired certificate started without a word, and the check did not mention it.
#[test]
fn certificates_outside_their_validity_are_warned_of() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, years: (i32, i32)| {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(years.0, 1, 2);
        params.not_after = rcgen::date_time_ymd(years.1, 1, 2);
        let pem = params.self_signed(&key).unwrap().pem() + &key.serialize_pem();
        fs::write(directory.path().join(name), pem).unwrap();
    };
    write("good", (2001, 4001));
    write("old", (2001, 2002));
    write("new", (4001, 4002));
    let file = directory.path().join("main.toml");
    let text = "tls-cert = [\"good\", \"old\", \"new\"]\n[[site]]\nroot = \".\"\n";
    fs::write(&file, text).unwrap();
    let warnings = Config::load(&file).unwrap().0.file_warnings();
    let [old, new] = &warnings[..] else { panic!("{warnings:?}") };
    assert_eq!((old.key_name(), new.key_name()), ("tls-cert[1]".into(), "tls-cert[2]".into()));
    let [in_old, in_new] = [
        "old: the certificate has expired on Wed, 02 Jan 2002 00:00:00 GMT",
        "new: the certificate is not valid before Tue, 02 Jan 4001 00:00:00 GMT",
    ];
    assert!(old.message.contains(in_old) && new.message.contains(in_new), "{warnings:?}");
}

/// Regression: the check found no fault, and the server did not start.
#[test]
fn folders_of_logs_and_stores_that_are_missing_are_warned_of() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("main.toml");
    let text = "access-log = \"none/a.log\"\nslow-log = \"slow.log\"\n\
                [hub]\nanonymous = true\npublish-anonymous = true\nstore = \"file:none/hub\"\n\
                [[site]]\nguestbook = \"/g\"\nstore = \"file:none/g\"\n";
    fs::write(&file, text).unwrap();
    let warnings = Config::load(&file).unwrap().0.file_warnings();
    let keys: Vec<_> = warnings.iter().map(Fault::key_name).collect();
    assert_eq!(keys, ["access-log", "hub.store", "site[0].store"], "{warnings:?}");
    assert!(warnings[0].message.ends_with("none is no folder on this machine"), "{warnings:?}");
}

/// Regression: the check found no fault, and the server did not start.
#[test]
fn passwords_and_keys_that_cannot_be_used_are_warned_of() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("main.toml");
    fs::write(directory.path().join("users"), "a secret\n").unwrap();
    fs::write(directory.path().join("key"), "short").unwrap();
    let text = "[hub]\njwt-key = \"key\"\n[[site]]\nroot = \".\"\nbasic-auth = [\"users\"]\n";
    fs::write(&file, text).unwrap();
    let warnings = Config::load(&file).unwrap().0.file_warnings();
    let [users, key] = &warnings[..] else { panic!("{warnings:?}") };
    assert_eq!(users.key_name(), "site[0].basic-auth[0]");
    assert!(users.message.contains("users:1: expected NAME:HASH"), "{users}");
    assert_eq!(key.key_name(), "hub");
    assert!(key.message.contains("shorter than 32 bytes"), "{key}");
}

/// Regression: a page with a wrong path was noticed only when a visitor got another one.
#[test]
fn pages_that_are_missing_are_warned_of() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path().join("www");
    fs::create_dir_all(root.join("sub")).unwrap();
    fs::write(root.join("a page.html"), "").unwrap();
    fs::write(root.join("sub/index.html"), "").unwrap();
    let file = directory.path().join("main.toml");
    let text = "[[site]]\nroot = \"www\"\nfallback = \"/none.html\"\n\
                error-page = [\"404 /a%20page.html\", \"403 /sub/\", \"500 /sub\", \"503 /none/\"]\n";
    fs::write(&file, text).unwrap();
    let warnings = Config::load(&file).unwrap().0.file_warnings();
    let keys: Vec<_> = warnings.iter().map(Fault::key_name).collect();
    let expected = ["site[0].fallback", "site[0].error-page[2]", "site[0].error-page[3]"];
    assert_eq!(keys, expected, "{warnings:?}");
}

/// Regression: a fallback in a prefix with passwords was sent without a password for every other path.
#[test]
fn a_fallback_that_needs_a_password_is_refused() {
    for (areas, fallback, is_refused) in [
        ("\"/app=u\"", "/app/index.html", true),
        ("\"/app=u\"", "/%61pp/", true),
        ("\"/app=u\"", "/x/../APP/index.html", true),
        ("\"u\", \"/app=v\"", "/app/index.html", true),
        ("\"u\"", "/app/index.html", false),
        ("\"u\", \"/app=v\"", "/index.html", false),
        ("\"/app=u\"", "/apple/index.html", false),
        ("", "/app/index.html", false),
    ] {
        let text =
            format!("[[site]]\nroot = \".\"\nbasic-auth = [{areas}]\nfallback = \"{fallback}\"\n");
        let faults = Config::parse("a", &text).unwrap().validate().err().unwrap_or_default();
        let keys: Vec<_> = faults.iter().map(Fault::key_name).collect();
        let expected: &[&str] = if is_refused { &["site[0].fallback"] } else { &[] };
        assert_eq!(keys, expected, "{areas} {fallback}");
    }
}

#[test]
fn a_hub_is_something_to_serve() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("main.toml");
    fs::write(
        &file,
        "[hub]\nanonymous = true\npublish-anonymous = true\n[[site]]\nnames = [\"a\"]\n",
    )
    .unwrap();
    Config::load(&file).unwrap().0.validate().unwrap();
}

#[test]
fn a_configuration_survives_being_written() {
    let text = "listen = [\":80\"]\nkeep-alive = 90\nmax-requests = \"inf\"\n[[site]]\nroot = \"x\"\n\
                origin = [\"/a=http://b:8\"]\nmax-body = \"inf\"\nstore = \"file:/x\"\n";
    let config = Config::parse("a", text).unwrap();
    let written = toml::to_string(&config).unwrap();
    assert_eq!(Config::parse("b", &written).unwrap(), config);
}

#[test]
fn the_schema_has_every_key() {
    let schema = Config::schema();
    let properties = schema["properties"].as_object().unwrap();
    // `pollux config show` writes limits as texts. Regression: the schema had no text but `inf`.
    assert_eq!(Config::default().to_table()["accept-limit"].as_str(), Some("64"));
    assert_eq!(properties["accept-limit"]["anyOf"][1]["type"], "string");
    for key in Config::default().to_table().keys() {
        assert!(properties.contains_key(key), "{key}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]
    /// Any text results in a fault or a configuration, never in a panic.
    #[test]
    fn nothing_in_a_file_makes_it_panic(
        text in "(listen|workers|site|names|\\[\\[site\\]\\]|root|=|\"|\\[|\\]|\n| |é|[a-z0-9:/.*-]){0,40}"
    ) {
        if let Ok(config) = Config::parse("p", &text) {
            let _ = config.validate();
        }
    }
}
