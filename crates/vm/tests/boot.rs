//! Boots guests. Skipped, with the reason, where QEMU or Debian's kernels are not available; with
//! POLLUX_VM_REQUIRED set (as in CI) that is a failure.

use pollux_testkit::{Port, find_within};
use pollux_vm::{
    Cache, GuestFile, KernelChoice, Mips, Module, Options, Outcome, REPORT_PORT, SealedGuest,
    Streams, available_kernels, run, status,
};
use std::{
    ffi::{OsStr, OsString},
    fs,
    io::{Read, Seek, SeekFrom, Write},
    net::{TcpListener, TcpStream},
    os::unix::{ffi::OsStrExt, fs::FileExt},
    path::{Path, PathBuf},
    sync::{
        PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

/// What a guest writes to its port in the test of that.
const REPORTED: &str = "half of it\n";

/// Writes it, in a guest.
fn write_report() {
    let ports = fs::File::options().write(true).open("/dev/port").unwrap();
    for byte in REPORTED.as_bytes().chunks(1) {
        ports.write_all_at(byte, REPORT_PORT.into()).unwrap();
    }
}

/// Guests run beside each other, except those of tests that compare times or limit them: guests share
/// few processors.
static GUESTS: RwLock<()> = RwLock::new(());

fn beside_others() -> RwLockReadGuard<'static, ()> {
    GUESTS.read().unwrap_or_else(PoisonError::into_inner)
}

fn alone() -> RwLockWriteGuard<'static, ()> {
    GUESTS.write().unwrap_or_else(PoisonError::into_inner)
}

fn options(command: &[&str]) -> Options {
    let mut options = Options::new(command.iter().map(OsString::from).collect());
    options.kernel = KernelChoice::Archive;
    options.module = Module::None;
    options
}

struct RunOutcome {
    outcome: Outcome,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl RunOutcome {
    fn failure(&self) -> &str {
        self.outcome.failure.as_deref().unwrap_or("")
    }
}

/// Runs the guest, or prints the reason why it cannot.
fn boot(options: &Options) -> Option<RunOutcome> {
    let streams =
        Streams { stdout: tempfile::tempfile().unwrap(), stderr: tempfile::tempfile().unwrap() };
    let outcome = match run(options, &streams) {
        Ok(outcome) => outcome,
        Err(error) if std::env::var_os("POLLUX_VM_REQUIRED").is_none() && cannot_be_had(&error) => {
            eprintln!("skipped: {error:#}");
            return None;
        }
        Err(error) => panic!("{error:#}"),
    };
    let [stdout, stderr] = [streams.stdout, streams.stderr].map(|mut file| {
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_end(&mut bytes).unwrap();
        bytes
    });
    Some(RunOutcome { outcome, stdout, stderr })
}

/// Whether the cause of the error is this machine's equipment or network, and not our code.
fn cannot_be_had(error: &anyhow::Error) -> bool {
    let text = format!("{error:#}");
    ["is not installed", "Debian's archive", "downloading", "package lists"]
        .iter()
        .any(|part| text.contains(part))
}

fn probe() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/module")
}

#[test]
#[ignore = "slow: boots guests"]
fn each_stock_kernel_runs_a_command_with_a_module() {
    let _guests = beside_others();
    // The first boot queries the archive, or reports why it cannot.
    let Some(_) = boot(&options(&["true"])) else { return };
    let kernels = available_kernels(&Cache::open(None).unwrap()).unwrap();
    assert!(!kernels.is_empty());
    for kernel in kernels {
        let mut options = options(&["sh", "-c", "uname -r; cat /dev/pollux-vm-probe"]);
        options.kernel = kernel;
        options.module = Module::Directory(probe());
        options.module_parameters = vec!["answer=42".into()];
        let Some(done) = boot(&options) else { return };
        assert_eq!(done.outcome.status, 0, "{}", done.failure());
        let out = String::from_utf8(done.stdout).unwrap();
        assert!(out.starts_with(&format!("{kernel}.")) && out.ends_with("\n42\n"), "{out}");
    }
}

/// Experiments use netem. Both the kernel and `tc` load modules through modprobe. The host's
/// other files in /lib are visible, too.
#[test]
#[ignore = "slow: boots guests"]
fn modprobe_finds_the_guests_own_modules_whatever_the_host_has() {
    let _guests = beside_others();
    let script = "modprobe sch_netem && ls -d /sys/module/sch_netem && \
                  ls /lib/modules/$(uname -r)/modules.dep /lib/";
    let Some(done) = boot(&options(&["sh", "-c", script])) else { return };
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert_eq!(done.outcome.status, 0, "{out}{err}{}", done.failure());
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines[0] == "/sys/module/sch_netem" && lines[1].ends_with("/modules.dep"), "{out}");
    for entry in fs::read_dir("/lib").unwrap() {
        let name = entry.unwrap().file_name();
        assert!(lines.contains(&&*name.to_string_lossy()), "{name:?} of the host is not in {out}");
    }
}

#[test]
fn output_arguments_and_files_are_exact() {
    let _guests = beside_others();
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let bytes: Vec<u8> =
        (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(directory.path().join("input"), &bytes).unwrap();
    let script =
        r#"cd "$1" && cat input && head -c 1000000 input >&2 && printf %s "$2" > output && exit 7"#;
    let odd = OsStr::from_bytes(b"two words\nand 'quotes' \"$HOME\" \xff\xfe");
    let mut options = options(&["sh", "-c", script, "sh"]);
    options.command.extend([directory.path().as_os_str().to_owned(), odd.to_owned()]);
    let Some(done) = boot(&options) else { return };
    assert_eq!(done.outcome.status, 7, "{}", done.failure());
    assert!(done.stdout == bytes, "standard output differs");
    assert!(done.stderr == bytes[..1_000_000], "standard error differs");
    assert_eq!(fs::read(directory.path().join("output")).unwrap(), odd.as_bytes());
}

#[test]
#[ignore = "slow: boots guests"]
fn a_signal_is_reported_as_a_shell_reports_it() {
    let _guests = beside_others();
    let Some(done) = boot(&options(&["sh", "-c", "kill -9 $$"])) else { return };
    assert_eq!(done.outcome.status, 137, "{}", done.failure());
    let Some(done) = boot(&options(&["no-such-command"])) else { return };
    assert_eq!(done.outcome.status, 127, "{}", done.failure());
    assert!(String::from_utf8_lossy(&done.stderr).contains("no-such-command"));
}

/// The positive control: a detector that has never reported anything proves nothing.
#[test]
#[ignore = "slow: boots guests"]
fn a_complaint_on_the_console_fails_the_run() {
    let _guests = beside_others();
    let spoken = options(&["sh", "-c", "echo 'WARNING: spoken by the test' > /dev/kmsg"]);
    let with_module = |define: &str| {
        let mut options = options(&["true"]);
        options.module = Module::Directory(probe());
        options.module_defines = vec![define.into()];
        options
    };
    for (options, words) in [
        (spoken, "spoken by the test"),
        (with_module("PROBE_WARNS"), "WARNING: CPU"),
        (with_module("PROBE_STAYS"), "cannot be unloaded"),
        (options(&["sh", "-c", "echo c > /proc/sysrq-trigger; sleep 100"]), "Kernel panic"),
    ] {
        let Some(done) = boot(&options) else { return };
        assert_eq!(done.outcome.status, status::KERNEL_COMPLAINED, "{words}");
        assert!(done.failure().contains(words), "{words}: {}", done.failure());
    }
}

#[test]
#[ignore = "slow: boots guests"]
fn a_guest_that_hangs_is_ended_in_time() {
    let _guests = alone();
    let limit = Duration::from_secs(15);
    // The first boot may download and build; the limit is about the guest.
    let Some(_) = boot(&options(&["true"])) else { return };
    let start = Instant::now();
    let mut options = options(&["sleep", "1000"]);
    options.timeout = limit;
    let Some(done) = boot(&options) else { return };
    assert_eq!(done.outcome.status, status::TIMED_OUT);
    assert!(
        done.failure().contains("--timeout") && done.failure().contains("console of the guest")
    );
    assert!(start.elapsed() >= limit && start.elapsed() < limit * 4, "{:?}", start.elapsed());
}

/// Options that run this test program in the guest, in the role `role` of [`guest_side`].
fn in_guest(role: &str) -> Options {
    let program = std::env::current_exe().unwrap();
    let arguments = ["--exact", "guest_side", "--nocapture"];
    let mut options = options(&[&[program.to_str().unwrap()][..], &arguments].concat());
    options.environment = vec![format!("POLLUX_TEST_ROLE={role}").into()];
    options
}

/// The part of other tests that runs inside the guest; does nothing elsewhere.
#[test]
fn guest_side() {
    match std::env::var("POLLUX_TEST_ROLE").as_deref() {
        Err(_) => {}
        Ok("echo backwards") => {
            let (mut peer, _) = TcpListener::bind("0.0.0.0:7777").unwrap().accept().unwrap();
            let mut bytes = [0; 3];
            peer.read_exact(&mut bytes).unwrap();
            bytes.reverse();
            peer.write_all(&bytes).unwrap();
        }
        Ok("tell") => {
            let mut random = [0; 16];
            fs::File::open("/dev/urandom").unwrap().read_exact(&mut random).unwrap();
            let now = std::time::SystemTime::now();
            let mips = std::env::var("POLLUX_VM_MIPS").unwrap();
            let sees_host = Path::new(env!("CARGO_MANIFEST_DIR")).exists();
            write_report();
            let id = std::process::id();
            println!("told {now:?} {random:?} {id} MIPS {mips} host: {sees_host} told");
            fs::create_dir_all("/results/deep").unwrap();
            fs::write("/results/deep/file", "from the guest").unwrap();
        }
        Ok("report") => {
            write_report();
            if std::env::var_os("POLLUX_TEST_CRASH").is_some() {
                fs::write("/proc/sysrq-trigger", "c").unwrap();
            }
        }
        Ok("count") => {
            let work = || {
                let start = Instant::now();
                (0..20_000).for_each(|_| {
                    std::hint::black_box(std::os::unix::process::parent_id());
                });
                start.elapsed().as_nanos()
            };
            // This guest processes the host's input when the host has time. It may do so during a
            // measurement, on the same clock, for longer than several of these take. Of many
            // measurements, apart from one another, at least one is not disturbed.
            let figure = (0..16).flat_map(|_| {
                // Between two measurements the guest processes the host's input.
                std::thread::sleep(Duration::from_millis(200));
                [work(), work(), work(), work()]
            });
            println!("figure {}", figure.min().unwrap());
        }
        role => panic!("no role {role:?}: this is run by other tests, in a guest"),
    }
}

#[test]
#[ignore = "slow: boots guests"]
fn a_forwarded_port_leads_into_the_guest() {
    let _guests = beside_others();
    let reserved = Port::reserve();
    let port = reserved.number();
    let forwards = vec![format!("{port}:7777").parse().unwrap()];
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let client = scope.spawn(|| {
            // Before the guest listens, QEMU accepts the connection and closes it.
            let reply = || {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
                let mut reply = [0; 3];
                stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                stream.write_all(b"abc").and_then(|()| stream.read_exact(&mut reply)).ok()?;
                Some(reply)
            };
            find_within(Duration::from_secs(600), || match reply() {
                None if !over.load(Ordering::Relaxed) => None,
                reply => Some(reply),
            })
        });
        let mut options = in_guest("echo backwards");
        options.forwards = forwards;
        let done = boot(&options);
        over.store(true, Ordering::Relaxed);
        let Some(done) = done else { return };
        assert_eq!(done.outcome.status, 0, "{}", done.failure());
        assert_eq!(client.join().unwrap(), Some(Some(*b"cba")));
    });
}

/// The figure that the guest's side printed.
fn figure(done: &RunOutcome) -> f64 {
    assert_eq!(done.outcome.status, 0, "{}", done.failure());
    let out = String::from_utf8_lossy(&done.stdout);
    let figure = out.lines().find_map(|line| line.rsplit_once("figure ")).expect("a figure").1;
    figure.parse().unwrap()
}

/// Nanoseconds of the guest's clock, which counts instructions, for the same work in two guests.
#[test]
#[ignore = "slow: boots guests"]
fn the_deterministic_guest_repeats_itself() {
    let _guests = alone();
    let mut figures = Vec::new();
    for _ in 0..2 {
        let mut options = in_guest("count");
        options.deterministic = Some(Mips::NANOSECOND);
        let Some(done) = boot(&options) else { return };
        figures.push(figure(&done));
    }
    let low = figures.iter().copied().fold(f64::INFINITY, f64::min);
    let high = figures.iter().copied().fold(0.0, f64::max);
    // 20,000 system calls take more than a hundred instructions each, and less than ten thousand.
    assert!(low > 2e6 && high < 2e8, "{figures:?} ns");
    assert!(high / low < 1.015, "{figures:?} ns differ by more than 1.5 %");
}

/// Time of day, random numbers and process ids are the same in two sealed guests, and the files that
/// they wrote are copied back.
#[test]
#[ignore = "slow: boots guests"]
fn a_sealed_guest_repeats_exactly() {
    let _guests = beside_others();
    let directory = tempfile::tempdir().unwrap();
    let program = std::env::current_exe().unwrap();
    let sealed = SealedGuest {
        files: vec![GuestFile { from: program, guest_path: "/bin/boot".into() }],
        fetch: Some(("/results".into(), directory.path().join("a directory"))),
        report: Some(directory.path().join("report")),
    };
    let mut options = options(&["/bin/boot", "--exact", "guest_side", "--nocapture"]);
    options.deterministic = Some(Mips::PAPERS);
    options.sealed = Some(sealed);
    options.environment = vec!["POLLUX_TEST_ROLE=tell".into()];
    // A clock or a number of the host would be different each time.
    let mut all: Vec<String> = Vec::new();
    for _ in 0..2 {
        let Some(done) = boot(&options) else { return };
        assert_eq!(done.outcome.status, 0, "{}", done.failure());
        let text = String::from_utf8_lossy(&done.stdout);
        assert!(text.contains("MIPS 250") && text.contains("host: false"), "{text}");
        let written = directory.path().join("a directory/deep/file");
        assert_eq!(fs::read_to_string(&written).unwrap(), "from the guest");
        fs::remove_file(written).unwrap();
        // The last line is printed by the test harness and contains the duration of the test.
        all.push(text.split("told").nth(1).unwrap().to_owned());
    }
    assert_eq!(all[0], all[1]);
}

/// A sealed guest cannot load a module by its name, so netem is there only if the options name it.
#[test]
#[ignore = "slow: boots guests"]
fn a_sealed_guest_has_the_modules_of_its_kernel_that_the_options_name() {
    let _guests = beside_others();
    let tc = pollux_sys::find_program("tc").expect("the package iproute2");
    let mut options = options(&["/bin/tc", "qdisc", "add", "dev", "lo", "root", "netem"]);
    options.deterministic = Some(Mips::PAPERS);
    options.sealed = Some(SealedGuest {
        files: vec![GuestFile { from: tc, guest_path: "/bin/tc".into() }],
        ..SealedGuest::default()
    });
    for (modules, status) in [(vec![], 2), (vec!["sch_netem".to_owned()], 0)] {
        options.kernel_modules = modules;
        let Some(done) = boot(&options) else { return };
        assert_eq!(done.outcome.status, status, "{:?}: {}", options.kernel_modules, done.failure());
    }
}

/// What a sealed guest writes to its port is on the host while it runs, and stays there only if it fails.
#[test]
#[ignore = "slow: boots guests"]
fn the_report_of_a_sealed_guest_survives_its_crash() {
    let _guests = beside_others();
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("a, b");
    let program = std::env::current_exe().unwrap();
    let mut options = options(&["/bin/boot", "--exact", "guest_side", "--nocapture"]);
    options.deterministic = Some(Mips::PAPERS);
    options.sealed = Some(SealedGuest {
        files: vec![GuestFile { from: program, guest_path: "/bin/boot".into() }],
        fetch: None,
        report: Some(report.clone()),
    });
    options.environment = vec!["POLLUX_TEST_ROLE=report".into()];
    let Some(done) = boot(&options) else { return };
    assert_eq!(done.outcome.status, 0, "{}", done.failure());
    assert!(!report.exists(), "the guest ended as it should");
    options.environment.push("POLLUX_TEST_CRASH=yes".into());
    let Some(done) = boot(&options) else { return };
    assert_eq!(done.outcome.status, status::KERNEL_COMPLAINED, "{}", done.failure());
    assert_eq!(fs::read_to_string(&report).unwrap(), REPORTED);
}
