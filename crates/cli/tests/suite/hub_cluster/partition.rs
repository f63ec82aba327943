//! One hub is cut off from Redis and from the other hubs, with a part of the clients on its side.

use super::*;
use pollux_testkit::network::NetworkPair;

/// The hub that is cut off. Its publisher is on its side.
const FAR: usize = 1;
/// The time without a heartbeat after which a subscriber on the other side connects to another hub.
const SILENCE: Duration = Duration::from_secs(3);

/// On both sides subscribers keep up, each with its own hub. Those whose hub is on the other side
/// reconnect to another one with `Last-Event-ID`.
#[test]
fn a_hub_that_is_cut_off_loses_and_repeats_nothing() {
    let Some(networks) = NetworkPair::new() else { return };
    networks.near.run(|| run(&networks));
}

fn run(networks: &NetworkPair) {
    let pause = Duration::from_millis(5);
    let bind = ["--bind", "127.0.0.1", NetworkPair::NEAR, "--protected-mode", "no"];
    let durable = ["--appendonly", "yes", "--appendfsync", "always"];
    let Some(redis) = Redis::start(&[&bind[..], &durable].concat()) else { return };
    let far = || start_at(&redis, NetworkPair::NEAR, NetworkPair::FAR);
    let hubs = [start(&redis), networks.far.run(far), start(&redis)];
    let cluster = Cluster::new(&hubs);
    // The first six keep up, two at each hub; the others have to go to another hub.
    let mut readers: Vec<_> = (0..2 * HUBS)
        .map(|number| match number % HUBS {
            FAR => networks.far.run(|| reader(&cluster, number, PATIENCE)),
            _ => reader(&cluster, number, PATIENCE),
        })
        .collect();
    let keep_up = readers.len();
    readers.extend((0..2).map(|number| reader(&cluster, FAR + number * HUBS, SILENCE)));
    let writers = (0..HUBS)
        .map(|number| match number {
            FAR => networks.far.run(|| writer(&cluster, number, pause)),
            _ => writer(&cluster, number, pause),
        })
        .collect();
    cluster.wait_for_progress(100);

    // Shorter than any time-out: TCP repeats what was lost.
    networks.cut(true);
    thread::sleep(Duration::from_secs(1));
    networks.cut(false);
    cluster.wait_for_progress(50);

    for _ in 0..2 {
        networks.cut(true);
        cluster.wait_for_refusals(1);
        let of_far = || cluster.acknowledged[FAR].load(Ordering::SeqCst);
        let before = of_far();
        cluster.wait_for_progress(50);
        wait_until("subscribers at other hubs", || {
            cluster.reconnections.load(Ordering::SeqCst) >= 2
        });
        assert_eq!(of_far(), before, "a hub without Redis acknowledges updates");
        networks.cut(false);
        wait_until("the hub to be back", || of_far() > before + 20);
    }
    let (_, connections) = finish(&cluster, writers, readers);
    for (number, connections) in connections.into_iter().enumerate() {
        assert_eq!(connections > 1, number >= keep_up, "{number}: {connections} connections");
    }
}
