//! Real origins: nginx and Apache httpd, where they are installed.

use super::*;
use pollux_testkit::Port;
use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Child, Command, Stdio},
};

const MODULES: &str = "/usr/lib/apache2/modules";

/// An origin's process, which is ended with the test.
struct Peer(Child);

impl Peer {
    /// Starts the program. Returns `None` where it is not installed.
    fn start(program: &str, arguments: &[&str]) -> Option<Self> {
        let mut command = Command::new(program);
        command.args(arguments).stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            Ok(child) => Some(Self(child)),
            Err(error) => {
                eprintln!("skipped: {program}: {error}");
                None
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Apache's children end with their parent only if the parent gets SIGTERM and is not killed.
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.0.wait();
    }
}

/// Creates a site whose files are readable for the user that the peer switches to.
fn site() -> (TempDir, Vec<u8>) {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let content: Vec<u8> = (0..500_000u32).map(|i| (i / 7) as u8).collect();
    fs::write(directory.path().join("large"), &content).unwrap();
    (directory, content)
}

fn is_passed_on(origin: &str, content: &[u8]) {
    on_every_engine(|engine| {
        let fixture = Fixture::new(&[origin], |config, frontend| {
            serve_with(config, engine);
            frontend.cache = Some(pollux_cache::Store::new(pollux_cache::Config::default()));
        });
        wait_until("the origin's answer", || fixture.get("/large").status == 200);
        let mut client = fixture.client();
        for _ in 0..2 {
            let whole = client.get("/large");
            assert!(whole.body == content, "{engine}: {} bytes", whole.body.len());
            let etag = format!("If-None-Match: {}", whole.field("etag").unwrap());
            assert_eq!(client.request("GET", "/large", &[&etag]).status, 304, "{engine}");
        }
        assert_eq!(client.request("GET", "/large", &["Range: bytes=5-9"]).body, &content[5..10]);
        let head = client.request("HEAD", "/large", &["Cache-Control: no-cache"]);
        assert_eq!(head.field("content-length"), Some("500000"), "{engine}");
        assert_eq!(client.get("/none").status, 404, "{engine}");
        assert!(matches!(client.request("DELETE", "/large", &[]).status, 405 | 501), "{engine}");
        assert!(client.get("/large").body == content, "{engine}");
        fixture.stop();
    });
}

#[test]
fn nginx_is_passed_on_unchanged() {
    let (directory, content) = site();
    let path = directory.path().display();
    let socket = directory.path().join("socket");
    let configuration = format!(
        "daemon off; master_process off; pid {path}/pid; error_log {path}/errors;\n\
         events {{}}\n\
         http {{\n\
           access_log off; client_body_temp_path {path}/body; proxy_temp_path {path}/proxy;\n\
           fastcgi_temp_path {path}/fastcgi; uwsgi_temp_path {path}/uwsgi; scgi_temp_path {path}/scgi;\n\
           server {{ listen unix:{}; root {path}; }}\n\
         }}\n",
        socket.display()
    );
    let file = directory.path().join("nginx.conf");
    fs::write(&file, configuration).unwrap();
    let arguments = ["-p", directory.path().to_str().unwrap(), "-c", file.to_str().unwrap()];
    let Some(_peer) = Peer::start("nginx", &arguments) else { return };
    is_passed_on(&format!("unix:{}", socket.display()), &content);
}

#[test]
fn apache_is_passed_on_unchanged() {
    if !Path::new(MODULES).exists() {
        return eprintln!("skipped: there is no {MODULES}");
    }
    let (directory, content) = site();
    let path = directory.path().display();
    // Apache does not listen on UNIX sockets.
    let port = Port::reserve();
    let address = port.address();
    let mut configuration = format!(
        "ServerRoot {path}\nServerName localhost\nDefaultRuntimeDir {path}\nPidFile {path}/pid\n\
         ErrorLog {path}/errors\nListen {address}\nDocumentRoot {path}\nUser www-data\nGroup www-data\n"
    );
    for module in ["mpm_event", "authz_core"] {
        configuration += &format!("LoadModule {module}_module {MODULES}/mod_{module}.so\n");
    }
    let file = directory.path().join("apache.conf");
    fs::write(&file, configuration).unwrap();
    let arguments = ["-DFOREGROUND", "-f", file.to_str().unwrap()];
    let Some(_peer) = Peer::start("apache2", &arguments) else { return };
    is_passed_on(&format!("http://{address}"), &content);
}
