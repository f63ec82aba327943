//! A full disk: publishers get 503 at once, subscribers stay connected, and the hub accepts updates
//! when there is room again.

use super::{BINARY, Reader};
use pollux_testkit::{http::Client, serve::Serve, wait_until};
use std::{fs, path::PathBuf, process::Command};

fn publish(client: &mut Client, data: &str) -> u16 {
    let body = format!("topic=a&data={data}");
    client.send(format!(
        "POST /.well-known/mercure HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\
         Content-Type: application/x-www-form-urlencoded\r\n\r\n{body}",
        body.len()
    ));
    client.reply().status
}

#[test]
fn a_full_disk_refuses_updates_until_there_is_room() {
    let directory = tempfile::tempdir().unwrap();
    let disk = directory.path().join("disk");
    fs::create_dir(&disk).unwrap();
    let may_mount = Command::new("unshare").args(["--mount", "true"]).status();
    if !may_mount.is_ok_and(|status| status.success()) {
        println!("skipped: this user cannot mount");
        return;
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount -t tmpfs -o size=8m none \"$0\" && exec \"$@\""]);
    command.arg(&disk).args([BINARY, "serve"]).arg(directory.path());
    command.args(["--json", "--listen", "127.0.0.1:0", "--hub", "--hub-anonymous"]);
    command.arg("--hub-publish-anonymous").arg("--hub-store");
    command.arg(format!("file:{}", disk.join("history").display()));
    let mut server = Serve::start_command(command);
    let reader = Reader::subscribe(&server, &["--topic", "a"]);
    server.wait_until("the subscriber", |now| now["connections"]["streams"] == 1);
    let mut client = server.client();
    assert_eq!(publish(&mut client, "one"), 200);
    assert_eq!(reader.line(), "one");
    // Only the server sees the file system.
    let root = PathBuf::from(format!("/proc/{}/root", server.pid()));
    let filler = root.join(disk.strip_prefix("/").unwrap()).join("filler");
    let _ = fs::write(&filler, vec![0; 16 << 20]);
    // There may still be room in the file itself.
    let big = "x".repeat(200_000);
    let mut stored = 0;
    while publish(&mut client, &big) == 200 {
        stored += 1;
        assert!(stored < 60, "more than the disk has");
    }
    // Each request is answered, not only the first one.
    for _ in 0..5 {
        assert_eq!(publish(&mut client, &big), 503);
    }
    fs::remove_file(&filler).unwrap();
    wait_until("the hub to find room", || publish(&mut client, "two") == 200);
    // The connection has stayed open, and no refused update arrived.
    (0..stored).for_each(|_| assert_eq!(reader.line(), big));
    assert_eq!(reader.line(), "two");
}
