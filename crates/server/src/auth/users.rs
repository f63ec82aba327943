//! The users of a password file (htpasswd): names and hashes.

use crate::text_file::read_text;
use anyhow::{Context, bail, ensure};
use argon2::{
    Argon2,
    password_hash::{PasswordVerifier, phc::PasswordHash},
};
use pollux_http::text::without_mark;
use sha_crypt::ShaCrypt;
use std::{fmt, path::Path};

/// The maximum size of a password file. A longer file is refused.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// The maximum number of users of one file.
const USERS_MAX: usize = 10_000;
/// The maximum length of a name, in bytes.
const NAME_BYTES_MAX: usize = 255;
/// The maximum length of a password for [`password_line`], in bytes: bcrypt reads no more.
pub const PASSWORD_BYTES_MAX: usize = 72;
/// The bcrypt cost that [`password_line`] uses: a hash takes some 200 ms.
const BCRYPT_COST: u32 = 12;
/// The maximum bcrypt cost: with a higher one, each guess of an attacker would use seconds of CPU time.
const BCRYPT_COST_MAX: u32 = 14;
/// The corresponding maximum for the rounds of SHA-crypt.
const SHA_CRYPT_ROUNDS_MAX: u32 = 500_000;
/// The corresponding maxima for Argon2: memory in KiB, and number of passes.
const ARGON2_KIB_MAX: u32 = 256 << 10;
const ARGON2_PASSES_MAX: u32 = 16;

/// The users whose passwords are accepted.
#[derive(Default)]
pub(crate) struct Users {
    /// Sorted by name.
    all: Vec<(Box<str>, Hash)>,
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} users", self.all.len())
    }
}

/// The hash of a password, in one of the forms that resist guessing.
enum Hash {
    Bcrypt(Box<str>),
    ShaCrypt(Box<str>),
    Argon2(Box<str>),
}

impl Users {
    /// Reads a file with lines of `NAME:HASH`, and returns its bytes as well. Empty lines and those that begin with
    /// `#` are skipped.
    ///
    /// # Errors
    /// The file cannot be read, or a line has no hash that is safe to use; the error names the line.
    pub(crate) fn read(path: &Path) -> anyhow::Result<(Self, String)> {
        let shown = path.display();
        let text =
            read_text(path, FILE_BYTES_MAX).with_context(|| format!("basic-auth: {shown}"))?;
        let users =
            Self::parse(&text).map_err(|error| anyhow::anyhow!("basic-auth: {shown}:{error}"))?;
        Ok((users, text))
    }

    fn parse(text: &str) -> anyhow::Result<Self> {
        let mut all: Vec<(Box<str>, Hash)> = Vec::new();
        // A byte order mark is no part of the first name.
        for (index, line) in without_mark(text).lines().enumerate() {
            let line = line.trim_end();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let number = index + 1;
            let Some((name, hash)) = line.split_once(':') else {
                bail!("{number}: expected NAME:HASH");
            };
            ensure!(
                (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.contains(char::is_control),
                "{number}: a name has 1 to {NAME_BYTES_MAX} bytes and no control characters"
            );
            // Some tools write a comment after a second colon.
            let hash = hash.split(':').next().unwrap_or_default();
            let hash = Hash::parse(hash)
                .map_err(|error| anyhow::anyhow!("{number}: user {name}: {error:#}"))?;
            all.push((name.into(), hash));
            ensure!(all.len() <= USERS_MAX, "{number}: more than {USERS_MAX} users");
        }
        ensure!(!all.is_empty(), " there is no user: add a line with `pollux password NAME`");
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        if let Some(pair) = all.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            bail!(" the user {} is there twice", pair[0].0);
        }
        Ok(Self { all })
    }

    /// Returns whether the password is that of the user. For an unknown user, the hash that `stand_in`
    /// selects is computed, so that the duration does not show which names exist. `stand_in` must be the same
    /// for the same name, because the costs of hashes may differ.
    pub(crate) fn verify(&self, name: &str, password: &[u8], stand_in: u64) -> bool {
        let found = self.all.binary_search_by(|(known, _)| (**known).cmp(name));
        let stand_in = (stand_in % self.all.len().max(1) as u64) as usize;
        let Some((_, hash)) = self.all.get(found.unwrap_or(stand_in)) else { return false };
        hash.verify(password) && found.is_ok()
    }
}

/// Returns a line of a password file, without its line end: the name, and a new bcrypt hash of the password.
///
/// # Errors
/// The name or the password is not permitted; the message names the rule.
pub fn password_line(name: &str, password: &str) -> Result<String, String> {
    if !(1..=NAME_BYTES_MAX).contains(&name.len())
        || name.contains(|c: char| c == ':' || c.is_control())
        || name.starts_with('#')
    {
        return Err(format!(
            "the name {name:?} is not one of 1 to {NAME_BYTES_MAX} bytes without colons and control characters, or \
             begins with #"
        ));
    }
    if !(1..=PASSWORD_BYTES_MAX).contains(&password.len()) || password.contains(char::is_control) {
        return Err(format!(
            "the password has no bytes, more than {PASSWORD_BYTES_MAX}, of which bcrypt reads no more, or control \
             characters"
        ));
    }
    let hash = bcrypt::hash_with_salt(password, BCRYPT_COST, rand::random());
    let hash = hash.map_err(|error| format!("bcrypt: {error}"))?;
    Ok(format!("{name}:{}", hash.format_for_version(bcrypt::Version::TwoY)))
}

impl Hash {
    fn parse(text: &str) -> anyhow::Result<Self> {
        const REMEDY: &str =
            "make a new line with `pollux password NAME` or `htpasswd -B FILE NAME` (bcrypt)";
        const SCHEMES: &str =
            "bcrypt ($2b$), SHA-crypt ($5$, $6$) and Argon2 ($argon2id$) are supported";
        match text.split('$').nth(1) {
            Some("2a" | "2b" | "2y") => {
                let parts: bcrypt::HashParts =
                    text.parse().with_context(|| format!("no hash of bcrypt; {REMEDY}"))?;
                ensure!(
                    parts.get_cost() <= BCRYPT_COST_MAX,
                    "the cost {} is above {BCRYPT_COST_MAX}: each guess would cost seconds of CPU; {REMEDY}",
                    parts.get_cost()
                );
                Ok(Self::Bcrypt(text.into()))
            }
            Some("5" | "6") => {
                let rounds = text.split('$').nth(2).and_then(|part| part.strip_prefix("rounds="));
                let rounds = rounds.map_or(Ok(5000), str::parse::<u32>);
                ensure!(
                    rounds.as_ref().is_ok_and(|rounds| *rounds <= SHA_CRYPT_ROUNDS_MAX),
                    "more than {SHA_CRYPT_ROUNDS_MAX} rounds; {REMEDY}"
                );
                let is_whole = sha_crypt::PasswordHashRef::new(text).is_ok()
                    && matches!(text.split('$').next_back(), Some(hash) if hash.len() == 43 || hash.len() == 86);
                ensure!(is_whole, "no hash of SHA-crypt; {REMEDY}");
                Ok(Self::ShaCrypt(text.into()))
            }
            Some("argon2id" | "argon2i" | "argon2d") => {
                let hash = PasswordHash::new(text)
                    .map_err(|error| anyhow::anyhow!("no hash of Argon2: {error}; {REMEDY}"))?;
                let number = |name| hash.params.get_decimal(name).unwrap_or(u32::MAX);
                ensure!(
                    number("m") <= ARGON2_KIB_MAX && number("t") <= ARGON2_PASSES_MAX,
                    "more than {ARGON2_KIB_MAX} KiB or {ARGON2_PASSES_MAX} passes; {REMEDY}"
                );
                Ok(Self::Argon2(text.into()))
            }
            Some("y" | "gy" | "7") => {
                bail!(
                    "yescrypt and scrypt, as in /etc/shadow, are not supported; {SCHEMES}; {REMEDY}"
                )
            }
            Some("apr1" | "1") => bail!("MD5 can be guessed; {REMEDY}"),
            _ if text.starts_with("{SHA}") => bail!("SHA-1 without salt can be guessed; {REMEDY}"),
            _ => bail!("a plain password, crypt(3) of DES or an unknown hash; {SCHEMES}; {REMEDY}"),
        }
    }

    fn verify(&self, password: &[u8]) -> bool {
        match self {
            Self::Bcrypt(hash) => bcrypt::verify(password, hash).unwrap_or(false),
            Self::ShaCrypt(hash) => ShaCrypt::default().verify_password(password, &**hash).is_ok(),
            Self::Argon2(hash) => PasswordHash::new(hash)
                .is_ok_and(|hash| Argon2::default().verify_password(password, &hash).is_ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The password is `secret`, hashed by libxcrypt and by `openssl passwd -5` and `-6`. The password of
    /// `argon2` is `password`, from the tests of the reference implementation.
    const LINES: &str = "bcrypt:$2y$04$abcdefghijklmnopqrstuu2r9OfJnfCsdneAXAGHnS4UpFFP8WIrW\n\
        sha256:$5$saltsalt$0IyaXrmV7.sGNS6tirgqHLqX/G.FBvgkYA.lpPdS5sA:a comment\n\
        sha512:$6$saltsalt$TVLlQcbpFVof5W3Yz4DTP6gRstiNuHwwTt6GLc1E5n0U0aDehy0S5knV8wiOQSpT0Y77vwPZN.Pq.H91p5hVO1\n\
        argon2:$argon2id$v=19$m=256,t=2,p=1$c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4\n";

    #[test]
    fn only_the_right_password_of_a_known_user_is_accepted() {
        let users = Users::parse(LINES).unwrap();
        for name in ["bcrypt", "sha256", "sha512", "argon2"] {
            let right: &[u8] = if name == "argon2" { b"password" } else { b"secret" };
            assert!(users.verify(name, right, 0), "{name}");
            for wrong in ["", "Secret", "secret ", "secre"] {
                assert!(!users.verify(name, wrong.as_bytes(), 0), "{name}: {wrong}");
            }
        }
        for stand_in in [0, 1, 2, 3, u64::MAX] {
            assert!(!users.verify("nobody", b"secret", stand_in));
            assert!(!users.verify("", b"secret", stand_in));
        }
    }

    /// Regression: the mark became a part of the first name, so that this user was never admitted.
    #[test]
    fn a_file_may_begin_with_a_byte_order_mark() {
        let users = Users::parse(&format!("\u{feff}{}", LINES.replace('\n', "\r\n"))).unwrap();
        assert!(users.verify("bcrypt", b"secret", 0) && users.verify("argon2", b"password", 0));
        Users::parse(&format!("\u{feff}# comment\n{LINES}")).unwrap();
    }

    #[test]
    fn a_line_that_was_made_is_read() {
        let line = password_line("a b", "p:\u{e4}").unwrap();
        assert!(line.starts_with("a b:$2y$12$"), "{line}");
        let users = Users::parse(&line).unwrap();
        assert!(users.verify("a b", "p:\u{e4}".as_bytes(), 0));
        assert!(!users.verify("a b", b"p:", 0));
        let long = "x".repeat(PASSWORD_BYTES_MAX + 1);
        for (name, password) in [
            ("", "x"),
            ("a:b", "x"),
            ("#a", "x"),
            ("a\n", "x"),
            ("a", ""),
            ("a", "x\n"),
            ("a", &*long),
        ] {
            assert!(password_line(name, password).is_err(), "{name:?} {password:?}");
        }
    }

    #[test]
    fn a_hash_that_can_be_guessed_is_refused_with_the_remedy() {
        for (line, expected) in [
            ("a:secret", "plain password"),
            ("a:rqXexS6ZhobKA", "crypt(3)"),
            ("a:$y$j9T$abcdefghijklmnop$3dL1LkYnZM.OVXuVdnnaKVDlLYT92dRwOzDZ5XiVCe.", "yescrypt"),
            ("a:$y$j9T$abcdefghijklmnop$3dL1LkYnZM.OVXuVdnnaKVDlLYT92dRwOzDZ5XiVCe.", "$argon2id$"),
            ("a:$apr1$lZL6V/ci$eIMz/iKDkbtys/uU7LEK00", "MD5"),
            ("a:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=", "SHA-1"),
            ("a:$2y$20$AAAAAAAAAAAAAAAAAAAAAOeS0Ur4hZCHPhJcUWYsKFJTk.0zGgeDa", "cost 20"),
            ("a:$2y$04$short", "no hash of bcrypt"),
            ("a:$6$rounds=999999999$a$b", "rounds"),
            ("a:$6$salt$short", "SHA-crypt"),
            ("a:$argon2id$v=19$m=99999999,t=3,p=4$c2FsdHNhbHQ$aGFzaGhhc2hoYXNoaGFzaA", "KiB"),
        ] {
            let error = Users::parse(&format!("# comment\n\n{line}\n")).unwrap_err().to_string();
            assert!(
                error.starts_with("3: user a: ") && error.contains(expected),
                "{line}: {error}"
            );
            assert!(error.contains("`pollux password NAME`"), "{error}");
        }
        for (text, expected) in [("", "no user"), ("a", "NAME:HASH"), (":x", "a name has")] {
            assert!(Users::parse(text).unwrap_err().to_string().contains(expected), "{text}");
        }
        let twice = LINES.lines().next().unwrap();
        let error = Users::parse(&format!("{twice}\n{twice}")).unwrap_err().to_string();
        assert!(error.contains("twice"), "{error}");
    }
}
