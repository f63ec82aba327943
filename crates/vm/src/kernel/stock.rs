//! Debian's own kernels. What is installed on this system is used where it lies; the rest is
//! downloaded and unpacked into the cache, never installed.

use super::{Kernel, uncompressed};
use crate::{
    apt::{Apt, KernelPackages},
    cache::Cache,
    process::{Supervisor, command, find_program},
};
use anyhow::{Context, ensure};
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

const MEMORY_MIB: u32 = 1024;
const DEPMOD_LIMIT: Duration = Duration::from_secs(300);

pub(super) fn obtain(
    series: &str,
    refresh: bool,
    cache: &Cache,
    supervisor: &Supervisor,
) -> anyhow::Result<Kernel> {
    let packages = chosen(series, refresh, cache, supervisor)?;
    let (image, modules) = image(&packages, cache, supervisor)?;
    let image = uncompressed::image(image, &packages.release, cache, supervisor)?;
    let headers = headers(&packages, cache, supervisor)?;
    Ok(Kernel {
        release: packages.release,
        image,
        modules: Some(modules),
        headers,
        memory_mib: MEMORY_MIB,
        arguments: "",
    })
}

/// The release that stands for a series: once chosen it is kept, so that a run needs no network
/// and yesterday's figures come from the same kernel, until `--refresh`.
fn chosen(
    series: &str,
    refresh: bool,
    cache: &Cache,
    supervisor: &Supervisor,
) -> anyhow::Result<KernelPackages> {
    let note = format!("series-{series}.json");
    if !refresh
        && let Some(text) = cache.note(&note)
        && let Ok(packages) = serde_json::from_str(&text)
    {
        return Ok(packages);
    }
    let packages = Apt::open(cache, supervisor)?.newest(series)?;
    cache.set_note(&note, &serde_json::to_string(&packages)?)?;
    Ok(packages)
}

fn image(
    packages: &KernelPackages,
    cache: &Cache,
    supervisor: &Supervisor,
) -> anyhow::Result<(PathBuf, PathBuf)> {
    let release = &packages.release;
    let in_root = |root: &Path| {
        let image = root.join(format!("boot/vmlinuz-{release}"));
        (image, root.join("lib/modules").join(release))
    };
    let (image, modules) = in_root(Path::new("/"));
    let readable = fs::File::open(&image).is_ok();
    if readable && modules.join("modules.dep").exists() {
        return Ok((image, modules));
    }
    let root = cache.entry(supervisor, &format!("kernels/{release}"), |folder| {
        let depmod = find_program("depmod", "kmod")?;
        Apt::open(cache, supervisor)?.unpack(
            &format!("{} (once)", packages.image),
            std::slice::from_ref(&packages.image),
            folder,
        )?;
        let mut depmod = command(depmod);
        depmod.arg("-b").arg(folder).arg(release);
        supervisor.run_shown("indexing the kernel's modules", depmod, DEPMOD_LIMIT)?;
        Ok(())
    })?;
    let (image, modules) = in_root(&root);
    ensure!(image.exists(), "{} has no {}", packages.image, image.display());
    Ok((image, modules))
}

fn headers(
    packages: &KernelPackages,
    cache: &Cache,
    supervisor: &Supervisor,
) -> anyhow::Result<PathBuf> {
    let release = &packages.release;
    let installed = Path::new("/lib/modules").join(release).join("build");
    if installed.join("Makefile").exists() && installed.join("Module.symvers").exists() {
        return Ok(installed);
    }
    let root = cache.entry(supervisor, &format!("headers/{release}"), |folder| {
        Apt::open(cache, supervisor)?.unpack(
            &format!("linux-headers-{release} (once)"),
            &packages.headers,
            folder,
        )?;
        let place = cache.root().join("headers").join(release);
        relocate(&folder.join(format!("usr/src/linux-headers-{release}/Makefile")), &place)
    })?;
    Ok(root.join(format!("usr/src/linux-headers-{release}")))
}

/// The headers' Makefile names the common headers by their installed place; ours lie elsewhere.
/// (Everything else in the packages is relative.)
fn relocate(makefile: &Path, root: &Path) -> anyhow::Result<()> {
    let text = fs::read_to_string(makefile)
        .with_context(|| format!("{}: are the headers unpacked?", makefile.display()))?;
    ensure!(
        text.contains("include /usr/src/"),
        "{}: no `include /usr/src/…` to relocate: Debian's headers have changed",
        makefile.display()
    );
    let moved = text.replace("include /usr/src/", &format!("include {}/usr/src/", root.display()));
    fs::write(makefile, moved).with_context(|| makefile.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headers_find_their_common_part_where_it_was_unpacked() {
        let folder = tempfile::tempdir().unwrap();
        let makefile = folder.path().join("Makefile");
        fs::write(&makefile, "include /usr/src/linux-headers-6.1.0-56-common/Makefile\n").unwrap();
        relocate(&makefile, Path::new("/cache/headers/6.1")).unwrap();
        assert_eq!(
            fs::read_to_string(&makefile).unwrap(),
            "include /cache/headers/6.1/usr/src/linux-headers-6.1.0-56-common/Makefile\n"
        );
        fs::write(&makefile, "all:\n").unwrap();
        assert!(relocate(&makefile, Path::new("/x")).is_err());
    }
}
