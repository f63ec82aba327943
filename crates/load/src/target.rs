//! URLs, and the bytes of their requests, written before the run.

use crate::source::Sources;
use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use pollux_http::{
    output::ByteCounter,
    request::{WriteError, Writer},
    text::without_mark,
};
use std::{fmt, net::SocketAddr, str::FromStr};

/// An absolute `http` or `https` URL, split where a request needs it (RFC 9110 §4.2.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// The scheme is `https`.
    pub is_tls: bool,
    /// Host and port as given: the Host field.
    pub authority: String,
    /// Host without brackets, for the resolver.
    pub host: String,
    /// The port; if none is given 80, or 443 for `https`.
    pub port: u16,
    /// Path and query, at least `/`: the request target.
    pub path: String,
}

impl FromStr for Url {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let scheme_end = text.find("://");
        let (rest, is_tls) = match scheme_end.map(|end| (text[..end].to_ascii_lowercase(), end)) {
            Some((scheme, end)) if scheme == "http" => (&text[end + 3..], false),
            Some((scheme, end)) if scheme == "https" => (&text[end + 3..], true),
            Some((scheme, _)) => {
                bail!("{text}: {scheme}:// is not supported, only http:// and https://")
            }
            None if text.starts_with("unix:") => {
                bail!("{text}: Unix sockets are not supported, only http:// and https:// over TCP")
            }
            None => bail!("{text:?} is not an absolute URL; write http://{text}"),
        };
        let (authority, path) = match rest.find(['/', '?', '#']) {
            Some(end) => rest.split_at(end),
            None => (rest, ""),
        };
        ensure!(
            !authority.contains('@'),
            "{text}: user names in URLs are not supported, use --header 'Authorization: …'"
        );
        let (host, port) = split_port(authority).map_err(|error| anyhow!("{text}: {error:#}"))?;
        let path = path.split('#').next().unwrap_or_default();
        let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
        // A URL that cannot be requested is an error here, because this error names it.
        match Writer::new(&mut ByteCounter::default(), b"GET", path.as_bytes()) {
            Ok(head) => head.leave_open(),
            Err(error) => bail!("{text}: {error}"),
        }
        let port = port.unwrap_or(if is_tls { 443 } else { 80 });
        Ok(Self { is_tls, authority: authority.to_owned(), host, port, path })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin(), self.path)
    }
}

impl Url {
    /// Scheme and authority: the part before the path.
    pub fn origin(&self) -> String {
        let scheme = if self.is_tls { "https" } else { "http" };
        format!("{scheme}://{}", self.authority)
    }

    /// Whether one run may use both URLs.
    pub fn has_origin_of(&self, other: &Self) -> bool {
        self.is_tls == other.is_tls && self.has_address_of(other)
    }

    /// Whether both URLs have the same host and port; a URL without a port has that of its scheme, and
    /// the case of a host is of no importance (RFC 9110 §4.2.3).
    pub fn has_address_of(&self, other: &Self) -> bool {
        self.port == other.port && self.host.eq_ignore_ascii_case(&other.host)
    }
}

/// Splits `host:port`, `[v6]:port`, or either without a port.
fn split_port(authority: &str) -> Result<(String, Option<u16>)> {
    let (host, port) = if let Some(bracketed) = authority.strip_prefix('[') {
        let (host, rest) = bracketed.split_once(']').context("the [ has no ]")?;
        match rest {
            "" => (host, None),
            _ => (host, Some(rest.strip_prefix(':').context("expected :PORT after the ]")?)),
        }
    } else {
        match authority.rsplit_once(':') {
            Some((host, _)) if host.contains(':') => bail!("an IPv6 address goes in brackets"),
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        }
    };
    ensure!(!host.is_empty(), "the host is missing");
    ensure!(
        host.bytes().all(|byte| byte.is_ascii_graphic()),
        "the host holds a character that is not printable ASCII"
    );
    let port = match port {
        None | Some("") => None,
        Some(port) => Some(
            // Digits only: parse() would also accept a sign.
            port.parse()
                .ok()
                .filter(|&number| number > 0 && port.bytes().all(|byte| byte.is_ascii_digit()))
                .with_context(|| format!("{port:?} is not a port (1 to 65535)"))?,
        ),
    };
    Ok((host.to_owned(), port))
}

/// Checks that `authority` is `HOST:PORT`, as `pollux idle` takes it.
///
/// # Errors
/// The text is neither `HOST:PORT` nor a URL.
pub fn check_authority(authority: &str) -> Result<()> {
    let (_, port) = split_port(authority).map_err(|error| anyhow!("{authority}: {error:#}"))?;
    ensure!(port.is_some(), "{authority}: expected HOST:PORT, or a URL");
    Ok(())
}

/// The address of `host`. If a name has several addresses (`localhost` has two families), the first
/// that accepts a connection, or the first when none does. Of two families, that of `sources` is taken.
///
/// # Errors
/// A name that does not resolve.
pub fn resolve(host: &str, port: u16, sources: Option<Sources>) -> Result<SocketAddr> {
    const PATIENCE: std::time::Duration = std::time::Duration::from_secs(1);
    let addresses = pollux_sys::resolve(host, port)
        .with_context(|| format!("the host {host:?} cannot be resolved"))?;
    let addresses = reachable(addresses, sources);
    let first = *addresses.first().with_context(|| format!("{host:?} has no address"))?;
    if addresses.len() == 1 {
        return Ok(first); // no connection that the server would count
    }
    let accepting = addresses
        .iter()
        .find(|address| std::net::TcpStream::connect_timeout(address, PATIENCE).is_ok());
    Ok(*accepting.unwrap_or(&first))
}

/// The addresses of the family of `sources`. If there are none, all of them: the error of
/// [`Sources::check`] names the contradiction.
fn reachable(mut addresses: Vec<SocketAddr>, sources: Option<Sources>) -> Vec<SocketAddr> {
    let is_reachable =
        |address: &SocketAddr| sources.is_none_or(|sources| sources.has_family_of(address.ip()));
    if addresses.iter().any(is_reachable) {
        addresses.retain(is_reachable);
    }
    addresses
}

/// Several URLs of one server, drawn by weight or taken in turn.
#[derive(Clone, Debug)]
pub struct Targets {
    urls: Vec<Url>,
    /// The cumulative sums of the weights, in order; empty if none is drawn.
    cumulative: Vec<f64>,
}

/// The most URLs of one run.
pub const MAX_URLS: usize = 1_000_000;

impl Targets {
    /// All of `urls`, each with its weight.
    ///
    /// # Errors
    /// When there are no URLs, too many, URLs of several servers, or a weight that is not above 0.
    pub fn new(urls: Vec<(Url, f64)>) -> Result<Self> {
        let Some((first, _)) = urls.first() else { bail!("no URL is given") };
        ensure!(urls.len() <= MAX_URLS, "{} URLs; at most {MAX_URLS}", urls.len());
        let mut sum = 0.0;
        let mut cumulative = Vec::with_capacity(urls.len());
        for (url, weight) in &urls {
            ensure!(
                url.has_origin_of(first),
                "{url}: one run drives one server, and the first URL is of {}",
                first.origin()
            );
            ensure!(*weight > 0.0 && weight.is_finite(), "{url}: the weight {weight} is not > 0");
            sum += weight;
            cumulative.push(sum);
        }
        if urls.len() == 1 {
            cumulative.clear();
        }
        Ok(Self { urls: urls.into_iter().map(|(url, _)| url).collect(), cumulative })
    }

    /// All of `urls`, requested one after the other in their order, and again from the first.
    ///
    /// # Errors
    /// As [`Targets::new`], and when they have different weights, which would have no meaning.
    pub fn in_turn(urls: Vec<(Url, f64)>) -> Result<Self> {
        let mut weights = urls.iter().map(|(_, weight)| weight);
        let first = weights.next();
        ensure!(
            weights.all(|weight| Some(weight) == first),
            "--in-turn requests all URLs equally often: leave their weights out"
        );
        Ok(Self { cumulative: Vec::new(), ..Self::new(urls)? })
    }

    /// Reads a URL file: a line is a URL or a path of `base`'s server, then an optional weight;
    /// empty lines and lines that begin with `#` are ignored, as is a byte order mark.
    ///
    /// # Errors
    /// The error names the line.
    pub fn parse_file(text: &str, base: Option<&Url>) -> Result<Vec<(Url, f64)>> {
        let mut urls = Vec::new();
        for (index, line) in without_mark(text).lines().enumerate() {
            let mut words = line.split_whitespace();
            let Some(word) = words.next().filter(|word| !word.starts_with('#')) else { continue };
            let entry = || -> Result<(Url, f64)> {
                let url = match (word.starts_with('/'), base) {
                    (true, Some(base)) => format!("{}{word}", base.origin()).parse()?,
                    (true, None) => bail!("{word} is a path, and no URL is given beside the file"),
                    (false, _) => word.parse()?,
                };
                let weight = match words.next() {
                    None => 1.0,
                    Some(weight) => weight.parse().with_context(|| format!("weight {weight:?}"))?,
                };
                ensure!(words.next().is_none(), "expected URL [WEIGHT]");
                Ok((url, weight))
            }();
            urls.push(entry.with_context(|| format!("line {}", index + 1))?);
        }
        Ok(urls)
    }

    /// The URLs.
    pub fn urls(&self) -> &[Url] {
        &self.urls
    }

    /// The index of the URL that arrival `index` requests: by weight, decided by the seed and the
    /// arrival's number alone, so that threads and clients need no communication; or in turn.
    #[inline]
    pub fn choose(&self, seed: u64, index: u64) -> usize {
        let Some(&total) = self.cumulative.last() else {
            // Usually there is one URL, and the request needs no division.
            let urls = self.urls.len() as u64;
            return if urls == 1 { 0 } else { (index % urls) as usize };
        };
        // The top 53 bits are a uniform number in [0, 1).
        let uniform = (mix(seed ^ index.wrapping_mul(GOLDEN)) >> 11) as f64 / (1u64 << 53) as f64;
        let at = uniform * total;
        self.cumulative.partition_point(|&sum| sum <= at).min(self.urls.len() - 1)
    }
}

/// 2^64 divided by the golden ratio: SplitMix64's step.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// SplitMix64's finaliser (Steele, Lea, Flood, OOPSLA 2014): all bits of the result depend on all
/// bits of the argument.
fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// The form of requests.
#[derive(Clone, Debug)]
pub struct RequestOptions {
    /// The method, such as `GET`.
    pub method: String,
    /// Fields in addition to the generator's own; a field of the same name replaces the generator's.
    pub headers: Vec<(String, String)>,
    /// The content; Content-Length is added when it is not empty or the method is POST, PUT or
    /// PATCH.
    pub body: Vec<u8>,
}

impl Default for RequestOptions {
    fn default() -> Self {
        Self { method: "GET".into(), headers: Vec::new(), body: Vec::new() }
    }
}

impl RequestOptions {
    /// Checks that requests can be written.
    ///
    /// # Errors
    /// A method or field name that is no token, a field value with a control character, a framing field
    /// (RFC 9110 §5.5, §5.6.2), which the generator writes itself; CONNECT.
    pub fn check(&self) -> Result<()> {
        ensure!(self.method != "CONNECT", "--method CONNECT makes a tunnel, not a request");
        let mut scratch = Vec::new();
        let method = self.method.as_bytes();
        let Ok(mut head) = Writer::new(&mut scratch, method, b"/") else {
            bail!("--method {:?} is not a method", self.method);
        };
        for (name, value) in &self.headers {
            head = match head.field(name.as_bytes(), value.as_bytes()) {
                Ok(head) => head,
                Err(WriteError::Framing) => {
                    bail!("--header {name}: the generator writes it itself, from --body")
                }
                Err(error) => bail!("--header {name:?}: {error}"),
            };
        }
        head.leave_open();
        Ok(())
    }

    /// Whether the fields ask the server to close: then no further request may follow on the connection,
    /// whatever the server answers (RFC 9112 §9.6).
    pub fn asks_for_close(&self) -> bool {
        let is_close = |option: &str| option.trim().eq_ignore_ascii_case("close");
        self.headers
            .iter()
            .filter(|(name, _)| name.eq_ignore_ascii_case("Connection"))
            .any(|(_, value)| value.split(',').any(is_close))
    }

    /// The bytes of a request for `url`. `last`: no further request follows on its connection, so it
    /// has `Connection: close` (RFC 9112 §9.6).
    ///
    /// # Errors
    /// As [`RequestOptions::check`].
    pub fn write(&self, url: &Url, last: bool) -> Result<Vec<u8>> {
        let mut bytes = self.write_head(url, last)?;
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(&self.body);
        Ok(bytes)
    }

    /// The request line and the fields, without the empty line that would end the head.
    ///
    /// # Errors
    /// As [`RequestOptions::check`].
    pub fn write_head(&self, url: &Url, last: bool) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let is_own =
            |name: &str| self.headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(name));
        let mut head = Writer::new(&mut bytes, self.method.as_bytes(), url.path.as_bytes())?;
        for (name, value) in [
            ("Host", url.authority.as_str()),
            ("User-Agent", concat!("pollux/", env!("CARGO_PKG_VERSION"))),
        ] {
            if !is_own(name) {
                head = head.field(name.as_bytes(), value.as_bytes())?;
            }
        }
        if last && !is_own("Connection") {
            head = head.close();
        }
        if !self.body.is_empty() || ["POST", "PUT", "PATCH"].contains(&self.method.as_str()) {
            head = head.content_length(self.body.len() as u64);
        }
        for (name, value) in &self.headers {
            head = head.field(name.as_bytes(), value.as_bytes())?;
        }
        head.leave_open();
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Url {
        text.parse().unwrap()
    }

    #[test]
    fn urls_are_split_where_a_request_needs_it() {
        let plain = url("http://example.org");
        assert_eq!((plain.port, plain.path.as_str()), (80, "/"));
        let full = url("HTTP://[::1]:8080/a/b?c=d#e");
        assert_eq!(full.authority, "[::1]:8080");
        assert_eq!((full.host.as_str(), full.port, full.path.as_str()), ("::1", 8080, "/a/b?c=d"));
        assert_eq!(url("http://h?q").path, "/?q");
        assert_eq!(url("http://h:/").port, 80);
        let tls = url("HTTPS://h/x");
        assert_eq!((tls.is_tls, tls.port, tls.to_string().as_str()), (true, 443, "https://h/x"));
        assert!(!url("http://h:443/").has_origin_of(&url("https://h:443/")));
        assert!(url("http://h:443/").has_address_of(&url("https://h/")));
        assert!(!url("http://h/").has_address_of(&url("https://h/")));
        assert!(url("http://H/").has_origin_of(&url("http://h:80/")));
        assert!(!url("http://h/").has_origin_of(&url("http://h:81/")));
    }

    #[test]
    fn an_unusable_url_is_refused_with_the_reason() {
        for (text, part) in [
            ("ftp://h/", "ftp:// is not supported"),
            ("h/path", "write http://h/path"),
            ("http:///x", "host is missing"),
            ("http://h:0/", "not a port"),
            ("http://h:99999/", "not a port"),
            ("http://h:+80/", "not a port"),
            ("http://::1/", "brackets"),
            ("http://[::1/", "no ]"),
            ("http://u:p@h/", "user names"),
            ("http://h/a b", "percent-encoded"),
            ("http://h/ü", "percent-encoded"),
            ("http://h/<", "percent-encoded"),
        ] {
            // Only the outermost message: the command line shows no more.
            let error = text.parse::<Url>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn a_request_has_its_fields_once() {
        let mut options = RequestOptions::default();
        let text = String::from_utf8(options.write(&url("http://h:81/x"), true).unwrap()).unwrap();
        assert!(text.starts_with("GET /x HTTP/1.1\r\nHost: h:81\r\nUser-Agent: pollux/"));
        assert!(text.ends_with("\r\nConnection: close\r\n\r\n"), "{text}");
        assert!(!text.contains("Content-Length"));

        options.headers = vec![("host".into(), "other".into()), ("X-A".into(), "1".into())];
        options.method = "POST".into();
        options.body = b"hello".to_vec();
        let text = String::from_utf8(options.write(&url("http://h/"), false).unwrap()).unwrap();
        assert!(!text.contains("Host:") && text.contains("host: other\r\n"), "{text}");
        assert!(
            text.ends_with("Content-Length: 5\r\nhost: other\r\nX-A: 1\r\n\r\nhello"),
            "{text}"
        );
        assert!(!text.contains("Connection"));
    }

    #[test]
    fn fields_that_would_break_the_framing_are_refused() {
        let with = |name: &str, value: &str| RequestOptions {
            headers: vec![(name.into(), value.into())],
            ..Default::default()
        };
        assert!(with("X", "a b").check().is_ok());
        assert!(with("X Y", "a").check().is_err());
        assert!(with("X", "a\r\nY: b").check().is_err());
        assert!(with("content-length", "3").check().is_err());
        let method = RequestOptions { method: "GE T".into(), ..Default::default() };
        assert!(method.check().is_err());
        assert!(with("connection", "x, Close").asks_for_close());
        assert!(!with("Connection", "keep-alive").asks_for_close());
    }

    #[test]
    fn weights_decide_how_often() {
        let base = url("http://h/");
        let list = "# weights\n/a 3\n\nhttp://h/b\n";
        let targets = Targets::new(Targets::parse_file(list, Some(&base)).unwrap()).unwrap();
        let mut counts = [0u32; 2];
        for index in 0..40_000 {
            counts[targets.choose(9, index)] += 1;
        }
        // 30,000 are expected, standard deviation 87.
        assert!((29_600..30_400).contains(&counts[0]), "{counts:?}");
        let again: Vec<_> = (0..100).map(|index| targets.choose(9, index)).collect();
        let other: Vec<_> = (0..100).map(|index| targets.choose(10, index)).collect();
        assert_ne!(again, other);
    }

    #[test]
    fn in_turn_requests_each_url_once_before_any_again() {
        let base = url("http://h/");
        let listed = |text: &str| Targets::parse_file(text, Some(&base)).unwrap();
        let targets = Targets::in_turn(listed("/a\n/b\n/c\n")).unwrap();
        let chosen: Vec<_> = (0..7).map(|index| targets.choose(index * 5, index)).collect();
        assert_eq!(chosen, [0, 1, 2, 0, 1, 2, 0]);
        let error = Targets::in_turn(listed("/a 2\n/b 3\n")).unwrap_err().to_string();
        assert!(error.contains("--in-turn") && error.contains("weights"), "{error}");
    }

    /// Regression test: the first line of such a file, as editors on Windows write it, was once no path.
    #[test]
    fn a_url_file_may_begin_with_a_byte_order_mark() {
        let text = "\u{feff}/a\r\n/b 2\r\n";
        let listed = Targets::parse_file(text, Some(&url("http://h/"))).unwrap();
        assert_eq!(listed, [(url("http://h/a"), 1.0), (url("http://h/b"), 2.0)]);
    }

    #[test]
    fn a_bad_url_file_names_its_line() {
        let base = url("http://h/");
        for (text, part) in [("/a\n/b x", "line 2"), ("/a 1 2", "line 1"), ("\nh:80/x", "line 2")] {
            let error = format!("{:#}", Targets::parse_file(text, Some(&base)).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
        assert!(Targets::new(vec![(url("http://h/"), 1.0), (url("http://i/"), 1.0)]).is_err());
        assert!(Targets::new(vec![(url("http://h/"), 0.0)]).is_err());
        assert!(Targets::new(vec![]).is_err());
    }

    #[test]
    fn host_and_port_resolve_without_a_connection() {
        assert_eq!(resolve("127.0.0.1", 81, None).unwrap().to_string(), "127.0.0.1:81");
        assert_eq!(resolve("::1", 81, None).unwrap().to_string(), "[::1]:81");
        assert!(check_authority("127.0.0.1:81").is_ok() && check_authority("[::1]:81").is_ok());
        assert!(check_authority("127.0.0.1").unwrap_err().to_string().contains("HOST:PORT"));
    }

    /// Regression test: --source 127.0.1.0/24 was once refused for a `localhost` whose first address is ::1.
    #[test]
    fn a_source_decides_between_the_families_of_a_name() {
        let both: [SocketAddr; 2] = ["[::1]:81", "127.0.0.1:81"].map(|text| text.parse().unwrap());
        let of = |source: Option<&str>, addresses: &[SocketAddr]| {
            reachable(addresses.to_vec(), source.map(|text| text.parse().unwrap()))
        };
        assert_eq!(of(None, &both), both);
        assert_eq!(of(Some("127.0.1.0/24"), &both), both[1..]);
        assert_eq!(of(Some("::1"), &both), both[..1]);
        assert_eq!(of(Some("::1"), &both[1..]), both[1..], "an error names both");
    }
}
