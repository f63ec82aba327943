//! The guestbook on a file of this host.

use super::*;

fn store(directory: &TempDir) -> Store {
    Store::File(directory.path().join("remarks"))
}

#[test]
fn every_mechanism_has_a_guestbook() {
    for mechanism in MECHANISMS {
        if pollux_event::registry::probe(&mechanism.parse().unwrap()).is_err() {
            println!("skipped: {mechanism} is not there");
            continue;
        }
        let directory = tempfile::tempdir().unwrap();
        let fixture = Fixture::new(mechanism, store(&directory), StoreConnections::default());
        has_a_guestbook(&fixture);
        fixture.stop();
    }
}

/// Two servers of this process share one file, as two workers do.
#[test]
fn servers_share_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let servers =
        [(); 2].map(|()| Fixture::new("epoll-et", store(&directory), StoreConnections::default()));
    let mut numbers = Vec::new();
    for _ in 0..3 {
        numbers.extend(servers.iter().map(|server| visitor(&visit(&mut server.client()))));
    }
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
    servers.into_iter().for_each(Fixture::stop);
}

#[test]
fn a_file_that_cannot_be_the_store_is_reported_at_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = Settings::new(directory.path());
    config.listen = vec!["127.0.0.1:0".parse().unwrap()];
    let store = Store::File(directory.path().to_owned());
    config.guestbook = Some(Arc::new(GuestbookConfig::new("/g", store)));
    let error = format!("{:#}", Server::start(config).unwrap_err());
    assert!(error.contains("as guestbook"), "{error}");
}
