//! Checks that the types of an experiment cannot express.

use super::{
    Axis, Budget, CLIENTS, Claim, Encryption, Experiment, Form, IDLE, PAPERS, PHASE, RATE, REQUEST,
    Rate, Reference, RelativeTo, SUBSCRIBERS, SaturationOf, Select, Side, Subject, Take, Threshold,
    UPDATES_TO, Value, Variant, implied::complete_claims,
};
use crate::{kernel_calls::MAX_FUNCTIONS, metric, peer::Peer, statistics::Compare};
use anyhow::{Context as _, bail, ensure};
use pollux_event::MechanismSpec;
use serde::Deserialize as _;
use std::collections::BTreeSet;
use toml::de::DeTable;

/// The most values of one axis, so that a typing error does not plan a million runs.
const MAX_VALUES: usize = 64;

impl Experiment {
    /// Reads an experiment and checks it in every form. The result still has its overlays;
    /// [`Experiment::form`] applies them.
    ///
    /// # Errors
    /// When the file is invalid. The message names the table and the field (and the line, for errors of the
    /// TOML syntax of the base), and the overlay if the error is in one.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let mut table = DeTable::parse(text)?;
        complete_claims(table.get_mut())?;
        let base = Self::deserialize(toml::Deserializer::from(table));
        let mut base = base.map_err(|mut error| {
            error.set_input(Some(text));
            error
        })?;
        base.fill_in();
        for variant in &base.variant {
            let is_listed = base.variants.is_empty() || base.variants.contains(&variant.name);
            ensure!(is_listed, "[[variant]] {:?} is not among `variants`", variant.name);
        }
        base.choose_variants()?;
        base.check()?;
        // This check applies to the base alone: a form may have fewer variants than the paper.
        for figure in &base.figure {
            let is_there = |name: &String| base.variant.iter().any(|it| it.name == *name);
            let unknown = figure.paper.iter().map(|line| &line.variant).find(|it| !is_there(it));
            if let Some(name) = unknown {
                bail!("[[figure]] {:?}: paper: no variant {name:?}", figure.id);
            }
        }
        for form in Form::ALL.into_iter().filter(|form| *form != Form::default()) {
            let overlaid = base.form(form)?;
            overlaid.check().with_context(|| form.to_string())?;
        }
        Ok(base)
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
            "id = {:?}: expected lower-case letters, digits and dashes (it names a directory)",
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
        self.budget.check().context("[budget]")?;
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
        if let Some(rate) = &self.rate {
            self.check_rate(rate).context("[rate]")?;
            if self.phase.is_empty() {
                axes.insert(RATE);
            }
        }
        let names = self.check_variants()?;
        for figure in &self.figure {
            let place = || format!("[[figure]] {:?}", figure.id);
            metric::check(&figure.y).with_context(place)?;
            ensure!(axes.contains(figure.x.as_str()), "{}: no axis {:?}", place(), figure.x);
            for name in figure.at.keys() {
                ensure!(axes.contains(name.as_str()), "{}: no axis {name:?}", place());
            }
        }
        let mut ids = BTreeSet::new();
        for claim in &self.claim {
            ensure!(ids.insert(claim.id.as_str()), "[[claim]] {:?} is there twice", claim.id);
            self.check_claim(claim, &names, &axes)
                .with_context(|| format!("[[claim]] {:?}", claim.id))?;
        }
        Ok(())
    }

    fn check_rate(&self, rate: &Rate) -> anyhow::Result<()> {
        if self.phase.is_empty() {
            let given = !rate.fractions.is_empty() || !rate.rps.is_empty();
            ensure!(given, "fractions is empty");
            let mut all = rate.rps.iter().chain(&rate.paper_rps);
            ensure!(all.all(|rps| (0.01..=1e8).contains(rps)), "rps: 0.01 to 100,000,000");
        }
        if let Some(step) = rate.limit_step {
            ensure!((0.002..=0.1).contains(&step), "limit-step: 0.002 to 0.1");
            ensure!(self.phase.is_empty(), "limit-step: not where phases say the rates");
        }
        rate.fractions.iter().try_for_each(|&share| check_share(share)).context("fractions")?;
        if let Some(reference) = &rate.reference {
            self.check_reference(reference).context("reference")?;
        }
        ensure!(
            rate.relative_to == RelativeTo::Slowest
                || self.budget.saturation_of == SaturationOf::All,
            "relative-to = \"fastest\" needs saturation-of = \"all\""
        );
        ensure!(rate.saturation_connections > 0, "saturation-connections is 0");
        Ok(())
    }

    /// Checks the variants and returns their names.
    fn check_variants(&self) -> anyhow::Result<BTreeSet<&str>> {
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
        Ok(names)
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
            let axis = self.find_axis(name).with_context(|| format!("no axis {name:?}"))?;
            ensure!(select.among(&axis.values).is_some(), "{name}: no value {}", select.0);
        }
        Ok(())
    }

    fn check_phases(&self) -> anyhow::Result<()> {
        ensure!(self.subject == Subject::Server, "[[phase]] is for subject = \"server\"");
        let rate = self.rate.as_ref().context("[[phase]] needs [rate]: shares of what?")?;
        ensure!(
            rate.fractions.is_empty() && rate.paper_rps.is_empty(),
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
        let is_along_rates = claim.operating_points.as_deref() == Some(RATE);
        ensure!(
            !claim.up_to_limit || is_along_rates,
            "up-to-limit: expected operating-points = \"rate\""
        );
        if !claim.operating_rates.is_empty() {
            let rate = self.rate.as_ref().filter(|rate| rate.reference.is_some());
            let rate = rate.context("operating-rates: multiples want [rate] reference")?;
            let has =
                |select: &Select| select.multiple().is_some_and(|of| rate.fractions.contains(&of));
            // A short form may lack some of them.
            let any = claim.operating_rates.iter().any(has);
            ensure!(any, "operating-rates: none of them is among [rate] fractions");
            let is_multiple = claim.a.at.get(RATE).is_some_and(|at| at.multiple().is_some());
            ensure!(
                is_multiple,
                "operating-rates: a.at.rate is no multiple, so it would change nothing"
            );
        }
        if let Some(control) = &claim.control {
            ensure!(self.find_claim(control).is_some(), "control: no claim {control:?}");
        }
        for (name, side) in ["a", "b"].into_iter().zip(claim.sides()) {
            let mut side = side.clone();
            // Each value of this axis is used in turn.
            side.over.extend(claim.operating_points.clone());
            self.check_side(&side, names, axes).context(name)?;
        }
        Ok(())
    }

    fn check_side(
        &self,
        side: &Side,
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
            let has = rate.fractions.contains(&multiple);
            ensure!(has, "at.rate: {multiple} is none of [rate] fractions");
        }
        let phases: Vec<Value> = self.phase.iter().map(|p| Value::Word(p.name.clone())).collect();
        let phases = (!phases.is_empty()).then_some((PHASE, &phases));
        let axes = self.axis.iter().map(|axis| (axis.name.as_str(), &axis.values));
        for (axis, values) in axes.chain(phases) {
            let free = side.over.iter().any(|over| over == axis) || values.len() == 1;
            match side.at.get(axis) {
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
        ensure!(!self.values.is_empty(), "values is empty");
        ensure!(self.values.len() <= MAX_VALUES, "more than {MAX_VALUES} values");
        if self.name == IDLE {
            let counts = |v: &Value| v.number().is_some_and(|n| n >= 0.0 && n.fract() == 0.0);
            ensure!(self.values.iter().all(counts), "expected numbers of connections");
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
        ensure!((1..=100).contains(&self.figure_blocks.unwrap_or(1)), "figure-blocks: 1 to 100");
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
