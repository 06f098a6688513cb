"""Links the runs of streams to the Airflow task that launches their driver, in OpenLineage's events."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from penstock.lineage.stream_lineage import PARENT, ROOT_PARENT
from penstock.settings import settings

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)


def pass_parent_run(context: Context) -> None:
    """Put this task's run into the environment, which a driver gets from the process that launches it.

    Without Airflow's OpenLineage provider the task has no run, and the streams' runs have no parent.
    """
    if not settings().lineage:
        return
    try:
        from airflow.providers.openlineage.plugins.macros import lineage_parent_id, lineage_root_parent_id

        ti = context["ti"]
        os.environ.update({PARENT: lineage_parent_id(ti), ROOT_PARENT: lineage_root_parent_id(ti)})
    except Exception as e:
        # The driver is launched all the same.
        log.warning("the runs of streams are not linked to this task in lineage: %s: %s", type(e).__name__, e)
