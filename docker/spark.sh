#!/bin/sh
# A process of Spark's standalone cluster: its class and options. It proves itself to drivers as they do to it.
set -eu

class=$1
shift
settings=$(mktemp)
python -m penstock.engine.spark_security "$PENSTOCK_SPARK_MASTER" > "$settings"
exec spark-class "$class" --properties-file "$settings" "$@"
