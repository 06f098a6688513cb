"""The routes of the operator page, each with a permission; tests/browser/test_page_access.py asks a server for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.page_access import PERMISSIONS, walk


# Airflow's API imports the client of starlette's tests.
@pytest.mark.filterwarnings("ignore:Using `httpx` with `starlette.testclient`")
@pytest.mark.usefixtures("airflow_home")
def test_every_route_has_a_permission() -> None:
    from penstock.airflow.page import app
    from penstock.airflow.plugin import PenstockPlugin

    assert sorted(walk(app.routes)) == sorted(PERMISSIONS)
    assert [served["url_prefix"] for served in PenstockPlugin.fastapi_apps] == ["/penstock"]
    others = ("fastapi_root_middlewares", "flask_blueprints", "appbuilder_views", "appbuilder_menu_items", "react_apps")
    assert not any(getattr(PenstockPlugin, name) for name in others), "they would be served too"


@pytest.mark.usefixtures("airflow_home")
def test_the_walk_finds_mounted_apps_and_files(tmp_path: Path) -> None:
    from fastapi import FastAPI
    from fastapi.staticfiles import StaticFiles
    from starlette.routing import Mount

    inner, outer = FastAPI(openapi_url=None), FastAPI(openapi_url=None)
    inner.get("/more")(lambda: "")
    inner.mount("/files", StaticFiles(directory=tmp_path))
    outer.mount("/inner", inner)
    outer.router.routes.append(Mount("/other", app=inner.router))
    found = [("GET", "/inner/more"), ("MOUNT", "/inner/files"), ("GET", "/other/more"), ("MOUNT", "/other/files")]
    assert sorted(walk(outer.routes)) == sorted(found)
