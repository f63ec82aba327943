//! How often a claim was tried, and what follows for its p-value.
//!
//! Of eleven runs of one claim, one may decide it by chance. The p-value of the run that is shown is therefore
//! multiplied by the number of runs (Bonferroni), before the primary claims of a paper share their error
//! ([`holm`]). The file [`FILE`] beside published runs has the runs that are no longer there: those that the
//! history shows up to a day, and those that newer runs have replaced since.
//!
//! A single result is judged without this ([`crate::claims`]): the run of a reader on another machine is the
//! first one there.

use crate::{statistics::holm, verdict::Verdict};
use anyhow::Context as _;
use serde::Deserialize;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    path::{Path, PathBuf},
};

/// The file's name in the directory that contains the directories of the runs.
pub const FILE: &str = "tries.toml";
/// The length of the day at the start of a directory's name.
pub(crate) const DAY: usize = "2026-11-29".len();

/// The published runs that judged a claim, by their verdicts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Tries {
    holds: u32,
    does_not_hold: u32,
    /// Runs with another verdict, for example *undecided*.
    open: u32,
}

impl Tries {
    /// Returns the number of runs: at least one, since a claim that is shown was judged.
    pub fn made(self) -> u32 {
        (self.holds + self.does_not_hold + self.open).max(1)
    }

    /// Whether one run confirms the claim and another one contradicts it.
    pub fn contradict_each_other(self) -> bool {
        self.holds > 0 && self.does_not_hold > 0
    }

    fn add(&mut self, verdict: Verdict) {
        match verdict {
            Verdict::Holds => self.holds += 1,
            Verdict::DoesNotHold => self.does_not_hold += 1,
            // Such a run had no data for this claim.
            Verdict::NotTestable => {}
            Verdict::Undecided | Verdict::Seen | Verdict::Depends => self.open += 1,
        }
    }
}

impl fmt::Display for Tries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { holds, does_not_hold, open } = self;
        let runs = if self.made() == 1 { "run" } else { "runs" };
        write!(
            f,
            "{} {runs}: holds in {holds}, does not hold in {does_not_hold}, undecided in {open}",
            self.made()
        )
    }
}

/// The runs that are counted although they are not there.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Register {
    /// The last day whose runs are counted in `claim`.
    #[serde(default)]
    until: String,
    #[serde(default)]
    claim: BTreeMap<String, Tries>,
    /// Published runs that a newer run has replaced.
    #[serde(default)]
    replaced: Vec<FormerRun>,
}

/// A published run that was removed when a newer one replaced it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FormerRun {
    /// The directory of the run, which begins with its day.
    run: String,
    /// The directory of the run that replaced it.
    #[serde(rename = "by")]
    _by: String,
    /// Its verdict on each claim.
    verdicts: BTreeMap<String, Verdict>,
}

impl Register {
    /// Reads the register beside the runs in `directories`: the file in the directory that contains them. It
    /// is empty if there is no such file.
    ///
    /// # Errors
    /// When a file is not a register, or when the runs are in two directories that have one.
    pub fn beside(directories: &[PathBuf]) -> anyhow::Result<Self> {
        let file = |run: &PathBuf| fs::canonicalize(run.join("..").join(FILE)).ok();
        let files: BTreeSet<PathBuf> = directories.iter().filter_map(file).collect();
        anyhow::ensure!(
            files.len() < 2,
            "the runs are in directories with a {FILE} each: {files:?}"
        );
        files.first().map_or_else(|| Ok(Self::default()), |file| Self::read(file))
    }

    fn read(file: &Path) -> anyhow::Result<Self> {
        let read = || -> anyhow::Result<Self> { Ok(toml::from_str(&fs::read_to_string(file)?)?) };
        read().with_context(|| file.display().to_string())
    }

    /// Returns the tries of the claim `id`: those of the register, and those of `published` runs that began
    /// later than its history. A published run is given by its day and its verdict.
    pub fn of<'a>(
        &'a self,
        id: &str,
        published: impl Iterator<Item = (&'a str, Verdict)>,
    ) -> Tries {
        let mut tries = self.claim.get(id).copied().unwrap_or_default();
        let is_counted = tries != Tries::default();
        let replaced = self.replaced.iter().filter_map(|it| {
            let day = it.run.get(..DAY).unwrap_or(&it.run);
            Some((day, *it.verdicts.get(id)?))
        });
        for (day, verdict) in published.chain(replaced) {
            if day > self.until.as_str() || !is_counted {
                tries.add(verdict);
            }
        }
        tries
    }
}

/// Returns the p-value over all runs of a claim.
pub fn over_runs(p: f64, tries: Tries) -> f64 {
    (p * f64::from(tries.made())).min(1.0)
}

/// Returns the p-values of claims that share one error, over all runs of each of them.
pub fn with_all(claims: &[(f64, Tries)]) -> Vec<f64> {
    let p: Vec<f64> = claims.iter().map(|&(p, tries)| over_runs(p, tries)).collect();
    holm::adjust(&p)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{
        experiment::{find, ids},
        statistics::ERROR,
    };

    /// Returns the register of this repository's runs.
    pub(crate) fn register() -> Register {
        let runs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/runs");
        Register::read(&runs.join(FILE)).unwrap()
    }

    fn tries(holds: u32, open: u32) -> Tries {
        Tries { holds, open, ..Tries::default() }
    }

    /// The planted case: one of eleven runs is significant by itself.
    #[test]
    fn one_of_eleven_runs_is_not_significant() {
        let p = 0.041;
        assert!(over_runs(p, tries(1, 0)) <= ERROR);
        assert!(over_runs(p, tries(4, 7)) > ERROR);
        assert_eq!(over_runs(p, tries(40, 0)), 1.0);
    }

    #[test]
    fn runs_are_counted_before_the_claims_of_a_paper_share_their_error() {
        let once = tries(1, 0);
        let both = with_all(&[(0.004, tries(0, 9)), (0.02, once)]);
        assert!((both[0] - 0.04).abs() < 1e-12, "0.036 would be the larger of the two: {both:?}");
        assert!((both[1] - 0.04).abs() < 1e-12, "{both:?}");
        let alone = with_all(&[(0.004, tries(0, 13)), (0.02, once)]);
        assert!(alone[0] > ERROR && alone[1] <= ERROR, "{alone:?}");
    }

    #[test]
    fn later_runs_are_counted_and_earlier_ones_are_not_counted_twice() {
        let register = Register { replaced: Vec::new(), ..register() };
        let count = |id, runs: &[(&str, Verdict)]| register.of(id, runs.iter().copied());
        let (old, new) = ("2026-11-25", "2026-11-29");
        assert_eq!(count("P2", &[(old, Verdict::Holds)]).made(), 11);
        let later = count("P2", &[(old, Verdict::Holds), (new, Verdict::DoesNotHold)]);
        assert_eq!(later.made(), 12);
        assert!(later.contradict_each_other());
        assert_eq!(count("P2", &[(new, Verdict::NotTestable)]).made(), 11, "it had no data");
        // A claim that the register does not have.
        assert_eq!(count("P2-poll", &[(old, Verdict::Holds), (new, Verdict::Seen)]).made(), 2);
        assert_eq!(count("P2-poll", &[]).made(), 1);
    }

    #[test]
    fn a_replaced_run_is_counted_once() {
        let text = |day: &str| {
            format!(
                "until = \"2026-11-26\"\n[claim]\nP4 = {{ holds = 1, does-not-hold = 2, open = 0 }}\n\
                 [[replaced]]\nrun = \"{day}-provos-fig10\"\nby = \"2026-11-30-provos-fig10\"\n\
                 [replaced.verdicts]\n\"P4\" = \"does not hold\"\n\"P4-more\" = \"holds\"\n"
            )
        };
        let directory = tempfile::tempdir().unwrap();
        let run = directory.path().join("2026-11-30-provos-fig10");
        fs::create_dir(&run).unwrap();
        let made = |day: &str, id: &str| {
            fs::write(directory.path().join(FILE), text(day)).unwrap();
            let register = Register::beside(&[run.clone(), run.clone()]).unwrap();
            register.of(id, [("2026-11-30", Verdict::Holds)].into_iter()).made()
        };
        assert_eq!(
            made("2026-11-29", "P4"),
            5,
            "three, the replaced run, and the run that is there"
        );
        assert_eq!(made("2026-11-26", "P4"), 4, "the history has the replaced run");
        assert_eq!(made("2026-11-26", "P4-more"), 2, "the history does not have this claim");
        fs::write(directory.path().join(FILE), "until = 5").unwrap();
        assert!(Register::beside(&[run]).is_err());
    }

    #[test]
    fn without_a_register_only_the_runs_that_are_there_count() {
        let register = Register::beside(&[tempfile::tempdir().unwrap().path().to_owned()]).unwrap();
        assert_eq!(register.of("P2", [("2026-11-25", Verdict::Holds)].into_iter()).made(), 1);
    }

    /// docs/runs/tries.md lists the runs that the register counts.
    #[test]
    fn the_list_of_runs_has_every_counted_run() {
        let runs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/runs");
        let list = fs::read_to_string(runs.join("tries.md")).unwrap();
        let register = register();
        let mut listed: BTreeMap<String, Tries> = BTreeMap::new();
        for line in list.lines() {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let [_, id, day, _, _, _, _, verdict, ..] = cells[..] else { continue };
            if !day.starts_with("2026-") {
                continue;
            }
            assert!(day <= register.until.as_str(), "{line}");
            listed.entry(id.to_owned()).or_default().add(match verdict {
                "holds" => Verdict::Holds,
                "does not hold" => Verdict::DoesNotHold,
                "undecided" => Verdict::Undecided,
                "seen, not decided" => Verdict::Seen,
                _ => panic!("{line}"),
            });
        }
        assert_eq!(listed, register.claim);
    }

    #[test]
    fn the_register_names_claims() {
        let claims: Vec<String> =
            ids().flat_map(|id| find(id).unwrap().claim).map(|claim| claim.id).collect();
        for id in register().claim.keys() {
            assert!(claims.contains(id), "{id}");
        }
    }

    /// The history of docs/runs has runs of every primary claim that existed before the register ended.
    #[test]
    fn the_register_has_the_primary_claims() {
        let register = register();
        for claim in ids().flat_map(|id| find(id).unwrap().claim).filter(|claim| claim.primary) {
            assert!(register.claim.contains_key(&claim.id), "{}", claim.id);
        }
    }
}
