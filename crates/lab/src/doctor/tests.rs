//! What the doctor says about fixed facts.

use super::{Facts, MechanismFact, Report, Style};

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
            },
            MechanismFact {
                name: "devpoll".into(),
                summary: "/dev/poll".into(),
                available: false,
                reason: Some("no /dev/poll: load the module, or run in `pollux vm`".into()),
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
        memory_bytes: Some(24 << 30),
    }
}

#[test]
fn text_of_a_machine_with_troubles() {
    let text = Report::of(&facts()).text(Style { colour: false, width: 80 });
    assert!(!text.contains('\x1b'));
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    insta::assert_snapshot!(text);
}

#[test]
fn json_of_a_machine_with_troubles() {
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
    assert!(report.limits.iter().any(|check| check.name.contains("RLIMIT_NOFILE")));
}
