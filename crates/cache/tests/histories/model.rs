//! The rules of RFC 9111 as a list of records that is searched from end to end, and nothing clever.

use crate::bench::{Bench, Got, reply, request};
use pollux_cache::Config;
use proptest::prelude::*;

/// The first and the last octet of a part.
type Span = (usize, usize);

/// Octets of each version of a resource.
const SIZE: usize = 10;
const WHOLE: Span = (0, SIZE - 1);

/// What a resource is at a version: no two have an octet in common at any place.
fn body(version: u32, span: Span) -> String {
    let octet = |at: usize| char::from(b'a' + ((version as usize + 2 * at) % 26) as u8);
    (span.0..=span.1).map(octet).collect()
}

/// What the origin says of how its answer may be kept.
#[derive(Clone, Copy, Debug)]
struct Says {
    max_age: Option<u32>,
    s_maxage: Option<u32>,
    swr: Option<u32>,
    sie: Option<u32>,
    /// An index into [`FLAGS`].
    flag: usize,
    age: Option<u32>,
    has_etag: bool,
    varies: bool,
}

const FLAGS: [&str; 7] =
    ["x", "no-store", "no-cache", "private", "must-revalidate", "proxy-revalidate", "public"];

impl Says {
    fn is(&self, flag: &str) -> bool {
        FLAGS[self.flag] == flag
    }

    fn fields(&self, version: u32) -> String {
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

/// What a client asks for.
#[derive(Clone, Copy, Debug)]
struct Wants {
    path: usize,
    x: Option<u8>,
    /// An index into [`CONTROLS`].
    control: usize,
    has_version: Option<u32>,
    is_authorized: bool,
    range: Option<Span>,
}

const CONTROLS: [&str; 9] = [
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

impl Wants {
    fn is(&self, control: &str) -> bool {
        CONTROLS[self.control] == control
    }

    fn fields(&self) -> String {
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

#[derive(Clone, Copy, Debug)]
enum Step {
    Get(Wants, Says),
    /// From an origin that is gone.
    GetInVain(Wants),
    Post(usize),
    /// The resource changes.
    Change(usize),
    Pass(u64),
}

/// A stored response.
#[derive(Clone, Debug)]
struct Stored {
    path: usize,
    x: Option<u8>,
    says: Says,
    version: u32,
    came_at: u64,
    /// All of it, or a part.
    span: Span,
}

impl Stored {
    /// §3.3
    fn has(&self, wants: &Wants) -> bool {
        let (first, last) = wants.range.unwrap_or(WHOLE);
        self.span == WHOLE || self.span.0 <= first && last <= self.span.1
    }

    /// It may not be used before the origin has been asked.
    fn is_of_no_use_at_once(&self) -> bool {
        self.late(self.came_at) >= 0 || self.says.is("no-cache")
    }

    /// The same variant of the same resource.
    fn is_for_the_same_as(&self, other: &Self) -> bool {
        self.path == other.path
            && self.says.varies == other.says.varies
            && (!self.says.varies || self.x == other.x)
    }

    fn lifetime(&self) -> i64 {
        self.says.s_maxage.or(self.says.max_age).unwrap_or(0).into()
    }

    fn age(&self, now: u64) -> i64 {
        (now - self.came_at) as i64 + i64::from(self.says.age.unwrap_or(0))
    }

    fn late(&self, now: u64) -> i64 {
        self.age(now) - self.lifetime()
    }

    fn is_strict(&self) -> bool {
        self.says.is("must-revalidate")
            || self.says.is("proxy-revalidate")
            || self.says.is("no-cache")
    }
}

#[derive(Default)]
struct Model {
    stored: Vec<Stored>,
    versions: [u32; 2],
    /// Of each path: failures in a row, and until when nobody asks.
    trouble: [(u32, u64); 2],
    /// Until then, a client's conditions are passed on: what came lately was of no use to others.
    apart_until: [u64; 2],
}

/// What is expected: the status, the octets, whether the origin was asked.
#[derive(Debug, PartialEq, Eq)]
struct Expected {
    status: u16,
    body: Option<String>,
    is_asked: bool,
}

impl Expected {
    fn page(status: u16, is_asked: bool) -> Self {
        Self { status, body: None, is_asked }
    }
}

impl Model {
    fn find(&self, wants: &Wants) -> Option<Stored> {
        let is_match = |stored: &&Stored| {
            stored.path == wants.path && (!stored.says.varies || stored.x == wants.x)
        };
        self.stored.iter().rev().find(is_match).cloned()
    }

    /// §4: may it be used without asking? `Err`: no, and whether that is because it is stale.
    fn usable(&self, stored: &Stored, wants: &Wants, now: u64) -> Result<bool, bool> {
        let late = stored.late(now);
        if stored.says.is("no-cache") {
            return Err(true);
        }
        if wants.is("no-cache")
            || wants.is("max-age=0")
            || wants.is("max-age=5") && stored.age(now) > 5
            || wants.is("min-fresh=5") && -late < 5
        {
            return Err(false);
        }
        let is_strict = stored.is_strict();
        let may_be_stale = !is_strict && stored.says.s_maxage.is_none();
        if late < 0
            || may_be_stale && (wants.is("max-stale") || wants.is("max-stale=5") && late <= 5)
        {
            return Ok(false);
        }
        let within = |seconds: Option<u32>| {
            !is_strict && seconds.is_some_and(|seconds| seconds > 0 && late <= seconds.into())
        };
        if within(stored.says.swr) {
            return Ok(true);
        }
        let backs_off = self.trouble[stored.path].1 > now;
        if backs_off && within(stored.says.sie) { Ok(false) } else { Err(true) }
    }

    /// What who has the whole, the origin or the store, answers; with a part if `takes_ranges`.
    fn answer(
        wants: &Wants,
        says: &Says,
        version: u32,
        takes_ranges: bool,
        is_asked: bool,
    ) -> Expected {
        if says.has_etag && wants.has_version == Some(version) {
            return Expected::page(304, is_asked);
        }
        let (status, span) = match wants.range.filter(|_| takes_ranges) {
            Some(span) => (206, span),
            None => (200, WHOLE),
        };
        Expected { status, body: Some(body(version, span)), is_asked }
    }

    fn get(&mut self, wants: &Wants, says: Option<&Says>, now: u64) -> Expected {
        if wants.is("no-store") {
            return self.pass(wants, says, now);
        }
        let stored = self.find(wants);
        let usable = stored.as_ref().map(|stored| match self.usable(stored, wants, now) {
            // A part is not refreshed in the background.
            Ok(true) if stored.span != WHOLE => Err(true),
            _ if !stored.has(wants) => Err(true),
            usable => usable,
        });
        if let (Some(stored), Some(Ok(refreshes))) = (&stored, &usable) {
            // A refresh is answered at once, by an origin that says the same.
            let backs_off = self.trouble[wants.path].1 > now;
            let answer = Self::answer(wants, &stored.says, stored.version, true, false);
            if *refreshes && !backs_off {
                match says {
                    Some(says) => {
                        self.receive(wants, says, Some(stored), now);
                    }
                    None => self.fail(wants.path, now),
                }
            }
            return answer;
        }
        if wants.is("only-if-cached") {
            return Expected::page(504, false);
        }
        let beginning = stored.as_ref().map(|stored| {
            let is_fresh = stored.late(now) < 0 && self.usable(stored, wants, now) == Ok(false);
            let wants_all = wants.range.is_none() && wants.has_version.is_none();
            let is_beginning = stored.span != WHOLE && stored.span.0 == 0 && stored.says.has_etag;
            (stored.clone(), is_fresh && wants_all && is_beginning)
        });
        // A part is not validated, and nothing to stand in.
        let stored = stored.filter(|stored| stored.span == WHOLE);
        let Some(says) = says else {
            self.fail(wants.path, now);
            // RFC 5861 §4: whatever freshness the client wishes for.
            let may_stand_in = usable.is_some() && !wants.is("no-cache");
            let stands_in = stored.filter(|stored| {
                let late = stored.late(now);
                let sie = stored.says.sie.unwrap_or(0);
                may_stand_in && !stored.is_strict() && sie > 0 && late <= sie.into()
            });
            return match stands_in {
                Some(stored) => Self::answer(wants, &stored.says, stored.version, true, true),
                None => Expected::page(502, true),
            };
        };
        let version = self.versions[wants.path];
        // The beginning of a whole: only the rest is asked for, if that is still of the same.
        if let Some((old, true)) = beginning
            && says.has_etag
            && old.version == version
        {
            self.trouble[wants.path] = (0, 0);
            self.receive_part(wants, says, (old.span.1 + 1, SIZE - 1), now);
            return Self::answer(wants, says, version, false, true);
        }
        let is_apart = self.apart_until[wants.path] > now;
        let is_conditional = wants.has_version.is_some();
        if stored.is_none() && (wants.range.is_some() || is_conditional && is_apart) {
            // As the client asks; the origin may say that it has it already, and nothing else.
            let answer = Self::answer(wants, says, version, true, true);
            self.trouble[wants.path] = (0, 0);
            match (answer.status, wants.range) {
                (304, _) if says.is("no-store") => self.apart_until[wants.path] = now + 10,
                (304, _) => {}
                (_, Some(span)) => self.receive_part(wants, says, span, now),
                (_, None) => {
                    self.receive(wants, says, None, now);
                }
            }
            return answer;
        }
        // What the store confirms it can part; what comes from the origin is passed on whole.
        let is_304 = self.receive(wants, says, stored.as_ref(), now);
        Self::answer(wants, says, version, is_304, true)
    }

    fn pass(&mut self, wants: &Wants, says: Option<&Says>, now: u64) -> Expected {
        let Some(says) = says else {
            self.fail(wants.path, now);
            return Expected::page(502, true);
        };
        self.trouble[wants.path] = (0, 0);
        Self::answer(wants, says, self.versions[wants.path], true, true)
    }

    fn fail(&mut self, path: usize, now: u64) {
        let (failures, _) = self.trouble[path];
        let wait = (1u64 << failures.min(10)).min(30);
        self.trouble[path] = (failures + 1, now + wait);
    }

    /// §3, §3.5: why it is not stored, if it is not; whether that is a word about the URL.
    fn refusal(wants: &Wants, new: &Stored) -> Option<bool> {
        let says = &new.says;
        let is_for_all = says.is("public") || says.is("must-revalidate") || says.s_maxage.is_some();
        let may_be_stale = says.swr.is_some() || says.sie.unwrap_or(0) > 0;
        let is_usable = new.lifetime() > 0 && !says.is("no-cache")
            || says.has_etag
            || may_be_stale && !says.is("no-cache");
        if says.is("no-store") || says.is("private") {
            Some(true)
        } else if wants.is_authorized && !is_for_all {
            Some(false)
        } else {
            (!is_usable).then_some(true)
        }
    }

    /// §3: the origin's answer, whole, stored or not; or its 304, which is told. `old` is what the
    /// question was about.
    fn receive(&mut self, wants: &Wants, says: &Says, old: Option<&Stored>, now: u64) -> bool {
        self.trouble[wants.path] = (0, 0);
        let version = self.versions[wants.path];
        let is_304 = says.has_etag && old.is_some_and(|o| o.says.has_etag && o.version == version);
        let (path, x) = (wants.path, wants.x);
        let new = Stored { path, x, says: *says, version, came_at: now, span: WHOLE };
        let is_old = |other: &Stored| old.is_some_and(|old| old.is_for_the_same_as(other));
        let refusal = Self::refusal(wants, &new);
        let is_refused = refusal == Some(true) && !is_304;
        if is_refused || (refusal.is_none() || is_304) && new.is_of_no_use_at_once() {
            self.apart_until[path] = now + 10;
        }
        match refusal {
            Some(true) => self.stored.retain(|other| !is_old(other)),
            Some(false) => {}
            None if is_304 => {
                // §3.2: a field that the 304 has not stays as it was. §4.1: what it varies by anew, the
                // request at hand tells.
                let old = old.expect("a 304 is about something").clone();
                let varies_anew = says.varies && !old.says.varies;
                let x = if varies_anew { wants.x } else { old.x };
                let says = Says { varies: says.varies || old.says.varies, ..*says };
                for other in self.stored.iter_mut().filter(|other| is_old(other)) {
                    *other = Stored { says, x, came_at: now, ..old.clone() };
                }
            }
            None => self.put(new),
        }
        is_304
    }

    /// §3.3, §3.4: a part, by itself or with that which is there.
    fn receive_part(&mut self, wants: &Wants, says: &Says, span: Span, now: u64) {
        let (path, x, version) = (wants.path, wants.x, self.versions[wants.path]);
        let mut new = Stored { path, x, says: *says, version, came_at: now, span };
        let refusal = Self::refusal(wants, &new);
        if refusal == Some(true) || refusal.is_none() && new.is_of_no_use_at_once() {
            self.apart_until[path] = now + 10;
        }
        if refusal.is_some() {
            return;
        }
        if let Some(old) = self.stored.iter().find(|old| old.is_for_the_same_as(&new)) {
            let has_same_tag = old.says.has_etag && says.has_etag && old.version == version;
            let touches = span.0 <= old.span.1 + 1 && old.span.0 <= span.1 + 1;
            if has_same_tag && touches {
                new.span = (span.0.min(old.span.0), span.1.max(old.span.1));
            }
        }
        self.put(new);
    }

    /// Instead of what is there for the same variant, and of what varies by other fields.
    fn put(&mut self, new: Stored) {
        self.stored.retain(|other| {
            other.path != new.path
                || other.says.varies == new.says.varies && !other.is_for_the_same_as(&new)
        });
        self.stored.push(new);
    }
}

fn says() -> impl Strategy<Value = Says> {
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
        .prop_map(|(max_age, s_maxage, swr, sie, flag, age, has_etag, varies)| Says {
            max_age,
            // Rarer, since it overrides so much.
            s_maxage: s_maxage.filter(|seconds| seconds % 2 == 0),
            swr,
            sie,
            flag: if flag < FLAGS.len() { flag } else { 0 },
            age: age.filter(|age| *age < 10),
            has_etag,
            varies,
        })
}

fn wants() -> impl Strategy<Value = Wants> {
    let x = prop::option::of(0..2u8);
    let range = prop::sample::select(vec![(0, 4), (5, 9), (3, 6), (0, 6), (2, 2), (7, 9), WHOLE]);
    let range = prop::option::weighted(0.4, range);
    (0..2usize, x, 0..18usize, prop::option::weighted(0.4, 0..3u32), 0..8u8, range).prop_map(
        |(path, x, control, has_version, authorized, range)| Wants {
            path,
            x,
            control: if control < CONTROLS.len() { control } else { 0 },
            has_version,
            is_authorized: authorized == 0,
            range,
        },
    )
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (wants(), says()).prop_map(|(wants, says)| Step::Get(wants, says)),
        2 => wants().prop_map(Step::GetInVain),
        1 => (0..2usize).prop_map(Step::Post),
        1 => (0..2usize).prop_map(Step::Change),
        4 => (0..12u64).prop_map(Step::Pass),
    ];
    prop::collection::vec(step, 1..60)
}

/// What an origin that is at `version` answers to the question.
fn origin(conditions: Option<&str>, own: &str, says: &Says, version: u32) -> String {
    let asked = conditions.unwrap_or(own);
    let fields = says.fields(version);
    if says.has_etag && asked.contains(&format!("If-None-Match: \"{version}\"\r\n")) {
        return reply(304, &fields, "");
    }
    let field = |name: &str| asked.lines().find_map(|line| line.strip_prefix(name));
    let is_same = |tag: &str| says.has_etag && tag == format!("\"{version}\"");
    let range = field("Range: bytes=").filter(|_| field("If-Range: ").is_none_or(is_same));
    let Some((first, last)) = range.and_then(|range| range.split_once('-')) else {
        return reply(200, &fields, &body(version, WHOLE));
    };
    let span = (first.parse().unwrap(), last.parse().unwrap_or(SIZE - 1));
    let told = format!("{fields}Content-Range: bytes {}-{}/{SIZE}\r\n", span.0, span.1);
    reply(206, &told, &body(version, span))
}

/// Sends the request, and answers what goes on as an origin would; a refresh too.
fn send(bench: &mut Bench, wants: &Wants, says: Option<&Says>, version: u32) -> Got {
    use pollux_cache::{Conditions, Decision, Fetch};
    let fields = wants.fields();
    let head = request(&format!("GET /{}", wants.path), &fields);
    let answer = |fetch: &Fetch| {
        let conditions = match &fetch.conditions {
            Conditions::Own => None,
            Conditions::Replaced(lines) => Some(String::from_utf8_lossy(lines).into_owned()),
        };
        says.map(|says| origin(conditions.as_deref(), &fields, says, version))
    };
    match bench.ask(&head, None, false) {
        Decision::Fetch(fetch) => {
            let wire = answer(&fetch);
            bench.fetched(&head, fetch, wire.as_deref())
        }
        Decision::AnswerAndRefresh(hit, fetch) => {
            let got = bench.answered(&head, &hit);
            let wire = answer(&fetch);
            bench.fetched(&head, fetch, wire.as_deref());
            got
        }
        Decision::Answer(hit) => bench.answered(&head, &hit),
        Decision::OnlyIfCached => Got { status: 504, ..Got::default() },
        Decision::Wait => panic!("nobody else asks"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_cache_does_what_the_rfc_says(steps in steps()) {
        let mut bench = Bench::new(Config::default());
        let mut model = Model::default();
        for (at, step) in steps.iter().enumerate() {
            let (wants, says) = match step {
                Step::Pass(seconds) => {
                    bench.now += seconds;
                    continue;
                }
                Step::Change(path) => {
                    model.versions[*path] += 1;
                    continue;
                }
                Step::Post(path) => {
                    let head = request(&format!("POST /{path}"), "");
                    bench.exchange(&head, Some(&reply(200, "", "")));
                    model.stored.retain(|stored| stored.path != *path);
                    model.trouble[*path] = (0, 0);
                    continue;
                }
                Step::Get(wants, says) => (wants, Some(says)),
                Step::GetInVain(wants) => (wants, None),
            };
            let version = model.versions[wants.path];
            let expected = model.get(wants, says, bench.now);
            let got = send(&mut bench, wants, says, version);
            let body = Some(got.text().to_owned()).filter(|body| !body.is_empty());
            let got = Expected { status: got.status, body, is_asked: !got.is_hit() };
            prop_assert_eq!(got, expected, "step {} of {:#?}", at, steps);
        }
        prop_assert_eq!(bench.cache.store().statistics().fetching, 0);
    }
}
