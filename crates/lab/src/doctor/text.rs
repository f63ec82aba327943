//! The report as text for a terminal.

use super::{Check, OptionFact, Report, tls};
use crate::format;
use std::fmt::Write as _;

/// The layout of the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Whether the text has colours, for a terminal.
    pub colour: bool,
    /// The columns of the terminal.
    pub width: usize,
}

/// The narrowest text that is still wrapped into lines; a narrower terminal wraps it itself.
const MIN_WIDTH: usize = 50;

impl Style {
    fn paint(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

impl Report {
    /// Formats the report as text.
    pub fn text(&self, style: Style) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "{}\n", self.kernel);
        let _ = writeln!(text, "{}", style.paint("1", "Ways to wait"));
        let wide = self.mechanisms.iter().map(|m| m.name.len()).max().unwrap_or(0);
        for mechanism in &self.mechanisms {
            let name = format!("{:wide$}", mechanism.name);
            let (mark, body) = match &mechanism.reason {
                None => (style.paint("32", "yes"), &mechanism.summary),
                Some(reason) => (style.paint("31", "no "), reason),
            };
            put(&mut text, style, &format!("  {mark} {name}  "), 8 + wide, body);
            for OptionFact { key, values, meaning } in &mechanism.options {
                let values = if values.is_empty() { "N".into() } else { values.join("|") };
                let option = format!("{key}={values}: {meaning}");
                put(&mut text, style, &" ".repeat(8 + wide), 10 + wide, &option);
            }
        }
        let _ = writeln!(text, "\n{}", style.paint("1", "Commands of README"));
        for command in &self.commands {
            let mark = match (command.works, command.obstacles.is_empty()) {
                (false, _) => style.paint("31", "no "),
                (true, false) => style.paint("33", "yes"),
                (true, true) => style.paint("32", "yes"),
            };
            let _ = writeln!(text, "  {mark} {}", command.command);
            for obstacle in &command.obstacles {
                with_advice(&mut text, style, &obstacle.what, obstacle.remedy.as_deref());
            }
        }
        let tls = tls::checks(&self.tls);
        let sections: [(&str, &[Check]); 4] = [
            ("Sandbox of pollux serve", &self.sandbox),
            ("TLS", &tls),
            ("Limits of this process", &self.limits),
            ("Settings of the system", &self.sysctls),
        ];
        for (title, checks) in sections {
            let _ = writeln!(text, "\n{}", style.paint("1", title));
            for Check { name, value, meaning, advice } in checks {
                let _ = writeln!(text, "  {} = {value}", style.paint("36", name));
                with_advice(&mut text, style, meaning, advice.as_deref());
            }
        }
        let checks = sections.iter().flat_map(|(_, checks)| *checks);
        let obstacles = self.commands.iter().flat_map(|command| &command.obstacles);
        let of_obstacles = obstacles.filter(|obstacle| obstacle.remedy.is_some()).count();
        let closing = match of_obstacles + checks.filter(|check| check.advice.is_some()).count() {
            0 => "Nothing stands in the way of many connections.".into(),
            1 => "One piece of advice above (→).".into(),
            n => format!("{n} pieces of advice above (→)."),
        };
        let _ = writeln!(text, "\n{closing}");
        text
    }
}

/// Writes a fact and, after an arrow, the advice about it.
fn with_advice(text: &mut String, style: Style, what: &str, advice: Option<&str>) {
    put(text, style, "      ", 6, what);
    if let Some(advice) = advice {
        let head = format!("    {} ", style.paint("33", "→"));
        put(text, style, &head, 6, advice);
    }
}

/// Writes `head` and then `body`, wrapped at words. The later lines are indented by `indent`.
fn put(text: &mut String, style: Style, head: &str, indent: usize, body: &str) {
    let width = style.width.max(MIN_WIDTH);
    text.push_str(&format::wrap(body, width, head, &" ".repeat(indent)));
    text.push('\n');
}
