//! The rates of an experiment.

use super::value::Select;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The rates of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Rate {
    /// Absolute rates in requests per second, which are the same in each run. If absent, the rates are
    /// shares of the saturation, which is measured anew in each run.
    #[serde(default)]
    pub rps: Vec<f64>,
    /// Rates as shares of the measured saturation; absent if phases specify them.
    #[serde(default)]
    pub fractions: Vec<f64>,
    /// The limit of which all rates are multiples, so that every variant and every number of idle
    /// connections has the same axis. If absent, they are shares of the saturation that `relative-to`
    /// names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference: Option<Reference>,
    /// The variant whose saturation is the reference. It is measured first, at the last value of every
    /// axis.
    #[serde(default)]
    pub relative_to: RelativeTo,
    /// The paper's own rates in requests per second, for `--paper-rates`; empty when the paper gives none.
    #[serde(default)]
    pub paper_rps: Vec<f64>,
    /// The step of the rates around each limit, as a share of the limit. The limit of each variant at each
    /// point is searched for before the blocks, and the variant is also measured at rates around it
    /// ([`crate::run::limits`]); not with `--paper-rates`. If absent, all variants have the same rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_step: Option<f64>,
    /// The number of connections of the closed loop that finds the saturation.
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
    /// The values of axes; an axis that is not named has its last value.
    #[serde(default)]
    pub at: BTreeMap<String, Select>,
}

/// The variant of whose saturation the rates are shares.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RelativeTo {
    /// The slowest variant: every variant can serve a rate below its saturation.
    #[default]
    Slowest,
    /// The fastest variant: the others are driven into overload.
    Fastest,
}
