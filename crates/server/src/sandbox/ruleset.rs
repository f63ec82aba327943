//! Landlock (landlock(7)): the kernel denies this process, and the processes that it starts, access
//! to files and TCP ports that are not in its [`Domain`].

use super::domain::{Access, Domain};
use anyhow::{Context, anyhow, bail, ensure};
use landlock::{
    ABI, Access as _, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, LandlockStatus,
    NetPort, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetStatus, Scope,
};
use std::{
    collections::BTreeSet,
    env, fs, io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::Path,
};

/// The last ABI whose rights to files are used. Later ABIs concern UNIX sockets, whose files have
/// modes.
const FILES: ABI = ABI::V5;
/// The first ABI with rights to TCP ports.
pub(super) const PORTS: u32 = 4;
/// The first ABI with scopes for signals and abstract UNIX sockets.
pub(super) const SCOPES: u32 = 6;
/// The parts that only later ABIs limit: the ABI, and the version of Linux that has it.
const LATER: [(&str, u32, &str); 2] = [("TCP ports", PORTS, "6.7"), ("signals", SCOPES, "6.12")];

/// Returns what a kernel with this ABI does not limit, with the reasons.
pub(super) fn missing(abi: u32) -> impl Iterator<Item = (&'static str, anyhow::Error)> {
    LATER.into_iter().filter(move |(_, needed, _)| abi < *needed).map(
        move |(part, needed, linux)| {
            let reason =
                anyhow!("Landlock has ABI {abi} here, and {part} need {needed} (Linux {linux})");
            (part, reason)
        },
    )
}

/// The rights that a process has in its sandbox.
#[derive(Debug)]
pub(super) struct ProcessRights {
    /// The ABI of the kernel.
    pub(super) abi: u32,
    /// The device and inode number of each file, with the rights to it and to the files below it.
    files: Vec<(u64, u64, BitFlags<AccessFs>)>,
    /// The ports that it may connect to; `None` allows all.
    connect: Option<BTreeSet<u16>>,
}

/// Confines this thread and all threads and processes that it starts from now on.
///
/// # Errors
/// The kernel has no Landlock, or refuses the rules.
pub(super) fn enter(domain: &Domain) -> anyhow::Result<ProcessRights> {
    let mut scopes = BitFlags::from(Scope::Signal);
    if !notifies_abstractly() {
        scopes |= Scope::AbstractUnixSocket;
    }
    let mut ports = BitFlags::from(AccessNet::BindTcp);
    if !domain.connects_anywhere {
        ports |= AccessNet::ConnectTcp;
    }
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(FILES))?
        .handle_access(ports)?
        .scope(scopes)?
        .create()?;
    let mut files = Vec::new();
    for (path, access) in domain.system.iter().chain(&domain.paths) {
        // A file that does not exist, or that is hidden from this user, cannot be used in any case.
        let (Ok(rule_path), Ok(metadata)) = (PathFd::new(path), fs::metadata(path)) else {
            continue;
        };
        let rights = rights(*access, &metadata);
        ruleset = ruleset
            .add_rule(PathBeneath::new(rule_path, rights))
            .with_context(|| path.display().to_string())?;
        files.push((metadata.dev(), metadata.ino(), rights));
    }
    for port in &domain.bind {
        ruleset = ruleset.add_rule(NetPort::new(*port, AccessNet::BindTcp))?;
    }
    let connect = (!domain.connects_anywhere).then(|| domain.connect.clone());
    for port in connect.iter().flatten() {
        ruleset = ruleset.add_rule(NetPort::new(*port, AccessNet::ConnectTcp))?;
    }
    let status = ruleset.restrict_self()?;
    let abi = match status.landlock {
        LandlockStatus::Available { effective_abi, .. } => effective_abi as u32,
        LandlockStatus::NotEnabled => bail!(
            "Landlock is switched off in this kernel: add landlock to lsm= on its command line"
        ),
        LandlockStatus::NotImplemented => bail!(why_not(pollux_sys::landlock_abi().err())),
    };
    ensure!(status.ruleset != RulesetStatus::NotEnforced, "the kernel does not enforce Landlock");
    Ok(ProcessRights { abi, files, connect })
}

/// Returns why there is no Landlock, if the query for its ABI fails with this error.
fn why_not(error: Option<io::Error>) -> &'static str {
    if error.is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
        "a filter of system calls refuses Landlock: allow landlock_create_ruleset, landlock_add_rule, \
         landlock_restrict_self and seccomp (SystemCallFilter= in the unit, or the profile of the container)"
    } else {
        "this kernel has no Landlock (Linux 5.13, CONFIG_SECURITY_LANDLOCK)"
    }
}

impl ProcessRights {
    /// Checks that the process can reach everything that `domain` needs.
    ///
    /// # Errors
    /// The message names the file or port that cannot be reached.
    pub(super) fn check(&self, domain: &Domain) -> anyhow::Result<()> {
        const REMEDY: &str = "the sandbox of a running server cannot be widened: `pollux ctl upgrade` (or a \
                              restart) uses the new configuration";
        for (path, access) in &domain.paths {
            // A missing file is reported by the code that opens it.
            let (Ok(real), Ok(metadata)) = (fs::canonicalize(path), fs::metadata(path)) else {
                continue;
            };
            let granted = self.rights_to(&real);
            ensure!(
                granted.contains(rights(*access, &metadata)),
                "{}: the server was started without access to it; {REMEDY}",
                path.display()
            );
        }
        if self.abi >= PORTS
            && let Some(connect) = &self.connect
            && let Some(port) = domain.connect.difference(connect).next()
        {
            bail!("port {port}: the server was started without an origin there; {REMEDY}");
        }
        Ok(())
    }

    /// Returns the rights to a file: those to the file itself and those to the directories above
    /// it.
    fn rights_to(&self, real: &Path) -> BitFlags<AccessFs> {
        let mut all = BitFlags::EMPTY;
        for ancestor in real.ancestors() {
            let Ok(metadata) = fs::metadata(ancestor) else { continue };
            let is_it = |(device, number, _): &&(u64, u64, _)| {
                (*device, *number) == (metadata.dev(), metadata.ino())
            };
            for (_, _, rights) in self.files.iter().filter(is_it) {
                all |= *rights;
            }
        }
        all
    }
}

/// Returns the rights that an access needs. For a file that is not a directory, these are only the
/// rights that apply to files.
fn rights(access: Access, metadata: &fs::Metadata) -> BitFlags<AccessFs> {
    let rights = access.rights();
    if metadata.is_dir() { rights } else { rights & AccessFs::from_file(FILES) }
}

/// Returns whether the service manager is notified at an abstract socket (sd_notify(3)), which is
/// outside of the sandbox.
fn notifies_abstractly() -> bool {
    env::var_os("NOTIFY_SOCKET").is_some_and(|socket| socket.as_bytes().starts_with(b"@"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: under a unit's filter of system calls, the message said that the kernel has no Landlock.
    #[test]
    fn a_filter_of_system_calls_is_named() {
        let reason = |number| why_not(Some(io::Error::from_raw_os_error(number)));
        assert!(reason(libc::EPERM).contains("SystemCallFilter="));
        assert!(reason(libc::ENOSYS).contains("Linux 5.13"));
        assert!(why_not(None).contains("Linux 5.13"));
    }
}
