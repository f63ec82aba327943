//! Builds the guest's init from the C sources in `guest/`, which are embedded in this program.
//!
//! It is C and not Rust, because it must be a static program. A C compiler with a static C library is
//! needed for building a kernel module anyway; a second Rust target is not.

use crate::{
    cache::Cache,
    process::{Supervisor, command},
};
use pollux_sys::require_program;
use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::PathBuf,
    time::Duration,
};

const LIMIT: Duration = Duration::from_secs(120);

const HEADER: (&str, &str) = ("init.h", include_str!("guest/init.h"));
const SOURCES: &[(&str, &str)] = &[
    ("check.c", include_str!("guest/check.c")),
    ("config.c", include_str!("guest/config.c")),
    ("fetch.c", include_str!("guest/fetch.c")),
    ("init.c", include_str!("guest/init.c")),
    ("modules.c", include_str!("guest/modules.c")),
    ("report.c", include_str!("guest/report.c")),
    ("run.c", include_str!("guest/run.c")),
    ("setup.c", include_str!("guest/setup.c")),
];
/// A warning does not fail the build, because other compilers have other warnings; the test treats them
/// as errors.
const FLAGS: &[&str] = &["-static", "-O2", "-std=gnu11", "-Wall", "-Wextra"];

/// The compiled init, from the cache if it is there.
pub(crate) fn obtain(cache: &Cache, supervisor: &Supervisor) -> anyhow::Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    (HEADER, SOURCES, FLAGS).hash(&mut hasher);
    let directory =
        cache.entry(supervisor, &format!("init/{:016x}", hasher.finish()), |directory| {
            let compiler = require_program("gcc", "gcc libc6-dev")?;
            fs::write(directory.join(HEADER.0), HEADER.1)?;
            let mut compile = command(compiler);
            compile.current_dir(directory).args(FLAGS).args(["-o", "init"]);
            for (name, text) in SOURCES {
                fs::write(directory.join(name), text)?;
                compile.arg(name);
            }
            supervisor.run_shown("compiling the guest's init", compile, LIMIT).map_err(
                |error| {
                    error.context("is the static C library there? apt-get install gcc libc6-dev")
                },
            )?;
            Ok(())
        })?;
    Ok(directory.join("init"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiler_has_nothing_to_say() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(HEADER.0), HEADER.1).unwrap();
        let mut compile = std::process::Command::new("gcc");
        compile.current_dir(directory.path()).args(FLAGS).args(["-Werror", "-o", "init"]);
        for (name, text) in SOURCES {
            fs::write(directory.path().join(name), text).unwrap();
            compile.arg(name);
        }
        let output = compile.output().expect("gcc is installed (apt-get install gcc libc6-dev)");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}
