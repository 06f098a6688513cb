"""Views of active agents, assignments and alerts."""

from jobs.agents import ACTIVE_AGENTS, AGENT, ALERT, ALERTS, ASSIGNMENT, ASSIGNMENTS
from penstock.streams import View

AGENTS = View(
    "agents",
    ACTIVE_AGENTS,
    schema=AGENT,
    query_by=("account", "platform", "version", "online", "labels", "timestamp", "since"),
)
ASSIGNED = View("assigned", ASSIGNMENTS, schema=ASSIGNMENT, query_by=("account", "online", "timestamp"))
LAST_ALERTS = View("last-alerts", ALERTS, schema=ALERT, query_by=("account", "metric", "window_end"))
