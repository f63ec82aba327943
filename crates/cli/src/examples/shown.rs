//! The command lines that a help text or a document shows.

/// A command line and its source.
#[derive(Debug)]
pub(super) struct ExampleCommand {
    pub(super) source: String,
    pub(super) words: Vec<String>,
}

/// Splits a line into words as a shell does, up to the first pipe, redirection or comment, or up to
/// two spaces, after which the tables of a help text have explanations.
pub(super) fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut characters = line.chars().peekable();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, ' ') => {
                words.extend(word.take());
                if characters.peek() == Some(&' ') {
                    return words;
                }
            }
            (None, '|' | '>' | '&' | ';') => break,
            (None, '#') if word.is_none() => break,
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    assert!(quote.is_none(), "an open quote: {line}");
    words.extend(word);
    words
}

/// Returns the command in `line` if it is a `pollux` command, also after the prompt of a user or of root.
pub(super) fn shown(source: &str, line: &str) -> Option<ExampleCommand> {
    let line = line.trim();
    let line = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# ")).unwrap_or(line);
    let line = line.strip_prefix("./target/release/").unwrap_or(line);
    line.starts_with("pollux ")
        .then(|| ExampleCommand { source: format!("{source}: {line}"), words: words(line) })
}
