//! The guest's kernel: its image, its modules, and the headers against which modules are built.

mod debug;
mod newest;
mod stock;
mod uncompressed;

use crate::{apt::Apt, cache::Cache, process::Supervisor};
use std::{fmt, path::PathBuf, str::FromStr};

/// Debian's series of kernels that the guest can run. The default is the first one that the archive
/// has: 6.1 on Debian 12, 6.12 on Debian 13. To support another series, add it here.
pub(crate) const SERIES: &[&str] = &["6.1", "6.12"];
const NEWEST: &str = "newest";
const DEBUG: &str = "debug";
const RACES: &str = "kcsan";
/// The note in the cache that lists the series in the archive.
const NOTE: &str = "series.json";

/// The kernel that the guest runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KernelChoice {
    /// The first entry of `SERIES` that Debian's archive has, according to this system's apt.
    #[default]
    Archive,
    /// The newest kernel of one of Debian's series, such as `6.12`.
    Series(&'static str),
    /// The newest kernel that Debian offers for its stable release, backports included.
    Newest,
    /// A kernel 6.1 built here from Debian's source, with KASAN, lockdep and kmemleak.
    Debug,
    /// A kernel 6.1 built here from Debian's source, with KCSAN.
    Races,
}

impl KernelChoice {
    /// All choices that have a name on the command line.
    pub fn named() -> impl Iterator<Item = KernelChoice> {
        let series = SERIES.iter().copied().map(KernelChoice::Series);
        series.chain([KernelChoice::Newest, KernelChoice::Debug, KernelChoice::Races])
    }
}

impl fmt::Display for KernelChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KernelChoice::Archive => "of Debian's archive",
            KernelChoice::Series(series) => series,
            KernelChoice::Newest => NEWEST,
            KernelChoice::Debug => DEBUG,
            KernelChoice::Races => RACES,
        })
    }
}

impl FromStr for KernelChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<KernelChoice, String> {
        KernelChoice::named().find(|choice| choice.to_string() == text).ok_or_else(|| {
            let names: Vec<String> =
                KernelChoice::named().map(|choice| choice.to_string()).collect();
            format!("no kernel {text:?}; there are {}", names.join(", "))
        })
    }
}

/// A kernel that can be booted, and that modules can be built for.
#[derive(Clone, Debug)]
pub(crate) struct Kernel {
    pub(crate) release: String,
    pub(crate) image: PathBuf,
    /// `lib/modules/RELEASE` after depmod; none if everything is built in.
    pub(crate) modules: Option<PathBuf>,
    /// The directory for `make -C` when a module is built; below `root`, if there is one.
    pub(crate) headers: PathBuf,
    /// The root file system with the kernel's compiler, in which modules are built; `None` if this
    /// system's compiler is the same.
    pub(crate) root: Option<PathBuf>,
    /// The default memory of a guest with this kernel, in MiB.
    pub(crate) memory_mib: u32,
    /// Further arguments for the kernel's command line.
    pub(crate) arguments: &'static str,
}

/// Gets a kernel from the system, from the cache or from Debian's archive.
pub(crate) fn obtain(
    choice: KernelChoice,
    refresh: bool,
    cache: &Cache,
    supervisor: &Supervisor,
) -> anyhow::Result<Kernel> {
    let kernel = match choice {
        KernelChoice::Archive => {
            let series = in_archive(refresh, cache, supervisor)?;
            stock::obtain(&series[0], refresh, cache, supervisor)?
        }
        KernelChoice::Series(series) => stock::obtain(series, refresh, cache, supervisor)?,
        KernelChoice::Newest => newest::obtain(refresh, cache, supervisor)?,
        KernelChoice::Debug => debug::obtain(&debug::MEMORY, cache, supervisor)?,
        KernelChoice::Races => debug::obtain(&debug::RACES, cache, supervisor)?,
    };
    tracing::info!("the guest's kernel is {}", kernel.release);
    Ok(kernel)
}

/// The series that the guest can run on this system, the default first.
///
/// # Errors
/// Debian's archive cannot be queried, or has none of them.
pub fn available(cache: &Cache) -> anyhow::Result<Vec<KernelChoice>> {
    let archived = in_archive(false, cache, &Supervisor::new()?)?;
    let is_archived = |series: &&&str| archived.iter().any(|archived| archived == *series);
    Ok(SERIES.iter().filter(is_archived).map(|series| KernelChoice::Series(series)).collect())
}

/// The entries of [`SERIES`] that the archive has; at least one. The archive is queried once and the
/// result stored, so that later runs need no network.
fn in_archive(
    refresh: bool,
    cache: &Cache,
    supervisor: &Supervisor,
) -> anyhow::Result<Vec<String>> {
    let known = cache.note(NOTE).and_then(|text| serde_json::from_str::<Vec<String>>(&text).ok());
    // A cache may come from a program that knew other series.
    let is_known = |series: &String| SERIES.contains(&series.as_str());
    if let Some(known) = known.filter(|known| !known.is_empty() && known.iter().all(is_known))
        && !refresh
    {
        return Ok(known);
    }
    let archived = Apt::open(cache, supervisor)?.which_of(SERIES)?;
    cache.set_note(NOTE, &serde_json::to_string(&archived)?)?;
    Ok(archived)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_as_they_are_written() {
        for choice in KernelChoice::named() {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        assert!("5.10".parse::<KernelChoice>().unwrap_err().contains("6.12"));
    }

    #[test]
    fn the_archive_is_queried_once() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(directory.path())).unwrap();
        cache.set_note(NOTE, r#"["6.12"]"#).unwrap();
        assert_eq!(available(&cache).unwrap(), [KernelChoice::Series("6.12")]);
    }
}
