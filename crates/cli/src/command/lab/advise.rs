//! `pollux lab advise`.

use crate::{print::print_all, terminal, usage::UsageError};
use anyhow::Context as _;
use pollux_lab::{
    advise::Question,
    run::{
        Settings, executable::Executable, interrupt::Interrupt, progress::Progress, trial::Programs,
    },
};
use std::process::ExitCode;

/// Measures in a temporary directory, which is removed after the answer.
pub(super) fn run(question: Question) -> anyhow::Result<ExitCode> {
    let experiment =
        question.experiment().map_err(|error| UsageError::new(format!("{error:#}")))?;
    let executable = Executable::of_this_process()?;
    let settings = Settings {
        experiment: &experiment,
        quick: false,
        paper_rates: false,
        rates: None,
        seed: 1,
        programs: Programs::of(executable.path()),
        interrupt: Interrupt::on_signals().context("cannot catch Ctrl-C")?,
        progress: Progress::shown(terminal::shows_progress()),
        keep_in: None,
        resume: None,
        built: super::built(),
    };
    let outcome = pollux_lab::run::run(&settings);
    settings.progress.finish();
    let outcome = outcome?;
    let advice = question.advice(&outcome);
    print_all(&question.text(&advice))?;
    let has_valid_run = advice.iter().any(|it| it.measured.is_ok());
    Ok(super::exit_code(outcome.interrupted, has_valid_run))
}
