//! Executes requests on the file, one commit per batch.

use super::{
    snapshot::{self, Snapshot},
    sys,
};
use crate::{Answer, Request, StoreError, limits};
use heed::{
    CommitOrAbort, Database, Env, MdbError, RwTxn, WithoutTls,
    byteorder::BigEndian,
    types::{Bytes, I64, Str, U64},
};
use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

/// The error number of a failing disk (errno.h), for which the standard library has no name.
const EIO: i32 = 5;

/// The key of the visitor counter.
const VISITORS: &str = "visitor_count";

/// An open file. Clones refer to the same file.
#[derive(Clone, Debug)]
pub struct File {
    env: Env<WithoutTls>,
    remarks: Database<'static, U64<BigEndian>, Bytes>,
    counters: Database<'static, Str, I64<BigEndian>>,
    is_truncated: bool,
}

/// The remarks for the pages of one batch, by the maximum number of remarks.
type Pages = BTreeMap<u32, Arc<[Vec<u8>]>>;

/// The reason why a file cannot be used as store.
#[derive(Debug, thiserror::Error)]
#[error("cannot use {} as guestbook: {why}", path.display())]
pub struct OpenError {
    path: PathBuf,
    why: String,
}

impl File {
    /// Opens the file. A missing file is created with mode 0600.
    ///
    /// # Errors
    /// The file cannot be opened or created, is not a guestbook, or is truncated so far that
    /// neither of its two last commits is complete.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::open_bounded(path, limits::FILE_BYTES)
    }

    /// Whether the file was truncated when it was opened. The last commit is lost then, and the
    /// file continues from the previous one.
    pub fn is_truncated(&self) -> bool {
        self.is_truncated
    }

    fn open_bounded(path: &Path, most_bytes: usize) -> Result<Self, OpenError> {
        let failed = |why: String| OpenError { path: path.to_owned(), why };
        let file = open_or_create(path).map_err(|error| failed(error.to_string()))?;
        let kind = file.metadata().map_err(|error| failed(error.to_string()))?.file_type();
        if !kind.is_file() {
            return Err(failed("it is not a regular file".to_owned()));
        }
        let snapshot =
            snapshot::newest_complete(&file).map_err(|error| failed(error.to_string()))?;
        let snapshot = snapshot.ok_or_else(|| {
            failed(
                "it is truncated and cannot be recovered; restore a copy, or move the file away to start \
                 a new guestbook"
                    .to_owned(),
            )
        })?;
        let opened = sys::open(path, most_bytes, snapshot).and_then(|env| {
            // Release the reader slots of processes that have ended.
            env.clear_stale_readers()?;
            let transaction = env.write_txn()?;
            let made = env.create_databases_and_commit(transaction, |make, transaction| {
                let remarks = make.create_database(transaction, Some("remarks"))?;
                let counters = make.create_database(transaction, Some("counters"))?;
                Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit((remarks, counters)))
            })?;
            let (remarks, counters) = made.unwrap_commit();
            let is_truncated = snapshot == Snapshot::Previous;
            let opened = Self { env, remarks, counters, is_truncated };
            if is_truncated {
                opened.commit_recovered()?;
            }
            Ok(opened)
        });
        opened.map_err(|error| {
            failed(match error {
                heed::Error::Mdb(MdbError::Invalid | MdbError::VersionMismatch) => {
                    "it is another kind of file, not a guestbook".to_owned()
                }
                other => other.to_string(),
            })
        })
    }

    /// Commits the state of the previous snapshot in place of the damaged one. It is then the
    /// newest snapshot, and other processes may open the file.
    fn commit_recovered(&self) -> heed::Result<()> {
        let mut transaction = self.env.write_txn()?;
        let visitors = self.counters.get(&transaction, VISITORS)?.unwrap_or(0);
        self.counters.put(&mut transaction, VISITORS, &visitors)?;
        transaction.commit()?;
        self.env.force_sync()
    }

    /// Executes requests with one commit: either all succeed, or all fail with the same error. If
    /// only the last synchronisation fails, the remarks are visible although their guests receive
    /// an error. Each visit sees the remarks of its whole batch. Blocks for the disk, and for other
    /// processes that write.
    pub fn serve<'a>(
        &self,
        requests: impl Iterator<Item = &'a Request> + Clone,
    ) -> Vec<Result<Answer, StoreError>> {
        match self.commit(requests.clone()) {
            Ok(answers) => answers.into_iter().map(Ok).collect(),
            Err(error) => {
                let why = store_error(error);
                requests.map(|_| Err(why.clone())).collect()
            }
        }
    }

    fn commit<'a>(
        &self,
        requests: impl Iterator<Item = &'a Request> + Clone,
    ) -> heed::Result<Vec<Answer>> {
        let mut transaction = self.env.write_txn()?;
        for request in requests.clone() {
            if let Request::Post { remark } = request {
                self.append_remark(&mut transaction, remark)?;
            }
        }
        let mut pages = Pages::new();
        let answers = requests.clone().map(|request| match request {
            Request::Post { .. } => Ok(Answer::Posted),
            Request::Visit { shown } => self.visit(&mut transaction, *shown, &mut pages),
        });
        let answers = answers.collect::<heed::Result<Vec<_>>>()?;
        transaction.commit()?;
        if requests.clone().any(|request| matches!(request, Request::Post { .. })) {
            self.env.force_sync()?;
        }
        Ok(answers)
    }

    /// Locks out other writers until the result is dropped, for tests.
    #[cfg(test)]
    pub(super) fn lock_writer(&self) -> RwTxn<'_> {
        self.env.write_txn().unwrap()
    }

    fn append_remark(&self, transaction: &mut RwTxn<'_>, remark: &[u8]) -> heed::Result<()> {
        let last = self.remarks.last(transaction)?.map_or(0, |(number, _)| number);
        self.remarks.put(transaction, &(last + 1), remark)
    }

    fn visit(
        &self,
        transaction: &mut RwTxn<'_>,
        shown: u32,
        pages: &mut Pages,
    ) -> heed::Result<Answer> {
        let visitor = self.counters.get(transaction, VISITORS)?.unwrap_or(0) + 1;
        self.counters.put(transaction, VISITORS, &visitor)?;
        let remarks = match pages.get(&shown) {
            Some(remarks) => remarks.clone(),
            None => {
                let remarks = self.newest(transaction, shown)?;
                pages.entry(shown).or_insert(remarks).clone()
            }
        };
        Ok(Answer::Visit { remarks, visitor })
    }

    /// Returns the newest remarks in the order in which they were written, but no more than fit
    /// into a page.
    fn newest(&self, transaction: &RwTxn<'_>, shown: u32) -> heed::Result<Arc<[Vec<u8>]>> {
        let mut remarks = Vec::new();
        let mut bytes = 0;
        for entry in self.remarks.rev_iter(transaction)?.take(shown as usize) {
            let (_, remark) = entry?;
            bytes += remark.len();
            if bytes > limits::PAGE_BYTES {
                break;
            }
            remarks.push(remark.to_vec());
        }
        remarks.reverse();
        Ok(remarks.into())
    }
}

/// Opens the file. The directory entry of a new file is synchronised before the file is used;
/// otherwise a remark could be on the disk while its file is not.
fn open_or_create(path: &Path) -> io::Result<fs::File> {
    let mut options = OpenOptions::new();
    options.read(true).append(true);
    match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        other => return other,
    }
    // Another process may create it at the same time.
    let file = options.create(true).mode(0o600).open(path)?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    fs::File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(file)
}

fn store_error(error: heed::Error) -> StoreError {
    match error {
        heed::Error::Mdb(MdbError::MapFull) => StoreError::Full(format!(
            "the file has reached its maximum of {} bytes",
            limits::FILE_BYTES
        )),
        heed::Error::Io(error) => match error.kind() {
            io::ErrorKind::StorageFull => StoreError::Full("the disk is full".to_owned()),
            io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge => {
                StoreError::Full(error.to_string())
            }
            io::ErrorKind::ReadOnlyFilesystem => StoreError::ReadOnly(error.to_string()),
            // LMDB reports EIO for a short write; the last write on a full disk is short.
            _ if error.raw_os_error() == Some(EIO) => {
                StoreError::ReadOnly(format!("the disk is full or damaged: {error}"))
            }
            _ => StoreError::Unreachable(error.to_string()),
        },
        other => StoreError::Unreachable(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn post(text: &str) -> Request {
        Request::Post { remark: text.as_bytes().to_vec() }
    }

    fn visit(file: &File, shown: u32) -> (Vec<String>, i64) {
        match file.serve([Request::Visit { shown }].iter()).remove(0).unwrap() {
            Answer::Visit { remarks, visitor } => {
                (remarks.iter().map(|r| String::from_utf8(r.clone()).unwrap()).collect(), visitor)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn remarks_and_visits_are_stored_in_order() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("guestbook");
        {
            let file = File::open(&path).unwrap();
            let batch = [post("one"), post("two"), post("three")];
            assert!(file.serve(batch.iter()).iter().all(Result::is_ok));
            assert_eq!(visit(&file, 2), (vec!["two".into(), "three".into()], 1));
        }
        let file = File::open(&path).unwrap();
        let all = vec!["one".into(), "two".into(), "three".into()];
        assert_eq!(visit(&file, 100), (all, 2));
        let mode = std::os::unix::fs::MetadataExt::mode(&std::fs::metadata(&path).unwrap());
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_batch_that_does_not_fit_fails_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let file = File::open_bounded(&directory.path().join("small"), 128 << 10).unwrap();
        assert!(file.serve([post("before")].iter())[0].is_ok());
        let batch: Vec<_> = (0..100).map(|_| post(&"x".repeat(4000))).collect();
        let answers = file.serve(batch.iter());
        assert_eq!(answers.len(), 100);
        assert!(answers.iter().all(|answer| matches!(answer, Err(StoreError::Full(_)))));
        // Smaller batches still succeed.
        assert!(file.serve([post("after")].iter())[0].is_ok());
        assert_eq!(visit(&file, 100).0, ["before", "after"]);
    }

    #[test]
    fn other_files_are_rejected() {
        let directory = tempfile::tempdir().unwrap();
        let other = directory.path().join("text");
        std::fs::write(&other, "something else\n".repeat(10_000)).unwrap();
        let error = File::open(&other).unwrap_err().to_string();
        assert!(error.contains("another kind of file"), "{error}");
        let error = File::open(directory.path()).unwrap_err().to_string();
        assert!(error.contains("Is a directory"), "{error}");
        let error = File::open(&directory.path().join("no/where")).unwrap_err().to_string();
        assert!(error.contains("No such file"), "{error}");
    }

    /// Remarks of several lengths; some need overflow pages.
    fn remark_of(number: usize) -> String {
        format!("{number} {}", "x".repeat([10, 1000, 3000][number % 3]))
    }

    /// A file truncated at any length continues from a complete commit or is rejected with an error
    /// that names it, and never ends the process.
    #[test]
    fn a_truncated_file_keeps_a_prefix_or_is_rejected() {
        const REMARKS: usize = 150;
        let directory = tempfile::tempdir().unwrap();
        let whole = directory.path().join("whole");
        {
            let file = File::open(&whole).unwrap();
            for number in 0..REMARKS {
                file.serve([post(&remark_of(number))].iter()).remove(0).unwrap();
            }
        }
        let bytes = fs::read(&whole).unwrap();
        let page = 4096;
        let all: Vec<_> = (0..REMARKS).map(remark_of).collect();
        let (mut recovered, mut refused) = (0, 0);
        let lost = [1, 100, page, page + 1, 2 * page, 3 * page, 10 * page];
        let lost = lost.into_iter().chain([bytes.len() / 2, bytes.len() - page, bytes.len() - 1]);
        for (number, lost) in lost.enumerate() {
            let path = directory.path().join(format!("cut-{number}"));
            fs::write(&path, &bytes[..bytes.len() - lost]).unwrap();
            match File::open(&path) {
                Ok(file) => {
                    recovered += 1;
                    let stored = newest(&file, usize::MAX);
                    assert!(
                        all.starts_with(&stored),
                        "{lost} bytes less: {} remarks",
                        stored.len()
                    );
                    assert!(
                        stored.len() + 2 > REMARKS,
                        "{lost} bytes less: {} remarks",
                        stored.len()
                    );
                    assert_eq!(file.is_truncated(), stored.len() < REMARKS);
                    // It accepts new remarks, which other readers see.
                    assert!(file.serve([post("afterwards")].iter())[0].is_ok());
                    assert_eq!(newest(&file, 1), ["afterwards"]);
                }
                Err(error) => {
                    refused += 1;
                    assert!(error.to_string().contains("cut-"), "{error}");
                }
            }
        }
        assert!(recovered > 0 && refused > 0, "{recovered} went on, {refused} were refused");
    }

    /// The newest remarks, without limit of their total length.
    fn newest(file: &File, shown: usize) -> Vec<String> {
        let transaction = file.env.read_txn().unwrap();
        let all = file.remarks.iter(&transaction).unwrap();
        let all = all.map(|entry| String::from_utf8(entry.unwrap().1.to_vec()).unwrap());
        let all: Vec<_> = all.collect();
        all[all.len().saturating_sub(shown)..].to_vec()
    }

    /// A batch of visits needs the memory of one page, regardless of the size of the guestbook.
    #[test]
    fn visits_of_one_batch_share_one_bounded_page() {
        let directory = tempfile::tempdir().unwrap();
        let file = File::open(&directory.path().join("guestbook")).unwrap();
        let posts = vec![post(&"x".repeat(limits::REMARK_BYTES)); 100];
        assert!(file.serve(posts.iter()).iter().all(Result::is_ok));
        let answers = file.serve(vec![Request::Visit { shown: 100 }; 1000].iter());
        let pages: Vec<_> = answers
            .into_iter()
            .map(|answer| match answer.unwrap() {
                Answer::Visit { remarks, .. } => remarks,
                Answer::Posted => panic!("the answer is not that of a visit"),
            })
            .collect();
        assert!(pages.iter().all(|page| Arc::ptr_eq(page, &pages[0])));
        let bytes: usize = pages[0].iter().map(Vec::len).sum();
        assert!((limits::PAGE_BYTES / 2..=limits::PAGE_BYTES).contains(&bytes), "{bytes}");
    }

    /// The program of the child processes of the next test. `POLLUX_GUESTBOOK_CHILD` names the
    /// file.
    #[test]
    fn child_that_posts_until_it_is_killed() {
        let Some(path) = std::env::var_os("POLLUX_GUESTBOOK_CHILD") else { return };
        let me = std::process::id();
        let file = File::open(Path::new(&path)).unwrap();
        for number in 0..100_000 {
            let remark = format!("{me} {number}");
            file.serve([post(&remark)].iter()).remove(0).unwrap();
            println!("kept {remark}");
        }
    }

    /// kill -9 during the commits of several processes: acknowledged remarks survive.
    #[test]
    fn acknowledged_remarks_survive_the_death_of_their_process() {
        use std::{
            io::{BufRead as _, BufReader},
            process::Stdio,
        };
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("guestbook");
        let children: Vec<_> = (0..3)
            .map(|_| {
                Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", "file::store::tests::child_that_posts_until_it_is_killed"])
                    .arg("--nocapture")
                    .env("POLLUX_GUESTBOOK_CHILD", &path)
                    .stdout(Stdio::piped())
                    .spawn()
                    .unwrap()
            })
            .collect();
        let mut acknowledged = Vec::new();
        for mut child in children {
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let stored =
                |line: String| line.split_once("kept ").map(|(_, stored)| stored.to_owned());
            acknowledged.extend(lines.by_ref().map_while(Result::ok).filter_map(stored).take(20));
            child.kill().unwrap();
            acknowledged.extend(lines.map_while(Result::ok).filter_map(stored));
            child.wait().unwrap();
        }
        assert!(acknowledged.len() >= 60);
        let file = File::open(&path).unwrap();
        let remarks = newest(&file, usize::MAX);
        for remark in &acknowledged {
            assert!(remarks.contains(remark), "{remark} was acknowledged and is not there");
        }
        // The killed processes left no lock.
        assert!(file.serve([post("afterwards")].iter())[0].is_ok());
    }
}
