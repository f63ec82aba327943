//! The measured picture beside a paper's: selects the figure and the run that show the subject of the
//! claims.

use super::{ClaimWithRun, Claims, Publication, name, target};
use crate::{
    experiment::Claim,
    format,
    report::{self, Panel, html},
    result::grouped,
};
use std::{cmp::Reverse, fmt::Write as _};

/// The runs that decide these claims, each with the claims it decides: sorted by their number, and runs
/// with equal numbers by their order in the list.
fn deciding<'a, 'b>(claims: &'b Claims<'a>) -> Vec<(&'a Publication, Vec<&'b ClaimWithRun<'a>>)> {
    let decided = claims.iter().filter_map(|(_, decided)| decided.as_ref());
    let runs = grouped(decided.map(|it| (&it.run.directory, it)));
    let mut runs: Vec<_> = runs.into_iter().map(|(_, its)| (its[0].run, its)).collect();
    runs.sort_by_key(|(_, its)| Reverse(its.len()));
    runs
}

/// Returns whether the panel is where the claim is read and shows one of its variants.
fn shows(run: &Publication, panel: &Panel<'_>, claim: &Claim) -> bool {
    let mut names = claim.a.variant.iter().chain(&claim.each);
    panel.is_at(&run.outcome, &claim.a.at) && names.any(|name| panel.shows(name))
}

/// Returns the name of the file with the panel that shows the claim, if the run has that file: a panel of
/// `figure`, or the panel of this name, or, without it, of a figure of the claim's metric. A panel with numbers of
/// the paper comes first.
pub(in crate::report) fn file_of(
    run: &Publication,
    claim: &Claim,
    figure: Option<&str>,
) -> Option<String> {
    let is_of = |panel: &Panel<'_>| match figure {
        Some(id) => panel.figure.id == id || panel.id == id,
        None => panel.figure.y == claim.metric,
    };
    let panels = report::panels(&run.outcome).into_iter();
    let panel = panels
        .filter(|panel| is_of(panel) && shows(run, panel, claim))
        .min_by_key(|panel| panel.paper(&run.outcome).is_empty())?;
    let file = format!("figures/{}.svg", panel.id);
    run.given.join(&file).exists().then_some(file)
}

/// Returns the panel that shows the comparison of the first claim, primary claims before others. If no
/// panel shows one of the claims, returns the first panel of the run.
fn shown<'a>(run: &'a Publication, decided: &[&ClaimWithRun<'_>]) -> Option<Panel<'a>> {
    let mut ids: Vec<(bool, &str)> =
        decided.iter().map(|it| (!it.claim.primary, it.claim.id.as_str())).collect();
    ids.sort_by_key(|(is_further, _)| *is_further);
    let claims = ids.iter().filter_map(|(_, id)| run.outcome.experiment.find_claim(id));
    let mut panels = report::panels(&run.outcome);
    let place = claims
        .filter_map(|claim| {
            let is_it =
                |panel: &Panel<'_>| panel.figure.y == claim.metric && shows(run, panel, claim);
            panels.iter().position(is_it)
        })
        .next()
        .unwrap_or(0);
    (place < panels.len()).then(|| panels.swap_remove(place))
}

/// The largest number of pictures of one run: a paper has at most three figures for one question.
const MAX_PANELS: usize = 3;

/// Writes a picture of each run that decides a claim here. For the run that decides most claims, also
/// writes the panels at other values of the axes.
pub(super) fn html(page: &mut String, claims: &Claims<'_>) {
    for (place, (run, decided)) in deciding(claims).into_iter().enumerate() {
        let Some(shown) = shown(run, &decided) else { continue };
        let panels = match place {
            0 => report::panels(&run.outcome),
            _ => vec![shown.clone()],
        };
        let mut panels: Vec<_> =
            panels.into_iter().filter(|panel| panel.figure.id == shown.figure.id).collect();
        if panels.len() > MAX_PANELS {
            panels = vec![shown];
        }
        for panel in panels {
            picture(page, run, &panel);
        }
    }
}

fn picture(page: &mut String, run: &Publication, panel: &Panel<'_>) {
    let Ok(svg) = report::figure::draw(&run.outcome, panel) else { return };
    let _ = writeln!(
        page,
        "<figure>\n<div class=\"scroll\">{svg}</div>\n<figcaption>Ours: {}, <a href=\"{}/{}\">{}</a></figcaption>\n\
         </figure>",
        format::escape(&html::title(&run.outcome, panel)),
        target(&run.directory),
        run.page(),
        format::escape(&name(&run.directory))
    );
}

/// Writes the picture of the run that decides most, if its archive has the picture as a file.
pub(super) fn markdown<'a>(text: &mut String, claims: &Claims<'a>) {
    let with_file = |(run, decided): (&'a Publication, Vec<&ClaimWithRun<'a>>)| {
        let panel = shown(run, &decided)?;
        let file = format!("figures/{}.svg", panel.id);
        run.given.join(&file).exists().then_some((run, panel, file))
    };
    let Some((run, panel, file)) = deciding(claims).into_iter().find_map(with_file) else { return };
    let title = html::title(&run.outcome, &panel).replace(['[', ']'], "_");
    let directory = target(&run.directory);
    let name = report::markdown::cell(&name(&run.directory)).replace(['[', ']'], "_");
    let _ = writeln!(
        text,
        "\n![{title}]({directory}/{file})\n\n*Ours: {title} ([{name}]({directory}/{})).*",
        run.page()
    );
}
