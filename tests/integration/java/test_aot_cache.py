"""Java's cache for drivers, made by a real training run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.java import aot_cache, runtime

pytestmark = pytest.mark.integration

DRIVER = """
import sys
from penstock.java import aot_cache
from penstock.engine.session import open_session
spark = open_session("test", java_options=[*aot_cache.options(), f"-Xlog:class+load:file={sys.argv[1]}"])
source = spark.read.format("kafka").option("kafka.bootstrap.servers", "127.0.0.1:1").option("subscribe", "x")
print(source.load().schema.simpleString())
spark.stop()
"""


@pytest.mark.long
def test_a_driver_takes_its_classes_from_the_cache(tmp_path: Path) -> None:
    if runtime.find().version < aot_cache.SINCE:
        pytest.skip(f"Java {runtime.find().version} has no such cache")
    aot_cache.ensure()
    log = tmp_path / "classes.log"
    done = subprocess.run([sys.executable, "-c", DRIVER, str(log)], capture_output=True, text=True, check=False)
    assert "struct<key:binary" in done.stdout, done.stderr[-3000:]
    # Java says so where it does not take the cache it is given.
    assert "[aot" not in done.stdout + done.stderr
    loaded = dict(re.findall(r"\] (\S+) source: (.+)", log.read_text()))
    cached = {name for name, source in loaded.items() if "shared objects file" in source}
    assert len(cached) > 0.8 * len(loaded)
    assert {"org.apache.spark.sql.SparkSession", "org.apache.spark.sql.kafka010.KafkaSourceProvider"} <= cached
