//! Finds the launcher that started this process, by its environment.

use anyhow::{Context, Result, bail, ensure};

/// The most ranks of one run: rank 0 has a connection and a thread for each.
pub const MAX_RANKS: u32 = 1024;

/// The way in which the ranks of a launcher work together, and their MPI library.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum MpiChoice {
    /// As the environment determines; alone without a launcher.
    #[default]
    Auto,
    /// Alone, regardless of the environment.
    Off,
    /// With this MPI library: a file, or a name for the dynamic linker.
    Library(String),
}

impl std::str::FromStr for MpiChoice {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "auto" => Self::Auto,
            "off" => Self::Off,
            library => Self::Library(library.to_owned()),
        })
    }
}

/// A launcher, and the information about this process in its environment variables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Launcher {
    pub(super) name: &'static str,
    pub(super) rank: u32,
    pub(super) size: u32,
    /// Names of its library for the dynamic linker, in the order in which they are tried.
    pub(super) libraries: &'static [&'static str],
    /// It kills all processes with SIGKILL, without warning, when one dies.
    pub(super) kills_at_once: bool,
}

const OPEN_MPI: &[&str] = &["libmpi.so.40", "libmpi.so"];
/// MPICH, as Debian names it, and the name that the libraries of its ABI share.
const MPICH: &[&str] = &["libmpich.so.12", "libmpi.so.12", "libmpich.so"];

/// The launcher of this process; `None` without one. `variable` reads the environment.
///
/// # Errors
/// The launcher gives its tasks no way to find each other, or the numbers contradict each other.
pub(super) fn find(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Launcher>> {
    let number = |name: &str| -> Result<Option<u32>> {
        let Some(text) = variable(name) else { return Ok(None) };
        let number = text
            .parse()
            .with_context(|| format!("{name}={text} in the environment is no number"))?;
        Ok(Some(number))
    };
    let pair = |rank: &str, size: &str| -> Result<Option<(u32, u32)>> {
        Ok(number(rank)?.zip(number(size)?))
    };
    let launcher = |name, (rank, size), libraries, kills_at_once| -> Result<Option<Launcher>> {
        ensure!(
            rank < size,
            "{name} says that this is rank {rank} of {size}; --ranks off runs without it"
        );
        ensure!(
            size <= MAX_RANKS,
            "{name} started {size} ranks: at most {MAX_RANKS} work together"
        );
        Ok(Some(Launcher { name, rank, size, libraries, kills_at_once }))
    };
    if let Some(world) = pair("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")? {
        return launcher("Open MPI's mpirun", world, OPEN_MPI, false);
    }
    let step = pair("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")?;
    if let Some(world) = pair("PMI_RANK", "PMI_SIZE")? {
        return match step {
            Some(_) => launcher("srun (PMI)", world, MPICH, false),
            None => launcher("MPICH's mpirun", world, MPICH, true),
        };
    }
    match (step, variable("PMIX_RANK").is_some()) {
        (Some(world), true) => launcher("srun (PMIx)", world, OPEN_MPI, false),
        (Some((_, size)), false) if size > 1 => bail!(
            "srun started {size} tasks without a way to find each other: give srun --mpi=pmix with \
             Open MPI, or --mpi=pmi2 with MPICH (`srun --mpi=list` lists its plugins), or pollux \
             --ranks off to let each task run alone"
        ),
        (None, true) => bail!(
            "PMIX_RANK is set, but neither Open MPI's nor Slurm's variables are: this launcher is not \
             known; --ranks off runs without it"
        ),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Result<Option<Launcher>, String> {
        let lookup = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.to_string())
        };
        find(lookup).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn each_launcher_is_known_by_its_variables() {
        assert_eq!(found(&[]), Ok(None));
        let of = |variables: &[(&str, &str)]| {
            let found = found(variables).unwrap().unwrap();
            (found.name, found.rank, found.size, found.kills_at_once)
        };
        let open_mpi = [("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4")];
        assert_eq!(of(&open_mpi), ("Open MPI's mpirun", 1, 4, false));
        let hydra = [("PMI_RANK", "0"), ("PMI_SIZE", "2")];
        assert_eq!(of(&hydra), ("MPICH's mpirun", 0, 2, true));
        let step = [("SLURM_PROCID", "3"), ("SLURM_STEP_NUM_TASKS", "4")];
        let pmi = [&step[..], &[("PMI_RANK", "3"), ("PMI_SIZE", "4")]].concat();
        assert_eq!(of(&pmi), ("srun (PMI)", 3, 4, false));
        let pmix = [&step[..], &[("PMIX_RANK", "3")]].concat();
        assert_eq!(of(&pmix), ("srun (PMIx)", 3, 4, false));
    }

    #[test]
    fn a_launcher_that_cannot_be_used_is_an_error_that_says_what_to_do() {
        let alone = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "1")];
        assert_eq!(found(&alone), Ok(None), "one task has no other to find");
        for (variables, part) in [
            (&[("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "2")][..], "srun --mpi=pmix"),
            (&[("PMIX_RANK", "0")], "not known"),
            (&[("PMI_RANK", "x"), ("PMI_SIZE", "2")], "PMI_RANK=x"),
            (&[("PMI_RANK", "2"), ("PMI_SIZE", "2")], "rank 2 of 2"),
            (&[("PMI_RANK", "2"), ("PMI_SIZE", "5000")], "at most 1024"),
        ] {
            let reason = found(variables).unwrap_err();
            assert!(reason.contains(part), "{part}: {reason}");
        }
    }
}
