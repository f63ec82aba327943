//! Verifies passwords beside an event loop: a short queue, a thread that ends when it is empty, and credentials
//! that were right.

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

/// Passwords that wait for the thread of a worker: some 3 s with bcrypt's usual cost. Further requests get 503.
const QUEUE_MAX: usize = 64;
/// Credentials that are remembered for a site.
const KNOWN_MAX: usize = 1024;

/// Identifies credentials: a hash with a secret key, so that neither the memory nor the time of a look-up shows
/// anything of a password.
pub(super) type Key = [u8; 32];

/// Credentials that were right, until the configuration is read again.
pub(super) struct Known {
    secret: [u8; 32],
    keys: Mutex<LruCache<Key, ()>>,
}

impl std::fmt::Debug for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Known")
    }
}

impl Known {
    pub(super) fn new() -> Self {
        Self { secret: rand::random(), keys: Mutex::new(LruCache::new(KNOWN_MAX)) }
    }

    /// The key of credentials for the area of this number.
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
    /// Selects the hash that is computed for a name that is nobody's.
    pub(super) stand_in: Key,
    pub(super) name: Box<str>,
    pub(super) password: Box<[u8]>,
}

impl Attempt {
    /// The name of the user.
    pub(crate) fn into_name(self) -> Box<[u8]> {
        self.name.into_boxed_bytes()
    }

    /// Computes the hash. Right credentials are remembered.
    pub(crate) fn verify(&self, realm: &Realm) -> bool {
        let [a, b, c, d, e, f, g, h, ..] = self.stand_in;
        let stand_in = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
        // Others with the same credentials may have waited before this one.
        let is_right =
            realm.known.has(&self.key) || self.users.verify(&self.name, &self.password, stand_in);
        if is_right {
            realm.known.insert(self.key);
        }
        is_right
    }
}

/// What has become of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The thread has failed.
    Failed,
    /// The password is right.
    Right,
    /// It is wrong.
    Wrong,
}

/// The states of a [`Verification`]; it begins with [`OPEN`].
const OPEN: u8 = 0;
const RIGHT: u8 = 1;
const WRONG: u8 = 2;
const CANCELLED: u8 = 3;

/// A verification that a thread does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Verification(Arc<AtomicU8>);

impl Verification {
    /// Nobody waits for it any more: if it has not begun, it is left out.
    pub(crate) fn cancel(&self) {
        self.0.store(CANCELLED, Ordering::Relaxed);
    }

    /// Its outcome, once the notifier has ended.
    pub(crate) fn outcome(&self) -> Outcome {
        match self.0.load(Ordering::Acquire) {
            RIGHT => Outcome::Right,
            WRONG => Outcome::Wrong,
            _ => Outcome::Failed,
        }
    }
}

/// Verifies passwords for one worker, whose file table its thread shares.
#[derive(Clone, Debug, Default)]
pub(crate) struct Verifier(Arc<Mutex<Queue>>);

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    has_thread: bool,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Queue")
    }
}

struct Job {
    attempt: Attempt,
    realm: Arc<Realm>,
    verification: Verification,
    /// Closed when the outcome is there: the worker waits for the end of the other side.
    _notifier: OwnedFd,
}

impl Verifier {
    /// Gives a password to the thread. Returns what ends when the outcome is there, and the outcome.
    ///
    /// # Errors
    /// Too many wait, or there is no descriptor or thread left.
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
        queue.jobs.push_back(Job { attempt, realm, verification: own, _notifier: far });
        Ok((near, verification))
    }

    /// The life of the thread.
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
            // A panic would end the thread, and nobody would start another one.
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
