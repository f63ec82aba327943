//! What a core dump of a server with TLS contains.

use super::*;
use rustix::process::Signal;

/// The filters of a process and its children, as the kernel shows them.
fn filters(pid: u32) -> Vec<String> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let children = children.split_whitespace().map(|child| child.parse().unwrap());
    let filter = |pid: u32| fs::read_to_string(format!("/proc/{pid}/coredump_filter")).unwrap();
    [pid].into_iter().chain(children).map(filter).map(|text| text.trim().to_owned()).collect()
}

#[test]
fn no_process_of_a_server_with_tls_dumps_its_memory() {
    let directory = site();
    let arguments: [&[&str]; 3] =
        [&[], &["--architecture", "preforked", "--pool", "2"], &["--architecture", "forking"]];
    for arguments in arguments {
        let serve = serve(&directory, arguments);
        let found = filters(serve.pid());
        assert!(found.iter().all(|filter| filter == "00000000"), "{arguments:?}: {found:?}");
        assert!(found.len() > usize::from(arguments.contains(&"preforked")), "{found:?}");
    }
    let https =
        ["--origin", "https://127.0.0.1:1/", "--origin-ca", "a.pem"].map(|text| match text {
            "a.pem" => directory.path().join(text).display().to_string(),
            text => text.to_owned(),
        });
    let https: Vec<_> = https.iter().map(String::as_str).collect();
    let serve = Serve::start(POLLUX, &directory.path().join("site"), &https);
    assert_eq!(
        filters(serve.pid())[0],
        "00000000",
        "a server with keys of connections to an origin"
    );
    let own = fs::read_to_string("/proc/self/coredump_filter").unwrap();
    let serve = Serve::start(POLLUX, &directory.path().join("site"), &[]);
    assert_eq!(filters(serve.pid())[0], own.trim(), "a server without TLS");
}

/// The content of a small file, which the server caches, stands for everything in its memory.
#[test]
fn a_core_dump_contains_nothing_that_was_in_memory() {
    const MARK: &[u8] = b"this is in the memory of the server, and nowhere else in the dump";
    let pattern = fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    if !pattern.starts_with("core") {
        eprintln!("skipped: core dumps go to {:?}", pattern.trim());
        return;
    }
    for filter in ["0", "33"] {
        let directory = site();
        fs::write(directory.path().join("site/mark"), MARK).unwrap();
        let mut command = Command::new("sh");
        command
            .args([
                "-c",
                r#"ulimit -c unlimited && exec "$@""#,
                "sh",
                POLLUX,
                "serve",
                "site",
                "--json",
            ])
            .args(["--listen", "127.0.0.1:0", "--tls-cert", "a.pem", "--tls-key", "a.key"])
            .args(["--sandbox", "off"])
            .current_dir(directory.path());
        let mut serve = Serve::start_command(command);
        assert_eq!(curl(&directory, &serve, "/mark", &[]), MARK);
        if filter != "0" {
            // The control: with the kernel's default the detector finds it.
            let path = format!("/proc/{}/coredump_filter", serve.pid());
            fs::write(path, format!("0x{filter}")).unwrap();
        }
        serve.signal(Signal::ABORT);
        serve.wait_for_end();
        let entries = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
        let is_core = |path: &std::path::PathBuf| {
            path.file_name().unwrap().to_string_lossy().starts_with("core")
        };
        let core = fs::read(entries.into_iter().find(is_core).expect("a core dump")).unwrap();
        assert!(core.starts_with(b"\x7fELF"));
        let is_found = core.windows(MARK.len()).any(|bytes| bytes == MARK);
        assert_eq!(is_found, filter != "0", "filter {filter}, {} bytes", core.len());
    }
}
