//! Performs the requests of the control socket.

use super::protocol::{
    CacheEntry, ControlEvent, ControlRequest, ErrorKind, Response, Tier, What, bytes_of, text_of,
};
use super::stores::Stores;
use pollux_cache::{Purge, Store, StoredResponse};
use pollux_http::fields::Fields;
use std::{
    io,
    time::{SystemTime, UNIX_EPOCH},
};

/// The reason why an answer is incomplete.
pub(super) enum AnswerError {
    /// The client has disconnected.
    Gone,
    /// The client receives this error.
    Client(ErrorKind, String),
}

impl From<io::Error> for AnswerError {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

/// Answers `request` and passes each event to `send`. Returns the number of events. A request is about all caches:
/// each site with a cache has its own, and an operator does not need to know which site has a URL.
pub(super) fn answer(
    all: &Stores,
    request: &ControlRequest,
    mut send: impl FnMut(&ControlEvent) -> io::Result<()>,
) -> Result<u64, AnswerError> {
    let stores = all.present();
    match request {
        ControlRequest::List { prefix, limit } => list(stores, &bytes(prefix)?, *limit, send),
        ControlRequest::Show { url } => {
            let url_bytes = url_bytes(url)?;
            let shown: Vec<_> =
                stores.iter().flat_map(|store| store.inspect(&url_bytes, now())).collect();
            if shown.is_empty() {
                return Err(AnswerError::Client(
                    ErrorKind::NotStored,
                    format!("{url} is not stored"),
                ));
            }
            for one in &shown {
                send(&ControlEvent::Response(response(one)))?;
            }
            Ok(shown.len() as u64)
        }
        ControlRequest::Purge { what } => {
            let count = purge(stores, what)?;
            tracing::info!("purged from the cache: {count} responses, {what:?}");
            send(&ControlEvent::Purged { responses: count as u64 })?;
            Ok(1)
        }
        ControlRequest::Statistics {} => {
            let counters = all.statistics().unwrap_or_default();
            let counters = counters.iter().map(|(name, value)| (name.into(), value)).collect();
            send(&ControlEvent::Statistics { counters })?;
            Ok(1)
        }
        // The main thread handles these: see `super::tasks`.
        ControlRequest::Reload {} | ControlRequest::Upgrade {} => Err(not_here()),
    }
}

/// Returns the error for a request that only a server process can fulfil.
pub(super) fn not_here() -> AnswerError {
    let message = "this server runs inside another program, which manages it".into();
    AnswerError::Client(ErrorKind::Rejected, message)
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn bytes(text: &str) -> Result<Vec<u8>, AnswerError> {
    let no_bytes = || "a character above U+00FF stands for no byte".into();
    bytes_of(text).ok_or_else(|| AnswerError::Client(ErrorKind::BadRequest, no_bytes()))
}

fn url_bytes(url: &str) -> Result<Vec<u8>, AnswerError> {
    let bytes = bytes(url)?;
    if pollux_cache::key_from_url(&bytes).is_none() {
        let message = format!(
            "{url} is no URL of this cache: they are http://HOST[:PORT]/PATH, or https:// with TLS"
        );
        return Err(AnswerError::Client(ErrorKind::BadRequest, message));
    }
    Ok(bytes)
}

fn list(
    stores: &[Store],
    prefix: &[u8],
    limit: Option<u64>,
    mut send: impl FnMut(&ControlEvent) -> io::Result<()>,
) -> Result<u64, AnswerError> {
    let mut count = 0;
    for store in stores {
        let mut walk = store.walk(prefix);
        while let Some(batch) = walk.next_batch(now()) {
            for entry in batch {
                if limit.is_some_and(|limit| count >= limit) {
                    return Ok(count);
                }
                send(&ControlEvent::Entry(CacheEntry {
                    url: text_of(&entry.url),
                    variants: entry.variants as u64,
                    status: entry.status,
                    bytes: entry.bytes,
                    age: entry.age,
                    ttl: entry.ttl,
                    hits: entry.hits.into(),
                    tier: tier(entry.tier),
                }))?;
                count += 1;
            }
        }
    }
    Ok(count)
}

fn purge(stores: &[Store], what: &What) -> Result<usize, AnswerError> {
    let text = match what {
        What::Url(url) => url_bytes(url)?,
        What::Prefix(text) | What::SurrogateKey(text) => bytes(text)?,
        What::All => Vec::new(),
    };
    let purge = |store: &Store| {
        store.purge(match what {
            What::Url(_) => Purge::Url(&text),
            What::Prefix(_) => Purge::Prefix(&text),
            What::SurrogateKey(_) => Purge::Tag(&text),
            What::All => Purge::Everything,
        })
    };
    Ok(stores.iter().map(purge).sum())
}

fn tier(tier: pollux_cache::Tier) -> Tier {
    match tier {
        pollux_cache::Tier::Memory => Tier::Memory,
        pollux_cache::Tier::Disk => Tier::Disk,
        pollux_cache::Tier::Both => Tier::Both,
    }
}

fn response(shown: &StoredResponse) -> Response {
    let lines = shown.vary.split(|&b| b == b'\n').filter(|line| !line.is_empty());
    let vary = lines.map(|line| match line.iter().position(|&b| b == b':') {
        Some(colon) => (text_of(&line[..colon]), Some(text_of(&line[colon + 1..]))),
        None => (text_of(line), None),
    });
    let fields = Fields::new(&shown.fields);
    Response {
        url: text_of(&shown.url),
        tier: tier(shown.tier),
        status: shown.status,
        fields: fields.map(|field| (text_of(field.name), text_of(field.value))).collect(),
        vary: vary.collect(),
        came_at: shown.received_at,
        initial_age: shown.initial_age,
        age: shown.age,
        lifetime: shown.lifetime,
        is_heuristic: shown.is_heuristic,
        ttl: shown.ttl,
        no_cache: shown.is_no_cache,
        forbids_stale: shown.forbids_stale,
        stale_while_revalidate: shown.stale_while_revalidate,
        stale_if_error: shown.stale_if_error,
        content_length: shown.content_length,
        bytes: shown.bytes,
        hits: shown.hits.into(),
    }
}
