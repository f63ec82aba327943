//! The limits of clients during an upgrade.

use super::{
    failures::{READY, replace},
    *,
};

/// Regression: each new worker got the connections of whole former workers, and closed those beyond its
/// own share of the limit.
#[test]
fn another_number_of_workers_closes_no_connection_below_the_limit() {
    let folder = Folder::new();
    let write = |workers: usize, most: usize| {
        folder.write(
            &format!("workers = {workers}\nmax-connections = {most}\nkeep-alive = \"10m\""),
            &format!("root = \"a\"\nheader = [\"X-Round: {workers}\"]"),
        );
    };
    let mut command = Command::new(BINARY);
    command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--config"]);
    command.arg(folder.config()).arg("--control").arg(folder.control());
    write(1, 40);
    let mut server = Serve::start_command(command);
    let mut idle = idle_clients(&server, 30, 1);
    let mut processes = Vec::new();
    // The last step also changes which workers get how many.
    for (workers, most) in [(2, 40), (3, 40), (2, 36)] {
        write(workers, most);
        assert_eq!(handed_over(&printed(&folder.ctl("upgrade"))), idle.len());
        processes.push(successor(&mut server));
        idle.iter_mut().for_each(|client| assert_eq!(round_of(client), workers));
    }
    end(processes);
}

/// Regression: each connection was charged to the rate of new connections again, and those beyond the
/// burst were closed.
#[test]
fn the_rate_of_new_connections_does_not_count_those_that_are_handed_over() {
    let folder = Folder::new();
    folder.write(
        "limit-accept-rate = \"1/m:3\"\nkeep-alive = \"10m\"",
        "root = \"a\"\nheader = [\"X-Round: 0\"]",
    );
    let program = own_program(&folder);
    let mut command = Command::new(&program);
    command.args(["serve", "--json", "--listen", "127.0.0.1:0", "--config"]);
    command.arg(folder.config()).arg("--control").arg(folder.control());
    let mut server = Serve::start_command(command);
    let mut idle = idle_clients(&server, 3, 0);
    // The connections come back from a successor that accepts none.
    replace(&program, &format!("{READY}; sleep 0.2"));
    assert!(refused(&folder.ctl("upgrade")).contains("worker 0"));
    idle.iter_mut().for_each(|client| assert_eq!(round_of(client), 0));
    fs::remove_file(&program).unwrap();
    fs::hard_link(BINARY, &program).or_else(|_| fs::copy(BINARY, &program).map(drop)).unwrap();
    assert_eq!(handed_over(&printed(&folder.ctl("upgrade"))), idle.len());
    let process = successor(&mut server);
    idle.iter_mut().for_each(|client| assert_eq!(round_of(client), 0));
    // The new process has counted no new connection yet.
    idle.extend((0..3).map(|_| server.client()));
    idle.iter_mut().for_each(|client| assert_eq!(round_of(client), 0));
    end(vec![process]);
}

/// Regression: connections with a keep-alive time of 90 years stayed in the old process, as if they were busy.
#[test]
fn connections_that_may_be_idle_for_90_years_are_handed_over() {
    let folder = Folder::new();
    folder.write("keep-alive = \"90y\"", "root = \"a\"\nheader = [\"X-Round: 0\"]");
    let mut server = folder.serve(&[]);
    let mut idle = idle_clients(&server, 3, 0);
    assert_eq!(handed_over(&printed(&folder.ctl("upgrade"))), idle.len());
    let process = successor(&mut server);
    idle.iter_mut().for_each(|client| assert_eq!(round_of(client), 0));
    end(vec![process]);
}

/// Regression: the connections that the new process refused were counted as taken over, too.
#[test]
fn connections_that_the_new_process_cannot_use_are_counted_as_refused() {
    let folder = Folder::new();
    folder.write("keep-alive = \"10m\"", "root = \"a\"\nheader = [\"X-Round: 0\"]");
    let mut server = folder.serve(&[]);
    let mut idle = idle_clients(&server, 3, 0);
    // The idle connections have no TLS sessions.
    folder.write("keep-alive = \"10m\"\ntls = \"self-signed\"", "root = \"a\"");
    assert_eq!(handed_over(&printed(&folder.ctl("upgrade"))), idle.len());
    let process = successor(&mut server);
    idle.iter_mut().for_each(|client| assert!(client.is_closed()));
    end(vec![process]);
    let statistics = statistics_of(&mut server, |all| all["connections"]["refused"] == 3);
    let count = |name: &str| statistics["connections"][name].as_u64();
    assert_eq!((count("taken_over"), count("accepted")), (Some(0), Some(0)), "{statistics}");
}
