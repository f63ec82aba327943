//! QEMU's command line.

use crate::sealed::REPORT_PORT;
use std::{fmt, path::Path, str::FromStr};

/// The package that has QEMU.
pub(crate) const PACKAGE: &str = "qemu-system-x86";
pub(crate) const PROGRAM: &str = "qemu-system-x86_64";
/// The time of day at which a sealed guest starts, the same in each run.
const SEALED_TIME: &str = "2000-05-01T00:00:00";
/// Makes QEMU record the guest, as if it were to be replayed. The record itself is not used. While QEMU
/// records, the thread of the guest's processor and the main loop, which lets the clock leap over idle
/// time, take turns (`replay_mutex_lock`).
///
/// Without recording, the main loop may read the clock when the processor is halted and its last
/// instructions are not accounted for. The clock then leaps too far by that time
/// (`icount_start_warp_timer`, 7.2). Some nanoseconds were enough to make two guests differ, when the
/// kernel still took the offset of its stack from the clock (`randomize_kstack_offset`).
const ONE_AT_A_TIME: &str = "rr=record,rrfile=/dev/null";
/// The guest's address in QEMU's user network.
pub(crate) const GUEST_ADDRESS: &str = "10.0.2.15";

/// A TCP port of this host, on loopback, that leads to one of the guest's ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forward {
    /// The port on 127.0.0.1 of the host.
    pub host: u16,
    /// The port in the guest.
    pub guest: u16,
}

impl FromStr for Forward {
    type Err = String;

    fn from_str(text: &str) -> Result<Forward, String> {
        let port = |text: &str| text.parse::<u16>().ok().filter(|port| *port > 0);
        text.split_once(':')
            .and_then(|(host, guest)| Some(Forward { host: port(host)?, guest: port(guest)? }))
            .ok_or_else(|| format!("{text:?} is not HOST_PORT:GUEST_PORT, each from 1 to 65535"))
    }
}

impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.guest)
    }
}

/// The speed of a guest whose clocks count instructions: millions of instructions per second of the
/// guest's time. QEMU accepts powers of two of nanoseconds per instruction (`-icount shift=`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mips(u32);

impl Mips {
    /// The supported speeds.
    pub const ALL: [Mips; 4] = [Mips(1000), Mips(500), Mips(250), Mips(125)];
    /// One nanosecond per instruction.
    pub const NANOSECOND: Mips = Mips(1000);
    /// Four nanoseconds per instruction: near the machines of the papers.
    pub const PAPERS: Mips = Mips(250);

    /// Millions of instructions per second.
    pub fn number(self) -> u32 {
        self.0
    }

    /// The nanoseconds per instruction, as the exponent of a power of two.
    fn shift(self) -> u32 {
        (1000 / self.0).ilog2()
    }
}

impl FromStr for Mips {
    type Err = String;

    fn from_str(text: &str) -> Result<Mips, String> {
        let known = Mips::ALL.into_iter().find(|mips| mips.to_string() == text);
        known.ok_or_else(|| format!("{text:?} is none of 1000, 500, 250 and 125"))
    }
}

impl fmt::Display for Mips {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The machine.
pub(crate) struct Machine<'a> {
    pub(crate) image: &'a Path,
    pub(crate) initramfs: &'a Path,
    pub(crate) cpus: u32,
    pub(crate) memory_mib: u32,
    /// One processor whose clocks count instructions, at this speed.
    pub(crate) deterministic: Option<Mips>,
    /// No input from the host reaches the guest while the command runs, not even the time of day.
    pub(crate) is_sealed: bool,
    /// The file that gets the bytes of the port [`REPORT_PORT`].
    pub(crate) report: Option<&'a Path>,
    pub(crate) forwards: &'a [Forward],
    /// Whether the guest's files may belong to anyone (QEMU runs as root), or to us alone.
    pub(crate) as_root: bool,
    pub(crate) kernel_arguments: &'a str,
}

impl Machine<'_> {
    /// The arguments. Descriptor 0 is the socket for frames, and the console is written to descriptor
    /// 1.
    pub(crate) fn arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut add = |words: &[&str]| arguments.extend(words.iter().map(|&word| word.to_owned()));
        // The guest is always emulated: nested KVM hangs or fails an assertion, and behaves differently
        // on each host.
        if let Some(mips) = self.deterministic {
            // The clock jumps over idle time. The random numbers that QEMU makes for the guest (RDRAND,
            // the seed that it passes to the kernel) come from a fixed seed.
            add(&["-accel", "tcg,thread=single", "-smp", "1", "-seed", "1"]);
            add(&["-icount", &format!("shift={},sleep=off,{ONE_AT_A_TIME}", mips.shift())]);
            let base = if self.is_sealed { SEALED_TIME } else { "utc" };
            add(&["-rtc", &format!("base={base},clock=vm")]);
        } else {
            add(&["-accel", "tcg,thread=multi", "-smp", &self.cpus.to_string()]);
        }
        // q35: the older `pc` stalls for 30 s in ACPI when virtio devices are there.
        add(&["-cpu", "max", "-M", "q35", "-m", &format!("{}M", self.memory_mib)]);
        add(&["-nodefaults", "-no-user-config", "-display", "none", "-monitor", "none"]);
        add(&["-no-reboot", "-name", "pollux-vm"]);
        add(&[
            "-kernel",
            &self.image.to_string_lossy(),
            "-initrd",
            &self.initramfs.to_string_lossy(),
        ]);
        add(&["-append", &self.kernel_command_line()]);
        add(&["-chardev", "file,id=console,path=/dev/stdout", "-serial", "chardev:console"]);
        // With an eventfd another thread would take the guest's output, at a time of its own.
        let port =
            if self.is_sealed { "virtio-serial-pci,ioeventfd=off" } else { "virtio-serial-pci" };
        add(&["-chardev", "socket,id=frames,fd=0", "-device", port]);
        add(&["-device", "virtserialport,chardev=frames,nr=1,name=pollux"]);
        if let Some(path) = self.report {
            // A comma in an option's value is doubled.
            let path = path.to_string_lossy().replace(',', ",,");
            add(&["-chardev", &format!("file,id=report,path={path}")]);
            let device = format!("isa-debugcon,iobase={REPORT_PORT:#x},chardev=report");
            add(&["-device", &device]);
        }
        let owner = if self.as_root { "passthrough" } else { "none" };
        add(&[
            "-virtfs",
            &format!("local,path=/,mount_tag=host,security_model={owner},multidevs=remap"),
        ]);
        if !self.forwards.is_empty() {
            // restrict=on: the guest cannot reach the network.
            let mut network = "user,id=network,restrict=on".to_owned();
            for forward in self.forwards {
                let Forward { host, guest } = forward;
                network += &format!(",hostfwd=tcp:127.0.0.1:{host}-{GUEST_ADDRESS}:{guest}");
            }
            add(&["-netdev", &network, "-device", "virtio-net-pci,netdev=network,romfile="]);
        }
        arguments
    }

    fn kernel_command_line(&self) -> String {
        // loglevel=5 prints warnings from the start, which "quiet" alone would hide; devkmsg=on keeps
        // the kernel from dropping messages that are written to /dev/kmsg.
        let mut line = "console=ttyS0 panic=-1 oops=panic nokaslr quiet loglevel=5 \
                        printk.devkmsg=on clocksource=tsc tsc=reliable"
            .to_owned();
        // Emulation on a busy host stalls for seconds; such a stall is not a fault of the guest.
        line += " rcupdate.rcu_cpu_stall_timeout=120";
        if self.deterministic.is_some() {
            // The addresses are the same in every process, and those of the stack the same in every
            // system call (the kernel would take the offset from the clock): addresses decide which
            // accesses miss the caches and which collide.
            line += " norandmaps randomize_kstack_offset=off";
        } else {
            // On a busy host the timer's interrupts can be too late for the check at boot, which then
            // panics ("IO-APIC + timer doesn't work"). The emulated timer does not have the fault that
            // the check looks for.
            line += " no_timer_check";
        }
        if !self.kernel_arguments.is_empty() {
            line.push(' ');
            line += self.kernel_arguments;
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine<'a>() -> Machine<'a> {
        Machine {
            image: Path::new("/boot/vmlinuz"),
            initramfs: Path::new("/proc/1/fd/3"),
            cpus: 2,
            memory_mib: 1024,
            deterministic: None,
            is_sealed: false,
            report: None,
            forwards: &[],
            as_root: true,
            kernel_arguments: "",
        }
    }

    #[test]
    fn emulation_is_never_left_to_chance() {
        for deterministic in [None, Some(Mips::PAPERS)] {
            let arguments = Machine { deterministic, ..machine() }.arguments();
            assert!(arguments.windows(2).any(|w| w[0] == "-accel" && w[1].starts_with("tcg,")));
            assert!(!arguments.iter().any(|argument| argument.contains("kvm")));
        }
    }

    #[test]
    fn deterministic_is_one_processor_that_counts_instructions() {
        for (mips, shift) in [("1000", 0), ("500", 1), ("250", 2), ("125", 3)] {
            let deterministic = Some(mips.parse().unwrap());
            let machine = Machine { deterministic, cpus: 4, ..machine() };
            let arguments = machine.arguments().join(" ");
            let expected = format!(
                "-smp 1 -seed 1 -icount shift={shift},sleep=off,rr=record,rrfile=/dev/null -rtc base=utc"
            );
            assert!(arguments.contains(&expected), "{arguments}");
            assert!(arguments.contains(" norandmaps randomize_kstack_offset=off"), "{arguments}");
        }
        assert!("300".parse::<Mips>().unwrap_err().contains("250"));
    }

    #[test]
    fn a_sealed_guest_gets_no_time() {
        let machine = Machine { deterministic: Some(Mips::PAPERS), is_sealed: true, ..machine() };
        let arguments = machine.arguments().join(" ");
        assert!(arguments.contains("base=2000-05-01T00:00:00,clock=vm"), "{arguments}");
        assert!(arguments.contains("virtio-serial-pci,ioeventfd=off"), "{arguments}");
    }

    #[test]
    fn a_report_goes_to_its_file() {
        let report = Some(Path::new("/a,b/report"));
        let arguments = Machine { report, ..machine() }.arguments().join(" ");
        assert!(arguments.contains("-chardev file,id=report,path=/a,,b/report"), "{arguments}");
        assert!(arguments.contains("isa-debugcon,iobase=0xe9,chardev=report"), "{arguments}");
    }

    #[test]
    fn forwarded_ports_stay_on_loopback() {
        let forwards = ["8080:80".parse().unwrap(), "9:9".parse().unwrap()];
        let arguments = Machine { forwards: &forwards, ..machine() }.arguments().join(" ");
        assert!(
            arguments.contains(
                "restrict=on,hostfwd=tcp:127.0.0.1:8080-10.0.2.15:80,\
                 hostfwd=tcp:127.0.0.1:9-10.0.2.15:9"
            ),
            "{arguments}"
        );
        for wrong in ["80", "0:80", "80:0", "80:70000", "a:b", ""] {
            assert!(wrong.parse::<Forward>().is_err(), "{wrong}");
        }
    }
}
