//! What the types of an experiment cannot say.

use super::{
    Axis, Budget, CLIENTS, Claim, Encryption, Experiment, IDLE, PAPERS, PHASE, RATE, REQUEST,
    Reference, RelativeTo, SUBSCRIBERS, SaturationOf, Select, Side, Subject, Take, Threshold,
    UPDATES_TO, Value, Variant,
};
use crate::{kernel_calls::MAX_FUNCTIONS, metric, peer::Peer, statistics::Compare};
use anyhow::{Context as _, bail, ensure};
use pollux_event::MechanismSpec;
use std::collections::BTreeSet;

/// The most values of one axis: a slip must not plan a million runs.
const MAX_VALUES: usize = 64;

impl Experiment {
    /// Reads and checks an experiment.
    ///
    /// # Errors
    /// What is wrong, with the table and the field (and the line, for what TOML itself refuses).
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let experiment: Self = toml::from_str(text)?;
        experiment.check()?;
        if experiment.guest.is_some() {
            experiment.check_guest().context("[guest]")?;
        }
        Ok(experiment)
    }

    fn check_guest(&self) -> anyhow::Result<()> {
        let there = self.clone().in_guest();
        for name in self.guest.iter().flat_map(|guest| guest.values.keys()) {
            ensure!(self.axis.iter().any(|axis| axis.name == *name), "values: no axis {name:?}");
        }
        for name in self.guest.iter().flat_map(|guest| &guest.variants) {
            ensure!(there.variant.iter().any(|v| v.name == *name), "variants: no variant {name:?}");
        }
        ensure!(
            self.rate.as_ref().is_some_and(|_| self.phase.is_empty())
                || self.guest.iter().all(|g| g.fractions.is_none() && g.quick_fractions.is_none()),
            "fractions: the experiment has none"
        );
        there.check()
    }

    fn check(&self) -> anyhow::Result<()> {
        ensure!(
            self.deterministic_server_share.is_none(),
            "deterministic-server-share: a part of a CPU decides verdicts; give rates as multiples of a limit \
             ([rate] reference)"
        );
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        ensure!(
            !self.id.is_empty() && self.id.chars().all(plain),
            "id = {:?}: wants lower-case letters, digits and dashes (it names a directory)",
            self.id
        );
        match self.subject {
            Subject::Server => {
                ensure!(self.workload.is_some(), "workload is missing: what is served?");
                let wait = !self.wait.is_empty() || self.axis.iter().any(|a| a.wait_flag.is_some());
                let wait = wait || self.variant.iter().any(|variant| !variant.wait.is_empty());
                ensure!(
                    !wait,
                    "[wait] and wait-flag, and wait of a variant, are for subject = \"wait\""
                );
            }
            Subject::Wait => {
                let none = self.server.is_empty() && self.load.is_empty() && self.idle.is_empty();
                let none = none && self.variant.iter().all(|variant| variant.server.is_empty());
                let served = self.workload.is_some() || self.rate.is_some() || !none;
                ensure!(!served, "subject = \"wait\" has no server: no workload, [rate], [load] …");
            }
        }
        ensure!(
            self.kernel_calls.len() <= MAX_FUNCTIONS,
            "kernel-calls: at most {MAX_FUNCTIONS} functions"
        );
        ensure!(
            self.connections_per_worker != Some(0),
            "connections-per-worker = 0: a worker holds at least one"
        );
        self.full.check().context("[full]")?;
        self.quick.check().context("[quick]")?;
        self.check_clients()?;
        self.check_push()?;
        self.check_around()?;
        let mut axes = BTreeSet::new();
        for axis in &self.axis {
            axis.check(self.subject).with_context(|| format!("[[axis]] {:?}", axis.name))?;
            ensure!(axes.insert(axis.name.as_str()), "[[axis]] {:?} is there twice", axis.name);
        }
        if !self.phase.is_empty() {
            axes.insert(PHASE);
            self.check_phases()?;
        }
        let window_s = self.deterministic_window_seconds.unwrap_or(1.0);
        ensure!((0.1..=60.0).contains(&window_s), "deterministic-window-seconds: 0.1 to 60");
        let warmup_s = self.deterministic_warmup_seconds.unwrap_or(1.0);
        ensure!((0.1..=60.0).contains(&warmup_s), "deterministic-warmup-seconds: 0.1 to 60");
        let there = self.deterministic_limit_step;
        let steps = there.into_iter().chain(self.rate.as_ref().and_then(|rate| rate.limit_step));
        for step in steps {
            ensure!((0.002..=0.1).contains(&step), "limit-step: 0.002 to 0.1");
            ensure!(self.phase.is_empty(), "limit-step: not where phases say the rates");
        }
        if let Some(rate) = &self.rate {
            if self.phase.is_empty() {
                axes.insert(RATE);
                let given = !rate.fractions.is_empty() || !rate.rps.is_empty();
                ensure!(given, "[rate] fractions is empty");
                let fits = |rps: &f64| (0.01..=1e8).contains(rps);
                let quick = || rate.quick_rps.iter().flatten();
                let of_papers = || rate.paper_rps.iter().chain(&rate.beyond_rps);
                let mut all = rate.rps.iter().chain(quick()).chain(of_papers());
                ensure!(all.all(fits), "[rate] rps: 0.01 to 100,000,000");
                ensure!(
                    rate.quick_rps.is_none() || (!rate.rps.is_empty() && quick().next().is_some()),
                    "[rate] quick-rps: at least one rate, in place of those of rps"
                );
                let is_beyond = |rps: &f64| rate.paper_rps.last().is_some_and(|last| rps > last);
                ensure!(
                    rate.beyond_rps.iter().all(is_beyond),
                    "[rate] beyond-rps are above the last of paper-rps"
                );
            }
            for list in [Some(&rate.fractions), rate.quick_fractions.as_ref()].into_iter().flatten()
            {
                list.iter()
                    .try_for_each(|&share| check_share(share))
                    .context("[rate] fractions")?;
            }
            ensure!(
                rate.quick_fractions.as_ref().is_none_or(|list| !list.is_empty()),
                "[rate] quick-fractions is empty"
            );
            if let Some(reference) = &rate.reference {
                self.check_reference(reference).context("[rate] reference")?;
            }
            ensure!(
                rate.relative_to == RelativeTo::Slowest
                    || [self.full, self.quick].iter().all(|b| b.saturation_of == SaturationOf::All),
                "[rate] relative-to = \"fastest\" wants saturation-of = \"all\""
            );
            ensure!(rate.saturation_connections > 0, "[rate] saturation-connections is 0");
        }
        let mut names = BTreeSet::new();
        for variant in &self.variant {
            if !variant.mechanism.is_empty() {
                variant
                    .mechanism
                    .parse::<MechanismSpec>()
                    .with_context(|| format!("[[variant]] {:?}: mechanism", variant.name))?;
            }
            let name = variant.name.as_str();
            ensure!(names.insert(name), "[[variant]] {name:?} is there twice");
            self.check_tls(variant).with_context(|| format!("[[variant]] {name:?}: tls"))?;
        }
        if self.variant.is_empty() {
            names.extend(pollux_event::registry::ALL.iter().map(|entry| entry.name));
        }
        for figure in &self.figure {
            let place = || format!("[[figure]] {:?}", figure.id);
            metric::check(&figure.y).with_context(place)?;
            ensure!(axes.contains(figure.x.as_str()), "{}: no axis {:?}", place(), figure.x);
            for line in &figure.paper {
                let known = names.contains(line.variant.as_str());
                ensure!(known, "{}: paper: no variant {:?}", place(), line.variant);
            }
            for name in figure.at.keys() {
                ensure!(axes.contains(name.as_str()), "{}: no axis {name:?}", place());
            }
        }
        for name in &self.quick_variants {
            ensure!(names.contains(name.as_str()), "quick-variants: no variant {name:?}");
        }
        let mut ids = BTreeSet::new();
        for claim in &self.claim {
            ensure!(ids.insert(claim.id.as_str()), "[[claim]] {:?} is there twice", claim.id);
            self.check_claim(claim, &names, &axes)
                .with_context(|| format!("[[claim]] {:?}", claim.id))?;
        }
        Ok(())
    }

    fn check_tls(&self, variant: &Variant) -> anyhow::Result<()> {
        let Some(encryption) = variant.tls else { return Ok(()) };
        let is_simple = self.subject == Subject::Server && self.origin.is_none();
        ensure!(
            is_simple && self.request.is_empty() && variant.redis_benchmark.is_none(),
            "for a server of files alone: no [origin], no [[request]]"
        );
        if let Some(peer) = variant.peer {
            ensure!(peer.has_tls(), "{} is not set up for it here", peer.name());
        }
        ensure!(
            encryption == Encryption::Process || variant.peer == Some(Peer::Nginx),
            "\"kernel\" is for nginx: no other server here gives its keys to the kernel"
        );
        Ok(())
    }

    fn check_reference(&self, reference: &Reference) -> anyhow::Result<()> {
        let variant = &reference.variant;
        ensure!(self.variant.iter().any(|it| it.name == *variant), "no variant {variant:?}");
        for (name, select) in &reference.at {
            let axis = self.axis.iter().find(|axis| axis.name == *name);
            let axis = axis.with_context(|| format!("no axis {name:?}"))?;
            for values in std::iter::once(&axis.values).chain(&axis.quick_values) {
                ensure!(select.among(values).is_some(), "{name}: no value {}", select.0);
            }
        }
        Ok(())
    }

    fn check_phases(&self) -> anyhow::Result<()> {
        ensure!(self.subject == Subject::Server, "[[phase]] is for subject = \"server\"");
        let rate = self.rate.as_ref().context("[[phase]] wants [rate]: shares of what?")?;
        ensure!(
            rate.fractions.is_empty()
                && rate.quick_fractions.is_none()
                && rate.paper_rps.is_empty(),
            "[rate] has rates, and so has [[phase]]: leave those of [rate] out"
        );
        ensure!(self.phase.len() <= MAX_VALUES, "more than {MAX_VALUES} phases");
        let mut names = BTreeSet::new();
        for phase in &self.phase {
            let place = || format!("[[phase]] {:?}", phase.name);
            ensure!(names.insert(phase.name.as_str()), "{} is there twice", place());
            let ordinal = phase.name == "min" || phase.name == "max";
            ensure!(!ordinal, "{}: in claims this is the first or the last phase", place());
            check_share(phase.fraction).with_context(place)?;
            let fits = |seconds: f64| (0.1..=3600.0).contains(&seconds);
            ensure!(phase.seconds.is_none_or(fits), "{}: seconds: 0.1 to 3600", place());
            let settles = phase.settle_seconds.is_none_or(fits);
            ensure!(settles, "{}: settle-seconds: 0.1 to 3600", place());
        }
        ensure!(
            self.phase.iter().any(|phase| phase.seconds.is_none()),
            "[[phase]]: one without `seconds` is wanted, which takes the time that there is"
        );
        Ok(())
    }

    fn check_claim(
        &self,
        claim: &Claim,
        names: &BTreeSet<&str>,
        axes: &BTreeSet<&str>,
    ) -> anyhow::Result<()> {
        metric::check(&claim.metric)?;
        if let Threshold::Within([low, high]) = claim.holds {
            ensure!(
                low < high,
                "holds = {{ within = [{low}, {high}] }}: the lower limit comes first"
            );
        }
        ensure!(
            !claim.primary || claim.paper_key().is_some(),
            "primary stands for a figure of a paper; source begins with none of {}",
            PAPERS.join(", ")
        );
        ensure!(!claim.each.is_empty(), "each is empty: name the variants that it speaks of");
        for name in &claim.each {
            ensure!(names.contains(name.as_str()), "each: no variant {name:?}");
        }
        match (claim.compare, &claim.b) {
            (Compare::Value, Some(_)) => bail!("compare = \"value\" has no side b"),
            (Compare::Ratio | Compare::Difference, None) => {
                bail!("b is missing: what is it compared with?")
            }
            _ => {}
        }
        ensure!(
            claim.b.as_ref().is_none_or(|b| b.take != Take::Each),
            "b: take = \"each\" is for side a, whose points are then each compared with b"
        );
        if let Some(axis) = &claim.operating_points {
            ensure!(axes.contains(axis.as_str()), "operating-points: no axis {axis:?}");
        }
        if let Some(control) = &claim.control {
            let is_there = self.claim.iter().any(|claim| claim.id == *control);
            ensure!(is_there, "control: no claim {control:?}");
        }
        for (name, side) in [("a", Some(&claim.a)), ("b", claim.b.as_ref())] {
            let Some(side) = side else { continue };
            let mut side = side.clone();
            // Each of its values is named in turn.
            side.over.extend(claim.operating_points.clone());
            self.check_side(&side, claim.full_form_only, names, axes)
                .with_context(|| name.to_owned())?;
        }
        Ok(())
    }

    fn check_side(
        &self,
        side: &Side,
        full_form_only: bool,
        names: &BTreeSet<&str>,
        axes: &BTreeSet<&str>,
    ) -> anyhow::Result<()> {
        for name in [&side.variant, &side.minus].into_iter().flatten() {
            ensure!(names.contains(name.as_str()), "no variant {name:?}");
        }
        if let Some(name) = &side.metric {
            metric::check(name)?;
        }
        for name in side.at.keys().chain(&side.over) {
            ensure!(axes.contains(name.as_str()), "no axis {name:?}");
        }
        if let Some(multiple) = side.at.get(RATE).and_then(Select::multiple) {
            let rate = self.rate.as_ref().filter(|rate| rate.reference.is_some());
            let rate = rate.context("at.rate: multiples want [rate] reference")?;
            let quick = rate.quick_fractions.as_ref().filter(|_| !full_form_only);
            let has = |list: &Vec<f64>| list.contains(&multiple);
            let all = has(&rate.fractions) && quick.is_none_or(has);
            ensure!(all, "at.rate: {multiple} is none of [rate] fractions and quick-fractions");
        }
        let phases: Vec<Value> = self.phase.iter().map(|p| Value::Word(p.name.clone())).collect();
        let phases = (!phases.is_empty()).then_some((PHASE, &phases, None));
        let axes = self.axis.iter().map(|a| (a.name.as_str(), &a.values, a.quick_values.as_ref()));
        for (axis, values, quick_values) in axes.chain(phases) {
            let quick_values = quick_values.filter(|_| !full_form_only);
            for values in [Some(values), quick_values].into_iter().flatten() {
                let chosen = side.at.get(axis);
                let free = side.over.iter().any(|over| over == axis) || values.len() == 1;
                match chosen {
                    Some(select) if select.among(values).is_none() => bail!(
                        "at.{} = {}: the axis has no such value (\"min\" and \"max\" always work)",
                        axis,
                        select.0
                    ),
                    None if !free => bail!(
                        "axis {:?} has several values: name one in `at`, or sum up with `over`",
                        axis
                    ),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

fn check_share(share: f64) -> anyhow::Result<()> {
    ensure!(share > 0.0 && share <= 2.0, "{share} is not a share of the saturation (0 to 2)");
    Ok(())
}

impl Axis {
    fn check(&self, subject: Subject) -> anyhow::Result<()> {
        ensure!(self.name != PHASE, "phases have a table of their own: [[phase]]");
        ensure!(self.name != RATE, "the rate has a table of its own: [rate]");
        for values in [Some(&self.values), self.quick_values.as_ref()].into_iter().flatten() {
            ensure!(!values.is_empty(), "values is empty");
            ensure!(values.len() <= MAX_VALUES, "more than {MAX_VALUES} values");
            if self.name == IDLE {
                let counts = |v: &Value| v.number().is_some_and(|n| n >= 0.0 && n.fract() == 0.0);
                ensure!(values.iter().all(counts), "wants numbers of connections");
            }
        }
        match subject {
            Subject::Server => ensure!(
                self.name == IDLE
                    || self.name == CLIENTS
                    || self.name == REQUEST
                    || [SUBSCRIBERS, UPDATES_TO].contains(&self.name.as_str())
                    || self.server_flag.is_some()
                    || self.load_flag.is_some(),
                "it changes nothing: give server-flag or load-flag"
            ),
            Subject::Wait => {
                ensure!(self.wait_flag.is_some(), "it changes nothing: give wait-flag");
            }
        }
        Ok(())
    }
}

impl Budget {
    fn check(&self) -> anyhow::Result<()> {
        ensure!(self.seconds >= 1.0 && self.seconds <= 86_400.0, "seconds: 1 to 86400");
        ensure!((1..=100).contains(&self.blocks), "blocks: 1 to 100");
        ensure!(self.min_window_seconds >= 0.1, "min-window-seconds: at least 0.1");
        ensure!(
            self.max_window_seconds >= self.min_window_seconds,
            "max-window-seconds is below min-window-seconds"
        );
        let fits = (0.0..=600.0).contains(&self.warmup_seconds);
        ensure!(fits, "warmup-seconds: 0 to 600");
        ensure!(self.saturation_seconds >= 0.1, "saturation-seconds: at least 0.1");
        Ok(())
    }
}
