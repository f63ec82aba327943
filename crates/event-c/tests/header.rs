//! Compares the header with the source: each function, constant and structure, by name and by type.
//!
//! The header is written by hand: cbindgen would take longer to build than all of this crate, and
//! the interface uses few types. This comparison ensures that the two agree.

use std::{fs, path::Path};

/// Removes `//` and `/* */` comments, and all white space except between two words.
fn squeezed(text: &str) -> String {
    let mut rest = text;
    let mut code = String::new();
    while let Some((before, comment)) = rest.split_once("/*") {
        code.push_str(before);
        rest = comment.split_once("*/").map_or("", |(_, after)| after);
    }
    code.push_str(rest);
    let lines = code.lines().map(|line| line.split("//").next().unwrap_or(""));
    let words: Vec<_> = lines.flat_map(str::split_whitespace).collect();
    let mut text = words.join(" ");
    for mark in ["*", "(", ")", ",", ";", "{", "}", ":", "="] {
        text = text.replace(&format!(" {mark}"), mark).replace(&format!("{mark} "), mark);
    }
    text
}

/// A Rust type and the name of its variable, as C writes them.
fn in_c(rust: &str, name: &str) -> String {
    let rust = rust.trim();
    if let Some(target) = rust.strip_prefix("*mut") {
        return in_c(target, &format!("*{name}"));
    }
    if let Some(target) = rust.strip_prefix("*const") {
        return format!("const {}", in_c(target, &format!("*{name}")));
    }
    let c = match rust {
        "c_int" => "int",
        "c_char" => "char",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        "usize" => "size_t",
        "()" => "void",
        other if other.starts_with("pollux_") => return format!("struct {other} {name}"),
        other => panic!("{other}: how is this written in C? Add it here"),
    };
    format!("{c} {name}")
}

/// `name:type,name:type` as C writes it, each with `end` behind it.
fn declared(fields: &str, end: &str) -> String {
    let fields = fields.split(',').map(|field| field.trim_start_matches("pub ").trim());
    let in_c =
        fields.filter_map(|field| field.split_once(':')).map(|(name, rust)| in_c(rust, name) + end);
    in_c.collect()
}

/// The interface of the source to C, as the header must declare it.
#[derive(Debug, Default)]
struct Interface {
    functions: Vec<String>,
    constants: Vec<String>,
    structures: Vec<String>,
}

fn interface(source: &str) -> Interface {
    let source = squeezed(source);
    let mut interface = Interface::default();
    for function in source.split("extern \"C\" fn ").skip(1) {
        let (name, rest) = function.split_once('(').expect("its arguments");
        let (arguments, rest) = rest.split_once(')').expect("their end");
        let (result, _) = rest.split_once('{').expect("its body");
        let arguments = declared(arguments, ",");
        let arguments = if arguments.is_empty() { "void" } else { arguments.trim_end_matches(',') };
        let result = result.strip_prefix("->").or(result.strip_prefix(" ->")).unwrap_or("()");
        let function = in_c(result, &format!("{name}({arguments});"));
        interface.functions.push(squeezed(&function));
    }
    for constant in source.split("pub const ").skip(1) {
        let (name, rest) = constant.split_once(':').expect("its type");
        let (_, rest) = rest.split_once('=').expect("its value");
        let (value, _) = rest.split_once(';').expect("its end");
        // White space ends the value: 8 is not 80.
        interface.constants.push(format!("#define {name} {value} "));
    }
    for structure in source.split("#[repr(C)] pub struct ").skip(1) {
        let (name, rest) = structure.split_once('{').expect("its fields");
        let (fields, _) = rest.split_once('}').expect("its end");
        interface
            .structures
            .push(squeezed(&format!("struct {name} {{{}}};", declared(fields, ";"))));
    }
    interface
}

/// The parts of the interface that the header lacks, and the number of extra ones.
fn differences(interface: &Interface, header: &str) -> Vec<String> {
    let header = squeezed(header);
    let Interface { functions, constants, structures } = interface;
    let all = functions.iter().chain(constants).chain(structures);
    let mut wrong: Vec<_> = all
        .filter(|line| !header.contains(*line))
        .map(|line| format!("the header lacks {line}"))
        .collect();
    let has = header.matches(");").count();
    if has != functions.len() {
        wrong.push(format!("the header has {has} functions, the source {}", functions.len()));
    }
    let has = header.matches("#define POLLUX_").count() - 1; // its guard
    if has != constants.len() {
        wrong.push(format!("the header has {has} constants, the source {}", constants.len()));
    }
    wrong
}

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_header_is_that_of_the_source() {
    let interface = interface(&read("src/lib.rs"));
    let Interface { functions, constants, structures } = &interface;
    assert!(
        functions.len() >= 15 && constants.len() >= 10 && structures.len() == 1,
        "{interface:#?}"
    );
    let wrong = differences(&interface, &read("include/pollux.h"));
    assert!(
        wrong.is_empty(),
        "include/pollux.h is not what src/lib.rs says; change it by hand:\n{}",
        wrong.join("\n")
    );
}

/// Each kind of difference is detected.
#[test]
fn the_comparison_can_fail() {
    let (interface, header) = (interface(&read("src/lib.rs")), read("include/pollux.h"));
    for (from, to) in [
        ("uint64_t token;", "uint32_t token;"),
        ("int pollux_probe(", "long pollux_probe("),
        ("POLLUX_HANGUP 8", "POLLUX_HANGUP 80"),
        ("pollux_wake(const struct", "pollux_wake(struct"),
        ("#include <stddef.h>", "#define POLLUX_MORE 1"),
        ("#include <stddef.h>", "int pollux_more(void);"),
    ] {
        let changed = header.replace(from, to);
        assert_ne!(changed, header, "{from} is not in the header");
        assert!(!differences(&interface, &changed).is_empty(), "{from} became {to} unseen");
    }
}
