"""What a user of the operator page may do, as Airflow's auth manager says, and where an action may come from.

There are three permissions. To operate and to release are those to trigger the DAGs that do the same, so that the page
gives nobody what Airflow's own UI and API refuse.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from urllib.parse import urlsplit

from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
from airflow.api_fastapi.core_api.security import requires_access_dag, requires_access_view
from airflow.configuration import conf
from fastapi import HTTPException, Request

from penstock.airflow.dag_ids import OPERATE_DAG, RELEASE_DAG
from penstock.web import json_body

log = logging.getLogger(__name__)

may_view = requires_access_view(AccessView.PLUGINS)
"""See states, metrics, names and declarations."""
may_operate = requires_access_dag("POST", DagAccessEntity.RUN, OPERATE_DAG)
"""Start and stop streams, send requests to captures, replay sinks; and see records, code and logs."""
may_release = requires_access_dag("POST", DagAccessEntity.RUN, RELEASE_DAG)
"""Let drivers run other code."""


def has_permission(permission: Callable[[Request, BaseUser], None], request: Request, user: BaseUser) -> bool:
    """Whether a user has a permission."""
    try:
        permission(request, user)
    except HTTPException as e:
        if e.status_code != 403:
            raise
        return False
    return True


def from_this_page(request: Request) -> None:
    """Refuse requests that a page of another site could send with the user's cookie."""
    if not json_body.is_json(request):
        raise HTTPException(415, "send application/json")
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site")
    own = {request.headers.get("host", ""), urlsplit(conf.get("api", "base_url", fallback="")).netloc} - {""}
    bearer = request.headers.get("authorization", "").lower().startswith("bearer ")
    foreign = origin is not None and origin.partition("://")[2] not in own
    # A browser sends at least one of both headers; a script that holds a token of its own needs neither.
    if site not in (None, "same-origin") or foreign or (origin is None and site is None and not bearer):
        log.warning("refused an action from a foreign origin: Origin %.200r, Sec-Fetch-Site %.40r", origin, site)
        raise HTTPException(403, "an action must come from this page: foreign or missing Origin")
