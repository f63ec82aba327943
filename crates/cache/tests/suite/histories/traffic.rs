//! Random requests, and random caching fields of an origin.

use proptest::prelude::*;

/// The first and the last byte of a part.
pub(crate) type Span = (usize, usize);

/// The length of each version of a resource in bytes.
pub(crate) const SIZE: usize = 10;
pub(crate) const WHOLE: Span = (0, SIZE - 1);

/// The content of a version. Two versions differ at every offset.
pub(crate) fn body(version: u32, span: Span) -> String {
    let byte_at = |at: usize| char::from(b'a' + ((version as usize + 2 * at) % 26) as u8);
    (span.0..=span.1).map(byte_at).collect()
}

/// The caching fields of the origin's responses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OriginPolicy {
    pub(crate) max_age: Option<u32>,
    pub(crate) s_maxage: Option<u32>,
    pub(crate) swr: Option<u32>,
    pub(crate) sie: Option<u32>,
    /// An index into [`FLAGS`].
    pub(crate) flag: usize,
    pub(crate) age: Option<u32>,
    pub(crate) has_etag: bool,
    pub(crate) varies: bool,
}

pub(crate) const FLAGS: [&str; 7] =
    ["x", "no-store", "no-cache", "private", "must-revalidate", "proxy-revalidate", "public"];

impl OriginPolicy {
    pub(crate) fn is(&self, flag: &str) -> bool {
        FLAGS[self.flag] == flag
    }

    pub(crate) fn fields(&self, version: u32) -> String {
        let mut control = vec![FLAGS[self.flag].to_owned()];
        for (name, seconds) in [
            ("max-age", self.max_age),
            ("s-maxage", self.s_maxage),
            ("stale-while-revalidate", self.swr),
            ("stale-if-error", self.sie),
        ] {
            control.extend(seconds.map(|seconds| format!("{name}={seconds}")));
        }
        let age = self.age.map_or(String::new(), |age| format!("Age: {age}\r\n"));
        let etag = if self.has_etag { format!("ETag: \"{version}\"\r\n") } else { String::new() };
        let vary = if self.varies { "Vary: X\r\n" } else { "" };
        format!("Cache-Control: {}\r\n{age}{etag}{vary}", control.join(", "))
    }
}

/// A request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientRequest {
    pub(crate) path: usize,
    pub(crate) x: Option<u8>,
    /// An index into [`CONTROLS`].
    pub(crate) control: usize,
    pub(crate) has_version: Option<u32>,
    pub(crate) is_authorized: bool,
    pub(crate) range: Option<Span>,
}

pub(crate) const CONTROLS: [&str; 9] = [
    "",
    "max-age=0",
    "no-cache",
    "no-store",
    "only-if-cached",
    "max-age=5",
    "min-fresh=5",
    "max-stale",
    "max-stale=5",
];

impl ClientRequest {
    pub(crate) fn is(&self, control: &str) -> bool {
        CONTROLS[self.control] == control
    }

    pub(crate) fn fields(&self) -> String {
        let line = |name: &str, value: Option<String>| {
            value.map_or(String::new(), |value| format!("{name}: {value}\r\n"))
        };
        let control = Some(CONTROLS[self.control]).filter(|control| !control.is_empty());
        line("X", self.x.map(|x| x.to_string()))
            + &line("Cache-Control", control.map(str::to_owned))
            + &line("If-None-Match", self.has_version.map(|version| format!("\"{version}\"")))
            + &line("Authorization", self.is_authorized.then(|| "Basic eA==".into()))
            + &line("Range", self.range.map(|(first, last)| format!("bytes={first}-{last}")))
    }
}

pub(crate) fn policy() -> impl Strategy<Value = OriginPolicy> {
    let seconds = || prop::option::of(prop::sample::select(vec![0, 1, 5, 10, 30]));
    (
        seconds(),
        seconds(),
        seconds(),
        seconds(),
        0..14usize,
        seconds(),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(max_age, s_maxage, swr, sie, flag, age, has_etag, varies)| OriginPolicy {
            max_age,
            // Less often, because it overrides the other lifetimes.
            s_maxage: s_maxage.filter(|seconds| seconds % 2 == 0),
            swr,
            sie,
            flag: if flag < FLAGS.len() { flag } else { 0 },
            age: age.filter(|age| *age < 10),
            has_etag,
            varies,
        })
}

pub(crate) fn client_request() -> impl Strategy<Value = ClientRequest> {
    let x = prop::option::of(0..2u8);
    let range = prop::sample::select(vec![(0, 4), (5, 9), (3, 6), (0, 6), (2, 2), (7, 9), WHOLE]);
    let range = prop::option::weighted(0.4, range);
    (0..2usize, x, 0..18usize, prop::option::weighted(0.4, 0..3u32), 0..8u8, range).prop_map(
        |(path, x, control, has_version, authorized, range)| ClientRequest {
            path,
            x,
            control: if control < CONTROLS.len() { control } else { 0 },
            has_version,
            is_authorized: authorized == 0,
            range,
        },
    )
}
