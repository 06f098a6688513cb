"""Agents as the operator page asks for them; the tests serve what the fleet's own app declares under these names."""

from penstock.streams import Topic, View

VIEWS = [
    View(name, Topic(topic, compacted=True), schema="account STRING", query_by="account")
    for name, topic in {"agents": "active-agents", "assigned": "assignments", "last-alerts": "alerts"}.items()
]
