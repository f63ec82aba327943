//! The newest kernel that Debian offers: from the backports to the stable release, regardless of this
//! system's own sources. Its modules are built with the compiler that built the kernel, in a file
//! system of that release: it is unpacked into the cache, never installed, and used as the root
//! directory for the build only.

use super::{Kernel, stock, uncompressed};
use crate::{
    apt::{Apt, KernelPackages},
    cache::Cache,
    process::Supervisor,
};
use std::{fs, os::unix::fs::symlink, path::Path};

/// The stable release, for the compiler and its libraries, and its backports, for the kernel.
const SUITES: &[&str] = &["trixie", "trixie-updates", "trixie-backports"];
const NOTE: &str = "newest.json";
const MEMORY_MIB: u32 = 1024;

/// Packages besides the headers, which bring the compiler and the programs of the kernel's build
/// system: the programs that its makefiles call, and those that every Debian system has, so that no
/// package declares a dependency on them.
const TOOLS: &[&str] = &[
    "base-files",
    "bash",
    "binutils",
    "coreutils",
    "dash",
    "diffutils",
    "dpkg",
    "findutils",
    "gawk",
    "grep",
    "gzip",
    "make",
    "perl-base",
    "sed",
    "tar",
    "xz-utils",
];

/// Obtains the newest kernel.
///
/// # Errors
/// The mirror that this system uses does not have the suites, or has no kernel in them.
pub(super) fn obtain(
    refresh: bool,
    cache: &Cache,
    supervisor: &Supervisor,
) -> anyhow::Result<Kernel> {
    let archive = || Apt::of_suites("newest", SUITES, cache, supervisor);
    let packages = stock::chosen(NOTE, refresh, cache, || archive()?.newest_of_all())?;
    let (image, modules) = stock::image(&packages, cache, supervisor, archive)?;
    let image = uncompressed::image(image, &packages.release, cache, supervisor)?;
    let release = packages.release.clone();
    let root = cache.entry(supervisor, &format!("roots/{release}"), |directory| {
        make_root(&mut archive()?, &packages, directory)
    })?;
    Ok(Kernel {
        image,
        modules: Some(modules),
        headers: Path::new("/usr/src").join(format!("linux-headers-{release}")),
        root: Some(root),
        memory_mib: MEMORY_MIB,
        arguments: "",
        release,
    })
}

fn make_root(
    archive: &mut Apt<'_>,
    packages: &KernelPackages,
    directory: &Path,
) -> anyhow::Result<()> {
    let mut wanted: Vec<String> = TOOLS.iter().map(|&tool| tool.to_owned()).collect();
    wanted.extend(packages.headers.iter().cloned());
    let what = format!("what builds modules for {} (once)", packages.release);
    archive.unpack_with_needs(&what, &wanted, directory)?;
    // Links that the packages' scripts would make.
    for (link, target) in [("usr/bin/awk", "gawk"), ("usr/bin/cc", "gcc-14")] {
        if !directory.join(link).exists() {
            symlink(target, directory.join(link))?;
        }
    }
    for name in ["dev", "proc", "tmp", "mnt"] {
        fs::create_dir_all(directory.join(name))?;
    }
    Ok(())
}
