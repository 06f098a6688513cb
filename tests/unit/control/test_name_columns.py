"""Names with a prefix or a suffix, and names of topics, fit into their columns: SQLite alone would take longer ones."""

from __future__ import annotations

from penstock.control import tables as s
from penstock.control.repositories.partitions import reconcile_events
from penstock.model.declaration import MAX_NAME_LENGTH
from penstock.model.topic import TOPIC_NAME
from penstock.model.view import ServedView, View, views_app

LONGEST, TOPIC, INSTANCE = "c" * MAX_NAME_LENGTH, "t" * 249, 64
OF_STREAMS = (s.stream, s.lease, s.progress, s.history, s.hourly_history, s.fault, s.partition_event)


def test_the_longest_names_fit() -> None:
    assert TOPIC_NAME.fullmatch(TOPIC)
    assert not TOPIC_NAME.fullmatch(f"{TOPIC}t")
    view = ServedView(View(LONGEST, "t", "n INT"), INSTANCE)
    names = {
        LONGEST: (*OF_STREAMS, s.app, s.replacement, s.data_loss, s.capture, s.backfill_run),
        view.name: OF_STREAMS,
        views_app(INSTANCE): (s.app, s.view_instance),
        reconcile_events(LONGEST): (s.partition_event,),
        TOPIC: (s.heartbeat, s.heartbeat_hold),
    }
    tables = {table for of_name in names.values() for table in of_name}
    assert tables == {table for table in s.metadata.sorted_tables if "name" in table.c}
    lengths = {table: getattr(table.c["name"].type, "length", 0) for table in tables}
    assert [table.name for name, of_name in names.items() for table in of_name if len(name) > lengths[table]] == []
