//! lighttpd: <https://redmine.lighttpd.net/projects/lighttpd/wiki/Docs_Configuration>.

use super::input::{CommandLine, ConfigInput};

pub(super) fn set_up(input: &ConfigInput<'_>) -> anyhow::Result<CommandLine> {
    input.only_files()?;
    let scratch = input.setup.scratch.display();
    let documents = input.setup.documents.display();
    let path = input.write(
        "lighttpd.conf",
        &format!(
            "server.document-root = \"{documents}\"\nserver.bind = \"127.0.0.1\"\n\
             server.port = {port}\nserver.pid-file = \"{scratch}/lighttpd.pid\"\n\
             server.errorlog = \"{scratch}/lighttpd.err\"\n\
             server.event-handler = \"linux-sysepoll\"\nserver.max-fds = 20000\n\
             server.max-connections = 10000\nserver.max-keep-alive-requests = 1000000000\n\
             server.max-keep-alive-idle = 600\nserver.max-read-idle = 600\n\
             mimetype.assign = ( \".txt\" => \"text/plain\" )\n",
            port = input.address.port(),
        ),
    )?;
    Ok(input.command_line(["-D", "-f", &path.display().to_string()]))
}
