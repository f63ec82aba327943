//! Varnish: <https://varnish-cache.org/docs/7.1/reference/varnishd.html>.

use super::input::{CommandLine, ConfigInput};

pub(super) fn set_up(input: &ConfigInput<'_>) -> anyhow::Result<CommandLine> {
    let origin = input.origin()?;
    let directory = input.directory("varnish")?;
    Ok(input.command_line([
        "-F",
        "-j",
        "none",
        "-n",
        &directory.display().to_string(),
        "-a",
        &input.address.to_string(),
        "-b",
        &origin.to_string(),
        "-s",
        "malloc,256m",
        "-T",
        "none",
        "-p",
        "thread_pools=1",
        "-p",
        "timeout_idle=600",
        "-p",
        "listen_depth=4096",
    ]))
}
