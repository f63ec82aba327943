//! The guest's kernel: image, modules, and what modules are built against.

mod debug;
mod stock;
mod uncompressed;

use crate::{cache::Cache, process::Supervisor};
use std::{fmt, path::PathBuf, str::FromStr};

/// Which kernel the guest runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// Debian's 6.1, the stable kernel of Debian 12.
    #[default]
    Stock61,
    /// Debian's 6.12.
    Stock612,
    /// A 6.1 built here from Debian's source, with KASAN, lockdep and kmemleak.
    Debug,
}

impl Choice {
    /// All the choices.
    pub const ALL: [Choice; 3] = [Choice::Stock61, Choice::Stock612, Choice::Debug];
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Choice::Stock61 => "6.1",
            Choice::Stock612 => "6.12",
            Choice::Debug => "debug",
        })
    }
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Choice, String> {
        Choice::ALL
            .into_iter()
            .find(|choice| choice.to_string() == text)
            .ok_or_else(|| format!("no kernel {text:?}; there are 6.1, 6.12 and debug"))
    }
}

/// A kernel that can be booted, and that modules can be built for.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) release: String,
    pub(crate) image: PathBuf,
    /// `lib/modules/RELEASE` after depmod; none if everything is built in.
    pub(crate) modules: Option<PathBuf>,
    /// What `make -C` is given to build a module.
    pub(crate) headers: PathBuf,
    /// What it needs to run at ease, in MiB.
    pub(crate) memory_mib: u32,
    /// What this kernel wants on its command line besides.
    pub(crate) arguments: &'static str,
}

/// Gets a kernel: from the system, from the cache, from Debian's archive.
pub(crate) fn obtain(
    choice: Choice,
    refresh: bool,
    cache: &Cache,
    supervisor: &Supervisor,
) -> anyhow::Result<Kernel> {
    match choice {
        Choice::Stock61 | Choice::Stock612 => {
            stock::obtain(&choice.to_string(), refresh, cache, supervisor)
        }
        Choice::Debug => debug::obtain(cache, supervisor),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_as_they_are_written() {
        for choice in Choice::ALL {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert!("5.10".parse::<Choice>().unwrap_err().contains("6.12"));
    }
}
