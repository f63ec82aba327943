//! The user that a server becomes after it has opened its ports and logs.

use crate::config::UserSpec;
use anyhow::{Context, ensure};
use nix::unistd::{
    Gid, Group, Uid, User, geteuid, getgrouplist, getresgid, getresuid, setgroups, setresgid,
    setresuid,
};
use std::ffi::CString;

/// Looks the names up in the user and group databases (passwd(5), group(5)). A user given by number needs no
/// entry there; without an entry, the group must be given, too.
///
/// # Errors
/// The user or the group does not exist, or the user is root, which would give up nothing.
pub(super) fn find(spec: &UserSpec) -> anyhow::Result<Identity> {
    let entry = match spec.user.parse() {
        Ok(number) => User::from_uid(Uid::from_raw(number)),
        Err(_) => User::from_name(&spec.user),
    };
    let entry = entry.with_context(|| format!("--user {spec}: the user database"))?;
    let uid = match (&entry, spec.user.parse()) {
        (Some(entry), _) => entry.uid,
        (None, Ok(number)) => Uid::from_raw(number),
        (None, Err(_)) => anyhow::bail!(
            "--user {spec}: there is no user {} here: name another, or create it \
             (adduser --system --group {})",
            spec.user,
            spec.user
        ),
    };
    ensure!(
        !uid.is_root(),
        "--user {spec}: this is root, who would keep root's rights: name another user, such as \
         www-data, or leave --user out"
    );
    let gid = match (&spec.group, &entry) {
        (Some(group), _) => find_group(spec, group)?,
        (None, Some(entry)) => entry.gid,
        (None, None) => anyhow::bail!(
            "--user {spec}: user {uid} has no entry in the user database, so its group is \
             unknown: use --user {uid}:GROUP"
        ),
    };
    let groups = match &entry {
        // With an explicit group, the process gets no supplementary groups.
        Some(entry) if spec.group.is_none() => {
            getgrouplist(&CString::new(entry.name.clone())?, gid)
                .with_context(|| format!("--user {spec}: the groups of this user"))?
        }
        _ => vec![gid],
    };
    let name = entry.map_or_else(|| uid.to_string(), |entry| entry.name);
    Ok(Identity { name, uid, gid, groups })
}

fn find_group(spec: &UserSpec, group: &str) -> anyhow::Result<Gid> {
    if let Ok(number) = group.parse() {
        return Ok(Gid::from_raw(number));
    }
    let found =
        Group::from_name(group).with_context(|| format!("--user {spec}: the group database"))?;
    Ok(found.with_context(|| format!("--user {spec}: there is no group {group} here"))?.gid)
}

/// A user with its groups, as numbers.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    name: String,
    uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

/// Returns whether this process has root's user number.
pub(super) fn is_root() -> bool {
    geteuid().is_root()
}

impl Identity {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn uid(&self) -> Uid {
        self.uid
    }

    pub(super) fn gid(&self) -> Gid {
        self.gid
    }

    /// Makes this process run as this user, permanently: the real, the effective and the saved IDs become the same, and
    /// root's capabilities are lost. The functions of the C library change all threads; the system calls would change
    /// only one. A process that already runs as this user (the successor of such a server) does not change.
    ///
    /// # Errors
    /// EPERM for a process that is neither root nor this user.
    pub(super) fn assume(&self) -> anyhow::Result<()> {
        let name = &self.name;
        if !is_root() {
            ensure!(
                geteuid() == self.uid,
                "--user {name}: only root can become another user: start pollux as root, or leave \
                 --user out"
            );
            return Ok(());
        }
        // The user is changed last: afterwards the process may not change its groups.
        setgroups(&self.groups).with_context(|| format!("--user {name}: setgroups"))?;
        setresgid(self.gid, self.gid, self.gid)
            .with_context(|| format!("--user {name}: setresgid"))?;
        setresuid(self.uid, self.uid, self.uid)
            .with_context(|| format!("--user {name}: setresuid"))?;
        let (users, groups) = (getresuid()?, getresgid()?);
        let is_complete = [users.real, users.effective, users.saved] == [self.uid; 3]
            && [groups.real, groups.effective, groups.saved] == [self.gid; 3];
        // This never fails on Linux. It is checked because serving as root by mistake would be worse than not serving.
        ensure!(is_complete, "--user {name}: the process still has another user or group");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> UserSpec {
        text.parse().unwrap()
    }

    #[test]
    fn names_and_numbers_are_found() {
        let nobody = find(&spec("nobody")).unwrap();
        assert_eq!(nobody.name(), "nobody");
        assert_eq!(find(&spec(&nobody.uid().to_string())).unwrap().name(), "nobody");
        assert_eq!(find(&spec("nobody:0")).unwrap().gid().as_raw(), 0);
        let stranger = find(&spec("54321:12345")).unwrap();
        assert_eq!((stranger.uid().as_raw(), stranger.gid().as_raw()), (54321, 12345));
        assert_eq!(stranger.groups, [Gid::from_raw(12345)]);
    }

    #[test]
    fn errors_name_the_missing_user_or_group() {
        for (text, part) in [
            ("no-such-user", "no user no-such-user"),
            ("nobody:no-such-group", "no group no-such-group"),
            ("root", "leave --user out"),
            ("0:12345", "leave --user out"),
            ("54321", "54321:GROUP"),
        ] {
            let message = find(&spec(text)).unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
