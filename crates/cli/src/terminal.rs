//! Properties of the standard streams. Only this module decides on colours, live lines and width.

use anstream::{AutoStream, ColorChoice, stream::RawStream};
use std::io::{IsTerminal, stderr, stdout};

/// The width of text that is not written to a terminal, and of all help texts, in columns.
pub(crate) const WIDTH: u16 = 80;

/// The minimum width of text in columns; a narrower terminal wraps it itself.
const MIN_WIDTH: u16 = 40;

/// Sets the colours for the whole process, including clap's messages: only on a terminal, and not
/// with NO_COLOR or CLICOLOR=0. CLICOLOR_FORCE enables them everywhere. Must be called first.
pub(crate) fn set_colours() {
    // anstream would use colours on a dumb terminal with CLICOLOR=1 and in CI.
    if is_dumb() {
        ColorChoice::Never.write_global();
    }
}

/// Returns whether `stream` gets colours.
pub(crate) fn has_colours(stream: &impl RawStream) -> bool {
    AutoStream::choice(stream) != ColorChoice::Never
}

/// Returns whether standard error can show a line that changes; a dumb terminal cannot overwrite a
/// line.
pub(crate) fn shows_progress() -> bool {
    stderr().is_terminal() && !is_dumb()
}

/// Returns the columns for text on standard output: those of the terminal, or [`WIDTH`].
pub(crate) fn width() -> u16 {
    terminal_size::terminal_size_of(stdout())
        .map_or(WIDTH, |(terminal_size::Width(columns), _)| columns.max(MIN_WIDTH))
}

/// Returns a message for standard error. On a terminal it is wrapped; otherwise it is unchanged,
/// because programs may search it.
pub(crate) fn for_stderr(text: &str) -> String {
    match terminal_size::terminal_size_of(stderr()) {
        Some((terminal_size::Width(columns), _)) if stderr().is_terminal() => {
            let fill = |line: &str| {
                let indent = line.len() - line.trim_start().len();
                let later = " ".repeat(indent.max(2));
                let options = textwrap::Options::new(columns.max(MIN_WIDTH).into())
                    .break_words(false)
                    .word_splitter(textwrap::WordSplitter::NoHyphenation)
                    .subsequent_indent(&later);
                textwrap::fill(line, options)
            };
            text.lines().map(fill).collect::<Vec<_>>().join("\n")
        }
        _ => text.to_owned(),
    }
}

/// Wraps `text` into lines of at most `columns`, each indented by `indent`.
pub(crate) fn wrap(text: &str, columns: u16, indent: &str) -> String {
    let options = textwrap::Options::new(columns.into())
        .break_words(false)
        .word_splitter(textwrap::WordSplitter::NoHyphenation)
        .initial_indent(indent)
        .subsequent_indent(indent);
    textwrap::fill(text, options)
}

/// Makes a text of a server safe for a terminal: control characters are escaped, except the ends of lines.
pub(crate) fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() && character != '\n' {
            printable.extend(character.escape_default());
        } else {
            printable.push(character);
        }
    }
    printable
}

fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}
