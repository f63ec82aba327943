//! Notifications for the service manager (sd_notify(3)): ready, reloading, stopping, and alive.
//!
//! Nothing is sent if NOTIFY_SOCKET is not in the environment.

use crate::config::Architecture;
use sd_notify::NotifyState;
use std::{
    env, io,
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            ffi::OsStrExt as _,
            net::{SocketAddr, UnixDatagram},
        },
    },
    sync::mpsc::{RecvTimeoutError, channel},
    thread,
    time::{Duration, Instant},
};

/// The number of notifications within the watchdog's time (sd_watchdog_enabled(3) recommends an
/// interval of half the time).
const WATCHDOG_SHARE: u32 = 2;
/// The time for which [`keep_alive`] notifies the watchdog. An upgrade waits up to 10 s for the
/// start, 10 s for each of its messages, and 30 s for the workers; a reload waits up to 20 s for the
/// workers, and the same time for that of `--redirect-http`.
const KEPT_ALIVE: Duration = Duration::from_secs(90);

/// Notifies that the server accepts connections.
pub(super) fn ready() {
    notify(&[NotifyState::Ready]);
}

/// Notifies that a reload begins; [`ready`] ends it.
pub(super) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => notify(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!("sd_notify: {error}"),
    }
}

/// Notifies that a stop was requested.
pub(super) fn stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Notifies that the process with this number is now the main process. The service manager then
/// accepts notifications from it.
pub(super) fn succeeded_by(pid: u32) {
    notify(&[NotifyState::MainPid(pid)]);
}

/// Notifies the watchdog that the workers have answered.
pub(super) fn alive() {
    notify(&[NotifyState::Watchdog]);
}

/// Notifies the watchdog while `work` makes this thread wait for workers or for other processes. The
/// time is limited, so that the watchdog notices when `work` never ends. An architecture with processes
/// does without it: a second thread would forbid a fork, and its workers are not waited for.
pub(super) fn keep_alive<T>(architecture: Architecture, work: impl FnOnce() -> T) -> T {
    let seconds = watchdog_interval_s().filter(|_| !architecture.has_processes());
    let Some(seconds) = seconds else { return work() };
    let (until_done, is_done) = channel::<()>();
    thread::scope(|scope| {
        scope.spawn(move || {
            let started_at = Instant::now();
            while started_at.elapsed() < KEPT_ALIVE {
                alive();
                let waited = is_done.recv_timeout(Duration::from_secs(seconds.into()));
                if waited != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        });
        let outcome = work();
        drop(until_done);
        outcome
    })
}

/// Returns the interval of notifications for the watchdog, in whole seconds for alarm(2); `None` if
/// there is no watchdog.
pub(super) fn watchdog_interval_s() -> Option<u32> {
    sd_notify::watchdog_enabled().map(interval_s)
}

fn interval_s(watchdog: Duration) -> u32 {
    u32::try_from((watchdog / WATCHDOG_SHARE).as_secs()).unwrap_or(u32::MAX).max(1)
}

fn notify(states: &[NotifyState<'_>]) {
    let socket = env::var_os("NOTIFY_SOCKET");
    let abstract_name = socket.as_ref().and_then(|socket| socket.as_bytes().strip_prefix(b"@"));
    let notified = match abstract_name {
        Some(name) => notify_at(name, states),
        None => sd_notify::notify(states),
    };
    if let Err(error) = notified {
        tracing::warn!("the service manager cannot be notified (NOTIFY_SOCKET): {error}");
    }
}

/// Sends one message to the abstract socket of this name, which begins with "@" in the environment
/// (sd_notify(3)). `sd_notify` would take such a name for a path.
///
/// # Errors
/// There is no such socket, or it does not take the message.
fn notify_at(name: &[u8], states: &[NotifyState<'_>]) -> io::Result<()> {
    let message: String = states.iter().map(|state| format!("{state}\n")).collect();
    let address = SocketAddr::from_abstract_name(name)?;
    UnixDatagram::unbound()?.send_to_addr(message.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watchdog_hears_of_us_twice_in_its_time() {
        assert_eq!(interval_s(Duration::from_secs(30)), 15);
        assert_eq!(interval_s(Duration::from_millis(1500)), 1, "alarm(2) knows no less");
    }

    #[test]
    fn an_abstract_socket_gets_one_message() {
        let name = format!("pollux-service-manager-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let manager = UnixDatagram::bind_addr(&address).unwrap();
        notify_at(name.as_bytes(), &[NotifyState::Reloading, NotifyState::MainPid(7)]).unwrap();
        let mut buffer = [0; 100];
        let len = manager.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..len], b"RELOADING=1\nMAINPID=7\n");
        drop(manager);
        assert!(notify_at(name.as_bytes(), &[NotifyState::Ready]).is_err());
    }
}
