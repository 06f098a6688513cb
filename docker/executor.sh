#!/bin/sh
# An executor of Spark's in Kubernetes: Spark gives the pod these variables, and `executor` as its argument.
set -eu

set --
# Options are numbered, and may hold blanks.
i=0
while option=$(printenv "SPARK_JAVA_OPT_$i"); do
    set -- "$@" "$option"
    i=$((i + 1))
done
# No record that a message quotes may look like a line of the log.
set -- "-Dlog4j2.configurationFile=$PWD/penstock/engine/log4j2.properties" "$@"
# What it fetches from the driver it puts where it is, and the image belongs to root.
cd "${SPARK_LOCAL_DIRS%%,*}"
exec "$JAVA_HOME/bin/java" "$@" \
    "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
    -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$(python -m pyspark.find_spark_home)/jars/*" \
    org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
    --driver-url "$SPARK_DRIVER_URL" \
    --executor-id "$SPARK_EXECUTOR_ID" \
    --cores "$SPARK_EXECUTOR_CORES" \
    --app-id "$SPARK_APPLICATION_ID" \
    --hostname "$SPARK_EXECUTOR_POD_IP" \
    --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
    --podName "$SPARK_EXECUTOR_POD_NAME"
