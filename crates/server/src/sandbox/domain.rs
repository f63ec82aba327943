//! The files and TCP ports that a server needs, according to its configuration.

use crate::config::{
    Config, HubSection, HubStoreConfig, KeySource, Listen, LogTarget, Origin, SiteSection, Store,
    Symlinks,
};
use landlock::{AccessFs, BitFlags, make_bitflags};
use pollux_acme::Settings as AcmeSettings;
use pollux_guestbook::redis::{Address, Url};
use std::{
    collections::BTreeSet,
    env, fs,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

/// The port of DNS, which the C library's resolver uses when a reply is too long for UDP.
const DNS: u16 = 53;

/// The files that the C library and the standard library read: names of hosts and services, their
/// modules, the time zone, the number of CPUs, and information about this process.
const SYSTEM: [&str; 22] = [
    "/dev/random",
    "/dev/urandom",
    "/dev/zero",
    "/etc/gai.conf",
    "/etc/host.conf",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/resolv.conf",
    "/etc/services",
    "/lib",
    "/lib64",
    "/proc/self",
    "/proc/sys",
    "/run/NetworkManager",
    "/run/resolvconf",
    "/run/systemd/resolve",
    "/sys/devices/system/cpu",
    "/sys/fs/cgroup",
    "/usr/lib",
    "/usr/lib64",
];

/// The files and directories with the authorities that the system trusts.
const AUTHORITIES: [&str; 7] = [
    "/etc/ca-certificates",
    "/etc/pki",
    "/etc/ssl/cert.pem",
    "/etc/ssl/certs",
    "/usr/lib/ssl",
    "/usr/local/share/ca-certificates",
    "/usr/share/ca-certificates",
];

/// The directories for the data of sites (hier(7)).
const SITES: [&str; 2] = ["/srv", "/var/www"];

/// The use of a file, or of the files in and below a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// Reads files and lists directories.
    Read,
    /// Creates, reads, changes and removes files.
    Store,
    /// Creates files and appends to them.
    Append,
    /// Binds and removes UNIX sockets.
    Sockets,
    /// Uses a device.
    Device,
}

impl Access {
    /// Returns the Landlock rights that this access needs.
    pub(super) fn rights(self) -> BitFlags<AccessFs> {
        match self {
            Self::Read => make_bitflags!(AccessFs::{ReadFile | ReadDir}),
            Self::Store => make_bitflags!(AccessFs::{
                ReadFile | ReadDir | WriteFile | Truncate | MakeReg | MakeDir | RemoveFile | RemoveDir | Refer
            }),
            Self::Append => make_bitflags!(AccessFs::{WriteFile | MakeReg}),
            Self::Sockets => make_bitflags!(AccessFs::{ReadDir | MakeSock | RemoveFile}),
            Self::Device => make_bitflags!(AccessFs::{ReadFile | WriteFile | IoctlDev}),
        }
    }
}

/// The files and ports of a configuration.
#[derive(Clone, Debug, Default)]
pub struct Domain {
    /// The files that the libraries need on any machine.
    pub(super) system: Vec<(PathBuf, Access)>,
    /// The files and directories that the configuration names.
    pub(super) paths: Vec<(PathBuf, Access)>,
    /// The ports that the server listens on.
    pub(super) bind: BTreeSet<u16>,
    /// The ports that the server connects to.
    pub(super) connect: BTreeSet<u16>,
    /// Whether all ports may be connected to.
    pub(super) connects_anywhere: bool,
    /// Whether the configuration names a server that this one connects to: an origin, an authority, a
    /// key set or a store.
    has_peers: bool,
    /// Directories that the server would create later. They must exist before rights to them can be
    /// granted.
    own: Vec<PathBuf>,
}

impl Domain {
    /// Returns the needs of a configuration, except those of its own file and of settings that only
    /// flags have.
    pub fn of(file: &Config) -> Self {
        let mut domain = Self::default();
        for path in SYSTEM {
            domain.system.push((path.into(), Access::Read));
        }
        domain.system.push(("/dev/null".into(), Access::Device));
        domain.system.push(("/dev/poll".into(), Access::Device));
        domain.connect.insert(DNS);
        let further = file.admin.iter().chain(&file.redirect_http).map(|listen| &listen.value);
        for listen in file.listen.iter().map(|listen| &listen.value).chain(further) {
            domain.listen(listen);
        }
        for path in file.tls_files() {
            domain.file(&path);
        }
        if let Some(path) = env::var_os("SSLKEYLOGFILE")
            && file.tls_key_log
        {
            domain.append(path.as_ref());
        }
        if let Some(path) = &file.control {
            domain.sockets(path);
        }
        for target in file.access_log.iter().chain(&file.slow_log) {
            // A connection to a UNIX socket needs no right except that of the mode of its file.
            if let LogTarget::File(path) = &target.value {
                domain.append(path);
            }
        }
        if let Some(hub) = &file.hub {
            domain.hub(hub);
        }
        for site in &file.site {
            domain.site(site);
        }
        if let Ok(Some(acme)) = file.acme() {
            domain.acme(&acme);
        }
        domain
    }

    /// Adds a listener.
    pub fn listen(&mut self, listen: &Listen) {
        match listen {
            // Port 0 is bound before the sandbox is entered.
            Listen::Tcp(address) if address.port() != 0 => {
                self.bind.insert(address.port());
            }
            Listen::Unix(path) => self.sockets(path),
            Listen::Tcp(_) | Listen::Passed(_) => {}
        }
    }

    /// Adds a file that is read now and again after it was replaced. Usually another file is
    /// renamed to its name, so the right is for the directory. The exception is a directory with
    /// files of other programs: there the right is for the file alone.
    pub fn file(&mut self, path: &Path) {
        for path in [Some(path.to_owned()), fs::canonicalize(path).ok()].into_iter().flatten() {
            let directory = directory_of(&path);
            let path = if is_shared(&directory) { path } else { directory };
            self.paths.push((path, Access::Read));
        }
    }

    /// Adds a file that is created and appended to.
    pub fn append(&mut self, path: &Path) {
        self.written(path, Access::Append);
    }

    /// Adds a file that is created and changed, together with other files in its directory.
    pub fn store(&mut self, path: &Path) {
        self.written(path, Access::Store);
    }

    /// Adds the directory of a file, and that of the file to which a symbolic link of this name leads.
    fn written(&mut self, path: &Path, access: Access) {
        self.paths.push((directory_of(path), access));
        if path.is_symlink()
            && let Ok(real) = fs::canonicalize(path)
        {
            self.paths.push((directory_of(&real), access));
        }
    }

    /// Creates the directories that the server would otherwise create later, in the sandbox. A
    /// failure is reported only then.
    pub(super) fn create_directories(&self) {
        for path in &self.own {
            let _ = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
        }
    }

    /// Allows more than the present configuration needs, for a reload, because the sandbox of a
    /// running server cannot be widened. All files below the directories for sites may be read. If
    /// the configuration names a server to connect to, others may have any port; a server that
    /// connects to none needs no such right.
    pub fn leave_room(&mut self) {
        self.connects_anywhere = self.has_peers;
        self.paths.extend(SITES.map(|directory| (directory.into(), Access::Read)));
    }

    /// Returns whether all files may be read.
    pub(super) fn reads_all(&self) -> bool {
        self.paths.iter().any(|(path, access)| path == Path::new("/") && *access == Access::Read)
    }

    fn sockets(&mut self, path: &Path) {
        self.paths.push((directory_of(path), Access::Sockets));
    }

    fn site(&mut self, site: &SiteSection) {
        if let Some(root) = &site.root {
            // With `follow`, symbolic links may lead to any file.
            let all = site.symlinks == Symlinks::Follow;
            let root = if all { Path::new("/") } else { root };
            self.paths.push((root.to_owned(), Access::Read));
        }
        for route in &site.origin {
            self.has_peers = true;
            if let Origin::Tcp { port, is_tls, .. } = &route.value.origin {
                self.connect.insert(*port);
                if *is_tls && site.origin_ca.is_none() {
                    self.authorities();
                }
            }
        }
        if let Some(path) = &site.origin_ca {
            self.file(path);
        }
        for area in &site.basic_auth {
            self.file(area.value.file());
        }
        if let Some(path) = site.cache.and(site.cache_dir.as_ref()) {
            self.own.push(path.clone());
            self.paths.push((path.clone(), Access::Store));
        }
        if site.guestbook.is_some() {
            if let Some(path) = &site.guestbook_template {
                self.file(path);
            }
            match site.store.as_ref().map(|store| &store.value) {
                Some(Store::File(path)) => self.store(path),
                Some(Store::Redis(url)) => self.redis(url),
                None => {}
            }
        }
    }

    /// Adds an authority and the directory for its certificates.
    fn acme(&mut self, acme: &AcmeSettings) {
        self.has_peers = true;
        let directory = acme.directory.parse::<url::Url>().ok();
        self.connect.extend(directory.and_then(|url| url.port_or_known_default()));
        match &acme.root {
            Some(path) => self.file(path),
            None => self.authorities(),
        }
        self.own.push(acme.state_dir.clone());
        self.paths.push((acme.state_dir.clone(), Access::Store));
    }

    fn hub(&mut self, hub: &HubSection) {
        let keys = [&hub.jwt_key, &hub.publisher_key, &hub.jwks_ca];
        for path in keys.into_iter().flatten() {
            self.file(path);
        }
        match hub.jwks.as_ref().map(|source| &source.value) {
            Some(KeySource::File(path)) => self.file(path),
            Some(KeySource::Url(url)) => {
                self.has_peers = true;
                self.connect.extend(url.port_or_known_default());
                if hub.jwks_ca.is_none() {
                    self.authorities();
                }
            }
            None => {}
        }
        match hub.store.as_ref().map(|store| &store.value) {
            Some(HubStoreConfig::File(path)) => self.store(path),
            Some(HubStoreConfig::Redis(url)) => self.redis(url),
            Some(HubStoreConfig::Memory) | None => {}
        }
    }

    fn redis(&mut self, url: &Url) {
        // A connection to a UNIX socket needs no right except that of the mode of its file.
        if let Address::Tcp(_, port) = &url.address {
            self.has_peers = true;
            self.connect.insert(*port);
        }
    }

    fn authorities(&mut self) {
        for path in AUTHORITIES {
            self.system.push((path.into(), Access::Read));
        }
        for name in ["SSL_CERT_FILE", "SSL_CERT_DIR"] {
            if let Some(path) = env::var_os(name) {
                self.system.push((path.into(), Access::Read));
            }
        }
    }
}

fn directory_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => ".".into(),
        Some(parent) => parent.into(),
        None => path.into(),
    }
}

/// Returns whether a directory holds the files of several programs or is a home: `/`, a directory
/// directly in `/` such as `/etc`, or a home.
fn is_shared(directory: &Path) -> bool {
    let Ok(directory) = fs::canonicalize(directory) else { return true };
    let is_home = env::var_os("HOME").is_some_and(|home| directory == Path::new(&home));
    is_home
        || directory.parent().is_none_or(|parent| parent.parent().is_none())
        || directory.parent() == Some(Path::new("/home"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(text: &str) -> Domain {
        Domain::of(&Config::parse("test", text).unwrap())
    }

    #[test]
    fn a_configuration_names_its_ports_and_paths() {
        let all = domain(
            "listen = [\"127.0.0.1:8080\", \"127.0.0.1:0\", \"unix:/run/pollux/socket\"]\n\
             admin = \"127.0.0.1:8081\"\ncontrol = \"/run/pollux/control\"\naccess-log = \"/var/log/pollux/access\"\n\
             [hub]\njwks = \"https://keys.example\"\nstore = \"redis://store.example/1\"\n\
             [[site]]\nroot = \"/srv/www\"\norigin = [\"http://app.example:3000\", \"/a=unix:/run/app\"]\n\
             guestbook = \"/g\"\nstore = \"file:/var/lib/pollux/guestbook\"\n",
        );
        assert_eq!(all.bind, BTreeSet::from([8080, 8081]));
        assert_eq!(all.connect, BTreeSet::from([DNS, 443, 3000, 6379]));
        for path in [
            ("/run/pollux", Access::Sockets),
            ("/var/log/pollux", Access::Append),
            ("/srv/www", Access::Read),
            ("/var/lib/pollux", Access::Store),
        ] {
            assert!(all.paths.contains(&(path.0.into(), path.1)), "{path:?} {:?}", all.paths);
        }
        assert!(!all.reads_all());
        assert!(domain("[[site]]\nroot = \"/srv/www\"\nsymlinks = \"follow\"\n").reads_all());
    }

    /// Regression: the directory above a root could be read, with everything in it.
    #[test]
    fn room_is_left_for_sites_but_not_above_a_root() {
        let mut all = domain("[[site]]\nroot = \"/opt/app/public\"\n");
        let mut expected = all.paths.clone();
        expected.extend(["/srv", "/var/www"].map(|path| (path.into(), Access::Read)));
        all.leave_room();
        assert_eq!(all.paths, expected);
    }

    /// Regression: a server of files could connect to any port.
    #[test]
    fn other_ports_are_left_to_a_server_that_connects_to_some() {
        let connects = |text: &str| {
            let mut all = domain(text);
            assert!(!all.connects_anywhere, "{text}");
            all.leave_room();
            all.connects_anywhere
        };
        for text in [
            "[[site]]\nroot = \"/srv/www\"\n",
            "[hub]\njwks = \"/etc/pollux/keys\"\nstore = \"file:/var/lib/pollux/hub\"\n",
            "[[site]]\nroot = \"/srv/www\"\nguestbook = \"/g\"\nstore = \"file:/var/lib/pollux/book\"\n",
        ] {
            assert!(!connects(text), "{text}");
        }
        for text in [
            "[[site]]\norigin = [\"http://127.0.0.1:3000\"]\n",
            "[[site]]\norigin = [\"/a=unix:/run/app\"]\n",
            "[hub]\njwks = \"https://keys.example\"\n",
            "[hub]\nstore = \"redis://store.example\"\n",
            "acme = [\"a.example\"]\nacme-directory = \"letsencrypt\"\nstate-dir = \"/s\"\n",
        ] {
            assert!(connects(text), "{text}");
        }
    }

    /// A reload computes the domain of a configuration that it may then refuse.
    #[test]
    fn nothing_is_created_before_the_sandbox_is_entered() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        let text = format!(
            "[[site]]\norigin = [\"http://a\"]\ncache = \"1M\"\ncache-dir = \"{}\"\n",
            cache.display()
        );
        let domain = domain(&text);
        assert!(!cache.exists());
        domain.create_directories();
        assert!(cache.is_dir());
    }

    /// Regression: a log or a store behind a link in another directory could not be opened.
    #[test]
    fn a_written_file_may_be_a_link_into_another_directory() {
        let folder = tempfile::tempdir().unwrap();
        let (here, disk) = (folder.path().join("here"), folder.path().join("disk"));
        for directory in [&here, &disk] {
            fs::create_dir(directory).unwrap();
        }
        fs::write(disk.join("access.log"), "").unwrap();
        let (link, missing) = (here.join("access.log"), here.join("slow.log"));
        std::os::unix::fs::symlink(disk.join("access.log"), &link).unwrap();
        let disk = fs::canonicalize(&disk).unwrap();
        let mut domain = Domain::default();
        domain.append(&link);
        domain.append(&missing);
        domain.store(&link);
        let (append, store) = (Access::Append, Access::Store);
        let expected = [
            (here.clone(), append),
            (disk.clone(), append),
            (here.clone(), append),
            (here, store),
            (disk, store),
        ];
        assert_eq!(domain.paths, expected);
    }

    #[test]
    fn the_right_for_a_file_is_for_its_directory_unless_others_share_it() {
        let folder = tempfile::tempdir().unwrap();
        let (link, real) = (folder.path().join("live"), folder.path().join("archive"));
        for directory in [&link, &real] {
            fs::create_dir(directory).unwrap();
        }
        fs::write(real.join("1.pem"), "").unwrap();
        std::os::unix::fs::symlink(real.join("1.pem"), link.join("site.pem")).unwrap();
        let mut domain = Domain::default();
        domain.file(&link.join("site.pem"));
        domain.file(Path::new("/etc/passwd"));
        let paths: Vec<_> = domain.paths.iter().map(|(path, _)| path.clone()).collect();
        let real = fs::canonicalize(&real).unwrap();
        assert_eq!(paths, [link, real, "/etc/passwd".into(), "/etc/passwd".into()]);
    }
}
