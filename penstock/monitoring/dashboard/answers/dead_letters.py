"""Streams that have dead letters or late records, and the topics that these are in."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from penstock.control import Control
from penstock.model.topic import Topic
from penstock.monitoring.dashboard import dead_letters
from penstock.monitoring.dashboard.answers.paging import search
from penstock.monitoring.dashboard.history import HOUR_MS
from penstock.monitoring.dashboard.model import StreamView
from penstock.monitoring.dashboard.page_data import PageData

# Topics that are read for all streams.
TOPICS = 100


def dead_letter_list(data: PageData, control: Control, q: str, page: int) -> dict[str, Any]:
    """A page of streams that have dead letters or late records, those with most dead letters first.

    Args:
        data: The present moment.
        control: The control database.
        q: A part of a name, app, state or reason.
        page: Counted from 1.
    """
    result = search(_with_letters(data), q, page, lambda s: (s.name, s.app, s.state, s.why))
    names = [stream.name for stream in result.rows]
    before = control.counts(data.now - HOUR_MS, names) if names else {}
    return {
        **vars(result.pages),
        "streams": [
            {
                "name": stream.name,
                "app": stream.app,
                "state": stream.state,
                "dead": stream.dead,
                "late": stream.late,
                # Of a stream that has not reported for an hour, none.
                **{
                    f"{count}_last_hour": max(0, getattr(stream, count) - before[stream.name][count])
                    if stream.name in before
                    else 0
                    for count in ("dead", "late")
                },
                "topics": topics_of(stream),
            }
            for stream in result.rows
        ],
    }


def topics_of(stream: StreamView) -> list[str]:
    """The topics that may have dead letters of a stream."""
    own = (stream.store or {}).get("dead_letter_topics", ())
    return dead_letters.topics("dead", stream.name, (topic.name for topic in stream.topics), own)


def letter_topics(data: PageData) -> list[str]:
    """The topics that may have dead letters of any stream, those of streams with most of them first."""
    return _first(topic for stream in _with_letters(data) if stream.dead for topic in topics_of(stream))


def all_letter_topics(data: PageData) -> set[str]:
    """The topics that may have dead letters of any stream, by what the streams report and by what is declared."""
    declared = {node["name"] for row in data.rows.values() for node in row["reads"] if node["kind"] == "topic"}
    reported = {topic for stream in data.streams.values() for topic in topics_of(stream)}
    return reported | {Topic(name).dead_letters for name in declared}


def _with_letters(data: PageData) -> list[StreamView]:
    streams = (stream for stream in data.streams.values() if stream.dead or stream.late)
    return sorted(streams, key=lambda stream: (-stream.dead, -stream.late, stream.name))


def _first(topics: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(topics))[:TOPICS]
