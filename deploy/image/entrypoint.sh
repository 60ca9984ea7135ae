#!/bin/bash
# What a container starts: a command as it is, or "executor", as Spark says on Kubernetes.
set -eu

if [ "${1:-}" = executor ]; then
    SPARK_HOME=$(python -c 'import pyspark; print(pyspark.__path__[0])')
    export SPARK_HOME
    options=() # of Java: Spark hands them over one by one, as SPARK_JAVA_OPT_0, _1, ...
    for ((n = 0; ; n++)); do
        name=SPARK_JAVA_OPT_$n
        [ -v "$name" ] || break
        options+=("${!name}")
    done
    set -- java "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
        -cp "${SPARK_CONF_DIR:-$SPARK_HOME/conf}:$SPARK_HOME/jars/*:${SPARK_CLASSPATH:-}" \
        org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
        --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" \
        --cores "$SPARK_EXECUTOR_CORES" --app-id "$SPARK_APPLICATION_ID" \
        --hostname "$SPARK_EXECUTOR_POD_IP" --podName "$SPARK_EXECUTOR_POD_NAME" \
        --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID"
fi
# It passes SIGTERM on, so that a stopped driver saves.
exec tini -- "$@"
