//! Squid as an accelerator: <http://www.squid-cache.org/Doc/config/>.

use super::input::{CommandLine, ConfigInput};
use std::os::unix::fs::PermissionsExt as _;

pub(super) fn set_up(input: &ConfigInput<'_>) -> anyhow::Result<CommandLine> {
    let origin = input.origin()?;
    let scratch = input.setup.scratch.display();
    let path = input.write(
        "squid.conf",
        &format!(
            "http_port {address} accel defaultsite=localhost no-vhost\n\
             cache_peer {host} parent {port} 0 no-query originserver name=origin\n\
             http_access allow all\ncache_mem 256 MB\nmemory_replacement_policy lru\n\
             collapsed_forwarding on\naccess_log none\ncache_log {scratch}/squid.log\n\
             cache_store_log none\npid_filename none\ncoredump_dir {scratch}\nworkers 1\n\
             max_filedescriptors 16000\nclient_idle_pconn_timeout 600 seconds\n\
             request_timeout 600 seconds\nshutdown_lifetime 0 seconds\nicp_port 0\n\
             pinger_enable off\nclient_db off\nvisible_hostname localhost\n\
             cache_effective_user proxy\n",
            address = input.address,
            host = origin.ip(),
            port = origin.port(),
        ),
    )?;
    // When root starts Squid, the user proxy writes its log.
    let log = input.write("squid.log", "")?;
    std::fs::set_permissions(log, std::fs::Permissions::from_mode(0o666))?;
    input.open_to_workers()?;
    Ok(input.command_line(["-N", "-f", &path.display().to_string()]))
}
