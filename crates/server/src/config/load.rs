//! Reads configuration files and their includes, and records the origin of each value.

use super::{Config, Fault, HubSection, Key, SiteSection, fault::meant, plain_words};
use crate::{
    config::{BasicAuth, LogTarget},
    text_file::read_text,
};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
    string::FromUtf8Error,
};
use toml::{
    Table, Value,
    de::{DeTable, DeValue},
};

/// The maximum size of a configuration file in bytes.
pub(super) const FILE_BYTES_MAX: u64 = 1 << 20;
/// The maximum number of files of one configuration.
const FILES_MAX: usize = 256;
/// The maximum nesting depth of includes.
const DEPTH_MAX: usize = 8;
/// The advice if the kernel refuses to read a file or a folder.
const DENIED: &str = "check its permissions; a running server in a sandbox reads no further folder before an upgrade \
                      (`pollux ctl upgrade`)";
/// The keys whose values are paths. Relative paths are relative to the file that contains them.
const PATHS: [&str; 16] = [
    "access-log",
    "slow-log",
    "control",
    "root",
    "cache-dir",
    "guestbook-template",
    "origin-ca",
    "acme-ca",
    "state-dir",
    "tls-cert",
    "tls-key",
    "tls-client-ca",
    "jwt-key",
    "jwks",
    "jwks-ca",
    "publisher-key",
];
/// The keys whose values are addresses, which may contain the path of a UNIX socket.
const ADDRESSES: [&str; 5] = ["listen", "admin", "redirect-http", "origin", "handover"];

/// One file that was read.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its name, as it is shown to the user.
    pub name: String,
    text: String,
}

/// The files that a configuration was read from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    files: Vec<Source>,
    /// The file of each key that is not in a site.
    keys: BTreeMap<String, usize>,
    /// For each site, its file and its number in that file.
    sites: Vec<(usize, usize)>,
    /// The patterns of `include`, which may match other files later.
    patterns: Vec<PathBuf>,
}

impl Config {
    /// Reads a file and all files that it includes. The values are not
    /// [validated](Config::validate) yet.
    ///
    /// # Errors
    /// A file cannot be read, is not TOML, or has an unknown key or a value of a wrong type. The
    /// fault contains the location.
    pub fn load(path: &Path) -> Result<(Self, Sources), Box<Fault>> {
        let mut sources = Sources::default();
        let table = sources.read(path, 0)?;
        // Each file was read as a configuration, so the merged table is a configuration, too.
        let config = Value::Table(table).try_into().map_err(|error: toml::de::Error| {
            Box::new(Fault::at(&[], format!("{}: {}", path.display(), error.message()), ""))
        })?;
        Ok((config, sources))
    }

    /// Does the same as [`Config::load`] for a text without includes.
    ///
    /// # Errors
    /// The errors of [`Config::load`].
    pub fn parse(name: &str, text: &str) -> Result<Self, Box<Fault>> {
        toml::from_str(text).map_err(|error| explain(name, text, &error))
    }

    /// Does the same as [`Config::to_table`], with relative paths below `directory`, so that the values mean the same in
    /// a file of any folder.
    pub fn to_table_below(&self, directory: &Path) -> Table {
        let mut table = self.to_table();
        resolve_paths(&mut table, directory);
        table
    }
}

impl Sources {
    fn read(&mut self, path: &Path, depth: usize) -> Result<Table, Box<Fault>> {
        let name = path.display().to_string();
        let unreadable = |message: String, help: &str| {
            let mut fault = Fault::at(&[], message, help);
            fault.locate(&name, "", None);
            Box::new(fault)
        };
        if self.files.len() >= FILES_MAX || depth > DEPTH_MAX {
            let message = format!(
                "includes go too far: at most {FILES_MAX} files, {DEPTH_MAX} of them within each other"
            );
            return Err(unreadable(message, "does a file include itself?"));
        }
        let text = read_text(path, FILE_BYTES_MAX).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => {
                let valid = valid_start(&error).unwrap_or_default();
                let line = valid.matches('\n').count() + 1;
                let message = format!("line {line} is not UTF-8");
                let mut fault = Fault::at(&[], message, "save the file with the encoding UTF-8");
                fault.locate(&name, &valid, Some(valid.len()));
                Box::new(fault)
            }
            io::ErrorKind::PermissionDenied => {
                unreadable(format!("cannot be read: {error}"), DENIED)
            }
            _ => {
                unreadable(format!("cannot be read: {error}"), "check the name and its permissions")
            }
        })?;
        let own = Config::parse(&name, &text)?;
        let mut table: Table =
            toml::from_str(&text).map_err(|error| explain(&name, &text, &error))?;
        let directory = path.parent().unwrap_or(Path::new(""));
        resolve_paths(&mut table, directory);
        let index = self.files.len();
        self.files.push(Source { name: name.clone(), text });
        // The sites of this file come first, so that its first site stays the default.
        self.sites.extend((0..own.site.len()).map(|site| (index, site)));
        let mut sites = take_sites(&mut table);
        let mut merged = Table::new();
        for pattern in &own.include {
            const HELP: &str = "paths of include are relative to the file that includes";
            if pattern.as_os_str().as_encoded_bytes().contains(&b'*') {
                self.patterns.push(directory.join(pattern));
            }
            let files = expand(directory, pattern).map_err(|error| {
                let is_denied = error.kind() == io::ErrorKind::PermissionDenied;
                let help = if is_denied { DENIED } else { HELP };
                self.at_include(index, format!("{}: {error}", pattern.display()), help)
            })?;
            for file in files {
                let mut included = self.read(&file, depth + 1).map_err(|fault| {
                    if fault.position.is_some() {
                        return fault;
                    }
                    // The included file has no line to show, so the place is that of `include`.
                    let message = format!("{}: {}", file.display(), fault.message);
                    self.at_include(index, message, fault.help.as_deref().unwrap_or(HELP))
                })?;
                sites.extend(take_sites(&mut included));
                merged.extend(included);
            }
        }
        self.check_lists(&table, index)?;
        self.keys.extend(table.keys().map(|key| (key.clone(), index)));
        merged.extend(table);
        merged.insert("site".into(), Value::Array(sites));
        Ok(merged)
    }

    /// Returns a fault of the includes of a file.
    fn at_include(&mut self, file: usize, message: String, help: &str) -> Box<Fault> {
        let mut fault = Fault::at(&[Key::Name("include")], message, help);
        // The keys of this file are recorded only after all its includes have been read.
        self.keys.insert("include".to_owned(), file);
        self.point(&mut fault);
        Box::new(fault)
    }

    /// Checks that no list and no table of this file is also in a file that was read before. One of them would be
    /// dropped, and with it for example half of the denied networks. A single value replaces that of an included file.
    fn check_lists(&self, table: &Table, index: usize) -> Result<(), Box<Fault>> {
        let is_whole = |value: &Value| value.is_array() || value.is_table();
        let this = &self.files[index];
        for (key, _) in table.iter().filter(|(key, value)| *key != "include" && is_whole(value)) {
            let other = self.keys.get(key).and_then(|&other| self.files.get(other));
            let Some(other) = other else { continue };
            let message = format!("`{key}` is already in {}", other.name);
            let mut fault =
                Fault::at(&[], message, "write the whole list or table into one of the two files");
            let offset = offset(&this.text, &[Key::Name(key)]).map(|(offset, _)| offset);
            fault.locate(&this.name, &this.text, offset);
            return Err(Box::new(fault));
        }
        Ok(())
    }

    /// Adds file, line and column to `fault` if its value is in a file.
    pub fn point(&self, fault: &mut Fault) {
        let Some((source, found)) = self.find(&fault.key) else { return };
        fault.locate(&source.name, &source.text, found.map(|(offset, _)| offset));
    }

    /// Returns the location of the value of `key` as `FILE:LINE`; `None` if no file contains it.
    pub fn location(&self, key: &[Key<'_>]) -> Option<String> {
        let (source, found) = self.find(key)?;
        let (offset, is_whole) = found?;
        let line = source.text.get(..offset)?.matches('\n').count() + 1;
        is_whole.then(|| format!("{}:{line}", source.name))
    }

    /// Returns the file of `key` and the offset of its value. If the file does not contain the
    /// value, the offset is that of the nearest table around it, and the flag is false.
    fn find(&self, key: &[Key<'_>]) -> Option<(&Source, Option<(usize, bool)>)> {
        let mut key = key.to_vec();
        let file = match &mut key[..] {
            [Key::Name("site"), Key::Index(site), ..] => {
                let &(file, own) = self.sites.get(*site)?;
                *site = own;
                file
            }
            [Key::Name(name), ..] => *self.keys.get(*name)?,
            _ => return None,
        };
        let source = self.files.get(file)?;
        Some((source, offset(&source.text, &key)))
    }

    /// Returns the patterns of `include`, whether or not there are files for them.
    pub fn patterns(&self) -> impl Iterator<Item = &Path> {
        self.patterns.iter().map(PathBuf::as_path)
    }

    /// Returns the files that were read, the first one first.
    pub fn files(&self) -> impl Iterator<Item = &Source> {
        self.files.iter()
    }
}

/// Returns the text before the first byte that is not UTF-8, from the error of [`read_text`].
fn valid_start(error: &io::Error) -> Option<String> {
    let error = error.get_ref()?.downcast_ref::<FromUtf8Error>()?;
    Some(error.as_bytes().utf8_chunks().next()?.valid().to_owned())
}

fn take_sites(table: &mut Table) -> Vec<Value> {
    match table.remove("site") {
        Some(Value::Array(sites)) => sites,
        _ => Vec::new(),
    }
}

/// Makes relative paths relative to `directory`.
fn resolve_paths(table: &mut Table, directory: &Path) {
    for (key, value) in table.iter_mut() {
        match value {
            Value::String(text) => resolve(key, text, directory),
            Value::Table(inner) => resolve_paths(inner, directory),
            Value::Array(values) => {
                for value in values {
                    match value {
                        Value::String(text) => resolve(key, text, directory),
                        Value::Table(inner) => resolve_paths(inner, directory),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
}

/// Makes the path in the value of a key relative to `directory`, if the value has one.
fn resolve(key: &str, text: &mut String, directory: &Path) {
    let join = |path: &str| directory.join(path).to_string_lossy().into_owned();
    let is_special = key.ends_with("-log") && LogTarget::is_special(text);
    if is_special {
        // `syslog:SOCKET`, or `journald:SOCKET`; `syslog` and `-` have no path.
        if let Some((daemon, path)) = text.split_once(':')
            && !path.is_empty()
        {
            *text = format!("{daemon}:{}", join(path));
        }
    } else if PATHS.contains(&key) {
        // `jwks` is a file or a URL.
        if !text.contains("://") {
            *text = join(text);
        }
    } else if ADDRESSES.contains(&key) {
        // `unix:PATH`, or `/PREFIX=unix:PATH`.
        if let Some((before, path)) = text.split_once("unix:")
            && (before.is_empty() || before.starts_with('/') && before.ends_with('='))
            && !path.is_empty()
        {
            *text = format!("{before}unix:{}", join(path));
        }
    } else if key == "store" {
        if let Some(path) = text.strip_prefix("file:").filter(|path| !path.is_empty()) {
            *text = format!("file:{}", join(path));
        }
    } else if key == "basic-auth" {
        *text = BasicAuth::below(text, directory);
    }
}

/// Returns the files that match a path of `include`, sorted by name.
fn expand(directory: &Path, pattern: &Path) -> io::Result<Vec<PathBuf>> {
    let full = directory.join(pattern);
    let name = full.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    let Some((start, end)) = name.split_once('*') else { return Ok(vec![full]) };
    let mut found: Vec<PathBuf> = fs::read_dir(full.parent().unwrap_or(directory))?
        .filter_map(Result::ok)
        .filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            // As in a shell, `*` is not the dot of a hidden file: while an editor has `a.toml` open, it may keep
            // `.#a.toml` beside it.
            let is_hidden = start.is_empty() && name.starts_with('.');
            !is_hidden
                && name.len() >= start.len() + end.len()
                && name.starts_with(start)
                && name.ends_with(end)
        })
        .map(|entry| entry.path())
        .collect();
    found.sort();
    Ok(found)
}

/// Returns the offset in `text` of the value at `key`, and true. If the value is missing, returns
/// the offset of the nearest table or array around it, and false.
fn offset(text: &str, key: &[Key<'_>]) -> Option<(usize, bool)> {
    let table = DeTable::parse(text).ok()?.into_inner();
    let mut value = DeValue::Table(table);
    let mut offset = None;
    for step in key {
        let next = match (step, value) {
            (Key::Name(name), DeValue::Table(table)) => table
                .into_iter()
                .find(|(key, _)| key.get_ref() == *name)
                .map(|(key, value)| (key.span().start, value)),
            (Key::Index(index), DeValue::Array(array)) => {
                array.into_iter().nth(*index).map(|value| (value.span().start, value))
            }
            _ => None,
        };
        let Some((start, inner)) = next else {
            return offset.map(|offset| (offset, false));
        };
        offset = Some(start);
        value = inner.into_inner();
    }
    offset.map(|offset| (offset, true))
}

/// Converts an error of the parser into a fault.
pub(super) fn explain(name: &str, text: &str, error: &toml::de::Error) -> Box<Fault> {
    let message = error.message().trim();
    let mut fault = Fault::at(&[], message.lines().next().unwrap_or_default(), "");
    let schema = |before: &str| Part::after(before).schema();
    if let Some(span) = error.span()
        && let Some(plain) = plain_words::of(&fault.message, text, span.start, schema)
            .or_else(|| plain_words::of_bare_text(message, text, span.start))
    {
        (fault.message, fault.help) = plain;
    }
    if let Some(rest) = message.strip_prefix("unknown field `")
        && let Some((wrong, _)) = rest.split_once('`')
    {
        fault.message = format!("there is no key `{wrong}` here");
        fault.help = Some(help_for_key(wrong, text, error.span().map(|span| span.start)));
    }
    fault.locate(name, text, error.span().map(|span| span.start));
    Box::new(fault)
}

/// The tables of a file whose keys differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The keys before the first table.
    Server,
    Site,
    Hub,
}

impl Part {
    const ALL: [Self; 3] = [Self::Server, Self::Site, Self::Hub];

    /// Returns the table to which a line after `before` belongs.
    fn after(before: &str) -> Self {
        let begun_by = |line: &str| {
            // A header may contain spaces.
            let line: String = line.chars().filter(|c| !c.is_whitespace()).collect();
            match line {
                line if line.starts_with("[[site]]") => Some(Self::Site),
                line if line.starts_with("[hub]") => Some(Self::Hub),
                _ => None,
            }
        };
        before.lines().rev().find_map(begun_by).unwrap_or(Self::Server)
    }

    /// Returns the JSON schema of the table.
    fn schema(self) -> serde_json::Value {
        let schema = match self {
            Self::Server => schemars::schema_for!(Config),
            Self::Site => schemars::schema_for!(SiteSection),
            Self::Hub => schemars::schema_for!(HubSection),
        };
        schema.to_value()
    }

    fn keys(self) -> Vec<String> {
        keys_of(&self.schema())
    }

    /// Returns what its keys are for, and where they stand.
    fn description(self) -> (&'static str, &'static str) {
        match self {
            Self::Server => ("for the whole server", "before the first [[site]] or [hub]"),
            Self::Site => ("a key of a site", "below a line [[site]]"),
            Self::Hub => ("a key of the hub", "below a line [hub]"),
        }
    }
}

/// The keys of a file whose values are tables with headers, and the advice for another table.
const TABLES: [&str; 2] = ["site", "hub"];
const OTHER_TABLE: &str = "the tables are [hub] and a [[site]] for each site; keys for the whole server stand before \
                           the first of them, without a header";

fn help_for_key(wrong: &str, text: &str, offset: Option<usize>) -> String {
    let before = offset.and_then(|offset| text.get(..offset)).unwrap_or_default();
    if before.trim_end_matches([' ', '\t']).ends_with('[') {
        return match meant(wrong, TABLES.into_iter()) {
            Some(name) => format!("did you mean `{name}`?"),
            None => OTHER_TABLE.into(),
        };
    }
    let here = Part::after(before);
    let others = || Part::ALL.into_iter().filter(move |part| *part != here);
    let has = |part: Part, name: &str| part.keys().iter().any(|key| key == name);
    if let Some(part) = others().find(|part| has(*part, wrong)) {
        let (what, place) = part.description();
        return format!("`{wrong}` is {what}: move it {place}");
    }
    let plain = wrong.replace('_', "-");
    if let Some(name) = plain.strip_prefix("hub-")
        && has(Part::Hub, name)
    {
        let place = if here == Part::Hub { "" } else { " below a line [hub]" };
        return format!("write `{name}`{place}: the keys of the hub have no `hub-`");
    }
    let alike =
        |part: Part| meant(wrong, part.keys().iter().map(String::as_str)).map(str::to_owned);
    if let Some(name) = alike(here) {
        return format!("did you mean `{name}`?");
    }
    match others().find_map(|part| Some((part, alike(part)?))) {
        Some((part, name)) => {
            format!("did you mean `{name}`? It stands {}", part.description().1)
        }
        None => "`pollux config schema` lists all keys; they are the names of the flags of \
                 `pollux serve`"
            .into(),
    }
}

fn keys_of(schema: &serde_json::Value) -> Vec<String> {
    let properties = schema.get("properties").and_then(serde_json::Value::as_object);
    properties.map(|all| all.keys().cloned().collect()).unwrap_or_default()
}
