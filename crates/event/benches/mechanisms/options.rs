//! The options of the bench.

use crate::run::Plan;
use anyhow::{Context, Result};
use clap::Parser;
use pollux_event::MechanismSpec;
use std::{
    path::{Path, PathBuf},
    time::Duration,
};

/// What waiting costs with each mechanism, measured side by side.
#[derive(Parser, Debug)]
#[command(after_help = "Examples:\n  \
    cargo bench -p pollux-event\n  \
    cargo bench -p pollux-event -- --mechanism epoll-et,uring-poll --sizes 1000,10000\n  \
    cargo bench -p pollux-event -- --rounds 40 --json wait.json\n  \
    make bench-event OUT=results/wait\n\n\
    Paths are those of the folder from which cargo was called, although cargo runs benches in \
    their package's.")]
pub(crate) struct Options {
    /// Mechanisms beside epoll, comma-separated; several options of one as name:key=value/key=value
    #[arg(long, value_delimiter = ',', value_name = "SPEC")]
    mechanism: Vec<String>,
    /// Numbers of connections
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "10,100,1000,10000,20000",
        value_name = "N"
    )]
    sizes: Vec<usize>,
    /// Rounds; each measures every variant twice
    #[arg(long, default_value_t = 15, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=10_000))]
    rounds: u32,
    /// How long a variant is measured at a time
    #[arg(long, default_value_t = 5, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    slice_ms: u64,
    /// Writes the raw data there
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Writes the raw data and the table there, as result.json and table.txt
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Given by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    /// Writes what was asked for.
    pub(crate) fn write(&self, json: &str, table: &str) -> Result<()> {
        let write = |path: PathBuf, text: &str| {
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        if let Some(file) = &self.json {
            write(from_caller(file)?, json).context("--json")?;
        }
        if let Some(folder) = &self.out {
            let folder = from_caller(folder)?;
            std::fs::create_dir_all(&folder)
                .with_context(|| format!("--out: cannot create {}", folder.display()))?;
            write(folder.join("result.json"), json).context("--out")?;
            write(folder.join("table.txt"), table).context("--out")?;
            println!("raw data in {}", folder.display());
        }
        Ok(())
    }

    /// What is to be measured.
    pub(crate) fn plan(&self) -> Result<Plan> {
        let mut plan = Plan::full()?;
        if !self.mechanism.is_empty() {
            // The comma separates mechanisms here, so that of a spec is written as a slash.
            let wanted = self.mechanism.iter().map(|text| text.replace('/', ","));
            let wanted = std::iter::once("epoll".to_owned()).chain(wanted);
            plan.variants.clear();
            for text in wanted {
                let spec: MechanismSpec =
                    text.parse().with_context(|| format!("--mechanism {text}"))?;
                if !plan.variants.contains(&spec) {
                    plan.variants.push(spec);
                }
            }
        }
        plan.sizes = self.sizes.clone();
        plan.sizes.retain(|&size| size > 0);
        plan.sizes.sort_unstable();
        plan.sizes.dedup();
        anyhow::ensure!(!plan.sizes.is_empty(), "--sizes: at least one number above 0");
        plan.rounds = self.rounds as usize;
        plan.slice = Duration::from_millis(self.slice_ms);
        Ok(plan)
    }
}

/// The path that the caller means: cargo changes into the package's folder, but leaves PWD, which
/// the shell has set, as it was.
fn from_caller(path: &Path) -> Result<PathBuf> {
    let caller = match std::env::var_os("PWD") {
        // Without cargo the present folder is the caller's, whatever PWD says.
        Some(folder) if std::env::var_os("CARGO").is_some() => PathBuf::from(folder),
        _ => std::env::current_dir().context("the present folder")?,
    };
    resolve(path, &caller)
}

fn resolve(path: &Path, caller: &Path) -> Result<PathBuf> {
    anyhow::ensure!(
        path.is_absolute() || caller.is_absolute(),
        "{}: PWD is {}, so nobody can say where that is: name an absolute path",
        path.display(),
        caller.display()
    );
    Ok(caller.join(path))
}

/// For the tests.
pub(crate) fn check_paths() -> Result<()> {
    for (path, caller, expected) in [
        ("wait.json", "/home/a", Some("/home/a/wait.json")),
        ("../b/wait.json", "/home/a", Some("/home/a/../b/wait.json")),
        ("/b/wait.json", "/home/a", Some("/b/wait.json")),
        ("/b/wait.json", "", Some("/b/wait.json")),
        ("wait.json", "a", None),
    ] {
        let found = resolve(Path::new(path), Path::new(caller)).ok();
        anyhow::ensure!(
            found.as_deref() == expected.map(Path::new),
            "{path} of {caller}: {found:?}"
        );
    }
    Ok(())
}
