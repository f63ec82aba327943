//! Listening sockets that the former server has handed over, stored until the new server uses them.

use super::{listener::SocketFile, role::Role};
use std::{
    os::fd::OwnedFd,
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

/// The sockets that were handed over and are not used yet.
static INHERITED: Mutex<Listeners> = Mutex::new(Listeners(Vec::new()));

/// Whether this process is the successor of another one, which has confirmed it.
static HAS_SUCCEEDED: AtomicBool = AtomicBool::new(false);

/// Returns whether this process has taken over from another one.
pub(crate) fn has_succeeded() -> bool {
    HAS_SUCCEEDED.load(Ordering::Acquire)
}

/// Notes that this process has taken over from another one, and closes the sockets that the
/// configuration does not use.
pub(crate) fn succeed() {
    HAS_SUCCEEDED.store(true, Ordering::Release);
    close_unused();
}

/// A listening socket.
#[derive(Debug)]
pub(crate) struct InheritedListener {
    pub(crate) role: Role,
    /// The number of the listener in the configuration; the sockets of one listener have the same
    /// number.
    pub(crate) index: u16,
    /// Its address, as it was configured.
    pub(crate) configured: String,
    pub(crate) socket: OwnedFd,
}

impl InheritedListener {
    fn path(&self) -> Option<&Path> {
        let path = match self.role {
            Role::Control => Some(self.configured.as_str()),
            Role::Clients | Role::Admin => self.configured.strip_prefix("unix:"),
        };
        path.map(Path::new)
    }
}

#[derive(Debug)]
struct Listeners(Vec<InheritedListener>);

impl Listeners {
    fn take(&mut self, role: Role, configured: &str) -> Vec<OwnedFd> {
        let is_it = |one: &InheritedListener| one.role == role && one.configured == configured;
        let Some(index) = self.0.iter().find(|one| is_it(one)).map(|one| one.index) else {
            return Vec::new();
        };
        let is_wanted = |one: &mut InheritedListener| is_it(one) && one.index == index;
        self.0.extract_if(.., is_wanted).map(|one| one.socket).collect()
    }
}

/// Stores the sockets that were handed over.
pub(crate) fn keep(listeners: Vec<InheritedListener>) {
    all().0 = listeners;
}

/// Closes the sockets that the configuration does not use, and removes the files of UNIX sockets.
fn close_unused() {
    for unused in std::mem::take(&mut all().0) {
        tracing::info!("{}: no longer configured, closed", unused.configured);
        if let Some(path) = unused.path() {
            drop(SocketFile::taken_over(path));
        }
    }
}

/// Returns the sockets of the first listener with this role and configured address, for all
/// workers. A further call returns those of the next listener with the same address.
pub(crate) fn take(role: Role, configured: &str) -> Vec<OwnedFd> {
    all().take(role, configured)
}

/// Returns whether [`take`] would return sockets.
pub(crate) fn has(role: Role, configured: &str) -> bool {
    all().0.iter().any(|one| one.role == role && one.configured == configured)
}

fn all() -> MutexGuard<'static, Listeners> {
    INHERITED.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs::File, os::fd::AsRawFd};

    #[test]
    fn sockets_are_found_by_role_and_address() {
        let inherited = |role, index, configured: &str| InheritedListener {
            role,
            index,
            configured: configured.into(),
            socket: File::open("/dev/null").unwrap().into(),
        };
        let (a, b) = ("127.0.0.1:0", "unix:/b");
        let mut listeners = Listeners(vec![
            inherited(Role::Clients, 0, a),
            inherited(Role::Clients, 2, a),
            inherited(Role::Control, 0, b),
            inherited(Role::Clients, 0, a),
            inherited(Role::Clients, 2, a),
        ]);
        let numbers: Vec<_> = listeners.0.iter().map(|one| one.socket.as_raw_fd()).collect();
        let taken = |sockets: Vec<OwnedFd>| -> Vec<_> {
            sockets.iter().map(|socket| socket.as_raw_fd()).collect()
        };
        assert_eq!(taken(listeners.take(Role::Clients, a)), [numbers[0], numbers[3]]);
        assert_eq!(taken(listeners.take(Role::Clients, a)), [numbers[1], numbers[4]]);
        assert!(listeners.take(Role::Clients, a).is_empty());
        assert!(listeners.take(Role::Clients, b).is_empty());
        assert_eq!(taken(listeners.take(Role::Control, b)), [numbers[2]]);
    }
}
