//! Finds programs.

use rustix::fs::{Access, access};
use std::{
    env,
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
};

/// Debian's directories to search after PATH: servers are in the administrator's directories, which are
/// not in a user's PATH, and some processes have no PATH.
const FURTHER: [&str; 4] = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"];

/// Finds the program of this name: the first executable file, in PATH or among the administrator's
/// programs.
pub fn find_program(name: &str) -> Option<PathBuf> {
    find_in(env::var_os("PATH").as_deref(), name)
}

/// As [`find_program`], for a program without which the caller cannot go on.
///
/// # Errors
/// `NotFound`, with a message that names the Debian package of the program.
pub fn require_program(name: &str, package: &str) -> io::Result<PathBuf> {
    find_program(name).ok_or_else(|| {
        let message = format!(
            "`{name}` is not installed; install it: apt-get install --no-install-recommends {package}"
        );
        io::Error::new(io::ErrorKind::NotFound, message)
    })
}

fn find_in(path: Option<&OsStr>, name: &str) -> Option<PathBuf> {
    let directories = path.into_iter().flat_map(env::split_paths);
    let mut files =
        directories.chain(FURTHER.map(PathBuf::from)).map(|directory| directory.join(name));
    files.find(|file| is_program(file))
}

fn is_program(file: &Path) -> bool {
    file.is_file() && access(file, Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

    /// The laboratory once accepted a file that is not executable.
    #[test]
    fn the_first_that_may_be_executed_is_found() {
        let root = env::temp_dir().join(format!("pollux-sys-program-{}", std::process::id()));
        let directories = ["a", "b", "c"].map(|name| root.join(name));
        for (directory, mode) in directories.iter().zip([0o644, 0o755, 0o755]) {
            fs::create_dir_all(directory).unwrap();
            fs::write(directory.join("true"), "").unwrap();
            fs::set_permissions(directory.join("true"), PermissionsExt::from_mode(mode)).unwrap();
        }
        // A directory may have the execute permission, but is not a program.
        fs::create_dir(directories[0].join("directory")).unwrap();
        let path = env::join_paths(&directories).unwrap();
        let found = |path, name| find_in(path, name);
        let (first, directory) = (found(Some(&*path), "true"), found(Some(&path), "directory"));
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(first, Some(directories[1].join("true")));
        assert_eq!(directory, None);
        // Without PATH the current directory is not searched.
        assert_eq!(found(None, "Cargo.toml"), None);
        assert!(found(None, "sh").is_some_and(|sh| sh.is_absolute()));
    }

    #[test]
    fn a_missing_program_names_its_package() {
        let error = require_program("no-such-program-here", "the-package").unwrap_err();
        let message = error.to_string();
        assert!(message.contains("`no-such-program-here`"), "{message}");
        assert!(message.ends_with("install --no-install-recommends the-package"), "{message}");
    }
}
