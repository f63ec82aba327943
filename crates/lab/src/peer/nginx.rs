//! nginx: <https://nginx.org/en/docs/http/ngx_http_proxy_module.html>.

use super::input::{CommandLine, ConfigInput, PeerTls, Role};
use crate::experiment::Encryption;

pub(super) fn set_up(input: &ConfigInput<'_>) -> anyhow::Result<CommandLine> {
    let address = input.address;
    let scratch = input.setup.scratch.display();
    let documents = input.setup.documents.display();
    let (ssl, tls) = match input.setup.tls {
        None => ("", String::new()),
        Some(PeerTls { files, encryption }) => {
            let mut tls = format!(
                "ssl_certificate {}; ssl_certificate_key {}; ssl_protocols TLSv1.2 TLSv1.3;\n\
                 ssl_conf_command Ciphersuites TLS_AES_128_GCM_SHA256;\n",
                files.certificate.display(),
                files.key.display()
            );
            if encryption == Encryption::Kernel {
                tls.push_str("ssl_conf_command Options KTLS;\n");
            }
            (" ssl", tls)
        }
    };
    let (upstream, location) = match input.role {
        Role::Files => (
            String::new(),
            format!(
                "open_file_cache max=1000 inactive=600s; open_file_cache_valid 1s;\n\
                 server {{ listen {address}{ssl}; {tls}root {documents}; }}"
            ),
        ),
        // Connections to the upstream are reused only with HTTP/1.1 and without Connection: close.
        Role::Front { origin } => (
            format!(
                "proxy_cache_path {scratch}/nginx-cache keys_zone=cache:64m max_size=256m \
                 inactive=1h use_temp_path=off;\n\
                 upstream origin {{ server {origin}; keepalive 64; keepalive_requests 1000000000; }}"
            ),
            format!(
                "server {{ listen {address} backlog=4096;\n\
                 location / {{ proxy_pass http://origin; proxy_http_version 1.1;\n\
                 proxy_set_header Connection ''; proxy_set_header Host $host;\n\
                 proxy_cache cache; proxy_cache_revalidate on; proxy_cache_lock on;\n\
                 proxy_cache_lock_timeout 10s; proxy_cache_lock_age 10s; }} }}"
            ),
        ),
    };
    let path = input.write(
        "nginx.conf",
        &format!(
            "daemon off; worker_processes 1; pid {scratch}/nginx.pid; user root;\n\
             error_log {scratch}/nginx.err crit; worker_rlimit_nofile 20000;\n\
             events {{ worker_connections 16000; use epoll; }}\n\
             http {{ access_log off; sendfile on; tcp_nopush on; types {{ text/plain txt; }}\n\
             client_body_temp_path {scratch}/nginx-body; proxy_temp_path {scratch}/nginx-p;\n\
             fastcgi_temp_path {scratch}/nginx-f; uwsgi_temp_path {scratch}/nginx-u;\n\
             scgi_temp_path {scratch}/nginx-s;\n\
             keepalive_timeout 600s; keepalive_requests 1000000000; client_header_timeout 600s;\n\
             {upstream}\n{location} }}\n"
        ),
    )?;
    let path = path.display().to_string();
    Ok(input.command_line(["-c", &path, "-e", "stderr"]))
}
