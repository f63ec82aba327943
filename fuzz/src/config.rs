//! Configuration files: whatever a file contains, the result is a configuration, or faults that say what is wrong and
//! where, in a place that exists.

use pollux_server::config::{Config, Fault};
use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

/// A part of the message about an include. It has no place in the file that is included.
const TOO_MANY_INCLUDES: &str = "includes go too far";

/// The input is the content of the file.
pub fn check(data: &[u8]) {
    let path = path();
    fs::write(path, data).expect("the file can be written");
    let text = String::from_utf8_lossy(data);
    // The planted fault: the last line is lost, and with it the place of a fault in it.
    let seen = match text.trim_end().rsplit_once('\n') {
        Some((before, _)) if crate::planted() => before,
        _ => &text,
    };
    let check = |fault: &Fault| check_fault(fault, path, seen);
    match Config::load(path) {
        Err(fault) => {
            check(&fault);
            Config::faults_in(path.to_str().expect("UTF-8"), &text).iter().for_each(check);
        }
        Ok((config, sources)) => {
            for mut fault in config.validate().err().unwrap_or_default() {
                sources.point(&mut fault);
                check(&fault);
            }
        }
    }
}

/// The file of this process. Nothing else is in its directory, which an include could name.
fn path() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/config");
        let directory = target.join(std::process::id().to_string());
        fs::create_dir_all(&directory).expect("a directory for the file");
        directory.join("pollux.toml")
    })
}

fn check_fault(fault: &Fault, path: &Path, text: &str) {
    assert!(!fault.message.is_empty() && !fault.to_string().is_empty(), "{fault:?}");
    // It is about no value, such as that there is nothing to serve.
    if fault.key.is_empty() && fault.file.is_none() {
        return;
    }
    let file = fault.file.as_deref().unwrap_or_else(|| panic!("no file: {fault:?}"));
    // Another file, which is included, cannot be read.
    if Path::new(file) != path || fault.message.starts_with(TOO_MANY_INCLUDES) {
        return;
    }
    let (line, column) = fault.position.unwrap_or_else(|| panic!("no place: {fault:?}"));
    // The place after the last character of a line is valid, too.
    let length = text.split('\n').nth(line - 1).map(|line| line.chars().count());
    let length = length.unwrap_or_else(|| panic!("no line {line}: {fault:?}"));
    assert!((1..=length + 1).contains(&column), "no column {column}: {fault:?}");
}
