//! Result files on disk: written completely or not at all, compressed or plain.

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

/// `result.json`, compressed with gzip (RFC 1952): `zcat` and `jq` read it.
pub const PACKED: &str = "result.json.gz";
/// The page that a code hosting site shows for the directory.
pub const PAGE: &str = "README.md";
/// The longest `result.json` that is decompressed, in bytes: a small compressed file can expand to any
/// size.
const MAX_BYTES: u64 = 1 << 30;

/// Whether the run in `directory` was archived.
pub fn is_packed(directory: &Path) -> bool {
    !directory.join(FILE).exists() && directory.join(PACKED).exists()
}

/// Returns the name of the file with the result in `directory`.
pub(crate) fn file_name(directory: &Path) -> &'static str {
    if is_packed(directory) { PACKED } else { FILE }
}

/// Reads the text of `result.json` in `directory`, and decompresses it if necessary.
///
/// # Errors
/// When neither file exists, the file cannot be read, or it is longer than 1 GiB; the message names the
/// file.
pub fn read_text(directory: &Path) -> anyhow::Result<String> {
    let path = directory.join(file_name(directory));
    if !is_packed(directory) {
        return fs::read_to_string(&path).with_context(|| {
            format!("cannot read {} (is it a result directory?)", path.display())
        });
    }
    let read = || -> anyhow::Result<String> {
        let mut text = String::new();
        let file = File::open(&path)?;
        GzDecoder::new(file).take(MAX_BYTES + 1).read_to_string(&mut text)?;
        anyhow::ensure!(text.len() as u64 <= MAX_BYTES, "it holds more than 1 GiB");
        Ok(text)
    };
    read().with_context(|| format!("cannot read {}", path.display()))
}

/// Removes the path of the program's start directory, so that published files contain no path of one
/// machine.
pub(crate) fn without_start_directory(text: &str) -> String {
    match std::env::current_dir().ok().as_deref().and_then(Path::to_str) {
        Some(here) if here.len() > 1 => text.replace(&format!("{here}/"), ""),
        _ => text.to_owned(),
    }
}

/// Writes `text` as `result.json.gz` into `directory`, completely or not at all. A file with the same content
/// is not changed, so that the repository does not store the same run in two ways of writing it.
///
/// # Errors
/// When the directory cannot be written to; the message names the file.
pub(crate) fn write_packed(text: &str, directory: &Path) -> anyhow::Result<()> {
    let parsed = |text: &str| serde_json::from_str::<Json>(text);
    if is_packed(directory) && parsed(&read_text(directory)?)? == parsed(text)? {
        return Ok(());
    }
    // The gzip header has neither time nor name, so that the same run gives the same bytes.
    let mut packed = GzBuilder::new().mtime(0).write(Vec::new(), Compression::best());
    packed.write_all(text.as_bytes())?;
    replace(&directory.join(PACKED), &packed.finish()?)
}

/// Writes a file into `directory` and returns its path.
///
/// # Errors
/// When it cannot be written; the message names the file.
pub(crate) fn write_into(
    directory: &Path,
    name: &str,
    content: impl AsRef<[u8]>,
) -> anyhow::Result<PathBuf> {
    let path = directory.join(name);
    fs::write(&path, content).with_context(|| path.display().to_string())?;
    Ok(path)
}

/// Replaces the content of the file at `path`: completely or not at all, even if the power fails.
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
    // The new name is stored in the directory. Some file systems store it without a sync, and reject a sync
    // of a directory.
    if let Some(Ok(directory)) = path.parent().map(File::open) {
        let _ = directory.sync_all();
    }
    Ok(())
}

/// Waits until the data written to `file` would survive a power cut, if its file system can guarantee that.
pub(crate) fn to_disk(file: &File) -> io::Result<()> {
    match file.sync_data() {
        Err(error) if matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported) => {
            Ok(())
        }
        synced => synced,
    }
}
