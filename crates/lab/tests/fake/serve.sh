#!/bin/sh
# Stands in for `pollux serve --json`: one line when it "listens", one at each SIGUSR1. Its
# statistics grow at each; it counts five open connections, or three with the mechanism $FAKE_SHORT;
# with $FAKE_LOSES two are left after the load.
held=5
for word in "$@"; do
    [ "$previous" = --mechanism ] && mechanism=$word
    previous=$word
done
[ "$mechanism" = "$FAKE_DIES" ] && { echo "no ring for you" >&2; exit 1; }
[ "$mechanism" = "$FAKE_SHORT" ] && { held=3; echo "accepting stops at 3" >&2; }
[ "$mechanism" = "$FAKE_SUBSTITUTED" ] && mechanism=poll
count=0
statistics() {
    count=$((count + 1))
    # ReceivedRequest for the first time when the holder has come, for the second before the load.
    [ -n "$FAKE_LOSES" ] && [ $count -gt 2 ] && held=2
    printf '{"event":"statistics","mechanism":"%s","connections":{"accepted":0,"open":%s,"closed":0,"refused":0,"timed_out":0},' \
        "$mechanism" "$held"
    printf '"requests":%s,"bytes_sent":0,"waits":%s,"events":%s,' $((count * 100)) $((count * 50)) $((count * 100))
    printf '"system_calls":{"epoll_wait":{"count":%s,"ns":0}},"details":{}}\n' $((count * 50))
}
trap statistics USR1
printf '{"event":"listening","addresses":["127.0.0.1:9"],"mechanism":"%s","mechanism_spec":"%s","pid":%s,"workers":[]}\n' \
    "$mechanism" "$mechanism" $$
# Bounded: a minute is more than any test takes.
i=0
while [ $i -lt 60 ]; do
    sleep 1 &
    # A signal ends the wait: only whole seconds count.
    wait $! && i=$((i + 1))
done
