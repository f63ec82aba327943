//! Experiments within seconds: the shortest forms that still measure something.

use pollux_lab::experiment;
use toml::{Table, Value};

/// Returns the quick form of `id` with one pass of the shortest windows, at rates that the generator
/// of a busy machine can keep.
pub(super) fn hurried(id: &str) -> String {
    let mut experiment: Table = experiment::text(id).unwrap().parse().unwrap();
    let is_for_guests = experiment.get("place").and_then(Value::as_str) == Some("guest");
    // One variant of each kind.
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
        within(&mut experiment, &["quick"]).insert("variants".into(), few.into());
    }
    let quick = within(&mut experiment, &["quick", "budget"]);
    quick.insert("seconds".into(), 1.into());
    quick.insert("blocks".into(), 1.into());
    quick.insert("warmup-seconds".into(), 0.into());
    for window in ["min-window-seconds", "max-window-seconds", "saturation-seconds"] {
        quick.insert(window.into(), 0.1.into());
    }
    if id.starts_with("zerohttpd") || id == "guestbook-redis" {
        // During the first tenth of a second, pools of processes are still being started.
        quick.insert("max-window-seconds".into(), 0.4.into());
        quick.insert("min-window-seconds".into(), 0.4.into());
    }
    if is_for_guests {
        // Only requests that are answered within the window count, and a guest is slow.
        quick.insert("saturation-seconds".into(), 1.into());
    }
    if experiment.get("kernel-calls").is_some() && id != "gammo-wan" {
        // In these experiments `epoll` is only for comparison; no claim is about it.
        let variants = experiment["variants"].as_array_mut().unwrap();
        variants.retain(|name| name.as_str() != Some("epoll"));
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
        // Long enough for a few requests in a slow guest.
        if guest.contains_key("clients") {
            let quick = within(&mut experiment, &["quick", "budget"]);
            quick.insert("min-window-seconds".into(), 1.into());
            quick.insert("max-window-seconds".into(), 1.into());
        }
    }
    if let Some(most) = experiment.get_mut("connections-per-worker") {
        *most = 1000.into();
    }
    let slower = |share: f64| (share * 0.2).max(0.05);
    let slow = |share: &mut Value| *share = slower(share.as_float().unwrap()).into();
    // Without a list for the quick form the rates are already low.
    let of_quick = experiment["quick"].get("rate").and_then(|rate| rate.get("fractions"));
    let overlays: &[&[&str]] = match of_quick {
        Some(_) => {
            &[&["rate"], &["quick", "rate"], &["guest", "rate"], &["guest", "quick", "rate"]]
        }
        None => &[],
    };
    for path in overlays {
        let start = experiment.get_mut(path[0]);
        let rate = path[1..].iter().fold(start, |table, key| table?.get_mut(key));
        let fractions = rate.and_then(|rate| rate.get_mut("fractions"));
        fractions.into_iter().flat_map(|list| list.as_array_mut().unwrap()).for_each(slow);
    }
    // Claims name some of these rates, as "x1.15".
    let slower_multiple = |rate: &mut Value| {
        let share = rate.as_str().and_then(|rate| rate.strip_prefix('x'));
        if let Some(share) = share.and_then(|share| share.parse().ok()) {
            *rate = format!("x{}", slower(share)).into();
        }
    };
    let claims = experiment.get_mut("claim").and_then(Value::as_array_mut);
    for claim in claims.into_iter().flatten() {
        let at_each = claim.get_mut("operating-rates").and_then(Value::as_array_mut);
        at_each.into_iter().flatten().for_each(slower_multiple);
        for side in ["a", "b"] {
            let at = claim.get_mut(side).and_then(|side| side.get_mut("at"));
            let Some(rate) = at.and_then(|at| at.get_mut("rate")) else { continue };
            slower_multiple(rate);
        }
    }
    for phase in experiment.get_mut("phase").into_iter().flat_map(|p| p.as_array_mut().unwrap()) {
        slow(&mut phase["fraction"]);
        phase.get_mut("seconds").into_iter().for_each(|seconds| *seconds = 0.2.into());
    }
    let mut names = Vec::new();
    let axes = experiment.get_mut("axis").and_then(Value::as_array_mut);
    for axis in axes.into_iter().flatten() {
        names.push(axis["name"].as_str().unwrap().to_owned());
        if axis["name"].as_str() == Some("backlog") {
            // With a queue of five, the server needs many seconds to accept 501 idle connections.
            axis["values"] = vec![Value::Integer(128), Value::Integer(4096)].into();
        }
    }
    for name in names {
        let axis = within(&mut experiment, &["quick", "axis", &name]);
        let first = axis.get("values").and_then(|values| values[0].as_integer());
        let values = match (id, name.as_str()) {
            // Guests are slow.
            ("mail-hints", _) => vec![1, 101],
            ("capacity", _) => vec![10, 1500],
            // Thousands of connections take one second each time.
            ("gammo-fig5-6" | "gammo-specweb99", "idle") => vec![0, 300],
            ("idle" | "frontend" | "tls-idle", "idle") => vec![0, 1000],
            (_, "backlog") => vec![128, 4096],
            (_, "watched") => vec![10, 60],
            // The largest set that is not the paper's own.
            _ if first == Some(2000) => vec![300],
            _ => continue,
        };
        let values: Vec<Value> = values.into_iter().map(Value::Integer).collect();
        axis.insert("values".into(), values.into());
    }
    if id == "capacity" {
        // The claims name the largest number of connections of the quick form.
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
    if id == "zerohttpd-static" {
        // This experiment has no table of its own, and its closed loop has neither a lag nor arrivals.
        within(&mut experiment, &["load"]).insert("max-starved".into(), "100%".into());
    } else if let Some(load) = experiment.get_mut("load").and_then(Value::as_table_mut) {
        load.insert("max-lag".into(), "1m".into());
        // The two shares have no meaning for a load of subscribers.
        if id != "push" {
            load.insert("max-lag-share".into(), "100%".into());
            load.insert("max-starved".into(), "100%".into());
        }
        // With random arrivals a tenth of a second may have no request.
        load.insert("arrivals".into(), "constant".into());
    }
    toml::to_string(&experiment).unwrap()
}

/// Returns the table at `path`, which is created where there is none.
fn within<'a>(table: &'a mut Table, path: &[&str]) -> &'a mut Table {
    path.iter().fold(table, |table, key| {
        let inner = table.entry(*key).or_insert_with(|| Table::new().into());
        inner.as_table_mut().unwrap()
    })
}
