"""What a driver's Spark is told, and how a person overrules it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock.engine import session
from penstock.engine.checkpoint import file_managers, s3a
from penstock.errors import SettingError, SinkError
from penstock.java import spark_classes
from penstock.settings import settings


@pytest.fixture(autouse=True)
def plain(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    monkeypatch.setattr("penstock.java.jars.jars_of", lambda _: [])
    monkeypatch.setattr("penstock.java.aot_cache.options", list)
    monkeypatch.setattr(spark_classes, "jar_of", lambda source: Path(f"/jars/{source.stem}.jar"))


OWN_JARS = "/jars/BatchConstant.jar,/jars/HeartbeatWatermarkTracker.jar"


def test_what_was_measured_best_is_the_default() -> None:
    conf = session.submit_conf("shop")
    assert conf["spark.app.name"] == "penstock-shop"
    assert "-XX:+UseSerialGC" in conf["spark.driver.extraJavaOptions"]
    assert (conf["spark.sql.session.timeZone"], conf["spark.executorEnv.TZ"]) == ("UTC", "UTC")
    assert conf["spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"] == "true"
    assert conf["spark.sql.streaming.checkpointFileManagerClass"] == file_managers.LOCAL
    assert conf["spark.jars"] == f"/jars/LocalCheckpointFileManager.jar,{OWN_JARS}"


@pytest.mark.parametrize(("memory", "results"), [("768m", "402653184b"), ("1G", "536870912b"), ("1024", "536870912b")])
def test_half_of_the_heap_is_for_results(monkeypatch: pytest.MonkeyPatch, memory: str, results: str) -> None:
    monkeypatch.setenv("PENSTOCK_DRIVER_MEMORY", memory)
    settings.cache_clear()
    assert session.submit_conf("shop")["spark.driver.maxResultSize"] == results


def test_each_can_be_overruled(monkeypatch: pytest.MonkeyPatch) -> None:
    more = {"spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false", "spark.ui.port": "5050"}
    monkeypatch.setenv("PENSTOCK_SPARK_CONF", json.dumps(more))
    monkeypatch.setenv("PENSTOCK_JAVA_OPTIONS", "-XX:+UseG1GC '-Dname=a b'")
    settings.cache_clear()
    conf = session.submit_conf("shop")
    assert more.items() <= conf.items()
    assert conf["spark.driver.extraJavaOptions"].startswith("-XX:+UseG1GC '-Dname=a b' -Dlog4j2.")
    assert "-XX:+ExitOnOutOfMemoryError" in conf["spark.driver.extraJavaOptions"]
    assert "SerialGC" not in conf["spark.driver.extraJavaOptions"]


@pytest.mark.parametrize("name", session.UTC_CONF)
def test_the_zone_is_no_choice(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for zone, refused in (("UTC", False), ("America/New_York", True)):
        monkeypatch.setenv("PENSTOCK_SPARK_CONF", json.dumps({name: zone}))
        settings.cache_clear()
        if refused:
            with pytest.raises(SettingError, match=f"another zone than UTC; got: {name}={zone}; .*from_utc_timestamp"):
                session.submit_conf("shop")
        else:
            assert session.submit_conf("shop")[name] == "UTC"


def test_checkpoints_elsewhere_keep_sparks_own_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_CHECKPOINTS", "hdfs://host/checkpoints")
    settings.cache_clear()
    assert "spark.sql.streaming.checkpointFileManagerClass" not in session.submit_conf("shop")


def test_checkpoints_in_an_object_store_have_a_manager_and_a_client_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    libraries = [Path("/jars/client.jar"), Path("/jars/conditional.jar")]
    monkeypatch.setattr(s3a, "s3a_jars", lambda: libraries)
    before = session.submit_conf("shop")
    for name, value in {"S3_URL": "https://store:9000", "S3_ACCESS_KEY": "me", "S3_SECRET_KEY": "word"}.items():
        monkeypatch.setenv(f"PENSTOCK_{name}", value)
    monkeypatch.setenv("PENSTOCK_CHECKPOINTS", "s3a://bucket/checkpoints")
    settings.cache_clear()
    conf = session.submit_conf("shop")
    assert conf["spark.sql.streaming.checkpointFileManagerClass"] == "penstock.ConditionalCheckpointFileManager"
    assert conf["spark.jars"] == f"/jars/client.jar,/jars/conditional.jar,{OWN_JARS}"
    # What its cache was made for.
    assert conf["spark.driver.extraClassPath"] == before["spark.driver.extraClassPath"]
    given = {
        name.removeprefix(s3a.HADOOP_PREFIX): value
        for name, value in conf.items()
        if name.startswith(s3a.HADOOP_PREFIX)
    }
    assert (given["endpoint"], given["connection.ssl.enabled"]) == ("https://store:9000", "true")
    assert (given["access.key"], given["secret.key"]) == ("me", "word")
    assert not any("word" in value for name, value in conf.items() if not name.startswith(s3a.HADOOP_PREFIX))
    far = session.submit_conf("shop", "spark://far:7077")["spark.jars"].split(",")
    assert far == conf["spark.jars"].split(",")


def test_an_object_store_for_checkpoints_must_be_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3a, "s3a_jars", list)
    monkeypatch.setenv("PENSTOCK_CHECKPOINTS", "s3a://bucket/checkpoints")
    settings.cache_clear()
    with pytest.raises(SettingError, match="no setting says where it is"):
        session.submit_conf("shop")
    monkeypatch.setenv("PENSTOCK_S3_URL", "store:9000")
    settings.cache_clear()
    with pytest.raises(SinkError, match="this is no endpoint"):
        session.submit_conf("shop")


@pytest.mark.parametrize(("given", "said"), [("s3://bucket/x", "use s3a://"), ("s3a:///x", "name a bucket")])
def test_a_place_of_checkpoints_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, given: str, said: str) -> None:
    monkeypatch.setenv("PENSTOCK_CHECKPOINTS", given)
    settings.cache_clear()
    with pytest.raises(SettingError, match=said):
        settings()


def test_only_a_master_elsewhere_has_spark_prove_itself(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not [
        key for key in session.submit_conf("shop", "local[2]") if key.startswith(("spark.auth", "spark.network"))
    ]
    conf = session.submit_conf("shop", "spark://h:7077")
    assert conf["spark.authenticate"] == conf["spark.network.crypto.enabled"] == conf["spark.io.encryption.enabled"]
    assert conf["spark.authenticate.secret"] == (home / "spark.secret").read_text()
    assert (home / "spark.secret").stat().st_mode & 0o077 == 0
    monkeypatch.setenv("PENSTOCK_EXECUTOR_IMAGE", "penstock:1")
    settings.cache_clear()
    assert "spark.authenticate.secret" not in session.submit_conf("shop", "k8s://https://h:6443")
    monkeypatch.setenv("PENSTOCK_SPARK_SECRET", "given")
    settings.cache_clear()
    assert session.submit_conf("shop", "spark://h:7077")["spark.authenticate.secret"] == "given"
