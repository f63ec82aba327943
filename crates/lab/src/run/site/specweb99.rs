//! A file set like that of the static part of SPECweb99.
//!
//! Sizes, classes, their shares (35, 50, 14 and 1 %), 36 files per directory and the choice of directories
//! by Zipf with exponent 1 follow Ruan and Pai, "Understanding and Addressing Blocking-Induced Network
//! Server Latency", USENIX 2006, section on the workload, which is based on SPECweb96 and SPECweb99. The
//! classes and their shares are also those of the "Workload for the SPECweb96 Benchmark" (spec.org).
//! SPECweb99 gives the nine files of a class different shares, with a mean size close to that of equal
//! shares; here the shares are equal. Gammo et al. sized file set and cache so that the whole set is
//! cached. The same is true here: eight directories, 40 MB, less than the server's default cache.

use anyhow::Context as _;
use std::{fmt::Write as _, fs, path::Path};

/// The number of directories.
pub(super) const DIRECTORIES: usize = 8;
/// The number of files of each class in a directory.
pub(super) const FILES: usize = 9;
/// The smallest file of each class in bytes (the n-th file has n times that size), and the class's share of
/// the requests in per cent.
pub(super) const CLASSES: [(usize, f64); 4] =
    [(100, 35.0), (1_000, 50.0), (10_000, 14.0), (100_000, 1.0)];

/// Lists every file: its directory, its class, and its number in the class (from 1).
fn files() -> impl Iterator<Item = (usize, usize, usize)> {
    (0..DIRECTORIES).flat_map(|directory| {
        (0..CLASSES.len())
            .flat_map(move |class| (1..=FILES).map(move |number| (directory, class, number)))
    })
}

/// Returns the file's name, as SPECweb99 names it.
fn name(directory: usize, class: usize, number: usize) -> String {
    format!("dir{directory:05}/class{class}_{number}")
}

/// Writes the files below `root`.
///
/// # Errors
/// When a file cannot be written.
pub(super) fn write(root: &Path) -> anyhow::Result<()> {
    for (directory, class, number) in files() {
        let file = root.join(name(directory, class, number));
        if let Some(parent) = file.parent() {
            fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
        }
        let bytes = vec![b'x'; CLASSES[class].0 * number];
        fs::write(&file, bytes).with_context(|| file.display().to_string())?;
    }
    Ok(())
}

/// Returns the URL file: each path with its weight.
pub(super) fn urls() -> String {
    files().fold(String::new(), |mut text, (directory, class, number)| {
        let share = CLASSES[class].1 / FILES as f64 / (directory + 1) as f64;
        let _ = writeln!(text, "/{} {share}", name(directory, class, number));
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_of_the_classes_and_of_zipf() {
        let text = urls();
        let lines: Vec<(&str, f64)> = text
            .lines()
            .map(|line| line.split_once(' ').unwrap())
            .map(|(path, weight)| (path, weight.parse().unwrap()))
            .collect();
        assert_eq!(lines.len(), DIRECTORIES * 36);
        let sum = |part: &str| -> f64 {
            lines.iter().filter(|(path, _)| path.contains(part)).map(|(_, weight)| weight).sum()
        };
        let all = sum("/");
        for (class, (_, share)) in CLASSES.iter().enumerate() {
            let found = sum(&format!("/class{class}_")) / all * 100.0;
            assert!((found - share).abs() < 1e-9, "class {class}: {found} %");
        }
        for directory in 1..DIRECTORIES {
            let ratio = sum("/dir00000/") / sum(&format!("/dir{directory:05}/"));
            assert!((ratio - (directory + 1) as f64).abs() < 1e-9, "{directory}: {ratio}");
        }
    }

    #[test]
    fn the_files_are_the_requested_ones() {
        let root = tempfile::tempdir().unwrap();
        write(root.path()).unwrap();
        let mut total = 0;
        for line in urls().lines() {
            let (path, _) = line.split_once(' ').unwrap();
            total += fs::metadata(root.path().join(&path[1..])).unwrap().len();
        }
        // 45 times 111,100 bytes in each directory.
        assert_eq!(total, DIRECTORIES as u64 * 45 * 111_100);
        let length = |path: &str| fs::metadata(root.path().join(path)).unwrap().len();
        assert_eq!(length("dir00003/class2_7"), 70_000);
    }
}
