//! An experiment as data: its axes, its variants, its claims.
//!
//! The files under `experiments/` are TOML files of this structure; `experiments/idle.toml` documents each
//! field that it uses. Unknown fields are errors, and [`Experiment::parse`] checks the conditions that
//! types alone cannot express (see `validate`).

mod around;
mod built_in;
mod claim;
mod clients;
mod form;
mod implied;
mod push;
mod rate;
pub mod soundness;
mod stored;
#[cfg(test)]
mod tests;
mod validate;
mod value;

pub use around::{
    Core, Exclusion, Origin, REQUEST, Redis, RedisBenchmark, Request, Storm, filled_in,
};
pub(crate) use built_in::find_built_in;
pub use built_in::{find, ids, text};
pub use claim::{Claim, PAPERS, Side, Take, Threshold};
pub use clients::{CLIENTS, Clients, SESSION, Where};
pub use form::Form;
pub use push::{Push, PushLoad, SUBSCRIBERS, UPDATES_TO, UpdatesTo};
pub use rate::{Rate, Reference, RelativeTo};
pub use value::{Flags, Point, Select, Value, arguments};

use crate::{metric::Metric, peer::Peer};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use toml::Table;

/// One experiment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Experiment {
    /// The name on the command line.
    pub id: String,
    /// The title in one line.
    pub title: String,
    /// The figures or tables of the papers that the experiment reproduces.
    pub source: String,
    /// The method and its reason, in a paragraph or two; shown at the head of the report.
    pub summary: String,
    /// Why a limit on open connections (`max-connections`), or on connections that wait to be accepted
    /// (`backlog`), is the same everywhere. Such a limit may decide a verdict; unless this reason names it, it
    /// must be an axis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constant_caps: Option<String>,
    /// The machine on which the server and the generator run.
    #[serde(default)]
    pub place: Machine,
    /// The subject of the measurement.
    #[serde(default)]
    pub subject: Subject,
    /// The CPU that does the network's receive work.
    #[serde(default)]
    pub receive_on: ReceiveOn,
    /// The length of the server's signal queue after all idle connections are open. Until then the queue
    /// has its usual length, so that opening the connections does not make it overflow before the measured
    /// window.
    pub signal_queue_when_held: Option<u64>,
    /// How many idle connections, or subscribers, a worker holds on average. The server gets as many workers as
    /// this requires, each with its own descriptor table. If absent, `[server]` specifies the number of workers.
    pub connections_per_worker: Option<u32>,
    /// Kernel functions whose calls by the server, or by the wait, are counted ([`crate::kernel_calls`]).
    /// Counting slows these functions, so that the times of such a server are not meaningful.
    #[serde(default)]
    pub kernel_calls: Vec<String>,
    /// Whether the server's context switches are counted ([`crate::switches`]). Counting makes each switch
    /// slightly slower.
    #[serde(default)]
    pub context_switches: bool,
    /// The axis with the number of connections that are open at a time: the server's memory is read in the
    /// middle of a window and divided by this number.
    pub memory_per: Option<String>,
    /// The served content; for `subject = "server"`.
    pub workload: Option<Workload>,
    /// The Redis behind a guestbook.
    pub redis: Option<Redis>,
    /// The origin behind the measured server.
    pub origin: Option<Origin>,
    /// The requested resources, by name; they are the values of an axis called [`REQUEST`].
    #[serde(default)]
    pub request: Vec<Request>,
    /// Flags of `pollux serve` for every variant.
    #[serde(default)]
    pub server: Flags,
    /// Flags of `pollux load` for every run.
    #[serde(default)]
    pub load: Flags,
    /// Flags of `pollux idle` for every run that holds idle connections.
    #[serde(default)]
    pub idle: Flags,
    /// Flags of `pollux lab wait-cost`, for `subject = "wait"`.
    #[serde(default)]
    pub wait: Flags,
    /// The distance of the clients, for the axis called [`CLIENTS`].
    pub clients: Option<Clients>,
    /// The updates that a push server delivers instead of responses to requests. The axes are
    /// [`SUBSCRIBERS`] and [`UPDATES_TO`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub push: Option<Push>,
    /// The compared variants; empty means every mechanism in the registry.
    #[serde(default)]
    pub variant: Vec<Variant>,
    /// The names of the variants, in their order; a name without a `[[variant]]` means the mechanism of this
    /// name. In an overlay: the variants of that form; claims about others are not judged there. Empty means
    /// all variants.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<String>,
    /// The axes beside the variant. The cells are the product of all axes.
    #[serde(default)]
    pub axis: Vec<Axis>,
    /// The points at which nothing is measured, with the reasons.
    #[serde(default)]
    pub left_out: Vec<Exclusion>,
    /// The phases that a server goes through one after the other; an axis called [`PHASE`].
    #[serde(default)]
    pub phase: Vec<Phase>,
    /// The rates. If absent, the load flags specify the load (closed loop).
    pub rate: Option<Rate>,
    /// The part of the CPU that the server had in the deterministic guest until 27 November. Because it decides
    /// verdicts, no experiment may set it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deterministic_server_share: Option<f64>,
    /// The cells that are measured.
    #[serde(default, skip_serializing_if = "Cells::is_all")]
    pub cells: Cells,
    /// The time of a run.
    #[serde(default)]
    pub budget: Budget,
    /// The overlay for `--quick` ([`Experiment::form`]).
    #[serde(default, skip_serializing_if = "Table::is_empty")]
    pub quick: Table,
    /// The overlay for a guest: the guest's CPU is emulated, a generator there is not accurate to
    /// milliseconds, and the time is enough only for few variants.
    #[serde(default, skip_serializing_if = "Table::is_empty")]
    pub guest: Table,
    /// The additional overlay for a guest whose clock counts instructions.
    #[serde(default, skip_serializing_if = "Table::is_empty")]
    pub deterministic: Table,
    /// The figures of the report.
    #[serde(default)]
    pub figure: Vec<Figure>,
    /// The judged claims.
    #[serde(default)]
    pub claim: Vec<Claim>,
}

impl Experiment {
    /// Returns the claim of this name.
    pub(crate) fn find_claim(&self, id: &str) -> Option<&Claim> {
        self.claim.iter().find(|claim| claim.id == id)
    }

    /// Returns the axis of this name.
    fn find_axis(&self, name: &str) -> Option<&Axis> {
        self.axis.iter().find(|axis| axis.name == name)
    }

    /// Whether a figure or a claim uses the metric. Statistics that are expensive for the
    /// server are requested only if one does.
    pub(crate) fn looks_at(&self, metric: Metric) -> bool {
        let drawn = self.figure.iter().map(|figure| figure.y.as_str());
        let sides = self.claim.iter().flat_map(|claim| claim.sides());
        let of_sides = sides.filter_map(|side| side.metric.as_deref());
        let judged = self.claim.iter().map(|claim| claim.metric.as_str());
        drawn.chain(judged).chain(of_sides).any(|name| name == metric.name())
    }
}

/// The cells of an experiment that are measured ([`crate::law::fit`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cells {
    /// Every cell.
    #[default]
    All,
    /// The third of the cells on which a law is fitted.
    Fit,
    /// The other variants, whose results the law has to predict.
    Rest,
}

impl Cells {
    fn is_all(&self) -> bool {
        *self == Self::All
    }
}

/// The machine on which an experiment runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Machine {
    /// This machine with its kernel.
    #[default]
    Host,
    /// A guest kernel that has /dev/poll (`pollux vm`).
    Guest,
    /// A guest whose clock counts instructions (`pollux vm --deterministic`), so that figures are repeatable.
    DeterministicGuest,
}

/// The CPU that receives packets; see [`crate::network`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReceiveOn {
    /// The CPU of the sender, which is the default of the loopback interface.
    #[default]
    Sender,
    /// The server's CPU, for all packets.
    Server,
}

/// The subject of an experiment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// A server under load.
    #[default]
    Server,
    /// The wait call of a mechanism alone ([`crate::wait_cost`]).
    Wait,
}

/// The content that the server serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// One file of one byte (gammo section 4.1).
    OneByte,
    /// One document of 6 KB (provos section 5).
    #[serde(rename = "6-kb")]
    SixKb,
    /// Files like those of SPECweb99's static part (gammo section 4.1): four classes of nine sizes in each
    /// of eight directories. The server's cache can store all of them.
    #[serde(rename = "specweb99-like")]
    Specweb99Like,
    /// The page of a guestbook, which the server generates for each request (zerohttpd).
    Guestbook,
}

/// One of the compared servers or mechanisms.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Variant {
    /// The name in tables and figures.
    pub name: String,
    /// The value of `--mechanism`, with options: `devpoll:results=mmap`. Empty for an architecture with its
    /// own way of waiting, for a peer and for the floor; otherwise, if absent, the value of `name`.
    #[serde(default)]
    pub mechanism: String,
    /// The value of `--architecture`, if it is not the event loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// Another server in place of `pollux serve`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<Peer>,
    /// Redis' own benchmark in place of `pollux serve`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redis_benchmark: Option<RedisBenchmark>,
    /// The floor of a server in place of `pollux serve` ([`crate::floor`]): it sends the same bytes as the
    /// variant of this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor_of: Option<String>,
    /// Flags of `pollux lab floor`, for a floor: `threads = "{concurrency}"` for one thread for each
    /// client.
    #[serde(default, skip_serializing_if = "Flags::is_empty")]
    pub floor: Flags,
    /// The encryption of HTTPS between the server and the clients; all variants use the same certificate.
    /// If absent: plain HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Encryption>,
    /// Further flags of `pollux serve`; they override the experiment's.
    #[serde(default)]
    pub server: Flags,
    /// Further flags of `pollux lab wait-cost`; they override the experiment's.
    #[serde(default)]
    pub wait: Flags,
    /// The value of [`Experiment::signal_queue_when_held`] for this variant, if it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal_queue_when_held: Option<u64>,
    /// The values of axes at which the variant runs, by the name of the axis; an axis that is not named
    /// here has no restriction.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub only: BTreeMap<String, Vec<Value>>,
    /// The largest values of axes at which the variant runs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub at_most: BTreeMap<String, f64>,
    /// Why the variant does not run at other points.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<String>,
}

/// The program that encrypts what a server sends over TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Encryption {
    /// The server itself.
    Process,
    /// The kernel, to which the server gives the keys after the handshake (kernel TLS).
    Kernel,
}

impl Variant {
    /// Returns the variant of the mechanism `name` without options, under its own name.
    pub fn of_mechanism(name: &str) -> Self {
        Self { name: name.into(), mechanism: name.into(), ..Self::default() }
    }

    /// Returns why the variant does not run at `point`, if so.
    pub fn left_out(&self, point: &Point) -> Option<String> {
        let elsewhere = point.iter().any(|(axis, value)| {
            let only = self.only.get(axis).is_some_and(|values| !values.contains(value));
            let above = self.at_most.get(axis).zip(value.number()).is_some_and(|(m, v)| v > *m);
            only || above
        });
        elsewhere.then(|| self.because.clone().unwrap_or_else(|| "it is not made for this".into()))
    }
}

/// An axis of the experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Axis {
    /// The name in claims and figures. The axis `idle` holds that many idle connections during the run; the
    /// axis `clients` gives the location of the clients.
    pub name: String,
    /// The label in figures.
    pub label: String,
    /// Its values.
    pub values: Vec<Value>,
    /// The flag of `pollux serve` that takes the value.
    pub server_flag: Option<String>,
    /// The flag of `pollux load` that takes the value.
    pub load_flag: Option<String>,
    /// The flag of `pollux lab wait-cost` that takes the value.
    pub wait_flag: Option<String>,
}

/// The axis of the number of idle connections.
pub const IDLE: &str = "idle";
/// The axis of [`Rate`].
pub const RATE: &str = "rate";

/// The axis of [`Phase`].
pub const PHASE: &str = "phase";

/// A part of a load whose rate rises and falls: the phases of a run follow each other without a gap, on the
/// same server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Phase {
    /// The phase's name: a value of the axis.
    pub name: String,
    /// The phase's rate as a share of the measured saturation.
    pub fraction: f64,
    /// The phase's length in seconds, if it is not that of the run's window.
    pub seconds: Option<f64>,
    /// The time from the start of the phase to its measurement, in which the requests of the previous phase
    /// are answered or time out. Zero if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settle_seconds: Option<f64>,
}

impl Phase {
    /// Returns the time that the phase takes beside the run's window, in seconds.
    pub fn beside_window_s(&self) -> f64 {
        self.seconds.unwrap_or(0.0) + self.settle_seconds.unwrap_or(0.0)
    }
}

/// The time of a run, and how it is spent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Budget {
    /// The total time: saturation, every run, the report.
    pub seconds: f64,
    /// The most measurements of each cell. There are fewer if all claims are decided earlier
    /// ([`crate::statistics::sequential`]), or the time is over.
    pub blocks: u32,
    /// The most measurements of a cell that no claim reads: it is measured for the figures. `None`: as many as of the
    /// others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub figure_blocks: Option<u32>,
    /// The shortest measured window of a run. All runs of an experiment have windows of the same length,
    /// which is determined before the first run.
    pub min_window_seconds: f64,
    /// The longest measured window of one run.
    pub max_window_seconds: f64,
    /// The longest time that a load lasts before it is measured. Phases have no warm-up, because the change
    /// is their subject.
    pub warmup_seconds: f64,
    /// Whether a pilot measures how long the slowest variant takes to become steady ([`crate::steady`]).
    /// The warm-up then lasts only that long. Without a pilot it always has its full length, which may be
    /// too short: the measured windows then show whether the replies beyond a server's limit still changed,
    /// and claims are judged accordingly ([`crate::claims`]).
    pub pilot: bool,
    /// The window of one saturation probe.
    pub saturation_seconds: f64,
    /// The variants that are probed for saturation.
    pub saturation_of: SaturationOf,
}

impl Default for Budget {
    /// Returns the budget of a full run.
    fn default() -> Self {
        Self {
            seconds: 900.0,
            blocks: 40,
            figure_blocks: None,
            min_window_seconds: 2.0,
            max_window_seconds: 8.0,
            warmup_seconds: 0.0,
            pilot: true,
            saturation_seconds: 4.0,
            saturation_of: SaturationOf::All,
        }
    }
}

/// The variants that are probed for saturation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SaturationOf {
    /// Every variant.
    All,
    /// The variants whose waits cost more the more connections are watched, according to the registry; all
    /// if there are none.
    Costly,
}

/// One figure of the report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Figure {
    /// The file name.
    pub id: String,
    /// The title; the metric's label if absent.
    #[serde(default)]
    pub title: String,
    /// A description of the result.
    #[serde(default)]
    pub caption: String,
    /// The axis along which the figure is drawn; each variant is a line or a group of bars.
    pub x: String,
    /// The metric (see [`crate::metric`]).
    pub y: String,
    /// Logarithmic x axis, for positive numbers.
    #[serde(default)]
    pub log_x: bool,
    /// Logarithmic y axis.
    #[serde(default)]
    pub log_y: bool,
    /// Whether the values are also shown in a table on the terminal.
    #[serde(default)]
    pub in_terminal: bool,
    /// Values of the other axes. An axis that is neither here nor `x` gets one figure per value.
    #[serde(default)]
    pub at: BTreeMap<String, Select>,
    /// The values of the paper, drawn as thin lines beside the variants of the same names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paper: Vec<PaperLine>,
}

/// A column of a paper's table, or a number that a paper states.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PaperLine {
    /// The name in the paper.
    pub name: String,
    /// The variant to which it corresponds.
    pub variant: String,
    /// The positions on the axis, each with the measured value.
    #[serde(default)]
    pub points: Vec<[f64; 2]>,
    /// A value that the paper gives for one point: it is a mark at the last value of the axis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<f64>,
    /// The values of the other axes at which the paper measured; an axis that is not named here has any value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub at: BTreeMap<String, Select>,
    /// The place in the paper, if it is not that of the experiment's claims.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}
