//! The text below the flags in `pollux serve --help`.

pub(super) const EXAMPLES: &str = "\
Examples:
  pollux serve public                         Serve ./public on 127.0.0.1:8080
  pollux serve public --listen :80            On every address, IPv4 and IPv6
  pollux serve public --tls self-signed --listen 127.0.0.1:8443
  pollux serve public --tls-cert site.pem --tls-key site.key --listen :443
  pollux serve public --workers 2 --pin 0,1
  pollux serve public --mechanism poll        Wait with poll(2)
  pollux serve public --architecture prethreaded --pool 200
  pollux serve public --architecture preforked --pool 16 --accept reuseport
  pollux serve public --mechanism epoll --interest per-state --accept-limit 1
  pollux serve public --mechanism rtsig:overflow=handoff --signal-queue 64
  pollux serve public --listen unix:/run/site.sock --access-log -
  pollux serve public --redirect \"/old/* /new/*\" --error-page \"404 /404.html\"
  pollux serve public --guestbook             A guestbook, stored in a file
  pollux serve public --guestbook /book --store redis://127.0.0.1:6379/0
  pollux serve --guestbook                    A guestbook and no files
  pollux serve public --hub --hub-jwt-key key
                                  Live updates on pages
  pollux serve --origin http://127.0.0.1:8000 --listen :80
                                  A reverse proxy: every request is forwarded
  pollux serve public --origin unix:/run/app.sock
                                  Files first; other requests are forwarded
  pollux serve --origin /api=http://a:8000 --origin /api=http://b:8000
                                  /api and below alternate between two
  pollux serve --origin http://app:8000 --forwarded append --max-body 100M
  pollux serve --origin http://127.0.0.1:8000 --cache 256M --cache-stale 1h
  pollux serve public --handover unix:/run/app.sock
                                  Files first; other connections are passed on
  pollux serve --origin http://app:8000 --cache 1G --control /run/pollux/ctl
                                  See pollux cache --help
  pollux serve public --admin 127.0.0.1:9100   See pollux top --help
  pollux serve public --json --listen 127.0.0.1:0 --pin 0 --time-system-calls

Signals:
  TERM, INT   stop: accept no more connections, finish requests in progress
              within --grace; a second one stops at once
  USR1        print the statistics
  HUP         read configuration and certificates again, reopen the access log
              (`pollux ctl reload` does the same and prints what has changed)
  USR2        start the program again and hand the service over to the new
              process (as `pollux ctl upgrade`)

Guestbook: a remark is posted as a form (application/x-www-form-urlencoded, at
most 16 KiB) with the field guest-remarks and optionally guest-name, together at
most 4 KiB. A page shows at most 256 KiB of remarks. In Redis, remarks are the
list guestbook_remarks and visits the number visitor_count. In a file, a remark
is on the disk before it is acknowledged. Pages of other sites can post remarks
from their readers' browsers (CSRF), but there are no sessions to abuse.

Exit status: 0 after a requested stop; 1 when the server cannot start
or continue (the reason is on standard error); 2 for a usage error.";
