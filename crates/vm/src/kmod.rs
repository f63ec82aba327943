//! Builds an out-of-tree module for a guest kernel, into the cache; again only when its sources,
//! its flags or the kernel have changed.

use crate::{
    cache::Cache,
    kernel::Kernel,
    process::{Supervisor, command},
};
use anyhow::{Context, bail, ensure};
use pollux_sys::require_program;
use std::{
    env,
    ffi::OsStr,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

const LIMIT: Duration = Duration::from_secs(600);
/// The most files in a module's directory; more means that the wrong directory was named.
const FILES_MAX: usize = 500;
const FILE_BYTES_MAX: u64 = 4 << 20;
const DEPTH_MAX: usize = 4;
/// The module's directory in the source tree.
const IN_TREE: &str = "kmod/devpoll";
/// The path of the module's directory for a build in another file system.
const IN_ROOT: &str = "/mnt";

/// The directory with the sources that packages install for DKMS, and the beginning of the module's name there.
const FOR_DKMS: (&str, &str) = ("/usr/src", "devpoll-");

/// Finds the directory of the /dev/poll module: in the source tree around the working directory or
/// around this program, or in the directory of an installation, such as that of the package
/// pollux-devpoll-dkms.
///
/// # Errors
/// It is in none of these directories.
pub fn find_module() -> anyhow::Result<PathBuf> {
    let program = env::current_exe().ok();
    let starts = [env::current_dir().ok(), program.clone()];
    for start in starts.iter().flatten() {
        for directory in start.ancestors() {
            if is_module(&directory.join(IN_TREE)) {
                return Ok(directory.join(IN_TREE));
            }
        }
    }
    let prefix = program.as_deref().and_then(|program| program.parent()?.parent());
    for prefix in prefix.into_iter().chain([Path::new("/usr/local"), Path::new("/usr")]) {
        let installed = prefix.join("share/pollux").join(IN_TREE);
        if is_module(&installed) {
            return Ok(installed);
        }
    }
    if let Some(installed) = for_dkms(Path::new(FOR_DKMS.0)) {
        return Ok(installed);
    }
    bail!(
        "the module's sources ({IN_TREE}) are neither around the working directory nor around \
         this program: install pollux-devpoll-dkms, name their directory with --module DIR, or go \
         without: --module none"
    )
}

/// The sources of the module below `sources`, which a package has installed for DKMS; of several
/// versions the newest.
fn for_dkms(sources: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(sources).ok()?.flatten().map(|entry| entry.path());
    let is_version = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(FOR_DKMS.1) && is_module(path)
    };
    entries.filter(is_version).max_by_key(|path| (numbers(path), path.clone()))
}

/// The numbers in a directory's name, which order versions: by its text 1.9 would be newer than 1.10.
fn numbers(path: &Path) -> Vec<u64> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect()
}

fn is_module(directory: &Path) -> bool {
    directory.join("Kbuild").is_file() || directory.join("Makefile").is_file()
}

/// The built modules, in alphabetical order.
pub(crate) fn build(
    cache: &Cache,
    supervisor: &Supervisor,
    kernel: &Kernel,
    source: &Path,
    defines: &[String],
) -> anyhow::Result<Vec<PathBuf>> {
    ensure!(is_module(source), "{}: no Kbuild and no Makefile there (--module)", source.display());
    let mut files = Vec::new();
    collect(source, Path::new(""), 0, &mut files)?;
    files.sort();
    let mut hasher = DefaultHasher::new();
    (&files, defines, &kernel.root, &kernel.headers).hash(&mut hasher);
    let name = format!("modules/{}-{:016x}", kernel.release, hasher.finish());
    let directory = cache.entry(supervisor, &name, |directory| {
        for (path, bytes) in &files {
            let target = directory.join(path);
            fs::create_dir_all(target.parent().context("a file lies in a directory")?)?;
            fs::write(target, bytes)?;
        }
        let make = make(kernel, directory, defines)?;
        let what = format!("building {} for {}", source.display(), kernel.release);
        supervisor.run_shown(&what, make, LIMIT)?;
        ensure!(!built(directory)?.is_empty(), "{}: the build made no .ko", source.display());
        Ok(())
    })?;
    built(&directory)
}

/// The command that builds the sources in `directory`.
fn make(kernel: &Kernel, directory: &Path, defines: &[String]) -> anyhow::Result<Command> {
    let inside = kernel.root.as_ref().map_or(directory, |_| Path::new(IN_ROOT));
    // Messages contain the paths of the sources, not the directory of the build.
    let mut flags = vec![format!("-fmacro-prefix-map={}/=", inside.display())];
    flags.extend(defines.iter().map(|define| format!("-D{define}")));
    let mut make = match &kernel.root {
        Some(root) => make_in_root(root, directory)?,
        None => {
            if let Some(compiler) = compiler(&kernel.headers) {
                require_program(&compiler, &compiler)?;
            }
            command(require_program("make", "make")?)
        }
    };
    // The variables of a make that runs this program must not affect the build.
    make.env_remove("MAKEFLAGS").env_remove("MFLAGS").env_remove("MAKELEVEL");
    make.arg("-s").arg("-C").arg(&kernel.headers);
    make.arg(format!("M={}", inside.display()));
    make.arg(format!("KCFLAGS={}", flags.join(" "))).arg("modules");
    Ok(make)
}

/// `make` in another file system, where `directory` is mounted as [`IN_ROOT`] (objtool needs /proc). It
/// runs in its own mount namespace, so the mounts end with it. For that, an unprivileged user becomes
/// root in a user namespace.
fn make_in_root(root: &Path, directory: &Path) -> anyhow::Result<Command> {
    const ENTER: &str = "mount --rbind /dev \"$1/dev\" && mount --rbind /proc \"$1/proc\" && \
        mount --bind \"$2\" \"$1$3\" && root=$1 && shift 3 && exec chroot \"$root\" \"$@\"";
    let mut make = command(require_program("unshare", "util-linux")?);
    make.arg("--mount");
    if !rustix::process::geteuid().is_root() {
        make.args(["--user", "--map-root-user"]);
    }
    make.args(["sh", "-c", ENTER, "sh"]).arg(root).arg(directory).arg(IN_ROOT);
    make.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").arg("make");
    Ok(make)
}

/// The compiler version that Debian's headers require, such as `gcc-12`.
fn compiler(headers: &Path) -> Option<String> {
    let text = fs::read_to_string(headers.join(".kernelvariables")).ok()?;
    let name = text.split_whitespace().find_map(|word| {
        let start = word.find("gcc-")?;
        Some(word[start..].trim_end_matches(')').to_owned())
    })?;
    Some(name)
}

fn built(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut modules: Vec<PathBuf> = fs::read_dir(directory)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension() == Some(OsStr::new("ko")))
        .collect();
    modules.sort();
    Ok(modules)
}

/// Reads the files that a build may depend on, without the results of an earlier build.
fn collect(
    root: &Path,
    inside: &Path,
    depth: usize,
    files: &mut Vec<(PathBuf, Vec<u8>)>,
) -> anyhow::Result<()> {
    for entry in fs::read_dir(root.join(inside)).with_context(|| root.display().to_string())? {
        let entry = entry?;
        let path = inside.join(entry.file_name());
        let metadata = fs::metadata(entry.path())?;
        if metadata.is_dir() {
            let hidden = entry.file_name().to_string_lossy().starts_with('.');
            if depth < DEPTH_MAX && !hidden {
                collect(root, &path, depth + 1, files)?;
            }
            continue;
        }
        if !is_source(&path) {
            continue;
        }
        ensure!(
            metadata.len() <= FILE_BYTES_MAX && files.len() < FILES_MAX,
            "{}: too many or too large files for a module (limits: {FILES_MAX} files of {} MiB)",
            root.display(),
            FILE_BYTES_MAX >> 20
        );
        files.push((path, fs::read(entry.path())?));
    }
    Ok(())
}

fn is_source(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if name.starts_with('.') || name.ends_with(".mod.c") {
        return false;
    }
    matches!(&*name, "Kbuild" | "Makefile" | "Kconfig")
        || [".c", ".h", ".S", ".mk", ".in"].iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_compiler_is_the_one_that_the_headers_name() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(compiler(directory.path()), None);
        let text = "override ARCH = x86\noverride CC := $(CROSS_COMPILE)gcc-12\n";
        fs::write(directory.path().join(".kernelvariables"), text).unwrap();
        assert_eq!(compiler(directory.path()).as_deref(), Some("gcc-12"));
    }

    /// Regression: `pollux vm` of the Debian package did not find the sources that the module's own package installs.
    #[test]
    fn the_sources_that_a_package_installed_for_dkms_are_found() {
        let sources = tempfile::tempdir().unwrap();
        assert_eq!(for_dkms(&sources.path().join("missing")), None);
        for name in ["devpoll-0.9", "devpoll-1.0", "devpoll-2.0", "linux-headers-6.1"] {
            fs::create_dir(sources.path().join(name)).unwrap();
        }
        assert_eq!(for_dkms(sources.path()), None);
        for name in ["devpoll-0.9", "devpoll-1.0", "linux-headers-6.1"] {
            fs::write(sources.path().join(name).join("Kbuild"), "").unwrap();
        }
        assert_eq!(for_dkms(sources.path()), Some(sources.path().join("devpoll-1.0")));
        for name in ["devpoll-1.9", "devpoll-1.10", "devpoll-1.10.1"] {
            fs::create_dir(sources.path().join(name)).unwrap();
            fs::write(sources.path().join(name).join("Kbuild"), "").unwrap();
            assert_eq!(for_dkms(sources.path()), Some(sources.path().join(name)));
        }
    }

    #[test]
    fn only_sources_count() {
        for name in ["devpoll.c", "include/sys/devpoll.h", "Kbuild", "Makefile"] {
            assert!(is_source(Path::new(name)), "{name}");
        }
        for name in ["devpoll.o", "devpoll.mod.c", ".devpoll.o.cmd", "devpoll.ko", "README.md"] {
            assert!(!is_source(Path::new(name)), "{name}");
        }
    }
}
