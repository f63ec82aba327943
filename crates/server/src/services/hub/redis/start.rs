//! The start of the two threads.

use super::{RedisHubStore, Start, ThreadSetup, follow::Follower, lock, publish::Publisher};
use crate::services::hub::shared::HubShared;
use anyhow::bail;
use std::{io, sync::Arc, thread};

impl RedisHubStore {
    /// Starts the threads, and waits until the history is read. If Redis is not available, the threads wait
    /// for it while the hub works.
    ///
    /// # Errors
    /// A thread cannot be started, or Redis refuses a command that the hub needs.
    pub(in crate::services::hub) fn start(
        &self,
        prepared: ThreadSetup,
        owner: &Arc<HubShared>,
    ) -> anyhow::Result<()> {
        let (redis, shared) = (self.redis.clone(), Arc::downgrade(owner));
        let publisher = Publisher::new(redis.clone(), shared.clone());
        let follower = Follower::new(redis, shared, prepared.history_age);
        let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| -> io::Result<()> {
            let thread = thread::Builder::new().name(name.into()).spawn(run)?;
            lock(&self.threads).push(thread);
            Ok(())
        };
        spawn("hub-publish", Box::new(move || publisher.run(&prepared.tasks)))?;
        spawn("hub-follow", Box::new(move || follower.run()))?;
        match self.redis.wait_for_start() {
            Some(Err(Start::Refused(why))) => bail!("--hub-store {}: {why}", self.redis.url),
            Some(_) => {}
            None => tracing::warn!(
                "--hub-store {}: the history is still being read; the hub starts without it",
                self.redis.url
            ),
        }
        Ok(())
    }
}
