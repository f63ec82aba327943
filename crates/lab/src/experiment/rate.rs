//! How much is sent.

use super::value::Select;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How much is sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Rate {
    /// As they are, in requests per second: the same on every day. Else shares of the saturation,
    /// which is measured anew in each run.
    #[serde(default)]
    pub rps: Vec<f64>,
    /// As shares of the measured saturation; not where phases say it.
    #[serde(default)]
    pub fractions: Vec<f64>,
    /// The rates are multiples of this limit alone: the same axis for every variant and every number of idle
    /// connections. Else of the saturation that `relative-to` names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<Reference>,
    /// Whose saturation: it is measured first, at the last value of every axis.
    #[serde(default)]
    pub relative_to: RelativeTo,
    /// The paper's own rates in requests per second, for `--paper-rates`; empty when the paper
    /// has none to offer.
    #[serde(default)]
    pub paper_rps: Vec<f64>,
    /// The limit of each variant at each point is sought before the blocks, and it is offered rates around that
    /// too, in steps of this part of it ([`crate::run::limits`]); not with `--paper-rates`. None: all are offered the
    /// same rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_step: Option<f64>,
    /// Connections of the closed loop that finds the saturation.
    #[serde(default = "saturation_connections")]
    pub saturation_connections: u32,
}

fn saturation_connections() -> u32 {
    64
}

/// The limit of one variant at one point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Reference {
    /// The variant.
    pub variant: String,
    /// The values of axes; the last of one that is not named.
    #[serde(default)]
    pub at: BTreeMap<String, Select>,
}

/// Whose saturation the rates are shares of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RelativeTo {
    /// The slowest variant's: every variant can serve a rate below it.
    #[default]
    Slowest,
    /// The fastest variant's: the others are driven into overload.
    Fastest,
}
