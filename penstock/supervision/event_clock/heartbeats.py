"""Heartbeats: records that carry clock time, so that windows close if no other records arrive.

A heartbeat goes to every partition of a topic that a stream with final windows reads, when a window of one of its
readers is due (end plus grace), and at the topic's slow interval otherwise; an idle topic gets fewer, see `idle.py`. It
carries the sender's clock of that moment, never a later time, and is appended to the partition, so it overtakes no
earlier record. For a topic that streams write it carries no later time than they have passed, and is held while they
are behind: see `gating.py`. It is signed: see `codec/heartbeat.py`. A topic whose readers are all stopped gets no
heartbeats.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from penstock.catalog import HeartbeatTopics
from penstock.codec.heartbeat import HEARTBEAT_HEADER, HEARTBEAT_KEY, heartbeat_signer
from penstock.control import Control
from penstock.errors import BrokerError, ControlError
from penstock.kafka.admin import admin, log_end_offsets, partition_counts
from penstock.kafka.client import client_config
from penstock.model.output_mode import HeartbeatSchedule, millis
from penstock.model.topic import Topic
from penstock.settings import settings
from penstock.supervision.event_clock.gating import EventTimeBound, HeartbeatGate
from penstock.supervision.event_clock.idle import LOOK_EVERY, IdleTopics

log = logging.getLogger(__name__)

# Partitions may be added; asking at every beat would cost a request each.
METADATA_EVERY = 30.0
DELIVERY_TIMEOUT = 10.0
# No later than this, whatever is due: a changed clock is noticed.
LONGEST_WAIT = 30.0
# A held topic is looked at so often; streams that feed topics, so often that none is ill in between unseen.
HELD_EVERY, WATCH_EVERY = 1.0, 10.0
# A topic whose heartbeats do not arrive gets another one so often, and is logged so often.
FAILING_EVERY, FAILING_LOGGED_EVERY = 2.0, 600.0
# The bound of a topic that no reader waits for.
NO_HOLD = EventTimeBound(None)
# A heartbeat that is so late was not sent in time: a broker, this program or its host was down.
OVERDUE = 5.0


def next_beat(topic: Topic, readers: list[HeartbeatSchedule], after_ms: int) -> int:
    """Epoch ms of the first moment later than `after_ms` at which the topic needs a beat."""
    due = [reader.next(after_ms) for reader in readers]
    if topic.heartbeat_every:
        due.append(after_ms + int(topic.heartbeat_every * 1000))
    return min(due)


@dataclass
class SentHeartbeat:
    """The heartbeat of all partitions of a topic, and what the broker answered, by partition."""

    at: int
    partitions: int
    offsets: dict[int, int] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)

    @property
    def is_answered(self) -> bool:
        return len(self.offsets) + len(self.errors) >= self.partitions

    @property
    def fault(self) -> str:
        """Why it did not arrive in all partitions; empty if it did."""
        errors = {of: self.errors.get(of, "no answer") for of in range(self.partitions) if of not in self.offsets}
        return "; ".join(f"partition {of}: {why}" for of, why in errors.items())

    def delivered(self, error: KafkaError | None, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if partition is None:
            return
        if error:
            self.errors[partition] = error.str()
        elif offset is not None:
            self.offsets[partition] = offset


class HeartbeatSender:
    """Sends every topic's heartbeats when they are due. Not thread-safe; `close` when done.

    Args:
        windowed: What `Catalog.heartbeat_topics` returns.
        control: Records each heartbeat and says how far streams are; None if there is none, and nothing is held then.
        bootstrap: Brokers.
        clock: Epoch seconds.
    """

    def __init__(
        self, windowed: HeartbeatTopics, control: Control | None, bootstrap: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._windowed = windowed
        self._control = control
        self._bootstrap = bootstrap
        self._clock = clock
        self._sender = socket.gethostname()
        self._signer = heartbeat_signer()
        self._next: dict[str, int] = {}
        self._last: dict[str, int] = {}
        self._before: dict[str, int] | None = None
        self._turn_at = 0
        self._holds = HeartbeatGate(windowed, control, settings().progress_every)
        self._idle = IdleTopics(windowed, self._holds, lambda of: log_end_offsets(admin(bootstrap), of, bootstrap))
        self._noted: dict[str, EventTimeBound] = {}
        # Topics whose last heartbeat did not arrive, and why; when that was logged, by the monotonic clock.
        self._failing: dict[str, str] = {}
        self._logged_at: dict[str, float] = {}
        # Heartbeats of failing topics that were not waited for.
        self._probes: dict[str, SentHeartbeat] = {}
        self._partitions: dict[str, int] = {}
        self._partitions_at = float("-inf")
        self._producer = Producer(
            {
                **client_config(bootstrap, "penstock.heartbeat"),
                "enable.idempotence": True,
                # The heartbeats of all partitions in one request, so that a reader gets them in one batch.
                "linger.ms": 5,
                "delivery.timeout.ms": int(DELIVERY_TIMEOUT * 1000),
            }
        )

    @property
    def idle_topics(self) -> frozenset[str]:
        """The topics that get few heartbeats, as no reader waits for one: see `idle.py`."""
        return self._idle.topics

    @property
    def failing(self) -> Mapping[str, str]:
        """The topics whose last heartbeat did not arrive, and why."""
        return self._failing

    def seconds_to_next(self) -> float:
        """Seconds until a heartbeat is due, if no record ends that a topic is idle."""
        return min(self._next.values(), default=self._now() + int(LONGEST_WAIT * 1000)) / 1000 - self._clock()

    def run_once(self) -> float:
        """Send the heartbeats that are due; seconds until it is to be called again.

        Raises:
            BrokerError: No topic gets heartbeats. They are due again at once, with the time of then. While only some
                topics get none, they are `failing`.
        """
        now = self._now()
        if now < self._turn_at:
            self._set_back(now)
        self._turn_at = now
        self._end_probes(now)
        self._holds.look(self._overdue(now))
        for name in self._idle.look():
            log.debug("topic %s is %s", name, "idle" if name in self._idle.topics else "idle no more")
            self._next[name] = self._after(name, self._last[name])
        turn = [name for name in self._windowed if self._next.get(name, 0) <= now and name not in self._probes]
        bounds = {name: self._holds.bound(name, now) for name in turn if self._holds.running(name)}
        for name in (name for name in turn if name not in bounds):
            self._note_hold(name, NO_HOLD)
            self._failing.pop(name, None)
            self._next[name] = now + int(WATCH_EVERY * 1000)
        for name, bound in bounds.items():
            self._note_hold(name, bound)
            if bound.why:
                self._next[name] = now + int(HELD_EVERY * 1000)
        due = {name: bound for name, bound in bounds.items() if not bound.why or self._moves(name, bound.at)}
        upstream = self._idle.upstream(due.keys()) - due.keys() - self._probes.keys()
        due |= {name: bound for name in upstream if (bound := self._holds.bound(name, now)).at is not None}
        if due:
            self._send(due)
        self._log_failing()
        longest = WATCH_EVERY if self._holds.watches else LONGEST_WAIT
        # A record may come to an idle topic that would have got a heartbeat earlier.
        if any(self._prompt(name, self._last[name]) < self._next[name] for name in self._idle.topics):
            longest = LOOK_EVERY
        return max(0.0, min(self.seconds_to_next(), longest))

    def _set_back(self, now: int) -> None:
        """Go on from a clock that was set back: what was sent by the earlier time counts as sent now."""
        log.warning("the clock was set back by %.3f s", (self._turn_at - now) / 1000)
        self._last = {name: min(at, now) for name, at in self._last.items()}
        if self._before is not None:
            self._before = {name: min(at, now) for name, at in self._before.items()}
        self._next = {name: self._after(name, at) for name, at in self._last.items()}

    def _overdue(self, now: int) -> dict[str, int]:
        """Topics whose next heartbeat is overdue, with the age of the last one in ms."""
        if self._control is None:
            return {}
        if self._before is None:
            try:
                self._before = {name: min(row["at"], now) for name, row in self._control.heartbeats().items()}
                for name in self._control.heartbeat_holds().keys() - self._windowed.keys():
                    self._control.hold_heartbeats(name, None, "")
            except ControlError:
                return {}
        last = {name: at for name in self._windowed if (at := self._last_time(name))}
        return {name: now - at for name, at in last.items() if self._after(name, at) + OVERDUE * 1000 < now}

    def _last_time(self, name: str) -> int | None:
        """The time that the last beat of a topic carried."""
        return self._last.get(name) or (self._before or {}).get(name)

    def _moves(self, name: str, at: int | None) -> bool:
        """Whether a held beat would bring a topic's time to where a reader waits for it."""
        last = self._last_time(name)
        return at is not None and (last is None or at >= self._after(name, last))

    def _after(self, name: str, at: int) -> int:
        prompt = self._prompt(name, at)
        return max(prompt, at + millis(self._idle.every(name))) if name in self._idle.topics else prompt

    def _prompt(self, name: str, at: int) -> int:
        """When a topic needs a heartbeat after the one of `at`, unless it is idle."""
        of = self._windowed[name]
        return next_beat(of.topic, [reader.schedule for reader in self._holds.running(name) or of.readers], at)

    def _moved(self, previous: EventTimeBound, bound: EventTimeBound) -> bool:
        return bool(bound.why) and abs((bound.at or 0) - (previous.at or 0)) >= HELD_EVERY * 1000

    def _note_hold(self, name: str, bound: EventTimeBound) -> None:
        previous = self._noted.get(name)
        if self._control is None or (previous and previous.why == bound.why and not self._moved(previous, bound)):
            return
        try:
            self._control.hold_heartbeats(name, bound.at, bound.why)
        except ControlError:
            return  # `HeartbeatGate` says that the database is away
        if bound.why and (not previous or previous.why != bound.why):
            log.info("heartbeats of %s are held: %s", name, bound.why)
        self._noted[name] = bound

    def _send(self, due: dict[str, EventTimeBound]) -> None:
        self._refresh()
        sent = {name: self._produce(name, bound) for name, bound in due.items()}
        # The heartbeats of a topic that fails may take the whole timeout, and those of others would be late.
        probes = self._failing.keys() & sent.keys() if self._some_arrive() else frozenset[str]()
        awaited = {name: beat for name, beat in sent.items() if name not in probes}
        deadline = time.monotonic() + DELIVERY_TIMEOUT + 1
        self._producer.poll(0)
        while not all(beat.is_answered for beat in awaited.values()) and time.monotonic() < deadline:
            self._producer.poll(0.1)
        for name in probes:
            self._probes[name] = sent[name]
            self._next[name] = self._now() + int(FAILING_EVERY * 1000)
        faults = {name: beat.fault for name, beat in awaited.items() if beat.fault}
        if faults.keys() - self._failing.keys():
            self._partitions_at = float("-inf")
        self._failing |= faults
        for name, beat in awaited.items():
            if name not in faults:
                self._arrived(name, beat, due[name])
        if faults and not self._some_arrive():
            raise BrokerError("heartbeats did not arrive", got="; ".join(f"{n}: {why}" for n, why in faults.items()))

    def _produce(self, name: str, bound: EventTimeBound) -> SentHeartbeat:
        # How far the streams are was looked up before; the list of topics may have taken its time.
        at = bound.at if bound.at is not None and self._windowed[name].writers else self._now()
        beat = SentHeartbeat(at, self._partitions.get(name, 0))
        for partition in range(beat.partitions):
            try:
                self._producer.produce(
                    name,
                    key=HEARTBEAT_KEY,
                    value=self._signer.value(name, partition, at),
                    timestamp=at,
                    partition=partition,
                    headers=[(HEARTBEAT_HEADER, b"1")],
                    on_delivery=beat.delivered,
                )
            except (KafkaException, BufferError) as e:
                beat.errors[partition] = str(e)
        return beat

    def _arrived(self, name: str, beat: SentHeartbeat, bound: EventTimeBound) -> None:
        self._recovered(name)
        self._last[name] = beat.at
        self._holds.sent(name)
        self._idle.sent(name, beat.offsets)
        if not bound.why:
            self._next[name] = self._after(name, beat.at)
        self._note(name, beat.at, beat.partitions)

    def _some_arrive(self) -> bool:
        """Whether the last heartbeat of any topic arrived."""
        return bool(self._last.keys() - self._failing.keys())

    def _end_probes(self, now: int) -> None:
        """See which topics that fail take heartbeats again: the next one counts, as that of the probe is old."""
        self._producer.poll(0)
        for name, beat in list(self._probes.items()):
            if not beat.is_answered:
                self._next[name] = now + int(FAILING_EVERY * 1000)
                continue
            del self._probes[name]
            if beat.fault:
                self._failing[name] = beat.fault
            else:
                self._recovered(name)
                self._next[name] = now

    def _recovered(self, name: str) -> None:
        if self._failing.pop(name, None) and self._logged_at.pop(name, None):
            log.info("heartbeats of %s arrive again", name)

    def _log_failing(self) -> None:
        now = time.monotonic()
        for name, why in self._failing.items():
            if now - self._logged_at.get(name, float("-inf")) >= FAILING_LOGGED_EVERY:
                log.warning("heartbeats of %s do not arrive, those of other topics do: %s", name, why)
                self._logged_at[name] = now

    def _note(self, name: str, at: int, count: int) -> None:
        if self._control is None:
            return
        try:
            self._control.record_heartbeat(name, at, count, self._sender)
        except ControlError as e:
            # The beat itself is out; only its trace on the operator page is missing.
            log.warning("the heartbeat of %s was sent but not noted: %s", name, e)

    def _refresh(self) -> None:
        if time.monotonic() - self._partitions_at < METADATA_EVERY:
            return
        try:
            self._partitions = partition_counts(admin(self._bootstrap), self._bootstrap)
        except KafkaException as e:
            raise BrokerError("the broker's topics could not be listed", got=e.args[0]) from e
        self._partitions_at = time.monotonic()

    def _now(self) -> int:
        return int(self._clock() * 1000)

    def close(self) -> None:
        """Disconnect. `run_once` leaves nothing to send that is not due again."""
        self._producer.purge()
        self._producer.close()
