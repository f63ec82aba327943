//! Several operating points in few words.
//!
//! An operating point is a list of axes with their values: `backlog 128, rate x1.05`.

use crate::{
    result::grouped,
    statistics::Estimate,
    verdict::{ClaimOutcome, Part, Verdict},
};

/// The parts of a claim that have the same verdict.
type Group<'a> = (Verdict, Vec<&'a Part>);

/// Returns the numbers of a claim in one line: one range for each verdict, with its operating points if there
/// are several verdicts.
pub(super) fn line(claim: &ClaimOutcome) -> String {
    let all: Vec<&str> = points(claim.parts.iter());
    if all.len() < 2 {
        return claim.measured().unwrap_or_else(|| "–".into());
    }
    let groups: Vec<Group<'_>> = grouped(claim.parts.iter().map(|part| (part.verdict, part)));
    let text = |(verdict, parts): &Group<'_>| {
        let range = range(claim, parts);
        if groups.len() == 1 {
            return range;
        }
        format!("{range} ({}: {verdict})", place(&points(parts.iter().copied()), &all))
    };
    groups.iter().map(text).collect::<Vec<_>>().join("; ")
}

/// Returns the operating points at which a claim is open, in words; `None` if it has at most one.
pub(super) fn open(claim: &ClaimOutcome) -> Option<String> {
    let all = points(claim.parts.iter());
    let open = claim.parts.iter().filter(|part| !part.verdict.is_decided());
    (all.len() > 1).then(|| place(&points(open), &all))
}

/// Returns the axes that decide a claim whose points disagree: one axis, if its value determines the verdict,
/// or else all.
pub(super) fn deciding_axes(claim: &ClaimOutcome) -> String {
    let verdicts: Vec<(&str, Verdict)> = claim
        .parts
        .iter()
        .filter_map(|part| Some((part.operating_point.as_deref()?, part.verdict)))
        .collect();
    let Some((first, _)) = verdicts.first() else { return String::new() };
    let axes: Vec<&str> = values(first).map(|(axis, _)| axis).collect();
    let determines = |axis: &&&str| {
        let at = |point: &str| value_of(point, axis).map(str::to_owned);
        verdicts.iter().all(|(one, verdict)| {
            verdicts.iter().all(|(other, its)| at(one) != at(other) || verdict == its)
        })
    };
    match axes.iter().find(determines) {
        Some(axis) => (*axis).to_owned(),
        None => axes.join(" and "),
    }
}

/// Returns the least and the greatest number of `parts`, with an interval that contains all their intervals.
fn range(claim: &ClaimOutcome, parts: &[&Part]) -> String {
    let only = || parts.iter().find_map(|part| claim.reading_of(part));
    let estimates = || parts.iter().filter_map(|part| part.estimate);
    let least = |of: fn(Estimate) -> f64| estimates().map(of).fold(f64::MAX, f64::min);
    let most = |of: fn(Estimate) -> f64| estimates().map(of).fold(f64::MIN, f64::max);
    let [low, high] = [least(|it| it.value), most(|it| it.value)].map(|it| claim.number(it));
    if estimates().count() < 2 || low == high {
        return only().unwrap_or_else(|| "–".into());
    }
    let has_ends = estimates().all(|it| it.low.is_some() && it.high.is_some());
    let ends = has_ends.then(|| {
        let low = least(|it| it.low.unwrap_or(it.value));
        claim.ends(Some(low), Some(most(|it| it.high.unwrap_or(it.value))))
    });
    let texts = [format!("{low} to {high}"), ends.unwrap_or_default(), claim.unit().to_owned()];
    texts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" ")
}

/// Returns the different operating points of `parts`.
fn points<'a>(parts: impl Iterator<Item = &'a Part>) -> Vec<&'a str> {
    unique(parts.filter_map(|part| part.operating_point.as_deref()))
}

fn unique<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut found = Vec::new();
    for text in texts {
        if !found.contains(&text) {
            found.push(text);
        }
    }
    found
}

fn values(point: &str) -> impl Iterator<Item = (&str, &str)> {
    point.split(", ").filter_map(|value| value.split_once(' '))
}

fn value_of<'a>(point: &'a str, axis: &str) -> Option<&'a str> {
    values(point).find(|(name, _)| *name == axis).map(|(_, value)| value)
}

/// Describes `some` of `all` points: `rate x1.15`, if these are all points with this rate.
fn place(some: &[&str], all: &[&str]) -> String {
    let Some(first) = some.first() else { return String::new() };
    let along = |points: &[&'_ str], axis: &str| -> Vec<String> {
        let found: Vec<&str> = unique(points.iter().filter_map(|point| value_of(point, axis)));
        found.into_iter().map(str::to_owned).collect()
    };
    let axes: Vec<&str> = values(first).map(|(axis, _)| axis).collect();
    let product: usize = axes.iter().map(|axis| along(some, axis).len()).product();
    if product != some.len() {
        return some.join("; ");
    }
    let is_narrow = |axis: &&&str| along(some, axis).len() < along(all, axis).len();
    let any_narrow = axes.iter().any(|axis| is_narrow(&axis));
    let shown = axes.iter().filter(|axis| !any_narrow || is_narrow(axis));
    let shown = shown.map(|axis| format!("{axis} {}", along(some, axis).join(", ")));
    shown.collect::<Vec<_>>().join(" and ")
}

#[cfg(test)]
mod tests {
    use super::{super::verdict::tests::claim, *};
    use crate::{experiment::Threshold, statistics::estimate};

    fn part(point: &str, value: f64, verdict: Verdict) -> Part {
        Part {
            variant: "poll".into(),
            operating_point: Some(point.into()),
            verdict,
            estimate: estimate(&[value; 6]),
            ..Part::default()
        }
    }

    fn of(parts: Vec<Part>) -> ClaimOutcome {
        let value = parts[0].estimate.map(|it| it.value);
        let about = claim(Verdict::Depends, [0.1, 0.1], Threshold::Above(0.3));
        ClaimOutcome { parts, value, ..about }
    }

    const POINTS: [&str; 6] = [
        "backlog 5, rate x1.05",
        "backlog 5, rate x1.15",
        "backlog 128, rate x1.05",
        "backlog 128, rate x1.15",
        "backlog 4,096, rate x1.05",
        "backlog 4,096, rate x1.15",
    ];

    fn of_verdicts(holds: impl Fn(&str) -> bool) -> ClaimOutcome {
        let one = |(index, point): (usize, &&str)| match holds(point) {
            true => part(point, 0.5 + index as f64 / 100.0, Verdict::Holds),
            false => part(point, 0.1, Verdict::DoesNotHold),
        };
        of(POINTS.iter().enumerate().map(one).collect())
    }

    #[test]
    fn six_points_are_one_line_that_names_the_axis_that_decides() {
        let claim = of_verdicts(|point| point.ends_with("x1.15"));
        assert_eq!(
            line(&claim),
            "0.100 [0.100, 0.100] (rate x1.05: does not hold); \
             0.510 to 0.550 [0.510, 0.550] (rate x1.15: holds)"
        );
        assert_eq!(deciding_axes(&claim), "rate");
        let claim = of_verdicts(|point| point.starts_with("backlog 5,"));
        assert!(line(&claim).contains("(backlog 128, 4,096: does not hold)"), "{}", line(&claim));
        assert_eq!(deciding_axes(&claim), "backlog");
    }

    #[test]
    fn points_that_no_axis_separates_are_all_named() {
        let claim = of_verdicts(|point| point == POINTS[0]);
        assert!(line(&claim).starts_with("0.500 [0.500, 0.500] (backlog 5 and rate x1.05: holds)"));
        assert!(line(&claim).contains("backlog 5, rate x1.15; backlog 128, rate x1.05;"));
        assert_eq!(deciding_axes(&claim), "backlog and rate");
    }

    #[test]
    fn points_that_agree_have_one_range() {
        let claim = of_verdicts(|_| true);
        assert_eq!(line(&claim), "0.500 to 0.550 [0.500, 0.550]");
        assert_eq!(open(&claim).as_deref(), Some(""));
    }

    #[test]
    fn points_that_are_open_are_named() {
        let parts = vec![
            part("at-once 8", 0.03, Verdict::Holds),
            part("at-once 512", 0.6, Verdict::Undecided),
            part("at-once 16,000", 0.7, Verdict::Seen),
        ];
        assert_eq!(open(&of(parts.clone())).unwrap(), "at-once 512, 16,000");
        assert_eq!(open(&of(parts[..1].to_vec())), None);
        let one = line(&of(parts[..1].to_vec()));
        assert!(one.starts_with("0.0300"), "{one}");
    }
}
