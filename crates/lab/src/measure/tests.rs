//! Metrics of raw data with known results.

use super::*;
use pollux_testkit::wait_until;
use serde_json::json;

#[test]
fn metrics_from_known_raw_data() {
    let raw = Raw {
        before: json!({"requests": 10, "waits": 5, "events": 5,
            "system_calls": {"epoll_wait": {"count": 5, "ns": 0}}}),
        after: json!({"requests": 110, "waits": 55, "events": 205,
            "system_calls": {"epoll_wait": {"count": 55, "ns": 0},
                "sendto": {"count": 100, "ns": 500_000}},
            "details": {"sent_changes": 7, "name": "not a number"}}),
        cpu: CpuTime { run_ns: 1_000_000, wait_ns: 0 },
        wall_ns: 10_000_000,
        load: json!({"valid": true, "requests": {"scheduled": 200, "completed": 100, "failed": 50},
            "latency_us": {"p50": 12.5}, "reply_rate_rps": {"mean": 1000.0}}),
        kernel_calls: [("tcp_poll".to_owned(), 300)].into(),
        open: vec![7, 9],
        ..Raw::default()
    };
    let metrics = raw.metrics();
    for (name, expected) in [
        ("server_cpu_us_per_request", 10.0),
        ("server_cpu_utilization", 0.1),
        ("throughput_rps", 1000.0),
        ("completed_share", 0.5),
        ("error_share", 0.25),
        ("latency_p50_us", 12.5),
        ("waits_per_request", 0.5),
        ("events_per_wait", 4.0),
        ("calls_per_request", 1.5),
        ("calls_per_request.epoll_wait", 0.5),
        ("calls_per_request.sendto", 1.0),
        ("call_us_per_request.sendto", 5.0),
        ("call_share.sendto", 0.5),
        ("details.sent_changes", 7.0),
        ("kernel_calls_per_request.tcp_poll", 3.0),
        ("kernel_calls_per_wait.tcp_poll", 6.0),
        ("open_connections", 8.0),
    ] {
        assert_eq!(metrics.get(name), Some(&expected), "{name}");
    }
    assert!(!metrics.contains_key("call_us_per_request.epoll_wait"), "timing was off");
    assert!(!metrics.contains_key("reply_rate_min_rps"), "there were no samples");
    assert!(!metrics.contains_key("details.name"));
    assert!(
        metrics.keys().all(|name| name.ends_with("_us") || crate::metric::find(name).is_some())
    );
}

#[test]
fn the_memory_of_few_connections_is_not_reported() {
    let held = |connections| HoldCost {
        connections,
        fill_ns: 2_000_000_000,
        fill_cpu_ns: 1_000 * connections,
        memory: crate::memory::Memory { user_bytes: 64_000, kernel_bytes: 8_000_000 },
        kernel_moved_bytes: None,
    };
    let metrics = |held| Raw { held: Some(held), ..Raw::default() }.metrics();
    let many = metrics(held(1_000));
    assert_eq!(many.get("user_bytes_per_connection"), Some(&64.0));
    assert_eq!(many.get("kernel_bytes_per_connection"), Some(&8000.0));
    assert_eq!(many.get("fill_s"), Some(&2.0));
    let few = metrics(held(10));
    assert_eq!(few.get("fill_cpu_us_per_connection"), Some(&1.0));
    assert!(!few.contains_key("user_bytes_per_connection"), "{few:?}");
}

#[test]
fn the_memory_of_stored_documents_is_reported_with_and_without_their_own_bytes() {
    let metrics = |objects| {
        let memory = crate::memory::Memory { user_bytes: 440 * objects as i64, kernel_bytes: 0 };
        let stored = StoreCost { objects, own_bytes: 250 * objects, fill_ns: 1, memory };
        Raw { stored: Some(stored), ..Raw::default() }.metrics()
    };
    let many = metrics(20_000);
    assert_eq!(many.get("objects_stored"), Some(&20_000.0));
    assert_eq!(many.get("user_bytes_per_object"), Some(&440.0));
    assert_eq!(many.get("user_overhead_bytes_per_object"), Some(&190.0));
    assert!(!metrics(10).contains_key("user_bytes_per_object"), "too few objects for this metric");
}

#[test]
fn instructions_are_time_where_the_clock_counts_them() {
    let raw = |mips| Raw {
        before: json!({"requests": 0}),
        after: json!({"requests": 100}),
        cpu: CpuTime { run_ns: 1_000_000, wait_ns: 0 },
        load: json!({"generator": {"cpu_us_per_request": 20.0}, "wait_ns": {"p50": 1200}}),
        mips,
        ..Raw::default()
    };
    let metrics = raw(Some(250)).metrics();
    assert_eq!(metrics.get("server_instructions_per_request"), Some(&2500.0));
    assert_eq!(metrics.get("generator_instructions_per_request"), Some(&5000.0));
    assert_eq!(metrics.get("wait_p50_instructions"), Some(&300.0));
    assert!(raw(None).metrics().keys().all(|name| !name.contains("instructions")));
}

#[test]
fn calls_of_a_lone_wait_are_those_of_the_counted_waits() {
    let counted = json!({"waits": 20, "kernel_calls": {"tcp_poll": 2000}});
    let raw = Raw { load: json!({"waits": 100, "counted": counted}), ..Raw::default() };
    let metrics = raw.metrics();
    assert_eq!(metrics.get("kernel_calls_per_wait.tcp_poll"), Some(&100.0));
    assert!(!metrics.contains_key("open_connections"), "the experiment does not use it");
}

#[test]
fn a_server_that_answered_nothing_has_no_cost_per_request() {
    let raw = Raw {
        before: json!({"requests": 10}),
        after: json!({"requests": 10}),
        wall_ns: 1,
        ..Raw::default()
    };
    assert!(!raw.metrics().contains_key("server_cpu_us_per_request"));
    assert!(raw.validity().is_err());
}

/// A server with a million connections reported its counters only when most of the window's requests had
/// been answered: the whole CPU time was then divided by 46 of 328 requests.
#[test]
fn cpu_time_beside_late_counters_is_no_cost() {
    let counted = |requests: u64| {
        let raw = Raw {
            before: json!({"requests": 100, "system_calls": {"recvfrom": {"count": 0, "ns": 0}}}),
            after: json!({"requests": 100 + requests,
                "system_calls": {"recvfrom": {"count": requests, "ns": 5_000}}}),
            cpu: CpuTime { run_ns: 1_000_000, wait_ns: 0 },
            wall_ns: 10_000_000,
            load: json!({"requests": {"completed": 1_000}}),
            kernel_calls: [("tcp_poll".to_owned(), 300)].into(),
            switches: Some(7),
            ..Raw::default()
        };
        raw.metrics()
    };
    let timed = [
        "server_cpu_us_per_request",
        "call_share.recvfrom",
        "kernel_calls_per_request.tcp_poll",
        "context_switches_per_request",
    ];
    for (requests, has_times) in [(1_000, true), (850, true), (750, false), (46, false)] {
        let metrics = counted(requests);
        for name in timed {
            assert_eq!(metrics.contains_key(name), has_times, "{name} of {requests}");
        }
        // These counters are of the same reading.
        assert_eq!(metrics.get("calls_per_request.recvfrom"), Some(&1.0), "{requests}");
    }
}

/// The timing of calls took half of 1 ms of CPU time: shares are computed from the other half.
#[test]
fn shares_are_of_the_time_that_the_timing_leaves() {
    let mut calls = json!({
        "epoll_ctl": {"count": 20, "ns": 100_000},
        "epoll_wait": {"count": 10, "ns": 200_000},
        "clock_gettime": {"count": 60, "ns": 500_000}});
    let mut raw = Raw {
        before: json!({"requests": 0}),
        after: json!({"requests": 10, "system_calls": calls.clone()}),
        cpu: CpuTime { run_ns: 1_000_000, wait_ns: 0 },
        wall_ns: 10_000_000,
        load: json!({"requests": {"completed": 10}}),
        ..Raw::default()
    };
    let metrics = raw.metrics();
    let of = |name: &str| metrics.get(name).map(|value| (value * 1e6).round() / 1e6);
    assert_eq!(of("call_share.epoll_ctl"), Some(0.2));
    assert_eq!(of("event_call_share"), Some(0.6));
    assert_eq!(of("outside_calls_share"), Some(0.4));
    assert_eq!(of("timing_share"), Some(0.5));
    // The calls of the timing itself do not belong to the server.
    assert_eq!(of("calls_per_request"), Some(3.0));
    assert_eq!(of("calls_per_request.clock_gettime"), None);
    // In older runs the timing was not counted: their CPU time outside system calls includes it.
    calls.as_object_mut().unwrap().remove("clock_gettime");
    raw.after["system_calls"] = calls;
    let metrics = raw.metrics();
    assert!(!metrics.contains_key("outside_calls_share") && !metrics.contains_key("timing_share"));
    assert_eq!(metrics["call_share.epoll_wait"], 0.2);
}

/// Varnish used 0.4 of a CPU while its hundred threads waited for each other, and was reported as "busy
/// 1.03".
#[test]
fn threads_that_wait_for_each_other_want_no_cpu() {
    let busy = |listening: Json, wait_ns: u64| {
        let raw = Raw {
            listening,
            before: json!({"requests": 0}),
            after: json!({"requests": 100}),
            cpu: CpuTime { run_ns: 400_000_000, wait_ns },
            wall_ns: 1_100_000_000,
            load: json!({"requests": {"completed": 100}, "duration_s": 1.0}),
            ..Raw::default()
        };
        let metrics = raw.metrics();
        (metrics["server_cpu_busy_share"], metrics.contains_key("server_queue_share"))
    };
    let one = json!({"architecture": "event", "mechanism_spec": "epoll", "workers": [{"tid": 1}]});
    assert_eq!(busy(one.clone(), 550_000_000), (0.95, true));
    let mut sibling = one.clone();
    sibling["mechanism_spec"] = json!("rtsig:overflow=handoff");
    let mut many = one.clone();
    many["workers"] = json!([{"tid": 1}, {"tid": 2}]);
    let mut threads = one;
    threads["architecture"] = json!("threaded");
    for listening in [sibling, many, threads] {
        assert_eq!(busy(listening, 550_000_000), (0.4, false));
    }
    // If the CPU's own idle time was read, it shows whether CPU time was left: it includes the network's
    // work.
    let full = Raw {
        wall_ns: 1_000_000_000,
        idle_ns: Some(20_000_000),
        cpu: CpuTime { run_ns: 600_000_000, wait_ns: 900_000_000 },
        load: json!({"requests": {"completed": 100}, "duration_s": 0.9}),
        ..Raw::default()
    };
    assert_eq!(full.metrics()["server_cpu_busy_share"], 0.98);
    // A peer reports no statistics and is measured until the generator ends.
    let peer = Raw {
        cpu: CpuTime { run_ns: 610_000_000, wait_ns: 0 },
        wall_ns: 1_000_000_000,
        load: json!({"requests": {"completed": 100}, "duration_s": 0.6}),
        ..Raw::default()
    };
    assert_eq!(peer.metrics()["server_cpu_busy_share"], 0.61);
}

#[test]
fn a_hybrid_that_was_not_with_its_partner_does_not_return() {
    let after = |was: u64| {
        let details =
            |on: u64, ns: u64| json!({"details": {"on_partner": on, "on_partner_ns": ns}});
        let raw = Raw { before: details(was, 5), after: details(0, 105), ..Raw::default() };
        raw.metrics().get("partner_after_load_ns").copied()
    };
    assert_eq!((after(1), after(0)), (Some(100.0), None));
}

#[test]
fn stat_with_a_hostile_program_name() {
    let line = "7 (a) b (c) S 1 7 7 0 -1 0 0 0 0 0 11 12 13 14 20 0 1 0 5";
    let tick = 1_000_000_000 / rustix::param::clock_ticks_per_second();
    assert_eq!(reaped_children_ns(line).unwrap(), 27 * tick);
    assert!(reaped_children_ns("7 (x) S 1").is_err());
}

#[test]
fn a_busy_process_uses_its_cpu() {
    let mut busy =
        std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let before = cpu_time(busy.id()).unwrap();
    wait_until("five milliseconds of CPU time", || {
        (cpu_time(busy.id()).unwrap() - before).run_ns >= 5_000_000
    });
    busy.kill().unwrap();
    busy.wait().unwrap();
    assert!(cpu_time(busy.id()).is_err(), "it is gone");
}

#[test]
fn the_cpu_time_of_an_ended_child_is_reported() {
    let before = ended_children_ns().unwrap();
    let script = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
    let status = std::process::Command::new("sh").args(["-c", script]).status().unwrap();
    assert!(status.success());
    assert!(ended_children_ns().unwrap() - before >= 10_000_000);
}

#[test]
fn a_child_that_has_ended_is_in_its_parents_account() {
    // The parent only waits; its child counts to 50,000, and ends on a signal.
    let script = "sh -c 'i=0; while [ $i -lt 50000 ]; do i=$((i+1)); done; read line'; read line";
    let mut parent = std::process::Command::new("sh")
        .args(["-c", script])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let children = format!("/proc/{0}/task/{0}/children", parent.id());
    let mut most = 0;
    for has_child in [true, false] {
        wait_until(if has_child { "a child" } else { "no child" }, || {
            most = most.max(cpu_time(parent.id()).unwrap().run_ns);
            std::fs::read_to_string(&children).unwrap().trim().is_empty() != has_child
        });
        if has_child {
            std::io::Write::write_all(parent.stdin.as_mut().unwrap(), b"\n").unwrap();
        }
    }
    let after = cpu_time(parent.id()).unwrap().run_ns;
    parent.kill().unwrap();
    parent.wait().unwrap();
    // Two clock ticks for the rounding of user and system time.
    assert!(after + 20_000_000 >= most, "{after} ns after, {most} ns before");
    assert!(after > 0);
}

/// One request in fifty was sent late: the median of all requests was discarded together with their 99th
/// percentile.
#[test]
fn a_median_is_the_servers_where_few_requests_were_late() {
    let metrics = |valid: bool, p50: f64| {
        let load = json!({"latency_valid": valid, "latency_invalid_reason": "lag",
            "latency_us": {"p50": 550.0, "p99": 7_800.0, "mean": 900.0},
            "generator": {"lag_us": {"p50": p50, "p99": 6_400.0, "mean": 200.0}}});
        let metrics = Raw { load, ..Raw::default() }.metrics();
        ["p50", "mean", "p99"].map(|point| metrics.contains_key(&format!("latency_{point}_us")))
    };
    assert_eq!(metrics(false, 18.0), [true, true, false]);
    assert_eq!(metrics(false, 300.0), [false, true, false]);
    assert_eq!(metrics(true, 300.0), [true; 3], "the generator is content");
}

#[test]
fn idle_time_is_that_of_the_cpu() {
    let stat = "cpu  9 9 9 9 9 9\ncpu1 1 2 3 400 50 6 7\ncpu10 1 2 3 4 5 6 7\nintr 5\n";
    let tick = 1_000_000_000 / rustix::param::clock_ticks_per_second();
    assert_eq!(idle_in(stat, 1), Some(450 * tick));
    assert_eq!(idle_in(stat, 10), Some(9 * tick));
    assert_eq!((idle_in(stat, 0), idle_in("cpu0 1 2", 0)), (None, None));
    assert!(idle_ns(0).is_some(), "this kernel says");
}

/// With only one sample the minimum would equal the mean and hide every pause.
#[test]
fn the_least_reply_rate_is_of_several_samples() {
    let metrics = |samples: &[f64]| {
        let least = samples.iter().copied().fold(f64::INFINITY, f64::min);
        let load = json!({"valid": true, "reply_rate_rps":
            {"mean": 1000.0, "min": least, "max": 1000.0, "stddev": 1.0, "samples": samples}});
        Raw { load, ..Raw::default() }.metrics()
    };
    let [one, two] = [metrics(&[1000.0]), metrics(&[1000.0, 0.0])];
    for name in ["reply_rate_min_rps", "reply_rate_max_rps", "reply_rate_stddev_rps"] {
        assert!(!one.contains_key(name), "{name}");
    }
    assert_eq!(two["reply_rate_min_rps"], 0.0);
}

#[test]
fn packets_that_were_dropped_are_of_all_cpus() {
    // The format of Linux 6.1: one line for each CPU, hexadecimal.
    let stat = "00050865 00000b61 00000000 00000000 00000000\n0000000a 0000000f 00000000 00000000 00000000\n";
    assert_eq!(dropped_in(stat), Some(0xb61 + 15));
    assert_eq!((dropped_in("00050865\n"), dropped_in("1 x\n")), (None, None));
}

/// The result of a generator whose subscribers received all updates.
fn pushed() -> Raw {
    Raw {
        push: Some(PushRaw { subscribers: 10, recipients: 10, ..PushRaw::default() }),
        load: serde_json::json!({
            "valid": true,
            "subscribers": { "dropped": 0 },
            "publications": { "acknowledged": 5, "failed": 0, "first_failure": null },
            "deliveries": {
                "delivered": 50, "lost": 0, "duplicated": 0, "reordered": 0, "corrupt": 0,
            },
        }),
        cpu: CpuTime { run_ns: 500_000, wait_ns: 0 },
        ..Raw::default()
    }
}

#[test]
fn the_cost_of_updates_is_that_of_each_and_of_each_delivery() {
    let metrics = pushed().metrics();
    assert_eq!(metrics["server_cpu_us_per_update"], 100.0);
    assert_eq!(metrics["server_cpu_us_per_delivery"], 10.0);
    assert_eq!((metrics["deliveries"], metrics["wrong_deliveries"]), (50.0, 0.0));
    assert!(!metrics.contains_key("user_bytes_per_subscriber"), "none were held");
}

#[test]
fn a_delivery_that_is_wrong_makes_a_run_invalid() {
    assert_eq!(pushed().validity(), Ok(()));
    for kind in ["lost", "duplicated", "reordered", "corrupt"] {
        let mut raw = pushed();
        raw.load["deliveries"][kind] = 1.into();
        let reason = raw.validity().unwrap_err();
        assert!(reason.contains(&format!("1 {kind}")), "{reason}");
        assert_eq!(raw.doubt().as_ref(), Some(&reason));
        // A busy generator does not excuse a wrong delivery; without one, it is the reason.
        raw.load["valid"] = false.into();
        raw.load["invalid_reason"] = "it was busy".into();
        assert_eq!(raw.validity(), Err(reason));
        raw.load["deliveries"][kind] = 0.into();
        assert_eq!(raw.validity(), Err("it was busy".into()));
    }
    let mut silent = pushed();
    silent.load["deliveries"] = serde_json::Value::Null;
    assert!(silent.validity().is_err(), "a result without deliveries proves nothing");
    let mut refused = pushed();
    refused.load["publications"]["failed"] = 1.into();
    refused.load["publications"]["first_failure"] = "the server answered 429".into();
    assert!(refused.validity().unwrap_err().contains("429"));
    let mut dropped = pushed();
    dropped.load["subscribers"]["dropped"] = 2.into();
    assert!(dropped.validity().unwrap_err().contains("ended 2 streams"));
    let mut misread = pushed();
    misread.push.as_mut().unwrap().misread = Some("too slow".into());
    assert_eq!(misread.validity(), Err("too slow".into()));
}
