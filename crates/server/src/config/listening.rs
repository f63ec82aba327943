//! Checks the addresses of a configuration.

use super::{Config, Key, validate::Faults};
use crate::config::{Listen, SOCKET_PATH_BYTES};

impl Config {
    /// Checks the addresses of all listeners, and how workers accept from them.
    pub(super) fn check_listening(&self, faults: &mut Faults) {
        faults.check(
            !self.listen.is_empty(),
            &[Key::Name("listen")],
            "there is no address to listen on",
            "listen = [\":80\"], for instance",
        );
        let control = self.control.clone().map(Listen::Unix);
        let listened = self.listen.iter().enumerate();
        let listened =
            listened.map(|(index, one)| (vec![Key::Name("listen"), Key::Index(index)], &one.value));
        let further = [
            ("admin", self.admin.as_ref().map(|one| &one.value)),
            ("redirect-http", self.redirect_http.as_ref().map(|one| &one.value)),
            ("control", control.as_ref()),
        ];
        let further =
            further.into_iter().filter_map(|(key, one)| Some((vec![Key::Name(key)], one?)));
        let mut taken: Vec<&Listen> = Vec::new();
        for (key, one) in listened.chain(further) {
            let advice = match one {
                Listen::Tcp(_) => "take another port",
                Listen::Unix(_) => "take another path",
                Listen::Passed(_) => {
                    "`systemd` takes all sockets that are passed: name each (systemd:NAME)"
                }
            };
            faults.check(
                !is_taken(one, &taken),
                &key,
                &format!("{one} is listened on already"),
                advice,
            );
            faults.check(
                !is_too_long(one),
                &key,
                &format!("the path of a socket has at most {SOCKET_PATH_BYTES} bytes"),
                "take a shorter path, such as one below /run",
            );
            taken.push(one);
        }
        faults.check(
            self.redirect_http.is_none()
                || self.listen.iter().any(|one| !matches!(one.value, Listen::Unix(_))),
            &[Key::Name("redirect-http")],
            "there is no port that clients could be redirected to",
            "add an address with a port to `listen` (--listen), or leave out `redirect-http`",
        );
        let Some(way) = self.accept.as_ref().map(|way| way.value) else { return };
        let listeners = self.listen.iter().map(|one| &one.value);
        for (message, advice) in way.faults(self.architecture.value, listeners) {
            faults.check(false, &[Key::Name("accept")], &message, advice);
        }
    }
}

/// Returns whether this is a UNIX socket whose path is too long.
fn is_too_long(listen: &Listen) -> bool {
    matches!(listen, Listen::Unix(path) if path.as_os_str().len() > SOCKET_PATH_BYTES)
}

/// Returns whether one of `taken` has the sockets of `listen`. Without a name, all sockets of systemd are meant: half of
/// the clients would get the pages of `admin`.
fn is_taken(listen: &Listen, taken: &[&Listen]) -> bool {
    taken.iter().any(|&other| match (listen, other) {
        // Port 0 may be repeated: the kernel chooses a different port each time.
        (Listen::Tcp(address), _) if address.port() == 0 => false,
        (Listen::Passed(None), Listen::Passed(_)) | (Listen::Passed(_), Listen::Passed(None)) => {
            true
        }
        _ => listen == other,
    })
}
