//! Tests of the packages that are meant to be published: cargo can make a package of each such crate,
//! and each package contains every file that its build needs.

use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    path::{Component, Path, PathBuf},
    process::{Command, Output},
};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}

fn cargo(at: &Path, arguments: &[&str]) -> Output {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    Command::new(cargo).args(arguments).current_dir(at).output().expect("cargo starts")
}

/// Makes packages of the crates. Other tests compile everything; this function checks only the
/// requirements of a registry.
fn package(at: &Path, packages: &[&str]) -> Result<(), String> {
    let target = tempfile::tempdir().expect("a directory");
    let target = target.path().to_str().expect("its name is text");
    let mut arguments = vec!["package", "--offline", "--no-verify", "--allow-dirty", "--quiet"];
    arguments.extend(["--target-dir", target]);
    arguments.extend(packages.iter().flat_map(|name| ["--package", *name]));
    let output = cargo(at, &arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Ok(()) } else { Err(errors) }
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or("")
}

/// Returns the workspace's packages by name, as `cargo metadata` describes them.
fn described() -> BTreeMap<String, Value> {
    let output = cargo(&root(), &["metadata", "--no-deps", "--offline", "--format-version", "1"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let packages = all["packages"].as_array().expect("packages").iter();
    packages.map(|package| (text(package, "name").to_owned(), package.clone())).collect()
}

/// Returns whether a package is published. `publish = false` becomes an empty list of registries.
fn is_published(package: &Value) -> bool {
    package["publish"].as_array().is_none_or(|registries| !registries.is_empty())
}

/// Returns the dependencies of `package` that a user could not get, because they are unpublished
/// packages of `all`.
fn unpublished_needs(package: &Value, all: &BTreeMap<String, Value>) -> Vec<String> {
    let needs = package["dependencies"].as_array().expect("dependencies").iter();
    needs
        .filter(|need| need["kind"] != "dev")
        .filter_map(|need| all.get(text(need, "name")))
        .filter(|need| !is_published(need))
        .map(|need| format!("{} needs {}", text(package, "name"), text(need, "name")))
        .collect()
}

/// The maximum number of keywords, and of characters of each, that the registry accepts.
const KEYWORDS_MAX: (usize, usize) = (5, 20);

/// Returns the parts that a registry's page of this package would lack, and the keywords that the
/// registry would refuse.
fn faults_of_page(package: &Value) -> Vec<String> {
    let name = text(package, "name");
    let mut faults = Vec::new();
    for key in ["description", "license", "rust_version", "readme", "documentation"] {
        if text(package, key).is_empty() {
            faults.push(format!("{name} has no {key}"));
        }
    }
    let directory = Path::new(text(package, "manifest_path")).parent().unwrap_or(Path::new(""));
    let readme = fs::read_to_string(directory.join(text(package, "readme"))).unwrap_or_default();
    if readme.lines().next() != Some(&format!("# {name}")) {
        faults.push(format!("{name}: its README does not begin with its name"));
    }
    let keywords: Vec<_> = package["keywords"].as_array().into_iter().flatten().collect();
    let (number, characters) = KEYWORDS_MAX;
    if keywords.is_empty() || keywords.len() > number {
        faults.push(format!("{name} has {} keywords, not 1 to {number}", keywords.len()));
    }
    let is_accepted = |word: &str| {
        word.len() <= characters
            && word.starts_with(|first: char| first.is_ascii_alphanumeric())
            && word.chars().all(|c| c.is_ascii_alphanumeric() || "_-+".contains(c))
    };
    let keywords = keywords.into_iter().map(|word| word.as_str().unwrap_or(""));
    let refused = keywords.filter(|word| !is_accepted(word));
    faults.extend(refused.map(|word| format!("{name}: the keyword {word:?} is not accepted")));
    faults
}

#[test]
fn what_is_published_can_be_packaged() {
    let all = described();
    let published: Vec<_> = all.values().filter(|package| is_published(package)).collect();
    let names: Vec<_> = published.iter().map(|package| text(package, "name")).collect();
    for name in ["pollux", "pollux-event", "pollux-http", "pollux-sys"] {
        assert!(names.contains(&name), "{name} is meant to be published: {names:?}");
    }
    let mut wrong = Vec::new();
    for package in published {
        wrong.extend(unpublished_needs(package, &all));
        wrong.extend(faults_of_page(package));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    package(&root(), &names).unwrap_or_else(|errors| panic!("{errors}"));
}

/// Returns the files that sources below `directory` include, as pairs of the source and the name in
/// it.
fn built_in(directory: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).into_iter().flatten() {
        let path = entry.expect("the directory can be read").path();
        if path.is_dir() {
            found.extend(built_in(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let source = fs::read_to_string(&path).expect("a source");
            for call in ["include_str!(\"", "include_bytes!(\""] {
                let names = source.split(call).skip(1).filter_map(|rest| rest.split_once('"'));
                found.extend(names.map(|(name, _)| (path.clone(), name.to_owned())));
            }
        }
    }
    found
}

/// Returns whether `name`, as the source `at` of the package in `directory` writes it, is outside the
/// package.
fn leaves(directory: &Path, at: &Path, name: &str) -> bool {
    let mut depth =
        at.parent().unwrap().strip_prefix(directory).unwrap().components().count() as isize;
    Path::new(name).components().any(|part| {
        depth += if part == Component::ParentDir { -1 } else { 1 };
        depth < 0
    })
}

#[test]
fn what_is_built_in_is_in_the_package() {
    let mut count = 0;
    for package in described().values().filter(|package| is_published(package)) {
        let directory = Path::new(text(package, "manifest_path")).parent().unwrap().to_owned();
        for (source, name) in built_in(&directory.join("src")) {
            assert!(!leaves(&directory, &source, &name), "{}: {name}", source.display());
            count += 1;
        }
    }
    assert!(count >= 20, "only {count} files are built in");
    let (directory, source) = (Path::new("/a"), Path::new("/a/src/b/c.rs"));
    assert!(!leaves(directory, source, "../../README.md"));
    assert!(leaves(directory, source, "../../../README.md"));
}

/// A registry knows no paths, so a dependency needs a version; and a user cannot get a package that is
/// not in the registry.
#[test]
fn the_checks_of_packages_can_fail() {
    let directory = tempfile::tempdir().expect("a directory");
    for (name, dependency) in
        [("one", ""), ("two", "[dependencies]\none = { path = \"../one\" }\n")]
    {
        let source = directory.path().join(name).join("src");
        fs::create_dir_all(&source).expect("a directory");
        fs::write(source.join("lib.rs"), "").expect("a source");
        let manifest = format!("[package]\nname = \"{name}\"\nversion = \"0.1.0\"\n{dependency}");
        fs::write(directory.path().join(name).join("Cargo.toml"), manifest).expect("a manifest");
    }
    let errors = package(&directory.path().join("two"), &["two"]).expect_err("one has no version");
    assert!(errors.contains("version"), "{errors}");
    let all = described();
    let kit = serde_json::json!({ "name": "pollux-testkit", "kind": null });
    let needs = serde_json::json!({ "name": "two", "dependencies": [kit] });
    assert_eq!(unpublished_needs(&needs, &all), ["two needs pollux-testkit"]);
}

#[test]
fn the_check_of_a_packages_page_can_fail() {
    let mut package = described()["pollux-event"].clone();
    assert!(faults_of_page(&package).is_empty());
    package["documentation"] = Value::Null;
    package["readme"] = "Cargo.toml".into();
    package["keywords"] = serde_json::json!(["epoll", "two words", "longer-than-twenty-chars"]);
    assert_eq!(
        faults_of_page(&package),
        [
            "pollux-event has no documentation",
            "pollux-event: its README does not begin with its name",
            "pollux-event: the keyword \"two words\" is not accepted",
            "pollux-event: the keyword \"longer-than-twenty-chars\" is not accepted",
        ]
    );
    package["keywords"] = serde_json::json!([]);
    let faults = faults_of_page(&package).join("\n");
    assert!(faults.contains("pollux-event has 0 keywords, not 1 to 5"), "{faults}");
}
