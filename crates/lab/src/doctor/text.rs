//! The report for people.

use super::{Check, Report, tls};
use std::fmt::Write as _;

/// How the text is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Colours, for a terminal.
    pub colour: bool,
    /// Columns of the terminal.
    pub width: usize,
}

/// The narrowest text that is still set in lines; a narrower terminal wraps.
const MIN_WIDTH: usize = 50;

impl Style {
    fn paint(self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

impl Report {
    /// The report as text.
    pub fn text(&self, style: Style) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "{}\n", self.kernel);
        let _ = writeln!(text, "{}", style.paint("1", "Ways to wait"));
        let wide = self.mechanisms.iter().map(|m| m.name.len()).max().unwrap_or(0);
        for mechanism in &self.mechanisms {
            let name = format!("{:wide$}", mechanism.name);
            match &mechanism.reason {
                None => {
                    let mark = style.paint("32", "yes");
                    let head = format!("  {mark} {name}  ");
                    put(&mut text, style, &head, 8 + wide, &mechanism.summary);
                }
                Some(reason) => {
                    let mark = style.paint("31", "no ");
                    let head = format!("  {mark} {name}  ");
                    put(&mut text, style, &head, 8 + wide, reason);
                }
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
                put(&mut text, style, "      ", 6, &obstacle.what);
                if let Some(remedy) = &obstacle.remedy {
                    let head = format!("    {} ", style.paint("33", "→"));
                    put(&mut text, style, &head, 6, remedy);
                }
            }
        }
        let tls = tls::checks(&self.tls);
        for (title, checks) in [
            ("Sandbox of pollux serve", &self.sandbox),
            ("TLS", &tls),
            ("Limits of this process", &self.limits),
            ("Settings of the system", &self.sysctls),
        ] {
            let _ = writeln!(text, "\n{}", style.paint("1", title));
            for check in checks {
                one(&mut text, style, check);
            }
        }
        let advice = [&self.sandbox, &tls, &self.limits, &self.sysctls]
            .into_iter()
            .flatten()
            .filter(|check| check.advice.is_some())
            .count()
            + self
                .commands
                .iter()
                .flat_map(|c| &c.obstacles)
                .filter(|t| t.remedy.is_some())
                .count();
        let closing = match advice {
            0 => "Nothing stands in the way of many connections.".into(),
            1 => "One piece of advice above (→).".into(),
            n => format!("{n} pieces of advice above (→)."),
        };
        let _ = writeln!(text, "\n{closing}");
        text
    }
}

fn one(text: &mut String, style: Style, check: &Check) {
    let _ = writeln!(text, "  {} = {}", style.paint("36", &check.name), check.value);
    put(text, style, "      ", 6, &check.meaning);
    if let Some(advice) = &check.advice {
        let head = format!("    {} ", style.paint("33", "→"));
        put(text, style, &head, 6, advice);
    }
}

/// Writes `head` and then `body`, wrapped at words, its later lines indented by `indent`.
fn put(text: &mut String, style: Style, head: &str, indent: usize, body: &str) {
    let width = style.width.max(MIN_WIDTH);
    text.push_str(head);
    let mut column = indent;
    for (index, word) in body.split_whitespace().enumerate() {
        let length = word.chars().count();
        if index > 0 && column + 1 + length > width {
            let _ = write!(text, "\n{:indent$}", "");
            column = indent;
        } else if index > 0 {
            text.push(' ');
            column += 1;
        }
        text.push_str(word);
        column += length;
    }
    text.push('\n');
}
