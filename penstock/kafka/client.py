"""Client configuration for brokers: addresses, TLS and SASL, for librdkafka and for Spark."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from penstock.errors import BrokerError
from penstock.settings import settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from confluent_kafka import Consumer, TopicPartition

    from penstock.settings import Settings

LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
# How long the broker waits for new records at the end of a partition before it answers a fetch (Kafka's default: 500),
# for consumers that read up to the end and stop. Such a consumer assigns offset 0 instead of OFFSET_BEGINNING:
# librdkafka repeats the query of a logical offset only after 500 ms if it does not know the leader yet.
END_WAIT_MS = 10
# Seconds until a broker has said why it lets nobody in: two attempts at a handshake.
REFUSAL_TIMEOUT = 3.0
# What no further attempt changes, and the settings that do.
REFUSALS = {
    KafkaError._AUTHENTICATION: (
        "the broker does not let Penstock in",
        "see PENSTOCK_KAFKA_USERNAME, PENSTOCK_KAFKA_PASSWORD and PENSTOCK_KAFKA_SASL_MECHANISM",
    ),
    KafkaError._SSL: (
        "no TLS connection to the broker comes about",
        "let PENSTOCK_KAFKA_CA be the CA of the broker's certificate, and PENSTOCK_KAFKA_BOOTSTRAP a name of it",
    ),
}


def _secured(bootstrap: str) -> Settings | None:
    """Returns the settings if they apply to these brokers; local and test brokers have no TLS or SASL."""
    s = settings()
    return s if bootstrap == s.kafka_bootstrap and s.kafka_security_protocol != "PLAINTEXT" else None


def client_config(bootstrap: str) -> dict[str, str]:
    """Returns the librdkafka configuration: addresses, TLS and SASL. It holds secrets: never log it."""
    found = {"bootstrap.servers": bootstrap}
    if s := _secured(bootstrap):
        found["security.protocol"] = s.kafka_security_protocol
        if "SSL" in s.kafka_security_protocol.split("_"):
            given = {
                "ssl.ca.location": s.kafka_ca,
                "ssl.certificate.location": s.kafka_certificate,
                "ssl.key.location": s.kafka_key,
                "ssl.key.password": s.kafka_key_password.get_secret_value(),
            }
            found |= {name: value for name, value in given.items() if value}
        if "SASL" in s.kafka_security_protocol:
            found |= {
                "sasl.mechanism": s.kafka_sasl_mechanism,
                "sasl.username": s.kafka_username,
                "sasl.password": s.kafka_password.get_secret_value(),
            }
    return found


def assign(consumer: Consumer, partitions: Sequence[TopicPartition]) -> None:
    """Assign partitions, their leaders looked up before: librdkafka looks for unknown leaders only once a second.

    A partition that this consumer has fetched from before is not looked up again. A broker that does not answer within
    two seconds is left to the consumer's own retries.
    """
    for topic in {p.topic for p in partitions if not _fetched_before(consumer, p)}:
        with suppress(KafkaException):
            consumer.list_topics(topic, timeout=2.0)
    consumer.assign(list(partitions))


def _fetched_before(consumer: Consumer, partition: TopicPartition) -> bool:
    """Whether the consumer knows the partition's end from a fetch; asks no broker."""
    try:
        _, end = consumer.get_watermark_offsets(partition, cached=True)
    except KafkaException:
        return False
    return bool(end >= 0)


def spark_client_config(bootstrap: str) -> dict[str, str]:
    """Returns the same for Spark's Kafka source. Certificates are passed as text: executors need no files."""
    found = {"kafka.bootstrap.servers": bootstrap}
    if s := _secured(bootstrap):
        found["kafka.security.protocol"] = s.kafka_security_protocol
        if "SSL" in s.kafka_security_protocol.split("_"):
            if s.kafka_ca:
                found["kafka.ssl.truststore.type"] = "PEM"
                found["kafka.ssl.truststore.certificates"] = Path(s.kafka_ca).read_text()
            if s.kafka_certificate:
                found["kafka.ssl.keystore.type"] = "PEM"
                found["kafka.ssl.keystore.certificate.chain"] = Path(s.kafka_certificate).read_text()
                found["kafka.ssl.keystore.key"] = Path(s.kafka_key).read_text()
            if password := s.kafka_key_password.get_secret_value():
                found["kafka.ssl.key.password"] = password
        if "SASL" in s.kafka_security_protocol:
            username, password = _jaas_quoted(s.kafka_username), _jaas_quoted(s.kafka_password.get_secret_value())
            found["kafka.sasl.mechanism"] = s.kafka_sasl_mechanism
            found["kafka.sasl.jaas.config"] = (
                f"{LOGIN_MODULES[s.kafka_sasl_mechanism]} required username={username} password={password};"
            )
    return found


def _jaas_quoted(text: str) -> str:
    """Quotes a text for JAAS."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def unreachable(bootstrap: str, cause: object) -> BrokerError:
    """Returns the error for a failed call. The client reports only a timeout, so refusals are looked up."""
    if _secured(bootstrap):
        refused = _refusal(bootstrap)
        if refused is not None:
            what, hint = REFUSALS[refused.code()]
            return BrokerError(what, got=refused.str(), hint=hint)
        hint = "see that it runs, and that PENSTOCK_KAFKA_BOOTSTRAP and PENSTOCK_KAFKA_SECURITY_PROTOCOL are its own"
    else:
        hint = "see that it runs (`penstock doctor`), or set PENSTOCK_KAFKA_BOOTSTRAP"
        if not settings().kafka_bootstrap:
            hint = "start the platform with `make up`; if it runs, `penstock doctor` shows what is wrong"
        if bootstrap == settings().kafka_bootstrap:
            hint += "; if it asks for TLS or a login, PENSTOCK_KAFKA_SECURITY_PROTOCOL"
    return BrokerError("the broker did not answer", got=f"{cause} at {bootstrap}", hint=hint)


def _refusal(bootstrap: str) -> KafkaError | None:
    """Connects again to learn why the brokers refuse a client: only a callback is told."""
    said: list[KafkaError] = []
    # Else it would try so often that its call-backs are all that goes on.
    slowly: dict[str, Any] = {"reconnect.backoff.ms": 500, "log_level": 0, "error_cb": said.append}
    try:
        client = AdminClient({**client_config(bootstrap), **slowly})
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
        if found := [error for error in said if error.code() in REFUSALS]:
            return found[0]
    return None
