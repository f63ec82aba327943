//! Compares the cache with another implementation of RFC 9111, `http-cache-semantics`.

use crate::harness::{Harness, START, at, reply};
use http_cache_semantics::{CacheOptions, CachePolicy};
use proptest::prelude::*;
use std::time::{Duration, UNIX_EPOCH};

/// Response directives on which both implementations must agree. Excluded are choices that the RFC
/// leaves open, and errors of the other implementation: it recognises directives in lower case
/// only, uses the last of two values, treats an invalid `max-age` as absent, considers few statuses
/// cacheable, treats `proxy-revalidate` as `max-age=0`, lets `max-stale` override `s-maxage`, and
/// stores responses that only `max-stale` could ever use.
fn control() -> impl Strategy<Value = String> {
    let directive = prop::sample::select(vec![
        "max-age=0",
        "max-age=10",
        "max-age=\"20\"",
        "s-maxage=5",
        "no-cache",
        "no-store",
        "private",
        "public",
        "must-revalidate",
        "no-transform",
        "foo=\"max-age=99, no-store\"",
    ]);
    let name = |directive: &&str| directive.split('=').next().unwrap().to_ascii_lowercase();
    prop::collection::vec(directive, 0..4).prop_map(move |mut directives| {
        directives.sort_by_key(name);
        directives.dedup_by_key(|directive| name(&&**directive));
        directives.join(", ")
    })
}

fn second(seconds: u64) -> std::time::SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn both_reuse_the_same_responses(
        control in control(),
        status in prop::sample::select(vec![200u16, 203, 301, 302, 404, 410]),
        age in prop::option::of(0..20u64),
        expires in prop::option::of(-10..20i64),
        changed in prop::option::of(0..2000u64),
        is_authorized in any::<bool>(),
        directive in prop::sample::select(vec!["", "no-cache", "max-age=0", "max-age=5", "min-fresh=5"]),
        later in 0..60u64,
    ) {
        // Within one second the other implementation considers a stored response 0 seconds old.
        let later = if directive == "max-age=0" { later.max(1) } else { later };
        let mut response = http::Response::builder().status(status);
        let mut fields = String::new();
        let mut add = |name: &str, value: String| {
            fields += &format!("{name}: {value}\r\n");
            let builder = std::mem::take(&mut response);
            response = builder.header(name, value);
        };
        add("Date", at(START));
        if !control.is_empty() {
            add("Cache-Control", control);
        }
        if let Some(age) = age {
            add("Age", age.to_string());
        }
        if let Some(expires) = expires {
            add("Expires", at(START.saturating_add_signed(expires)));
        }
        if let Some(changed) = changed {
            add("Last-Modified", at(START - changed));
        }
        let response = response.body(()).unwrap();
        let authorization = if is_authorized { "Authorization: x\r\n" } else { "" };

        let mut harness = Harness::default();
        harness.get("/", authorization, &reply(status, &fields, "old"));
        harness.now += later;
        let directives_line = if directive.is_empty() { String::new() } else { format!("Cache-Control: {directive}\r\n") };
        let got = harness.get("/", &directives_line, &reply(200, "", "new"));

        let request = |field: Option<(&str, &str)>| {
            let builder = http::Request::builder().uri("http://a/").header("host", "a");
            let builder = match field {
                Some((name, value)) if !value.is_empty() => builder.header(name, value),
                _ => builder,
            };
            builder.body(()).unwrap()
        };
        let first = request(is_authorized.then_some(("authorization", "x")));
        let options = CacheOptions { shared: true, ..CacheOptions::default() };
        let policy = CachePolicy::new_options(&first, &response, second(START), options);
        let next = request(Some(("cache-control", directive)));
        let reference_reuses = policy.is_storable()
            && policy.before_request(&next, second(START + later)).satisfies_without_revalidation();
        prop_assert_eq!(got.is_hit(), reference_reuses, "{}later {} {}", fields, later, directives_line);
    }
}
