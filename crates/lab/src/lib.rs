//! The laboratory: experiments as data, paired measurement, judged claims, a report.
//!
//! # Guide
//!
//! An [`experiment`] is a TOML file that defines the compared servers or mechanisms (variants), the axes,
//! the rates, the time, the figures, and the claims of the papers. [`run`] runs it: it finds the saturation
//! of the reference variant, sets the rates, and then measures every cell block by block in mirrored orders
//! ([`plan`]). Each run has its own server and generator, which are pinned processes. [`measure`] converts
//! their output to metrics ([`metric`]), [`statistics`] computes means and paired ratios with intervals,
//! and [`claims`] computes verdicts. All results are written to `result.json` ([`result`]), from which
//! [`report`] renders the page.
//!
//! No code here depends on a mechanism's name: mechanisms come from the registry and from the files. To add
//! an experiment, add a file under `experiments/` and its line in [`experiment`].

pub mod advise;
pub mod archive;
pub mod claims;
pub mod compare;
mod conclusion;
pub mod doctor;
pub mod environment;
pub mod experiment;
pub mod floor;
pub mod format;
pub mod kernel_calls;
pub mod law;
pub mod measure;
pub mod memory;
pub mod metric;
pub mod network;
pub mod papers;
pub mod peer;
pub mod plan;
pub mod report;
pub mod result;
pub mod run;
pub mod statistics;
pub mod steady;
pub mod switches;
pub mod sys;
pub mod tries;
pub mod verdict;
pub mod wait_cost;
