//! Varnish: <https://varnish-cache.org/docs/7.1/reference/varnishd.html>.

use super::{ConfigInput, Start};

pub(super) fn set_up(making: &ConfigInput<'_>) -> anyhow::Result<Start> {
    let origin = making.origin()?;
    let directory = making.directory("varnish")?;
    Ok(making.started_with([
        "-F",
        "-j",
        "none",
        "-n",
        &directory.display().to_string(),
        "-a",
        &making.address.to_string(),
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
