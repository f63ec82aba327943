//! The statistics as text: a block for each group, with as many blocks side by side as fit.

use pollux_server::admin::web::rows::ROWS;
use std::{collections::HashMap, fmt::Write};

/// The width of a block and of the gap between two blocks: a terminal of 80 columns has room for
/// two.
const BLOCK: usize = 39;
const GAP: usize = 2;

/// Returns the text for a terminal of this many columns, without a line feed at the end.
pub(super) fn text(figures: &HashMap<String, String>, columns: u16) -> String {
    let blocks = blocks(figures);
    let beside = ((usize::from(columns) + GAP) / (BLOCK + GAP)).clamp(1, blocks.len());
    let mut text = String::new();
    for (index, row) in blocks.chunks(beside).enumerate() {
        if index > 0 {
            text.push('\n');
        }
        let height = row.iter().map(Vec::len).max().unwrap_or(0);
        for line in 0..height {
            let mut whole = String::new();
            for block in row {
                let part = block.get(line).map_or("", String::as_str);
                let _ = write!(whole, "{part:BLOCK$}{:GAP$}", "");
            }
            text.push_str(whole.trim_end());
            text.push('\n');
        }
    }
    text.truncate(text.trim_end().len());
    text
}

fn blocks(figures: &HashMap<String, String>) -> Vec<Vec<String>> {
    let mut blocks: Vec<Vec<String>> = Vec::new();
    let mut group = "";
    for row in ROWS {
        if row.group != group {
            group = row.group;
            blocks.push(vec![group.to_owned()]);
        }
        // A server of another version may have other rows.
        let value = figures.get(row.key).map_or("–", String::as_str);
        // Values come from the network and must not move the terminal's cursor.
        let value: String = value.chars().filter(|character| !character.is_control()).collect();
        let room = BLOCK - 2 - row.label.chars().count();
        if let Some(block) = blocks.last_mut() {
            block.push(format!("  {}{value:>room$}", row.label));
        }
    }
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_stand_beside_each_other_where_there_is_room() {
        let figures = HashMap::from([("open".into(), "8,000\x1b[2J".into())]);
        for (columns, lines) in [(40, 44), (80, 23), (100, 23), (200, 15)] {
            let text = text(&figures, columns);
            let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= usize::from(columns).max(BLOCK), "{columns}: {widest}\n{text}");
            assert!(text.lines().count() <= lines, "{columns}:\n{text}");
            assert!(text.contains("8,000[2J"), "{text}");
        }
    }
}
