//! Keys that change while the hub runs: a JWK set in a file, or at a URL. A separate thread checks for
//! changes, so that no worker waits for a disk or a network.

mod fetch;

use super::shared::HubShared;
use crate::config::KeySource;
use anyhow::Context;
use pollux_hub::token::KeySet;
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::Path,
    sync::{Arc, Weak},
    thread,
    time::{Duration, Instant},
};

/// The time between two checks of the thread whether the file has changed, and whether the hub has ended.
const PERIOD: Duration = Duration::from_secs(1);
/// The pauses after a URL could not be fetched: the first pause, which doubles with each further failure, and
/// the longest pause.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// The state of a file that shows a change: inode, seconds and nanoseconds of the modification time, length.
type FileState = (u64, i64, i64, u64);

struct KeyWatch {
    hub: Weak<HubShared>,
    source: KeySource,
    interval: Duration,
    /// The text from which the present keys were read.
    text: Vec<u8>,
    file: Option<FileState>,
    /// The time of the next fetch of the URL.
    due_at: Instant,
    pause: Duration,
}

/// Starts the thread, if the keys have a source that may change.
///
/// # Errors
/// The thread cannot be started.
pub(super) fn watch(hub: &Arc<HubShared>) -> anyhow::Result<()> {
    let Some(source) = hub.config.key_source.clone() else { return Ok(()) };
    let mut watch = KeyWatch {
        hub: Arc::downgrade(hub),
        source,
        interval: hub.config.key_interval,
        text: Vec::new(),
        file: None,
        due_at: Instant::now(),
        pause: FIRST_PAUSE,
    };
    let run = move || {
        while let Some(hub) = watch.hub.upgrade().filter(|hub| !hub.has_ended()) {
            watch.look(&hub);
            drop(hub);
            thread::sleep(PERIOD);
        }
    };
    thread::Builder::new().name("hub-keys".into()).spawn(run).context("starting hub-keys")?;
    Ok(())
}

impl KeyWatch {
    /// Installs new keys, if there are any. If they cannot be read, the present keys stay in use.
    fn look(&mut self, hub: &HubShared) {
        let read = match &self.source {
            KeySource::File(path) => match state(path) {
                Ok(state) if self.file == Some(state) => return,
                Ok(state) => {
                    self.file = Some(state);
                    fs::read(path).with_context(|| path.display().to_string())
                }
                Err(error) if self.file.is_some() => {
                    // The error is reported once, not each second.
                    self.file = None;
                    Err(error)
                }
                Err(_) => return,
            },
            KeySource::Url(_) if Instant::now() < self.due_at => return,
            KeySource::Url(url) => fetch::fetch(url, hub.config.key_authorities.as_deref()),
        };
        let outcome = read.and_then(|text| self.take(hub, text));
        let next = match &outcome {
            Ok(()) => {
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
    }

    fn take(&mut self, hub: &HubShared, text: Vec<u8>) -> anyhow::Result<()> {
        if text == self.text {
            return Ok(());
        }
        let keys = KeySet::parse_jwks(&text).with_context(|| self.source.to_string())?;
        tracing::info!("--hub-jwks: {} keys from {}", keys.len(), self.source);
        hub.set_keys(&keys);
        self.text = text;
        Ok(())
    }
}

fn state(path: &Path) -> anyhow::Result<FileState> {
    let metadata = fs::metadata(path).with_context(|| path.display().to_string())?;
    Ok((metadata.ino(), metadata.mtime(), metadata.mtime_nsec(), metadata.len()))
}
