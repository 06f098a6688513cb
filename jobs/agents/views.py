"""What is asked of the fleet by REST: agents by what they said last, and what each is to run."""

from jobs.agents import ACTIVE_AGENTS, AGENT, ASSIGNMENT, ASSIGNMENTS
from penstock.streams import View

AGENTS = View(
    "agents",
    ACTIVE_AGENTS,
    schema=AGENT,
    by=("account", "platform", "version", "online", "labels", "timestamp"),
)
ASSIGNED = View("assigned", ASSIGNMENTS, schema=ASSIGNMENT, by=("account", "online", "timestamp"))
