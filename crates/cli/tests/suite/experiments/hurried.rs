//! Experiments in seconds: the shortest forms that still measure something.

use pollux_lab::experiment;
use toml::{Table, Value};

/// The quick form of `id` in one pass of the shortest windows, at rates that a busy machine's
/// generator can keep.
pub(super) fn hurried(id: &str) -> String {
    let mut experiment: Table = experiment::text(id).unwrap().parse().unwrap();
    let is_for_guests = experiment.get("place").and_then(Value::as_str) == Some("guest");
    // One of each kind.
    let few: &[&str] = match id {
        "zerohttpd-table" => &["forking", "preforked", "poll", "epoll"],
        "zerohttpd-static" => &["preforked", "epoll-et", "apache-event", "floor-threads"],
        "frontend" => &["from-folder", "floor", "epoll-et", "nginx"],
        "push" => &["select", "poll", "epoll-et", "floor-push"],
        "tls-idle" => &["plain", "floor", "epoll-et", "nginx", "nginx-kernel", "h2o", "haproxy"],
        _ => &[],
    };
    if !few.is_empty() {
        let few: Vec<Value> = few.iter().map(|&name| name.into()).collect();
        experiment.insert("quick-variants".into(), few.into());
    }
    let quick = experiment["quick"].as_table_mut().unwrap();
    quick.insert("seconds".into(), 1.into());
    quick.insert("blocks".into(), 1.into());
    quick.insert("warmup-seconds".into(), 0.into());
    for window in ["min-window-seconds", "max-window-seconds", "saturation-seconds"] {
        quick.insert(window.into(), 0.1.into());
    }
    if id.starts_with("zerohttpd") || id == "guestbook-redis" {
        // Pools of processes are still being made in the first tenth.
        quick.insert("max-window-seconds".into(), 0.4.into());
        quick.insert("min-window-seconds".into(), 0.4.into());
    }
    if is_for_guests {
        // Only what is answered within the window counts, and a guest is slow.
        quick.insert("saturation-seconds".into(), 1.into());
    }
    if experiment.get("kernel-calls").is_some() && id != "gammo-wan" {
        // It stands beside the others there; no claim speaks of it.
        let variants = experiment["variant"].as_array_mut().unwrap();
        variants.retain(|variant| variant["name"].as_str() != Some("epoll"));
    }
    if let Some(wait) = experiment.get_mut("wait").and_then(Value::as_table_mut) {
        wait.insert("waits".into(), 20.into());
    }
    if let Some(guest) = experiment.get_mut("guest").and_then(Value::as_table_mut) {
        guest.remove("quick");
        guest.remove("load");
        if let Some(clients) = guest.get_mut("clients") {
            clients["settle-seconds"] = 0.5.into();
        }
        // Long enough for a few requests in a guest that is slow.
        if guest.contains_key("clients") {
            experiment["quick"]["min-window-seconds"] = 1.into();
            experiment["quick"]["max-window-seconds"] = 1.into();
        }
    }
    if let Some(most) = experiment.get_mut("connections-per-worker") {
        *most = 1000.into();
    }
    let slower = |share: f64| (share * 0.2).max(0.05);
    let slow = |share: &mut Value| *share = slower(share.as_float().unwrap()).into();
    // Without a list for the quick form the rates are low already.
    let has_quick =
        experiment.get("rate").is_some_and(|rate| rate.get("quick-fractions").is_some());
    for form in ["fractions", "quick-fractions"].iter().filter(|_| has_quick) {
        let fractions = experiment.get_mut("rate").and_then(|rate| rate.get_mut(form));
        fractions.into_iter().flat_map(|list| list.as_array_mut().unwrap()).for_each(slow);
    }
    // Claims name some of these rates, as "x1.15".
    let claims = experiment.get_mut("claim").and_then(Value::as_array_mut);
    for claim in claims.into_iter().flatten() {
        for side in ["a", "b"] {
            let at = claim.get_mut(side).and_then(|side| side.get_mut("at"));
            let Some(rate) = at.and_then(|at| at.get_mut("rate")) else { continue };
            let share = rate.as_str().and_then(|rate| rate.strip_prefix('x'));
            if let Some(share) = share.and_then(|share| share.parse().ok()) {
                *rate = format!("x{}", slower(share)).into();
            }
        }
    }
    for phase in experiment.get_mut("phase").into_iter().flat_map(|p| p.as_array_mut().unwrap()) {
        slow(&mut phase["fraction"]);
        phase.get_mut("seconds").into_iter().for_each(|seconds| *seconds = 0.2.into());
    }
    let axes = experiment.get_mut("axis").and_then(Value::as_array_mut);
    for axis in axes.into_iter().flatten() {
        // The largest set that is not the paper's own.
        if axis.get("quick-values").and_then(|values| values[0].as_integer()) == Some(2000) {
            axis["quick-values"][0] = 300.into();
        }
        // Guests are slow.
        if id == "mail-hints" {
            axis["quick-values"] = vec![Value::Integer(1), Value::Integer(101)].into();
        }
        if id == "capacity" {
            axis["quick-values"] = vec![Value::Integer(10), Value::Integer(1500)].into();
        }
        // Thousands take a second each time.
        let few = match id {
            "gammo-fig5-6" | "gammo-specweb99" => 300,
            "idle" | "frontend" | "tls-idle" => 1000,
            _ => 0,
        };
        if few > 0 && axis["name"].as_str() == Some("idle") {
            let values = vec![Value::Integer(0), Value::Integer(few)];
            axis.as_table_mut().unwrap().insert("quick-values".into(), values.into());
        }
        if axis["name"].as_str() == Some("backlog") {
            // A queue of five takes many seconds to let 501 idle connections in.
            let values: Value = vec![Value::Integer(128), Value::Integer(4096)].into();
            axis["values"] = values.clone();
            axis.as_table_mut().unwrap().insert("quick-values".into(), values);
        }
        if axis["name"].as_str() == Some("watched") {
            axis["quick-values"] = vec![Value::Integer(10), Value::Integer(60)].into();
        }
    }
    if id == "capacity" {
        // Its claims name the most connections of its quick form.
        for claim in experiment["claim"].as_array_mut().unwrap() {
            for side in ["a", "b"] {
                let at = claim.get_mut(side).and_then(|side| side.get_mut("at"));
                let idle = at.and_then(|at| at.get_mut("idle"));
                idle.into_iter()
                    .filter(|idle| idle.is_integer())
                    .for_each(|idle| *idle = "max".into());
            }
        }
    }
    for request in experiment.get_mut("request").into_iter().flat_map(|r| r.as_array_mut().unwrap())
    {
        let rate = request.get_mut("load").and_then(|load| load.get_mut("rate"));
        rate.into_iter().filter(|rate| rate.is_integer()).for_each(|rate| *rate = 1000.into());
        if request.get("stored").is_some() {
            request.as_table_mut().unwrap().insert("distinct".into(), 1000.into());
        }
    }
    if let Some(load) = experiment.get_mut("load").and_then(Value::as_table_mut) {
        load.insert("max-lag".into(), "1m".into());
        load.insert("max-lag-share".into(), "100%".into());
        load.insert("max-starved".into(), "100%".into());
        // At random instants a tenth of a second may have none.
        load.insert("arrivals".into(), "constant".into());
    }
    toml::to_string(&experiment).unwrap()
}
