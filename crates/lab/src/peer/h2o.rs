//! h2o: <https://h2o.examp1e.net/configure.html>.

use super::input::{CommandLine, ConfigInput};

pub(super) fn set_up(input: &ConfigInput<'_>) -> anyhow::Result<CommandLine> {
    input.only_files()?;
    let scratch = input.setup.scratch.display();
    let documents = input.setup.documents.display();
    let tls = match input.setup.tls {
        None => String::new(),
        Some(tls) => format!(
            "      ssl:\n        certificate-file: {}\n        key-file: {}\n        minimum-version: TLSv1.2\n",
            tls.files.certificate.display(),
            tls.files.key.display()
        ),
    };
    let path = input.write(
        "h2o.yaml",
        &format!(
            "num-threads: 1\nmax-connections: 16000\nhttp1-request-timeout: 600\n\
             user: {user}\npid-file: {scratch}/h2o.pid\nerror-log: {scratch}/h2o.err\n\
             hosts:\n  default:\n    listen:\n      host: 127.0.0.1\n      port: {port}\n\
             {tls}\x20   paths:\n      /:\n        file.dir: {documents}\n",
            user = std::env::var("USER").unwrap_or_else(|_| "root".into()),
            port = input.address.port(),
        ),
    )?;
    Ok(input.command_line(["-c", &path.display().to_string()]))
}
