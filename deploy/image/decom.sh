#!/bin/bash
# What Kubernetes runs before it stops an executor's pod (spark.decommission.enabled): bolts end what
# they have begun, give back the rest, and leave; then the executor ends by itself.
set -eu
pid=${1:-1} # tini, which passes the signal on to Java
kill -s PWR "$pid"
# Kubernetes stops to wait when the pod's grace period is over.
exec tail --pid="$pid" --follow /dev/null
