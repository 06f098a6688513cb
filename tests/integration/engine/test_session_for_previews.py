"""The session that is kept ready: commands use it, each with the code on the disk."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import orjson
import pytest

from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.shared_session import SharedSessionServer
from penstock.host.process import wait_for
from penstock.model.topic import Topic
from penstock.testing import Record, create, send
from tests.chaos.projects import other_project

pytestmark = [pytest.mark.integration, pytest.mark.processes]

STREAM = """STREAM INTO large-orders
READ orders AS JSON (shop STRING NOT NULL, amount DOUBLE NOT NULL, timestamp BIGINT NOT NULL)
    EVENT TIME timestamp_millis(timestamp)
KEY shop
AS SELECT shop, amount FROM orders WHERE amount >= {least}
"""
ORDERS = [f'{{"shop":"north","amount":{n}.0,"timestamp":1700000000000}}' for n in (50, 100, 200)]
COUNT = """from penstock.engine import shared_session
from penstock.engine.jvm.shared_jvm import running_queries
if not shared_session.is_ready():
    print(None)
else:
    with shared_session.attached_command("count") as spark:
        print(len(running_queries(spark)))
"""


@pytest.fixture
def session(fresh_broker: Broker, tmp_path: Path) -> Iterator[SharedSessionServer]:
    """A session of a project with one stream, whose topic has records."""
    create(fresh_broker.bootstrap, Topic("orders", partitions=1, config={"retention.ms": "-1"}))
    send(fresh_broker.bootstrap, [Record("orders", None, text, timestamp=1_700_000_000_000) for text in ORDERS])
    streams = tmp_path / "shop" / "sql" / "streams"
    streams.mkdir(parents=True)
    (streams / "large-orders.sql").write_text(STREAM.format(least=100))
    variables = {"PENSTOCK_HOME": tmp_path / "home", "PENSTOCK_KAFKA_BOOTSTRAP": fresh_broker.bootstrap}
    with other_project(tmp_path / "shop", variables):
        server = SharedSessionServer()
        server.start()
        try:
            server.wait(300)
            yield server
        finally:
            server.stop()


def started(*command: str, **variables: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, *command], env={**os.environ, **variables}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def previewed() -> Sequence[str]:
    """Values that a preview shows. No JVM starts in so little memory: it must use the one that runs."""
    command = ("-m", "penstock", "streams", "preview", "large-orders", "--for", "1s", "--json")
    with started(*command, PENSTOCK_DRIVER_MEMORY="1m") as process:
        output, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()
    _, *rows, totals = map(orjson.loads, output.splitlines())
    assert totals["rows"] == len(rows)
    return [row["value"] for row in rows]


def running(**variables: str) -> bytes:
    """How many queries run in the session; None if it cannot be used."""
    with started("-c", COUNT, **variables) as process:
        return process.communicate(timeout=120)[0].strip()


@pytest.mark.timeout(900)
def test_previews_use_it_with_the_code_on_the_disk(session: SharedSessionServer, tmp_path: Path) -> None:
    assert previewed() == ['{"amount":100.0}', '{"amount":200.0}']
    (tmp_path / "shop/sql/streams/large-orders.sql").write_text(STREAM.format(least=200))
    assert previewed() == ['{"amount":200.0}']

    for variables in ({"PENSTOCK_SPARK_CONF": '{"spark.sql.ansi.enabled": "false"}'}, {"PENSTOCK_HOME": "/nowhere"}):
        assert running(**variables) == b"None"

    # One that is killed leaves no query behind.
    with started("-m", "penstock", "streams", "preview", "large-orders", "--for", "10m") as killed:
        assert killed.stdout is not None
        assert any(b'{"amount":200.0}' in line for line in killed.stdout)
        assert running() == b"1", "several use it at once"
        killed.kill()
    assert wait_for(lambda: running() == b"0", 60)

    with started("-m", "penstock", "streams", "preview", "large-orders", "--for", "10m") as command:
        assert command.stdout is not None
        assert command.stderr is not None
        assert any(b'{"amount":200.0}' in line for line in command.stdout)
        keeper = session.running()
        assert keeper is not None
        (java,) = (child for child in keeper.children(recursive=True) if child.name() == "java")
        java.kill()
        assert b"has ended during the command" in command.stderr.read()
    assert wait_for(lambda: session.running() is None, 60)
    assert running() == b"None"
