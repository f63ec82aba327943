#!/bin/sh
# Stands in for `pollux load --json`: writes the result that the flags ask for.
rate=1000 connections=
for word in "$@"; do
    [ "$previous" = --rate ] && rate=$word
    [ "$previous" = --connections ] && connections=$word
    previous=$word
done
# A closed loop refuses what needs a schedule, as the real one does.
case " $* " in
*" --rate "*) ;;
*" --connections "*)
    case " $* " in
    *" --burst "* | *" --arrivals "* | *" --max-connections "*)
        echo "a closed loop has no schedule" >&2
        exit 2
        ;;
    esac
    ;;
esac
[ -n "$FAKE_SLOW" ] && sleep "$FAKE_SLOW"
valid=true reason=null
# A probe for the saturation, which is the only closed loop, that does not end.
if [ -n "$FAKE_PROBING" ] && [ -n "$connections" ]; then
    : >"$FAKE_PROBING"
    exec sleep 20
fi
# Probes in which the generator is the bottleneck: all, or the first only.
if [ -n "$connections" ] && { [ -n "$FAKE_STARVED" ] ||
    { [ -n "$FAKE_STARVED_ONCE" ] && mkdir "$FAKE_STARVED_ONCE" 2>/dev/null; }; }; then
    rate=100 valid=false reason='"the generator waited for a CPU"'
fi
# The idle holder is killed while its run is measured, not while a probe is. Half a minute at most.
if [ -n "$FAKE_IDLE_PID" ]; then
    i=0
    until mv "$FAKE_IDLE_PID" "$FAKE_IDLE_PID.taken" 2>/dev/null || [ $((i += 1)) -gt 600 ]; do
        sleep 0.05
    done
    holder=$(cat "$FAKE_IDLE_PID.taken")
    [ -z "$connections" ] && kill -KILL "$holder"
    until [ -n "$connections" ] || grep -q '^State:.*Z' "/proc/$holder/status" || [ $((i += 1)) -gt 600 ]; do
        sleep 0.05
    done
fi
if [ -n "$FAKE_INVALID" ] && [ -z "$connections" ]; then
    valid=false reason='"the generator was late by 9 ms"'
fi
# The first run with a rate only.
if [ -n "$FAKE_INVALID_ONCE" ] && [ -z "$connections" ] && mkdir "$FAKE_INVALID_ONCE" 2>/dev/null; then
    valid=false reason='"the generator was late by 9 ms"'
fi
cat <<END
{"valid":$valid,"invalid_reason":$reason,"mode":"open","offered_rps":$rate,"duration_s":1.0,
 "requests":{"scheduled":100,"sent":100,"completed":100,"failed":0},
 "reply_rate_rps":{"mean":$rate,"min":$rate,"max":$rate,"stddev":0,"samples":[]},
 "latency_us":{"mean":50,"min":10,"p50":40,"p90":60,"p95":70,"p99":90,"p99_9":95,"p99_99":99,"max":100},
 "generator":{"lag_us":{"p99":3},"cpu_us_per_request":5,"cpu_utilization":0.1}}
END
[ $valid = true ] || exit 3
