//! Tests that no spelling of a path avoids the password of that path.

use super::*;
use proptest::prelude::*;

fn areas(prefixes: &[&str]) -> Areas {
    let users = Arc::new(Users::default());
    let given: Vec<BasicAuth> =
        prefixes.iter().map(|prefix| format!("{prefix}/=f").parse().unwrap()).collect();
    Areas::new(given.iter().map(|area| (area, users.clone())).collect()).unwrap()
}

fn find(areas: &Areas, path: &str) -> Result<Option<usize>, Ambiguous> {
    areas.find(&Target::Path { path: path.as_bytes(), query: None })
}

#[test]
fn a_path_is_protected_however_it_is_written() {
    let areas = areas(&["/admin"]);
    for path in [
        "/admin",
        "/admin/",
        "/admin/x",
        "/%61dmin",
        "/%41DMIN",
        "/ADMIN/x",
        "//admin",
        "/.//admin//x",
        "/x/../admin/y",
        "/x/%2e%2E/admin/y",
        "/./admin",
        "/admin./x",
        "/admin%2e/x",
        "/admin%20/x",
        "/admin;a=b/x",
        "/admin%3Ba/x",
        // Some origins do not resolve dot segments.
        "/admin/../x",
        "/%61dmin/%2e%2e/x",
    ] {
        assert_eq!(find(&areas, path), Ok(Some(0)), "{path}");
    }
    for path in ["/", "/administrator", "/x/admin", "/adm", "/%2561dmin", "/x/./y", "/x//../y"] {
        assert_eq!(find(&areas, path), Ok(None), "{path}");
    }
    for path in ["/a%2Fb", "/x%2f..%2fadmin", "/x%00", "/..", "/x\\..\\admin", "/%", "/%5cadmin"] {
        assert_eq!(find(&areas, path), Err(Ambiguous), "{path}");
    }
    assert_eq!(areas.find(&Target::Asterisk), Ok(None));
}

#[test]
fn the_longest_prefix_decides() {
    let areas = areas(&["", "/a", "/a/B", "/.well-known/x.y"]);
    let number = |prefix: &[u8]| areas.all.iter().position(|area| area.prefix == prefix);
    for (path, prefix) in [
        ("/", &b""[..]),
        ("/ab", b""),
        ("/a", b"/a"),
        ("/a/c", b"/a"),
        ("/a/b/c", b"/a/b"),
        ("//a//b/c", b"/a/b"),
        ("/.Well-Known/x.y/z", b"/.well-known/x.y"),
    ] {
        assert_eq!(find(&areas, path), Ok(number(prefix)), "{path}");
    }
    // The two readings are in areas with different users.
    for path in ["/a/../x", "/x/../a", "/a/b/../c", "/a%2fb", "/%zz"] {
        assert_eq!(find(&areas, path), Err(Ambiguous), "{path}");
    }
    assert_eq!(areas.find(&Target::Asterisk), Ok(number(b"")));
}

#[test]
fn nothing_is_ambiguous_if_the_whole_site_is_one_area() {
    let areas = areas(&[""]);
    for path in ["/", "/a%2fb", "/..", "/a/../b", "/%"] {
        assert_eq!(find(&areas, path), Ok(Some(0)), "{path}");
    }
}

/// A segment in one of the ways that a client can write it.
fn written(segment: &'static str) -> impl Strategy<Value = String> {
    prop::collection::vec(0..4u8, segment.len()).prop_map(move |forms| {
        segment.bytes().zip(forms).fold(String::new(), |text, (byte, form)| {
            text + &match form {
                0 => char::from(byte).to_string(),
                1 => format!("%{byte:02x}"),
                2 => char::from(byte.to_ascii_uppercase()).to_string(),
                _ => format!("%{:02X}", byte.to_ascii_uppercase()),
            }
        })
    })
}

/// Path parts without effect, which a client can put before any segment.
fn noise() -> impl Strategy<Value = String> {
    let piece =
        prop::sample::select(vec!["/", "/.", "/%2e", "/x/..", "/x/%2E.", "/x;y/.%2e", "//./"]);
    prop::collection::vec(piece, 0..4).prop_map(|pieces| pieces.concat())
}

/// Suffixes that some origins ignore.
fn tail() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["", ".", "%2e.", ";", ";a=b", "%20", ".;x"])
}

proptest! {
    #[test]
    fn no_spelling_of_a_protected_path_is_public(
        before in noise(),
        first in written("pri-v.ate"),
        tail_of_first in tail(),
        between in noise(),
        second in written("area"),
        tail_of_second in tail(),
        rest in prop::sample::select(vec!["", "/", "/x", "/../area", "//x", "/x/..", "/a%2fb"]),
    ) {
        let areas = areas(&["/pri-v.ate/area", "/other"]);
        let path = format!("{before}/{first}{tail_of_first}{between}/{second}{tail_of_second}{rest}");
        let expected = areas.all.iter().position(|area| area.prefix == b"/pri-v.ate/area");
        let found = find(&areas, &path);
        prop_assert!(found == Ok(expected) || found == Err(Ambiguous), "{path}: {found:?}");
    }

    /// The path by which a service finds the file decides, regardless of the spelling in the request.
    #[test]
    fn a_path_that_services_read_as_protected_is_protected(path in "/([aAbx./;%]|%61|%2e|%2F|\\.\\.|/a|b/){0,12}") {
        let areas = areas(&["/a", "/x/b"]);
        let mut scratch = Vec::new();
        if let Ok(safe) = SafePath::new(path.as_bytes(), &mut scratch) {
            let read = safe.as_bytes();
            let is_protected = [&b"/a"[..], b"/x/b"].iter().any(|prefix| {
                read.strip_prefix(*prefix).is_some_and(|rest| rest.is_empty() || rest[0] == b'/')
            });
            prop_assert!(!is_protected || find(&areas, &path) != Ok(None), "{path}");
        } else {
            prop_assert_eq!(find(&areas, &path), Err(Ambiguous));
        }
    }
}

#[test]
fn a_file_and_its_prefix_are_read() {
    for (text, shown) in [
        ("users", "/=users"),
        ("/etc/users", "/=/etc/users"),
        ("/admin=/etc/users", "/admin/=/etc/users"),
        ("/.x/v1.2=users", "/.x/v1.2/=users"),
        ("/=a=b", "/=a=b"),
        ("/a/b/=c", "/a/b/=c"),
        ("/a b=c", "/a b/=c"),
    ] {
        assert_eq!(text.parse::<BasicAuth>().unwrap().to_string(), shown);
    }
    for text in
        ["", "/a=", "/a//b=c", "/a/../b=c", "/a.=c", "/a%20b=c", "/a;b=c", "/a\\b=c", "/a?b=c"]
    {
        assert!(text.parse::<BasicAuth>().is_err(), "{text}");
    }
    let users = Arc::new(Users::default());
    let [a, b] = ["/a=f", "/A=g"].map(|text| text.parse::<BasicAuth>().unwrap());
    let error = Areas::new(vec![(&a, users.clone()), (&b, users)]).unwrap_err();
    assert!(error.to_string().contains("two files for /a/"), "{error}");
}
