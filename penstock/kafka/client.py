"""Client configuration for brokers: addresses, TLS and SASL, for librdkafka and for Spark."""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from penstock.errors import BrokerError
from penstock.host.embedded import refuse_another_home
from penstock.settings import settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confluent_kafka import Consumer, TopicPartition

    from penstock.settings import KafkaSettings

LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
# How long the broker waits for new records at the end of a partition before it answers a fetch (Kafka's default: 500),
# for consumers that read up to the end and stop. Such a consumer assigns offset 0 instead of OFFSET_BEGINNING:
# librdkafka repeats the query of a logical offset only after 500 ms if it does not know the leader yet.
END_WAIT_MS = 10
# librdkafka first uses a new connection half of its first backoff after it has begun it: 50 ms by default.
QUICK_CONNECT = {"reconnect.backoff.ms": "20"}
# Seconds in which a broker refuses a client: two attempts at a handshake.
REFUSAL_TIMEOUT = 3.0
# Errors that no retry changes: message and hint.
REFUSALS = {
    KafkaError._AUTHENTICATION: (
        "the broker refused Penstock's login",
        "check PENSTOCK_KAFKA_USERNAME, PENSTOCK_KAFKA_PASSWORD and PENSTOCK_KAFKA_SASL_MECHANISM",
    ),
    KafkaError._SSL: (
        "no TLS connection to the broker",
        "set PENSTOCK_KAFKA_CA to the CA of its certificate, and use a host of that in PENSTOCK_KAFKA_BOOTSTRAP",
    ),
}
# For a login that a Connection of Airflow has.
CONNECTION_HINTS = {
    KafkaError._AUTHENTICATION: "its login, password and sasl.mechanism",
    KafkaError._SSL: "its ssl.ca.location, which must be the CA of the broker's certificate, and its host",
}


def _secured(bootstrap: str) -> KafkaSettings | None:
    """Returns the settings if they apply to these brokers; local and test brokers have no TLS or SASL."""
    s = settings().kafka
    return s if bootstrap == s.kafka_bootstrap and s.kafka_security_protocol != "PLAINTEXT" else None


def _refuse_another_home(bootstrap: str) -> None:
    """BrokerError if these are the embedded brokers and another process has a port of theirs."""
    s = settings()
    if not s.kafka_bootstrap and bootstrap == s.bootstrap:
        for port in s.broker_ports:
            refuse_another_home("Kafka broker", port, "PENSTOCK_KAFKA_PORT", BrokerError)


def client_id(name: str = "penstock") -> str:
    """Returns the client id under which brokers log, meter and throttle a client: `NAME@HOST`."""
    return f"{name}@{socket.gethostname()}"


def client_config(bootstrap: str, name: str = "penstock") -> dict[str, str]:
    """Returns the librdkafka configuration: addresses, client id, TLS and SASL. It holds secrets: never log it.

    Args:
        bootstrap: the brokers.
        name: what the client is, for its client id.

    Raises:
        BrokerError: The port of an embedded broker is that of another home.
    """
    _refuse_another_home(bootstrap)
    return _librdkafka_config(bootstrap, name, _secured(bootstrap))


def reader_config(bootstrap: str, group: str) -> dict[str, Any]:
    """Returns the configuration of a consumer that reads committed records up to the ends of its partitions.

    It commits no offsets, and is told of each end.

    Args:
        bootstrap: the brokers.
        group: under which brokers know it.

    Raises:
        BrokerError: The port of an embedded broker is that of another home.
    """
    return {
        **client_config(bootstrap),
        "group.id": group,
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": END_WAIT_MS,
        "log_level": 2,
    }


def _librdkafka_config(bootstrap: str, name: str, s: KafkaSettings | None) -> dict[str, str]:
    config = {"bootstrap.servers": bootstrap, "client.id": client_id(name), **QUICK_CONNECT}
    if s:
        config["security.protocol"] = s.kafka_security_protocol
        if "SSL" in s.kafka_security_protocol.split("_"):
            tls = {
                "ssl.ca.location": s.kafka_ca,
                "ssl.certificate.location": s.kafka_certificate,
                "ssl.key.location": s.kafka_key,
                "ssl.key.password": s.kafka_key_password.get_secret_value(),
            }
            config |= {name: value for name, value in tls.items() if value}
        if "SASL" in s.kafka_security_protocol:
            config |= {
                "sasl.mechanism": s.kafka_sasl_mechanism,
                "sasl.username": s.kafka_username,
                "sasl.password": s.kafka_password.get_secret_value(),
            }
    return config


def assign(consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
    """Assign partitions, their leaders looked up before: librdkafka looks for unknown leaders only once a second.

    A partition that this consumer has fetched from before is not looked up again. A broker that does not answer within
    two seconds is left to the consumer's own retries.
    """
    for topic in {p.topic for p in partitions if not _fetched_before(consumer, p)}:
        with suppress(KafkaException):
            consumer.list_topics(topic, timeout=2.0)
    consumer.assign(list(partitions))


def close_checking(consumer: Consumer) -> None:
    """Close a consumer that verifies checksums. With librdkafka 2.16, one that met a corrupt batch and is closed while
    it fetches that batch again may never be closed, so it ends its fetches first."""
    consumer.unassign()
    consumer.poll(0.02)
    consumer.close()


def _fetched_before(consumer: Consumer, partition: TopicPartition) -> bool:
    """Whether the consumer knows the partition's end from a fetch; asks no broker."""
    try:
        _, end = consumer.get_watermark_offsets(partition, cached=True)
    except KafkaException:
        return False
    return bool(end >= 0)


def spark_client_config(bootstrap: str) -> dict[str, str]:
    """Returns the options of Spark's Kafka source. Certificates are passed as text, so executors need no files."""
    config = {"kafka.bootstrap.servers": bootstrap}
    if s := _secured(bootstrap):
        config["kafka.security.protocol"] = s.kafka_security_protocol
        if "SSL" in s.kafka_security_protocol.split("_"):
            if s.kafka_ca:
                config["kafka.ssl.truststore.type"] = "PEM"
                config["kafka.ssl.truststore.certificates"] = Path(s.kafka_ca).read_text()
            if s.kafka_certificate:
                config["kafka.ssl.keystore.type"] = "PEM"
                config["kafka.ssl.keystore.certificate.chain"] = Path(s.kafka_certificate).read_text()
                config["kafka.ssl.keystore.key"] = Path(s.kafka_key).read_text()
            if password := s.kafka_key_password.get_secret_value():
                config["kafka.ssl.key.password"] = password
        if "SASL" in s.kafka_security_protocol:
            username, password = _jaas_quoted(s.kafka_username), _jaas_quoted(s.kafka_password.get_secret_value())
            config["kafka.sasl.mechanism"] = s.kafka_sasl_mechanism
            config["kafka.sasl.jaas.config"] = (
                f"{LOGIN_MODULES[s.kafka_sasl_mechanism]} required username={username} password={password};"
            )
    return config


def _jaas_quoted(text: str) -> str:
    """Quotes a text for JAAS."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def unreachable(bootstrap: str, cause: object) -> BrokerError:
    """Returns the error for a failed call. The client reports only a timeout, so refusals are looked up."""
    s, conn_id = settings(), settings().connection_ids.get("kafka_bootstrap", "")
    if _secured(bootstrap):
        refused = _refusal(client_config(bootstrap))
        if refused is not None:
            return _refused(refused, conn_id)
    hint = "check that it runs with `penstock doctor`, or set PENSTOCK_KAFKA_BOOTSTRAP"
    if not s.kafka_bootstrap:
        hint = "start the platform with `penstock up`; if it runs, `penstock doctor` shows what is wrong"
    elif bootstrap == s.kafka.kafka_bootstrap:
        hint = "check that it runs, and check PENSTOCK_KAFKA_BOOTSTRAP and PENSTOCK_KAFKA_SECURITY_PROTOCOL"
        if conn_id:
            hint = f"check that it runs, and check the host and security.protocol of the connection {conn_id}"
    reason = cause.str() if isinstance(cause, KafkaError) else cause
    return BrokerError("the broker did not answer", got=f"{reason} at {bootstrap}", hint=hint)


def probe(s: KafkaSettings, conn_id: str) -> str:
    """Connects to the brokers of a Connection within seconds; what they are.

    Args:
        s: What the Connection says.
        conn_id: Its id, for errors.

    Raises:
        BrokerError: They refuse or do not answer.
    """
    errors: list[KafkaError] = []
    secured = s if s.kafka_security_protocol != "PLAINTEXT" else None
    config: dict[str, Any] = {"log_level": 0, "error_cb": errors.append}
    client = AdminClient({**_librdkafka_config(s.kafka_bootstrap, "penstock-test", secured), **config})
    try:
        cluster = client.list_topics(timeout=REFUSAL_TIMEOUT)
    except KafkaException as e:
        # Only the callback gets the cause.
        client.poll(0)
        if refusals := [error for error in errors if error.code() in REFUSALS]:
            raise _refused(refusals[0], conn_id) from e
        causes = [error for error in errors if error.code() != KafkaError._ALL_BROKERS_DOWN]
        hint = f"check that they run, and check the host and security.protocol of the connection {conn_id}"
        got = f"{(causes or [e.args[0]])[0].str()} at {s.kafka_bootstrap}"
        raise BrokerError("the brokers did not answer", got=got, hint=hint) from e
    return f"{len(cluster.brokers)} brokers of cluster {cluster.cluster_id}, {len(cluster.topics)} topics visible"


def _refused(error: KafkaError, conn_id: str) -> BrokerError:
    what, hint = REFUSALS[error.code()]
    if conn_id:
        hint = f"check the connection {conn_id}: {CONNECTION_HINTS[error.code()]}"
    return BrokerError(what, got=error.str(), hint=hint)


def _refusal(config: dict[str, Any]) -> KafkaError | None:
    """Connects once more to learn why the brokers refuse a client, which only a callback reports."""
    errors: list[KafkaError] = []
    # Without a pause its callbacks would use a whole core.
    slow_retries: dict[str, Any] = {"reconnect.backoff.ms": 500, "log_level": 0, "error_cb": errors.append}
    try:
        client = AdminClient({**config, **slow_retries})
    except KafkaException as e:
        return e.args[0] if e.args[0].code() in REFUSALS else None
    deadline = time.monotonic() + REFUSAL_TIMEOUT
    while time.monotonic() < deadline:
        try:
            client.list_topics(timeout=0.5)
        except KafkaException:
            pass
        else:
            return None
        client.poll(0)
        if refusals := [error for error in errors if error.code() in REFUSALS]:
            return refusals[0]
    return None
