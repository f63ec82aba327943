//! Several ranks make one run together.

use super::{
    Launcher, document, finish,
    network::{HOSTS, Network},
    spawn,
};
use pollux_testkit::serve::Serve;
use serde_json::Value;
use std::process::Command;

const POLLUX: &str = env!("CARGO_BIN_EXE_pollux");

/// Returns a launcher's command on the hub, without the program.
fn launch(launcher: Launcher, network: &Network) -> Command {
    let agent = network.agent.to_str().unwrap();
    let hosts: Vec<_> = (1..=HOSTS).map(|host| format!("10.77.0.{host}")).collect();
    let mut command = network.on(254, launcher.program());
    match launcher {
        Launcher::OpenMpi => {
            let hosts: Vec<_> = hosts.iter().map(|host| format!("{host}:1")).collect();
            command.args(["--mca", "plm_rsh_agent", agent, "--host", &hosts.join(",")]);
            command.args(["--mca", "btl", "tcp,self", "--bind-to", "none"]);
        }
        Launcher::Mpich => {
            command.args(["-launcher", "rsh", "-launcher-exec", agent]);
            command.args(["-localhost", "10.77.0.254", "-hosts", &hosts.join(",")]);
            // Its library looks the hosts up by the names that they have here.
            command.args(["-genv", "MPIR_CVAR_NEMESIS_TCP_NETWORK_IFACE", "eth0"]);
        }
    }
    command.args(["-n", &HOSTS.to_string()]);
    command
}

fn run(mut command: Command, arguments: &[&str]) -> Value {
    command.args(arguments);
    let output = finish(spawn(command));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{stderr}", String::from_utf8_lossy(&output.stdout));
    document(&output)
}

pub(crate) fn four_hosts(launcher: Launcher) {
    let network = Network::new();
    let address = network.serve();
    let urls: Vec<_> = [100, 300, 900].map(|ms| format!("http://{address}/{ms}")).to_vec();
    let arguments = [
        &["load", "--json", "--max-lag", "1h", "--seed", "5", "--arrivals", "poisson"],
        &["--rate", "200", "--requests", "600", "--idle", "40"][..],
        &urls.iter().map(String::as_str).collect::<Vec<_>>(),
    ]
    .concat();
    let one = run(network.on(1, POLLUX), &arguments);
    let mut command = launch(launcher, &network);
    command.arg(POLLUX);
    let four = run(command, &arguments);

    // The schedule and the choice among the URLs are the same, so all values that do not depend on
    // time are the same.
    for key in ["requests", "content_bytes", "bytes_received", "statuses", "offered_rps", "seed"] {
        assert_eq!(one[key], four[key], "{key}");
    }
    assert_eq!(four["idle"]["held"], 40, "{four}");
    for key in ["count", "p50", "p90"] {
        let (one, four) = (&one["latency_us"][key], &four["latency_us"][key]);
        let (one, four) = (one.as_f64().unwrap(), four.as_f64().unwrap());
        // Two thirds of the replies arrive after 100 and 300 ms, the rest after 900 ms: the
        // differences come from the load of the test machine.
        assert!((one / four).log2().abs() < 1.0, "{key}: {one} alone, {four} by four");
    }
    assert_eq!(one["latency_us"]["count"], 600);
    assert_eq!(four["latency_us"]["count"], 600);

    let members = four["ranks"]["members"].as_array().unwrap();
    let hosts: Vec<_> = members.iter().map(|member| member["host"].as_str().unwrap()).collect();
    assert_eq!(hosts, ["node1", "node2", "node3", "node4"]);
    for (rank, member) in members.iter().enumerate() {
        assert_eq!(member["rank"], rank);
        assert_eq!(member["requests"]["completed"], 150, "{member}");
        assert_eq!(member["idle"]["held"], 10, "{member}");
        let clock = |key: &str| member["clock"][key].as_f64().unwrap();
        // All hosts have the clock of one machine: the measured offset is the error of the comparison
        // itself.
        assert!(clock("offset_us").abs() <= clock("error_us") + 1.0, "{member}");
        assert!(clock("error_us") < 50_000.0, "{member}");
        assert_eq!(clock("error_us") == 0.0, rank == 0, "{member}");
    }
}

pub(crate) fn four_hosts_hold(launcher: Launcher) {
    let network = Network::new();
    let site = tempfile::tempdir().unwrap();
    let mut server = network.on(254, POLLUX);
    server.args(["serve", "--json", "--workers", "8", "--mechanism", "epoll"]);
    // The first connections are silent for as long as a busy machine takes to open the others.
    server.args(["--header-timeout", "300s", "--listen", "10.77.0.254:8080"]).arg(site.path());
    let mut server = spawn(server);
    let mut line = String::new();
    let mut stdout = std::io::BufReader::new(server.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    assert!(line.contains("listening"), "{line}");

    let mut command = launch(launcher, &network);
    command.arg(POLLUX).args(["idle", "10.77.0.254:8080", "--connections", "60000", "--json"]);
    command.args(["--duration", "1s", "--timeout", "60s"]);
    let output = finish(spawn(command));
    let pid = rustix::process::Pid::from_child(&server);
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
    let _ = server.wait();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert_eq!((&lines[0]["event"], &lines[0]["held"]), (&"holding".into(), &60_000.into()));
    assert_eq!((&lines[1]["event"], &lines[1]["held"]), (&"statistics".into(), &60_000.into()));
    for member in lines[1]["ranks"]["members"].as_array().unwrap() {
        assert_eq!(member["idle"]["held"], 15_000, "{member}");
    }
}

/// Two ranks are the subscribers of a hub, and the first one publishes.
pub(crate) fn subscribers(launcher: Launcher) {
    let directory = tempfile::tempdir().unwrap();
    let arguments = ["--hub", "--hub-anonymous", "--hub-publish-anonymous"];
    let server = Serve::start(POLLUX, directory.path(), &arguments);
    let (url, log) = (format!("http://{}/", server.address()), directory.path().join("log"));
    let arguments = [
        &["load", &url, "--subscribe", "31", "--rate", "50", "--requests", "20", "--json"][..],
        &["--max-lag", "1h", "--timeout", "60s", "--hdr", log.to_str().unwrap()],
    ]
    .concat();
    let output = finish(launcher.start(2, "subscribers", &arguments));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report = document(&output);
    assert_eq!(report["valid"], true, "{report}");
    assert_eq!(report["publications"]["acknowledged"], 20, "{report}");
    assert_eq!(report["deliveries"]["delivered"], 620, "{report}");
    let members = report["ranks"]["members"].as_array().unwrap();
    let shares: Vec<_> = members.iter().map(|one| &one["requests"]["completed"]).collect();
    assert_eq!(shares, [320, 300], "{report}");
    assert_eq!(
        (&members[0]["requests"]["sent"], &members[1]["requests"]["sent"]),
        (&20.into(), &0.into())
    );
    assert!(std::fs::read_to_string(log).unwrap().contains("Tag=publish"));
}

/// Ranks with different seeds would use different schedules, so the run is refused.
pub(crate) fn unlike(launcher: Launcher) {
    let part =
        |seed| ["-n", "1", POLLUX, "load", "http://127.0.0.1:9/", "--rate", "1", "--seed", seed];
    let mut command = Command::new(launcher.program());
    if launcher == Launcher::OpenMpi {
        command.args(["--oversubscribe", "--bind-to", "none"]);
    }
    command.args(part("1")).arg(":").args(part("2"));
    let output = finish(spawn(command));
    assert!(!output.status.success());
    let stderr = String::from_utf8_lossy(&output.stderr);
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
    if signal == Some(libc::SIGSEGV) && stderr.is_empty() && launcher == Launcher::OpenMpi {
        // Open MPI 5.0.7 (Debian 13) may crash if a rank ends by itself with an error.
        return eprintln!("skipped: mpirun itself crashed");
    }
    assert!(stderr.contains("was started with other arguments than rank 0"), "{stderr}");
    assert!(stderr.contains("seed: 2") && stderr.contains("seed: 1"), "{stderr}");
}

fn alone(variables: &[(&str, &str)], arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(POLLUX);
    command.args(["load", "http://127.0.0.1:9/", "--rate", "50", "--requests", "5"]);
    command.args(["--max-lag", "1h"]).args(arguments).envs(variables.iter().copied());
    let output = finish(spawn(command));
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

const OPEN_MPI: [(&str, &str); 2] = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")];

pub(crate) fn a_launcher_that_cannot_be_used_is_reported() {
    let step = [("SLURM_PROCID", "0"), ("SLURM_STEP_NUM_TASKS", "2")];
    let (code, stderr) = alone(&step, &[]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("srun --mpi=pmix") && stderr.contains("--ranks off"), "{stderr}");

    let (code, stderr) = alone(&OPEN_MPI, &["--ranks", "libnone.so.1"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("rank 0 of 2") && stderr.contains("libnone.so.1"), "{stderr}");

    let (code, stderr) = alone(&OPEN_MPI, &["--ranks", "libc.so.6"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("no MPI library"), "{stderr}");

    let (code, stderr) = alone(&[], &["--ranks", "libmpi.so.40"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("no launcher started this process"), "{stderr}");
}

pub(crate) fn without_the_others_a_rank_runs_alone() {
    let (_, stderr) = alone(&OPEN_MPI, &["--ranks", "off"]);
    assert!(stderr.contains("5 scheduled") && !stderr.contains("ranks  "), "{stderr}");
    let single = [("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "1")];
    let (_, stderr) = alone(&single, &[]);
    assert!(stderr.contains("5 scheduled"), "one rank has nobody to find: {stderr}");
}
