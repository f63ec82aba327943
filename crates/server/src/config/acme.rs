//! The keys about ACME.

use super::{Challenge, ClientCertificates, Config, Fault, Key, Sources};
use anyhow::{Context, bail};
use pollux_acme::{
    NAMES_MAX, Settings as AcmeSettings, Timing, check_email, check_name, directory_url,
};
use std::{env, path::PathBuf};

impl Config {
    /// Returns the names for which certificates are ordered: those of the server, then those of the
    /// sites, without duplicates.
    pub(super) fn acme_names(&self) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        for name in self.acme.iter().chain(self.site.iter().flat_map(|site| &site.acme)) {
            let name = name.to_ascii_lowercase();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    /// Returns the settings for ordering certificates, if there are names. The configuration must
    /// be [valid](Config::validate).
    ///
    /// # Errors
    /// No state directory is given, and the environment does not name one.
    pub fn acme(&self) -> anyhow::Result<Option<AcmeSettings>> {
        let names = self.acme_names();
        if names.is_empty() {
            return Ok(None);
        }
        let directory = self.acme_directory.as_deref().context("acme-directory is not set")?;
        Ok(Some(AcmeSettings {
            names,
            directory: directory_url(directory)?,
            email: self.acme_email.clone(),
            root: self.acme_ca.clone(),
            state_dir: match &self.state_dir {
                Some(path) => path.clone(),
                None => default_state_dir()
                    .context("no home directory is set: say where to store certificates with --state-dir DIR")?,
            },
            challenges: self.acme_challenge.iter().map(|challenge| challenge.value).collect(),
            timing: Timing::default(),
        }))
    }

    /// Returns the faults of the keys about ACME.
    pub(super) fn acme_faults(&self) -> Vec<Fault> {
        let mut faults = Vec::new();
        let mut add = |key: &[Key<'static>], message: String, help: &str| {
            faults.push(Fault::at(key, message, help));
        };
        for (number, name) in self.acme.iter().enumerate() {
            if let Err(error) = check_name(name) {
                add(&[Key::Name("acme"), Key::Index(number)], error.to_string(), "");
            }
        }
        for (index, site) in self.site.iter().enumerate() {
            for (number, name) in site.acme.iter().enumerate() {
                if let Err(error) = check_name(name) {
                    let key = [
                        Key::Name("site"),
                        Key::Index(index),
                        Key::Name("acme"),
                        Key::Index(number),
                    ];
                    add(&key, error.to_string(), "");
                }
            }
        }
        let names = self.acme_names().len();
        if names > NAMES_MAX {
            let message = format!("{names} names are more than {NAMES_MAX}");
            add(&[Key::Name("acme")], message, "run a second server for the others");
        }
        match &self.acme_directory {
            Some(directory) => {
                if let Err(error) = directory_url(directory) {
                    add(&[Key::Name("acme-directory")], error.to_string(), "");
                }
            }
            None if names > 0 => add(
                &[Key::Name("acme")],
                "no authority is named that issues the certificates".into(),
                "add --acme-directory letsencrypt (or the URL of another ACME directory); with that you accept \
                 its terms of service",
            ),
            None => {}
        }
        let challenges: Vec<_> = self.acme_challenge.iter().map(|one| one.value).collect();
        let over_tls = challenges.iter().position(|one| *one == Challenge::TlsAlpn01);
        let has_plain_listener = self.redirect_http.is_some();
        let selected =
            select_challenges(challenges, has_plain_listener, &self.client_certificates());
        if names > 0 && selected.is_none() {
            let key = match over_tls {
                Some(number) => vec![Key::Name("acme-challenge"), Key::Index(number)],
                None => vec![Key::Name("acme")],
            };
            add(
                &key,
                "`tls-client-ca` keeps the authority from validating names over TLS".into(),
                "use http-01 with redirect-http = \":80\" (--redirect-http), or add \
                 tls-client-optional (--tls-client-optional)",
            );
        }
        if let Some(Err(error)) = self.acme_email.as_deref().map(check_email) {
            add(&[Key::Name("acme-email")], error.to_string(), "");
        }
        let is_useless = names == 0
            && (self.acme_directory.is_some()
                || self.acme_email.is_some()
                || self.acme_ca.is_some()
                || self.state_dir.is_some()
                || !self.acme_challenge.is_empty());
        if is_useless {
            add(
                &[Key::Name("acme")],
                "there is no name to order a certificate for".into(),
                "add --acme NAME, or remove acme-directory, acme-email, acme-ca, acme-challenge and state-dir",
            );
        }
        if names > 0 && self.state_dir.is_none() && self.user.is_some() && !has_state_of_manager() {
            add(
                &[Key::Name("user")],
                "certificates are stored for another user than the one that starts the server"
                    .into(),
                "add --state-dir DIR, such as /var/lib/pollux",
            );
        }
        faults
    }

    /// Checks that the names are the same as those of the running server.
    pub(super) fn keep_acme(&self, former: &Self, sources: &Sources) -> anyhow::Result<()> {
        if self.acme_names() == former.acme_names() {
            return Ok(());
        }
        let site = (0..self.site.len()).find(|index| {
            former.site.get(*index).is_none_or(|site| site.acme != self.site[*index].acme)
        });
        let location = match site {
            Some(index) => {
                sources.location(&[Key::Name("site"), Key::Index(index), Key::Name("acme")])
            }
            None => sources.location(&[Key::Name("acme")]),
        };
        let location = location.map(|location| format!("{location}: ")).unwrap_or_default();
        bail!(
            "{location}acme: [{}] -> [{}]: a running server cannot change these names; undo the change, have a new \
             process take over (pollux ctl upgrade, no connection is lost), or restart the server",
            former.acme_names().join(", "),
            self.acme_names().join(", ")
        )
    }
}

/// Returns the challenges that a server answers: the configured ones, or without any all that it can answer.
/// `has_plain_listener` is true if the authority can reach the server over plain HTTP.
///
/// Returns `None` if the authority would have to validate names over TLS, and the listeners require certificates of
/// clients: the authority has none.
pub(crate) fn select_challenges(
    configured: Vec<Challenge>,
    has_plain_listener: bool,
    client_certificates: &ClientCertificates,
) -> Option<Vec<Challenge>> {
    let requires_certificates = matches!(client_certificates, ClientCertificates::Required(_));
    let mut selected = configured;
    if selected.is_empty() {
        if !requires_certificates {
            selected.push(Challenge::TlsAlpn01);
        }
        if has_plain_listener {
            selected.push(Challenge::Http01);
        }
    }
    let needs_tls = selected.is_empty() || selected.contains(&Challenge::TlsAlpn01);
    (!needs_tls || !requires_certificates).then_some(selected)
}

/// Returns whether a service manager provides a directory for state (systemd.exec(5),
/// StateDirectory=).
fn has_state_of_manager() -> bool {
    env::var_os("STATE_DIRECTORY").is_some()
}

/// Returns the default directory for state: the service manager's directory, or the user's.
fn default_state_dir() -> Option<PathBuf> {
    let absolute = |path: PathBuf| path.is_absolute().then_some(path);
    let variable = |name| env::var_os(name).map(PathBuf::from).and_then(absolute);
    // systemd separates several directories by colons; the first is ours.
    let of_manager = env::var("STATE_DIRECTORY").ok();
    let of_manager = of_manager.and_then(|all| absolute(all.split(':').next()?.into()));
    let of_user = || {
        let state = variable("XDG_STATE_HOME");
        let state = state.or_else(|| variable("HOME").map(|home| home.join(".local/state")));
        state.map(|state| state.join("pollux"))
    };
    of_manager.or_else(of_user)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Config {
        Config::parse("test", text).unwrap()
    }

    fn faults(text: &str) -> Vec<String> {
        let faults = parse(text).acme_faults();
        faults.iter().map(|fault| format!("{}: {}", fault.key_name(), fault.message)).collect()
    }

    #[test]
    fn names_come_from_the_server_and_its_sites_each_once() {
        let text = "acme = [\"a.example\"]\nacme-directory = \"letsencrypt\"\nstate-dir = \"/s\"\n\
                    acme-challenge = [\"http-01\"]\n\
                    [[site]]\nroot = \"/a\"\nacme = [\"B.example\", \"a.example\"]\n";
        let settings = parse(text).acme().unwrap().unwrap();
        assert_eq!(settings.names, ["a.example", "b.example"]);
        assert_eq!(settings.challenges, [pollux_acme::Challenge::Http01]);
        assert!(settings.directory.starts_with("https://"));
        assert!(faults(text).is_empty());
        assert!(parse("").acme().unwrap().is_none());
    }

    #[test]
    fn challenges_are_those_that_a_listener_can_answer() {
        use Challenge::{Http01, TlsAlpn01};
        let (none, required) =
            (ClientCertificates::None, ClientCertificates::Required("/ca".into()));
        let selected = |configured: &[Challenge], plain, clients: &ClientCertificates| {
            select_challenges(configured.to_vec(), plain, clients)
        };
        assert_eq!(selected(&[], false, &none).unwrap(), [TlsAlpn01]);
        assert_eq!(selected(&[], true, &none).unwrap(), [TlsAlpn01, Http01]);
        assert_eq!(selected(&[Http01], false, &none).unwrap(), [Http01]);
        assert_eq!(selected(&[], true, &required).unwrap(), [Http01]);
        assert!(selected(&[], false, &required).is_none());
        assert!(selected(&[TlsAlpn01], true, &required).is_none());
    }

    #[test]
    fn faults_name_their_key() {
        for (text, key) in [
            ("acme = [\"*.a.example\"]\nacme-directory = \"letsencrypt\"", "acme[0]: "),
            ("acme = [\"a.example\"]", "acme: no authority"),
            ("acme = [\"a.example\"]\nacme-directory = \"x\"", "acme-directory: "),
            ("acme-email = \"a@b.example\"", "acme: there is no name"),
            (
                "acme = [\"a.example\"]\nacme-directory = \"letsencrypt\"\nacme-email = \"x\"",
                "acme-email: ",
            ),
            (
                "acme-directory = \"letsencrypt\"\n[[site]]\nroot = \"/a\"\nacme = [\"a\"]",
                "site[0].acme[0]: ",
            ),
            (
                "acme = [\"a.example\"]\nacme-directory = \"letsencrypt\"\nuser = \"www-data\"",
                "user: ",
            ),
        ] {
            let all = faults(text);
            assert!(all.len() == 1 && all[0].starts_with(key), "{text}: {all:?}");
        }
    }

    #[test]
    fn a_running_server_keeps_its_names() {
        let base = "acme-directory = \"letsencrypt\"\nacme = [\"a.example\"]\n";
        let moved =
            "acme-directory = \"letsencrypt\"\n[[site]]\nroot = \"/a\"\nacme = [\"a.example\"]\n";
        let more = "acme-directory = \"letsencrypt\"\nacme = [\"a.example\", \"b.example\"]\n";
        let keep = |text: &str| parse(text).keep_acme(&parse(base), &Sources::default());
        keep(base).unwrap();
        keep(moved).unwrap();
        let message = keep(more).unwrap_err().to_string();
        assert!(message.contains("b.example") && message.contains("upgrade"), "{message}");
    }
}
