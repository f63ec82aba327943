//! Apache. It serves at most as many connections at a time as in Debian's own configuration of each MPM,
//! 150, which is the configuration that its users have. All processes exist from the start, because Apache
//! adds only a few per second; <https://httpd.apache.org/docs/2.4/mod/>.

use super::{
    input::{CommandLine, ConfigInput, Role},
    program::Peer,
};
use anyhow::bail;

/// The directory of Apache's modules in Debian.
const MODULES: &str = "/usr/lib/apache2/modules";

/// The thread pool of Debian's configuration.
const THREADS: &str = "StartServers 6\nMinSpareThreads 25\nMaxSpareThreads 150\nThreadLimit 64\n\
                       ThreadsPerChild 25\nMaxRequestWorkers 150\n";

pub(super) fn set_up(input: &ConfigInput<'_>) -> anyhow::Result<CommandLine> {
    // A front end must hold thousands of idle clients, more than Debian's 150 workers can.
    let front = matches!(input.role, Role::Front { .. });
    let (mpm, pool) = match input.peer {
        Peer::ApachePrefork => (
            "prefork",
            "StartServers 150\nMinSpareServers 10\nMaxSpareServers 150\nMaxRequestWorkers 150\n",
        ),
        Peer::ApacheWorker => ("worker", THREADS),
        Peer::ApacheEvent if front => (
            "event",
            "StartServers 1\nServerLimit 1\nThreadLimit 64\nThreadsPerChild 64\n\
             MinSpareThreads 1\nMaxSpareThreads 64\nMaxRequestWorkers 64\n\
             AsyncRequestWorkerFactor 300\n",
        ),
        Peer::ApacheEvent => ("event", THREADS),
        other => bail!("{} is no Apache", other.name()),
    };
    let mut modules = vec![format!("mpm_{mpm}"), "authz_core".into(), "mime".into()];
    let scratch = input.setup.scratch.display();
    let documents = input.setup.documents.display();
    let served = match input.role {
        Role::Files => format!("DocumentRoot \"{documents}\"\n"),
        Role::Front { origin } => {
            let more = ["proxy", "proxy_http", "cache", "cache_socache", "socache_shmcb"];
            modules.extend(more.map(str::to_owned));
            format!(
                "ProxyPass \"/\" \"http://{origin}/\" keepalive=On ttl=600\nProxyPreserveHost On\n\
                 CacheSocache \"shmcb:{scratch}/socache(67108864)\"\nCacheEnable socache /\n\
                 CacheQuickHandler on\nCacheLock on\nCacheLockPath {scratch}/lock\n"
            )
        }
    };
    let loaded: String = modules
        .iter()
        .map(|name| format!("LoadModule {name}_module {MODULES}/mod_{name}.so\n"))
        .collect();
    input.write("mime.types", "text/plain txt\n")?;
    let path = input.write(
        &format!("apache-{mpm}.conf"),
        &format!(
            "{loaded}ServerRoot \"{scratch}\"\nServerName localhost\nListen {address}\n\
             ListenBacklog 4096\nPidFile {scratch}/apache.pid\nErrorLog {scratch}/apache.err\n\
             LogLevel crit\nMutex file:{scratch} default\nTypesConfig {scratch}/mime.types\n\
             User www-data\nGroup www-data\n\
             {pool}MaxConnectionsPerChild 0\nKeepAlive On\nKeepAliveTimeout 600\n\
             MaxKeepAliveRequests 0\nTimeout 600\nAcceptFilter http none\nEnableSendfile On\n\
             <Directory />\nAllowOverride None\nRequire all granted\n</Directory>\n{served}",
            address = input.address,
        ),
    )?;
    input.shared_directory("lock")?;
    input.open_to_workers()?;
    Ok(input.command_line(["-D", "FOREGROUND", "-f", &path.display().to_string()]))
}
