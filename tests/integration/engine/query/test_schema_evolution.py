"""What one version of a schema wrote, Spark reads by another with equal values, as streams, sinks and recomputes do.

The unit test of the same name reads the same values without Spark; Avro is in test_avro.py.
"""

from __future__ import annotations

import json
from base64 import b64encode
from datetime import datetime
from functools import reduce
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from penstock.engine.query import decode
from penstock.engine.query.decode import decode_records
from penstock.registry import client
from penstock.registry.endpoint import RegistryEndpoint
from penstock.registry.wire_format import HEADER_BYTES, header
from penstock.streams import Input, Topic
from tests.support.avro_cases import AT
from tests.support.schema_evolution import CASES, as_dicts

pytestmark = [pytest.mark.integration, pytest.mark.long]

SOURCE = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)


def as_json(value: Any) -> str:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    assert isinstance(value, datetime)
    return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def test_versions_are_read_with_equal_values(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = {name: case for name, case in CASES.items() if case.writer.kind != "AVRO"}
    table = tuple((f"t{n}-value", case.writer.text, case.writer.kind) for n, case in enumerate(cases.values()))
    monkeypatch.setattr(decode, "find_endpoint", lambda: RegistryEndpoint("", table=table))
    monkeypatch.setattr(client, "subject_schemas", lambda *_: {})
    frames = list[DataFrame]()
    for number, case in enumerate(cases.values()):
        value = header(number + 1) + case.written[HEADER_BYTES:]
        raw = spark.createDataFrame([(None, value, f"t{number}", 0, number, AT, None)], SOURCE).coalesce(1)
        source = Input(Topic(f"t{number}", schema=case.reader), event_time="record.timestamp", record=True)
        rows = decode_records(raw, source, F.current_timestamp())
        fields = F.struct(*(F.col(field.name) for field in case.reader.fields))
        text = F.to_json(fields, {"ignoreNullFields": "false"})
        frames.append(
            rows.select(F.lit(number).alias("n"), text.alias("text"), F.col("_record.reason").alias("reason"))
        )
    read = {row.n: (row.text, row.reason) for row in reduce(DataFrame.unionAll, frames).collect()}
    wrong = dict[str, Any]()
    for number, (name, case) in enumerate(cases.items()):
        text, reason = read[number]
        if reason or json.loads(text) != json.loads(json.dumps(as_dicts(case.read), default=as_json)):
            wrong[name] = read[number]
    assert not wrong
