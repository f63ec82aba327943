//! Debian's archive, through apt's own programs; nothing is installed, and root is not needed.

use crate::{
    cache::Cache,
    process::{SignalError, Supervisor, command},
    progress::Progress,
    release::Release,
};
use anyhow::{Context, bail};
use pollux_sys::require_program;
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

const QUERY_LIMIT: Duration = Duration::from_secs(120);
const UPDATE_LIMIT: Duration = Duration::from_secs(600);
const DOWNLOAD_LIMIT: Duration = Duration::from_secs(1800);
const UNPACK_LIMIT: Duration = Duration::from_secs(600);
/// Own lists younger than this are not fetched again: one kernel needs several queries.
const LISTS_ARE_FRESH: Duration = Duration::from_secs(600);
/// The number of releases of a series that are tried before the search fails.
const CANDIDATES_MAX: usize = 12;

/// The packages of one kernel release.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct KernelPackages {
    pub(crate) release: String,
    pub(crate) image: String,
    /// The packages that the image package depends on where it is empty itself: `linux-binary-…` and
    /// the like.
    #[serde(default)]
    pub(crate) parts: Vec<String>,
    /// All packages that are needed to build a module for it: headers, common headers, kbuild's
    /// programs.
    pub(crate) headers: Vec<String>,
}

/// The archive, with the system's package lists. If these lack the package (in fresh containers, or
/// because they are old), our own lists are used.
pub(crate) struct Apt<'a> {
    cache: &'a Cache,
    supervisor: &'a Supervisor,
    options: Vec<String>,
    own_lists: bool,
}

impl<'a> Apt<'a> {
    pub(crate) fn open(cache: &'a Cache, supervisor: &'a Supervisor) -> anyhow::Result<Apt<'a>> {
        require_program("apt-cache", "apt").context(
            "pollux vm takes its kernels from Debian's archive: run it on Debian 12 or 13",
        )?;
        let mut apt = Apt { cache, supervisor, options: Vec::new(), own_lists: false };
        if rustix::process::geteuid().is_root() {
            // The archive's sandbox user could not write into a private cache directory.
            apt.set("APT::Sandbox::User", "root");
        }
        Ok(apt)
    }

    /// Opens other suites of the archive than this system's, from the same mirror. The package lists
    /// and the record of installed packages (empty) are our own; `kind` names their directory in the
    /// cache.
    ///
    /// # Errors
    /// This system's apt has no mirror of Debian's archive, or the mirror cannot be reached.
    pub(crate) fn of_suites(
        kind: &str,
        suites: &[&str],
        cache: &'a Cache,
        supervisor: &'a Supervisor,
    ) -> anyhow::Result<Apt<'a>> {
        let mut apt = Apt::open(cache, supervisor)?;
        let mirror = apt.mirror()?;
        let directory = cache.root().join("apt").join(kind);
        fs::create_dir_all(&directory)?;
        let sources = directory.join("sources.list");
        let lines = suites.iter().map(|suite| format!("deb {mirror} {suite} main\n"));
        fs::write(&sources, lines.collect::<String>())?;
        let nothing = directory.join("status");
        fs::write(&nothing, "")?;
        apt.set("Dir::Etc::SourceList", &sources.to_string_lossy());
        apt.set("Dir::Etc::SourceParts", "/dev/null");
        apt.set("Dir::State::Status", &nothing.to_string_lossy());
        apt.use_own_lists(&directory)?;
        Ok(apt)
    }

    /// The URL of the mirror from which this system gets its Debian packages.
    fn mirror(&self) -> anyhow::Result<String> {
        let mut targets = self.command("apt-get");
        targets.args(["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]);
        let targets = self.supervisor.run(targets, QUERY_LIMIT)?;
        let targets = String::from_utf8_lossy(&targets);
        targets
            .lines()
            .find(|uri| uri.trim_end_matches('/').ends_with("/debian"))
            .map(str::to_owned)
            .context(
                "this system's apt names no mirror of Debian's archive (a URI that ends in \
                 /debian): look into /etc/apt/sources.list and /etc/apt/sources.list.d",
            )
    }

    fn set(&mut self, name: &str, value: &str) {
        self.options.extend(["-o".to_owned(), format!("{name}={value}")]);
    }

    /// Tries with the system's lists, then with fresh ones of our own.
    fn with_any_lists<T>(
        &mut self,
        action: impl Fn(&Self) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let first = match action(self) {
            Err(error) if !self.own_lists && !error.is::<SignalError>() => error,
            outcome => return outcome,
        };
        tracing::info!("with the system's package lists: {first:#}");
        self.use_own_lists(&self.cache.root().join("apt"))?;
        action(self)
    }

    /// Uses package lists below the cache directory. That needs no root and changes no other directory.
    fn use_own_lists(&mut self, directory: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(directory.join("lists/partial"))?;
        fs::create_dir_all(directory.join("cache/archives/partial"))?;
        self.set("Dir::State::Lists", &directory.join("lists").to_string_lossy());
        self.set("Dir::Cache", &directory.join("cache").to_string_lossy());
        self.own_lists = true;
        let fetched = directory.join("fetched");
        let age = fetched.metadata().ok().and_then(|there| there.modified().ok()?.elapsed().ok());
        if age.is_some_and(|age| age < LISTS_ARE_FRESH) {
            return Ok(());
        }
        let mut update = self.command("apt-get");
        update.args(["-q", "update"]);
        self.supervisor
            .run_shown("fetching Debian's package lists", update, UPDATE_LIMIT)
            .context("is the network up, and is /etc/apt/sources.list right?")?;
        fs::write(fetched, "")?;
        Ok(())
    }

    fn command(&self, program: &str) -> Command {
        let mut command = command(program);
        command.args(&self.options);
        command
    }

    fn package_names(&self, prefix: &str) -> anyhow::Result<Vec<String>> {
        let mut pkgnames = self.command("apt-cache");
        pkgnames.args(["pkgnames", prefix]);
        let out = self.supervisor.run(pkgnames, QUERY_LIMIT)?;
        Ok(String::from_utf8_lossy(&out).lines().map(str::to_owned).collect())
    }

    /// The newest release of a series for which image and headers are both available.
    pub(crate) fn newest(&mut self, series: &str) -> anyhow::Result<KernelPackages> {
        self.with_any_lists(|apt| apt.newest_in_lists(series))
    }

    /// Returns those of `series` that have an available release, in the same order; at least one.
    pub(crate) fn which_of(&mut self, series: &[&str]) -> anyhow::Result<Vec<String>> {
        self.with_any_lists(|apt| {
            let mut there = Vec::new();
            for series in series {
                match apt.newest_in_lists(series) {
                    Ok(_) => there.push((*series).to_owned()),
                    Err(error) if error.is::<SignalError>() => return Err(error),
                    Err(_) => {}
                }
            }
            if there.is_empty() {
                bail!(
                    "Debian's archive, as this system's apt knows it, has none of the kernels \
                     {}: is this Debian 12 or 13 on amd64? Look into /etc/apt/sources.list",
                    series.join(", ")
                );
            }
            Ok(there)
        })
    }

    fn newest_in_lists(&self, series: &str) -> anyhow::Result<KernelPackages> {
        self.newest_that(|release| release.is_in(series)).with_context(|| {
            format!(
                "Debian's archive, as this system's apt knows it, has no \
                 linux-image-{series}.*-amd64 with headers of the same version: look into \
                 /etc/apt/sources.list, or try another --kernel"
            )
        })
    }

    fn newest_that(&self, wanted: impl Fn(&Release) -> bool) -> anyhow::Result<KernelPackages> {
        let mut releases: Vec<Release> = self
            .package_names("linux-image-")?
            .iter()
            .filter_map(|name| Release::of_image_package(name))
            .filter(|release| wanted(release))
            .collect();
        releases.sort();
        for release in releases.iter().rev().take(CANDIDATES_MAX) {
            let mut show = self.command("apt-cache");
            show.args(["show", "--no-all-versions"]);
            show.args([format!("linux-image-{release}"), format!("linux-headers-{release}")]);
            // Other records still name a release that has left the archive; then the query fails.
            let Ok(records) = self.supervisor.run(show, QUERY_LIMIT) else { continue };
            let records = String::from_utf8_lossy(&records);
            if let Some(packages) = packages_of(&release.to_string(), &records) {
                return Ok(packages);
            }
        }
        bail!("none of {} releases has image and headers of one version", releases.len())
    }

    /// The newest release of all series.
    pub(crate) fn newest_of_all(&mut self) -> anyhow::Result<KernelPackages> {
        self.with_any_lists(|apt| apt.newest_that(|_| true)).context("no kernel there")
    }

    /// Fetches packages and all their dependencies into `directory` and unpacks them there, as a file
    /// system whose programs run. No package's scripts are run.
    pub(crate) fn unpack_with_needs(
        &mut self,
        what: &str,
        packages: &[String],
        directory: &Path,
    ) -> anyhow::Result<()> {
        require_program("dpkg-deb", "dpkg")?;
        let debs = tempfile::tempdir_in(self.cache.root())?;
        fs::create_dir(debs.path().join("partial"))?;
        let mut download = self.command("apt-get");
        // Nothing is installed, so apt need not lock its database or check for free space.
        download.args(["-q", "-y", "-o", "Debug::NoLocking=1"]);
        download.args(["--no-install-recommends", "--download-only"]);
        download.arg("-o").arg(format!("Dir::Cache::Archives={}/", debs.path().display()));
        download.arg("install").args(packages);
        self.supervisor.run_shown(&format!("downloading {what}"), download, DOWNLOAD_LIMIT)?;
        self.unpack_all(what, debs.path(), directory)
    }

    fn unpack_all(&self, what: &str, debs: &Path, directory: &Path) -> anyhow::Result<()> {
        let _progress = Progress::start(&format!("unpacking {what}"));
        let is_deb = |path: &PathBuf| path.extension().is_some_and(|ext| ext == "deb");
        // base-files contains /bin and the like as links into /usr, so it must be unpacked before any
        // file in these directories.
        let is_base = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("base-files_"))
        };
        let mut debs: Vec<PathBuf> = directory_files(debs)?.into_iter().filter(is_deb).collect();
        debs.sort_by_key(|path| !is_base(path));
        for deb in debs {
            let mut unpack = command("dpkg-deb");
            unpack.arg("-x").arg(&deb).arg(directory);
            self.supervisor.run(unpack, UNPACK_LIMIT)?;
        }
        Ok(())
    }

    /// Fetches packages into `directory` and unpacks them there: `directory/usr/src/…`.
    pub(crate) fn unpack(
        &mut self,
        what: &str,
        packages: &[String],
        directory: &Path,
    ) -> anyhow::Result<()> {
        require_program("dpkg-deb", "dpkg")?;
        let debs = tempfile::tempdir_in(directory)?;
        self.with_any_lists(|apt| {
            let mut download = apt.command("apt-get");
            download.args(["-q", "download"]).args(packages).current_dir(debs.path());
            apt.supervisor
                .run_shown(&format!("downloading {what}"), download, DOWNLOAD_LIMIT)
                .context("has it left the archive? --refresh takes the newest kernel")
        })?;
        for deb in directory_files(debs.path())? {
            let mut unpack = command("dpkg-deb");
            unpack.arg("-x").arg(&deb).arg(directory);
            let what = format!("unpacking {}", deb.file_name().unwrap_or_default().display());
            self.supervisor.run_shown(&what, unpack, UNPACK_LIMIT)?;
        }
        Ok(())
    }
}

fn directory_files(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<_, _>>()?;
    files.sort();
    Ok(files)
}

/// Reads the output of `apt-cache show` for an image and its headers. `None` unless both are there in
/// the same version.
fn packages_of(release: &str, records: &str) -> Option<KernelPackages> {
    let records: Vec<HashMap<&str, &str>> = records
        .split("\n\n")
        .map(|record| record.lines().filter_map(|line| line.split_once(": ")).collect())
        .collect();
    let named = |name: String| records.iter().find(|record| record.get("Package") == Some(&&*name));
    let image = named(format!("linux-image-{release}"))?;
    let headers = named(format!("linux-headers-{release}"))?;
    if image.get("Version")? != headers.get("Version")? {
        return None;
    }
    let mut packages = vec![format!("linux-headers-{release}")];
    packages.extend(needs(headers, &["linux-headers-", "linux-kbuild-"])?);
    let parts = ["binary", "modules", "base"].map(|part| format!("linux-{part}-{release}"));
    Some(KernelPackages {
        release: release.to_owned(),
        image: format!("linux-image-{release}"),
        parts: needs(image, &parts).unwrap_or_default(),
        headers: packages,
    })
}

/// The packages that a record depends on and whose names have one of these beginnings.
fn needs(record: &HashMap<&str, &str>, beginnings: &[impl AsRef<str>]) -> Option<Vec<String>> {
    let names = record
        .get("Depends")?
        .split(',')
        .filter_map(|dependency| dependency.split_whitespace().next())
        .filter(|name| beginnings.iter().any(|beginning| name.starts_with(beginning.as_ref())));
    Some(names.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECORDS: &str = "\
Package: linux-image-6.12.117+deb12-amd64
Version: 6.12.117-1~deb12u1
Depends: kmod, linux-base (>= 4.3~)

Package: linux-headers-6.12.117+deb12-amd64
Version: 6.12.117-1~deb12u1
Depends: linux-base (>= 4.12~), linux-headers-6.12.117+deb12-common (= 6.12.117-1~deb12u1), linux-image-6.12.117+deb12-amd64 (= 6.12.117-1~deb12u1) | linux-image-6.12.117+deb12-amd64-unsigned, linux-kbuild-6.12.117+deb12, gcc-12
";

    #[test]
    fn the_headers_bring_their_own_needs() {
        let packages = packages_of("6.12.117+deb12-amd64", RECORDS).unwrap();
        assert_eq!(packages.image, "linux-image-6.12.117+deb12-amd64");
        assert_eq!(
            packages.headers,
            [
                "linux-headers-6.12.117+deb12-amd64",
                "linux-headers-6.12.117+deb12-common",
                "linux-kbuild-6.12.117+deb12",
            ]
        );
    }

    #[test]
    fn an_image_in_parts_names_them() {
        let whole = packages_of("6.12.117+deb12-amd64", RECORDS).unwrap();
        assert_eq!(whole.parts, [""; 0]);
        let records = "\
Package: linux-image-7.3.4+deb13-amd64
Version: 7.3.4-1
Depends: dracut | initramfs-tools, linux-base (>= 4.3~), linux-base-7.3.4+deb13-amd64 (= 7.3.4-1), \
linux-binary-7.3.4+deb13-amd64 (= 7.3.4-1), linux-modules-7.3.4+deb13-amd64 (= 7.3.4-1)

Package: linux-headers-7.3.4+deb13-amd64
Version: 7.3.4-1
Depends: gcc-14-for-host, linux-kbuild-7.3.4+deb13
";
        assert_eq!(
            packages_of("7.3.4+deb13-amd64", records).unwrap().parts,
            [
                "linux-base-7.3.4+deb13-amd64",
                "linux-binary-7.3.4+deb13-amd64",
                "linux-modules-7.3.4+deb13-amd64",
            ]
        );
    }

    #[test]
    fn headers_of_another_version_do_not_match() {
        let newer = RECORDS.replacen("6.12.117-1~deb12u1", "6.12.117-2", 1);
        assert_eq!(packages_of("6.12.117+deb12-amd64", &newer), None);
        let only_image = RECORDS.split("\n\n").next().unwrap();
        assert_eq!(packages_of("6.12.117+deb12-amd64", only_image), None);
    }
}
