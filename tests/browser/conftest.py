"""A real MariaDB, a real Airflow api-server with the plugin, and a real Chromium: once for all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, FrameLocator, Page, expect, sync_playwright

from penstock.control import Actor, Control
from penstock.devstack.servers.kafka import Broker
from penstock.devstack.servers.mariadb import MariaDB
from penstock.host.ports import free_port
from tests.browser.chromium import NoChromiumError, find
from tests.browser.instance import TOKEN
from tests.browser.scene import OFF, Scene
from tests.browser.server import PASSWORDS, Server, api_server

# As Airflow's UI embeds the page, without the rest of it, which takes longer to load than the page.
PLACE = "**/plugin/penstock"
EMBEDDED = """<!doctype html><html class="THEME"><body style="margin: 0">
<iframe title="Penstock" src="/penstock/" style="border: 0; width: 100vw; height: 100vh; display: block"></iframe>"""

# The page refreshes every 3 s and calls figures old after 10 s; a busy machine adds to both.
expect.set_options(timeout=30_000)


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDB]:
    """A MariaDB of this folder's own: a test takes it away."""
    with MariaDB(home=tmp_path_factory.mktemp("page-mariadb"), port=free_port()) as part:
        yield part


@pytest.fixture(scope="session")
def filled(database: MariaDB, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    scene = Scene(database.url, tmp_path_factory.mktemp("penstock") / "logs")
    scene.fill()
    yield scene
    scene.quiet()
    scene.control.engine.dispose()


@pytest.fixture(scope="session")
def influx_port() -> int:
    """Where the project's InfluxDB is to be found, if a test starts one."""
    return free_port(2)


@pytest.fixture(scope="session")
def server(
    filled: Scene, database: MariaDB, broker: Broker, influx_port: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    assert filled.live
    more = {
        "PENSTOCK_HOME": str(filled.logs.parent),
        "PENSTOCK_KAFKA_BOOTSTRAP": broker.bootstrap,
        "PENSTOCK_INFLUXDB_URL": f"http://127.0.0.1:{influx_port}",
        "PENSTOCK_VIEWS_TOKEN": TOKEN,
    }
    with api_server(tmp_path_factory.mktemp("airflow"), database.url, more) as found:
        yield found


@pytest.fixture
def scene(filled: Scene) -> Iterator[Scene]:
    """The scene with its live drivers reporting, and every stream wanted as at the beginning."""
    filled.start()
    yield filled
    filled.quiet()
    wanted = filled.control.desired()
    filled.control.set_desired([n for n, d in wanted.items() if d == "off" and n != OFF], "on", Actor("tests", "cli"))
    filled.control.set_desired([n for n, d in wanted.items() if d == "on" and n == OFF], "off", Actor("tests", "cli"))


@pytest.fixture
def control(filled: Scene) -> Control:
    return filled.control


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Gone with its module: Playwright keeps an event loop running, in which no later test could run one."""
    try:
        chromium = find()
    except NoChromiumError as e:
        pytest.skip(str(e))
    with sync_playwright() as playwright:
        made = playwright.chromium.launch(
            executable_path=str(chromium.path), args=chromium.args, env={**os.environ, **chromium.env}
        )
        yield made
        made.close()


@dataclass
class View:
    """The page as a signed-in person has it before them, inside another page."""

    page: Page
    frame: FrameLocator
    troubles: list[str] = field(default_factory=list)
    """Console errors and page errors since the page was opened"""
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def visit(browser: Browser, server: Server, scene: Scene) -> Iterator[Callable[..., View]]:
    """Open a view of the page as Airflow's UI embeds it.

    at: the address of the view. ui: within Airflow's UI itself. form: the same, by the sign-in form and the
    navigation, as a person does, which leads to the overview.
    """
    assert scene.live
    contexts: list[BrowserContext] = []

    def go(
        user: str = "olga",
        *,
        at: str = "streams",
        theme: str = "light",
        width: int = 1280,
        height: int = 1000,
        before: Callable[[Page], None] = lambda _: None,
        ui: bool = False,
        form: bool = False,
    ) -> View:
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if theme == "dark" else "light"
        )
        contexts.append(context)
        context.set_default_timeout(30_000)
        page = context.new_page()
        before(page)
        if not (ui or form):
            body = EMBEDDED.replace("THEME", theme)
            page.route(PLACE, lambda route: route.fulfill(body=body, content_type="text/html"))
        view = View(page, page.frame_locator("iframe[title=Penstock]"))
        page.on("request", lambda r: view.requests.append(r.url))
        if form:
            page.goto(server.url)
            page.fill("input[name=username]", user)
            page.fill("input[name=password]", PASSWORDS[user])
            page.click("button[type=submit]")
            link = page.get_by_role("link", name="Penstock")
            link.wait_for()
        else:
            context.add_cookies([{"name": "_token", "value": server.token(user), "url": server.url}])
        # Airflow asks for the user before there is one: what it logs until here is its own.
        page.on("console", lambda m: view.troubles.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda e: view.troubles.append(str(e)))
        if form:
            link.click()
        else:
            page.goto(f"{server.url}{PLACE.removeprefix('**')}#/{at}")
        view.frame.locator("main:not([aria-busy])").wait_for()
        return view

    yield go
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where screenshots go: PENSTOCK_SCREENSHOTS, else a temporary folder."""
    place = Path(os.environ.get("PENSTOCK_SCREENSHOTS") or tmp_path_factory.mktemp("screenshots"))
    place.mkdir(parents=True, exist_ok=True)
    return place


@pytest.fixture
def olga(server: Server, scene: Scene) -> Iterator[httpx.Client]:
    """Requests with Olga's cookie."""
    assert scene.live
    with httpx.Client(base_url=server.url, cookies={"_token": server.token("olga")}) as client:
        yield client


@pytest.fixture
def vera(server: Server, scene: Scene) -> Iterator[httpx.Client]:  # noqa: ARG001
    with httpx.Client(base_url=server.url, cookies={"_token": server.token("vera")}) as client:
        yield client
