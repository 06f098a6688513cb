"""Topics as declared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from penstock.errors import DeclarationError
from penstock.model.argument_types import check_kind
from penstock.model.registry_schema import RegistrySchema
from penstock.model.types import Field, check_field_names

FOREVER = 'heartbeat_every=0 for none; to keep records for ever, config={"retention.ms": "-1"}'
# What reads a topic and says no schema has that of the topic.
OF_TOPIC = "that of the topic"
TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True)
class Topic:
    """A Kafka topic as declared.

    Attributes:
        name: as Kafka has it.
        partitions: never lowered; `penstock topics --apply` raises them.
        compacted: `cleanup.policy=compact` with small segments, so that a restart does not read millions of dead
            records.
        retention: how long records of a topic that is not compacted are kept.
        heartbeat_every: seconds between heartbeats while no window is due; 0 for none.
        may_add_partitions: whether an existing topic may get more partitions; its keys then change their partition.
        config: further broker settings, by Kafka's names.
        schema: how its values are read by inputs and tables that say nothing else, and written by outputs: Spark DDL of
            a JSON object; or `Avro`, `JsonSchema` or `Protobuf`, whose versions a schema registry keeps. Empty: as each
            of them says.
    """

    name: str
    partitions: int = 4
    compacted: bool = False
    retention: timedelta = timedelta(days=7)
    heartbeat_every: float = 60.0
    may_add_partitions: bool = True
    config: Mapping[str, str] = field(default_factory=dict)
    schema: str | RegistrySchema = ""

    def __post_init__(self) -> None:
        if not TOPIC_NAME.fullmatch(str(self.name)) or self.name in (".", ".."):
            raise DeclarationError(
                "Kafka refuses the name of a topic",
                got=repr(self.name),
                hint="use letters, digits, '.', '_' and '-', 249 at most",
            )
        what = f"topic {self.name}"
        kinds = {"partitions": int, "compacted": bool, "may_add_partitions": bool, "heartbeat_every": float}
        for name, kind in kinds.items():
            check_kind(what, name, getattr(self, name), kind)
        check_kind(what, "retention", self.retention, timedelta)
        check_kind(what, "config", self.config, Mapping)
        for word in (word for setting in self.config.items() for word in setting):
            check_kind(what, "config", word, str)
        check_kind(what, "schema", self.schema, str, RegistrySchema)
        if isinstance(self.schema, str) and self.schema:
            # A SQL parser is more than most projects need to load.
            from penstock.model.schema import schema

            schema(self.schema, what)
        if self.partitions < 1:
            raise DeclarationError(f"topic {self.name} needs a partition", got=self.partitions, hint="use 1 or more")
        if self.heartbeat_every < 0 or self.retention < timedelta(0):
            got = f"heartbeat_every={self.heartbeat_every}, retention={self.retention!r}"
            raise DeclarationError(f"topic {self.name} has a negative duration", got=got, hint=FOREVER)

    @property
    def registry_schema(self) -> RegistrySchema | None:
        """The schema of its values, if a schema registry keeps it."""
        return self.schema if isinstance(self.schema, RegistrySchema) else None

    @property
    def ddl(self) -> str:
        """The fields of its values as Spark DDL; empty if it declares no schema."""
        return self.schema.ddl if isinstance(self.schema, RegistrySchema) else self.schema

    @property
    def dead_letters(self) -> str:
        """The topic of this topic's records that cannot be decoded."""
        return f"{self.name}-dead-letter"

    @property
    def compacts(self) -> bool:
        """Whether the broker compacts it, and so refuses records without a key."""
        return "compact" in self.settings()["cleanup.policy"]

    def settings(self) -> dict[str, str]:
        """Broker settings of the topic; `config` wins."""
        if self.compacted:
            # Only closed segments are compacted: a small segment bounds what a restart reads over.
            base = {
                "cleanup.policy": "compact",
                "segment.bytes": str(16 * 1024 * 1024),
                "segment.ms": str(10 * 60 * 1000),
                "min.cleanable.dirty.ratio": "0.1",
                "max.compaction.lag.ms": str(60 * 60 * 1000),
            }
        else:
            base = {
                "cleanup.policy": "delete",
                "retention.ms": str(int(self.retention.total_seconds() * 1000)),
            }
        return {**base, **self.config}


def check_topic(what: str, topic: object) -> None:
    """Raises DeclarationError if an argument is no Topic."""
    if not isinstance(topic, Topic):
        raise DeclarationError(f"{what} needs a Topic", got=repr(topic), hint="Topic('name')")


def reader_schema(what: str, topic: Topic | None, said: str) -> str:
    """The schema of what reads a topic: its own, or that of the topic.

    Args:
        what: Names the reader in errors.
        topic: The topic; None for a pattern.
        said: Spark DDL; empty for raw records, OF_TOPIC for the topic's.

    Raises:
        DeclarationError: Both declare one.
    """
    declared = topic.ddl if topic else ""
    if said == OF_TOPIC:
        return declared
    if said and declared and said != declared:
        raise DeclarationError(
            f"{what} and its topic both declare a schema", got=said, hint="leave it out: the topic's is taken"
        )
    return said


def reader_fields(what: str, schema: str | RegistrySchema, *, of_json: bool = True) -> tuple[Field, ...]:
    """The fields that a reader of a topic gets.

    Args:
        what: Names the reader in errors.
        schema: Spark DDL of a JSON object, or the schema of the topic; empty for raw records, which have none.
        of_json: Whether the DDL has only types that are read from JSON.

    Raises:
        DeclarationError: It is no schema, or has a field of a name that the engine takes.
    """
    if isinstance(schema, RegistrySchema):
        check_field_names(schema.fields, what)
        return schema.fields
    if not schema:
        return ()
    # A SQL parser is more than most projects need to load.
    from penstock.model.schema import schema as fields_of

    return fields_of(schema, what, of_json=of_json)


def topic_name(topic: Topic | str) -> str:
    """The name of a topic that is given by itself or by name."""
    return topic if isinstance(topic, str) else topic.name


def side_topic(name: str) -> Topic:
    """A topic of dead letters or late records."""
    return Topic(name, partitions=1, heartbeat_every=0)


# Commit markers of streams and positions of captures must stay in their partition: never change the numbers.
COMMITS = Topic("penstock.commits", partitions=16, compacted=True, heartbeat_every=0)
POSITIONS = Topic("penstock.captures", partitions=4, compacted=True, heartbeat_every=0)
# Dead letters that have no topic of their own: records of raw inputs and rows that no output accepts. Created when it
# is first needed.
DEAD_LETTERS = side_topic("penstock.dead-letters")
# Hints where topics are missing. The second is for a sink: the project need not declare the topics that it reads.
CREATE = "create them with `penstock topics --apply`"
CREATE_FOR_SINK = (
    "`penstock topics --apply` creates those that the project declares; any other, let its own writer create"
)
