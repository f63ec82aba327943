//! A sealed guest. All that it needs is in its memory, and it does not use the host while the command
//! runs, so that two runs are the same, instruction by instruction.
//!
//! Access to the host's file tree would cost more than time: while the guest waits for a file, its
//! clock leaps by the time that the host took, and every later timer has another phase.

use crate::{
    environment,
    initramfs::Initramfs,
    process::{Supervisor, command},
};
use anyhow::{Context, ensure};
use pollux_sys::require_program;
use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::Read,
    path::{Component, Path, PathBuf},
    str::FromStr,
    time::Duration,
};

const LIMIT: Duration = Duration::from_secs(120);

/// The environment of a sealed guest's command: the same on every machine, for every user.
pub(crate) const ENVIRONMENT: [(&str, &str); 3] =
    [("PATH", environment::DEFAULT_PATH), ("HOME", "/"), ("LANG", "C.UTF-8")];

/// A file of the host that a sealed guest has in its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestFile {
    /// Its path on the host.
    pub from: PathBuf,
    /// Its path in the guest, absolute.
    pub guest_path: PathBuf,
}

impl FromStr for GuestFile {
    type Err = String;

    /// `FILE` or `FILE:GUEST_PATH`.
    fn from_str(text: &str) -> Result<GuestFile, String> {
        let (from, guest_path) = text.split_once(':').unwrap_or((text, text));
        let from = std::path::absolute(from).map_err(|error| format!("{text:?}: {error}"))?;
        let guest_path = if text.contains(':') { PathBuf::from(guest_path) } else { from.clone() };
        let plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
        if !guest_path.is_absolute() || !guest_path.components().all(plain) {
            return Err(format!("{text:?}: the guest's path is to be absolute, without . and .."));
        }
        Ok(GuestFile { from, guest_path })
    }
}

/// The files of a sealed guest, and the directory that is copied out of it.
#[derive(Clone, Debug, Default)]
pub struct SealedGuest {
    /// The files. Shared libraries of programs are added to them.
    pub files: Vec<GuestFile>,
    /// A directory of the guest, and the host's directory to which its contents are copied after the
    /// command has ended.
    pub fetch: Option<(PathBuf, PathBuf)>,
    /// A file of the host that gets what the command writes to the I/O port [`REPORT_PORT`] (byte by
    /// byte, through /dev/port) while it runs. The processor goes on in the same instant, so the guest
    /// still repeats exactly. The file is deleted if the guest has ended as it should, or has written nothing.
    pub report: Option<PathBuf>,
}

/// The I/O port whose bytes go to [`SealedGuest::report`]: that of QEMU's debug console.
pub const REPORT_PORT: u16 = 0xe9;

impl SealedGuest {
    /// Puts the files into the guest's memory.
    pub(crate) fn add_to(
        &self,
        archive: &mut Initramfs,
        supervisor: &Supervisor,
    ) -> anyhow::Result<()> {
        let mut files: Vec<(PathBuf, PathBuf)> = Vec::new();
        let mut add = |from: PathBuf, guest_path: PathBuf| {
            if !files.iter().any(|(_, other)| *other == guest_path) {
                files.push((from, guest_path));
            }
        };
        for GuestFile { from, guest_path } in &self.files {
            for library in libraries(from, supervisor)? {
                add(library.clone(), library);
            }
            add(from.clone(), guest_path.clone());
        }
        let mut directories = BTreeSet::new();
        for (_, guest_path) in &files {
            directories.extend(guest_path.ancestors().skip(1).map(Path::to_owned));
        }
        // A directory must precede its contents in the archive; the order of the paths ensures that.
        for directory in directories {
            let name = inside(&directory)?;
            if !name.is_empty() {
                archive.directory(&name)?;
            }
        }
        for (from, guest_path) in &files {
            archive.program(&inside(guest_path)?, &stripped(from, supervisor)?.path)?;
        }
        Ok(())
    }
}

/// A path's name in the archive, without the leading slash.
fn inside(path: &Path) -> anyhow::Result<String> {
    let text = path.to_str().with_context(|| format!("{}: not UTF-8", path.display()))?;
    Ok(text.trim_start_matches('/').to_owned())
}

fn is_elf(file: &Path) -> anyhow::Result<bool> {
    let mut magic = [0; 4];
    let mut open = File::open(file).with_context(|| format!("read {}", file.display()))?;
    Ok(open.read_exact(&mut magic).is_ok() && magic == *b"\x7fELF")
}

/// The shared libraries that a program needs, including the loader; none if the file is not a program.
fn libraries(program: &Path, supervisor: &Supervisor) -> anyhow::Result<Vec<PathBuf>> {
    if !is_elf(program)? {
        return Ok(Vec::new());
    }
    let mut list = command(require_program("ldd", "libc-bin")?);
    list.arg(program);
    let text = match supervisor.run(list, LIMIT) {
        Ok(text) => text,
        // ldd(1) prints this for a static program, with a status of 1.
        Err(error) if format!("{error}").contains("not a dynamic executable") => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(error),
    };
    let text = String::from_utf8_lossy(&text);
    ensure!(!text.contains("not found"), "{} lacks a library here:\n{text}", program.display());
    Ok(paths(&text))
}

/// The paths in the output of ldd(1): `NAME => PATH (ADDRESS)`, and the loader's `PATH (ADDRESS)`.
fn paths(text: &str) -> Vec<PathBuf> {
    let lines = text.lines().filter_map(|line| line.trim().rsplit_once(" ("));
    let paths = lines.map(|(line, _)| line.rsplit_once(" => ").map_or(line, |(_, path)| path));
    paths.filter(|path| path.starts_with('/')).map(PathBuf::from).collect()
}

/// A file to be copied, and the temporary directory that it is in, if any.
struct StrippedFile {
    path: PathBuf,
    _directory: Option<tempfile::TempDir>,
}

/// A copy of a program without its debugging information; any other file as it is. Debugging
/// information is most of a debug build, and the guest would take seconds to unpack it.
fn stripped(file: &Path, supervisor: &Supervisor) -> anyhow::Result<StrippedFile> {
    if !is_elf(file)? {
        return Ok(StrippedFile { path: file.to_owned(), _directory: None });
    }
    let directory = tempfile::tempdir().context("a directory for a stripped program")?;
    let path = directory.path().join("stripped");
    // strip(1) is run on a copy, because it may not be allowed to write the owner's file, which is only
    // read.
    fs::copy(file, &path).with_context(|| format!("copy {}", file.display()))?;
    let mut strip = command(require_program("strip", "binutils")?);
    strip.arg("--strip-debug").arg(&path);
    supervisor.run(strip, LIMIT).with_context(|| format!("strip {}", file.display()))?;
    Ok(StrippedFile { path, _directory: Some(directory) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ldd_prints_is_read() {
        let text = "\tlinux-vdso.so.1 (0x00007ffc)\n\
            \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n\tstatically linked\n";
        let expected = ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(paths(text), expected.map(PathBuf::from));
    }

    #[test]
    fn a_program_has_its_libraries_and_a_text_none() {
        let supervisor = Supervisor::new().unwrap();
        let found = libraries(&std::env::current_exe().unwrap(), &supervisor).unwrap();
        assert!(found.iter().any(|path| path.ends_with("libc.so.6")), "{found:?}");
        let directory = tempfile::tempdir().unwrap();
        let text = directory.path().join("text");
        fs::write(&text, "a").unwrap();
        assert_eq!(libraries(&text, &supervisor).unwrap(), Vec::<PathBuf>::new());
    }

    #[test]
    fn a_place_is_absolute() {
        let files: GuestFile = "/a/b:/c".parse().unwrap();
        assert_eq!(files, GuestFile { from: "/a/b".into(), guest_path: "/c".into() });
        let same: GuestFile = "/a/b".parse().unwrap();
        assert_eq!(same.guest_path, Path::new("/a/b"));
        for wrong in ["/a:b", "/a:/b/../c", "/a:"] {
            assert!(wrong.parse::<GuestFile>().is_err(), "{wrong}");
        }
    }
}
