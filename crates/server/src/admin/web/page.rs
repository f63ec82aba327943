//! The HTML page for people.

use super::{rows::rows, snapshot::ServerView};
use std::fmt::Write;

/// The page without the rows.
const TEMPLATE: &str = include_str!("page.html");

/// Returns the page with the present values.
pub(super) fn render(view: &ServerView) -> String {
    let now = view.snapshot();
    let values = rows(&view.earlier(), &now);
    let mut body = String::with_capacity(4 << 10);
    let mut group = "";
    for (row, value) in &values {
        if row.group != group {
            let end = if group.is_empty() { "" } else { "</dl></section>" };
            let _ = write!(body, "{end}<section><h2>{}</h2><dl>", row.group);
            group = row.group;
        }
        // No label and no value contains a character that HTML escapes.
        let _ = write!(body, "<div><dt>{}<dd id={}>{value}</div>", row.label, row.key);
    }
    body.push_str("</dl></section>");
    let what = format!(
        "Pollux {}, {}, {}",
        env!("CARGO_PKG_VERSION"),
        now.info.architecture,
        now.info.mechanism
    );
    TEMPLATE.replacen("{what}", &escape(&what), 1).replacen("{rows}", &body, 1)
}

/// Escapes a text, because the options of a mechanism come from the user.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
