//! Each dependency in a crate's Cargo.toml must be used in the sources of that crate. An unused
//! dependency is compiled, audited and updated for nothing, and Cargo does not report it.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Returns the Rust files below `directory`; none if there is no such directory.
fn sources(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.expect("the directory can be read").path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

/// Returns the files, and the files elsewhere that they include with `#[path = "…"] mod …`.
fn with_borrowed(mut files: Vec<PathBuf>) -> Vec<PathBuf> {
    let mut next = 0;
    while let Some(file) = files.get(next) {
        let directory = file.parent().expect("a file is in a directory").to_owned();
        let text = fs::read_to_string(file).unwrap_or_default();
        for named in text.split("#[path = \"").skip(1).filter_map(|rest| rest.split('"').next()) {
            let path = directory.join(named);
            if !files.contains(&path) {
                files.push(path);
            }
        }
        next += 1;
    }
    files
}

/// Returns the code of the files without the comments, which may name a crate without using it.
fn code(files: &[PathBuf]) -> String {
    let mut code = String::new();
    for file in files {
        let text = fs::read_to_string(file).unwrap_or_default();
        for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
            code.push_str(line);
            code.push('\n');
        }
    }
    code
}

/// Returns whether `code` has a path that begins with the crate `name`: `name::`, `use name;` or `use
/// name as`. A search for the word alone would be wrong: "Cargo.toml" in a string is no use of `toml`.
fn uses(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + name.len()..]);
        let begins = !before.ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let is_imported =
            before.ends_with("use ") && (after.starts_with(';') || after.starts_with(" as "));
        begins && (after.starts_with("::") || is_imported)
    })
}

/// Returns the dependencies in `manifest` that are not used: `library` is the code for which
/// `[dependencies]` are meant, `tests` that for `[dev-dependencies]`, `build` that for
/// `[build-dependencies]`.
fn unused(manifest: &toml::Table, library: &str, tests: &str, build: &str) -> Vec<String> {
    let sections =
        [("dependencies", library), ("dev-dependencies", tests), ("build-dependencies", build)];
    let mut unused = Vec::new();
    for (section, code) in sections {
        let Some(toml::Value::Table(named)) = manifest.get(section) else { continue };
        for name in named.keys() {
            if !uses(code, &name.replace('-', "_")) {
                unused.push(format!("{name} in [{section}]"));
            }
        }
    }
    unused
}

#[test]
fn every_dependency_is_used_by_its_crate() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crates' directory");
    let (mut checked, mut wrong) = (0, Vec::new());
    for entry in fs::read_dir(crates).expect("the crates") {
        let directory = entry.expect("the directory can be read").path();
        let Ok(text) = fs::read_to_string(directory.join("Cargo.toml")) else { continue };
        let manifest = text.parse().expect("a manifest");
        let library = code(&with_borrowed(sources(&directory.join("src"))));
        // Unit tests are in `src`, so the library's code counts here too.
        let elsewhere: Vec<_> = ["tests", "benches", "examples"]
            .iter()
            .flat_map(|at| sources(&directory.join(at)))
            .collect();
        let tests = format!("{library}{}", code(&with_borrowed(elsewhere)));
        let build = code(&[directory.join("build.rs")]);
        let found = unused(&manifest, &library, &tests, &build);
        wrong.extend(found.into_iter().map(|what| format!("{}: {what}", directory.display())));
        checked += 1;
    }
    assert!(checked >= 10, "only {checked} crates below {}", crates.display());
    assert!(wrong.is_empty(), "named and not used; take them out:\n{}", wrong.join("\n"));
}

#[test]
fn what_a_file_takes_in_from_elsewhere_counts() {
    let directory = tempfile::tempdir().expect("a directory");
    let (here, there) = (directory.path().join("here.rs"), directory.path().join("there/there.rs"));
    fs::create_dir(there.parent().expect("a directory")).expect("a directory");
    fs::write(&here, "#[path = \"there/there.rs\"]\nmod there;\n").expect("written");
    fs::write(&there, "rand::z();\n").expect("written");
    assert!(uses(&code(&with_borrowed(vec![here])), "rand"));
}

#[test]
fn the_check_of_dependencies_can_fail() {
    let manifest = "[dependencies]\nserde-json = \"1\"\ntoml = \"1\"\nlibc = \"0.2\"\n\
                    [dev-dependencies]\nrand = \"1\"\n[build-dependencies]\ncc = \"1\"\n";
    let manifest = manifest.parse().expect("a manifest");
    let library = "use serde_json::Value;\nfs::read(\"Cargo.toml\");\nuse libc as c;\n";
    let found = unused(&manifest, library, "operand::new(); brand_rand::x();", "");
    assert_eq!(
        found,
        ["toml in [dependencies]", "rand in [dev-dependencies]", "cc in [build-dependencies]"]
    );
    let found = unused(&manifest, "serde_json::x(); toml::y(); use libc;", "rand::z()", "cc::w()");
    assert!(found.is_empty(), "{found:?}");
}
