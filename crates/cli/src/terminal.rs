//! What the standard streams are: the one place that decides on colours, live lines and width.

use anstream::{AutoStream, ColorChoice, stream::RawStream};
use std::io::{IsTerminal, stderr, stdout};

/// Columns of text that goes elsewhere than to a terminal, and of help everywhere.
pub(crate) const WIDTH: u16 = 80;

/// The narrowest text that is still set; a narrower terminal wraps it by itself.
const MIN_WIDTH: u16 = 40;

/// Settles colours for the whole process, clap's messages included: on a terminal only, and not
/// under NO_COLOR or CLICOLOR=0; CLICOLOR_FORCE enables them anywhere. To be called first.
pub(crate) fn settle() {
    // anstream would colour a dumb terminal under CLICOLOR=1 and in CI.
    if is_dumb() {
        ColorChoice::Never.write_global();
    }
}

/// Whether `stream` is to get colours.
pub(crate) fn has_colours(stream: &impl RawStream) -> bool {
    AutoStream::choice(stream) != ColorChoice::Never
}

/// Whether standard error can show a line that changes: a dumb terminal cannot take one back.
pub(crate) fn shows_progress() -> bool {
    stderr().is_terminal() && !is_dumb()
}

/// Columns for text on standard output: the terminal's, else [`WIDTH`].
pub(crate) fn width() -> u16 {
    terminal_size::terminal_size_of(stdout())
        .map_or(WIDTH, |(terminal_size::Width(columns), _)| columns.max(MIN_WIDTH))
}

/// A message for standard error: in lines of the terminal's width, or as it is elsewhere, where
/// programs may look for it.
pub(crate) fn for_stderr(text: &str) -> String {
    match terminal_size::terminal_size_of(stderr()) {
        Some((terminal_size::Width(columns), _)) if stderr().is_terminal() => {
            let fill = |line: &str| {
                let kept = line.len() - line.trim_start().len();
                let later = " ".repeat(kept.max(2));
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

/// `text` set in lines of at most `columns`, each behind `indent`.
pub(crate) fn wrap(text: &str, columns: u16, indent: &str) -> String {
    let options = textwrap::Options::new(columns.into())
        .break_words(false)
        .word_splitter(textwrap::WordSplitter::NoHyphenation)
        .initial_indent(indent)
        .subsequent_indent(indent);
    textwrap::fill(text, options)
}

fn is_dumb() -> bool {
    std::env::var_os("TERM").is_some_and(|term| term == "dumb")
}
