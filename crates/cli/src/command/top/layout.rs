//! The statistics as text: a block for each group, with as many blocks side by side as fit.

use pollux_server::admin::web::rows::{ROWS, Row};
use std::{collections::HashMap, fmt::Write};

/// The width of a block and of the gap between two blocks: a terminal of 80 columns has room for
/// two.
const BLOCK: usize = 39;
const GAP: usize = 2;

/// Returns the text for a terminal of this many columns, without a line feed at the end.
pub(super) fn text(figures: &HashMap<String, String>, columns: u16) -> String {
    let beside = ((usize::from(columns) + GAP) / (BLOCK + GAP)).max(1);
    // Each block goes below the shortest column: a terminal has few lines.
    let mut stacks: Vec<Vec<String>> = vec![Vec::new(); beside];
    for block in blocks(figures) {
        if let Some(shortest) = stacks.iter_mut().min_by_key(|stack| stack.len()) {
            if !shortest.is_empty() {
                shortest.push(String::new());
            }
            shortest.extend(block);
        }
    }
    let mut text = String::new();
    let height = stacks.iter().map(Vec::len).max().unwrap_or(0);
    for line in 0..height {
        let mut whole = String::new();
        for stack in &stacks {
            let part = stack.get(line).map_or("", String::as_str);
            let _ = write!(whole, "{part:BLOCK$}{:GAP$}", "");
        }
        text.push_str(whole.trim_end());
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text
}

fn blocks(figures: &HashMap<String, String>) -> Vec<Vec<String>> {
    // A server without a hub has no row of that group, nor has an earlier version.
    let groups = ROWS.chunk_by(|one, other| one.group == other.group);
    let is_there = |rows: &&[Row]| rows.iter().any(|row| figures.contains_key(row.key));
    groups.filter(is_there).map(|rows| block(rows, figures)).collect()
}

fn block(rows: &[Row], figures: &HashMap<String, String>) -> Vec<String> {
    let heading = rows.first().map(|row| row.group.to_owned());
    let lines = rows.iter().map(|row| {
        // A server of another version may have other rows.
        let value = figures.get(row.key).map_or("–", String::as_str);
        // Values come from the network and must not move the terminal's cursor.
        let value: String = value.chars().filter(|character| !character.is_control()).collect();
        let room = BLOCK - 2 - row.label.chars().count();
        format!("  {}{value:>room$}", row.label)
    });
    heading.into_iter().chain(lines).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The figures of a server with or without a hub.
    fn figures(has_hub: bool) -> HashMap<String, String> {
        ROWS.iter()
            .filter(|row| has_hub || row.group != "Hub")
            .map(|row| (row.key.to_owned(), "8,000\x1b[2J".to_owned()))
            .collect()
    }

    #[test]
    fn blocks_stand_beside_each_other_where_there_is_room() {
        for (has_hub, columns, lines) in [
            (false, 40, 44),
            (false, 80, 23),
            (false, 100, 23),
            (false, 200, 13),
            (true, 40, 57),
            (true, 80, 28),
            (true, 200, 20),
        ] {
            let text = text(&figures(has_hub), columns);
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= usize::from(columns).max(BLOCK), "{columns}: {widest}\n{text}");
            assert!(text.lines().count() <= lines, "{columns}:\n{text}");
            assert!(text.contains("8,000[2J"), "{text}");
        }
    }

    #[test]
    fn a_group_is_shown_where_the_server_has_it() {
        assert!(!text(&figures(false), 80).contains("Hub"));
        let mut figures = figures(true);
        figures.remove("hub_store");
        let text = text(&figures, 80);
        assert!(text.contains("Hub"), "{text}");
        let store = text.lines().find(|line| line.contains("connection to the store")).unwrap();
        assert!(store.trim_end().ends_with('–') || store.contains("– "), "{store}");
        assert_eq!(super::text(&HashMap::new(), 80), "");
    }
}
