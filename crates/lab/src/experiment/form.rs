//! The forms of an experiment: overlays on one base (docs/decisions/0122-forms-are-overlays.md).
//!
//! The base is the full form on this kernel. The other forms are made by overlays, each of which may change any
//! field; the later one wins:
//!
//! 1. under `--quick`: [`QUICK`], then the experiment's `[quick]`;
//! 2. in a guest: `[guest]`, and under `--quick` `[guest.quick]`;
//! 3. in the deterministic guest: [`Experiment::in_deterministic_guest`], then `[deterministic]`, and under
//!    `--quick` `[deterministic.quick]`.
//!
//! The result is an experiment without overlays. No later code asks for the form in order to choose a value.

use super::{Budget, Experiment, Machine, ReceiveOn, Subject, Value, Variant};
use anyhow::{Context as _, bail, ensure};
use pollux_event::registry;
use std::{collections::BTreeSet, fmt, mem};
use toml::{Table, Value as Toml};

/// The form in which an experiment is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Form {
    /// The machine on which the experiment runs.
    pub machine: Machine,
    /// Whether it runs in the short time of `--quick`.
    pub quick: bool,
}

impl Form {
    /// Every form. Of two forms that differ only by the last overlay, the one without it comes first.
    pub const ALL: [Self; 6] = {
        let (host, guest) = (Machine::Host, Machine::Guest);
        let deterministic = Machine::DeterministicGuest;
        [
            Self { machine: host, quick: false },
            Self { machine: host, quick: true },
            Self { machine: guest, quick: false },
            Self { machine: guest, quick: true },
            Self { machine: deterministic, quick: false },
            Self { machine: deterministic, quick: true },
        ]
    };
}

impl fmt::Display for Form {
    /// Writes the name of the last overlay.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.machine, self.quick) {
            (Machine::Host, false) => "the full form",
            (Machine::Host, true) => "[quick]",
            (Machine::Guest, false) => "[guest]",
            (Machine::Guest, true) => "[guest.quick]",
            (Machine::DeterministicGuest, false) => "[deterministic]",
            (Machine::DeterministicGuest, true) => "[deterministic.quick]",
        })
    }
}

/// The overlay of the quick form of every experiment. The experiment's own overlay is applied after it.
const QUICK: &str = "budget = { seconds = 60, blocks = 6, min-window-seconds = 0.4, max-window-seconds = 2, \
                     saturation-seconds = 0.8, pilot = false }";

/// The number of blocks in a guest whose clock counts instructions: the data are judged after the sixth and
/// the tenth.
const DETERMINISTIC_BLOCKS: u32 = 10;
/// The fewest blocks that a verdict needs.
const QUICK_DETERMINISTIC_BLOCKS: u32 = 6;
/// The longest client time-out, in seconds, for which the windows are made there: with a longer one a run
/// would take hours.
const MOST_PATIENCE_S: f64 = 2.0;

impl Experiment {
    /// Returns the experiment in this form, without overlays and without claims about other variants.
    ///
    /// # Errors
    /// When an overlay is invalid; the message names the overlay.
    pub fn form(&self, form: Form) -> anyhow::Result<Self> {
        self.overlaid(form).with_context(|| form.to_string())
    }

    fn overlaid(&self, Form { machine, quick }: Form) -> anyhow::Result<Self> {
        let mut it = self.clone();
        let [of_quick, of_guest, of_deterministic] =
            [&mut it.quick, &mut it.guest, &mut it.deterministic].map(mem::take);
        if quick {
            it = it.under(&QUICK.parse::<Table>()?)?.under(&of_quick)?;
        }
        if machine != Machine::Host {
            it = it.under_both(of_guest, quick)?;
        }
        if machine == Machine::DeterministicGuest {
            it = it.in_deterministic_guest(quick).under_both(of_deterministic, quick)?;
        }
        let names = it.choose_variants()?;
        if !names.is_empty() {
            it.drop_claims_about_others(&names);
        }
        let ids: BTreeSet<String> = it.claim.iter().map(|claim| claim.id.clone()).collect();
        for claim in &mut it.claim {
            claim.control.take_if(|control| !ids.contains(control));
        }
        Ok(it)
    }

    /// Applies the overlay of a machine and, in the quick form, the overlay inside of it.
    fn under_both(self, mut overlay: Table, quick: bool) -> anyhow::Result<Self> {
        let inner = overlay.remove("quick");
        let it = self.under(&overlay)?;
        match inner {
            Some(Toml::Table(inner)) if quick => it.under(&inner),
            Some(Toml::Table(_)) | None => Ok(it),
            Some(_) => bail!("quick: expected a table"),
        }
    }

    fn under(self, overlay: &Table) -> anyhow::Result<Self> {
        if overlay.is_empty() {
            return Ok(self);
        }
        for name in ["quick", "guest", "deterministic"] {
            ensure!(!overlay.contains_key(name), "{name}: an overlay has none of this name");
        }
        let mut table = Table::try_from(&self)?;
        lay(&mut table, overlay)?;
        Ok(table.try_into()?)
    }

    /// Returns the experiment as it runs in a guest whose clock counts instructions, for a server under
    /// load: all windows have the same length.
    ///
    /// Requests arrive at random instants there. The blocks differ only by the seed of these instants;
    /// nothing else makes one block differ from another.
    ///
    /// A window lasts as long as the time-out of its clients, and twice as long in the full form. It begins
    /// when the first clients may have timed out; in the full form it begins earlier if a pilot of three
    /// times that time-out was steady earlier. A queue is therefore full by then, and the figures include
    /// clients that time out and responses that arrive too late. In half a second at the paper's rates no
    /// client would ever time out.
    fn in_deterministic_guest(mut self, quick: bool) -> Self {
        self.place = Machine::DeterministicGuest;
        if self.subject != Subject::Server {
            return self;
        }
        // The guest has one CPU.
        self.receive_on = ReceiveOn::Sender;
        // More threads provide more descriptor tables, which so few requests per second do not need.
        self.load.remove("threads");
        self.load.entry("arrivals".into()).or_insert_with(|| Value::Word("poisson".into()));
        let (blocks, window, warm_up) = if quick {
            (QUICK_DETERMINISTIC_BLOCKS, 1.0, 1.25)
        } else {
            (DETERMINISTIC_BLOCKS, 2.0, 1.5)
        };
        let patience_s = self.patience_s();
        let has_warm_up = self.budget.warmup_seconds > 0.0;
        self.budget = Budget {
            blocks,
            min_window_seconds: window * patience_s,
            max_window_seconds: window * patience_s,
            warmup_seconds: if has_warm_up { warm_up * patience_s } else { 0.0 },
            saturation_seconds: window * patience_s,
            ..self.budget
        };
        self
    }

    /// Returns the time in seconds that the clients wait for a reply, at most [`MOST_PATIENCE_S`].
    fn patience_s(&self) -> f64 {
        let timeout = self.load.get("timeout").and_then(Value::word);
        let seconds = timeout.and_then(|text| match text.strip_suffix("ms") {
            Some(milliseconds) => milliseconds.parse().ok().map(|value: f64| value / 1000.0),
            None => text.strip_suffix('s')?.parse().ok(),
        });
        seconds.unwrap_or(MOST_PATIENCE_S).min(MOST_PATIENCE_S)
    }

    /// Replaces the variants by those that [`Experiment::variants`] names, in its order, and returns these
    /// names; an empty list if all variants stay.
    ///
    /// # Errors
    /// When a name is neither that of a variant nor that of a mechanism.
    pub(super) fn choose_variants(&mut self) -> anyhow::Result<Vec<String>> {
        let names = mem::take(&mut self.variants);
        let chosen = |name: &String| {
            let known = self.variant.iter().find(|variant| variant.name == *name).cloned();
            let mechanism = || registry::find(name).map(|it| Variant::of_mechanism(it.name));
            known.or_else(mechanism).with_context(|| format!("variants: no variant {name:?}"))
        };
        if !names.is_empty() {
            self.variant = names.iter().map(chosen).collect::<anyhow::Result<_>>()?;
        }
        Ok(names)
    }

    fn drop_claims_about_others(&mut self, names: &[String]) {
        for claim in &mut self.claim {
            claim.each.retain(|name| names.contains(name));
        }
        let is_there =
            |name: &Option<String>| name.as_ref().is_none_or(|name| names.contains(name));
        self.claim.retain(|claim| {
            let all = claim.sides().all(|side| is_there(&side.variant) && is_there(&side.minus));
            !claim.each.is_empty() && all
        });
    }
}

/// Merges `over` into `base`. Tables are merged key by key. In an array of tables the keys are the names of
/// its entries, or their ids. `false` removes a value that is not a switch. Any other value replaces the
/// old one.
fn lay(base: &mut Table, over: &Table) -> anyhow::Result<()> {
    for (key, value) in over {
        match (base.get_mut(key), value) {
            (Some(Toml::Boolean(below)), Toml::Boolean(value)) => *below = *value,
            (Some(_), Toml::Boolean(false)) => {
                base.remove(key);
            }
            (Some(Toml::Table(below)), Toml::Table(over)) => lay(below, over)?,
            (Some(Toml::Array(entries)), Toml::Table(over)) => lay_on_entries(key, entries, over)?,
            (_, value) => {
                base.insert(key.clone(), value.clone());
            }
        }
    }
    Ok(())
}

fn lay_on_entries(kind: &str, entries: &mut Vec<Toml>, over: &Table) -> anyhow::Result<()> {
    for (name, value) in over {
        let is_it = |entry: &Toml| {
            let text = |key| entry.get(key).and_then(Toml::as_str);
            text("name").or_else(|| text("id")) == Some(name)
        };
        let index = entries.iter().position(is_it);
        let index = index.with_context(|| format!("{kind}: there is none called {name:?}"))?;
        match value {
            Toml::Boolean(false) => {
                entries.remove(index);
            }
            Toml::Table(over) => {
                let entry = entries[index].as_table_mut().context("an entry with a name")?;
                lay(entry, over).with_context(|| format!("{kind} {name:?}"))?;
            }
            _ => bail!("{kind} {name:?}: expected a table, or false to leave it out"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlaid(base: &str, over: &str) -> anyhow::Result<String> {
        let mut base: Table = base.parse()?;
        lay(&mut base, &over.parse()?)?;
        Ok(base.to_string())
    }

    #[test]
    fn tables_are_merged_and_the_rest_is_replaced() {
        for (base, over, expected) in [
            ("a = 1\nb = 2\n", "b = 3\nc = 4", "a = 1\nb = 3\nc = 4\n"),
            ("list = [1, 2]", "list = [3]", "list = [3]\n"),
            ("[t]\na = 1\nb = 2", "t.b = 3", "[t]\na = 1\nb = 3\n"),
            ("a = 1\nb = 2", "a = false", "b = 2\n"),
            ("on = true", "on = false", "on = false\n"),
            ("axis = [{ name = \"x\", v = 1 }]", "axis.x.v = 2", "[[axis]]\nname = \"x\"\nv = 2\n"),
            ("c = [{ id = \"A\" }, { id = \"B\" }]", "c.A = false", "[[c]]\nid = \"B\"\n"),
        ] {
            assert_eq!(overlaid(base, over).unwrap(), expected, "{over}");
        }
        for (over, expected) in [
            ("axis.y.v = 2", "axis: there is none called \"y\""),
            ("axis.x = 2", "axis \"x\": expected a table, or false"),
        ] {
            let error = overlaid("axis = [{ name = \"x\", v = 1 }]", over).unwrap_err();
            assert!(format!("{error:#}").contains(expected), "{over}: {error:#}");
        }
    }

    fn experiment(overlays: &str) -> anyhow::Result<Experiment> {
        let base = "id = \"t\"\ntitle = \"t\"\nsource = \"t\"\nsummary = \"t\"\nworkload = \"one-byte\"\n\
                    [[axis]]\nname = \"idle\"\nlabel = \"\"\nvalues = [0, 100]\n";
        Experiment::parse(&format!("{base}{overlays}"))
    }

    /// Each overlay sets one more digit; the last overlay of the form determines the result.
    #[test]
    fn the_more_particular_overlay_wins() {
        let names = ["quick", "guest", "guest.quick", "deterministic", "deterministic.quick"];
        let overlay =
            |(index, name): (usize, &&str)| format!("[{name}]\nload.rate = {}\n", index + 1);
        let whole = experiment(&names.iter().enumerate().map(overlay).collect::<String>()).unwrap();
        let rates = Form::ALL.map(|form| whole.form(form).unwrap().load.get("rate").cloned());
        let expected = [None, Some(1.0), Some(2.0), Some(3.0), Some(4.0), Some(5.0)];
        assert_eq!(rates, expected.map(|rate| rate.map(Value::Number)));
        let guests = experiment("[quick]\nload.rate = 1\n[guest]\nload.rate = 2\n").unwrap();
        let quick_guest = guests.form(Form { machine: Machine::Guest, quick: true }).unwrap();
        assert_eq!(quick_guest.load["rate"], Value::Number(2.0), "[guest] is more particular");
        assert!(!quick_guest.budget.pilot && quick_guest.budget.blocks == 6, "as every quick form");
        for form in Form::ALL {
            let once = whole.form(form).unwrap();
            assert!(
                once.quick.is_empty() && once.guest.is_empty() && once.deterministic.is_empty()
            );
        }
    }

    #[test]
    fn mistakes_name_the_overlay_and_the_key() {
        for (overlays, expected) in [
            ("[quick]\nseconds = 60\n", "[quick]: unknown field `seconds`"),
            ("[guest]\nbudget.secs = 60\n", "[guest]: unknown field `secs`"),
            ("[guest.quick]\nplaice = \"guest\"\n", "[guest.quick]: unknown field `plaice`"),
            ("[deterministic]\naxis.idel.values = [1]\n", "[deterministic]: axis: there is none"),
            (
                "[deterministic.quick]\nvariants = [\"pole\"]\n",
                "[deterministic.quick]: variants: no",
            ),
            ("[quick]\nguest.load.rate = 1\n", "[quick]: guest: an overlay has none of this name"),
            ("[quick]\nworkload = \"one-bite\"\n", "[quick]: unknown variant `one-bite`"),
            ("[quick]\nbudget.blocks = 0\n", "[quick]: [budget]: blocks: 1 to 100"),
            ("[guest]\nquick = 1\n", "[guest]: quick: expected a table"),
            ("[guests]\nload.rate = 1\n", "unknown field `guests`"),
        ] {
            let message = format!("{:#}", experiment(overlays).unwrap_err());
            assert!(message.contains(expected), "{overlays}: {message}");
        }
    }
}
