//! The settings that depend on the architecture.

use super::Settings;
use crate::config::{
    Accepting, Architecture, Discipline, MechanismChoice, ONLY_FILES, POOL_DEFAULT, POOL_MAX,
};

impl Settings {
    /// Checks that the settings are valid for the architecture.
    pub(super) fn check_architecture(&self) -> anyhow::Result<()> {
        use anyhow::ensure;
        let name = self.architecture;
        ensure!(
            self.pool.is_none() || name.has_pool(),
            "--pool: --architecture {name} has no pool; preforked and prethreaded have one"
        );
        self.check_accepting()?;
        ensure!(
            self.admin.is_none() || !name.has_processes(),
            "--admin: processes are forked, which a thread beside them forbids: take --architecture \
             event, iterative, threaded or prethreaded with it"
        );
        ensure!(
            self.control.is_none() || !name.has_processes(),
            "--control: processes are forked, which a thread beside them forbids: take --architecture \
             event, iterative, threaded or prethreaded with it, and SIGHUP to reopen logs"
        );
        ensure!(
            self.pool.is_none_or(|pool| (1..=POOL_MAX).contains(&pool)),
            "--pool needs a number from 1 to {POOL_MAX}"
        );
        if name != Architecture::Event {
            for (flag, is_default) in [
                ("--mechanism", self.mechanism == MechanismChoice::Auto),
                ("--interest", self.interest == Discipline::Eager),
                ("--workers", self.workers == 1),
            ] {
                ensure!(
                    is_default,
                    "{flag} is of --architecture event alone; {name} has one client at a time, for \
                     which it blocks in ppoll(2)"
                );
            }
            self.check_services()?;
        }
        Ok(())
    }

    /// Checks that a server of this architecture can hand over to another process, or take over from one.
    pub(crate) fn check_upgrade(architecture: Architecture) -> anyhow::Result<()> {
        anyhow::ensure!(
            architecture == Architecture::Event,
            "--architecture {architecture}: an upgrade without a gap needs --architecture event; restart \
             the server instead"
        );
        Ok(())
    }

    /// Checks that only services are configured for which workers need no event loop.
    fn check_services(&self) -> anyhow::Result<()> {
        let frontends: Vec<_> = self.frontends().flatten().collect();
        for (flag, is_set) in [
            ("--origin", frontends.iter().any(|frontend| !frontend.routes.is_empty())),
            ("--handover", frontends.iter().any(|frontend| !frontend.handovers.is_empty())),
            ("--cache", frontends.iter().any(|frontend| frontend.cache.is_some())),
            ("--hub", self.hub.is_some()),
        ] {
            anyhow::ensure!(
                !is_set,
                "{flag}: --architecture {} {ONLY_FILES}: use --architecture event",
                self.architecture
            );
        }
        Ok(())
    }

    /// Returns the number of workers in the pool, which is at most `max_connections`; `None` for an architecture
    /// without a pool. A server whose limit of open files leaves no room for so many threads starts fewer.
    pub(crate) fn pool_size(&self) -> Option<usize> {
        let pool = self.pool.unwrap_or(POOL_DEFAULT);
        let size = self.max_connections.map_or(pool, |most| pool.min(most));
        self.architecture.has_pool().then_some(size)
    }

    /// Returns how workers get their connections.
    ///
    /// By default a pool blocks in accept(2), which costs least when connections are short (claim
    /// A-accept of the experiment `zerohttpd-static`).
    pub(crate) fn way_to_accept(&self) -> Accepting {
        let by_default = if self.architecture.has_pool() && Accepting::can_block(&self.listen) {
            Accepting::Blocking
        } else {
            Accepting::Exclusive
        };
        self.accepting.unwrap_or(by_default)
    }

    /// Checks that workers can get their connections in the configured way.
    fn check_accepting(&self) -> anyhow::Result<()> {
        let Some(way) = self.accepting else { return Ok(()) };
        match way.faults(self.architecture, &self.listen).first() {
            Some((message, advice)) => anyhow::bail!("--accept: {message}: {advice}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{
        config::{Accepting, Architecture, Config, HubConfig},
        settings::{FrontendConfig, Settings},
    };
    use std::sync::Arc;

    /// A program that uses the crate gets the words of the configuration file.
    #[test]
    fn settings_and_files_permit_the_same_ways_to_accept() {
        let architectures = ["event", "forking", "threaded", "preforked", "prethreaded"];
        let ways = ["blocking", "exclusive", "reuseport", "mutex"];
        let listeners: [&[&str]; 5] =
            [&[":0"], &[":0", ":0"], &["unix:/a"], &["systemd"], &[":0", "systemd:a"]];
        let mut refused = 0;
        for (architecture, way, listen) in architectures.into_iter().flat_map(|architecture| {
            ways.into_iter()
                .flat_map(move |way| listeners.map(|listen| (architecture, way, listen)))
        }) {
            let text = format!(
                "architecture = \"{architecture}\"\naccept = \"{way}\"\nlisten = {listen:?}\n\
                 [[site]]\nroot = \".\"\n"
            );
            let faults = Config::parse("p", &text).unwrap().validate().err().unwrap_or_default();
            let mut settings = Settings::new(".");
            settings.architecture = architecture.parse().unwrap();
            settings.accepting = Some(way.parse::<Accepting>().unwrap());
            settings.listen = listen.iter().map(|one| one.parse().unwrap()).collect();
            match (settings.check(), faults.first()) {
                (Ok(()), None) => {}
                (Err(error), Some(fault)) => {
                    let error = error.to_string();
                    assert!(error.contains(&fault.message), "{text}: {error}");
                    refused += 1;
                }
                (found, fault) => panic!("{text}: {found:?}, {fault:?}"),
            }
        }
        assert_eq!(refused, 3 * 4 * 5 + 2 * (3 + 3));
    }

    #[test]
    fn services_that_need_event_loops_are_refused_elsewhere() {
        let mut origin = Settings::new(".");
        let mut frontend = FrontendConfig::new(vec!["http://a".parse().unwrap()]);
        origin.frontend = Some(Arc::new(frontend.clone()));
        let mut handover = Settings::new(".");
        frontend.routes.clear();
        frontend.handovers = vec!["unix:/a".parse().unwrap()];
        handover.frontend = Some(Arc::new(frontend));
        let mut hub = Settings::new(".");
        let mut anonymous = HubConfig::new("/hub");
        (anonymous.anonymous, anonymous.publish_anonymous) = (true, true);
        hub.hub = Some(Arc::new(anonymous));
        for (mut config, flag) in [(origin, "--origin"), (handover, "--handover"), (hub, "--hub")] {
            config.check().unwrap();
            config.architecture = Architecture::Threaded;
            let error = config.check().unwrap_err().to_string();
            let expected =
                format!("{flag}: --architecture threaded serves files and the guestbook");
            assert!(error.starts_with(&expected), "{error}");
        }
    }
}
