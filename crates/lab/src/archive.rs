//! Result files on the disk: written whole or not at all, packed or plain.

use crate::experiment;
use anyhow::Context as _;
use flate2::{Compression, GzBuilder, read::GzDecoder};
use serde_json::Value as Json;
use std::{
    fs::{self, File},
    io::{self, ErrorKind, Read as _, Write as _},
    path::{Path, PathBuf},
};

/// The file's name inside the result directory.
pub const FILE: &str = "result.json";

/// `result.json`, as gzip compresses it (RFC 1952): `zcat` and `jq` read it.
pub const PACKED: &str = "result.json.gz";
/// The page that a forge shows for the directory.
pub const PAGE: &str = "README.md";
/// The longest `result.json` that is unpacked, in bytes: a small file may claim to hold anything.
const MAX_BYTES: u64 = 1 << 30;

/// Whether the run in `directory` was archived.
pub fn is_packed(directory: &Path) -> bool {
    !directory.join(FILE).exists() && directory.join(PACKED).exists()
}

/// The text of `result.json` in `directory`, unpacked where it is packed.
///
/// # Errors
/// When there is neither, it cannot be read, or is longer than 1 GiB; the message names the file.
pub fn read_text(directory: &Path) -> anyhow::Result<String> {
    if !is_packed(directory) {
        let path = directory.join(FILE);
        return fs::read_to_string(&path).with_context(|| {
            format!("cannot read {} (is it a result directory?)", path.display())
        });
    }
    let path = directory.join(PACKED);
    let read = || -> anyhow::Result<String> {
        let mut text = String::new();
        let file = File::open(&path)?;
        GzDecoder::new(file).take(MAX_BYTES + 1).read_to_string(&mut text)?;
        anyhow::ensure!(text.len() as u64 <= MAX_BYTES, "it holds more than 1 GiB");
        Ok(text)
    };
    read().with_context(|| format!("cannot read {}", path.display()))
}

/// Removes the path of the program's start directory: published files name no path of one machine.
pub(crate) fn without_start_directory(text: &str) -> String {
    match std::env::current_dir().ok().as_deref().and_then(Path::to_str) {
        Some(here) if here.len() > 1 => text.replace(&format!("{here}/"), ""),
        _ => text.to_owned(),
    }
}

/// Writes `text` as `result.json.gz` into `directory`, whole or not at all. A file that differs only in the layout of its
/// experiment stays as it is: the repository would store every layout of each kept run.
///
/// # Errors
/// When the directory cannot be written to; the message names the file.
pub(crate) fn write_packed(text: &str, directory: &Path) -> anyhow::Result<()> {
    let renewed = |text: &str| -> anyhow::Result<Json> {
        let mut result = serde_json::from_str(text)?;
        experiment::renew(&mut result);
        Ok(result)
    };
    if is_packed(directory) && renewed(&read_text(directory)?)? == renewed(text)? {
        return Ok(());
    }
    // No time and no name in the gzip head: the same run gives the same bytes.
    let mut packed = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    packed.write_all(text.as_bytes())?;
    replace(&directory.join(PACKED), &packed.finish()?)
}

/// Puts `content` in the place of the file at `path`: whole or not at all, also when the power fails.
///
/// # Errors
/// When the directory cannot be written to; the message names the file.
pub(crate) fn replace(path: &Path, content: &[u8]) -> anyhow::Result<()> {
    let mut unfinished = path.as_os_str().to_owned();
    unfinished.push(".part");
    let unfinished = PathBuf::from(unfinished);
    let written = File::create(&unfinished).and_then(|mut file| {
        file.write_all(content)?;
        to_disk(&file)
    });
    written.with_context(|| unfinished.display().to_string())?;
    fs::rename(&unfinished, path).with_context(|| path.display().to_string())?;
    // The new name belongs to the directory. Some file systems store it without a sync, and refuse one.
    if let Some(Ok(directory)) = path.parent().map(File::open) {
        let _ = directory.sync_all();
    }
    Ok(())
}

/// Waits until what was written to `file` survives a power cut, where its file system can promise that.
pub(crate) fn to_disk(file: &File) -> io::Result<()> {
    match file.sync_data() {
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => {
            Ok(())
        }
        synced => synced,
    }
}
