//! The laboratory: experiments as data, paired measurement, judged claims, a report.
//!
//! # Guide
//!
//! An [`experiment`] is a TOML file: what is compared (variants), what is varied (axes), how much
//! is sent, how long it may take, what is drawn and what the papers claim. [`run`] carries it
//! out: it finds the saturation of the slowest variant, sets the rates, and then measures every
//! cell block by block in mirrored orders ([`plan`]), each run with a server and a generator of
//! its own, as pinned processes. [`measure`] turns what they say into metrics ([`metric`]),
//! [`statistics`] into means and paired ratios with intervals, [`claims`] into verdicts. All of it
//! goes into `result.json` ([`result`]), from which [`report`] renders the page.
//!
//! Nothing here knows a mechanism by name: they come from the registry and from the files.
//! To add an experiment, add a file under `experiments/` and its line in [`experiment`].

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
pub mod verdict;
pub mod wait_cost;
