//! Randomly damaged configuration files: the result is always a configuration, or a fault with its
//! location.

use super::*;
use proptest::{prelude::*, sample::Index};
use std::{fs, path::Path, sync::LazyLock};

/// The directory of the files from which the damaged ones are made.
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/config");

/// An additional file with keys that no example contains.
const OTHER: &str = "listen = [\"127.0.0.1:80\"]\nkeep-alive = \"1m\"\n[hub]\njwt-key = \"k\"\nslow = \"close\"\n\
     [[site]]\nroot = \".\"\nnames = [\"a.example\"]\norigin = [\"/b=http://c\"]\ncache = \"1M\"\n";

/// The undamaged files.
static WHOLE: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut all = vec![OTHER.to_owned()];
    let names = ["comparison", "many-idle", "proxy", "several-sites", "static"];
    all.extend(names.map(|name| fs::read_to_string(format!("{EXAMPLES}/{name}.toml")).unwrap()));
    all
});

/// The texts that the damage inserts: parts of TOML, numbers at the ends of their ranges, and text
/// that no key accepts.
const PARTS: [&str; 24] = [
    "",
    "\"",
    "'",
    "[",
    "]",
    "[[",
    "]]",
    "=",
    "\n",
    "\\",
    "\"\"\"",
    "#",
    ",",
    ".",
    "{",
    "}",
    "-1",
    "18446744073709551616",
    "1e400",
    "true",
    "é",
    "\u{0}",
    "/*",
    "[[site]]\n",
];

/// One change: its position, the number of characters that it removes, and the text that it
/// inserts.
#[derive(Clone, Debug)]
struct Damage {
    at: Index,
    removed: usize,
    inserted: String,
}

fn damage() -> impl Strategy<Value = Damage> {
    let inserted = prop_oneof![
        4 => (0..PARTS.len()).prop_map(|part| PARTS[part].to_owned()),
        1 => "[a-z0-9 :/.*=\"-]{0,12}",
    ];
    (any::<Index>(), 0..12_usize, inserted).prop_map(|(at, removed, inserted)| Damage {
        at,
        removed,
        inserted,
    })
}

fn damaged(whole: &str, changes: &[Damage]) -> String {
    let mut text: Vec<char> = whole.chars().collect();
    for change in changes {
        let start = change.at.index(text.len() + 1);
        let end = (start + change.removed).min(text.len());
        text.splice(start..end, change.inserted.chars());
    }
    text.into_iter().collect()
}

/// Fails unless the fault has a message and a location: the file, and a line and a column that exist
/// in the text.
fn assert_located(fault: &Fault, path: &Path, text: &str) {
    assert!(!fault.message.is_empty(), "{fault:?}");
    // A fault of the whole configuration, such as that there is nothing to serve, has no location.
    if fault.key.is_empty() && fault.position.is_none() {
        return;
    }
    assert!(fault.file.is_some(), "no file: {fault:?}\n{text}");
    if fault.file.as_deref() != path.to_str() {
        // The fault is about a missing file that `include` names.
        return;
    }
    let Some((line, column)) = fault.position else { return };
    // The position after the last character of a file is valid, too.
    let length = text.split('\n').nth(line - 1).map(|line| line.chars().count());
    let length = length.unwrap_or_else(|| panic!("no line {line}: {fault:?}\n{text}"));
    assert!(column <= length + 1, "no column {column}: {fault:?}\n{text}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, ..ProptestConfig::default() })]
    #[test]
    fn damage_is_reported_with_its_location(
        whole in 0..WHOLE.len(),
        changes in prop::collection::vec(damage(), 1..4),
    ) {
        let text = damaged(&WHOLE[whole], &changes);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("damaged.toml");
        fs::write(&path, &text).unwrap();
        match Config::load(&path) {
            Err(fault) => {
                assert_located(&fault, &path, &text);
                let all = Config::faults_in(path.to_str().unwrap(), &text);
                all.iter().for_each(|fault| assert_located(fault, &path, &text));
            }
            Ok((config, sources)) => {
                for mut fault in config.validate().err().unwrap_or_default() {
                    sources.point(&mut fault);
                    assert_located(&fault, &path, &text);
                }
            }
        }
    }
}

/// A positive control of the test above: it must notice a fault whose location is not in the text.
#[test]
#[should_panic(expected = "no line 9")]
fn a_place_beyond_the_text_is_noticed() {
    let fault = Fault {
        file: Some("p.toml".to_owned()),
        position: Some((9, 1)),
        message: "wrong".to_owned(),
        ..Fault::default()
    };
    assert_located(&fault, Path::new("p.toml"), "workers = 1\n");
}
