//! The built-in experiments after Provos and Lever, and all experiments for the guest, in their quick
//! form and within seconds: they run, and every claim finds the data that it judges. The measured
//! values here mean nothing, except for counts.

mod hurried;

use crate::guest;
use hurried::hurried;
use serde_json::Value as Json;
use std::{fs, path::Path, process::Command};

fn run(id: &str, directory: &Path) -> Json {
    fs::write(directory.join("hurried.toml"), hurried(id)).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_pollux"))
        .args(["lab", "run", "hurried.toml", "--quick", "--here", "--out", "out"])
        .current_dir(directory)
        .output()
        .unwrap();
    assert!(output.status.success(), "{id}: {}", String::from_utf8_lossy(&output.stderr));
    result_in(&directory.join("out"))
}

fn result_in(directory: &Path) -> Json {
    let result = fs::read_to_string(directory.join("result.json")).unwrap();
    serde_json::from_str(&result).unwrap()
}

fn runs_and_judges(id: &str) {
    let directory = tempfile::tempdir().unwrap();
    let result = run(id, directory.path());
    assert_measured_and_judged(id, &result);
    assert!(directory.path().join("out/report.html").is_file());
}

/// Checks that every variant that this kernel offers is measured at every point, and that every claim
/// about these variants has its figure.
fn assert_measured_and_judged(id: &str, result: &Json) {
    let runs = result["runs"].as_array().unwrap();
    let unavailable: Vec<&str> = result["variants"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|variant| !variant["unavailable"].is_null())
        .map(|variant| variant["name"].as_str().unwrap())
        .collect();
    for reason in result["variants"].as_array().unwrap().iter().map(|v| &v["unavailable"]) {
        assert!(reason.is_null() || !reason.as_str().unwrap().is_empty(), "{id}: no reason");
    }
    let points: usize = result["dimensions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|dimension| dimension["values"].as_array().unwrap().len())
        .product();
    let variants = result["variants"].as_array().unwrap().len() - unavailable.len();
    let of = |run: &Json| format!("{} {}", run["variant"], run["point"]);
    let made: Vec<String> = runs.iter().map(of).collect();
    assert!(runs.len() >= variants * points, "{id}: of {variants} × {points} {made:?}");
    // The file of the experiment names the points that are not measured, with the reason.
    let file = &result["experiment"];
    let places = ["variant", "left_out", "left-out"].map(|name| file[name].as_array());
    let meant: Vec<Json> =
        places.into_iter().flatten().flatten().map(|it| it["because"].clone()).collect();
    for run in runs {
        // If FD_SETSIZE ends the run, the server says so.
        let is_full = run["reason"].as_str().is_some_and(|it| it.contains("accepting stops at"));
        let is_meant = meant.contains(&run["reason"]) || is_full;
        assert!(
            run["status"] != "failed" || is_meant,
            "{id}: {} {}",
            run["variant"],
            run["reason"]
        );
    }
    let runs: Vec<&Json> = runs.iter().filter(|run| run["status"] != "failed").collect();
    // A busy machine may have kept a generator from its work, in some runs or in nearly all.
    let lost: Vec<_> =
        runs.iter().filter(|run| run["status"] != "valid").map(|run| &run["reason"]).collect();
    assert!(lost.len() < runs.len(), "{id}: no run counts: {lost:#?}");
    if !lost.is_empty() {
        eprintln!("{id}: {} of {} runs do not count: {lost:#?}", lost.len(), runs.len());
    }

    let claims = result["claims"].as_array().unwrap();
    assert!(!claims.is_empty(), "{id}");
    for claim in claims {
        // One pass decides nothing; a claim about a mechanism that the kernel lacks cannot be judged.
        let verdict = claim["verdict"].as_str().unwrap();
        let parts = claim["parts"].as_array().unwrap();
        // A reply rate may be 0 on a busy machine.
        let is_zero =
            |part: &Json| part["note"].as_str().unwrap_or_default().contains("is 0 or less on one");
        // A claim whose run was lost is undecided, with that run's own reason.
        let is_lost = |part: &Json| lost.contains(&&part["note"]);
        let undecided = ["seen, not decided", "not testable here"].contains(&verdict)
            || parts.iter().any(|part| is_zero(part) || is_lost(part));
        assert!(undecided, "{id}: {}: {verdict}", claim["id"]);
        for part in parts {
            let note = part["note"].as_str().unwrap_or_default();
            // A figure may have a note that no number of blocks would decide the claim, because the
            // figure is a limit.
            let is_limit = ["its limit", "only a bound", "may be higher"]
                .iter()
                .any(|words| note.contains(words));
            let has_figure = part["estimate"].is_object();
            assert_eq!(note.is_empty() || is_limit, has_figure, "{id}: {claim}");
            let missing = note.starts_with("the runs have no") || note.contains("not measured");
            // In so short a load a hybrid may never have switched to its partner.
            let has_stayed = id == "provos-hybrid" && note.ends_with("partner_after_load_ns");
            assert!(!missing || has_stayed, "{id}: {}: {note}", claim["id"]);
        }
    }
}

/// The experiments that are made for the guest, all in one guest. This test takes longest. Tests begin
/// in the order of their names, and by its name this one is the first of the experiments: at the end, one
/// processor would wait for it.
#[test]
#[ignore = "slow: an experiment in seconds"]
fn all_that_need_a_guest() {
    let ids = ["provos-ablation", "mail-hints", "gammo-wan"];
    let directory = tempfile::tempdir().unwrap();
    let mut script = "set -e".to_owned();
    for id in ids {
        fs::write(directory.path().join(format!("{id}.toml")), hurried(id)).unwrap();
        script += &format!("; $1 lab run {id}.toml --quick --out {id} >&2");
    }
    // The probes, and the files for delay and loss, must have been removed.
    script += "; cat /sys/kernel/debug/kprobes/list; ls /dev/shm";
    let module = concat!(env!("CARGO_MANIFEST_DIR"), "/../../kmod/devpoll");
    let program = env!("CARGO_BIN_EXE_pollux");
    let arguments =
        ["--timeout", "1800", "--module", module, "--", "sh", "-c", &script, "sh", program];
    let guest = &mut guest::pollux("vm", &arguments);
    let Some(output) = guest::success_of(guest.current_dir(directory.path())) else { return };
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "probes or files were left");
    for id in ids {
        let result = result_in(&directory.path().join(id));
        for variant in result["variants"].as_array().unwrap() {
            assert_eq!(variant["unavailable"], Json::Null, "{id}");
        }
        eprintln!("{id}: {} s", result["elapsed_s"]);
        assert_measured_and_judged(id, &result);
        let runs = result["runs"].as_array().unwrap();
        for run in runs.iter().filter(|run| run["status"] == "valid") {
            match id {
                "provos-ablation" => assert_polls_of_a_wait(run),
                "mail-hints" => assert_polls_of_a_request(run),
                _ => assert_distance(run, &result["experiment"]["clients"]),
            }
        }
    }
}

fn metric(run: &Json, name: &str) -> f64 {
    run["metrics"][name].as_f64().unwrap_or_else(|| panic!("no {name}: {}", run["metrics"]))
}

/// Checks that the module's own count of driver polls agrees with the kernel's, and that both are
/// typical for each mechanism.
fn assert_polls_of_a_wait(run: &Json) {
    let watched = run["point"]["watched"].as_f64().unwrap();
    let polls = metric(run, "kernel_calls_per_wait.tcp_poll");
    // A scan polls every descriptor. On a busy machine the kernel may still be delivering the byte
    // when a wait begins: that wait sleeps, and scans again.
    let scans = |polls: f64| {
        let scans = polls / watched;
        assert!((1.0..1.5).contains(&scans), "{polls} polls a wait, {watched} watched");
    };
    match run["variant"].as_str().unwrap() {
        "poll" => scans(polls),
        "hints-off" => {
            scans(polls);
            scans(metric(run, "details_per_wait.driver_polls"));
        }
        // These mechanisms poll the descriptors that are ready, the one that was ready before, and one
        // whose interest changed.
        _ if ["half", "all"].iter().any(|pattern| run["point"]["ready"] == **pattern)
            || run["point"]["ready"].as_f64() > Some(1.0) =>
        {
            assert!(polls <= watched + 3.0, "{polls} of {watched}");
        }
        other => assert!((1.0..=3.0).contains(&polls), "{other}: {polls} of {watched}"),
    }
}

fn assert_polls_of_a_request(run: &Json) {
    let idle = run["point"]["idle"].as_f64().unwrap();
    let polls = metric(run, "kernel_calls_per_wait.tcp_poll");
    match run["variant"].as_str().unwrap() {
        "poll" => assert!(polls >= idle, "{polls} a wait, {idle} idle"),
        // The mechanism polls the descriptors that were reported by this wait or ready in the one
        // before, not the idle ones.
        other if idle > 100.0 => assert!(polls < idle, "{other}: {polls} a wait, {idle} idle"),
        _ => {}
    }
}

/// Checks that no reply from a distant client arrives too early, and that as many connections are idle
/// as configured.
fn assert_distance(run: &Json, clients: &Json) {
    let round_trip_s = 2.0 * clients["delay-ms"].as_f64().unwrap() / 1e3;
    assert_eq!(run["raw"]["open"].as_array().unwrap().len(), 5);
    if run["point"]["clients"] == "far" {
        let least = metric(run, "latency_min_us");
        assert!(least >= round_trip_s * 1e6, "{least} µs of {round_trip_s} s");
    } else {
        let open = run["raw"]["before"]["connections"]["open"].as_f64().unwrap();
        let rate = run["point"]["rate"].as_f64().unwrap();
        let wanted = rate * round_trip_s * 3.0 / 4.0;
        assert!(open >= wanted.floor(), "{open} open, {wanted} wanted");
    }
}

#[test]
fn idle() {
    runs_and_judges("idle");
}

#[test]
#[ignore = "slow: an experiment in seconds"]
fn gammo_fig1_2() {
    runs_and_judges("gammo-fig1-2");
}

#[test]
#[ignore = "slow: an experiment in seconds"]
fn gammo_fig3_4() {
    runs_and_judges("gammo-fig3-4");
}

#[test]
#[ignore = "slow: an experiment in seconds"]
fn gammo_fig5_6() {
    runs_and_judges("gammo-fig5-6");
}

#[test]
#[ignore = "slow: an experiment in seconds"]
fn gammo_fig7() {
    runs_and_judges("gammo-fig7");
}

#[test]
#[ignore = "slow: an experiment in seconds"]
fn gammo_specweb99() {
    runs_and_judges("gammo-specweb99");
}

#[test]
#[ignore = "slow: an experiment in seconds"]
fn gammo_table1() {
    runs_and_judges("gammo-table1");
}

#[test]
#[ignore = "slow: an experiment in seconds"]
fn push() {
    runs_and_judges("push");
}

#[test]
#[ignore = "slow: an experiment in seconds"]
fn provos_fig4_9() {
    runs_and_judges("provos-fig4-9");
}

#[test]
#[ignore = "slow: an experiment in seconds"]
fn provos_fig10() {
    runs_and_judges("provos-fig10");
}

#[test]
#[ignore = "slow: an experiment in seconds"]
fn provos_fig11_13() {
    runs_and_judges("provos-fig11-13");
}

#[test]
#[ignore = "slow: an experiment in seconds"]
fn provos_fig14() {
    runs_and_judges("provos-fig14");
}

/// Tests the trigger and its effect: with the short queue a burst overflows it and all connections are
/// handed over; the same burst, server and rate with a queue that has room hand over none.
#[test]
#[ignore = "slow: an experiment in seconds"]
fn provos_overflow() {
    let directory = tempfile::tempdir().unwrap();
    let result = run("provos-overflow", directory.path());
    assert_measured_and_judged("provos-overflow", &result);
    let at_bursts = |variant: &str| {
        let runs = result["runs"].as_array().unwrap().iter();
        let mut runs = runs.filter(|run| {
            run["variant"] == variant && run["point"]["burst"] == 1024.0 && run["status"] == "valid"
        });
        // A busy machine may have kept the generator from its work.
        runs.next()
            .map(|run| (metric(run, "details.overflows"), metric(run, "details.handed_over")))
    };
    if let Some((overflows, handed_over)) = at_bursts("handoff") {
        assert!(overflows > 0.0 && handed_over >= 300.0, "{overflows}, {handed_over}");
    }
    assert!(matches!(at_bursts("handoff-long"), None | Some((0.0, 0.0))));
}

/// The replies that remain from the previous phase must not count in this one: measuring begins when
/// they are over.
#[test]
#[ignore = "slow: an experiment in seconds"]
fn provos_hybrid() {
    let directory = tempfile::tempdir().unwrap();
    let result = run("provos-hybrid", directory.path());
    assert_measured_and_judged("provos-hybrid", &result);
    for run in result["runs"].as_array().unwrap().iter().filter(|run| run["status"] == "valid") {
        let settles = ["busy", "overload"].contains(&run["point"]["phase"].as_str().unwrap());
        let commands = run["commands"].as_array().unwrap().iter().filter_map(Json::as_str);
        let has_warmup = commands.into_iter().any(|command| command.contains("--warmup 0.6s"));
        assert_eq!(has_warmup, settles, "{}", run["commands"]);
    }
}

#[test]
#[ignore = "slow: an experiment in seconds"]
fn provos_hybrid_quiet() {
    runs_and_judges("provos-hybrid-quiet");
}

/// These experiments need a Redis, an origin and other servers.
mod with_others {
    use super::*;

    fn has(program: &str) -> bool {
        pollux_sys::find_program(program).is_some()
    }

    /// Returns the result of an experiment with a Redis; `None` where Redis is not installed.
    fn with_redis(id: &str) -> Option<Json> {
        if !has("redis-server") {
            assert!(std::env::var_os("POLLUX_REDIS_REQUIRED").is_none(), "no redis-server");
            println!("skipped: redis-server is not installed");
            return None;
        }
        let directory = tempfile::tempdir().unwrap();
        let result = run(id, directory.path());
        assert_measured_and_judged(id, &result);
        Some(result)
    }

    fn of<'a>(result: &'a Json, variant: &str) -> Vec<&'a Json> {
        let runs = result["runs"].as_array().unwrap().iter();
        runs.filter(|run| run["variant"] == variant && run["status"] != "failed").collect()
    }

    #[test]
    fn zerohttpd_table() {
        let Some(result) = with_redis("zerohttpd-table") else { return };
        for run in of(&result, "epoll") {
            let command = run["commands"][0].as_str().unwrap();
            assert!(command.contains("--guestbook /guestbook"), "{command}");
            assert!(command.contains("--store redis://127.0.0.1:"), "{command}");
            assert!(metric(run, "redis_cpu_us_per_request") > 0.0);
        }
        // As many processes as clients, and not more than the pool has.
        let pools = of(&result, "preforked");
        assert_eq!(pools.len(), 1, "{pools:?}");
        assert!(pools[0]["commands"][0].as_str().unwrap().contains("--pool 20"), "{}", pools[0]);
    }

    #[test]
    #[ignore = "slow: an experiment in seconds"]
    fn zerohttpd_static() {
        runs_and_judges("zerohttpd-static");
    }

    #[test]
    #[ignore = "slow: an experiment in seconds"]
    fn guestbook_redis() {
        let Some(result) = with_redis("guestbook-redis") else { return };
        for (variant, pipeline) in
            [("redis-benchmark", " -P 16 "), ("redis-benchmark-unpipelined", " -P 1 ")]
        {
            let run = of(&result, variant)[0];
            let command = run["commands"][0].as_str().unwrap();
            assert!(command.contains(pipeline), "{command}");
            assert!(metric(run, "throughput_rps") > 0.0);
        }
    }

    /// The requests that reach the origin are those that a hit, a miss and a document that all clients
    /// request at once must cause.
    #[test]
    #[ignore = "slow: an experiment in seconds"]
    fn frontend() {
        let directory = tempfile::tempdir().unwrap();
        let result = run("frontend", directory.path());
        assert_measured_and_judged("frontend", &result);
        for run in of(&result, "epoll-et").into_iter().chain(of(&result, "nginx")) {
            let fetches = metric(run, "origin_requests");
            match run["point"]["request"].as_str().unwrap() {
                // The document was requested once before.
                "hit" if run["variant"] == "epoll-et" => assert_eq!(fetches, 0.0, "of hits"),
                "hit" => assert!(fetches <= 3.0, "{fetches} of hits"),
                "miss" => assert!(metric(run, "origin_requests_per_request") > 0.8, "{run}"),
                "collapsed" => assert_eq!(fetches, 1.0, "1,000 at once"),
                _ => {
                    assert_eq!(fetches, 0.0, "what was stored is there");
                    assert_eq!(metric(run, "objects_stored"), 1000.0);
                    // The own bytes of an object: its URL, four or five fields and one byte.
                    let (all, beside) = ("user_bytes_per_object", "user_overhead_bytes_per_object");
                    let own = metric(run, all) - metric(run, beside);
                    assert!((150.0..600.0).contains(&own), "{own} bytes of its own: {run}");
                }
            }
        }
        // The floor server answers with the bytes of a hit.
        let of_a_hit = |name: &str| {
            let hits = of(&result, name)
                .into_iter()
                .filter(|run| run["point"]["request"] == "hit" && run["point"]["idle"] == 0.0);
            let load = hits.map(|run| run["raw"]["load"].clone()).next().expect("a hit");
            let replies = load["requests"]["completed"].as_f64().unwrap();
            assert!(replies > 0.0, "{name}");
            load["bytes_received"].as_f64().unwrap() / replies
        };
        let (floor, hit) = (of_a_hit("floor"), of_a_hit("epoll-et"));
        // The age of the hit may have one digit more.
        assert!((floor - hit).abs() < 3.0, "{floor} bytes, of a hit {hit}");
    }
}

/// Apache is stopped, all requests are answered, and the laboratory draws the figure: the demo writes
/// a result in the laboratory's format.
#[test]
#[ignore = "slow: an experiment in seconds"]
fn the_demo_of_a_front_end_ends_with_its_figure() {
    if !Path::new("/usr/sbin/apache2").exists() {
        eprintln!("skipped: apache2 is not installed");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(root.join("scripts/demo-frontend"))
        .arg("0.5")
        .env("POLLUX", env!("CARGO_BIN_EXE_pollux"))
        .env("OUT", directory.path())
        .current_dir(root)
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stdout}{error}");
    assert!(stdout.contains("Every request was answered."), "{stdout}");
    let result = result_in(directory.path());
    let stopped = |variant: &str| {
        let runs = result["runs"].as_array().unwrap();
        let is_it =
            |run: &&Json| run["variant"] == variant && run["point"]["load"] == "Apache stopped";
        metric(runs.iter().find(is_it).expect("a run"), "throughput_rps")
    };
    assert!(stopped("clients") > 0.0, "{stdout}");
    assert_eq!(stopped("Apache"), 0.0, "{stdout}");
    let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
    let (figure, page) = (read("figures/replies.svg"), read("report.html"));
    for name in ["Who answers", "straight to Apache", "Apache stopped", "clients"] {
        assert!(figure.contains(name), "{name}: {figure}");
    }
    assert!(page.contains("The experiment has no claim."), "{page}");
}

/// All variants except `plain` use https; a variant that the kernel does not support is not available,
/// with the reason.
#[test]
#[ignore = "slow: an experiment in seconds"]
fn tls_idle() {
    let directory = tempfile::tempdir().unwrap();
    let result = run("tls-idle", directory.path());
    assert_measured_and_judged("tls-idle", &result);
    for run in result["runs"].as_array().unwrap().iter().filter(|run| run["status"] == "valid") {
        let commands = run["commands"].to_string();
        assert_eq!(commands.contains(" https://"), run["variant"] != "plain", "{commands}");
        assert_eq!(run["raw"]["load"]["tls"].is_object(), run["variant"] != "plain", "{run}");
        if run["point"]["idle"] == 1000.0 {
            assert!(metric(run, "user_bytes_per_connection") >= 0.0, "{}", run["metrics"]);
        }
    }
    let variants = result["variants"].as_array().unwrap();
    let kernel = variants.iter().find(|it| it["name"] == "nginx-kernel").expect("it is listed");
    let doctor = Command::new(env!("CARGO_BIN_EXE_pollux")).args(["doctor", "--json"]).output();
    let doctor: Json = serde_json::from_slice(&doctor.unwrap().stdout).unwrap();
    if doctor["tls"]["kernel"] == false {
        let reason = kernel["unavailable"].as_str().expect("a reason");
        assert!(reason.contains("not installed") || reason.contains("kernel TLS"), "{reason}");
    }
}

/// The server has one more worker where one worker cannot hold all connections, and the memory of the
/// connections is reported.
#[test]
#[ignore = "slow: an experiment in seconds"]
fn capacity() {
    let directory = tempfile::tempdir().unwrap();
    let result = run("capacity", directory.path());
    assert_measured_and_judged("capacity", &result);
    for run in result["runs"].as_array().unwrap() {
        let many = run["point"]["idle"] == 1500.0;
        let command = run["commands"][0].as_str().unwrap();
        assert!(command.contains(if many { "--workers 2" } else { "--workers 1" }), "{command}");
        assert!(metric(run, "fill_s") > 0.0 && metric(run, "fill_cpu_us_per_connection") > 0.0);
        let is_reported =
            run["metrics"].as_object().unwrap().contains_key("kernel_bytes_per_connection");
        assert_eq!(is_reported, many, "{}", run["metrics"]);
        if many {
            assert!(metric(run, "user_bytes_per_connection") > 0.0, "{}", run["metrics"]);
        }
    }
}
