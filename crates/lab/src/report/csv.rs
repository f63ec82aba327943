//! Every run as a line of CSV (RFC 4180), for spreadsheets and statistics programs.

use crate::result::Outcome;
use std::collections::BTreeSet;

/// The file's name inside the result directory.
pub const FILE: &str = "runs.csv";

/// Returns one line of fields, including the end of the line.
pub fn line(fields: &[String]) -> String {
    let quoted: Vec<String> = fields
        .iter()
        .map(|field| match field.contains([',', '"', '\n', '\r']) {
            true => format!("\"{}\"", field.replace('"', "\"\"")),
            false => field.clone(),
        })
        .collect();
    quoted.join(",") + "\r\n"
}

/// Returns a header line, then a line for each run: the variant, whether the run counts, and all its
/// metrics.
pub fn runs(outcome: &Outcome) -> String {
    let metrics: BTreeSet<&String> = outcome.runs.iter().flat_map(|r| r.metrics.keys()).collect();
    let axes: Vec<&String> = outcome.dimensions.iter().map(|d| &d.name).collect();
    let fixed = ["block", "variant", "mechanism", "status", "reason"].map(str::to_owned);
    let mut head: Vec<String> = fixed.into();
    head.extend(axes.iter().map(|axis| (*axis).clone()));
    head.extend(metrics.iter().map(|name| (*name).clone()));
    let mut text = line(&head);
    for run in &outcome.runs {
        let mut fields = vec![
            run.block.to_string(),
            run.cell.variant.clone(),
            run.mechanism.clone(),
            run.status.to_string(),
            run.reason.clone().unwrap_or_default(),
        ];
        let point = |axis: &&String| run.cell.point.get(*axis).map(ToString::to_string);
        fields.extend(axes.iter().map(|axis| point(axis).unwrap_or_default()));
        let value = |name: &&String| run.metrics.get(*name).map(ToString::to_string);
        fields.extend(metrics.iter().map(|name| value(name).unwrap_or_default()));
        text.push_str(&line(&fields));
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_holds_a_comma_is_quoted() {
        let fields = ["a,b", "say \"x\"", "plain", ""].map(str::to_owned);
        assert_eq!(super::line(&fields), "\"a,b\",\"say \"\"x\"\"\",plain,\r\n");
    }
}
