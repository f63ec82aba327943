//! Debian's own kernels. An installed kernel is used in its place; other kernels are downloaded and
//! unpacked into the cache, never installed.

use super::{Kernel, uncompressed};
use crate::{
    apt::{Apt, KernelPackages},
    cache::Cache,
    process::{Supervisor, command},
};
use anyhow::{Context, ensure};
use pollux_sys::require_program;
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
    let note = format!("series-{series}.json");
    let packages = chosen(&note, refresh, cache, || Apt::open(cache, supervisor)?.newest(series))?;
    let (image, modules) = image(&packages, cache, supervisor, || Apt::open(cache, supervisor))?;
    let image = uncompressed::image(image, &packages.release, cache, supervisor)?;
    let headers = headers(&packages, cache, supervisor)?;
    Ok(Kernel {
        release: packages.release,
        image,
        modules: Some(modules),
        headers,
        root: None,
        memory_mib: MEMORY_MIB,
        arguments: "",
    })
}

/// The release that stands for a series, stored under `note` in the cache. Once chosen it stays
/// until `--refresh`, so that a run needs no network and yesterday's figures come from the same kernel.
pub(super) fn chosen(
    note: &str,
    refresh: bool,
    cache: &Cache,
    query: impl FnOnce() -> anyhow::Result<KernelPackages>,
) -> anyhow::Result<KernelPackages> {
    if !refresh
        && let Some(text) = cache.note(note)
        && let Ok(packages) = serde_json::from_str(&text)
    {
        return Ok(packages);
    }
    let packages = query()?;
    cache.set_note(note, &serde_json::to_string(&packages)?)?;
    Ok(packages)
}

/// The packed image, and the directory of the modules.
pub(super) fn image<'a>(
    packages: &KernelPackages,
    cache: &Cache,
    supervisor: &Supervisor,
    archive: impl FnOnce() -> anyhow::Result<Apt<'a>>,
) -> anyhow::Result<(PathBuf, PathBuf)> {
    let release = &packages.release;
    if let Some(installed) = in_root(Path::new("/"), release)
        && fs::File::open(&installed.0).is_ok()
        && installed.1.join("modules.dep").exists()
    {
        return Ok(installed);
    }
    let root = cache.entry(supervisor, &format!("kernels/{release}"), |directory| {
        let depmod = require_program("depmod", "kmod")?;
        let mut wanted = vec![packages.image.clone()];
        wanted.extend(packages.parts.iter().cloned());
        archive()?.unpack(&format!("{} (once)", packages.image), &wanted, directory)?;
        both_layouts(directory)?;
        let mut depmod = command(depmod);
        depmod.arg("-b").arg(directory).arg(release);
        supervisor.run_shown("indexing the kernel's modules", depmod, DEPMOD_LIMIT)?;
        Ok(())
    })?;
    in_root(&root, release)
        .with_context(|| format!("{} brought no kernel to {}", packages.image, root.display()))
}

/// Finds image and modules below a root. Newer packages have the image in the directory of the modules.
fn in_root(root: &Path, release: &str) -> Option<(PathBuf, PathBuf)> {
    let modules = root.join("lib/modules").join(release);
    let images = [root.join(format!("boot/vmlinuz-{release}")), modules.join("vmlinuz")];
    Some((images.into_iter().find(|image| image.exists())?, modules))
}

/// Makes `lib/modules` and `usr/lib/modules` the same. Debian 12's packages use the former, later ones
/// the latter, and the depmod of each system searches the same directory as its packages. It then finds
/// the modules, also on a system where the two directories are one.
fn both_layouts(root: &Path) -> anyhow::Result<()> {
    if !root.join("lib").exists() {
        std::os::unix::fs::symlink("usr/lib", root.join("lib"))?;
    } else if !root.join("usr/lib/modules").exists() {
        fs::create_dir_all(root.join("usr/lib"))?;
        std::os::unix::fs::symlink("../../lib/modules", root.join("usr/lib/modules"))?;
    }
    Ok(())
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
    let root = cache.entry(supervisor, &format!("headers/{release}"), |directory| {
        Apt::open(cache, supervisor)?.unpack(
            &format!("linux-headers-{release} (once)"),
            &packages.headers,
            directory,
        )?;
        let headers = cache.root().join("headers").join(release);
        relocate(&directory.join(format!("usr/src/linux-headers-{release}/Makefile")), &headers)
    })?;
    Ok(root.join(format!("usr/src/linux-headers-{release}")))
}

/// Changes the headers' Makefile, which contains the installed path of the common headers; here they
/// are in another directory. (All other paths in the packages are relative.)
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
    fn the_image_is_found_in_either_layout() {
        for packed in ["boot/vmlinuz-7", "usr/lib/modules/7/vmlinuz"] {
            let root = tempfile::tempdir().unwrap();
            fs::create_dir_all(root.path().join("usr/lib/modules/7")).unwrap();
            both_layouts(root.path()).unwrap();
            assert_eq!(in_root(root.path(), "7"), None);
            fs::create_dir_all(root.path().join("boot")).unwrap();
            fs::write(root.path().join(packed), "").unwrap();
            let (image, modules) = in_root(root.path(), "7").expect(packed);
            assert!(image.exists() && modules.is_dir(), "{packed}");
        }
    }

    #[test]
    fn modules_are_found_in_either_layout() {
        for packed in ["lib/modules/6", "usr/lib/modules/6"] {
            let root = tempfile::tempdir().unwrap();
            fs::create_dir_all(root.path().join(packed)).unwrap();
            fs::write(root.path().join(packed).join("modules.order"), "").unwrap();
            both_layouts(root.path()).unwrap();
            for wanted in ["lib/modules/6/modules.order", "usr/lib/modules/6/modules.order"] {
                assert!(root.path().join(wanted).exists(), "{packed}: {wanted}");
            }
        }
    }

    #[test]
    fn the_headers_find_their_common_part_where_it_was_unpacked() {
        let directory = tempfile::tempdir().unwrap();
        let makefile = directory.path().join("Makefile");
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
