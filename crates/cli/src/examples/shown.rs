//! The command lines that a help text or a document shows.

/// A command line, and where it stands.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) place: String,
    pub(super) words: Vec<String>,
}

/// The words of a line in a shell's sense, as far as a first pipe, redirection or comment; or as
/// far as two spaces, behind which the help's tables explain.
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

/// The command that `line` shows, if it shows one of ours.
pub(super) fn shown(place: &str, line: &str) -> Option<Shown> {
    let line = line.trim();
    let line = line.strip_prefix("$ ").unwrap_or(line);
    let line = line.strip_prefix("./target/release/").unwrap_or(line);
    line.starts_with("pollux ")
        .then(|| Shown { place: format!("{place}: {line}"), words: words(line) })
}
