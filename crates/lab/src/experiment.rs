//! An experiment as data: what varies, what runs, what is judged.
//!
//! The files under `experiments/` are TOML in this model; `experiments/idle.toml` documents each
//! field where it uses it. Unknown fields are errors, and [`Experiment::parse`] checks what types
//! alone cannot (see `validate`).

mod around;
mod built_in;
mod claim;
mod clients;
mod form;
mod implied;
mod kept;
mod push;
mod rate;
pub mod soundness;
#[cfg(test)]
mod tests;
mod validate;
mod value;
mod wanted;

pub use around::{
    Core, Exclusion, Origin, REQUEST, Redis, RedisBenchmark, Request, Storm, filled_in,
};
pub(crate) use built_in::find_built_in;
pub use built_in::{find, ids, text};
pub use claim::{Claim, PAPERS, Side, Take, Threshold};
pub use clients::{CLIENTS, Clients, SESSION, Where};
pub use form::Form;
pub(crate) use kept::renew;
pub use push::{Push, PushLoad, SUBSCRIBERS, UPDATES_TO, UpdatesTo};
pub use rate::{Rate, Reference, RelativeTo};
pub use value::{Flags, Point, Select, Value, arguments};

use crate::peer::Peer;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use toml::Table;

/// One experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Experiment {
    /// Name on the command line.
    pub id: String,
    /// One line.
    pub title: String,
    /// The figures or tables of the papers that it re-runs.
    pub source: String,
    /// What is done and why, in a paragraph or two; shown at the head of the report.
    pub summary: String,
    /// Why a bound on open connections, or on those that wait to be accepted, is the same everywhere: such a bound
    /// may decide a verdict, and is an axis otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constant_caps: Option<String>,
    /// Where the server and the generator run.
    #[serde(default)]
    pub place: Machine,
    /// What is measured.
    #[serde(default)]
    pub subject: Subject,
    /// On which CPU the network's receive work is done.
    #[serde(default)]
    pub receive_on: ReceiveOn,
    /// The queue of signals that the server has once all idle connections are held: what it does when
    /// they are opened is not to overflow it before the measured window.
    pub signal_queue_when_held: Option<u64>,
    /// How many idle connections, or subscribers, a worker holds on average. The server gets as many workers as that
    /// takes, each with a table of descriptors of its own. None: the number of workers is that of `[server]`.
    pub connections_per_worker: Option<u32>,
    /// Functions of the kernel whose calls by the server, or by the wait, are counted
    /// ([`crate::kernel_calls`]). It slows them, so that times of such a server say little.
    #[serde(default)]
    pub kernel_calls: Vec<String>,
    /// The server's context switches are counted ([`crate::switches`]). It costs each of them a little.
    #[serde(default)]
    pub context_switches: bool,
    /// The axis that says how many connections are open at a time: with so many of them the server's
    /// memory is read in the middle of a window.
    pub memory_per: Option<String>,
    /// What is served; for `subject = "server"`.
    pub workload: Option<Workload>,
    /// The Redis that a guestbook stands on.
    pub redis: Option<Redis>,
    /// The server behind the one that is measured.
    pub origin: Option<Origin>,
    /// The requested resources, by name; the values of an axis called [`REQUEST`].
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
    /// How far away clients are, for the axis called [`CLIENTS`].
    pub clients: Option<Clients>,
    /// The updates that a push server delivers in place of responses to requests. Its axes are [`SUBSCRIBERS`] and
    /// [`UPDATES_TO`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub push: Option<Push>,
    /// What is compared; empty stands for every mechanism in the registry.
    #[serde(default)]
    pub variant: Vec<Variant>,
    /// The names of the variants, in their order; a name without a `[[variant]]` stands for the mechanism of this
    /// name. In an overlay those that the form has: claims about others are not judged there. Empty for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<String>,
    /// What is varied beside the variant; the cells are the product of all.
    #[serde(default)]
    pub axis: Vec<Axis>,
    /// Where nothing is measured, and why.
    #[serde(default)]
    pub left_out: Vec<Exclusion>,
    /// What one server meets, one after the other; an axis called [`PHASE`].
    #[serde(default)]
    pub phase: Vec<Phase>,
    /// How much is sent. None: the load flags say it (closed loop).
    pub rate: Option<Rate>,
    /// A part of the CPU that the server had in the deterministic guest. Runs before 27 November have it;
    /// since it decides verdicts, no experiment may set it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deterministic_server_share: Option<f64>,
    /// Which of its cells are measured.
    #[serde(default, skip_serializing_if = "Cells::is_all")]
    pub cells: Cells,
    /// How long a run may take.
    #[serde(default)]
    pub budget: Budget,
    /// What is different under `--quick` ([`Experiment::form`]).
    #[serde(default, skip_serializing_if = "Table::is_empty")]
    pub quick: Table,
    /// What is different in a guest: its CPU is emulated, a generator there cannot keep to milliseconds, and the time
    /// is enough for few variants.
    #[serde(default, skip_serializing_if = "Table::is_empty")]
    pub guest: Table,
    /// What is different in a guest whose clock counts instructions, beside that.
    #[serde(default, skip_serializing_if = "Table::is_empty")]
    pub deterministic: Table,
    /// What is drawn.
    #[serde(default)]
    pub figure: Vec<Figure>,
    /// What is judged.
    #[serde(default)]
    pub claim: Vec<Claim>,
}

/// Which cells of an experiment are measured ([`crate::law::fit`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cells {
    /// Every one.
    #[default]
    All,
    /// The third that a law is fitted on.
    Fit,
    /// The other variants, whose results it has to predict.
    Rest,
}

impl Cells {
    fn is_all(&self) -> bool {
        *self == Self::All
    }
}

/// Where an experiment runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Machine {
    /// On this kernel.
    #[default]
    Host,
    /// In a guest kernel that has /dev/poll (`pollux vm`).
    Guest,
    /// In a guest whose clock counts instructions (`pollux vm --deterministic`): figures repeat.
    DeterministicGuest,
}

/// On which CPU what is sent is received; see [`crate::network`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReceiveOn {
    /// On that of the sender, as loopback has it.
    #[default]
    Sender,
    /// All on the server's.
    Server,
}

/// What an experiment measures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// A server under load.
    #[default]
    Server,
    /// The wait of a mechanism alone ([`crate::wait_cost`]).
    Wait,
}

/// What the server serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// One file of one byte (gammo section 4.1).
    OneByte,
    /// One document of 6 KB (provos section 5).
    #[serde(rename = "6-kb")]
    SixKb,
    /// Files like those of SPECweb99's static part (gammo section 4.1): four classes of nine sizes
    /// in each of eight directories, all of which the server's cache holds.
    #[serde(rename = "specweb99-like")]
    Specweb99Like,
    /// The page of a guestbook, which the server makes for each request (zerohttpd).
    Guestbook,
}

/// One of the things compared.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Variant {
    /// Name in tables and figures.
    pub name: String,
    /// `--mechanism`, with options: `devpoll:results=mmap`. Empty for an architecture that waits in a
    /// way of its own, for a peer and for the floor; otherwise `name` where a file has none.
    #[serde(default)]
    pub mechanism: String,
    /// `--architecture`, where it is not the event loop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// Another server in place of `pollux serve`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<Peer>,
    /// Redis' own benchmark in place of `pollux serve`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub redis_benchmark: Option<RedisBenchmark>,
    /// No server but the floor under one ([`crate::floor`]): it answers with the bytes that the variant of
    /// this name answers with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor_of: Option<String>,
    /// Flags of `pollux lab floor`, where it is that: `threads = "{concurrency}"` for a thread a client.
    #[serde(default, skip_serializing_if = "Flags::is_empty")]
    pub floor: Flags,
    /// It serves https, and the clients speak it: all variants with one certificate. None: plain http.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<Encryption>,
    /// Further flags of `pollux serve`; they win over the experiment's.
    #[serde(default)]
    pub server: Flags,
    /// Further flags of `pollux lab wait-cost`; they win over the experiment's.
    #[serde(default)]
    pub wait: Flags,
    /// [`Experiment::signal_queue_when_held`] of this variant, where it is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal_queue_when_held: Option<u64>,
    /// The values of axes at which it runs, by the axis' name; at all where nothing stands here.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub only: BTreeMap<String, Vec<Value>>,
    /// The largest values of axes at which it runs.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub at_most: BTreeMap<String, f64>,
    /// Why it does not run elsewhere.
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
    /// The mechanism `name` as it is by default, under its own name.
    pub fn of_mechanism(name: &str) -> Self {
        Self { name: name.into(), mechanism: name.into(), ..Self::default() }
    }

    /// Why it does not run at `point`, if it does not.
    pub fn left_out(&self, point: &Point) -> Option<String> {
        let elsewhere = point.iter().any(|(axis, value)| {
            let only = self.only.get(axis).is_some_and(|values| !values.contains(value));
            let above = self.at_most.get(axis).zip(value.number()).is_some_and(|(m, v)| v > *m);
            only || above
        });
        elsewhere.then(|| self.because.clone().unwrap_or_else(|| "it is not made for this".into()))
    }
}

/// Something that is varied.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Axis {
    /// Name in claims and figures. `idle` holds that many idle connections during the run,
    /// `clients` says where they are.
    pub name: String,
    /// What the figures write beside it.
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

/// The axis on which the held connections are varied.
pub const IDLE: &str = "idle";
/// The axis of [`Rate`].
pub const RATE: &str = "rate";

/// The axis of [`Phase`].
pub const PHASE: &str = "phase";

/// A part of a rate that goes up and down: the phases of a run follow each other without a gap, on
/// the same server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Phase {
    /// Its value on the axis.
    pub name: String,
    /// Its rate as a share of the measured saturation.
    pub fraction: f64,
    /// How long it lasts, when not as long as the run's window.
    pub seconds: Option<f64>,
    /// The time from the start of the phase to its measurement: until the requests of the previous phase
    /// are answered or given up. Zero if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settle_seconds: Option<f64>,
}

impl Phase {
    /// How long it lasts beside the run's window, in seconds.
    pub fn beside_window_s(&self) -> f64 {
        self.seconds.unwrap_or(0.0) + self.settle_seconds.unwrap_or(0.0)
    }
}

/// How long the experiment may take, and how that time is spent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Budget {
    /// All in: saturation, every run, the report.
    pub seconds: f64,
    /// How often every cell is measured at most: less if all is decided before
    /// ([`crate::statistics::sequential`]), or the time is over.
    pub blocks: u32,
    /// The shortest measured window of a run. All runs of an experiment have windows of one length,
    /// which is set before the first.
    pub min_window_seconds: f64,
    /// The longest measured window of one run.
    pub max_window_seconds: f64,
    /// How long a load lasts before it is measured, at most. Phases have none: what they show is the change.
    pub warmup_seconds: f64,
    /// A load lasts only so long before it is measured as the slowest variant takes to become steady
    /// ([`crate::steady`]), which is found out first. Else so long always, which may be too short: whether replies
    /// beyond a server's limit still changed is then seen from the measured windows, and claims are judged by that
    /// ([`crate::claims`]).
    pub pilot: bool,
    /// The window of one saturation probe.
    pub saturation_seconds: f64,
    /// Which variants are probed for saturation.
    pub saturation_of: SaturationOf,
}

impl Default for Budget {
    /// That of a full run.
    fn default() -> Self {
        Self {
            seconds: 900.0,
            blocks: 40,
            min_window_seconds: 2.0,
            max_window_seconds: 8.0,
            warmup_seconds: 0.0,
            pilot: true,
            saturation_seconds: 4.0,
            saturation_of: SaturationOf::All,
        }
    }
}

/// Which variants are probed for saturation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SaturationOf {
    /// Every variant.
    All,
    /// Those whose waits cost more the more is watched, as the registry says; all if none does.
    Costly,
}

/// One figure of the report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Figure {
    /// File name.
    pub id: String,
    /// Title; the metric's label where a file has none.
    #[serde(default)]
    pub title: String,
    /// What to see in it.
    #[serde(default)]
    pub caption: String,
    /// The axis along which it is drawn; a line or a group of bars per variant.
    pub x: String,
    /// The metric (see [`crate::metric`]).
    pub y: String,
    /// Logarithmic x axis, for positive numbers.
    #[serde(default)]
    pub log_x: bool,
    /// Logarithmic y axis.
    #[serde(default)]
    pub log_y: bool,
    /// Its figures stand in a table on the terminal too.
    #[serde(default)]
    pub in_terminal: bool,
    /// Values of the other axes. An axis that is neither here nor `x` gets one figure per value.
    #[serde(default)]
    pub at: BTreeMap<String, Select>,
    /// What the paper itself measured, drawn thin beside the variants of the same names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub paper: Vec<PaperLine>,
}

/// A column of a paper's table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct PaperLine {
    /// Its name there.
    pub name: String,
    /// The variant here that it belongs to.
    pub variant: String,
    /// Where on the axis, and what was measured.
    pub points: Vec<[f64; 2]>,
}
