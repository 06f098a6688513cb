"""Topics as declared."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta

from penstock.errors import DeclarationError
from penstock.model.argument_types import check_kind

KEPT_FOR_EVER = 'beat_every=0 for none; to keep records for ever, config={"retention.ms": "-1"}'
TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}")


@dataclass(frozen=True)
class Topic:
    """A Kafka topic as declared.

    partitions: never lowered, raised by `penstock topics --apply`.
    compacted: cleanup.policy=compact with small segments, so that a restart does not read millions of dead records.
    retention: how long records of a topic that is not compacted are kept.
    beat_every: seconds between heartbeats while no window is due; 0 for none.
    widens: whether more partitions may be given to a topic that is there; its keys then change their partition.
    config: further broker settings, as Kafka names them.
    """

    name: str
    partitions: int = 4
    compacted: bool = False
    retention: timedelta = timedelta(days=7)
    beat_every: float = 60.0
    widens: bool = True
    config: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not TOPIC_NAME.fullmatch(str(self.name)) or self.name in (".", ".."):
            raise DeclarationError(
                "a topic's name has a character Kafka refuses",
                got=repr(self.name),
                hint="use letters, digits, '.', '_' and '-', 249 at most",
            )
        what = f"topic {self.name}"
        for name, kind in {"partitions": int, "compacted": bool, "widens": bool, "beat_every": float}.items():
            check_kind(what, name, getattr(self, name), kind)
        check_kind(what, "retention", self.retention, timedelta)
        check_kind(what, "config", self.config, Mapping)
        for word in (word for setting in self.config.items() for word in setting):
            check_kind(what, "config", word, str)
        if self.partitions < 1:
            raise DeclarationError(f"topic {self.name} needs a partition", got=self.partitions, hint="use 1 or more")
        if self.beat_every < 0 or self.retention < timedelta(0):
            got = f"beat_every={self.beat_every}, retention={self.retention!r}"
            raise DeclarationError(f"topic {self.name} has a length of time below zero", got=got, hint=KEPT_FOR_EVER)

    @property
    def dead_letters(self) -> str:
        """The topic that takes this topic's records which do not parse."""
        return f"{self.name}-dead-letter"

    @property
    def compacts(self) -> bool:
        """Whether the broker compacts it, and so refuses records without a key."""
        return "compact" in self.settings()["cleanup.policy"]

    def settings(self) -> dict[str, str]:
        """Broker settings of the topic, declared ones last."""
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


def check_topic(what: str, given: object) -> None:
    """DeclarationError if what is given for a topic is none."""
    if not isinstance(given, Topic):
        raise DeclarationError(f"{what} needs a Topic", got=repr(given), hint="Topic('name')")


def name_of(topic: Topic | str) -> str:
    """The name of a topic that is given by itself or by name."""
    return topic if isinstance(topic, str) else topic.name


def beside(name: str) -> Topic:
    """A topic of records that did not reach a transform."""
    return Topic(name, partitions=1, beat_every=0)


# A stream's mark and a capture's position must stay in their partition: never change the numbers.
COMMITS = Topic("penstock.commits", partitions=16, compacted=True, beat_every=0)
POSITIONS = Topic("penstock.captures", partitions=4, compacted=True, beat_every=0)
# What is put aside and has no dead-letter topic of its own: records of raw inputs and rows that no output takes. It is
# made when it is first needed.
ASIDE = beside("penstock.aside")
# What to do where topics are not there; the other holds where a sink reads one, which the project need not declare.
CREATE = "create them with `penstock topics --apply`"
CREATE_FOR_SINK = (
    "`penstock topics --apply` creates those that the project declares; any other, let its own writer create"
)
