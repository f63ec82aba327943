//! The report of the doctor for fixed facts.

use super::{Facts, MechanismFact, OptionFact, Report, SandboxFact, Style, Surroundings, TlsFact};

/// Returns the words of a text.
fn words<T: FromIterator<String>>(text: &str) -> T {
    text.split(' ').map(str::to_owned).collect()
}

fn facts() -> Facts {
    let limit = |name: &str, soft, hard| (name.to_owned(), (soft, hard));
    let sysctl = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    Facts {
        kernel: "Linux 6.18.0 #1 SMP x86_64".into(),
        mechanisms: vec![
            MechanismFact {
                name: "epoll-et".into(),
                summary: "epoll, edge-triggered: one event per arrival".into(),
                available: true,
                reason: None,
                options: Vec::new(),
            },
            MechanismFact {
                name: "devpoll".into(),
                summary: "/dev/poll".into(),
                available: false,
                reason: Some("no /dev/poll: load the module, or run in `pollux vm`".into()),
                options: vec![
                    OptionFact {
                        key: "results".into(),
                        values: words("copy mmap"),
                        meaning: "how results reach the program".into(),
                    },
                    OptionFact {
                        key: "room".into(),
                        values: Vec::new(),
                        meaning: "the most results of a wait".into(),
                    },
                ],
            },
        ],
        limits: [
            limit("nofile", Some(1_024), Some(4_096)),
            limit("sigpending", Some(96_365), Some(96_365)),
            limit("memlock", Some(8 << 20), Some(8 << 20)),
            limit("nproc", None, None),
        ]
        .into(),
        sysctls: [
            sysctl("fs/file-max", "9223372036854775807"),
            sysctl("fs/nr_open", "1048576"),
            sysctl("kernel/io_uring_disabled", "2"),
            sysctl("net/core/somaxconn", "128"),
            sysctl("net/ipv4/ip_local_port_range", "32768 60999"),
            sysctl("net/ipv4/tcp_congestion_control", "bbr"),
            sysctl("net/ipv4/tcp_max_orphans", "65536"),
            sysctl("net/ipv4/tcp_tw_reuse", "2"),
        ]
        .into(),
        sandbox: SandboxFact {
            landlock_abi: Some(3),
            landlock_refused: None,
            seccomp_actions: "kill_process kill_thread trap errno user_notif trace allow".into(),
        },
        tls: TlsFact {
            library: "rustls".into(),
            provider: "ring".into(),
            versions: words("1.3 1.2"),
            suites: words("TLS_AES_128_GCM_SHA256 TLS_CHACHA20_POLY1305_SHA256"),
            groups: words("X25519 secp256r1"),
            kernel: false,
            kernel_refused: Some("its module `tls` is not loaded (modprobe tls)".into()),
            cpu: [("aes", false), ("pclmulqdq", false), ("vaes", false)]
                .map(|(name, has)| (name.to_owned(), has))
                .into(),
        },
        memory_bytes: Some(24 << 30),
        surroundings: Surroundings {
            programs: words("cc gcc make xz nginx"),
            cargo: Some("1.85.0".into()),
            can_install: false,
            cpus: 1,
            port_refused: Some("another process listens there".into()),
            network_refused: Some("unshare(2): Operation not permitted".into()),
            counting_refused: Some("it has no kprobes".into()),
            architecture: "x86_64".into(),
        },
    }
}

/// A machine on which all of README's commands work.
fn good() -> Facts {
    let mut facts = facts();
    facts.limits.insert("nofile".into(), (Some(1_024), Some(20_000)));
    facts.surroundings = Surroundings {
        programs: words("cc gcc make xz depmod qemu-system-x86_64 nginx h2o lighttpd wrk"),
        cargo: Some("1.88.0".into()),
        can_install: true,
        cpus: 2,
        architecture: "x86_64".into(),
        ..Surroundings::default()
    };
    facts
}

#[test]
fn each_obstacle_stops_only_the_commands_that_it_affects() {
    let stopped = |change: &dyn Fn(&mut Facts)| -> Vec<String> {
        let mut facts = good();
        change(&mut facts);
        let commands = Report::of(&facts).commands.into_iter();
        commands.filter(|c| !c.works).map(|c| c.command[..9].to_owned()).collect()
    };
    assert!(stopped(&|_| ()).is_empty());
    assert!(Report::of(&good()).commands.iter().all(|command| command.obstacles.is_empty()));
    assert_eq!(stopped(&|f| f.surroundings.port_refused = Some("no".into())), ["pollux se"]);
    // For root, a target of the Makefile installs missing packages; `pollux vm` installs nothing.
    let no_qemu = |f: &mut Facts| {
        f.surroundings.programs.remove("qemu-system-x86_64");
    };
    assert_eq!(stopped(&no_qemu), ["pollux vm"]);
    let other_user = |f: &mut Facts| {
        no_qemu(f);
        f.surroundings.can_install = false;
    };
    assert_eq!(stopped(&other_user), ["make test", "pollux vm"]);
    let few = |f: &mut Facts| {
        f.limits.insert("nofile".into(), (Some(1_024), Some(4_096)));
    };
    assert_eq!(stopped(&few), ["make demo", "pollux lo", "pollux la"]);
    let narrow = |f: &mut Facts| {
        f.sysctls.insert("net/ipv4/ip_local_port_range".into(), "60000 60999".into());
    };
    assert_eq!(stopped(&narrow), ["make demo", "pollux lo", "pollux la"]);
    let old = |f: &mut Facts| f.surroundings.cargo = Some("0.66.0".into());
    assert_eq!(stopped(&old), ["make demo", "make test", "make benc"]);
    assert!(stopped(&|f| f.surroundings.network_refused = Some("EPERM".into())).is_empty());
}

/// Regression: the product was more than 64 bits have, and pages had 4 KiB on every machine.
#[test]
fn the_memory_of_tcp_counts_pages() {
    let meaning = |pages: u64| -> String {
        let mut facts = good();
        facts.sysctls.insert("net/ipv4/tcp_mem".into(), format!("1 2 {pages}"));
        let checks = Report::of(&facts).sysctls.into_iter();
        checks.filter(|check| check.name == "net.ipv4.tcp_mem").map(|check| check.meaning).collect()
    };
    let page = crate::format::bytes(rustix::param::page_size() as u64);
    assert_eq!(meaning(1), format!("TCP buffers of all sockets may take {page}"));
    let all = crate::format::bytes(u64::MAX);
    assert_eq!(meaning(i64::MAX as u64), format!("TCP buffers of all sockets may take {all}"));
}

#[test]
fn text_of_a_machine_with_obstacles() {
    let text = Report::of(&facts()).text(Style { colour: false, width: 80 });
    assert!(!text.contains('\x1b'));
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn json_of_a_machine_with_obstacles() {
    insta::assert_json_snapshot!(Report::of(&facts()));
}

#[test]
fn colours_change_nothing_but_colours() {
    let report = Report::of(&facts());
    let plain = report.text(Style { colour: false, width: 80 });
    let mut coloured = report.text(Style { colour: true, width: 80 });
    assert!(coloured.contains('\x1b'));
    while let Some(start) = coloured.find('\x1b') {
        let end = start + coloured[start..].find('m').unwrap();
        coloured.replace_range(start..=end, "");
    }
    assert_eq!(coloured, plain);
}

#[test]
fn this_machine_can_be_looked_at() {
    let report = Report::of(&Facts::look().unwrap());
    assert_eq!(report.mechanisms.len(), pollux_event::registry::ALL.len());
    assert!(report.mechanisms.iter().all(|m| m.available == m.reason.is_none()));
    // docs/mechanisms.md says that the options are listed.
    let options = report.mechanisms.iter().flat_map(|m| &m.options);
    let all: usize = pollux_event::registry::ALL.iter().map(|m| m.own_options.len()).sum();
    assert_eq!(options.count(), all);
    assert!(report.text(Style { colour: false, width: 80 }).contains("dequeue=batch|one: "));
    assert_eq!(report.tls.kernel, report.tls.kernel_refused.is_none());
    assert!(report.limits.iter().any(|check| check.name.contains("RLIMIT_NOFILE")));
}
