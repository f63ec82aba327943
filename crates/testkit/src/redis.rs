//! A real Redis server for one test.

use crate::{
    http,
    ports::Port,
    wait::{becomes_true, wait_until},
};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    process::{Child, Command, Stdio},
};
use tempfile::TempDir;

/// The columns of the kernel's socket table with the local and the remote address.
const LOCAL: usize = 1;
const REMOTE: usize = 2;

/// A running Redis. It is killed when this value is dropped.
#[derive(Debug)]
pub struct Redis {
    child: Child,
    /// The port on which Redis listens, on 127.0.0.1.
    pub port: u16,
    /// The working directory of Redis, which no other process uses.
    pub directory: TempDir,
    arguments: Vec<String>,
    /// Keeps the port reserved for Redis, also while Redis does not run.
    _reserved: Port,
}

impl Redis {
    /// Starts Redis with additional arguments. Returns `None` where Debian's package is not installed.
    /// `make test` installs the package and sets `POLLUX_REDIS_REQUIRED`, which makes a missing Redis
    /// an error.
    pub fn start(arguments: &[&str]) -> Option<Self> {
        let reserved = Port::reserve();
        let port = reserved.number();
        let directory = tempfile::tempdir().unwrap();
        let arguments: Vec<_> = arguments.iter().map(|&argument| argument.to_owned()).collect();
        let child = spawn(port, &directory, &arguments)?;
        let mut redis = Self { child, port, directory, arguments, _reserved: reserved };
        redis.wait_until_it_listens();
        Some(redis)
    }

    /// Waits until this process listens at the port. A Redis that cannot bind to its port ends.
    fn wait_until_it_listens(&mut self) {
        wait_until("Redis to listen", || {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "Redis does not start: {ended:?}");
            self.is_listening()
        });
    }

    /// Returns whether a descriptor of the process is the socket that listens at the port. The check
    /// sends no command, because Redis may require a password.
    fn is_listening(&self) -> bool {
        let listening = self.sockets(LOCAL, "0A").into_iter().next();
        let inode = listening.map(|columns| format!("socket:[{}]", columns[9]));
        let descriptors = std::fs::read_dir(format!("/proc/{}/fd", self.child.id()));
        let (Some(inode), Ok(descriptors)) = (inode, descriptors) else { return false };
        let links = descriptors.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
        links.into_iter().any(|link| link.as_os_str() == inode.as_str())
    }

    /// Returns the rows of the kernel's table with Redis's address in this column and with this state
    /// (proc_pid_net(5)).
    fn sockets(&self, column: usize, state: &str) -> Vec<Vec<String>> {
        let address = format!("0100007F:{:04X}", self.port);
        // Of the calling thread: a test may have moved it into another network (`crate::network`).
        let table = std::fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
        let rows = table.lines().map(|line| line.split_whitespace().map(str::to_owned).collect());
        let is_it = |columns: &Vec<String>| {
            columns.len() > 9 && columns[column] == address && columns[3] == state
        };
        rows.filter(is_it).collect()
    }

    /// Waits until a client has sent a request that Redis, while paused, has not read.
    pub fn wait_until_request_pending(&self) {
        self.wait_until_unread(LOCAL, "no request reaches Redis");
    }

    /// Waits until Redis has sent a reply that its client has not read.
    pub fn wait_until_reply_pending(&self) {
        self.wait_until_unread(REMOTE, "Redis does not answer");
    }

    /// Waits until some connection has unread input at the end whose address is in this column.
    fn wait_until_unread(&self, column: usize, what: &str) {
        // The column has the lengths of the send queue and of the receive queue.
        let is_unread = |columns: &Vec<String>| !columns[4].ends_with(":00000000");
        let has_unread = || self.sockets(column, "01").iter().any(is_unread);
        assert!(becomes_true(http::PATIENCE, has_unread), "{what}");
    }

    /// Kills Redis.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts Redis again, on the same port, after it has ended.
    pub fn start_again(&mut self) {
        self.child = spawn(self.port, &self.directory, &self.arguments).expect("it was there");
        self.wait_until_it_listens();
    }

    /// Suspends Redis so that it does not answer, or resumes it. Its sockets stay open.
    pub fn pause(&self, is_paused: bool) {
        use rustix::process::{Pid, Signal, kill_process};
        let signal = if is_paused { Signal::STOP } else { Signal::CONT };
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Sends a command, whose words are separated by spaces, and returns the first line of the reply.
    pub fn command(&self, command: &str) -> String {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let mut stream = TcpStream::connect(address).unwrap();
        http::set_options(&stream).unwrap();
        stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Sends several commands over one connection, and returns the first line of the last reply. The
    /// earlier replies must have one line each.
    pub fn script(&self, commands: &[&str]) -> String {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        http::set_options(&stream).unwrap();
        let mut line = String::new();
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        for command in commands {
            stream.write_all(format!("{command}\r\n").as_bytes()).unwrap();
            line.clear();
            reader.read_line(&mut line).unwrap();
            let length =
                line.strip_prefix('$').and_then(|count| count.trim().parse::<usize>().ok());
            if let Some(bytes) = length {
                reader.read_exact(&mut vec![0; bytes + 2]).unwrap();
            }
        }
        line.trim_end().to_owned()
    }

    /// Returns the value of a line of INFO.
    pub fn info(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        stream.write_all(b"INFO\r\nQUIT\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name}:")));
        line.expect(name).trim().parse().unwrap()
    }
}

fn spawn(port: u16, directory: &TempDir, arguments: &[String]) -> Option<Child> {
    let child = Command::new("redis-server")
        .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--daemonize", "no"])
        .args(["--port", &port.to_string(), "--dir"])
        .arg(directory.path())
        .args(arguments)
        .stdout(Stdio::null())
        .spawn();
    match child {
        Ok(child) => Some(child),
        Err(error) if std::env::var_os("POLLUX_REDIS_REQUIRED").is_some() => {
            panic!("redis-server: {error}: apt-get install redis-server")
        }
        Err(_) => {
            println!("skipped: redis-server is not installed");
            None
        }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
