//! The keys of a hub, read from the files that its configuration names.

use crate::config::{HubConfig, KeySource};
use anyhow::Context;
use pollux_hub::token::{KeyError, KeySet};
use pollux_tls::read_operator_file;
use std::path::PathBuf;

/// The maximum size of a file with keys.
pub(crate) const KEY_BYTES_MAX: u64 = 4 << 20;

impl HubConfig {
    /// Reads the keys of subscribers and of publishers.
    pub(crate) fn read_keys(&self) -> anyhow::Result<(Option<KeySet>, Option<KeySet>)> {
        let read_with = |path: &PathBuf, parse: fn(&[u8]) -> Result<KeySet, KeyError>| {
            let named = || format!("the hub's key {}", path.display());
            let text = read_operator_file(path, KEY_BYTES_MAX).with_context(named)?;
            parse(&text).with_context(named)
        };
        let read = |path: &PathBuf| read_with(path, KeySet::parse);
        let subscribers = match &self.key_source {
            // At the start a file that is no JWK set is an error; later the previous keys stay in
            // use.
            Some(KeySource::File(path)) => Some(read_with(path, KeySet::parse_jwks)?),
            // The URL is fetched while the server already runs; until then every token is invalid.
            Some(KeySource::Url(_)) => Some(KeySet::empty()),
            None => self.subscriber_keys.as_ref().map(read).transpose()?,
        };
        let publishers = match &self.publisher_keys {
            Some(path) => Some(read(path)?),
            None => subscribers.clone(),
        };
        Ok((subscribers, publishers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_cannot_be_read_is_named() {
        let with_key = HubConfig { subscriber_keys: Some("k".into()), ..HubConfig::new("/hub") };
        assert!(format!("{:#}", with_key.read_keys().unwrap_err()).contains("key k"));
    }
}
