"""The fleet on the operator page."""

from jobs.agents.views import AGENTS, ASSIGNED, LAST_ALERTS
from penstock.streams import Panel, PanelCard, PanelValue

CHECK_IN = PanelCard(
    "Last check-in",
    AGENTS,
    values=(
        PanelValue("State", "online", "status"),
        PanelValue("Since", "since", "time"),
        PanelValue("Checked in", "timestamp", "age"),
        PanelValue("Account", "account"),
        PanelValue("Platform", "platform"),
        PanelValue("Version", "version"),
        PanelValue("Labels", "labels"),
    ),
    empty="No agent of this name has checked in.",
)
ASSIGNMENT = PanelCard(
    "Assignment",
    ASSIGNED,
    values=(PanelValue("Based on the check-in of", "timestamp", "time"), PanelValue("State then", "online", "status")),
    elements="tests",
    columns=(
        PanelValue("Test", ("id", "name")),
        PanelValue("Kind", "kind"),
        PanelValue("Target", "target"),
        PanelValue("Every", "every_seconds", "seconds"),
    ),
    empty="No test is assigned to this agent.",
)
ACCOUNT_ALERTS = PanelCard(
    "Last alert of each rule",
    LAST_ALERTS,
    match="account",
    order="window_end",
    columns=(
        PanelValue("End of window", "window_end", "time"),
        PanelValue("Rule", "rule"),
        PanelValue("Condition", ("metric", "comparison", "threshold")),
        PanelValue("Average", "value"),
        PanelValue("Sessions", "count"),
    ),
    empty="No rule of this account has raised an alert.",
)
FLEET = Panel(
    "fleet",
    "Fleet",
    AGENTS,
    dimensions={"account": "Account", "platform": "Platform", "version": "Version"},
    singular="agent",
    plural="agents",
    status="online",
    status_names=("online", "offline"),
    since="since",
    cards=(CHECK_IN, ASSIGNMENT, ACCOUNT_ALERTS),
    empty="No agent has checked in yet. `python -m jobs.agents.simulator` sends check-ins.",
)
