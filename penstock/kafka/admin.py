"""Creates and configures topics as declared, and reads their settings and offsets."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple, TypeVar

from confluent_kafka import OFFSET_INVALID, IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from penstock.errors import BrokerError, BrokerRefused
from penstock.host import ports
from penstock.kafka.client import client_config, unreachable
from penstock.model.topic import Topic
from penstock.settings import settings

T = TypeVar("T")

# Offsets by (topic, partition).
PartitionOffsets = Mapping[tuple[str, int], int]
TIMEOUT = 15.0
LOOK_TIMEOUT = 5.0
# Less than TIMEOUT, since the broker's own error says more.
REQUEST_TIMEOUT = TIMEOUT - 1
# For consumers: bytes of a decompressed batch. 3 kB of zstd can exceed librdkafka's 100 MB, and then stop the consumer.
LARGE_FETCH = {"receive.message.max.bytes": 1 << 30}
# The partition has no leader (a broker that has just started says so of all), or was added since the client looked.
NO_LEADER, NEW_PARTITION = KafkaError._NOENT, KafkaError._UNKNOWN_PARTITION
# Errors of a partition while its topic is created, moved or deleted.
TOPIC_UNAVAILABLE = {
    KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE,
    NEW_PARTITION,
}  # fmt: skip
UNREADABLE = {*TOPIC_UNAVAILABLE, KafkaError.TOPIC_AUTHORIZATION_FAILED}
# Shortly after its start a broker knows no leaders, or other ones than the client.
STALE_METADATA = {KafkaError.UNKNOWN_LEADER_EPOCH, KafkaError.FENCED_LEADER_EPOCH, NO_LEADER, NEW_PARTITION}
STALE_METADATA_TIMEOUT = 5.0
CONFIG_UNREADABLE = "the settings of topic {} could not be read"
# Seconds of the first attempt to list offsets; each further attempt takes a second longer.
FIRST_ATTEMPT_TIMEOUT = 2.0
# Seconds after which the client is replaced: one with newer leader epochs than a crashed broker keeps them.
RENEW_CLIENT_AFTER = 2.0
# By error code.
REFUSAL_HINTS = {
    KafkaError.INVALID_CONFIG: "correct the topic's `config` or `retention`: names and values are those of Kafka",
    KafkaError.INVALID_REPLICATION_FACTOR: "set PENSTOCK_REPLICATION to at most the number of brokers",
    KafkaError.INVALID_PARTITIONS: "declare at least as many partitions as the topic has",
    KafkaError.POLICY_VIOLATION: "declare the topic as the brokers' policy allows, or ask their administrator",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "allow it to Penstock's user in the ACLs of the topic",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "allow it to Penstock's user in the ACLs of the cluster",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "allow it to Penstock's user in the ACLs of the group",
}
# The client got no answer from a broker.
CLIENT_ERRORS = {
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError._DESTROY_BROKER,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._RESOLVE,
}


@dataclass(frozen=True)
class TopicState:
    """A declared topic compared with the one at the broker.

    Attributes:
        declared: the declaration.
        partitions: how many the topic has; 0 if it does not exist.
        drift: settings that differ, as `{name: (declared, actual)}`.
        end_offsets: end offset by partition.
    """

    declared: Topic
    partitions: int = 0
    drift: dict[str, tuple[str, str]] = field(default_factory=dict)
    end_offsets: dict[int, int] = field(default_factory=dict)

    @property
    def as_declared(self) -> bool:
        return self.partitions >= self.declared.partitions and not self.drift


@cache
def admin(bootstrap: str) -> AdminClient:
    """The process's admin client: each holds threads and connections of its own."""
    return AdminClient(
        {
            **client_config(bootstrap),
            "socket.connection.setup.timeout.ms": 5000,
            # Every call says itself what went wrong; the client's own lines would repeat it at each attempt.
            "log_level": 2,
        }
    )


def await_result(future: Future[T], bootstrap: str, what: str) -> T:
    """Waits for the result of a call with `request_timeout=REQUEST_TIMEOUT`.

    Args:
        future: the pending call.
        bootstrap: the brokers.
        what: the error message if the broker refuses, e.g. "topic t could not be created".

    Raises:
        BrokerRefused: the broker refused.
        BrokerError: no answer came. The next call uses a new client: one that was created while its only broker hung
            may never connect to it.
    """
    try:
        return future.result(TIMEOUT)
    except TimeoutError as e:
        admin.cache_clear()
        raise unreachable(bootstrap, f"nothing within {TIMEOUT:g} s") from e
    except KafkaException as e:
        if (code := e.args[0].code()) not in CLIENT_ERRORS:
            raise BrokerRefused(what, code=code, got=e.args[0].str(), hint=REFUSAL_HINTS.get(code, "")) from e
        admin.cache_clear()
        raise unreachable(bootstrap, e.args[0]) from e


def partition_counts(client: AdminClient, bootstrap: str, timeout: float | None = None) -> dict[str, int]:
    """Returns the partition count of every topic of the cluster; timeout in seconds, TIMEOUT by default."""
    try:
        topics = client.list_topics(timeout=timeout or TIMEOUT).topics
    except KafkaException as e:
        admin.cache_clear()
        raise unreachable(bootstrap, e.args[0]) from e
    return {name: len(meta.partitions) for name, meta in topics.items()}


def describe_topics(topics: Iterable[Topic], bootstrap: str) -> list[TopicState]:
    """Compares declared topics with those at the broker, ordered by name, without duplicates."""
    client = admin(bootstrap)
    counts = partition_counts(client, bootstrap)
    declared = sorted({topic.name: topic for topic in topics}.values(), key=lambda t: t.name)
    present = [t for t in declared if t.name in counts]
    configs = topic_configs([topic.name for topic in present], bootstrap, unreadable=())
    ends = end_offsets(client, [(t.name, p) for t in present for p in range(counts[t.name])], bootstrap)
    states = []
    for topic in declared:
        if topic.name not in counts:
            states.append(TopicState(topic))
            continue
        actual = configs[topic.name]
        drift = {k: (v, actual.get(k, "")) for k, v in topic.settings().items() if actual.get(k, "") != v}
        offsets = {p: ends[topic.name, p] for p in range(counts[topic.name]) if (topic.name, p) in ends}
        states.append(TopicState(topic, counts[topic.name], drift, offsets))
    return states


def ensure_topics(topics: Iterable[Topic], bootstrap: str) -> list[str]:
    """Creates missing topics, adds partitions and sets drifted settings; deletes nothing. Returns a line per change."""
    client, states, changes = admin(bootstrap), describe_topics(topics, bootstrap), list[str]()
    created_topics = _create_topics(client, [state.declared for state in states if not state.partitions], bootstrap)
    for state in states:
        topic = state.declared
        if topic.name in created_topics:
            changes.append(f"created {topic.name} with {topic.partitions} partitions")
        if not state.partitions:
            continue
        if state.partitions < topic.partitions and topic.may_add_partitions:
            request = NewPartitions(topic.name, topic.partitions)
            widening = client.create_partitions([request], request_timeout=REQUEST_TIMEOUT)[topic.name]
            what = f"topic {topic.name} could not be given more partitions"
            if _is_made(widening, bootstrap, what, KafkaError.INVALID_PARTITIONS):
                changes.append(f"widened {topic.name} from {state.partitions} to {topic.partitions} partitions")
        if state.drift:
            entries = [
                ConfigEntry(k, declared, incremental_operation=AlterConfigOpType.SET)
                for k, (declared, _) in state.drift.items()
            ]
            resource = ConfigResource(ResourceType.TOPIC, topic.name, incremental_configs=entries)
            change = client.incremental_alter_configs([resource], request_timeout=REQUEST_TIMEOUT)[resource]
            await_result(change, bootstrap, f"topic {topic.name} could not be configured ({', '.join(state.drift)})")
            changes.append(f"set {', '.join(state.drift)} of {topic.name}")
    # A busy broker lists and leads a new topic some time after it has acknowledged its creation.
    new = {(t.name, p) for t in (s.declared for s in states) if t.name in created_topics for p in range(t.partitions)}
    deadline = time.monotonic() + TIMEOUT
    while new - end_offsets(client, new, bootstrap).keys() and time.monotonic() < deadline:
        partition_counts(client, bootstrap)  # which refreshes what the client knows of topics
    return changes


def _create_topics(client: AdminClient, topics: Sequence[Topic], bootstrap: str) -> set[str]:
    """Creates topics by one request; returns the names of those that nobody else has created meanwhile."""
    if not topics:
        return set()
    new = [NewTopic(topic.name, topic.partitions, settings().replication, config=topic.settings()) for topic in topics]
    return {
        name
        for name, creation in client.create_topics(new, request_timeout=REQUEST_TIMEOUT).items()
        if _is_made(creation, bootstrap, f"topic {name} could not be created", KafkaError.TOPIC_ALREADY_EXISTS)
    }


def _is_made(change: Future[T], bootstrap: str, what: str, already: int) -> bool:
    """Waits for a change; False if the broker refuses it with the code that another process has made it meanwhile."""
    try:
        await_result(change, bootstrap, what)
    except BrokerRefused as e:
        if e.code != already:
            raise
        return False
    return True


def create_missing(topics: Iterable[Topic], bootstrap: str) -> list[str]:
    """Creates missing topics, and changes no others. BrokerError soon if no broker answers, at once if none listens."""
    declared = list(topics)
    if not declared:
        return []
    # Kafka's client would try again until its timeout.
    if not any(map(ports.accepts, bootstrap.split(","))):
        raise unreachable(bootstrap, "nothing listens")
    counts = partition_counts(admin(bootstrap), bootstrap, LOOK_TIMEOUT)
    missing = [topic for topic in declared if topic.name not in counts]
    return ensure_topics(missing, bootstrap) if missing else []


def end_offsets(
    client: AdminClient, partitions: Iterable[tuple[str, int]], bootstrap: str
) -> dict[tuple[str, int], int]:
    """Returns the last stable offset by (topic, partition); partitions without a leader are omitted."""
    return _offsets(client, partitions, bootstrap, OffsetSpec.latest())  # type: ignore[no-untyped-call]


def all_end_offsets(
    client: AdminClient, partitions: Collection[tuple[str, int]], bootstrap: str
) -> dict[tuple[str, int], int]:
    """Returns the last stable offset of every partition.

    Raises:
        BrokerError: A partition has no leader, so that its records cannot be read.
    """
    ends = end_offsets(client, partitions, bootstrap)
    if missing := sorted(set(partitions) - ends.keys()):
        topic, partition = missing[0]
        got = f"partition {partition} has no leader"
        raise BrokerError(f"topic {topic} cannot be read", got=got, hint="try again when its brokers run")
    return ends


def first_offsets(
    client: AdminClient, partitions: Iterable[tuple[str, int]], bootstrap: str
) -> dict[tuple[str, int], int]:
    """Returns the log start offset by (topic, partition); partitions without a leader are omitted."""
    return _offsets(client, partitions, bootstrap, OffsetSpec.earliest())  # type: ignore[no-untyped-call]


def log_end_offsets(
    client: AdminClient, partitions: Iterable[tuple[str, int]], bootstrap: str
) -> dict[tuple[str, int], int]:
    """Returns the log end offset, open transactions included; partitions without a leader are omitted."""
    return _offsets(client, partitions, bootstrap, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)  # type: ignore[no-untyped-call]


def offsets_for_times(
    client: AdminClient, times: Mapping[tuple[str, int], int], bootstrap: str
) -> dict[tuple[str, int], int | None]:
    """Returns, by partition, the first offset whose timestamp is at or after the given epoch ms; None if there is none.

    All records before it have earlier timestamps. Records after it may have any, since producers set timestamps.
    """
    offsets_by_partition: dict[tuple[str, int], int | None] = {}
    # Negative numbers have other meanings: -1 is the end of the log. A record without a timestamp has -1.
    if before_epoch := [partition for partition, timestamp in times.items() if timestamp < 0]:
        offsets_by_partition |= first_offsets(client, before_epoch, bootstrap)
        times = {partition: timestamp for partition, timestamp in times.items() if timestamp >= 0}
    for timestamp in set(times.values()):
        partitions = [partition for partition, time_of_partition in times.items() if time_of_partition == timestamp]
        offsets = _offsets(client, partitions, bootstrap, OffsetSpec.for_timestamp(timestamp))
        offsets_by_partition |= {partition: offset if offset >= 0 else None for partition, offset in offsets.items()}
    return offsets_by_partition


def _offsets(
    client: AdminClient,
    partitions: Iterable[tuple[str, int]],
    bootstrap: str,
    spec: OffsetSpec,
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
) -> dict[tuple[str, int], int]:
    """Lists offsets, with several attempts of increasing timeout.

    A request to a leader that dies blocks until its timeout, and the client does not look for the new leader meanwhile.
    """
    offsets: dict[tuple[str, int], int] = {}
    pending, start, renewed, next_timeout = set(partitions), time.monotonic(), False, FIRST_ATTEMPT_TIMEOUT
    while pending:
        request, pending = {TopicPartition(t, p): spec for t, p in pending}, set()
        remaining = max(start + REQUEST_TIMEOUT - time.monotonic(), 1.0)
        is_last, timeout = remaining <= next_timeout, min(remaining, next_timeout)
        next_timeout += 1
        futures = client.list_offsets(request, isolation_level=isolation, request_timeout=timeout)
        for partition, future in futures.items():
            try:
                offset = await_result(future, bootstrap, f"the offsets of topic {partition.topic} are not known").offset
                if offset != OFFSET_INVALID:
                    offsets[partition.topic, partition.partition] = offset
                # Neither error nor offset: the leader of a cluster has just died.
                elif not is_last:
                    pending.add((partition.topic, partition.partition))
            except BrokerRefused as e:
                if e.code in STALE_METADATA and time.monotonic() < start + STALE_METADATA_TIMEOUT:
                    pending.add((partition.topic, partition.partition))
                elif e.code not in {*TOPIC_UNAVAILABLE, NO_LEADER}:
                    raise
            except BrokerError:
                if is_last:
                    raise
                pending.add((partition.topic, partition.partition))
        if pending:
            time.sleep(0.1)
            if not renewed and time.monotonic() > start + RENEW_CLIENT_AFTER:
                admin.cache_clear()
                renewed = True
            client = admin(bootstrap)
            # Listing topics also refreshes the client's metadata of leaders.
            partition_counts(client, bootstrap, max(start + REQUEST_TIMEOUT - time.monotonic(), 1.0))
    return offsets


def topic_ids(client: AdminClient, names: Iterable[str], bootstrap: str) -> dict[str, str]:
    """Returns the broker's id of each existing topic; a recreated topic has a new id."""
    topics = list(names)
    if not topics:
        return {}
    ids: dict[str, str] = {}
    for name, future in client.describe_topics(TopicCollection(topics), request_timeout=REQUEST_TIMEOUT).items():
        try:
            ids[name] = str(await_result(future, bootstrap, f"topic {name} could not be described").topic_id)
        except BrokerRefused as e:
            if e.code not in TOPIC_UNAVAILABLE:
                raise
    return ids


def topic_config(topic: str, name: str, bootstrap: str) -> str:
    """Returns one setting of an existing topic."""
    return topic_configs([topic], bootstrap, unreadable=())[topic][name]


class RetentionPolicy(NamedTuple):
    """Which records of a topic the broker deletes.

    Attributes:
        timestamps_increase: whether timestamps increase with offsets (`LogAppendTime`).
        deletes_by_size: whether `retention.bytes` is set.
        deleted_before: epoch ms; records before it are deleted by age. None if none are.
    """

    timestamps_increase: bool
    deletes_by_size: bool
    deleted_before: int | None


def retention_of(topic: str, bootstrap: str) -> RetentionPolicy:
    """Returns the retention policy of an existing topic."""
    try:
        config = topic_configs([topic], bootstrap, unreadable=())[topic]
    except KafkaException as e:
        raise unreachable(bootstrap, e.args[0]) from e
    deletes, retention_ms = "delete" in config["cleanup.policy"], int(config["retention.ms"])
    return RetentionPolicy(
        config["message.timestamp.type"] == "LogAppendTime",
        deletes and int(config["retention.bytes"]) >= 0,
        int(time.time() * 1000) - retention_ms if deletes and retention_ms >= 0 else None,
    )


def topic_configs(
    topics: Iterable[str], bootstrap: str, *, unreadable: Collection[int] = UNREADABLE
) -> dict[str, dict[str, str]]:
    """Returns the settings of topics, without those whose error is `unreadable`: missing or forbidden ones."""
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in sorted(set(topics))]
    configs: dict[str, dict[str, str]] = {}
    if not resources:
        return configs
    for resource, future in admin(bootstrap).describe_configs(resources, request_timeout=REQUEST_TIMEOUT).items():
        try:
            entries = await_result(future, bootstrap, CONFIG_UNREADABLE.format(resource.name))
            configs[resource.name] = {name: entry.value for name, entry in entries.items()}
        except BrokerRefused as e:
            if e.code not in unreadable:
                raise
    return configs
