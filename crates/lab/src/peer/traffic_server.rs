//! Apache Traffic Server: <https://docs.trafficserver.apache.org/en/9.2.x/admin-guide/>.

use super::input::{CommandLine, ConfigInput};

pub(super) fn set_up(input: &ConfigInput<'_>) -> anyhow::Result<CommandLine> {
    let origin = input.origin()?;
    let scratch = input.setup.scratch.display();
    for directory in ["etc", "cache", "run", "log"] {
        input.shared_directory(&format!("ats/{directory}"))?;
    }
    input.open_to_workers()?;
    // Traffic Server refuses to serve as root.
    let user = if rustix::process::geteuid().is_root() { "trafficserver" } else { "#-1" };
    input.write(
        "ats/etc/ip_allow.yaml",
        "ip_allow:\n  - apply: in\n    ip_addrs: 127.0.0.0/8\n    action: allow\n    methods: ALL\n",
    )?;
    input.write("ats/etc/remap.config", &format!("map / http://{origin}/\n"))?;
    input.write("ats/etc/storage.config", &format!("{scratch}/ats/cache 256M\n"))?;
    input.write(
        "ats/etc/records.config",
        &format!(
            "CONFIG proxy.config.http.server_ports STRING {port}:ip-in=127.0.0.1\n\
             CONFIG proxy.config.exec_thread.autoconfig INT 0\n\
             CONFIG proxy.config.exec_thread.limit INT 1\n\
             CONFIG proxy.config.admin.user_id STRING {user}\n\
             CONFIG proxy.config.log.logging_enabled INT 0\n\
             CONFIG proxy.config.http.cache.required_headers INT 2\n\
             CONFIG proxy.config.http.keep_alive_no_activity_timeout_in INT 600\n\
             CONFIG proxy.config.http.transaction_no_activity_timeout_in INT 600\n\
             CONFIG proxy.config.net.connections_throttle INT 16000\n\
             CONFIG proxy.config.url_remap.remap_required INT 1\n\
             CONFIG proxy.config.diags.debug.enabled INT 0\n",
            port = input.address.port(),
        ),
    )?;
    let root = input.write(
        "ats/runroot.yaml",
        &format!(
            "prefix: {scratch}/ats\nexec_prefix: /usr\nbindir: /usr/bin\nsbindir: /usr/bin\n\
             sysconfdir: {scratch}/ats/etc\ndatadir: {scratch}/ats/cache\n\
             includedir: /usr/include\nlibdir: /usr/lib/trafficserver\n\
             libexecdir: /usr/lib/trafficserver/modules\nlocalstatedir: {scratch}/ats/run\n\
             runtimedir: {scratch}/ats/run\nlogdir: {scratch}/ats/log\n\
             cachedir: {scratch}/ats/cache\n"
        ),
    )?;
    Ok(input.command_line([&format!("--run-root={}", root.display())]))
}
