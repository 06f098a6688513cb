"""What masks cost: a batch with none, one hashed column, one encrypted column, and two of each, in turn.

Rows are encoded in Spark and collected as Arrow, as between the decoding and the transaction of a batch, without
reading and writing topics.

    python -m tests.bench.masks [rows] [runs of each]
"""

from __future__ import annotations

import base64
import json
import os
import statistics
import sys
import time

from penstock.engine.query.encode import encode_rows, split_by_output
from penstock.streams import F, Input, Mask, Stateless, Stream, Topic, TopicOutput
from penstock.testing import spark_session
from tests.bench.common import table, write

MASKS = {
    "none": (),
    "1 HASHED": (Mask("email", "hashed", "bench"),),
    "1 ENCRYPTED": (Mask("email", "encrypted", "bench"),),
    "2 HASHED, 2 ENCRYPTED": (
        Mask("email", "hashed", "bench"), Mask("phone", "hashed", "bench"), Mask("card", "encrypted", "bench"),
        Mask("town", "encrypted", "bench"),
    ),
}  # fmt: skip
COLUMNS = ("id", "email", "phone", "card", "town", "amount")


def stream(masks: tuple[Mask, ...]) -> Stream:
    given = Input(Topic("sales"), schema="email STRING, amount DOUBLE, at BIGINT", event_time="timestamp_millis(at)")
    output = TopicOutput(Topic("masked"), key="id", value=COLUMNS, mask=masks)
    return Stream("masked", "bench", {"sales": given}, lambda sales: sales.select(*COLUMNS), output, Stateless())


def main(records: int, runs: int) -> None:
    os.environ["PENSTOCK_MASK_KEYS"] = json.dumps({"bench": base64.b64encode(os.urandom(32)).decode()})
    times: dict[str, list[float]] = {name: [] for name in MASKS}
    with spark_session() as spark:
        texts = {"email": "person-%s@example.org", "phone": "+49 241 %s", "card": "4111 1111 %s", "town": "Town %s"}
        columns = [F.format_string(text, "id").alias(name) for name, text in texts.items()]
        sales = spark.range(0, records, numPartitions=2).select(
            "id", *columns, (F.col("id") % 977 + 0.5).alias("amount")
        )
        for number in range(len(MASKS) * (runs + 1)):
            name = list(MASKS)[number % len(MASKS)]
            one = stream(MASKS[name])
            at = time.perf_counter()
            encoded = split_by_output(one, encode_rows(one, one.transform(sales)).toArrow())
            seconds = time.perf_counter() - at
            assert encoded["masked"].num_rows == records
            if number >= len(MASKS):
                times[name].append(seconds)
    medians = {name: statistics.median(found) for name, found in times.items()}
    rows = [
        [n, f"{medians[n]:.2f}", ", ".join(f"{s:.2f}" for s in times[n]), f"{medians[n] / medians['none']:.2f}"]
        for n in MASKS
    ]
    text = f"{records:,} rows, {runs} runs of each in turn after one that is not counted.\n\n"
    write("masks", text + table(["masks", "median, s", "runs, s", "ratio"], rows), {"time, s": times})


if __name__ == "__main__":
    arguments = [int(argument) for argument in sys.argv[1:]]
    main(*arguments, *(300_000, 7)[len(arguments) :])
