//! The kernels for finding faults: Debian's 6.1 source (`debug.config`) with KASAN, lockdep and
//! kmemleak (`kasan.config`), or with KCSAN (`kcsan.config`). Each is built once into the cache.

use super::Kernel;
use crate::{
    apt::Apt,
    cache::Cache,
    process::{Supervisor, command},
};
use anyhow::{Context, bail, ensure};
use pollux_sys::require_program;
use std::{
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::Path,
    thread,
    time::Duration,
};

/// The configuration that both kernels share.
const CONFIG: &str = include_str!("debug.config");

/// One of the kernels.
pub(super) struct Flavour {
    /// Such as `debug`: the cache's entry is `kernels/debug-HASH`.
    name: &'static str,
    config: &'static str,
    suffix: &'static str,
    memory_mib: u32,
    /// Arguments for the kernel's command line.
    arguments: &'static str,
}

/// Finds faults of memory and locks, and leaks. KASAN's shadow takes an eighth of the memory; its
/// quarantine and kmemleak's records take more. The first fault ends the guest, while the messages
/// before it are still on the console.
pub(super) const MEMORY: Flavour = Flavour {
    name: "debug",
    config: include_str!("kasan.config"),
    suffix: "-pollux-debug",
    memory_mib: 2048,
    arguments: "kasan.fault=panic panic_on_warn=1",
};

/// Finds data races. The kernel's own functions have many known races, so the kernel continues after
/// each.
pub(super) const RACES: Flavour = Flavour {
    name: "kcsan",
    config: include_str!("kcsan.config"),
    suffix: "-pollux-kcsan",
    memory_mib: 1024,
    arguments: "",
};

const SOURCE_PACKAGE: &str = "linux-source-6.1";
/// A bzImage, although it must be decompressed: the ELF kernel's own entry (PVH) runs C code
/// before KASAN's shadow memory is there, and faults.
const TARGETS: &[&str] = &["bzImage", "modules"];
const IMAGE: &str = "arch/x86/boot/bzImage";

/// These take minutes on a quiet machine. On a machine whose processors are busy, at `nice 10`, they
/// take many times as long.
const UNPACK_LIMIT: Duration = Duration::from_secs(3600);
const CONFIGURE_LIMIT: Duration = Duration::from_secs(3600);
const BUILD_LIMIT: Duration = Duration::from_secs(3 * 3600);

/// The programs and headers that the build needs, each with its package. `scripts/setup debug-kernel`
/// installs the same packages.
const NEEDED: &[(&str, &str)] = &[
    ("gcc", "gcc"),
    ("make", "make"),
    ("flex", "flex"),
    ("bison", "bison"),
    ("bc", "bc"),
    ("xz", "xz-utils"),
    ("tar", "tar"),
    ("/usr/include/gelf.h", "libelf-dev"),
];

/// The parts of the source tree that modules are built against. The rest, 1.5 GB, is deleted after the
/// build.
const REQUIRED: &[&str] =
    &["Makefile", "arch", "include", "scripts", "tools", "Module.symvers", ".config", "System.map"];

pub(super) fn obtain(
    flavour: &Flavour,
    cache: &Cache,
    supervisor: &Supervisor,
) -> anyhow::Result<Kernel> {
    let mut hasher = DefaultHasher::new();
    (CONFIG, flavour.config, flavour.suffix, SOURCE_PACKAGE, TARGETS).hash(&mut hasher);
    let name = format!("kernels/{}-{:016x}", flavour.name, hasher.finish());
    let directory =
        cache.entry(supervisor, &name, |directory| build(flavour, directory, cache, supervisor))?;
    let tree = directory.join("linux");
    let release = fs::read_to_string(tree.join("include/config/kernel.release"))
        .with_context(|| format!("{}: remove it and try again", directory.display()))?;
    Ok(Kernel {
        release: release.trim().to_owned(),
        image: tree.join(IMAGE),
        modules: None,
        headers: tree,
        memory_mib: flavour.memory_mib,
        arguments: flavour.arguments,
        root: None,
    })
}

fn build(
    flavour: &Flavour,
    directory: &Path,
    cache: &Cache,
    supervisor: &Supervisor,
) -> anyhow::Result<()> {
    check_tools()?;
    let package = directory.join("package");
    fs::create_dir(&package)?;
    let mut apt = Apt::open(cache, supervisor)?;
    apt.unpack(&format!("{SOURCE_PACKAGE} (once)"), &[SOURCE_PACKAGE.to_owned()], &package)?;
    // The kernel is built inside its source tree, so that no built file contains the path and the tree
    // can be moved.
    let tree = directory.join("linux");
    fs::create_dir(&tree)?;
    let mut unpack = command("tar");
    unpack.arg("-xf").arg(package.join(format!("usr/src/{SOURCE_PACKAGE}.tar.xz")));
    unpack.arg("-C").arg(&tree).arg("--strip-components=1");
    supervisor.run_shown("unpacking the kernel's source", unpack, UNPACK_LIMIT)?;
    fs::remove_dir_all(&package)?;

    let make = |targets: &[&str]| {
        let mut make = command("nice");
        make.env_remove("MAKEFLAGS").env_remove("MFLAGS").env_remove("MAKELEVEL");
        make.args(["-n", "10", "make", "-s", "-C"]).arg(&tree).args(targets);
        make
    };
    let fragment = tree.join("pollux.config");
    let config = format!("{CONFIG}{}", flavour.config);
    fs::write(&fragment, format!("{config}CONFIG_LOCALVERSION=\"{}\"\n", flavour.suffix))?;
    let all = format!("KCONFIG_ALLCONFIG={}", fragment.display());
    supervisor.run_shown(
        &format!("configuring the {} kernel", flavour.name),
        make(&[&all, "allnoconfig"]),
        CONFIGURE_LIMIT,
    )?;
    check_configuration(&config, &fs::read_to_string(tree.join(".config"))?)?;
    let jobs = format!("-j{}", thread::available_parallelism().map_or(1, usize::from));
    supervisor.run_shown(
        &format!("building the {} kernel (5 to 15 minutes, once)", flavour.name),
        make(&[&[jobs.as_str()][..], TARGETS].concat()),
        BUILD_LIMIT,
    )?;
    prune(&tree)
}

fn check_tools() -> anyhow::Result<()> {
    let missing: Vec<&str> = NEEDED
        .iter()
        .filter(|(what, package)| match what.starts_with('/') {
            true => !Path::new(what).exists(),
            false => require_program(what, package).is_err(),
        })
        .map(|&(_, package)| package)
        .collect();
    ensure!(
        missing.is_empty(),
        "to build the debug kernel, install: apt-get install --no-install-recommends {} \
         (`scripts/setup debug-kernel` in Pollux's sources does it)",
        missing.join(" ")
    );
    Ok(())
}

/// Fails if an option that was requested is not in the final configuration. kconfig silently drops
/// options whose dependencies are not met. A kernel without KASAN would find no fault, and the code
/// would look correct.
fn check_configuration(wanted: &str, got: &str) -> anyhow::Result<()> {
    let dropped: Vec<&str> = wanted
        .lines()
        .filter(|line| line.starts_with("CONFIG_"))
        .filter(|line| !got.lines().any(|have| have == *line))
        .collect();
    if !dropped.is_empty() {
        bail!("this source does not take these settings: {}", dropped.join(", "));
    }
    Ok(())
}

/// Removes the files that neither booting nor building a module needs.
fn prune(tree: &Path) -> anyhow::Result<()> {
    for directory in [tree.to_owned(), tree.join("arch")] {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let is_required = match directory == tree {
                true => REQUIRED.contains(&&*name),
                false => name == "x86",
            };
            if is_required {
                continue;
            }
            match entry.file_type()?.is_dir() {
                true => fs::remove_dir_all(entry.path())?,
                false => fs::remove_file(entry.path())?,
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_kconfig_dropped_is_an_error() {
        let wanted = "# comment\nCONFIG_KASAN=y\nCONFIG_NR_CPUS=16\n";
        assert!(check_configuration(wanted, "CONFIG_NR_CPUS=16\nCONFIG_KASAN=y\n").is_ok());
        let error = check_configuration(wanted, "# CONFIG_KASAN is not set\nCONFIG_NR_CPUS=16\n");
        assert!(error.unwrap_err().to_string().contains("CONFIG_KASAN=y"));
    }

    #[test]
    fn the_tree_that_is_kept_has_what_modules_are_built_against() {
        let directory = tempfile::tempdir().unwrap();
        for kept in ["arch/x86/boot", "arch/arm", "include", "drivers/gpu", "scripts"] {
            fs::create_dir_all(directory.path().join(kept)).unwrap();
        }
        for file in ["Makefile", IMAGE, "vmlinux.o", ".config", "arch/Kconfig"] {
            fs::write(directory.path().join(file), "").unwrap();
        }
        prune(directory.path()).unwrap();
        for kept in [IMAGE, "include", "scripts", "Makefile", ".config"] {
            assert!(directory.path().join(kept).exists(), "{kept}");
        }
        for gone in ["arch/arm", "arch/Kconfig", "drivers", "vmlinux.o"] {
            assert!(!directory.path().join(gone).exists(), "{gone}");
        }
    }
}
