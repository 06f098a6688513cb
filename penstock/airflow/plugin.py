"""Registers in Airflow the operator page, the app that serves it and its entry in the navigation; and timetables."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from penstock.airflow.timetables import EachInterval, OnDemandIntervals

Message = MutableMapping[str, Any]


async def page(
    scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
) -> None:
    """The page's app, imported at its first request: plugins are loaded by every task process too, where FastAPI
    and Airflow's API would cost a second and 40 MB."""
    from penstock.airflow.page import app

    await app(scope, receive, send)


class PenstockPlugin(AirflowPlugin):
    name = "penstock"
    timetables: list[Any] = [EachInterval, OnDemandIntervals]  # noqa: RUF012
    fastapi_apps: list[Any] = [{"app": page, "url_prefix": "/penstock", "name": "Penstock"}]  # noqa: RUF012
    external_views: list[Any] = [  # noqa: RUF012
        {
            "name": "Penstock",
            "href": "penstock/",
            "destination": "nav",
            "url_route": "penstock",
            "nav_top_level": True,
        }
    ]
