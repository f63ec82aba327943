//! Keys that change while the hub runs: a JWK set in a file, or at a URL. A separate thread checks for
//! changes, so that no worker waits for a disk or a network.

mod fetch;

use crate::{
    config::{HubConfig, KeySource},
    settings::KEY_BYTES_MAX,
};
use anyhow::Context;
use pollux_hub::token::KeySet;
use pollux_tls::read_operator_file;
use serde::{Deserialize, Serialize};
use std::{
    fmt, fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::mpsc::sync_channel,
    thread,
    time::{Duration, Instant},
};

/// The time between two checks of the thread whether the file has changed, and whether the hub has ended.
const PERIOD: Duration = Duration::from_secs(1);
/// The maximum time that the start waits for the first answer of a URL. A live upgrade must be over within ten seconds.
const START_WAIT: Duration = Duration::from_secs(3);
/// The pauses after a URL could not be fetched: the first pause, which doubles with each further failure, and
/// the longest pause.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The state of a file that shows a change: inode, seconds and nanoseconds of the modification time, length.
type FileState = (u64, i64, i64, u64);

/// The keys from a URL, for the new process of a live upgrade.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct FetchedKeys {
    pub(super) url: String,
    /// The JWK set.
    pub(super) text: String,
}

impl fmt::Debug for FetchedKeys {
    /// Shows the URL, never a key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FetchedKeys").field("url", &self.url).finish_non_exhaustive()
    }
}

struct KeyWatch {
    source: KeySource,
    authorities: Option<PathBuf>,
    interval: Duration,
    /// The text from which the present keys were read.
    text: Vec<u8>,
    file: Option<FileState>,
    /// The time of the next fetch of the URL.
    due_at: Instant,
    pause: Duration,
}

/// Starts the thread, if the keys have a source that may change. The thread calls `install` with new keys and
/// their text, and before each check without keys. It ends when `install` returns false, because the hub has ended.
///
/// Waits until a URL was fetched for the first time, whatever the outcome: without its keys the hub would refuse every
/// token, and clients that connect again after a restart would give up.
///
/// # Errors
/// The thread cannot be started.
pub(super) fn watch(
    config: &HubConfig,
    install: impl Fn(Option<(&KeySet, &[u8])>) -> bool + Send + 'static,
) -> anyhow::Result<()> {
    let Some(source) = config.key_source.clone() else { return Ok(()) };
    let (send, first_look) = sync_channel(1);
    let mut watch = KeyWatch {
        source,
        authorities: config.key_authorities.clone(),
        interval: config.key_interval,
        text: Vec::new(),
        file: None,
        due_at: Instant::now(),
        pause: FIRST_PAUSE,
    };
    let run = move || {
        while install(None) {
            if let Some(keys) = watch.look() {
                install(Some((&keys, watch.text.as_slice())));
            }
            // The start waits only for the first check.
            let _ = send.try_send(());
            thread::sleep(PERIOD);
        }
    };
    thread::Builder::new().name("hub-keys".into()).spawn(run).context("starting hub-keys")?;
    if let Some(source @ KeySource::Url(_)) = &config.key_source
        && first_look.recv_timeout(START_WAIT).is_err()
    {
        tracing::warn!("--hub-jwks: {source} does not answer yet; the hub starts without keys");
    }
    Ok(())
}

impl KeyWatch {
    /// Returns new keys, if there are any. If they cannot be read, the present keys stay in use.
    fn look(&mut self) -> Option<KeySet> {
        let read = match &self.source {
            KeySource::File(path) => match state(path) {
                // A pipe was read at the start, and has nothing more.
                Ok(None) => return None,
                Ok(state) if self.file == state => return None,
                Ok(state) => {
                    self.file = state;
                    read_operator_file(path, KEY_BYTES_MAX)
                        .map(|mut bytes| std::mem::take(&mut *bytes))
                        .with_context(|| path.display().to_string())
                }
                Err(error) if self.file.is_some() => {
                    // The error is reported once, not each second.
                    self.file = None;
                    Err(error)
                }
                Err(_) => return None,
            },
            KeySource::Url(_) if Instant::now() < self.due_at => return None,
            KeySource::Url(url) => fetch::fetch(url, self.authorities.as_deref()),
        };
        let outcome = read.and_then(|text| self.parse(text));
        let next = match &outcome {
            Ok(_) => {
                self.pause = FIRST_PAUSE;
                self.interval
            }
            Err(error) => {
                tracing::warn!("--hub-jwks: {error:#}; the hub keeps the keys that it has");
                let pause = self.pause;
                self.pause = (pause * 2).min(LONGEST_PAUSE);
                pause.min(self.interval)
            }
        };
        self.due_at = Instant::now() + next;
        outcome.ok().flatten()
    }

    /// Returns the keys of a text; `None` if they are the present ones.
    fn parse(&mut self, text: Vec<u8>) -> anyhow::Result<Option<KeySet>> {
        if text == self.text {
            return Ok(None);
        }
        let keys = KeySet::parse_jwks(&text).with_context(|| self.source.to_string())?;
        tracing::info!("--hub-jwks: {} keys from {}", keys.len(), self.source);
        self.text = text;
        Ok(Some(keys))
    }
}

/// Returns the state of a file; `None` for a pipe or a device.
fn state(path: &Path) -> anyhow::Result<Option<FileState>> {
    let metadata = fs::metadata(path).with_context(|| path.display().to_string())?;
    let state = (metadata.ino(), metadata.mtime(), metadata.mtime_nsec(), metadata.len());
    Ok(metadata.is_file().then_some(state))
}
