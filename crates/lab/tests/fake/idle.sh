#!/bin/sh
# Stands in for `pollux idle`: is there, for a minute at most.
exec sleep 60
