//! Finds all faults of one file; the parser itself stops at the first.

use super::{
    Config, Fault,
    load::{FILE_BYTES_MAX, explain},
    plain_words::innermost,
};
use crate::text_file::read_text;
use std::{ops::Range, path::Path};
use toml::de::DeTable;

/// The maximum number of faults that are reported.
const FAULTS_MAX: usize = 20;

impl Config {
    /// Returns all faults of the file in which [`Config::load`] has found `first`. They are in its order.
    pub fn all_faults(first: Fault) -> Vec<Fault> {
        let all = match (&first.file, first.position) {
            (Some(file), Some(_)) => {
                let text = read_text(Path::new(file), FILE_BYTES_MAX);
                text.map(|text| Self::faults_in(file, &text)).unwrap_or_default()
            }
            // The file could not be read.
            _ => Vec::new(),
        };
        if all.len() < 2 { vec![first] } else { all }
    }

    /// Returns all faults of a text, in its order; [`Config::parse`] reports only one. Each further
    /// fault is found in a text from which the entries with the previous faults are removed. The
    /// search ends at a syntax error, because then there are no entries.
    pub fn faults_in(name: &str, text: &str) -> Vec<Fault> {
        let mut rest = text.to_owned();
        let mut faults = Vec::new();
        while faults.len() < FAULTS_MAX {
            let Err(error) = toml::from_str::<Self>(&rest) else { break };
            faults.push(*explain(name, text, &error));
            let entry = error.span().and_then(|span| entry_at(&rest, span.start));
            let Some(entry) = entry else { break };
            rest = without(&rest, entry);
        }
        faults.sort_by_key(|fault| fault.position);
        faults
    }
}

/// Returns the text with `part` replaced by spaces, so that lines and positions stay the same.
fn without(text: &str, part: Range<usize>) -> String {
    let blanks = text[part.clone()].bytes().map(|byte| if byte == b'\n' { '\n' } else { ' ' });
    [&text[..part.start], &blanks.collect::<String>(), &text[part.end..]].concat()
}

/// Returns the same as [`innermost`]. A table that has its own header does not count: if the header were removed, its
/// entries would belong to another table; and without a part of it, such as `tls` in `[site.tls]`, it would be none.
fn entry_at(text: &str, position: usize) -> Option<Range<usize>> {
    let table = DeTable::parse(text).ok()?.into_inner();
    let entry = innermost(&table, position)?;
    let line = text.get(..entry.start)?.rsplit('\n').next().unwrap_or_default();
    let is_header = line.trim_start().starts_with('[') && !line.contains(']');
    let is_part = text.is_char_boundary(entry.start) && text.is_char_boundary(entry.end);
    (!is_header && is_part && !entry.is_empty()).then_some(entry)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the line and the message of each fault.
    fn faults(text: &str) -> Vec<(usize, String)> {
        let faults = Config::faults_in("test", text).into_iter();
        faults.map(|fault| (fault.position.unwrap().0, fault.message)).collect()
    }

    #[test]
    fn each_entry_with_a_fault_is_reported_with_its_line() {
        assert_eq!(faults("workers = 2\n[[site]]\nroot = \".\"\n"), []);
        let text = "workrs = 2\nlisten = [\n  \":80\",\n  \"nowhere\",\n]\nmax-header = \"64Q\"\n\
                    [[site]]\norgin = [\n \"http://a\"]\nroot = \".\"\nmax-body = -1\n";
        let found = faults(text);
        let lines: Vec<_> = found.iter().map(|(line, _)| *line).collect();
        assert!(lines.is_sorted(), "{found:?}");
        assert_eq!(found.len(), 5, "{found:?}");
        for line in [1, 6, 8, 11] {
            assert!(lines.contains(&line), "{found:?}");
        }
        assert!(lines.iter().any(|line| (2..=4).contains(line)), "{found:?}");
    }

    #[test]
    fn the_search_ends_at_a_fault_of_the_syntax_and_at_an_unknown_table() {
        assert_eq!(faults("workrs = 2\nlisten = [\n").len(), 1);
        assert_eq!(faults("[[sites]]\nroot = \".\"\n").len(), 1);
        assert_eq!(faults("[[site]]\nroot = \".\"\n[site.tls]\ncert = \"x\"\n").len(), 1);
        assert_eq!(faults("[ hub . x ]\ny = 1\n").len(), 1);
        let many = (0..100).map(|number| format!("key-{number} = 1\n")).collect::<String>();
        assert_eq!(faults(&many).len(), FAULTS_MAX);
    }
}
