//! Checks the addresses of a configuration.

use super::{Config, Key, validate::Faults};
use crate::config::{Accepting, Listen};

/// The maximum length of the path of a UNIX socket in bytes (unix(7)).
const SOCKET_PATH_BYTES: usize = 107;

impl Config {
    /// Checks the addresses of all listeners, and how workers accept from them.
    pub(super) fn check_listening(&self, faults: &mut Faults) {
        let is_tcp = |listen: &Listen| matches!(listen, Listen::Tcp(_));
        faults.check(
            !self.listen.is_empty(),
            &[Key::Name("listen")],
            "there is no address to listen on",
            "listen = [\":80\"], for instance",
        );
        // Port 0 may be repeated: the kernel chooses a different port each time.
        let is_any_port =
            |listen: &Listen| matches!(listen, Listen::Tcp(address) if address.port() == 0);
        let advice = |listen: &Listen, otherwise| match listen {
            Listen::Passed(_) => {
                "`systemd` takes all sockets that are passed: name each (systemd:NAME)"
            }
            Listen::Tcp(_) | Listen::Unix(_) => otherwise,
        };
        let mut taken: Vec<&Listen> = Vec::new();
        for (index, one) in self.listen.iter().enumerate() {
            faults.check(
                is_any_port(&one.value) || !is_taken(&one.value, &taken),
                &[Key::Name("listen"), Key::Index(index)],
                &format!("{one} is listened on twice"),
                advice(&one.value, "leave one of them out"),
            );
            taken.push(&one.value);
        }
        for (key, other) in [("admin", &self.admin), ("redirect-http", &self.redirect_http)] {
            let Some(other) = other else { continue };
            faults.check(
                is_any_port(&other.value) || !is_taken(&other.value, &taken),
                &[Key::Name(key)],
                &format!("{other} is listened on already"),
                advice(&other.value, "take another port"),
            );
            taken.push(&other.value);
        }
        let control = self.control.clone().map(Listen::Unix);
        faults.check(
            !control.as_ref().is_some_and(|control| is_taken(control, &taken)),
            &[Key::Name("control")],
            "clients or `admin` have this socket already",
            "take another path",
        );
        let further = [
            ("admin", self.admin.as_ref().map(|one| &one.value)),
            ("redirect-http", self.redirect_http.as_ref().map(|one| &one.value)),
            ("control", control.as_ref()),
        ];
        let listened = self.listen.iter().enumerate();
        let listened =
            listened.map(|(index, one)| (vec![Key::Name("listen"), Key::Index(index)], &one.value));
        let further =
            further.into_iter().filter_map(|(key, one)| Some((vec![Key::Name(key)], one?)));
        for (key, listen) in listened.chain(further) {
            faults.check(
                !is_too_long(listen),
                &key,
                &format!("the path of a socket has at most {SOCKET_PATH_BYTES} bytes"),
                "take a shorter path, such as one below /run",
            );
        }
        faults.check(
            self.redirect_http.is_none()
                || self.listen.iter().any(|one| !matches!(one.value, Listen::Unix(_))),
            &[Key::Name("redirect-http")],
            "there is no port that clients could be redirected to",
            "add an address with a port to `listen` (--listen), or leave out `redirect-http`",
        );
        let Some(way) = self.accept.as_ref().map(|way| way.value) else { return };
        let key = [Key::Name("accept")];
        let can_block =
            matches!(&self.listen[..], [one] if !matches!(one.value, Listen::Passed(_)));
        faults.check(
            self.architecture.value.has_pool(),
            &key,
            &format!(
                "the architecture {} has no pool that could share a listener",
                self.architecture
            ),
            "leave out `accept`, or use the architecture preforked or prethreaded",
        );
        faults.check(
            way != Accepting::Blocking || can_block,
            &key,
            "a worker can block on one listener only, and on none of systemd",
            "listen on one address only, or use accept = \"exclusive\"",
        );
        faults.check(
            way != Accepting::Reuseport || self.listen.iter().all(|one| is_tcp(&one.value)),
            &key,
            "the kernel cannot distribute connections among UNIX sockets, or those of systemd (SO_REUSEPORT)",
            "listen on TCP addresses only, or use accept = \"exclusive\"",
        );
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
        (Listen::Passed(None), Listen::Passed(_)) | (Listen::Passed(_), Listen::Passed(None)) => {
            true
        }
        _ => listen == other,
    })
}
