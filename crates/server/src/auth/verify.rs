//! Verifies passwords outside the event loop: with a short queue, a thread that ends when the queue is empty,
//! and a memory of credentials that were right.

use super::{Realm, Users};
use hashlink::LruCache;
use pollux_sys::{self as sys, spawn_detached};
use sha2::{Digest, Sha256};
use std::{
    collections::VecDeque,
    io,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
};

/// The maximum number of passwords that wait for the thread of a worker: some 3 s of work with bcrypt's usual
/// cost. Further requests get 503.
const QUEUE_MAX: usize = 64;
/// The maximum number of credentials that are remembered for a site.
const KNOWN_MAX: usize = 1024;

/// The key of credentials: a hash with a secret key. Neither the memory nor the duration of a look-up reveals
/// anything about a password.
pub(super) type Key = [u8; 32];

/// Credentials that were right. They are remembered until the configuration is read again.
pub(super) struct CredentialCache {
    secret: [u8; 32],
    keys: Mutex<LruCache<Key, ()>>,
}

impl std::fmt::Debug for CredentialCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CredentialCache")
    }
}

impl CredentialCache {
    pub(super) fn new() -> Self {
        Self { secret: rand::random(), keys: Mutex::new(LruCache::new(KNOWN_MAX)) }
    }

    /// Returns the key of credentials for the area with this number.
    pub(super) fn key(&self, area: u64, credentials: &[u8]) -> Key {
        let mut hash = Sha256::new();
        hash.update(self.secret);
        hash.update(area.to_le_bytes());
        hash.update(credentials);
        hash.finalize().into()
    }

    pub(super) fn has(&self, key: &Key) -> bool {
        self.keys().get(key).is_some()
    }

    pub(super) fn insert(&self, key: Key) {
        self.keys().insert(key, ());
    }

    fn keys(&self) -> MutexGuard<'_, LruCache<Key, ()>> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A name and a password whose hash must be computed.
pub(crate) struct Attempt {
    pub(super) users: Arc<Users>,
    pub(super) key: Key,
    /// Selects the hash that is computed for an unknown name.
    pub(super) stand_in: Key,
    pub(super) name: Box<str>,
    pub(super) password: Box<[u8]>,
}

impl Attempt {
    /// Returns the name of the user.
    pub(crate) fn into_name(self) -> Box<[u8]> {
        self.name.into_boxed_bytes()
    }

    /// Computes the hash. Right credentials are remembered.
    pub(crate) fn verify(&self, realm: &Realm) -> bool {
        let [a, b, c, d, e, f, g, h, ..] = self.stand_in;
        let stand_in = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        // A request with the same credentials may have been verified while this one waited.
        let is_right =
            realm.known.has(&self.key) || self.users.verify(&self.name, &self.password, stand_in);
        if is_right {
            realm.known.insert(self.key);
        }
        is_right
    }
}

/// The result of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The thread has failed.
    Failed,
    /// The password is right.
    Right,
    /// The password is wrong.
    Wrong,
}

/// The states of a [`Verification`]; it begins with [`OPEN`].
const OPEN: u8 = 0;
const RIGHT: u8 = 1;
const WRONG: u8 = 2;
const CANCELLED: u8 = 3;

/// A verification that a thread carries out.
#[derive(Clone, Debug, Default)]
pub(crate) struct Verification(Arc<AtomicU8>);

impl Verification {
    /// Cancels the verification. If it has not begun, the thread skips it.
    pub(crate) fn cancel(&self) {
        self.0.store(CANCELLED, Ordering::Relaxed);
    }

    /// Returns the outcome. It is valid once the notifier is closed.
    pub(crate) fn outcome(&self) -> Outcome {
        match self.0.load(Ordering::Acquire) {
            RIGHT => Outcome::Right,
            WRONG => Outcome::Wrong,
            _ => Outcome::Failed,
        }
    }
}

/// Verifies passwords for one worker. The thread shares the file table of the worker.
#[derive(Clone, Debug, Default)]
pub(crate) struct Verifier(Arc<Mutex<Queue>>);

#[derive(Default)]
struct Queue {
    jobs: VecDeque<VerificationJob>,
    has_thread: bool,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Queue")
    }
}

struct VerificationJob {
    attempt: Attempt,
    realm: Arc<Realm>,
    verification: Verification,
    /// Closed when the outcome is available: the worker waits for end-of-stream on the other socket of the
    /// pair.
    _notifier: OwnedFd,
}

impl Verifier {
    /// Passes a password to the thread. Returns a socket that reaches end-of-stream when the outcome is
    /// available, and the verification with the outcome.
    ///
    /// # Errors
    /// Too many passwords wait, or there is no descriptor or thread left.
    pub(crate) fn start(
        &self,
        realm: &Arc<Realm>,
        attempt: Attempt,
    ) -> io::Result<(OwnedFd, Verification)> {
        let mut queue = self.queue();
        if queue.jobs.len() >= QUEUE_MAX {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let (near, far) = sys::stream_pair()?;
        let verification = Verification::default();
        if !queue.has_thread {
            let this = self.clone();
            spawn_detached(c"passwords", move || this.work())?;
            queue.has_thread = true;
        }
        let (realm, own) = (realm.clone(), verification.clone());
        queue.jobs.push_back(VerificationJob { attempt, realm, verification: own, _notifier: far });
        Ok((near, verification))
    }

    /// Runs the thread.
    fn work(&self) {
        loop {
            let job = {
                let mut queue = self.queue();
                let Some(job) = queue.jobs.pop_front() else {
                    queue.has_thread = false;
                    return;
                };
                job
            };
            if job.verification.0.load(Ordering::Relaxed) == CANCELLED {
                continue;
            }
            // A panic would end the thread while `has_thread` stays true, so that no other thread would be
            // started.
            let verify = std::panic::AssertUnwindSafe(|| job.attempt.verify(&job.realm));
            let outcome = match std::panic::catch_unwind(verify) {
                Ok(true) => RIGHT,
                Ok(false) => WRONG,
                Err(_) => OPEN,
            };
            job.verification.0.store(outcome, Ordering::Release);
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
