"""The operator that replaces a stream, and the trigger that waits for the cut."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from penstock.airflow.operators import request_of
from penstock.airflow.triggers import RETRY, trigger_event

if TYPE_CHECKING:
    from airflow.sdk import Context

    from penstock.control import Control


class ReplaceStream(BaseOperator):
    """Replaces the stream that the form of the run names, in the name of the user who triggered it, and waits without a
    worker until the new version writes.

    Params: stream; begin, rate, write, expect, cut, in_place, archive (see `replacement_options`); note.
    """

    ui_color = "#dcefd9"

    def execute(self, context: Context) -> None:
        from penstock.catalog import partial_catalog
        from penstock.control import Actor, connect
        from penstock.errors import ReleaseRefused
        from penstock.supervision.release import start_replacement
        from penstock.supervision.replacement_options import replacement_options

        params, run, control = context["params"], context["dag_run"], connect()
        stream = str(params["stream"])
        catalog, wrong = partial_catalog()
        control.sync(catalog, forget=not wrong)
        app = control.app_of(stream)
        if app is None:
            raise AirflowFailException(f"no such stream; got: {stream}; hint: see `penstock streams list`")
        begin = params["begin"] and datetime.fromisoformat(str(params["begin"]))
        if begin and begin.tzinfo is None:
            begin = begin.replace(tzinfo=UTC)
        actor = Actor(run.triggering_user_name or "unknown", "airflow")
        note = f"{params['note'] or ''} (run {run.run_id})".strip()
        try:
            options = replacement_options(
                begin=begin or None, rate=params["rate"], write=params["write"], expect=params["expect"] or "",
                cut=params["cut"], in_place=params["in_place"], archive=params["archive"],
            )  # fmt: skip
            # Another try of the run waits for the same replacement.
            request = _request(control, context)
            row = start_replacement(control, app, stream, actor, options, note, request=request)
        except ReleaseRefused as e:
            raise AirflowFailException(str(e)) from e
        assert row
        self.log.info("stream %s: its replacement is requested by %s", stream, actor.name)
        self.defer(trigger=ReplacementTrigger(row.id), method_name="resume")

    def resume(self, context: Context, event: dict[str, Any]) -> str:  # noqa: ARG002
        """End as the replacement has: the run fails if it was cancelled or has failed. A run that is marked leaves its
        replacement as it is: `penstock replacements cancel` ends it."""
        why = f": {event['why']}" if event["why"] else ""
        result = f"the replacement of {event['stream']} is {event['state']}{why}"
        if event["state"] in ("cancelled", "failed"):
            raise AirflowFailException(result)
        self.log.info("%s", result)
        return result


def _request(control: Control, context: Context) -> str:
    """The id of the run's request: of its replacement that is open, if the run was cleared meanwhile."""
    earlier = (request_of(context, cleared) for cleared in range(context["dag_run"].clear_number or 0))
    is_open = (one for one in earlier if (row := control.replacement(one)) and row.is_open)
    return next(is_open, request_of(context))


class ReplacementTrigger(BaseTrigger):
    """Fires when a replacement is not open any more: `{"stream": name, "state": ..., "why": text}`.

    Args:
        identity: The id of the replacement.
    """

    def __init__(self, identity: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.identity = identity

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "penstock.airflow.replacements.ReplacementTrigger", {"identity": self.identity}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        from penstock.control import connect
        from penstock.errors import ControlError

        control, printed = await asyncio.to_thread(connect), ""
        while True:
            try:
                row = await asyncio.to_thread(control.replacement, self.identity)
            except ControlError as e:
                text = f"the control database does not answer: {e}"
            else:
                if row is None:
                    yield trigger_event({"stream": "", "state": "failed", "why": "the control database has lost it"})
                    return
                if not row.is_open:
                    yield trigger_event({"stream": row.name, "state": row.state, "why": row.why})
                    return
                text = f"{row.name} is {row.state}" + (f": {row.why}" if row.why else "")
            if text != printed:
                self.log.info("replacement %s: %s", self.identity[:8], text)
                printed = text
            await asyncio.sleep(RETRY)
