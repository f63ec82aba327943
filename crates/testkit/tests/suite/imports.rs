//! The imports between the files of a crate: a graph that is read from its sources.
//!
//! A file imports another one if it names something that the other file defines, in `use` or in a
//! path. A name that a module only re-exports counts as an import of the file that defines it, and a
//! module that re-exports the names of its own submodules does not import them. Tests do not count.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

/// The path of a module below the crate, such as `["engine", "event"]`; empty for the crate's root.
pub(crate) type Module = Vec<String>;

/// The maximum number of re-exports that lead from a name to its definition.
const REEXPORTS_MAX: usize = 12;

/// The keywords before the name of a definition.
const DEFINING: [&str; 9] =
    ["const", "enum", "fn", "macro_rules", "mod", "static", "struct", "trait", "type"];

/// The imports of a crate: for each module, the modules that it imports.
#[derive(Debug, Default)]
pub(crate) struct Imports(pub(crate) BTreeMap<Module, BTreeSet<Module>>);

/// The part of a source file that matters here.
#[derive(Debug, Default)]
struct Source {
    /// The names that it defines.
    defines: BTreeSet<String>,
    /// The submodules that it declares.
    submodules: Vec<String>,
    /// The names that it imports.
    uses: Vec<Use>,
    /// The other paths that it contains.
    paths: Vec<Vec<String>>,
}

/// One name of a `use` declaration.
#[derive(Debug)]
struct Use {
    path: Vec<String>,
    alias: String,
    is_public: bool,
}

impl Imports {
    /// Reads the sources of the crate in the folder `src`.
    pub(crate) fn read(src: &Path) -> Self {
        let read = |relative: &str| fs::read_to_string(src.join(format!("{relative}.rs"))).ok();
        Self::of(|module| match module.is_empty() {
            // A crate that is a program alone has no library.
            true => read("lib").or_else(|| read("main")),
            false => read(&module.join("/")),
        })
    }

    /// Returns the imports of a crate; `text` returns the source of a module.
    pub(crate) fn of(text: impl Fn(&Module) -> Option<String>) -> Self {
        let mut sources = BTreeMap::new();
        let mut left = vec![Module::new()];
        while let Some(module) = left.pop() {
            let Some(text) = text(&module) else { continue };
            let source = Source::of(&without_tests(&words(&text)));
            for name in &source.submodules {
                left.push([&module[..], std::slice::from_ref(name)].concat());
            }
            sources.insert(module, source);
        }
        let all = sources.keys().map(|module| (module.clone(), imports_of(&sources, module)));
        Self(all.collect())
    }

    /// Returns the groups of modules that import each other, directly or through others.
    pub(crate) fn cycles(&self) -> Vec<Vec<&Module>> {
        let reached: BTreeMap<_, _> = self.0.keys().map(|one| (one, self.reached(one))).collect();
        let mut cycles: Vec<Vec<&Module>> = Vec::new();
        for one in self.0.keys() {
            if !reached[one].contains(one) || cycles.iter().any(|cycle| cycle.contains(&one)) {
                continue;
            }
            let both =
                |other: &&&Module| reached[one].contains(**other) && reached[**other].contains(one);
            let cycle: Vec<_> = reached[one].iter().filter(both).copied().collect();
            cycles.push(cycle);
        }
        cycles
    }

    fn reached<'a>(&'a self, from: &Module) -> BTreeSet<&'a Module> {
        let mut reached = BTreeSet::new();
        let mut left: Vec<_> = self.0[from].iter().collect();
        while let Some(module) = left.pop() {
            if reached.insert(module) {
                left.extend(&self.0[module]);
            }
        }
        reached
    }
}

fn imports_of(sources: &BTreeMap<Module, Source>, module: &Module) -> BTreeSet<Module> {
    let source = &sources[module];
    let mut imports = BTreeSet::new();
    for one in &source.uses {
        let Some(path) = absolute(sources, module, &one.path) else { continue };
        let owner = owner(sources, &path, 0);
        if !(one.is_public && owner.starts_with(module)) {
            imports.insert(owner);
        }
    }
    for path in &source.paths {
        let by_name = source.uses.iter().find(|one| one.alias == path[0]);
        let whole = match by_name {
            Some(one) => [&one.path[..], &path[1..]].concat(),
            None => path.clone(),
        };
        if let Some(path) = absolute(sources, module, &whole) {
            imports.insert(owner(sources, &path, 0));
        }
    }
    imports.remove(module);
    imports
}

/// Returns the path from the crate's root; `None` if it leads to another crate.
fn absolute(
    sources: &BTreeMap<Module, Source>,
    module: &Module,
    path: &[String],
) -> Option<Vec<String>> {
    let (first, rest) = path.split_first()?;
    match first.as_str() {
        "crate" => Some(rest.to_vec()),
        "self" => Some([module, rest].concat()),
        "super" => {
            let ups = path.iter().take_while(|one| *one == "super").count();
            let parent = &module[..module.len().checked_sub(ups)?];
            Some([parent, &path[ups..]].concat())
        }
        _ => {
            let whole = [module, path].concat();
            sources.contains_key(&whole[..=module.len()]).then_some(whole)
        }
    }
}

/// Returns the module whose file defines the name at `path`.
fn owner(sources: &BTreeMap<Module, Source>, path: &[String], depth: usize) -> Module {
    let mut count = 0;
    while count < path.len() && sources.contains_key(&path[..=count]) {
        count += 1;
    }
    let (module, rest) = (path[..count].to_vec(), &path[count..]);
    let (Some(name), Some(source)) = (rest.first(), sources.get(&module)) else { return module };
    if depth == REEXPORTS_MAX || source.defines.contains(name) {
        return module;
    }
    for one in source.uses.iter().filter(|one| one.alias == *name || one.alias == "*") {
        let Some(target) = absolute(sources, &module, &one.path) else { continue };
        let whole = match one.alias.as_str() {
            "*" => [&target[..], rest].concat(),
            _ => [&target[..], &rest[1..]].concat(),
        };
        if whole == path {
            continue;
        }
        let found = owner(sources, &whole, depth + 1);
        if one.alias != "*" || sources.get(&found).is_some_and(|it| it.defines.contains(name)) {
            return found;
        }
    }
    module
}

impl Source {
    fn of(words: &[String]) -> Self {
        let mut source = Self::default();
        let mut index = 0;
        while let Some(word) = words.get(index) {
            let next = words.get(index + 1).map_or("", String::as_str);
            if word == "use" && next != "<" {
                let end = words[index..].iter().position(|word| word == ";");
                let end = end.map_or(words.len(), |len| index + len);
                let before = &words[index.saturating_sub(4)..index];
                let is_public = before
                    .iter()
                    .rev()
                    .take_while(|word| ![";", "}"].contains(&word.as_str()))
                    .any(|word| word == "pub");
                let mut rest = &words[index + 1..end];
                read_tree(&mut rest, &[], is_public, &mut source.uses);
                index = end;
            } else if DEFINING.contains(&word.as_str()) {
                let name = if next == "!" { words.get(index + 2) } else { words.get(index + 1) };
                source.defines.extend(name.cloned());
                if word == "mod" && words.get(index + 2).is_some_and(|word| word == ";") {
                    source.submodules.push(next.to_owned());
                }
                index += 1;
            } else if next == "::" && is_name(word) {
                // `pub(in PATH)` imports nothing.
                let is_visibility = words[..index].ends_with(&["(".into(), "in".into()]);
                let mut path = vec![word.clone()];
                while words.get(index + 1).is_some_and(|word| word == "::")
                    && words.get(index + 2).is_some_and(|word| is_name(word))
                {
                    path.push(words[index + 2].clone());
                    index += 2;
                }
                if path.len() > 1 && !is_visibility {
                    source.paths.push(path);
                }
                index += 1;
            } else {
                index += 1;
            }
        }
        source
    }
}

/// Reads one tree of a `use` declaration, up to the comma or bracket behind it.
fn read_tree(words: &mut &[String], prefix: &[String], is_public: bool, into: &mut Vec<Use>) {
    let mut path = prefix.to_vec();
    let mut alias = None;
    while let Some((word, rest)) = words.split_first() {
        match word.as_str() {
            "," | "}" => break,
            "::" => *words = rest,
            "{" => {
                *words = rest;
                while words.first().is_some_and(|word| word != "}") {
                    read_tree(words, &path, is_public, into);
                    if words.first().is_some_and(|word| word == ",") {
                        *words = &words[1..];
                    }
                }
                *words = words.get(1..).unwrap_or_default();
                return;
            }
            "as" => {
                alias = rest.first().cloned();
                *words = rest.get(1..).unwrap_or_default();
            }
            "*" => {
                alias = Some("*".into());
                *words = rest;
            }
            "self" if !path.is_empty() => *words = rest,
            name => {
                path.push(name.to_owned());
                *words = rest;
            }
        }
    }
    if let Some(last) = path.last().cloned() {
        into.push(Use { alias: alias.unwrap_or(last), path, is_public });
    }
}

fn is_name(word: &str) -> bool {
    word.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Returns the words and signs of a source, without comments, texts and characters.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let mut len = first.len_utf8();
        if rest.starts_with("//") {
            len = rest.find('\n').unwrap_or(rest.len());
        } else if rest.starts_with("/*") {
            len = rest.find("*/").map_or(rest.len(), |end| end + 2);
        } else if let Some(end) = end_of_text(rest) {
            len = end;
        } else if is_name(rest) || first.is_ascii_digit() {
            len = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
            words.push(rest[..len].to_owned());
        } else if rest.starts_with("::") {
            len = 2;
            words.push("::".into());
        } else if !first.is_whitespace() {
            words.push(first.into());
        }
        rest = &rest[len..];
    }
    words
}

/// Returns the length of the text or character with which `rest` begins.
fn end_of_text(rest: &str) -> Option<usize> {
    let bare = rest.strip_prefix('b').unwrap_or(rest);
    let before = rest.len() - bare.len();
    if let Some(raw) = bare.strip_prefix('r') {
        let signs = raw.len() - raw.trim_start_matches('#').len();
        if raw[signs..].starts_with('"') {
            let end = format!("\"{}", &raw[..signs]);
            let start = signs + 1;
            return Some(before + 1 + start + raw[start..].find(&end)? + end.len());
        }
    }
    let quote = bare.chars().next().filter(|quote| ['"', '\''].contains(quote))?;
    let mut escaped = false;
    for (index, one) in bare.char_indices().skip(1) {
        match one {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if one == quote => return Some(before + index + 1),
            // A lifetime: no character has a quote further away.
            _ if quote == '\'' && index > 1 && !bare.starts_with("'\\") => return None,
            _ => {}
        }
    }
    None
}

/// Leaves out the items that only tests contain.
fn without_tests(words: &[String]) -> Vec<String> {
    let mut kept = Vec::new();
    let mut index = 0;
    while index < words.len() {
        let is_test = ["#", "[", "cfg", "("].iter().zip(&words[index..]).all(|(a, b)| a == b)
            && words[index..].iter().take_while(|word| *word != "]").any(|word| word == "test")
            && !words[index..].iter().take_while(|word| *word != "]").any(|word| word == "not");
        if is_test {
            index = end_of_item(words, index);
        } else {
            kept.push(words[index].clone());
            index += 1;
        }
    }
    kept
}

/// Returns the index behind the item, field or statement that begins at `start` with its attributes.
fn end_of_item(words: &[String], start: usize) -> usize {
    let mut index = start;
    while words.get(index).is_some_and(|word| word == "#") {
        index += words[index..].iter().position(|word| word == "]").map_or(1, |len| len + 1);
    }
    const VISIBILITY: [&str; 5] = ["pub", "(", "crate", "super", ")"];
    let first = words[index..].iter().find(|word| !VISIBILITY.contains(&word.as_str()));
    let is_use = first.is_some_and(|word| word == "use");
    let (mut braces, mut others) = (0_usize, 0_usize);
    while let Some(word) = words.get(index) {
        match word.as_str() {
            "(" | "[" => others += 1,
            ")" | "]" => others = others.saturating_sub(1),
            "{" => braces += 1,
            "}" if braces == 0 => return index,
            "}" => {
                braces -= 1;
                if braces == 0 && others == 0 && !is_use {
                    return index + 1;
                }
            }
            ";" | "," if braces == 0 && others == 0 => return index + 1,
            _ => {}
        }
        index += 1;
    }
    index
}
