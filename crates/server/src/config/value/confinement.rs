//! The user of a server, and its sandbox.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// What happens to a system call that the server should not make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SandboxMode {
    /// What the kernel offers is in force, as with `log`, and what it lacks is named. A configuration
    /// file leaves room for a reload: see [`Domain::leave_room`](crate::sandbox::Domain::leave_room).
    #[default]
    Auto,
    /// There is no sandbox.
    Off,
    /// The kernel logs it. Landlock is in force.
    Log,
    /// The kernel kills the process. Landlock is in force.
    Kill,
}

impl fmt::Display for SandboxMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Off => "off",
            Self::Log => "log",
            Self::Kill => "kill",
        })
    }
}

/// A user, and a group to use instead of the user's own: `NAME[:GROUP]`. Either may be a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserSpec {
    pub(crate) user: String,
    pub(crate) group: Option<String>,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_may_have_a_group_and_shows_as_it_was_written() {
        for text in ["www-data", "www-data:adm", "33:4"] {
            assert_eq!(text.parse::<UserSpec>().unwrap().to_string(), text);
        }
        for text in ["", ":", "a:", ":b", "a:b:c"] {
            assert!(text.parse::<UserSpec>().is_err(), "{text:?}");
        }
    }
}
