//! h2o: <https://h2o.examp1e.net/configure.html>.

use super::{ConfigInput, Start};

pub(super) fn set_up(making: &ConfigInput<'_>) -> anyhow::Result<Start> {
    making.only_files()?;
    let scratch = making.place.scratch.display();
    let documents = making.place.documents.display();
    let tls = match making.place.tls {
        None => String::new(),
        Some(tls) => format!(
            "      ssl:\n        certificate-file: {}\n        key-file: {}\n        minimum-version: TLSv1.2\n",
            tls.files.certificate.display(),
            tls.files.key.display()
        ),
    };
    let path = making.write(
        "h2o.yaml",
        &format!(
            "num-threads: 1\nmax-connections: 16000\nhttp1-request-timeout: 600\n\
             user: {user}\npid-file: {scratch}/h2o.pid\nerror-log: {scratch}/h2o.err\n\
             hosts:\n  default:\n    listen:\n      host: 127.0.0.1\n      port: {port}\n\
             {tls}\x20   paths:\n      /:\n        file.dir: {documents}\n",
            user = std::env::var("USER").unwrap_or_else(|_| "root".into()),
            port = making.address.port(),
        ),
    )?;
    Ok(making.started_with(["-c", &path.display().to_string()]))
}
