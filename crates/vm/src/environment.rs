//! Selects the part of the caller's environment that the command in the guest gets: variables that it
//! needs to find and configure programs, but not those that describe the host's session.

use std::ffi::{OsStr, OsString};

const NAMES: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "LANG",
    "LANGUAGE",
    "TZ",
    "NO_COLOR",
    "CLICOLOR",
    "CLICOLOR_FORCE",
    "LD_LIBRARY_PATH",
    "CI",
];
const PREFIXES: &[&str] =
    &["LC_", "RUST_", "CARGO_", "POLLUX_", "DEVPOLL_", "INSTA_", "PROPTEST_", "ASAN_"];

/// The variable with the speed of a deterministic guest, in millions of instructions per second.
pub(crate) const MIPS: &str = "POLLUX_VM_MIPS";

/// The PATH of the guest's programs if the caller has none.
pub(crate) const DEFAULT_PATH: &str =
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The guest's environment as `NAME=VALUE`: the caller's, filtered; ours; then `extra`, which takes
/// precedence.
pub(crate) fn for_guest(
    caller: impl Iterator<Item = (OsString, OsString)>,
    release: &str,
    extra: &[OsString],
) -> Vec<OsString> {
    let mut variables: Vec<(OsString, OsString)> =
        caller.filter(|(name, _)| is_wanted(name)).collect();
    if !variables.iter().any(|(name, _)| name == "PATH") {
        variables.push(("PATH".into(), DEFAULT_PATH.into()));
    }
    // Temporary files are stored in the guest's memory: 9p is slow, and does not support O_TMPFILE.
    variables.push(("TMPDIR".into(), "/dev/shm".into()));
    variables.push(("POLLUX_VM".into(), release.into()));
    let mut all: Vec<OsString> = Vec::new();
    let given = variables.into_iter().map(|(name, value)| joined(&name, &value));
    for variable in given.chain(extra.iter().cloned()) {
        let name = name_of(&variable).to_owned();
        all.retain(|other| name_of(other) != name);
        all.push(variable);
    }
    all
}

fn joined(name: &OsStr, value: &OsStr) -> OsString {
    let mut joined = name.to_owned();
    joined.push("=");
    joined.push(value);
    joined
}

/// The bytes before the first `=`.
pub(crate) fn name_of(variable: &OsStr) -> &[u8] {
    let bytes = variable.as_encoded_bytes();
    bytes.split(|&byte| byte == b'=').next().unwrap_or(bytes)
}

fn is_wanted(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_matters_is_kept_and_the_session_is_not() {
        let caller = [
            ("PATH", "/bin"),
            ("RUST_LOG", "debug"),
            ("POLLUX_X", "a=b\nc"),
            ("SSH_AUTH_SOCK", "/run/x"),
            ("TMPDIR", "/host"),
        ];
        let caller = caller.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        let environment = for_guest(caller, "6.1", &["RUST_LOG=info".into(), "NEW=1".into()]);
        assert_eq!(
            environment,
            [
                "PATH=/bin",
                "POLLUX_X=a=b\nc",
                "TMPDIR=/dev/shm",
                "POLLUX_VM=6.1",
                "RUST_LOG=info",
                "NEW=1"
            ]
        );
    }

    #[test]
    fn there_is_always_a_path() {
        let environment = for_guest(std::iter::empty(), "6.1", &[]);
        assert!(environment[0].to_str().unwrap().starts_with("PATH=/usr/local/sbin:"));
    }
}
