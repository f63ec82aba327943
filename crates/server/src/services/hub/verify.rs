//! The keys with which all workers verify tokens, and their replacement.

use super::{
    keys::FetchedKeys,
    shared::{HubShared, lock},
};
use crate::config::KeySource;
use pollux_hub::token::KeySet;

impl HubShared {
    /// Replaces the keys that verify tokens by those of a JWK set.
    pub(super) fn set_keys(&self, keys: &KeySet, text: &[u8]) {
        let mut fetched = lock(&self.fetched_keys);
        self.verify_with(keys);
        if let (Some(KeySource::Url(url)), Ok(text)) =
            (&self.config.key_source, std::str::from_utf8(text))
        {
            *fetched = Some(FetchedKeys { url: url.to_string(), text: text.to_owned() });
        }
    }

    /// Replaces the keys that verify tokens. The keys for publishers are replaced too, unless they have their
    /// own.
    fn verify_with(&self, keys: &KeySet) {
        let publishers = self.publishers.as_ref().filter(|_| self.config.publisher_keys.is_none());
        for verifier in self.subscribers.iter().chain(publishers) {
            verifier.set_keys(keys.clone());
        }
    }

    /// Uses the keys of the former process of a live upgrade until their URL answers, if it has not answered yet.
    /// Otherwise this process would refuse the tokens of clients that the former one has served.
    pub(super) fn adopt_keys(&self, former: FetchedKeys) {
        let source = &self.config.key_source;
        let is_own = matches!(source, Some(KeySource::Url(url)) if url.as_str() == former.url);
        let mut fetched = lock(&self.fetched_keys);
        if !is_own || fetched.is_some() {
            return;
        }
        if let Ok(keys) = KeySet::parse_jwks(former.text.as_bytes()) {
            self.verify_with(&keys);
            *fetched = Some(former);
            tracing::info!("--hub-jwks: {} keys from the former process", keys.len());
        }
    }
}
