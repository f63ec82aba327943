//! Uncompresses the kernel. QEMU boots an ELF kernel directly (PVH), which saves the time of the
//! firmware and, above all, of the emulated decompression: half of the whole boot.

use crate::{
    cache::Cache,
    process::{Supervisor, command},
};
use anyhow::{Context, bail, ensure};
use pollux_sys::require_program;
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

const LIMIT: Duration = Duration::from_secs(120);
/// The kernel's build appends the uncompressed length to the compressed bytes.
const LENGTH_BYTES: usize = 4;

/// The image to boot for a `vmlinuz`: uncompressed and cached if possible, otherwise the `vmlinuz`
/// itself.
pub(super) fn image(
    vmlinuz: PathBuf,
    release: &str,
    cache: &Cache,
    supervisor: &Supervisor,
) -> anyhow::Result<PathBuf> {
    // A package may be rebuilt under the same release; then its file differs in time or size.
    let metadata = vmlinuz.metadata().with_context(|| vmlinuz.display().to_string())?;
    let name = format!("images/{release}-{:x}-{:x}", metadata.mtime(), metadata.size());
    let made = cache.entry(supervisor, &name, |directory| unpack(&vmlinuz, directory, supervisor));
    supervisor.check()?;
    match made {
        Ok(directory) => Ok(directory.join("vmlinux")),
        Err(error) => {
            tracing::warn!("slower boot: {} is booted compressed: {error:#}", vmlinuz.display());
            Ok(vmlinuz)
        }
    }
}

fn unpack(vmlinuz: &Path, directory: &Path, supervisor: &Supervisor) -> anyhow::Result<()> {
    let image = fs::read(vmlinuz)?;
    let payload = payload(&image).context("it is not a bzImage")?;
    let payload = &payload[..payload.len().saturating_sub(LENGTH_BYTES)];
    let (program, package, packed) = match payload {
        [0xfd, b'7', b'z', b'X', b'Z', ..] => ("xz", "xz-utils", "vmlinux.xz"),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => ("zstd", "zstd", "vmlinux.zst"),
        _ => bail!("its compression is neither xz nor zstd"),
    };
    fs::write(directory.join(packed), payload)?;
    let mut unpack = command(require_program(program, package)?);
    unpack.args(["-d", "-q", packed]).current_dir(directory);
    supervisor.run(unpack, LIMIT)?;
    let _ = fs::remove_file(directory.join(packed));
    let mut magic = [0; 4];
    std::io::Read::read_exact(&mut fs::File::open(directory.join("vmlinux"))?, &mut magic)?;
    ensure!(&magic == b"\x7fELF", "what is packed in it is not an ELF file");
    Ok(())
}

/// The compressed kernel inside a bzImage; the fields are those of
/// Documentation/x86/boot.rst: setup_sects, payload_offset, payload_length.
fn payload(image: &[u8]) -> Option<&[u8]> {
    if image.get(0x202..0x206)? != b"HdrS" {
        return None;
    }
    let word = |at: usize| Some(u32::from_le_bytes(image.get(at..at + 4)?.try_into().ok()?));
    // 0 means 4, for compatibility with very old loaders.
    let sectors = match *image.get(0x1f1)? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (sectors + 1) * 512 + word(0x248)? as usize;
    image.get(start..start.checked_add(word(0x24c)? as usize)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_payload_is_where_the_header_says() {
        let mut image = vec![0; 512 * 3 + 100];
        image[0x1f1] = 2;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248..0x24c].copy_from_slice(&10u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&20u32.to_le_bytes());
        image[512 * 3 + 10] = 7;
        let found = payload(&image).unwrap();
        assert_eq!((found.len(), found[0]), (20, 7));
        image[0x24c..0x250].copy_from_slice(&200u32.to_le_bytes());
        assert_eq!(payload(&image), None, "cut short");
        assert_eq!(payload(b"\x7fELF"), None);
    }
}
