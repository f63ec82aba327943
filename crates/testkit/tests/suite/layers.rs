//! Checks of the imports inside crates: layers of the server, and the size of cycles.

use super::imports::{Imports, Module};
use std::{collections::BTreeSet, fs, path::Path};

/// The maximum number of files that may import each other, directly or through others.
const CYCLE_MAX: usize = 5;

/// The line of ARCHITECTURE.md before the list of the server's layers.
const LAYERS_HEAD: &str = "<!-- layers of crates/server/src, the lowest first -->";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

/// Returns the names of the layers, the lowest first: the words in backquotes of the list.
fn layers(text: &str) -> Vec<&str> {
    let list = text.split_once(LAYERS_HEAD).expect("ARCHITECTURE.md lists the layers").1;
    let list = list.trim_start().split("\n\n").next().unwrap();
    list.split('`').skip(1).step_by(2).collect()
}

/// Returns the imports from a layer to one that is not below it, and the folders that are no layer.
fn upward(imports: &Imports, layers: &[&str]) -> Vec<String> {
    let mut wrong = BTreeSet::new();
    let position = |module: &Module| {
        let first = module.first()?;
        layers.iter().position(|layer| layer == first)
    };
    for (module, imported) in &imports.0 {
        let Some(first) = module.first() else { continue };
        let Some(own) = position(module) else {
            wrong.insert(format!("{first} is no layer of ARCHITECTURE.md"));
            continue;
        };
        for other in imported {
            // The crate's root only re-exports.
            if position(other).is_none_or(|layer| layer > own) {
                wrong.insert(format!("{} imports {}", module.join("::"), other.join("::")));
            }
        }
    }
    wrong.into_iter().collect()
}

/// Returns the cycles with more than [`CYCLE_MAX`] files.
fn large_cycles(name: &str, imports: &Imports) -> Vec<String> {
    let mut large = Vec::new();
    for cycle in imports.cycles() {
        let mut names: Vec<_> = cycle.iter().map(|module| module.join("::")).collect();
        names.sort_unstable();
        if names.len() > CYCLE_MAX {
            large.push(format!("{name}: {} files: {}", names.len(), names.join(", ")));
        }
    }
    large
}

#[test]
fn imports_of_the_server_run_from_higher_layers_to_lower_ones() {
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let layers = layers(&text);
    let imports = Imports::read(&root().join("crates/server/src"));
    assert!(imports.0.len() > 100, "only {} files were found", imports.0.len());
    let wrong = upward(&imports, &layers);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for layer in layers {
        assert!(imports.0.contains_key(&vec![layer.to_owned()]), "there is no layer {layer}");
    }
}

#[test]
fn no_cycle_of_imports_has_more_than_five_files() {
    let mut large = Vec::new();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        let imports = Imports::read(&entry.path().join("src"));
        assert!(!imports.0.is_empty(), "no file of {name} was found");
        large.extend(large_cycles(&name, &imports));
    }
    assert!(large.is_empty(), "{}", large.join("\n"));
}

/// Returns the imports of a crate with these files.
fn planted(files: &[(&str, &str)]) -> Imports {
    Imports::of(|module| {
        let name = module.join("/");
        let file = files.iter().find(|(file, _)| *file == name)?;
        Some(file.1.to_owned())
    })
}

#[test]
fn the_check_of_layers_can_fail() {
    let text = format!("x\n{LAYERS_HEAD}\n`low`, then\n`high`.\n\n`other`\n");
    assert_eq!(layers(&text), ["low", "high"]);
    let root = ("", "mod low; mod high; pub use low::A;");
    let low = ("low", "pub struct A;\n#[cfg(test)]\nmod tests {\n    use crate::high::B;\n}\n");
    let high = ("high", "use crate::{low::A, low};\npub struct B(A);");
    let fine = planted(&[root, low, high]);
    assert!(upward(&fine, &["low", "high"]).is_empty());
    assert_eq!(upward(&fine, &["high", "low"]), ["high imports low"]);
    assert_eq!(upward(&fine, &["low"]), ["high is no layer of ARCHITECTURE.md"]);
    for wrong in [
        "use crate::{ /* ' */ high::B as C };",
        "fn f<'a>(_: &'a str) -> char { let _ = super::high::B; 'x' }",
        "use super::high; fn f() { high::g(\"\\\"\") }",
        "#[cfg(test)] use crate::low; use crate::{high::*};",
        "#[cfg(test)] mod tests { use super::*; }\nuse crate::high;",
        "#[cfg(test)] pub(crate) use crate::{low, low::A};\nuse crate::high;",
    ] {
        let imports = planted(&[root, ("low", wrong), high]);
        assert_eq!(upward(&imports, &["low", "high"]), ["low imports high"], "{wrong}");
    }
    for fine in [
        "// use crate::high::B;\n/* crate::high::B */\nconst A: &str = \"crate::high::B\";",
        "const A: &str = r#\"\"crate::high::B\"#; pub(in crate::high) struct C;",
        "#[cfg(test)] use crate::high::{B, C};\n#[cfg(test)]\nfn f() -> crate::high::B { B }",
    ] {
        let imports = planted(&[root, ("low", fine), high]);
        assert!(upward(&imports, &["low", "high"]).is_empty(), "{fine}");
    }
}

#[test]
fn a_module_that_reexports_is_not_imported_itself() {
    let imports = planted(&[
        ("", "mod a; mod b;"),
        ("a", "mod one; mod two; pub use one::One; pub(crate) use two::*;"),
        ("a/one", "pub struct One;"),
        ("a/two", "use super::One; pub fn two() -> One { One }"),
        ("b", "use crate::a::{self, One}; fn f() { a::two() }"),
    ]);
    let of = |name: &[&str]| -> Vec<String> {
        let module: Module = name.iter().map(|part| (*part).to_owned()).collect();
        imports.0[&module].iter().map(|module| module.join("::")).collect()
    };
    assert_eq!(of(&["a", "two"]), ["a::one"]);
    assert_eq!(of(&["a"]), [""; 0]);
    assert_eq!(of(&["b"]), ["a", "a::one", "a::two"]);
    assert!(imports.cycles().is_empty());
}

#[test]
fn the_check_of_cycles_can_fail() {
    let ring = |count: usize| {
        Imports::of(move |module| match module.first() {
            None => Some((0..count).map(|index| format!("mod m{index};\n")).collect()),
            Some(name) => {
                let index: usize = name[1..].parse().unwrap();
                Some(format!("use crate::m{}::T;\npub struct T;\n", (index + 1) % count))
            }
        })
    };
    assert!(large_cycles("x", &ring(5)).is_empty());
    let large = large_cycles("x", &ring(6));
    assert_eq!(large, ["x: 6 files: m0, m1, m2, m3, m4, m5"]);
}
