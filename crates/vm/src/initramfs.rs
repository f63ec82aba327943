//! The guest's first file system: a cpio archive in the "newc" format, in an unlinked file, so that no
//! file remains after the program ends in any way.

use anyhow::Context;
use std::{
    fs::{self, File},
    io::{BufWriter, Write},
    os::unix::ffi::OsStrExt,
    path::Path,
};

const DIR: u32 = 0o040_755;
const PROGRAM: u32 = 0o100_755;
const PLAIN: u32 = 0o100_644;

/// The size of a padded configuration is a multiple of this.
const PADDED: usize = 64 << 10;

/// An archive being written.
pub(crate) struct Initramfs {
    out: BufWriter<File>,
    entries: u32,
}

impl Initramfs {
    /// An empty archive, in a file without a name in the directory for temporary files.
    pub(crate) fn new() -> anyhow::Result<Initramfs> {
        let file = tempfile::tempfile().context("temporary file for the initramfs")?;
        Ok(Initramfs { out: BufWriter::new(file), entries: 0 })
    }

    fn add(&mut self, name: &str, mode: u32, bytes: &[u8]) -> anyhow::Result<()> {
        self.entries += 1;
        let length = u32::try_from(bytes.len()).context("a file above 4 GiB in the initramfs")?;
        let mut writer = cpio::NewcBuilder::new(name)
            .ino(self.entries)
            .nlink(1)
            .mode(mode)
            .write(&mut self.out, length);
        writer.write_all(bytes)?;
        writer.finish()?;
        Ok(())
    }

    pub(crate) fn directory(&mut self, name: &str) -> anyhow::Result<()> {
        self.add(name, DIR, &[])
    }

    pub(crate) fn bytes(&mut self, name: &str, bytes: &[u8]) -> anyhow::Result<()> {
        self.add(name, PLAIN, bytes)
    }

    /// Copies a file of the host.
    pub(crate) fn file(&mut self, name: &str, from: &Path) -> anyhow::Result<()> {
        let bytes = fs::read(from).with_context(|| format!("read {}", from.display()))?;
        self.add(name, PLAIN, &bytes)
    }

    /// Copies a program of the host.
    pub(crate) fn program(&mut self, name: &str, from: &Path) -> anyhow::Result<()> {
        let bytes = fs::read(from).with_context(|| format!("read {}", from.display()))?;
        self.add(name, PROGRAM, &bytes)
    }

    /// Completes the archive.
    pub(crate) fn finish(self) -> anyhow::Result<File> {
        let out = cpio::newc::trailer(self.out)?;
        out.into_inner().map_err(|error| error.into_error()).context("write the initramfs")
    }
}

/// `/pollux/config`: records `key=value`, each ended by a NUL, so that values may contain any other
/// byte: blanks, line ends, invalid UTF-8.
#[derive(Default)]
pub(crate) struct Config(Vec<u8>);

impl Config {
    /// # Errors
    /// The value contains a NUL (a command line cannot contain one).
    pub(crate) fn set(
        &mut self,
        key: &str,
        value: impl AsRef<std::ffi::OsStr>,
    ) -> anyhow::Result<()> {
        let value = value.as_ref().as_bytes();
        anyhow::ensure!(!value.contains(&0), "{key}: a NUL byte cannot be handed to the guest");
        self.0.extend(key.as_bytes());
        self.0.push(b'=');
        self.0.extend(value);
        self.0.push(0);
        Ok(())
    }

    /// Pads it to a multiple of [`PADDED`], so that its content does not change the positions of the
    /// files after it.
    ///
    /// # Errors
    /// No error is possible; the type is that of [`Config::set`].
    pub(crate) fn pad(&mut self) -> anyhow::Result<()> {
        let record = "padding=\0".len();
        let missing = PADDED - (self.0.len() + record) % PADDED;
        self.set("padding", " ".repeat(missing))
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        ffi::OsStr,
        io::{Seek, SeekFrom},
        process::{Command, Stdio},
    };

    #[test]
    fn cpio_unpacks_the_archive() {
        let directory = tempfile::tempdir().unwrap();
        let program = directory.path().join("program");
        fs::write(&program, [0x7f, b'E', 0, 0xff]).unwrap();
        let mut archive = Initramfs::new().unwrap();
        archive.directory("pollux").unwrap();
        archive.program("init", &program).unwrap();
        archive.bytes("pollux/config", b"odd").unwrap();
        let mut file = archive.finish().unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        let target = directory.path().join("target");
        fs::create_dir(&target).unwrap();
        let status = Command::new("cpio")
            .args(["-i", "--quiet"])
            .current_dir(&target)
            .stdin(Stdio::from(file))
            .status()
            .expect("cpio is installed (apt-get install cpio)");
        assert!(status.success());
        assert_eq!(fs::read(target.join("init")).unwrap(), [0x7f, b'E', 0, 0xff]);
        assert_eq!(fs::read(target.join("pollux/config")).unwrap(), b"odd");
        let mode = std::os::unix::fs::MetadataExt::mode(&target.join("init").metadata().unwrap());
        assert_eq!(mode & 0o777, 0o755);
    }

    #[test]
    fn padding_hides_how_much_there_is() {
        let sizes = ["", "a longer value than the other one"].map(|value| {
            let mut config = Config::default();
            config.set("arg", value).unwrap();
            config.pad().unwrap();
            config.as_bytes().len()
        });
        assert_eq!(sizes, [PADDED; 2]);
    }

    #[test]
    fn values_keep_every_byte() {
        let mut config = Config::default();
        config.set("arg", "two words\nand 'quotes' \"$HOME\"").unwrap();
        config.set("arg", OsStr::from_bytes(&[0xff, 0xfe, b'='])).unwrap();
        config.set("arg", "").unwrap();
        assert_eq!(
            config.as_bytes(),
            b"arg=two words\nand 'quotes' \"$HOME\"\0arg=\xff\xfe=\0arg=\0"
        );
        assert!(config.set("arg", OsStr::from_bytes(b"a\0b")).is_err());
    }
}
