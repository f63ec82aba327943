//! The guest's console: its last lines are kept, and each line is judged.

use std::collections::VecDeque;

/// The number of console lines that are kept to be shown.
const LINES_MAX: usize = 600;
/// A longer line is cut; the kernel's own records are shorter than 1 KiB.
const LINE_MAX: usize = 4096;
/// The number of complaints that are stored word for word; all are counted.
const COMPLAINTS_MAX: usize = 20;

/// The console as read so far.
#[derive(Default)]
pub(crate) struct Console {
    partial: Vec<u8>,
    lines: VecDeque<String>,
    complaints: Vec<String>,
    complaint_count: usize,
    /// Whether the kernel had no module when it first complained.
    had_none: Option<bool>,
    /// Whether the kernel has reported an out-of-tree module.
    is_tainted: bool,
    /// The line with which the guest's init ends the console.
    marker: String,
    marker_seen: bool,
}

impl Console {
    pub(crate) fn new(marker: &str) -> Console {
        Console { marker: marker.to_owned(), ..Console::default() }
    }

    /// Processes bytes of the serial line.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            match byte {
                b'\n' => self.end_line(),
                b'\r' => {}
                _ if self.partial.len() < LINE_MAX => self.partial.push(byte),
                _ => {}
            }
        }
    }

    /// Processes the last line, which has no line end, after the guest has ended.
    pub(crate) fn finish(&mut self) {
        if !self.partial.is_empty() {
            self.end_line();
        }
    }

    fn end_line(&mut self) {
        let line = String::from_utf8_lossy(&self.partial).into_owned();
        self.partial.clear();
        if message(&line) == self.marker {
            self.marker_seen = true;
            return;
        }
        if is_complaint(&line) {
            self.complaint_count += 1;
            if self.complaints.len() < COMPLAINTS_MAX {
                self.complaints.push(line.clone());
            }
        }
        if let Some(modules) = message(&line).strip_prefix("Modules linked in:") {
            let had_none = modules.trim().is_empty();
            self.had_none = self.had_none.or(Some(had_none).filter(|_| self.complaint_count > 0));
        }
        self.is_tainted |= line.contains("taints kernel");
        if self.lines.len() == LINES_MAX {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// Whether the guest has printed its last line.
    pub(crate) fn is_complete(&self) -> bool {
        self.marker_seen
    }

    /// The first lines in which the kernel complained.
    pub(crate) fn complaints(&self) -> &[String] {
        &self.complaints
    }

    pub(crate) fn complaint_count(&self) -> usize {
        self.complaint_count
    }

    /// Whether the kernel crashed because of an error of its own, before it had loaded a module.
    pub(crate) fn died_without_modules(&self) -> bool {
        self.had_none == Some(true)
    }

    /// Whether it has loaded a module that is not its own (kernel/module/main.c).
    pub(crate) fn is_tainted(&self) -> bool {
        self.is_tainted
    }

    /// The last `count` lines; with complaints, the lines from shortly before the first one.
    pub(crate) fn excerpt(&self, count: usize) -> Vec<&str> {
        let first = self
            .lines
            .iter()
            .position(|line| is_complaint(line))
            .map_or(self.lines.len().saturating_sub(count), |first| first.saturating_sub(3));
        self.lines.iter().skip(first).take(count).map(String::as_str).collect()
    }
}

/// The text of a console line, without `[    1.234567]` and `[   T42]` before it.
fn message(line: &str) -> &str {
    let mut rest = line;
    for _ in 0..2 {
        let trimmed = rest.trim_start();
        let timestamp = trimmed.strip_prefix('[').and_then(|inner| inner.split_once(']'));
        match timestamp {
            Some((inside, after)) if is_stamp(inside) => rest = after,
            _ => break,
        }
    }
    rest.strip_prefix(' ').unwrap_or(rest)
}

/// A time (`    1.234567`) or a caller (`   T42`, `    C1`) inside brackets.
fn is_stamp(inside: &str) -> bool {
    let inside = inside.trim_start();
    let caller = inside.strip_prefix(['T', 'C']).unwrap_or(inside);
    !caller.is_empty() && caller.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.')
}

/// Beginnings of messages in which the kernel reports a fault of its own, not of a program. They are
/// quoted from lib/bug.c, kernel/panic.c, mm/kasan/report.c, kernel/locking/lockdep.c, mm/kmemleak.c,
/// kernel/hung_task.c, kernel/watchdog.c, kernel/rcu/tree_stall.h, mm/slub.c.
const BEGINNINGS: &[&str] = &[
    "BUG: ",
    "BUG ",
    "WARNING: ",
    "KASAN: ",
    "KCSAN: ",
    "KFENCE: ",
    "UBSAN: ",
    "kernel BUG at ",
    "Kernel panic",
    "Oops: ",
    "Oops - ",
    "general protection fault",
    "double fault: ",
    "stack segment: ",
    "invalid opcode: ",
    "divide error: ",
    "int3: ",
    "Kernel stack overflow",
    "unreferenced object ",
    "DEBUG_LOCKS_WARN_ON",
    "INFO: task ",
    "INFO: possible ",
    "INFO: inconsistent lock state",
    "INFO: trying to register non-static key",
    "INFO: rcu",
    "INFO: suspicious RCU usage",
    "INFO: lockdep is turned off",
    "list_add corruption",
    "list_del corruption",
    "refcount_t: ",
    "sysfs: cannot create duplicate filename",
    "Slab corruption",
    "Padding overwritten",
    "usercopy: Kernel memory",
    "scheduling while atomic",
    "Fixing recursive fault",
    "unregister_netdevice: waiting for ",
];

/// Such messages that may be anywhere in the line, because they follow a subsystem's prefix.
const ANYWHERE: &[&str] = &[
    "possible circular locking dependency detected",
    "possible recursive locking detected",
    "possible irq lock inversion dependency detected",
    "inconsistent lock state",
    "suspicious RCU usage",
    "bad unlock balance detected",
    "held lock freed",
    "lock held when returning to user space",
    "unreferenced object 0x",
    "new suspected memory leaks",
    "watchdog: BUG: ",
    "hard LOCKUP",
    "rcu: INFO: ",
    "kernel BUG at",
    "BUG: KASAN",
];

/// Lines that begin like a complaint but are none: advice about the (emulated) processor.
const HARMLESS: &[&str] = &[
    "WARNING: Unprivileged eBPF is enabled",
    "WARNING: You are running an untested", // never in Debian's kernels, but in rc ones
];

/// Whether this console line is a complaint of the kernel about itself.
pub(crate) fn is_complaint(line: &str) -> bool {
    let message = message(line);
    if HARMLESS.iter().any(|harmless| message.starts_with(harmless)) || is_foreign_race(message) {
        return false;
    }
    BEGINNINGS.iter().any(|beginning| message.starts_with(beginning))
        || ANYWHERE.iter().any(|part| message.contains(part))
}

/// A data race that includes no function of a module (KCSAN writes `dp_scan [devpoll]`). The kernel has
/// many races of its own, which are known and not the module's fault.
fn is_foreign_race(message: &str) -> bool {
    message.starts_with("BUG: KCSAN: ") && !message.contains('[')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_complaints_are_seen() {
        for line in [
            "[   14.338120] WARNING: CPU: 1 PID: 211 at fs/eventpoll.c:1537 ep_insert+0x5f1/0x6b0",
            "[   12.002345] BUG: kernel NULL pointer dereference, address: 0000000000000018",
            "[   12.002345] BUG: KASAN: slab-use-after-free in dp_hint+0x5c/0x190 [devpoll]",
            "[   12.002345][  T211] BUG: KASAN: use-after-free in __wake_up_common+0x2d/0x110",
            "[    9.871243] BUG kmalloc-64 (Tainted: G           O      ): Poison overwritten",
            "[    9.871243] BUG: sleeping function called from invalid context at mm/slub.c:3211",
            "[    9.871243] BUG: scheduling while atomic: storm/142/0x00000002",
            "[   21.004311] WARNING: possible circular locking dependency detected",
            "[   21.004311] WARNING: possible recursive locking detected",
            "[   21.004311] WARNING: inconsistent lock state",
            "[   21.004311] INFO: possible recursive locking detected",
            "[   21.004311] INFO: trying to register non-static key.",
            "[   21.004311] WARNING: suspicious RCU usage",
            "[   21.004311] WARNING: bad unlock balance detected!",
            "[   60.918412] kmemleak: 3 new suspected memory leaks (see /sys/kernel/debug/kmemleak)",
            "[   60.918412] kmemleak: unreferenced object 0xffff888003a2e800 (size 128):",
            "[  242.771203] INFO: task storm:188 blocked for more than 120 seconds.",
            "[   48.104003] watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [storm:180]",
            "[   48.104003] rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:",
            "[    3.771002] Kernel panic - not syncing: Attempted to kill init! exitcode=0x0000000b",
            "[    3.771002] kernel BUG at fs/inode.c:611!",
            "[    3.771002] invalid opcode: 0000 [#1] PREEMPT SMP NOPTI",
            "[    3.771002] Oops: 0002 [#1] PREEMPT SMP NOPTI",
            "[    3.771002] general protection fault, probably for non-canonical address \
             0xdead000000000100: 0000 [#1]",
            "[    3.771002] refcount_t: underflow; use-after-free.",
            "[    3.771002] list_del corruption. prev->next should be ffff8880, but was dead",
            "[    3.771002] UBSAN: array-index-out-of-bounds in kernel/x.c:12:3",
            "[   12.002345] BUG: KCSAN: data-race in dp_read [devpoll] / dp_take_hints [devpoll]",
            "[   12.002345] BUG: KCSAN: data-race in tcp_poll / dp_scan [devpoll]",
            "WARNING: no time stamp at all",
        ] {
            assert!(is_complaint(line), "missed: {line}");
        }
    }

    #[test]
    fn a_kernel_that_dies_alone_differs_from_one_that_a_module_may_have_killed() {
        let oops = "[    1.731547] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI\n";
        let died_alone = |lines: &str| {
            let mut console = Console::new("END");
            console.push(lines.as_bytes());
            console.died_without_modules()
        };
        assert!(died_alone(&format!("{oops}[    1.739167] Modules linked in:\n")));
        assert!(died_alone(&format!("{oops}[    1.739167][    C1] Modules linked in: \n")));
        // Only the first complaint counts: a later one may have the same cause as the first.
        let loaded = "[    1.739167] Modules linked in: devpoll(O+) 9p\n";
        assert!(!died_alone(&format!("{oops}{loaded}[    1.8] Modules linked in:\n")));
        assert!(!died_alone(&format!("{oops}{loaded}")));
        assert!(
            !died_alone(oops) && !died_alone("[    1.7] Modules linked in:\n") && !died_alone("")
        );
    }

    #[test]
    fn harmless_lines_pass() {
        for line in [
            "[    0.000000] Linux version 6.1.0-56-amd64 (debian-kernel@lists.debian.org)",
            "[    0.556846] mtrr: your CPUs had inconsistent fixed MTRR settings",
            "[    1.830403] Unstable clock detected, switching default tracing clock to \"global\"",
            "[    0.032000] tsc: Unable to calibrate against PIT",
            "[    0.120000] Spectre V2 : WARNING: Unprivileged eBPF is enabled with eIBRS on",
            "[    5.101010] devpoll: loading out-of-tree module taints kernel.",
            "[    5.101010] devpoll: module verification failed: signature and/or required key \
             missing - tainting kernel",
            "[    6.000000] traps: a.out[99] general protection fault ip:401000 sp:7ffe error:0",
            "[    6.000000] a.out[99]: segfault at 0 ip 0000000000401126 sp 00007ffd error 6",
            "[    6.000000] clocksource: timekeeping watchdog on CPU1: wd-tsc-wd excessive read-back",
            "[    6.000000] FAULT_INJECTION: forcing a failure.",
            "[    6.000000] Warning: unable to open an initial console.",
            "[    6.000000] request_sock_TCP: Possible SYN flooding on port 80. Sending cookies.",
            "[    6.000000] ACPI: bus type drm_connector registered; DEBUG: x",
            "[    6.000000] kmemleak: Kernel memory leak detector initialized (mem pool available: \
             15679)",
            "[    6.000000] kmemleak: Cannot allocate a scan area, scanning the full object",
            "[    6.000000] Lock dependency validator: Copyright (c) 2006 Red Hat, Inc.",
            "[    6.000000] rcu: \tRCU lockdep checking is enabled.",
            "[   12.002345] BUG: KCSAN: data-race in tcp_poll / tcp_rcv_established",
            "",
        ] {
            assert!(!is_complaint(line), "taken for a complaint: {line}");
        }
    }

    #[test]
    fn stamps_and_callers_are_not_the_message() {
        assert_eq!(message("[    1.5] [x] y"), "[x] y");
        assert_eq!(message("[    1.500000][   T42] y"), "y");
        assert_eq!(message("[  OK  ] y"), "[  OK  ] y");
    }

    #[test]
    fn lines_are_put_together_and_bounded() {
        let mut console = Console::new("END 1");
        console.push(b"[    1.0] WARN");
        console.push(b"ING: a\r\n");
        for n in 0..2 * LINES_MAX {
            console.push(format!("[    2.0] line {n}\n").as_bytes());
        }
        console.push(&[b'x'; 3 * LINE_MAX]);
        console.push(b"\n[    3.0] END 1\n");
        assert!(console.is_complete());
        assert_eq!(console.complaints(), ["[    1.0] WARNING: a"]);
        assert_eq!(console.lines.len(), LINES_MAX);
        assert_eq!(console.lines.back().unwrap().len(), LINE_MAX);
    }

    #[test]
    fn the_excerpt_begins_before_the_first_complaint() {
        let mut console = Console::new("END");
        for n in 0..10 {
            console.push(format!("[    1.0] line {n}\n").as_bytes());
        }
        assert_eq!(console.excerpt(2), ["[    1.0] line 8", "[    1.0] line 9"]);
        console.push(b"[    1.0] BUG: x\n[    1.0] trace\n");
        console.push(b"[    1.0] no line's end");
        console.finish();
        assert_eq!(console.excerpt(100).len(), 6);
        assert_eq!(console.excerpt(100)[0], "[    1.0] line 7");
    }
}
