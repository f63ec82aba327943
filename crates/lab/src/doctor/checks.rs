//! The effect of each limit and sysctl on the number of connections.

use super::{Check, Facts};
use crate::format::{self, count};

/// A number of connections that many users want to hold; below it there is advice.
const MANY: u64 = 10_000;
/// The kernel memory of one loopback connection, with two TCP sockets (2,368 B each) and two sock_inode
/// objects (832 B each), but without their buffers. Measured on Linux 6.18.
const PAIR_BYTES: u64 = 7_600;
/// How long a closed connection occupies its port, in seconds (TCP_TIMEWAIT_LEN of the kernel).
const TIME_WAIT_S: u64 = 60;
/// The descriptors of a server that are not connections: listener, epoll, log, standard streams …
const OWN_DESCRIPTORS: u64 = 32;

fn limit(value: Option<u64>) -> String {
    value.map_or_else(|| "unlimited".into(), count)
}

/// Checks the limits of this process (getrlimit(2)).
pub(super) fn limits(facts: &Facts) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut put = |name: &str, key: &str, judge: &dyn Fn(Option<u64>, Option<u64>) -> CheckText| {
        if let Some(&(soft, hard)) = facts.limits.get(key) {
            let (meaning, advice) = judge(soft, hard);
            let value = format!("{} (hard {})", limit(soft), limit(hard));
            checks.push(Check { name: name.into(), value, meaning, advice });
        }
    };
    put("open files (RLIMIT_NOFILE)", "nofile", &|_, hard| {
        let connections = hard.map(|hard| hard.saturating_sub(OWN_DESCRIPTORS));
        let meaning = match connections {
            Some(connections) => format!(
                "about {} connections per file table; `pollux serve` raises the soft limit to the \
                 hard one",
                count(connections)
            ),
            None => "connections are not limited by descriptors".into(),
        };
        let short = connections.is_some_and(|connections| connections < MANY);
        (meaning, short.then(|| {
            "raise the hard limit: `nofile` in /etc/security/limits.conf, or LimitNOFILE= of the \
             service; or use --workers, each of which has a file table of its own"
                .into()
        }))
    });
    put("queued signals (RLIMIT_SIGPENDING)", "sigpending", &|soft, _| {
        let meaning = format!(
            "the queue of `rtsig` overflows beyond {} signals, counted over all processes of the \
             user",
            limit(soft)
        );
        let short = soft.is_some_and(|soft| soft < 1_024);
        (meaning, short.then(|| "raise it with `ulimit -i` before measuring `rtsig`".into()))
    });
    put("locked memory (RLIMIT_MEMLOCK)", "memlock", &|soft, _| {
        let short = soft.is_some_and(|soft| soft < 1 << 20);
        (
            "charged for the rings of io_uring by kernels before 5.12; later ones charge memory \
             cgroups"
                .into(),
            short.then(|| {
                "on an old kernel, raise it with `ulimit -l` if a ring cannot open".into()
            }),
        )
    });
    put("processes (RLIMIT_NPROC)", "nproc", &|soft, _| {
        let meaning = match soft {
            Some(soft) => format!(
                "the architectures with a process or a thread per connection end at {}",
                count(soft)
            ),
            None => "processes and threads are not limited per user".into(),
        };
        (meaning, None)
    });
    if let Some(bytes) = facts.memory_bytes {
        let meaning = format!(
            "half of it holds about {} loopback connections with both their ends, buffers aside",
            count(bytes / 2 / PAIR_BYTES)
        );
        let value = format::bytes(bytes);
        checks.push(Check { name: "memory".into(), value, meaning, advice: None });
    }
    checks
}

type CheckText = (String, Option<String>);

/// Checks the sysctls that affect connections.
pub(super) fn sysctls(facts: &Facts) -> Vec<Check> {
    facts
        .sysctls
        .iter()
        .filter_map(|(path, value)| {
            let name = path.replace('/', ".");
            let (meaning, advice) = sysctl(&name, value)?;
            Some(Check { name, value: value.clone(), meaning, advice })
        })
        .collect()
}

fn sysctl(name: &str, value: &str) -> Option<CheckText> {
    let number = value.split_whitespace().next().and_then(|word| word.parse::<u64>().ok());
    let set = |to: &str| Some(format!("sysctl -w {name}={to}"));
    if name.starts_with("net.ipv4.") {
        return sysctl_of_ipv4(name, value, number, set);
    }
    let judged = match name {
        "fs.file-max" => {
            let number = number?;
            let meaning = match number {
                n if n > 1 << 40 => "open files of the whole system: practically unlimited".into(),
                n => format!("{} open files in the whole system", count(n)),
            };
            (meaning, if number < 10 * MANY { set("1000000") } else { None })
        }
        "fs.nr_open" => (
            format!("no process's limit on open files can be raised above {}", count(number?)),
            if number? < MANY { set("1048576") } else { None },
        ),
        "kernel.io_uring_disabled" => match number? {
            0 => ("every process may open an io_uring".into(), None),
            1 => (
                "only privileged processes and the group kernel.io_uring_group may open an io_uring"
                    .into(),
                set("0"),
            ),
            _ => ("io_uring is disabled for all users: no uring-poll, no epoll-ctlv".into(), set("0")),
        },
        "net.core.somaxconn" => (
            format!("at most {} connections wait to be accepted by one listener", count(number?)),
            if number? < 4_096 { set("4096") } else { None },
        ),
        "kernel.threads-max" => {
            (format!("{} threads in the whole system", count(number?)), None)
        }
        _ => return None,
    };
    Some(judged)
}

/// Returns the number of ports in a range of the sysctl.
pub(super) fn ports_of(range: &str) -> Option<u64> {
    let mut ends = range.split_whitespace().map(str::parse::<u64>);
    let (low, high) = (ends.next()?.ok()?, ends.next()?.ok()?);
    Some((high + 1).saturating_sub(low))
}

fn sysctl_of_ipv4(
    name: &str,
    value: &str,
    number: Option<u64>,
    set: impl Fn(&str) -> Option<String>,
) -> Option<CheckText> {
    let judged = match name {
        "net.ipv4.tcp_max_syn_backlog" => (
            format!("{} handshakes in progress per listener", count(number?)),
            if number? < 1_024 { set("4096") } else { None },
        ),
        "net.ipv4.ip_local_port_range" => {
            let ports = ports_of(value)?;
            let meaning = format!(
                "{} outgoing connections per pair of addresses and port: what one generator with \
                 one source address can hold, or open in {TIME_WAIT_S} s when it closes first",
                count(ports)
            );
            let advice = (ports < MANY).then(|| {
                format!(
                    "sysctl -w {name}=\"10240 65535\", or give `pollux load --source` a network"
                )
            });
            (meaning, advice)
        }
        "net.ipv4.tcp_tw_reuse" => (
            match number? {
                0 => "a port in TIME_WAIT is never reused for outgoing connections".into(),
                1 => "a port in TIME_WAIT is reused after 1 s".into(),
                _ => "a port in TIME_WAIT is reused after 1 s on loopback".into(),
            },
            if number? == 0 { set("2") } else { None },
        ),
        "net.ipv4.tcp_max_tw_buckets" => (
            format!(
                "{} connections in TIME_WAIT; those above are ended without it",
                count(number?)
            ),
            None,
        ),
        "net.ipv4.tcp_congestion_control" => {
            let advice = (value == "bbr").then(|| {
                "for bulk over loopback reno is faster (bbr paces, and needs the fq queue): \
                 sysctl -w net.ipv4.tcp_congestion_control=reno in a namespace of your own"
                    .into()
            });
            (format!("new connections use {value}"), advice)
        }
        "net.ipv4.tcp_mem" => {
            let pages = value.split_whitespace().nth(2)?.parse::<u64>().ok()?;
            // A page has 16 or 64 KiB on some machines with arm64, and a limit may be the largest number.
            let bytes = pages.saturating_mul(rustix::param::page_size() as u64);
            (format!("TCP buffers of all sockets may take {}", format::bytes(bytes)), None)
        }
        "net.ipv4.tcp_max_orphans" => {
            (format!("{} closing sockets that no process holds any more", count(number?)), None)
        }
        _ => return None,
    };
    Some(judged)
}
