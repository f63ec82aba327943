//! Files that an operator names, such as those with certificates and keys.

use rustix::fs::OFlags;
use std::{
    fs::OpenOptions,
    io::{self, ErrorKind, Read as _},
    os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _},
    path::Path,
    thread,
    time::{Duration, Instant},
};
use zeroize::Zeroizing;

/// The time within which a pipe or a device must have sent everything.
const PATIENCE: Duration = Duration::from_secs(10);
/// The time between two attempts to read from a pipe.
const PAUSE: Duration = Duration::from_millis(10);

/// Reads a file of at most `bytes_max` bytes. It may be a pipe that another process writes, such as that of
/// `<(command)` in a shell.
///
/// The call takes at most ten seconds longer than the file system does: a server calls it while signals are blocked.
///
/// # Errors
/// The errors of open(2) and read(2). The file is longer, nothing is in a pipe, or its end does not come in time.
pub fn read_operator_file(path: &Path, bytes_max: u64) -> io::Result<Zeroizing<Vec<u8>>> {
    // Without this flag, open(2) would wait until another process opens the pipe.
    let flags = OFlags::NONBLOCK.bits() as i32;
    let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = file.metadata()?;
    // As `fs::read` does: a vector that grows would leave copies of a key in memory.
    let mut bytes = Zeroizing::new(Vec::with_capacity(metadata.len().min(bytes_max) as usize));
    let deadline = Instant::now() + PATIENCE;
    loop {
        let room = (bytes_max + 1).saturating_sub(bytes.len() as u64);
        match file.by_ref().take(room).read_to_end(&mut bytes) {
            Ok(_) => break,
            Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error),
            Err(_) if Instant::now() < deadline => thread::sleep(PAUSE),
            Err(_) => {
                let message = format!("its end has not come within {PATIENCE:?}");
                return Err(io::Error::new(ErrorKind::TimedOut, message));
            }
        }
    }
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::other(format!("it is longer than {bytes_max} bytes")));
    }
    if bytes.is_empty() && metadata.file_type().is_fifo() {
        return Err(io::Error::other(
            "nothing is in this pipe: start the process that writes it first, or name a file",
        ));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::{
        fs::{CWD, FileType, Mode, mknodat},
        io::ioctl_fionread,
    };
    use std::{fs, io::Write as _};

    #[test]
    fn a_pipe_is_read_if_a_process_writes_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let error = read_operator_file(&path, 10).unwrap_err().to_string();
        assert!(error.contains("nothing is in this pipe"), "{error}");
        // Opened for both directions, a pipe needs no other process (fifo(7)).
        let mut pipe = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        pipe.write_all(b"one").unwrap();
        let writer = thread::spawn(move || {
            // The reader finds an empty pipe that still has a writer.
            while ioctl_fionread(&pipe).unwrap() > 0 {
                thread::yield_now();
            }
            pipe.write_all(b" two").unwrap();
        });
        let bytes = read_operator_file(&path, 10).unwrap();
        assert_eq!(*bytes, b"one two");
        writer.join().unwrap();
    }

    #[test]
    fn files_and_devices_are_read_up_to_the_limit() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        fs::write(&path, "0123456789").unwrap();
        assert_eq!(*read_operator_file(&path, 10).unwrap(), b"0123456789");
        for path in [&path, Path::new("/dev/zero")] {
            let error = read_operator_file(path, 9).unwrap_err().to_string();
            assert!(error.contains("longer than 9 bytes"), "{error}");
        }
        assert!(read_operator_file(Path::new("/dev/null"), 9).unwrap().is_empty());
        assert!(read_operator_file(directory.path(), 9).is_err());
    }
}
