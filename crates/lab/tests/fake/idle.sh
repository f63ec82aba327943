#!/bin/sh
# Stands in for `pollux idle`: is there, for a minute at most, and says in $FAKE_IDLE_PID who it is.
if [ -n "$FAKE_IDLE_PID" ]; then
    echo $$ >"$FAKE_IDLE_PID.part"
    mv "$FAKE_IDLE_PID.part" "$FAKE_IDLE_PID"
fi
exec sleep 60
