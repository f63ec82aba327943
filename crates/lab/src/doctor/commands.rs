//! Which of README's commands work here, and how to fix those that do not.

use super::{
    Facts,
    checks::ports_of,
    surroundings::{BUILD, GUEST, PEERS, PORT, Surroundings},
};
use serde::{Deserialize, Serialize};

/// The idle connections of `make demo` and of README's example of `pollux load`.
const IDLE: u64 = 8_000;
/// The descriptors of a program that holds these connections, with its own descriptors.
const NEEDED: u64 = IDLE + 200;
/// The memory of the guest, with an allowance for the emulator.
const GUEST_BYTES: u64 = 1 << 30;

/// A command of README on this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandFact {
    /// The command.
    pub command: String,
    /// Whether it will work.
    pub works: bool,
    /// The reasons why it fails, or why its result is less useful.
    #[serde(alias = "troubles")]
    pub obstacles: Vec<Obstacle>,
}

/// A problem to know before running the command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Obstacle {
    /// The problem.
    pub what: String,
    /// The remedy; absent if the command does it itself.
    pub remedy: Option<String>,
    /// Whether the command fails because of it.
    pub is_fatal: bool,
}

fn fatal(what: impl Into<String>, remedy: impl Into<String>) -> Obstacle {
    Obstacle { what: what.into(), remedy: Some(remedy.into()), is_fatal: true }
}

fn weaker(what: impl Into<String>, remedy: impl Into<String>) -> Obstacle {
    Obstacle { is_fatal: false, ..fatal(what, remedy) }
}

/// Returns all commands, in README's order.
pub(super) fn commands(facts: &Facts) -> Vec<CommandFact> {
    let around = &facts.surroundings;
    let build = [packages(around, &[&BUILD]), rust(around)];
    let holding = [descriptors(facts), ports(facts)];
    let all: [(&str, Vec<Option<Obstacle>>); 7] = [
        ("make demo", [&build[..], &holding, &[few_cpus(around)]].concat()),
        ("make test", vec![packages(around, &[&BUILD, &GUEST]), rust(around), guest(facts)]),
        ("pollux serve site/ --listen 127.0.0.1:8080", vec![port(around)]),
        ("pollux load http://127.0.0.1:8080/ --rate 5000 --idle 8000", holding.to_vec()),
        (
            "pollux lab run NAME",
            [&holding[..], &[few_cpus(around), network(around), kprobes(around)]].concat(),
        ),
        ("pollux vm -- CMD", vec![installed(around, &GUEST), guest(facts)]),
        ("make bench", vec![packages(around, &[&BUILD, &PEERS]), rust(around), few_cpus(around)]),
    ];
    all.into_iter()
        .map(|(command, obstacles)| {
            let obstacles: Vec<Obstacle> = obstacles.into_iter().flatten().collect();
            let works = !obstacles.iter().any(|obstacle| obstacle.is_fatal);
            CommandFact { command: command.into(), works, obstacles }
        })
        .collect()
}

/// Returns the packages whose programs are missing, each once.
fn missing(around: &Surroundings, needed: &[&[(&str, &str)]]) -> Vec<String> {
    let groups = needed.iter().flat_map(|group| group.iter());
    let lacking = groups.filter(|(program, _)| !around.programs.contains(*program));
    let mut packages: Vec<String> = Vec::new();
    for (_, package) in lacking {
        if !packages.iter().any(|known| known == package) {
            packages.push((*package).to_owned());
        }
    }
    packages
}

fn not_installed(packages: &[String]) -> Obstacle {
    let list = packages.join(" ");
    fatal(format!("not installed: {list}"), format!("sudo apt-get install {list}"))
}

/// Returns an obstacle if a target of the Makefile lacks packages. Run as root, the target installs them
/// itself.
fn packages(around: &Surroundings, needed: &[&[(&str, &str)]]) -> Option<Obstacle> {
    let packages = missing(around, needed);
    if packages.is_empty() {
        None
    } else if around.can_install && around.programs.contains("make") {
        let what = format!("installs {} first, through apt", packages.join(" "));
        Some(Obstacle { what, remedy: None, is_fatal: false })
    } else {
        Some(not_installed(&packages))
    }
}

/// Returns an obstacle if one of our programs lacks packages. The program installs nothing.
fn installed(around: &Surroundings, needed: &[(&str, &str)]) -> Option<Obstacle> {
    let packages = missing(around, &[needed]);
    (!packages.is_empty()).then(|| not_installed(&packages))
}

/// Whether version `found` is older than `wanted`, compared number by number.
fn is_older(found: &str, wanted: &str) -> bool {
    let numbers = |text: &str| -> Vec<u64> {
        text.split(['.', '-', '+']).map_while(|part| part.parse().ok()).collect()
    };
    numbers(found) < numbers(wanted)
}

fn rust(around: &Surroundings) -> Option<Obstacle> {
    let wanted = env!("CARGO_PKG_RUST_VERSION");
    let get = "install Rust with rustup; on Debian 12 cargo-web of the security repository does";
    match &around.cargo {
        Some(found) if !is_older(found, wanted) => None,
        Some(found) => Some(fatal(format!("cargo {found} is older than {wanted}"), get)),
        None if around.can_install => {
            let what = format!("installs Rust first, if apt offers {wanted} or later");
            Some(Obstacle { what, remedy: None, is_fatal: false })
        }
        None => Some(fatal(format!("no cargo; {wanted} or later is needed"), get)),
    }
}

fn descriptors(facts: &Facts) -> Option<Obstacle> {
    let (_, hard) = *facts.limits.get("nofile")?;
    let hard = hard.filter(|hard| *hard < NEEDED)?;
    Some(fatal(
        format!("{IDLE} idle connections need {NEEDED} open files, and the hard limit is {hard}"),
        "raise it: `nofile` in /etc/security/limits.conf, LimitNOFILE= of a service, \
         `--ulimit nofile=20000` of a container; or hold fewer with --idle",
    ))
}

fn ports(facts: &Facts) -> Option<Obstacle> {
    let ports = ports_of(facts.sysctls.get("net/ipv4/ip_local_port_range")?)?;
    (ports < IDLE).then(|| {
        fatal(
            format!("{IDLE} idle connections to one address need as many ports, there are {ports}"),
            "sysctl -w net.ipv4.ip_local_port_range=\"10240 65535\", or --source 127.0.1.0/24",
        )
    })
}

fn port(around: &Surroundings) -> Option<Obstacle> {
    let why = around.port_refused.as_ref()?;
    Some(fatal(
        format!("port {PORT} is not free: {why}"),
        format!("another port: --listen 127.0.0.1:{}", PORT + 1),
    ))
}

fn few_cpus(around: &Surroundings) -> Option<Obstacle> {
    (around.cpus < 2).then(|| {
        weaker(
            "server and generator share the one CPU: costs a request are right, rates are not",
            "give it two (`taskset`, `--cpus` of a container)",
        )
    })
}

fn network(around: &Surroundings) -> Option<Obstacle> {
    let why = around.network_refused.as_ref()?;
    Some(weaker(
        format!("overload experiments: no network namespace of their own ({why})"),
        "run them as root, in a container with --privileged, or with --guest",
    ))
}

fn kprobes(around: &Surroundings) -> Option<Obstacle> {
    let why = around.counting_refused.as_ref()?;
    Some(weaker(
        format!("mail-hints and provos-ablation cannot count the kernel's calls here: {why}"),
        "they run in the guest, which can; leave --here out",
    ))
}

fn guest(facts: &Facts) -> Option<Obstacle> {
    let around = &facts.surroundings;
    if around.architecture != "x86_64" {
        let what = format!("the guest's kernels are for x86_64, this is {}", around.architecture);
        return Some(fatal(what, "run it on an x86_64 machine"));
    }
    let bytes = facts.memory_bytes.filter(|bytes| *bytes < 2 * GUEST_BYTES)?;
    let has = crate::format::bytes(bytes);
    Some(weaker(
        format!("the guest takes 1 GiB of memory, and there are {has} in all"),
        "give it less with --memory, or run it where there is more",
    ))
}

#[cfg(test)]
mod tests {
    use super::is_older;

    #[test]
    fn versions_are_compared_by_number() {
        assert!(is_older("1.63.0", "1.88") && is_older("0.66.0", "1.88"));
        assert!(!is_older("1.88.0", "1.88") && !is_older("1.100.0-nightly", "1.88"));
    }
}
