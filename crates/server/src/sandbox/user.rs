//! The user that a server becomes after it has opened its ports and logs.

use anyhow::{Context, ensure};
use nix::unistd::{
    Gid, Group, Uid, User, geteuid, getgrouplist, getresgid, getresuid, setgroups, setresgid,
    setresuid,
};
use std::{ffi::CString, fmt, str::FromStr};

/// A user, and a group to use instead of the user's own: `NAME[:GROUP]`. Either may be a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserSpec {
    user: String,
    group: Option<String>,
}

impl FromStr for UserSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        if user.is_empty() || group.is_some_and(|group| group.is_empty() || group.contains(':')) {
            return Err("wanted NAME or NAME:GROUP, such as www-data".into());
        }
        Ok(Self { user: user.to_owned(), group: group.map(str::to_owned) })
    }
}

impl fmt::Display for UserSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.user)?;
        self.group.iter().try_for_each(|group| write!(f, ":{group}"))
    }
}

impl UserSpec {
    /// Looks the names up in the user and group databases (passwd(5), group(5)). A user given by number needs no
    /// entry there; without an entry, the group must be given, too.
    ///
    /// # Errors
    /// The user or the group does not exist, or the user is root, which would give up nothing.
    pub(super) fn find(&self) -> anyhow::Result<Identity> {
        let entry = match self.user.parse() {
            Ok(number) => User::from_uid(Uid::from_raw(number)),
            Err(_) => User::from_name(&self.user),
        };
        let entry = entry.with_context(|| format!("--user {self}: the user database"))?;
        let uid = match (&entry, self.user.parse()) {
            (Some(entry), _) => entry.uid,
            (None, Ok(number)) => Uid::from_raw(number),
            (None, Err(_)) => anyhow::bail!(
                "--user {self}: there is no user {} here: name another, or create it \
                 (adduser --system --group {})",
                self.user,
                self.user
            ),
        };
        ensure!(
            !uid.is_root(),
            "--user {self}: this is root, who would keep root's rights: name another user, such as \
             www-data, or leave --user out"
        );
        let gid = match (&self.group, &entry) {
            (Some(group), _) => self.find_group(group)?,
            (None, Some(entry)) => entry.gid,
            (None, None) => anyhow::bail!(
                "--user {self}: user {uid} has no entry in the user database, so its group is \
                 unknown: use --user {uid}:GROUP"
            ),
        };
        let groups = match &entry {
            // With an explicit group, the process gets no supplementary groups.
            Some(entry) if self.group.is_none() => {
                getgrouplist(&CString::new(entry.name.clone())?, gid)
                    .with_context(|| format!("--user {self}: the groups of this user"))?
            }
            _ => vec![gid],
        };
        let name = entry.map_or_else(|| uid.to_string(), |entry| entry.name);
        Ok(Identity { name, uid, gid, groups })
    }

    fn find_group(&self, group: &str) -> anyhow::Result<Gid> {
        if let Ok(number) = group.parse() {
            return Ok(Gid::from_raw(number));
        }
        let found = Group::from_name(group)
            .with_context(|| format!("--user {self}: the group database"))?;
        Ok(found.with_context(|| format!("--user {self}: there is no group {group} here"))?.gid)
    }
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
    fn a_user_may_have_a_group_and_shows_as_it_was_written() {
        for text in ["www-data", "www-data:adm", "33:4"] {
            assert_eq!(spec(text).to_string(), text);
        }
        for text in ["", ":", "a:", ":b", "a:b:c"] {
            assert!(text.parse::<UserSpec>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn names_and_numbers_are_found() {
        let nobody = spec("nobody").find().unwrap();
        assert_eq!(nobody.name(), "nobody");
        assert_eq!(spec(&nobody.uid().to_string()).find().unwrap().name(), "nobody");
        assert_eq!(spec("nobody:0").find().unwrap().gid().as_raw(), 0);
        let stranger = spec("54321:12345").find().unwrap();
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
            let message = spec(text).find().unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
    }
}
