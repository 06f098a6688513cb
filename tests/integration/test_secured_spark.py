"""Spark's processes on several hosts: who does not know the secret gets nothing, and nobody reads it on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.host.ports import free_port, listens
from penstock.supervision import launch
from tests.support.wait import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.long]

JOB = """
import os, psutil
from penstock.engine.session import open_session
spark = open_session("secured")
print("counted", spark.range(1000).repartition(2).selectExpr("id % 7 AS k").groupBy("k").count().count())
secret = open(os.environ["PENSTOCK_HOME"] + "/spark.secret").read()
words = [p.info["cmdline"] or [] for p in psutil.process_iter(["cmdline"])]
print("drivers", sum("spark.app.name=penstock-secured" in each for each in words))
print("told", [each for each in words if any(secret in word for word in each)])
spark.stop()
"""


@pytest.fixture
def master(home: Path) -> Iterator[str]:
    """A standalone master and a worker, with the settings that a driver of this home has."""
    from penstock.engine.spark_security import security_conf

    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    conf = launch.write_spark_conf("daemons", security_conf(url))
    env = launch.environment() | {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_WORKER_DIR": str(home / "work")}
    started = []
    spark_class = Path(env["SPARK_HOME"]) / "bin" / "spark-class"
    words = {
        "master.Master": ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"],
        "worker.Worker": ["--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g", url],
    }
    logs = []
    try:
        for name, given in words.items():
            log = home / f"{name}.log"
            logs.append(log)
            with log.open("w") as out:
                started.append(
                    subprocess.Popen(
                        [str(spark_class), f"org.apache.spark.deploy.{name}", "--properties-file", str(conf), *given],
                        env=env, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                    )
                )  # fmt: skip
            wait_until(lambda: listens(port), what="the master")
        wait_until(lambda: "Successfully registered" in logs[1].read_text(), what="the worker")
        yield url
    finally:
        for one in started:
            os.killpg(one.pid, signal.SIGKILL)
            one.wait()


def job(url: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PENSTOCK_SPARK_MASTER": url, **more}
    return subprocess.run(
        [sys.executable, "-c", JOB], env=env, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip


def test_executors_with_the_secret_run_the_jobs_of_a_driver(master: str, home: Path) -> None:
    done = job(master)
    assert "counted 7" in done.stdout, done.stderr[-3000:]
    assert "drivers 1\ntold []" in done.stdout, "every user may read a command line"
    secret = (home / "spark.secret").read_text()
    assert not list((home / "run").glob("spark-secured-*")), "the file with the secret goes when it is read"
    assert secret not in "".join(log.read_text() for log in home.glob("*.log"))


def test_a_process_with_another_secret_is_refused(master: str) -> None:
    done = job(master, PENSTOCK_SPARK_SECRET="another", PENSTOCK_SPARK_CONF='{"spark.cores.max": "1"}')
    assert done.returncode != 0
    assert "counted" not in done.stdout
