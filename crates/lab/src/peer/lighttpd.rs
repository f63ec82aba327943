//! lighttpd: <https://redmine.lighttpd.net/projects/lighttpd/wiki/Docs_Configuration>.

use super::{ConfigInput, Start};

pub(super) fn set_up(making: &ConfigInput<'_>) -> anyhow::Result<Start> {
    making.only_files()?;
    let scratch = making.place.scratch.display();
    let documents = making.place.documents.display();
    let path = making.write(
        "lighttpd.conf",
        &format!(
            "server.document-root = \"{documents}\"\nserver.bind = \"127.0.0.1\"\n\
             server.port = {port}\nserver.pid-file = \"{scratch}/lighttpd.pid\"\n\
             server.errorlog = \"{scratch}/lighttpd.err\"\n\
             server.event-handler = \"linux-sysepoll\"\nserver.max-fds = 20000\n\
             server.max-connections = 10000\nserver.max-keep-alive-requests = 1000000000\n\
             server.max-keep-alive-idle = 600\nserver.max-read-idle = 600\n\
             mimetype.assign = ( \".txt\" => \"text/plain\" )\n",
            port = making.address.port(),
        ),
    )?;
    Ok(making.started_with(["-D", "-f", &path.display().to_string()]))
}
