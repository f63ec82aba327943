//! `pollux vm`.

use crate::{message::say, print::print_all};
use anyhow::Context;
use clap::ValueHint;
use pollux_vm::{
    Cache, Forward, GuestFile, KernelChoice, Mips, Module, Options, SealedGuest, SignalError,
    Streams, status,
};
use std::{
    ffi::OsString, fs::File, io, os::fd::AsFd, path::PathBuf, process::ExitCode, time::Duration,
};

/// The default number of processors of a guest.
const DEFAULT_CPUS: u32 = 2;
/// The default timeout in seconds. Emulation is ten to thirty times slower than the machine.
const DEFAULT_TIMEOUT_S: u64 = 900;
/// The maximum timeout: one day.
const TIMEOUT_MAX_S: u64 = 86_400;

const EXAMPLES: &str = "\
Examples:
  pollux vm -- uname -a
  pollux vm --list-kernels
  pollux vm --kernel 6.12 -- kmod/devpoll/selftests/run
  pollux vm --deterministic -- ./my-benchmark --rounds 1000
  pollux vm --deterministic --mips 250 --carry ./benchmark:/bin/benchmark \\
    --fetch /results:out -- /bin/benchmark --out /results
  pollux vm --kernel debug --timeout 1800 -- kmod/devpoll/selftests/run storm
  pollux vm --module none --forward 8080:80 -- pollux serve --listen :80 site
  pollux vm --module ./mine --module-parameter verbose=1 -- cat /proc/modules
  pollux vm -- sh -c 'modprobe sch_netem && tc qdisc add dev lo root netem'

The guest is emulated, without KVM. It has the host's file tree at the same
paths, reads and writes it with your rights, and the command starts in the same
directory. /proc, /sys, /dev and /dev/shm are the guest's own, and TMPDIR is its
/dev/shm. The command gets PATH, HOME, LANG, LC_*, TERM, TZ, RUST_*, CARGO_*,
POLLUX_*, DEVPOLL_* and the like from your environment; POLLUX_VM contains the
release of the guest's kernel. In a sealed guest (--carry) the command starts in
/ with a fixed environment, which has POLLUX_VM, and in POLLUX_VM_MIPS the speed
of the guest's clocks.

Exit status: that of the command; 128 + signal if a signal killed the command;
126 if it could not be executed, 127 if it was not found; 123 if the guest could
not be prepared or stopped early; 124 after the timeout; 125 if the guest's
kernel reported a fault on its console (BUG, WARNING, KASAN, lockdep, kmemleak,
hung task, panic); 2 for a usage error. Needs qemu-system-x86, gcc, make and
kmod. Kernels and headers are fetched once from Debian's archive, into
$POLLUX_CACHE (default: ~/.cache/pollux).";

/// The command's arguments.
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The guest's kernel: Debian's 6.1 or 6.12; `newest`, from the backports for its stable release;
    /// `debug` (6.1 with KASAN, lockdep and kmemleak) or `kcsan` (6.1 with KCSAN), which are built here
    /// the first time, in 5 to 15 minutes [default: 6.1 on Debian 12, 6.12 on Debian 13]
    #[arg(long, value_name = "KERNEL")]
    kernel: Option<KernelChoice>,
    /// Print which of Debian's kernels the archive has, the default first, and run nothing
    #[arg(long, exclusive = true)]
    list_kernels: bool,
    /// Take the newest kernel in Debian's archive, even if an older one is in the cache
    #[arg(long)]
    refresh: bool,
    /// Processors of the guest
    #[arg(long, value_name = "N", default_value_t = DEFAULT_CPUS)]
    cpus: u32,
    /// Memory of the guest, in MiB or with a suffix M or G [default: depends on the kernel]
    #[arg(long, value_name = "SIZE", value_parser = memory)]
    memory: Option<u32>,
    /// Repeatable figures: one processor whose clocks count instructions, and no random addresses
    #[arg(long, conflicts_with = "cpus")]
    deterministic: bool,
    /// How many million instructions make one second of a deterministic guest's clocks: 1000, 500, 250
    /// (near the papers' machines) or 125
    #[arg(long, value_name = "N", default_value = "1000", requires = "deterministic")]
    mips: Mips,
    /// Seal a deterministic guest, so that it repeats exactly: it has no access to the host's files, only
    /// this file and the libraries that it needs, in its memory; may be repeated
    #[arg(
        long,
        value_name = "FILE[:PLACE]",
        requires = "deterministic",
        conflicts_with = "forward"
    )]
    carry: Vec<GuestFile>,
    /// Copy a directory of a sealed guest to the host when the command has ended
    #[arg(long, value_name = "GUEST_DIR:DIR", requires = "carry", value_parser = fetch)]
    fetch: Option<(PathBuf, PathBuf)>,
    /// While a sealed guest runs, write to this file what its command writes to the I/O port 0xe9,
    /// through /dev/port. The file is deleted after a run without a failure
    #[arg(long, value_name = "FILE", requires = "carry", value_hint = ValueHint::FilePath)]
    report: Option<PathBuf>,
    /// Stop a guest that runs longer than this, boot included
    #[arg(long, value_name = "SECONDS", default_value_t = DEFAULT_TIMEOUT_S,
          value_parser = clap::value_parser!(u64).range(1..=TIMEOUT_MAX_S))]
    timeout: u64,
    /// Directory of the kernel module to build and load, or `none` [default: kmod/devpoll]
    #[arg(long, value_name = "DIR|none", value_hint = ValueHint::DirPath)]
    module: Option<PathBuf>,
    /// A parameter of the module; may be repeated
    #[arg(long, value_name = "NAME=VALUE")]
    module_parameter: Vec<String>,
    /// A macro defined when the module is compiled; may be repeated
    #[arg(long, value_name = "NAME[=VALUE]")]
    module_define: Vec<String>,
    /// Load this module of the guest's kernel at its start, such as sch_netem. A sealed guest cannot load one
    /// later; may be repeated
    #[arg(long, value_name = "NAME")]
    kernel_module: Vec<String>,
    /// Forward a TCP port of the host's loopback to the guest; may be repeated
    #[arg(long, value_name = "HOST:GUEST")]
    forward: Vec<Forward>,
    /// Set an environment variable for the command; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<OsString>,
    /// Write the guest's whole console output to this file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    console: Option<PathBuf>,
    /// Print on standard error how long the boot took
    #[arg(long, short)]
    verbose: bool,
    /// The command to run in the guest, with its arguments
    #[arg(required_unless_present = "list_kernels", trailing_var_arg = true, allow_hyphen_values = true, value_name = "CMD",
          value_hint = ValueHint::CommandWithArguments)]
    command: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> anyhow::Result<ExitCode> {
    if args.list_kernels {
        let kernels = pollux_vm::available_kernels(&Cache::open(None)?)?;
        for kernel in kernels {
            print_all(&format!("{kernel}\n"))?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let verbose = args.verbose;
    let streams = Streams { stdout: own(&io::stdout())?, stderr: own(&io::stderr())? };
    match pollux_vm::run(&options(args), &streams) {
        Ok(outcome) => {
            if let Some(boot) = outcome.boot.filter(|_| verbose) {
                let release = &outcome.release;
                say(format_args!(
                    "pollux vm: {release} ran the command after {:.1} s",
                    boot.as_secs_f64()
                ));
            }
            if let Some(failure) = &outcome.failure {
                say(format_args!("pollux vm: {failure}"));
            }
            Ok(ExitCode::from(outcome.status))
        }
        Err(error) => {
            say(format_args!("pollux vm: {error:#}"));
            let signal = error.downcast_ref::<SignalError>().map(|SignalError(signal)| *signal);
            let code = signal.and_then(|signal| u8::try_from(128 + signal).ok());
            Ok(ExitCode::from(code.unwrap_or(status::NOT_RUN)))
        }
    }
}

fn options(args: Args) -> Options {
    let mut options = Options::new(args.command);
    options.kernel = args.kernel.unwrap_or_default();
    options.refresh = args.refresh;
    options.cpus = args.cpus;
    options.memory_mib = args.memory;
    options.deterministic = args.deterministic.then_some(args.mips);
    options.sealed = (!args.carry.is_empty()).then_some(SealedGuest {
        files: args.carry,
        fetch: args.fetch,
        report: args.report,
    });
    options.timeout = Duration::from_secs(args.timeout);
    options.module = match args.module {
        None => Module::DevPoll,
        Some(directory) if directory.as_os_str() == "none" => Module::None,
        Some(directory) => Module::Directory(directory),
    };
    options.module_parameters = args.module_parameter;
    options.module_defines = args.module_define;
    options.kernel_modules = args.kernel_module;
    options.forwards = args.forward;
    options.environment = args.env;
    options.console_log = args.console;
    options
}

fn own(stream: &impl AsFd) -> anyhow::Result<File> {
    let fd = stream.as_fd().try_clone_to_owned().context("a standard stream is closed")?;
    Ok(File::from(fd))
}

fn memory(text: &str) -> Result<u32, String> {
    let (number, unit) = match text.strip_suffix(['G', 'g']) {
        Some(number) => (number, 1024),
        None => (text.strip_suffix(['M', 'm']).unwrap_or(text), 1),
    };
    let mib = number.parse::<u32>().ok().and_then(|number| number.checked_mul(unit));
    mib.ok_or_else(|| format!("{text:?} is not a size such as 1024, 1024M or 2G"))
}

fn fetch(text: &str) -> Result<(PathBuf, PathBuf), String> {
    match text.split_once(':') {
        Some((from, to)) if from.starts_with('/') && !to.is_empty() => {
            let to = std::path::absolute(to).map_err(|error| format!("{to:?}: {error}"))?;
            Ok((from.into(), to))
        }
        _ => Err(format!("{text:?} is not GUEST_DIR:DIR, with an absolute GUEST_DIR")),
    }
}

fn variable(text: &str) -> Result<OsString, String> {
    match text.split_once('=') {
        Some((name, _)) if !name.is_empty() => Ok(text.into()),
        _ => Err(format!("{text:?} is not NAME=VALUE")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_names_every_kernel() {
        let help = <Args as clap::Args>::augment_args(clap::Command::new("vm"))
            .render_long_help()
            .to_string();
        for kernel in KernelChoice::named() {
            assert!(help.contains(&kernel.to_string()), "{kernel}: {help}");
        }
    }

    #[test]
    fn results_come_from_a_directory_of_the_guest() {
        assert_eq!(fetch("/a:/b").unwrap(), ("/a".into(), "/b".into()));
        for wrong in ["a:/b", "/a", "/a:"] {
            assert!(fetch(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_mebibytes_unless_they_say_otherwise() {
        assert_eq!(memory("1024"), Ok(1024));
        assert_eq!(memory("512M"), Ok(512));
        assert_eq!(memory("2G"), Ok(2048));
        for wrong in ["", "G", "-1", "1.5G", "9999999G"] {
            assert!(memory(wrong).is_err(), "{wrong}");
        }
    }
}
