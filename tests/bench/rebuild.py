"""Time to rebuild the state of a fold from its output: `walk-in-counts` with some million keys.

A part of the keys is in the topic twice, as before a compaction, and a walk-in of each hundredth comes behind the mark:
the stream then goes on, and what it comes to is looked at.

    python -m tests.bench.rebuild [keys]
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
from pyspark.sql import functions as F  # noqa: N812

from jobs.presence import BASE_COUNTS, ENRICHED_WALK_INS, WALK_IN_COUNTS
from penstock.devstack.servers.kafka import Broker
from penstock.engine.operations.rebuild import RebuildResult, rebuild
from penstock.engine.session import session_for
from penstock.host.ports import free_port
from penstock.kafka.admin import admin, end_offsets
from penstock.model.output import CommitMarker, WriterOwner, open_store
from penstock.model.topic import COMMITS
from penstock.testing import create, running, spark_session
from tests.bench.common import peak_memory, table, write
from tests.support.sql_streams import project_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STREAM = project_stream("walk-in-counts")
NAMES = ("concat('b', id % 50) AS business", "concat('contact-', id) AS contact")
WALKS = "ARRAY<STRUCT<moment: BIGINT, device: STRING>>"
START = 1_700_000_000_000


def put(rows: DataFrame, topic: str, bootstrap: str) -> None:
    to = {"kafka.bootstrap.servers": bootstrap, "topic": topic, "kafka.compression.type": "lz4"}
    rows.write.format("kafka").options(**to).save()


def states(spark: SparkSession, keys: int) -> DataFrame:
    """What the output holds: two walk-ins of each key, of a half of them on top of a base."""
    walk = f"struct({START} + id + n AS moment, concat('device-', id % 1000) AS device)"
    rows = spark.range(keys).selectExpr(
        "*",
        *NAMES,
        "CASE WHEN id % 2 = 0 THEN 7L END AS base",
        f"CASE WHEN id % 2 = 0 THEN {START}L END AS as_of",
        f"CAST(transform(sequence(1, 2), n -> {walk}) AS {WALKS}) AS walks",
    )
    rows = rows.withColumn("count", F.expr("coalesce(base, 0) + size(walks)"))
    (output,) = STREAM.outputs.values()
    return rows.select("id", *output.columns())


def filled(spark: SparkSession, bootstrap: str, keys: int) -> None:
    """The output of a stream with so many keys, and the mark of its last batch."""
    rows = states(spark, keys)
    older = rows.where("id % 3 = 0").withColumn("value", F.lit('{"business":"x"}').cast("binary"))
    for given in (older, rows):
        put(given.drop("id"), WALK_IN_COUNTS.name, bootstrap)
    topics = (ENRICHED_WALK_INS, BASE_COUNTS)
    offsets = {topic.name: dict.fromkeys(range(topic.partitions), 0) for topic in topics}
    metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": START, "conf": {}})
    plan = "\n".join(["v1", metadata, *(json.dumps({name: parts}) for name, parts in offsets.items())])
    writer = open_store(list(STREAM.outputs.values()), WriterOwner(STREAM.name, STREAM.group, bootstrap))
    writer.write({}, CommitMarker("4c2e4f2e-6c0a-4f51-9d4e-2f5d3f1f7a10", 0, offsets, plans={0: plan}))
    writer.close()


def goes_on(spark: SparkSession, bootstrap: str, folder: Path, keys: int) -> float:
    """Seconds from its start until the stream has counted one more walk-in of each hundredth key, and no other."""
    walked = spark.range(0, keys, 100).selectExpr(
        *NAMES, "'late' AS device", f"{START}L AS since", f"{START} + id + 9 AS timestamp"
    )
    put(walked.select(F.to_json(F.struct("*")).cast("binary").alias("value")), ENRICHED_WALK_INS.name, bootstrap)
    places = [(WALK_IN_COUNTS.name, p) for p in range(WALK_IN_COUNTS.partitions)]
    before = end_offsets(admin(bootstrap), places, bootstrap)
    began = time.monotonic()
    with running(STREAM, spark, bootstrap, folder) as run:
        run.process_all_available()
    took = time.monotonic() - began
    starts = json.dumps({WALK_IN_COUNTS.name: {str(p): at for (_, p), at in before.items()}})
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": WALK_IN_COUNTS.name, "startingOffsets": starts}
    counts = spark.read.format("kafka").options(**options).option("kafka.isolation.level", "read_committed").load()
    value = F.from_json(F.col("value").cast("string"), "count BIGINT, base BIGINT, walks ARRAY<STRING>")
    right = counts.select(value.alias("v")).where("v.count = coalesce(v.base, 0) + 3 AND size(v.walks) = 3")
    assert (counts.count(), right.count()) == (-(-keys // 100),) * 2
    return took


def main(keys: int) -> None:
    logging.basicConfig(level=logging.INFO)
    with tempfile.TemporaryDirectory() as name, Broker(home=Path(name), port=free_port(2)) as broker:
        bootstrap, folder = broker.bootstrap, Path(name, "checkpoints")
        create(bootstrap, *STREAM.topics(), COMMITS)
        with spark_session() as spark:
            filled(spark, bootstrap, keys)
            own = session_for(spark, STREAM)

            def ours() -> list[psutil.Process]:
                me, others = psutil.Process(), broker.record.session.processes() if broker.record else []
                return [me, *(one for one in me.children(recursive=True) if one not in others)]

            with peak_memory(ours) as peak:
                result: RebuildResult = rebuild(STREAM, own, bootstrap, str(folder), lambda: None)
            assert result.after.keys == keys
            after = goes_on(spark, bootstrap, folder, keys)
    rows = [
        [
            f"{keys:,}",
            f"{result.records:,}",
            f"{result.seconds:.0f}",
            f"{result.after.bytes / 2**20:.0f}",
            f"{peak[0] / 2**20:.0f}",
            f"{after:.0f}",
        ]
    ]
    heads = ["keys", "records", "rebuilt, s", "state, MiB", "peak memory, MiB", f"start and {keys // 100:,} more, s"]
    write("rebuild", table(heads, rows), {"time, s": {"rebuilt": [result.seconds], "start and more": [after]}})


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5_000_000)
