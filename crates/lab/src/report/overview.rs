//! Many runs on one page, and docs/papers.md: paper by paper, figure by figure, with the run that
//! decides each claim.

mod decided;
pub(super) mod picture;

pub(super) use decided::Published;
use decided::{ClaimWithRun, Claims, of_paper};

use super::{earlier, forest, html};
use crate::{
    archive,
    claims::p_text,
    experiment::{self, Claim},
    format::escape,
    papers::{PaperFigure, papers},
    result::Outcome,
    tries::{DAY, Register},
    verdict::ClaimOutcome,
};
use std::{
    collections::BTreeSet,
    fmt::Write as _,
    iter,
    path::{Path, PathBuf},
};

/// The page's file name.
pub const FILE: &str = "papers.html";
/// The file name of the same page for readers of the repository.
pub const MARKDOWN: &str = "papers.md";

/// A run and its location.
#[derive(Debug)]
pub struct Publication {
    /// The directory as the user gave it.
    pub given: PathBuf,
    /// The directory as links to it need it.
    pub directory: PathBuf,
    /// The outcome of the run.
    pub outcome: Outcome,
}

impl Publication {
    /// Returns the day of the run, YYYY-MM-DD: that in the name of its directory, because the clock of a deterministic
    /// guest begins in the year 2000; otherwise that of its start.
    pub(crate) fn day(&self) -> &str {
        let name = self.directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let is_day = |day: &&str| {
            day.bytes().enumerate().all(|(index, byte)| match index {
                4 | 7 => byte == b'-',
                _ => byte.is_ascii_digit(),
            })
        };
        let start = self.outcome.started_at.as_str();
        name.get(..DAY).filter(is_day).unwrap_or_else(|| start.get(..DAY).unwrap_or(start))
    }

    /// Returns the path of the file that has the figures.
    fn data(&self) -> PathBuf {
        self.given.join(archive::file_name(&self.given))
    }

    /// Returns the file to link to: an archived run has no report, but a page that code hosting sites
    /// show.
    fn page(&self) -> &'static str {
        if archive::is_packed(&self.given) { archive::PAGE } else { super::FILE }
    }
}

/// Returns the relative path from `out` to `directory`.
///
/// # Errors
/// Fails if the current directory is not known.
pub fn link(directory: &Path, out: &Path) -> anyhow::Result<PathBuf> {
    let (directory, out) = (std::path::absolute(directory)?, std::path::absolute(out)?);
    let parts = |path: &Path| -> Vec<PathBuf> {
        path.components().map(|c| PathBuf::from(c.as_os_str())).collect()
    };
    let (to, from) = (parts(&directory), parts(&out));
    let common = to.iter().zip(&from).take_while(|(a, b)| a == b).count();
    let up = from[common..].iter().map(|_| PathBuf::from(".."));
    Ok(up.chain(to[common..].iter().cloned()).collect())
}

fn figures_of(decided: &ClaimWithRun<'_>) -> String {
    let claim = decided.claim;
    let why = || claim.parts.iter().find_map(|part| part.note.clone());
    claim.measured().or_else(why).unwrap_or_else(|| "–".into())
}

/// Returns the p-values: that of the run, that of all runs of the claim, and that with all primary claims of
/// the paper.
fn p_values(decided: &ClaimWithRun<'_>) -> Option<String> {
    let mut text = format!("p {}", p_text(decided.claim.p?));
    let made = decided.tries.made();
    if let Some(p) = decided.p_over_runs.filter(|_| made > 1) {
        let _ = write!(text, ", over {made} runs {}", p_text(p));
    }
    if let Some(p) = decided.p_with_all {
        let _ = write!(text, ", with all primary claims of the paper {}", p_text(p));
    }
    Some(text)
}

/// Returns the text under a verdict.
fn remarks(decided: &ClaimWithRun<'_>) -> String {
    let remark = decided.claim.remark();
    let remarks = p_values(decided).into_iter().chain(decided.doubt()).chain(remark);
    remarks.chain(decided.other_verdicts()).collect::<Vec<_>>().join("; ")
}

/// Returns a path as the target of a link in Markdown and HTML: all characters that could end the link
/// or the table cell, such as a blank, a bracket or a bar, are encoded (RFC 3986, section 2.1).
fn target(path: &Path) -> String {
    let mut text = String::new();
    for &byte in path.as_os_str().as_encoded_bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02X}");
        }
    }
    text
}

/// Returns the name of a run's directory, without the directories above it.
pub(super) fn name(directory: &Path) -> String {
    directory.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

/// Returns the page.
///
/// # Errors
/// Fails if the list of figures is not valid.
pub fn page(runs: &[Publication], register: &Register) -> anyhow::Result<String> {
    let title = "The papers' experiments, repeated";
    let mut page = html::begin(title);
    let _ = writeln!(
        page,
        "<h1>{title}</h1>\n\
         <p class=\"soft\">{} runs. ★ marks the primary claim of a figure. The primary claims of a paper share \
         one error of 5 % (Holm). If the two p-values differ, both are shown.</p>",
        runs.len()
    );
    let papers = papers()?.paper;
    page.push_str("<nav>");
    for paper in &papers {
        let _ = write!(page, "<a href=\"#{0}\">{0}</a> ", escape(&paper.key));
    }
    page.push_str("</nav>\n");
    for paper in papers {
        let figures = of_paper(runs, &paper, register);
        let _ = writeln!(page, "<h2 id=\"{0}\">{1}</h2>", escape(&paper.key), escape(&paper.title));
        let known: Vec<(String, &ClaimOutcome)> = figures
            .iter()
            .zip(&paper.figure)
            .flat_map(|(claims, figure)| claims.iter().map(move |claim| (claim, figure)))
            .filter_map(|((id, decided), figure)| {
                Some((anchor(&paper.key, figure, id), decided.as_ref()?.claim))
            })
            .collect();
        page.push_str(&forest::draw(&known));
        for (figure, claims) in paper.figure.iter().zip(&figures) {
            let _ = writeln!(
                page,
                "<h3 id=\"{}\">{}</h3>\n<p>{}</p>",
                escape(&figure_anchor(&paper.key, figure)),
                escape(&figure.name),
                escape(&figure.picture)
            );
            picture::html(&mut page, claims);
            page.push_str(
                "<div class=\"scroll\"><table>\n<thead><tr><th>Claim</th><th>Statement</th><th>Verdict</th>\
                 <th class=\"number\">Measured</th><th>Holds if</th><th>Paper</th><th>Run</th></tr></thead>\n",
            );
            for (id, decided) in claims {
                row(&mut page, &anchor(&paper.key, figure, id), id, decided.as_ref());
            }
            page.push_str("</table></div>\n");
        }
    }
    Ok(page + html::END)
}

/// Returns the anchor of a figure, for example `gammo-figures-2-4-and-6`.
fn figure_anchor(key: &str, figure: &PaperFigure) -> String {
    let words = figure.name.split(|c: char| !c.is_ascii_alphanumeric());
    let words = words.filter(|word| !word.is_empty()).map(str::to_ascii_lowercase);
    iter::once(key.to_owned()).chain(words).collect::<Vec<_>>().join("-")
}

fn anchor(key: &str, figure: &PaperFigure, id: &str) -> String {
    let experiment = figure.experiments.first().map_or("", String::as_str);
    format!("{key}-{experiment}-{id}")
}

fn row(page: &mut String, anchor: &str, id: &str, decided: Option<&ClaimWithRun<'_>>) {
    let Some(decided) = decided else {
        let _ = writeln!(
            page,
            "<tr id=\"{}\"><td><strong>{}</strong></td><td colspan=\"6\">no run here judges this claim</td></tr>",
            escape(anchor),
            escape(id)
        );
        return;
    };
    let claim = decided.claim;
    let star = if claim.primary { " ★" } else { "" };
    let _ = writeln!(
        page,
        "<tr id=\"{}\"><td><strong>{}{star}</strong></td><td>{}<small>{}</small></td><td>{}<small>{}</small>\
         </td><td class=\"number\">{}</td><td>{}</td><td>{}</td><td><a href=\"{}/{}\">{}</a>\
         <small>{} blocks</small></td></tr>",
        escape(anchor),
        escape(id),
        escape(&claim.statement),
        escape(&claim.paper_says),
        html::verdict(claim.verdict),
        escape(&remarks(decided)),
        escape(&figures_of(decided)),
        escape(&claim.condition()),
        escape(&claim.of_paper().unwrap_or_else(|| "–".into())),
        target(&decided.run.directory),
        decided.run.page(),
        escape(&name(&decided.run.directory)),
        decided.run.outcome.blocks(),
    );
}

/// Returns docs/papers.md. Directories of runs are relative to its directory.
///
/// # Errors
/// Fails if the list of figures is not valid.
pub fn markdown(runs: &[Publication], register: &Register) -> anyhow::Result<String> {
    let papers = papers()?;
    let mut text = String::from(
        "# The papers' figures, as experiments\n\n\
         `pollux lab report docs/runs/*/ --out docs` writes this page; do not change it by hand.\n\
         `pollux lab run ID` runs an experiment on your machine and judges its claims.\n\n\
         | short name | paper |\n|---|---|\n",
    );
    for paper in &papers.paper {
        let _ = writeln!(text, "| {} | {} |", paper.key, paper.title);
    }
    text.push_str(
        "\n★ marks the primary claim of a figure. If the paper gives a number for it, the claim holds when at least half\n\
         of the paper's effect is measured. Other claims with this threshold say so. A claim that two things are equal\n\
         names its margin. The primary claims of a paper share one error of 5 % (Holm's method). The documentation of\n\
         `crates/lab/src/statistics.rs` explains how a verdict is made. For an undecided claim the table gives the reason.\n\
         It also gives the number of blocks that would decide the claim in four of five cases, at the noise of this run.\n\n\
         A deterministic guest has one CPU, which the server and the generator share (runs/README.md names the runs in\n\
         such a guest). The generator uses most of it at the limit. There a claim about reply rates is decided only if\n\
         the server's CPU time per reply has the same result, and the share of failed requests beyond the limit is valid\n\
         only for such a machine.\n",
    );
    for paper in &papers.paper {
        let _ = writeln!(text, "\n## {}", paper.title);
        if let Some(machine) = &paper.machine {
            let _ = writeln!(text, "\nThe paper's machines: {machine}");
        }
        let mut all = Claims::new();
        for (figure, claims) in paper.figure.iter().zip(of_paper(runs, paper, register)) {
            let ids: Vec<String> = figure.experiments.iter().map(|id| format!("`{id}`")).collect();
            let (name, picture, ids) = (&figure.name, &figure.picture, ids.join(" and "));
            let _ = writeln!(text, "\n### {name}\n\n{picture} Repeated by {ids}.");
            picture::markdown(&mut text, &claims);
            markdown_table(&mut text, &claims);
            markdown_rest(&mut text, figure, &claims);
            markdown_untestable(&mut text, figure);
            markdown_changed(&mut text, &claims);
            all.extend(claims);
        }
        markdown_tries(&mut text, &all);
    }
    Ok(text)
}

/// Writes the claims that a run judges. The comment in the page names the files that have the table's
/// figures, because a test of the repository compares the figures with these files.
fn markdown_table(text: &mut String, claims: &Claims<'_>) {
    let decided: Vec<(&String, &ClaimWithRun<'_>)> =
        claims.iter().filter_map(|(id, decided)| Some((id, decided.as_ref()?))).collect();
    if decided.is_empty() {
        return;
    }
    let runs = decided
        .iter()
        .flat_map(|(_, it)| iter::once(it.run).chain(it.others.iter().map(|&(run, _)| run)));
    let files: BTreeSet<String> = runs.map(|run| run.data().display().to_string()).collect();
    let _ = writeln!(
        text,
        "\n<!-- figures: {} -->\n| claim | statement | verdict | measured | holds if | the paper | operating point \
         | what differs | run |\n|---|---|---|---|---|---|---|---|---|",
        Vec::from_iter(files).join(" ")
    );
    for (id, decided) in decided {
        markdown_row(text, id, decided);
    }
}

/// Writes a list with its head; nothing if there are no lines.
fn list(text: &mut String, head: &str, lines: impl Iterator<Item = String>) {
    let lines: String = lines.map(|line| format!("- {line}\n")).collect();
    if !lines.is_empty() {
        let _ = write!(text, "\n{head}\n\n{lines}");
    }
}

/// Writes the claims that no published run judges, with their statements from the experiment.
fn markdown_rest(text: &mut String, figure: &PaperFigure, claims: &Claims<'_>) {
    let open = claims.iter().filter(|(_, decided)| decided.is_none());
    let lines = open.filter_map(|(id, _)| {
        let of = |experiment: &String| experiment::find_built_in(experiment)?.find_claim(id);
        let Claim { statement, holds, paper, .. } = figure.experiments.iter().find_map(of)?;
        Some(format!("{id}: {statement}; holds if {holds}. The paper: {paper}."))
    });
    let head = "No run here judges these claims (results.md reads some of them from the data of an older run):";
    list(text, head, lines);
}

/// Writes the claims that no experiment here can test, with the reasons.
fn markdown_untestable(text: &mut String, figure: &PaperFigure) {
    let claims = figure.not_testable.iter();
    let lines = claims.map(|it| format!("{}: {}. {}", it.id, it.statement, it.why));
    list(text, "Not testable here:", lines);
}

/// Writes the claims whose verdict would differ with an earlier threshold, or whose form was another one. This is
/// no part of the table, because the file of a run does not have earlier thresholds.
fn markdown_changed(text: &mut String, claims: &Claims<'_>) {
    let lines = claims.iter().flat_map(|(id, decided)| {
        let others = decided.as_ref().map(ClaimWithRun::other_thresholds).unwrap_or_default();
        let all = others.into_iter().chain(earlier::earlier_forms(id));
        all.map(move |it| format!("{id}: {it}"))
    });
    list(text, "Thresholds that changed:", lines);
}

/// Writes how often each primary claim was run, which run is shown, and why. This is no table, because the file
/// of one run does not have these numbers.
fn markdown_tries(text: &mut String, claims: &Claims<'_>) {
    let decided = claims.iter().filter_map(|(id, decided)| Some((id, decided.as_ref()?)));
    let lines = decided.filter(|(_, decided)| decided.claim.primary).map(|(id, decided)| {
        let run = &decided.run.directory;
        let contradict = match decided.tries.contradict_each_other() {
            true => "; the runs contradict each other",
            false => "",
        };
        format!(
            "{id} (`{}`), {}{contradict}. Shown: [{}]({}/{}), {}. {}{}",
            decided.run.outcome.experiment.id,
            decided.tries,
            name(run).replace(['[', ']'], "_"),
            target(run),
            decided.run.page(),
            decided.why_chosen(),
            p_values(decided).map_or_else(|| "No p-value".to_owned(), |text| capital(&text)),
            decided.doubt().map_or_else(|| ".".to_owned(), |doubt| format!(": **{doubt}**.")),
        )
    });
    list(text, "### Every run of the primary claims", lines);
}

/// Returns the text with a capital at its start.
fn capital(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().map_or_else(String::new, |first| first.to_uppercase().chain(rest).collect())
}

fn markdown_row(text: &mut String, id: &str, decided: &ClaimWithRun<'_>) {
    let claim = decided.claim;
    let _ = writeln!(
        text,
        "| {id}{} | {} | {}{}{}{} | {} | {} | {} | {} | {} | [{}]({}/{}) |",
        if claim.primary { " ★" } else { "" },
        claim.statement,
        claim.verdict,
        decided.doubt().map_or_else(String::new, |doubt| format!(" ({doubt})")),
        claim
            .remark()
            .map_or_else(String::new, |why| format!(" ({})", super::markdown::cell(&why))),
        decided.other_verdicts().map_or_else(String::new, |text| format!(" ({text})")),
        figures_of(decided),
        claim.condition(),
        claim.paper_says,
        super::markdown::cell(&decided.operating_point()),
        super::operating_point::machine(&decided.run.outcome),
        super::markdown::cell(&name(&decided.run.directory)).replace(['[', ']'], "_"),
        target(&decided.run.directory),
        decided.run.page(),
    );
}

#[cfg(test)]
mod tests {
    use super::decided::decide;
    use super::*;
    use crate::{
        claims::made,
        plan::{Cell, Point},
        verdict::Verdict,
    };

    fn markdown(runs: &[Publication]) -> anyhow::Result<String> {
        super::markdown(runs, &Register::default())
    }

    fn page(runs: &[Publication]) -> anyhow::Result<String> {
        super::page(runs, &Register::default())
    }

    /// Every claim of every built-in experiment is in the list, and nothing else is.
    #[test]
    fn the_list_names_every_claim_once() {
        let papers = papers().unwrap();
        let figures: Vec<&PaperFigure> = papers.paper.iter().flat_map(|p| &p.figure).collect();
        for id in experiment::ids() {
            for claim in experiment::find(id).unwrap().claim {
                let named = figures.iter().filter(|figure| {
                    figure.experiments.iter().any(|e| e == id) && figure.claims.contains(&claim.id)
                });
                assert_eq!(named.count(), 1, "{id}: {}", claim.id);
            }
        }
        for figure in figures {
            for id in &figure.claims {
                let known = figure.experiments.iter().any(|experiment| {
                    experiment::find(experiment).unwrap().claim.iter().any(|claim| claim.id == *id)
                });
                assert!(known, "{}: no claim {id}", figure.name);
            }
        }
    }

    /// Each figure of a paper has at least one primary claim.
    #[test]
    fn every_figure_of_a_paper_has_its_primary_claim() {
        for paper in papers().unwrap().paper.iter().filter(|paper| paper.key != "ours") {
            for figure in &paper.figure {
                let primary = figure.experiments.iter().flat_map(|id| {
                    experiment::find(id).unwrap().claim.into_iter().filter(|claim| claim.primary)
                });
                let named = primary.filter(|claim| figure.claims.contains(&claim.id));
                assert!(named.count() >= 1, "{} {}", paper.key, figure.name);
            }
        }
    }

    /// Returns a run of `idle` with `blocks` blocks, in which I3 has the given verdict.
    fn published(blocks: u32, quick: bool, verdict: Verdict) -> Publication {
        let form = if quick { "quick" } else { "full" };
        let claim = serde_json::json!({
            "id": "I3", "statement": "s", "verdict": verdict, "value": 2.0, "low": null, "high": null,
            "paper": null, "paper_says": "p", "threshold": { "above": 1.5 }, "parts": [],
        });
        let cell = Cell { variant: "poll".into(), point: Point::new() };
        let run = made::run(cell, blocks - 1, Default::default());
        let experiment = experiment::find("idle").unwrap();
        let (dimensions, runs) = (Vec::new(), vec![run]);
        let mut outcome = Outcome { quick, dimensions, runs, ..Outcome::new(experiment) };
        outcome.claims = vec![serde_json::from_value(claim).unwrap()];
        let directory = PathBuf::from(format!("runs/{form}-{blocks}"));
        Publication { given: directory.clone(), directory, outcome }
    }

    /// Of many runs one decides by chance: it is not chosen because of that.
    #[test]
    fn the_run_that_had_most_to_judge_by_counts() {
        let figure = papers().unwrap().paper.into_iter().flat_map(|paper| paper.figure);
        let figure = figure
            .filter(|figure| figure.experiments.iter().any(|id| id == "idle"))
            .find(|figure| figure.claims.iter().any(|id| id == "I3"))
            .unwrap();
        let counts = |runs: &[Publication]| {
            let decided = decide(runs, &figure, "I3", &Register::default()).unwrap();
            (name(&decided.run.directory), decided.claim.verdict, decided.other_verdicts())
        };
        let undecided = || published(40, false, Verdict::Undecided);
        let by_chance = || published(6, false, Verdict::Holds);
        for runs in [[undecided(), by_chance()], [by_chance(), undecided()]] {
            let former = Some("holds in full-6".to_owned());
            assert_eq!(counts(&runs), ("full-40".into(), Verdict::Undecided, former));
        }
        let full = published(10, false, Verdict::DoesNotHold);
        let runs = [published(40, true, Verdict::Holds), full];
        let opposite = Some("the opposite in quick-40".to_owned());
        assert_eq!(counts(&runs), ("full-10".into(), Verdict::DoesNotHold, opposite));
        let text = markdown(&runs).unwrap();
        assert!(text.contains("| does not hold (the opposite in quick-40) |"), "{text}");
        assert!(page(&runs).unwrap().contains("the opposite in quick-40"));
        let absent = published(40, false, Verdict::NotTestable);
        assert_eq!(counts(&[absent, by_chance()]).1, Verdict::Holds);
        // One pass of the full form does not replace a verdict, but its result is shown.
        let quick = |verdict| published(6, true, verdict);
        let saw = |verdict| counts(&[published(1, false, Verdict::Seen), quick(verdict)]);
        let seen = Some("2.00 was seen in full-1".to_owned());
        assert_eq!(saw(Verdict::DoesNotHold), ("quick-6".into(), Verdict::DoesNotHold, seen));
        // A figure of another run comes from a file, too, and the table names that file.
        let text =
            markdown(&[published(1, false, Verdict::Seen), quick(Verdict::DoesNotHold)]).unwrap();
        let names_both = |line: &str| {
            line.contains("full-1/result.json") && line.contains("quick-6/result.json")
        };
        assert!(
            text.lines().any(|line| line.starts_with("<!-- figures: ") && names_both(line)),
            "{text}"
        );
        assert_eq!(saw(Verdict::Holds), ("quick-6".into(), Verdict::Holds, None));
        assert_eq!(counts(&[published(1, false, Verdict::Seen)]).1, Verdict::Seen);
    }

    /// Regression test: a bar once ended the cell, and a bracket or a blank ended the link.
    #[test]
    fn a_strange_name_of_a_directory_stays_in_its_cell() {
        let mut run = published(10, false, Verdict::Holds);
        run.directory = PathBuf::from("../a|b) <x> [\u{fc}]\"d");
        let runs = [run];
        let text = markdown(&runs).unwrap();
        let row = text.lines().find(|line| line.starts_with("| I3 ")).unwrap();
        assert!(row.contains("](../a%7Cb%29%20%3Cx%3E%20%5B%C3%BC%5D%22d/"), "{row}");
        let plain = markdown(&[published(10, false, Verdict::Holds)]).unwrap();
        let cells = |row: &str| row.replace("\\|", "").matches('|').count();
        let expected = plain.lines().find(|line| line.starts_with("| I3 ")).unwrap();
        assert_eq!(cells(row), cells(expected), "{row}");
        assert!(page(&runs).unwrap().contains("href=\"../a%7Cb%29%20%3Cx%3E"));
    }

    #[test]
    fn an_open_verdict_says_what_it_would_take() {
        let mut run = published(10, false, Verdict::Undecided);
        run.outcome.claims[0].parts = vec![
            serde_json::from_value(serde_json::json!({
                "variant": "poll", "verdict": "undecided", "estimate": null,
                "note": "at idle 8,000", "outlook": { "blocks": 32 },
            }))
            .unwrap(),
        ];
        let runs = [run];
        let outlook = "at idle 8,000; about 32 blocks would decide it";
        assert!(markdown(&runs).unwrap().contains(&format!("| undecided ({outlook}) |")));
        assert!(page(&runs).unwrap().contains(outlook));
        let decided = [published(10, false, Verdict::Holds)];
        assert!(!markdown(&decided).unwrap().contains("would decide it |"));
    }

    #[test]
    fn a_link_goes_down_or_up() {
        let of = |directory: &str, out: &str| link(Path::new(directory), Path::new(out)).unwrap();
        assert_eq!(of("docs/runs/a/", "docs"), Path::new("runs/a"));
        assert_eq!(of("/x/runs/a", "/x/y/z"), Path::new("../../runs/a"));
    }

    #[test]
    fn what_is_not_published_says_so() {
        let text = markdown(&[]).unwrap();
        assert!(
            text.contains("- G3: beyond saturation poll's reply rate")
                && text.contains("No run here judges these claims")
                && !text.contains("\n| G3")
        );
        assert!(page(&[]).unwrap().contains("no run here judges this claim"));
    }
}
