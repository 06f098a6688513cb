"""Every route of the operator page with the permission that it needs, and the DAGs that do the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any, Literal

import httpx
from starlette.routing import BaseRoute, Mount, Route

Permission = Literal["view", "operate", "release"]

PERMISSIONS: dict[tuple[str, str], Permission] = {
    ("GET", "/"): "view",
    # Not public, though the files hold no data: a login page of its own would be needed for nothing else.
    ("GET", "/static/{version}/{name:path}"): "view",
    ("GET", "/api/texts"): "view",
    ("GET", "/api/lags"): "view",
    ("GET", "/api/overview"): "view",
    ("GET", "/api/streams"): "view",
    ("GET", "/api/streams/{name}"): "view",
    ("GET", "/api/captures"): "view",
    ("GET", "/api/archives"): "view",
    ("GET", "/api/views"): "view",
    ("GET", "/api/activity"): "view",
    ("GET", "/api/dead-letters"): "view",
    ("GET", "/api/sinks"): "view",
    ("GET", "/api/backfills"): "view",
    ("GET", "/api/replacements"): "view",
    ("GET", "/api/history"): "view",
    ("GET", "/api/catalog"): "view",
    ("GET", "/api/releases"): "view",
    ("GET", "/api/changed"): "view",
    ("GET", "/api/panels/{name}"): "view",
    # Records, code and logs.
    ("GET", "/api/panels/{name}/cards"): "operate",
    ("GET", "/api/letters"): "operate",
    ("GET", "/api/dead-letters/reasons"): "operate",
    ("GET", "/api/records"): "operate",
    ("GET", "/api/streams/{name}/source"): "operate",
    ("GET", "/api/log"): "operate",
    ("GET", "/api/changes"): "operate",
    ("GET", "/api/explain"): "operate",
    ("GET", "/api/preview"): "operate",
    ("POST", "/api/actions"): "operate",
    ("GET", "/api/differences"): "operate",
    ("POST", "/api/releases"): "release",
    ("POST", "/api/replacements"): "release",
}
# Queries with which a permitted request is answered by the route itself.
QUERIES = {
    "/api/letters": {"stream": "bundles", "kind": "dead"},
    "/api/records": {"stream": "order-minutes"},
    "/api/log": {"app": "metrics"},
    "/api/releases": {"app": "metrics"},
    "/api/changes": {"app": "metrics", "before": "0"},
    "/api/differences": {"replacement": "nosuch"},
    "/api/explain": {"sink": "nosuch"},
    "/api/preview": {"stream": "nosuch"},
    "/api/panels/{name}/cards": {"key": "k"},
}
# Of a permitted request, which must not change what other tests find.
BODIES = {
    "/api/actions": {"verb": "stop", "kind": "stream", "name": "nosuch"},
    "/api/releases": {"app": "nosuch"},
    "/api/replacements": {"verb": "cut", "replacement": "nosuch"},
}
DAGS: dict[str, Permission] = {
    "operate_streams": "operate",
    "release_streams": "release",
    # It writes state with the code on the disk.
    "rebuild_streams": "release",
    # Its cut is a release.
    "replace_stream": "release",
}
FORMS = {"operate_streams": {"action": "stop"}, "release_streams": {"to": "1"}}
FOREIGN: list[dict[str, str]] = [
    {},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
]


def walk(routes: Iterable[BaseRoute], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The method and path of every route, those of mounted apps too. A mount without routes has the method MOUNT."""
    for route in routes:
        if isinstance(route, Route):
            yield from ((method, prefix + route.path) for method in sorted(route.methods or {"ANY"}))
        elif isinstance(route, Mount) and route.routes:
            yield from walk(route.routes, prefix + route.path)
        else:
            yield "MOUNT", prefix + getattr(route, "path", str(route))


def send(client: httpx.Client, method: str, path: str, **headers: str) -> httpx.Response:
    """A request to a route of the page, as the page itself sends it."""
    place = path.replace("{version}", "x").replace("{name:path}", "page.js").replace("{name}", "fleet")
    own = {"Origin": str(client.base_url).rstrip("/"), "Sec-Fetch-Site": "same-origin"}
    return client.request(
        method,
        f"/penstock{place}",
        params=QUERIES.get(path) if method == "GET" else None,
        json=BODIES[path] if method == "POST" else None,
        headers=headers or own,
        timeout=120,
    )


def check_page(url: str, users: Mapping[str, tuple[str, Set[Permission]]]) -> None:
    """Every route refuses whoever is not signed in or has too little permission, and nobody else.

    Args:
        url: Of the api-server.
        users: The token and the permissions of each user.
    """
    for (method, path), needed in PERMISSIONS.items():
        with httpx.Client(base_url=url) as nobody:
            assert send(nobody, method, path).status_code == 401, (method, path)
            nobody.cookies.set("_token", "forged")
            assert send(nobody, method, path).status_code in (401, 403), (method, path)
        for user, (token, permissions) in users.items():
            with httpx.Client(base_url=url, cookies={"_token": token}) as client:
                status = send(client, method, path).status_code
            case = f"{user}: {method} {path} is answered by {status}"
            assert (status == 403) is not ({"view", needed} <= permissions), case
            assert status != 401, case
            # Without a broker, what reads topics says that it does not answer.
            assert status < 500 or status == 503, case


def check_origins(url: str, token: str) -> None:
    """Every route that changes something refuses whoever may do it, but comes from the page of another site."""
    changing = [(method, path) for method, path in PERMISSIONS if method != "GET"]
    assert changing
    with httpx.Client(base_url=url, cookies={"_token": token}) as client:
        for method, path in changing:
            for headers in FOREIGN:
                answer = send(client, method, path, **({"Accept": "*/*"} | headers))
                assert answer.status_code == 403, (method, path, headers)
                assert "Origin" in answer.json()["detail"]
            own = {"Origin": url, "Content-Type": "text/plain"}
            assert send(client, method, path, **own).status_code == 415, (method, path)


def _first_choices(client: httpx.Client, dag: str) -> dict[str, str]:
    """The first name of each field of a form in which a person must choose one; none for who may not see the form."""
    fields: dict[str, Any] = client.get(f"/api/v2/dags/{dag}/details").json().get("params") or {}
    return {n: field["schema"]["enum"][0] for n, field in fields.items() if n in ("target", "stream")}


def check_dags(url: str, users: Mapping[str, tuple[str, Set[Permission]]]) -> None:
    """Airflow's API lets those trigger a DAG whom the page lets do the same; and the page tells each user so.

    Args:
        url: Of the api-server.
        users: The token and the permissions of each user.
    """
    for user, (token, permissions) in users.items():
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=60) as client:
            for dag, needed in DAGS.items():
                body = {"logical_date": None, "conf": FORMS.get(dag, {}) | _first_choices(client, dag)}
                answer = client.post(f"/api/v2/dags/{dag}/dagRuns", json=body)
                assert answer.status_code == (200 if needed in permissions else 403), (user, dag, answer.text)
                interval = {"from_date": "2026-01-01T00:00:00Z", "to_date": "2026-01-02T00:00:00Z"}
                backfill = client.post("/api/v2/backfills", json={"dag_id": dag, **interval})
                assert (backfill.status_code == 403) is (needed not in permissions), (user, dag)
            answer = client.get("/penstock/api/overview")
            if "view" in permissions:
                may = {f"may_{name}": name in permissions for name in ("operate", "release")}
                assert answer.json()["viewer"] == {"name": user, **may}
