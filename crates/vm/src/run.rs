//! [`run`]: runs a command in a guest, from the options to the exit status.

use crate::{
    cache::Cache,
    environment,
    guest::{self, GuestEnd, GuestReport},
    init,
    initramfs::{Config, Initramfs},
    kernel::{self, Kernel},
    kmod, modules,
    process::Supervisor,
    qemu::{self, Forward, Machine, Mips},
    sealed::{self, SealedGuest},
};
use anyhow::{Context, bail, ensure};
use pollux_sys::require_program;
use std::{
    env,
    ffi::{OsStr, OsString},
    fmt::Write as _,
    fs::{self, File},
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    process::{self, Command},
    time::Duration,
};

/// Exit statuses of a run in addition to the command's own. (126 and 127 mean the same as in a shell:
/// the command could not be executed, or was not found.)
pub mod status {
    /// The guest could not be prepared or set up, or stopped before the command's end.
    pub const NOT_RUN: u8 = 123;
    /// The time limit was reached.
    pub const TIMED_OUT: u8 = 124;
    /// The kernel complained on its console.
    pub const KERNEL_COMPLAINED: u8 = 125;
}

/// The number of console lines that are shown when a run fails.
const SHOWN_LINES: usize = 120;
/// The least and the largest memory (MiB) and number of processors of a guest.
const MEMORY_MIB: std::ops::RangeInclusive<u32> = 256..=65536;
const CPUS: std::ops::RangeInclusive<u32> = 1..=64;
/// How the host's tree is mounted. `mmap` caches only the data that mapped files need, so that host and
/// guest see each other's writes at once; 500 KiB is the largest virtio message.
const MOUNT_OPTIONS: &str = "trans=virtio,version=9p2000.L,msize=512000,cache=mmap,access=any";

/// The module that is loaded into the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Module {
    /// /dev/poll, from the directory that [`crate::find_module`] finds.
    #[default]
    DevPoll,
    /// The modules that the Kbuild of this directory builds.
    Directory(PathBuf),
    /// None.
    None,
}

/// The command to run, and the guest to run it in.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The guest's kernel.
    pub kernel: kernel::KernelChoice,
    /// Searches the archive for a newer kernel of the series than the one in the cache.
    pub refresh: bool,
    /// Processors of the guest; with `deterministic` always one.
    pub cpus: u32,
    /// The guest's memory in MiB; `None`: as much as the kernel needs.
    pub memory_mib: Option<u32>,
    /// One processor whose clocks count instructions, at this speed.
    pub deterministic: Option<Mips>,
    /// Seals the guest while the command runs: it uses no files of the host, only those named here,
    /// which are in its memory.
    pub sealed: Option<SealedGuest>,
    /// How long the guest may run, boot included.
    pub timeout: Duration,
    /// The module.
    pub module: Module,
    /// The module's parameters, `name=value`.
    pub module_parameters: Vec<String>,
    /// Macros defined when the module is compiled, `NAME` or `NAME=VALUE`.
    pub module_defines: Vec<String>,
    /// Modules of the guest's kernel that are loaded at its start, by name. A sealed guest needs them here, because
    /// it cannot load a module later.
    pub kernel_modules: Vec<String>,
    /// TCP ports of the host's loopback that lead into the guest.
    pub forwards: Vec<Forward>,
    /// More environment for the command, `NAME=VALUE`.
    pub environment: Vec<OsString>,
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// The file to which the whole console is written.
    pub console_log: Option<PathBuf>,
    /// The cache's directory; `None`: the one that [`Cache::open`] chooses.
    pub cache: Option<PathBuf>,
}

impl Options {
    /// Options that run this command in a guest of two processors with /dev/poll, for five minutes at
    /// most.
    pub fn new(command: Vec<OsString>) -> Self {
        Self {
            kernel: kernel::KernelChoice::default(),
            refresh: false,
            cpus: 2,
            memory_mib: None,
            deterministic: None,
            sealed: None,
            timeout: Duration::from_secs(300),
            module: Module::default(),
            module_parameters: Vec::new(),
            module_defines: Vec::new(),
            kernel_modules: Vec::new(),
            forwards: Vec::new(),
            environment: Vec::new(),
            command,
            console_log: None,
            cache: None,
        }
    }
}

/// The destinations of the command's two output streams, byte for byte.
pub struct Streams {
    /// Its standard output.
    pub stdout: File,
    /// Its standard error.
    pub stderr: File,
}

/// How a run ended.
#[derive(Debug)]
pub struct Outcome {
    /// The exit status to return: the command's own (128 + signal if one killed it), or one of
    /// [`status`].
    pub status: u8,
    /// The reason, with the console, if the run failed before the command ended, or although the
    /// command ended.
    pub failure: Option<String>,
    /// The time from QEMU's start to the command's start.
    pub boot: Option<Duration>,
    /// The guest kernel's release.
    pub release: String,
}

/// Runs a command in a guest.
///
/// # Errors
/// The guest could not be prepared (a program is missing, no network, the module does not build), or a
/// signal arrived ([`crate::SignalError`]). No temporary files remain then.
pub fn run(options: &Options, streams: &Streams) -> anyhow::Result<Outcome> {
    ensure!(!options.command.is_empty(), "no command to run in the guest");
    ensure!(
        CPUS.contains(&options.cpus),
        "{} processors: a guest has {} to {}",
        options.cpus,
        CPUS.start(),
        CPUS.end()
    );
    let memory_mib = options.memory_mib.unwrap_or(*MEMORY_MIB.start());
    ensure!(
        MEMORY_MIB.contains(&memory_mib),
        "{memory_mib} MiB: a guest has {} to {} MiB of memory",
        MEMORY_MIB.start(),
        MEMORY_MIB.end()
    );
    ensure!(
        options.sealed.is_none()
            || (options.deterministic.is_some() && options.forwards.is_empty()),
        "a sealed guest is a deterministic one without ports"
    );
    if let Some((_, to)) = options.sealed.as_ref().and_then(|sealed| sealed.fetch.as_ref()) {
        // Created now, so that a run does not end without a directory for its results.
        fs::create_dir_all(to).with_context(|| to.display().to_string())?;
    }
    let report_file = options.sealed.as_ref().and_then(|sealed| sealed.report.as_deref());
    let supervisor = Supervisor::new()?;
    let program = require_program(qemu::PROGRAM, qemu::PACKAGE)?;
    let cache = Cache::open(options.cache.as_deref())?;
    let kernel = kernel::obtain(options.kernel, options.refresh, &cache, &supervisor)
        .with_context(|| format!("kernel {}", options.kernel))?;
    let memory_mib = options.memory_mib.unwrap_or(kernel.memory_mib);
    // The marker holds our pid, so that no message of the guest can be taken for it. Its length is the
    // same at each run.
    let marker = format!("pollux-init: end of the console {:010}", process::id());
    let initramfs = initramfs(options, &kernel, &cache, &supervisor, &marker)?;
    let path = format!("/proc/{}/fd/{}", process::id(), initramfs.as_raw_fd());
    let machine = Machine {
        image: &kernel.image,
        initramfs: Path::new(&path),
        cpus: options.cpus,
        memory_mib,
        deterministic: options.deterministic,
        is_sealed: options.sealed.is_some(),
        report: report_file,
        forwards: &options.forwards,
        as_root: rustix::process::geteuid().is_root(),
        kernel_arguments: kernel.arguments,
    };
    let log = match &options.console_log {
        Some(path) => {
            Some(File::create(path).with_context(|| format!("console log {}", path.display()))?)
        }
        None => None,
    };
    let boot = |log, silence| {
        let mut command = Command::new(&program);
        command.args(machine.arguments());
        tracing::debug!(?command, "starting QEMU");
        guest::run(&supervisor, command, &marker, options.timeout, silence, streams, log)
    };
    let again = log.as_ref().map(File::try_clone).transpose().context("console log")?;
    let silence = options.deterministic.is_none().then_some(guest::SILENCE_LIMIT);
    let mut report = boot(log, silence)?;
    // With two emulated processors, on a host that gives them too little time: when one processor
    // changes the kernel's text, the other may run into a breakpoint that is no longer there, or the
    // two may wait for each other. At that time nothing of the caller's has run yet, so a second start
    // is safe.
    if report.is_stillborn() && options.deterministic.is_none() {
        let why = match &report.end {
            GuestEnd::Failed(why) if report.stood_still => why,
            _ => report.console.complaints().first().map_or("no reason given", String::as_str),
        };
        tracing::warn!("the guest's kernel did not come up ({why}); it is started once more");
        report = boot(again, None)?;
    }
    let outcome = judge(&report, options.timeout, &kernel.release);
    if let Some(path) = report_file {
        // An empty report is of no use, and would keep its directory from being used again.
        let is_empty = fs::metadata(path).is_ok_and(|file| file.len() == 0);
        if is_empty || outcome.failure.is_none() {
            fs::remove_file(path).with_context(|| path.display().to_string())?;
        }
    }
    Ok(outcome)
}

fn initramfs(
    options: &Options,
    kernel: &Kernel,
    cache: &Cache,
    supervisor: &Supervisor,
    marker: &str,
) -> anyhow::Result<File> {
    let mut archive = Initramfs::new()?;
    let mut config = Config::default();
    archive.program("init", &init::obtain(cache, supervisor)?)?;
    archive.directory("dev")?;
    archive.directory("pollux")?;
    let mut load = |key: &str, path: &Path, parameters: &str| -> anyhow::Result<()> {
        let file = path.file_name().and_then(OsStr::to_str).context("a module has a name")?;
        let inside = format!("pollux/{file}");
        archive.file(&inside, path)?;
        let separator = if parameters.is_empty() { "" } else { " " };
        config.set(key, format!("/{inside}{separator}{parameters}"))
    };
    if let (None, Some(name)) = (&kernel.modules, options.kernel_modules.first()) {
        bail!("this kernel has no loadable modules, so {name} cannot be loaded");
    }
    if let Some(directory) = &kernel.modules {
        let mut needed = modules::NEEDED.to_vec();
        if !options.forwards.is_empty() {
            needed.extend(modules::NEEDED_FOR_NETWORK);
        }
        needed.extend(options.kernel_modules.iter().map(String::as_str));
        for path in modules::in_load_order(directory, &needed)? {
            load("module", &path, "")?;
        }
    }
    let source = match &options.module {
        Module::DevPoll => Some(kmod::find_module()?),
        Module::Directory(directory) => Some(directory.clone()),
        Module::None => None,
    };
    let mut unload = Vec::new();
    if let Some(source) = source {
        for path in kmod::build(cache, supervisor, kernel, &source, &options.module_defines)? {
            load("insmod", &path, &options.module_parameters.join(" "))?;
            unload.extend(path.file_stem().map(|name| name.to_string_lossy().replace('-', "_")));
        }
    }
    // The module that was loaded last may depend on the others.
    for name in unload.iter().rev() {
        config.set("unload", name)?;
    }
    if let Some(directory) = &kernel.modules {
        config.set("modules", directory)?;
        config.set("release", &kernel.release)?;
    }
    if !options.forwards.is_empty() {
        config.set("address", qemu::GUEST_ADDRESS)?;
    }
    config.set("9p-options", MOUNT_OPTIONS)?;
    let caller = match &options.sealed {
        Some(sealed) => {
            config.set("sealed", "yes")?;
            sealed.add_to(&mut archive, supervisor)?;
            sealed::ENVIRONMENT.iter().map(|(name, value)| (name.into(), value.into())).collect()
        }
        None => {
            config.set("cwd", env::current_dir().context("working directory")?)?;
            env::vars_os().collect::<Vec<(OsString, OsString)>>()
        }
    };
    let mips = options.deterministic.map(|mips| format!("{}={mips}", environment::MIPS).into());
    let extra: Vec<OsString> = mips.into_iter().chain(options.environment.clone()).collect();
    for variable in environment::for_guest(caller.into_iter(), &kernel.release, &extra) {
        if environment::name_of(&variable) == b"PATH" {
            config.set("path", &variable)?;
        }
        config.set("env", &variable)?;
    }
    for argument in &options.command {
        config.set("arg", argument)?;
    }
    if let Some(sealed) = &options.sealed {
        // The settings that differ from run to run are in a file of constant size, which the guest
        // reads after the command has ended.
        archive.bytes("pollux/config", config.as_bytes())?;
        config.set("end-marker", marker)?;
        if let Some((from, to)) = &sealed.fetch {
            config.set("fetch", from)?;
            config.set("fetch-to", to)?;
        }
        config.pad()?;
        archive.bytes("pollux/after", config.as_bytes())?;
    } else {
        config.set("end-marker", marker)?;
        archive.bytes("pollux/config", config.as_bytes())?;
    }
    archive.finish()
}

/// Turns the end of the run into a status. A complaint of the kernel outweighs everything else, because
/// it is the reason of all other failures.
fn judge(report: &GuestReport, timeout: Duration, release: &str) -> Outcome {
    let console = &report.console;
    let (status, headline) = match &report.end {
        _ if console.complaint_count() > 0 => {
            let what = match &report.end {
                GuestEnd::Exit(code) => format!("the command had ended with status {code}"),
                GuestEnd::TimedOut => format!("the guest was ended after {} s", timeout.as_secs()),
                GuestEnd::Failed(why) => why.clone(),
            };
            let count = console.complaint_count();
            let mut text = format!("the guest's kernel complained ({count} lines; {what}):");
            for line in console.complaints() {
                let _ = write!(text, "\n  {line}");
            }
            (status::KERNEL_COMPLAINED, Some(text))
        }
        GuestEnd::Exit(code) => (u8::try_from(code & 0xff).unwrap_or(u8::MAX), None),
        GuestEnd::TimedOut => {
            let seconds = timeout.as_secs();
            let text = format!(
                "the guest did not end within {seconds} s and was ended (--timeout SECONDS)"
            );
            (status::TIMED_OUT, Some(text))
        }
        GuestEnd::Failed(why) => (status::NOT_RUN, Some(why.clone())),
    };
    let failure = headline.map(|mut text| {
        text.push_str("\n--- console of the guest ---");
        for line in console.excerpt(SHOWN_LINES) {
            let _ = write!(text, "\n{line}");
        }
        text.push_str("\n--- end of the console ---");
        text
    });
    Outcome { status, failure, boot: report.boot, release: release.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::console::Console;

    fn judged(end: GuestEnd, console_text: &str) -> Outcome {
        let mut console = Console::new("END");
        console.push(console_text.as_bytes());
        judge(
            &GuestReport { end, console, boot: None, stood_still: false },
            Duration::from_secs(9),
            "6.1",
        )
    }

    #[test]
    fn the_command_status_is_returned_as_it_is() {
        for code in [0, 1, 42, 137, 255] {
            let outcome = judged(GuestEnd::Exit(code), "[ 1.0] all is well\n");
            assert_eq!((i32::from(outcome.status), outcome.failure), (code, None));
        }
    }

    #[test]
    fn a_complaint_fails_a_command_that_succeeded() {
        let outcome = judged(GuestEnd::Exit(0), "[    1.0] BUG: KASAN: slab-use-after-free in x\n");
        assert_eq!(outcome.status, status::KERNEL_COMPLAINED);
        assert!(outcome.failure.unwrap().contains("slab-use-after-free"));
    }

    #[test]
    fn a_hang_shows_the_console() {
        let outcome = judged(GuestEnd::TimedOut, "[    1.0] the last words\n");
        assert_eq!(outcome.status, status::TIMED_OUT);
        let text = outcome.failure.unwrap();
        assert!(text.contains("within 9 s") && text.contains("the last words"), "{text}");
    }
}
