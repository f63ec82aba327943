//! HAProxy: <https://docs.haproxy.org/2.6/configuration.html#6>.

use super::input::{CommandLine, ConfigInput, Role};

pub(super) fn set_up(input: &ConfigInput<'_>) -> anyhow::Result<CommandLine> {
    let address = input.address;
    if let (Some(tls), Role::Files) = (input.setup.tls, input.role) {
        return in_front_of_nothing(input, &tls.files.both.display().to_string());
    }
    let origin = input.origin()?;
    let path = input.write(
        "haproxy.cfg",
        &format!(
            "global\n maxconn 9000\n nbthread 1\n\
             defaults\n mode http\n timeout client 600s\n timeout server 600s\n timeout connect 5s\n\
             \x20timeout http-keep-alive 600s\n timeout http-request 600s\n http-reuse always\n\
             cache front\n total-max-size 256\n max-age 3600\n process-vary off\n\
             frontend clients\n bind {address} backlog 4096\n default_backend origin\n\
             backend origin\n http-request cache-use front\n http-response cache-store front\n\
             \x20server origin {origin} maxconn 1000\n"
        ),
    )?;
    Ok(input.command_line(["-db", "-f", &path.display().to_string()]))
}

/// Configures HAProxy without a backend. It serves no files: over TLS it answers every request with a body
/// of one byte.
fn in_front_of_nothing(input: &ConfigInput<'_>, certificate: &str) -> anyhow::Result<CommandLine> {
    let address = input.address;
    let path = input.write(
        "haproxy.cfg",
        &format!(
            "global\n maxconn 9500\n nbthread 1\n\
             \x20ssl-default-bind-ciphersuites TLS_AES_128_GCM_SHA256\n\
             defaults\n mode http\n timeout client 600s\n timeout server 600s\n timeout connect 5s\n\
             \x20timeout http-keep-alive 600s\n timeout http-request 600s\n\
             frontend clients\n bind {address} backlog 4096 ssl crt {certificate}\n\
             \x20http-request return status 200 content-type text/plain string x\n"
        ),
    )?;
    Ok(input.command_line(["-db", "-f", &path.display().to_string()]))
}
