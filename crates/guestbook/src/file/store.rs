//! Requests to the file, one batch a commit.

use super::sys;
use crate::{Answer, Request, StoreError, limits};
use heed::{
    CommitOrAbort, Database, Env, MdbError, RwTxn, WithoutTls,
    byteorder::BigEndian,
    types::{Bytes, I64, Str, U64},
};
use std::{
    fs::OpenOptions,
    io,
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

/// The key of the counter.
const VISITORS: &str = "visitor_count";

/// The file, open. Clones are the same file.
#[derive(Clone, Debug)]
pub struct File {
    env: Env<WithoutTls>,
    remarks: Database<'static, U64<BigEndian>, Bytes>,
    counters: Database<'static, Str, I64<BigEndian>>,
}

/// Why a file cannot be the store.
#[derive(Debug, thiserror::Error)]
#[error("cannot keep a guestbook in {}: {why}", path.display())]
pub struct OpenError {
    path: PathBuf,
    why: String,
}

impl File {
    /// Opens the file, and makes it where there is none, for its owner alone.
    ///
    /// # Errors
    /// It cannot be opened or made, or is something else than a guestbook.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        Self::open_bounded(path, limits::FILE_BYTES)
    }

    fn open_bounded(path: &Path, most_bytes: usize) -> Result<Self, OpenError> {
        let failed = |why: String| OpenError { path: path.to_owned(), why };
        // LMDB would make it readable for everybody.
        let made = OpenOptions::new()
            .read(true)
            .append(true)
            .create(true)
            .mode(0o600)
            .open(path)
            .and_then(|file| file.metadata());
        let kind = made.map_err(|error| failed(error.to_string()))?.file_type();
        if !kind.is_file() {
            return Err(failed("it is no regular file".to_owned()));
        }
        let opened = sys::open(path, most_bytes).and_then(|env| {
            // Places of readers that have died are free again.
            env.clear_stale_readers()?;
            let transaction = env.write_txn()?;
            let made = env.create_databases_and_commit(transaction, |make, transaction| {
                let remarks = make.create_database(transaction, Some("remarks"))?;
                let counters = make.create_database(transaction, Some("counters"))?;
                Ok::<_, heed::Error>(CommitOrAbort::<_, ()>::Commit((remarks, counters)))
            })?;
            let (remarks, counters) = made.unwrap_commit();
            Ok(Self { env, remarks, counters })
        });
        opened.map_err(|error| {
            failed(match error {
                heed::Error::Mdb(MdbError::Invalid | MdbError::VersionMismatch) => {
                    "it is another kind of file".to_owned()
                }
                other => other.to_string(),
            })
        })
    }

    /// Answers requests, in order, with one commit for all: either each of them came to something,
    /// or none did and all have the same error. Blocks for the disk, and for other processes that
    /// write.
    pub fn serve<'a>(
        &self,
        requests: impl Iterator<Item = &'a Request> + Clone,
    ) -> Vec<Result<Answer, StoreError>> {
        match self.commit(requests.clone()) {
            Ok(answers) => answers.into_iter().map(Ok).collect(),
            Err(error) => {
                let why = explain(error);
                requests.map(|_| Err(why.clone())).collect()
            }
        }
    }

    fn commit<'a>(
        &self,
        requests: impl Iterator<Item = &'a Request> + Clone,
    ) -> heed::Result<Vec<Answer>> {
        let mut transaction = self.env.write_txn()?;
        let answers = requests.clone().map(|request| self.apply(&mut transaction, request));
        let answers = answers.collect::<heed::Result<Vec<_>>>()?;
        transaction.commit()?;
        if requests.clone().any(|request| matches!(request, Request::Post { .. })) {
            self.env.force_sync()?;
        }
        Ok(answers)
    }

    fn apply(&self, transaction: &mut RwTxn<'_>, request: &Request) -> heed::Result<Answer> {
        match request {
            Request::Post { remark } => {
                let last = self.remarks.last(transaction)?.map_or(0, |(number, _)| number);
                self.remarks.put(transaction, &(last + 1), remark)?;
                Ok(Answer::Posted)
            }
            Request::Visit { shown } => {
                let visitor = self.counters.get(transaction, VISITORS)?.unwrap_or(0) + 1;
                self.counters.put(transaction, VISITORS, &visitor)?;
                let newest = self.remarks.rev_iter(transaction)?.take(*shown as usize);
                let newest = newest.map(|entry| entry.map(|(_, remark)| remark.to_vec()));
                let mut remarks = newest.collect::<heed::Result<Vec<_>>>()?;
                remarks.reverse();
                Ok(Answer::Visit { remarks, visitor })
            }
        }
    }
}

fn explain(error: heed::Error) -> StoreError {
    match error {
        heed::Error::Mdb(MdbError::MapFull) => {
            StoreError::Full(format!("the file has {} octets", limits::FILE_BYTES))
        }
        heed::Error::Io(error) if error.kind() == io::ErrorKind::StorageFull => {
            StoreError::Full("the disk is full".to_owned())
        }
        heed::Error::Io(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            StoreError::ReadOnly(error.to_string())
        }
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
                (remarks.into_iter().map(|r| String::from_utf8(r).unwrap()).collect(), visitor)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn remarks_and_visits_are_kept_in_order() {
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
    fn a_batch_that_does_not_fit_is_given_up_as_a_whole() {
        let directory = tempfile::tempdir().unwrap();
        let file = File::open_bounded(&directory.path().join("small"), 128 << 10).unwrap();
        assert!(file.serve([post("before")].iter())[0].is_ok());
        let batch: Vec<_> = (0..100).map(|_| post(&"x".repeat(4000))).collect();
        let answers = file.serve(batch.iter());
        assert_eq!(answers.len(), 100);
        assert!(answers.iter().all(|answer| matches!(answer, Err(StoreError::Full(_)))));
        // And it goes on with what fits.
        assert!(file.serve([post("after")].iter())[0].is_ok());
        assert_eq!(visit(&file, 100).0, ["before", "after"]);
    }

    #[test]
    fn what_is_no_guestbook_is_told() {
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

    /// What the children of the next test do: `POLLUX_GUESTBOOK_CHILD` names the file.
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

    /// kill -9 in the middle of several processes' commits: what was acknowledged is there.
    #[test]
    fn what_was_acknowledged_survives_the_death_of_its_process() {
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
            let kept = |line: String| line.split_once("kept ").map(|(_, kept)| kept.to_owned());
            acknowledged.extend(lines.by_ref().map_while(Result::ok).filter_map(kept).take(20));
            child.kill().unwrap();
            acknowledged.extend(lines.map_while(Result::ok).filter_map(kept));
            child.wait().unwrap();
        }
        assert!(acknowledged.len() >= 60);
        let file = File::open(&path).unwrap();
        let (remarks, _) = visit(&file, u32::MAX);
        for remark in &acknowledged {
            assert!(remarks.contains(remark), "{remark} was acknowledged and is not there");
        }
        // Who died held no lock for good.
        assert!(file.serve([post("afterwards")].iter())[0].is_ok());
    }
}
