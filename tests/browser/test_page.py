"""The operator page as a person uses it, in a real Chromium against a real Airflow api-server."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Locator, expect
from sqlalchemy import update

from penstock.control import Control, tables
from penstock.control.repositories.data_loss import DataLoss
from penstock.devstack.servers.mariadb import MariaDB
from tests.browser.conftest import View
from tests.browser.scene import APPS, Scene
from tests.browser.server import Server
from tests.support.wait import wait_until

pytestmark = pytest.mark.browser
Visit = Callable[..., View]


def row(view: View, stream: str) -> Locator:
    return view.frame.locator("tr.stream").filter(has=view.frame.get_by_role("link", name=stream, exact=True))


def to(view: View, title: str) -> None:
    """Follow a link of the navigation."""
    view.frame.get_by_role("navigation").get_by_role("link", name=re.compile(f"^{title}")).click()
    expect(view.frame.locator("h2#title")).to_have_text(title)


def dialog(view: View) -> Locator:
    return view.frame.get_by_role("dialog")


def test_the_navigation_leads_to_all_streams_with_state_and_metrics(visit: Visit, server: Server) -> None:
    view = visit(form=True)
    expect(view.frame.locator("#totals")).to_contain_text("7 of 11")
    expect(view.frame.locator("#apps tr", has_text="presence")).to_contain_text("has not reported")
    expect(view.frame.locator("#beats")).to_contain_text("probe-requests")
    expect(view.frame.locator("#beats tr", has_text="browser-sessions")).to_contain_text("held at")
    expect(view.frame.locator("#beats tr", has_text="browser-sessions")).to_contain_text("sessions is down")
    to(view, "Activity")
    expect(view.frame.locator("#actions")).to_contain_text("alert rules are being moved")
    to(view, "Streams")
    # Airflow's navigation has another address of the page than its own documentation.
    assert re.fullmatch("/plugin/penstock(/penstock/)?#/streams", view.page.url.removeprefix(server.url))
    expect(view.frame.locator("tr.stream")).to_have_count(sum(map(len, APPS.values())))
    for stream, state in {
        "topic-quality": "running", "assignments": "idle", "summaries": "failing", "walk-ins": "hung",
        "session-alerts": "stopped",
    }.items():  # fmt: skip
        expect(row(view, stream).locator(".pill")).to_have_text(state)
    quality = row(view, "topic-quality")
    for figure in ("31.4k", "12.6k", "11 s", "took 380 ms", "30.2 MB", "desired on"):
        expect(quality).to_contain_text(figure)
    expect(row(view, "summaries")).to_contain_text("Job aborted due to stage failure")
    expect(view.frame.locator("tr.app", has_text="presence")).to_contain_text("has not reported")
    expect(quality.locator("canvas")).to_have_count(2)
    view.page.wait_for_timeout(7_000)  # two refreshes
    assert view.troubles == []
    outside = [url for url in view.requests if not url.startswith((f"{server.url}/", "data:", "blob:"))]
    assert outside == []


def test_faults_are_listed_with_their_time_and_what_to_do(visit: Visit) -> None:
    view = visit(at="")
    rows = view.frame.locator("#faults tbody tr")
    failing = rows.filter(has_text="summaries")
    expect(failing.locator(".pill")).to_have_text("failing")
    expect(failing).to_contain_text("2h 0")
    expect(failing).to_contain_text("Job aborted due to stage failure")
    expect(failing).to_contain_text("read last error")
    expect(rows.filter(has_text="presence").locator(".pill")).to_have_text("hung")
    expect(rows.filter(has_text="order-replay")).to_contain_text("run it again")
    past = view.frame.locator("#past-faults")
    past.locator("summary").click()
    expect(past.locator("tbody tr")).to_contain_text("20m 00s")
    assert view.troubles == []


def test_a_fault_is_mended_where_it_is_shown(visit: Visit, scene: Scene, control: Control) -> None:
    [bundles] = [one for one in scene.rows if one.name == "bundles"]
    control.report_data_loss("bundles", [DataLoss("bundles-in", "cut", 0, 5, 9, 4)])
    bundles.state, bundles.error = "blocked", "records are gone"
    try:
        view = visit(at="")
        fault = view.frame.locator("#faults tr").filter(has=view.frame.get_by_role("rowheader", name="bundles"))
        expect(fault).to_contain_text("records are gone")
        view.frame.get_by_role("button", name="Let bundles go on").click()
        expect(dialog(view)).to_contain_text("Not read: 4 records")
        dialog(view).get_by_role("button", name="Go on").click()
        expect(view.frame.locator("#toast")).to_have_text("bundles goes on within half a minute.")
        assert control.data_losses("bundles")[0].accepted_by == "olga"
        hung = view.frame.locator("#faults tr").filter(has=view.frame.get_by_role("rowheader", name="presence"))
        expect(hung.get_by_role("link", name="The DAG that supervises presence, in Airflow")).to_be_visible()
        assert view.troubles == []
    finally:
        bundles.state, bundles.error = "running", None
        control.report_data_loss("bundles", [])


def test_a_stream_has_charts_topics_and_its_last_error(visit: Visit) -> None:
    view = visit()
    row(view, "summaries").get_by_role("link").focus()
    view.page.keyboard.press("Enter")
    heading = view.frame.locator("h2#title")
    expect(heading).to_have_text("summaries")
    expect(heading).to_be_focused()
    assert view.page.url.endswith("/plugin/penstock#/streams/summaries")
    detail = view.frame.locator(".detail")
    expect(detail.locator("canvas")).to_have_count(8)
    expect(detail.get_by_role("img", name=re.compile("Lag, records over the last hour: now [0-9]"))).to_be_visible()
    detail.get_by_role("button", name="The last 24 hours").click()
    expect(detail.get_by_role("img", name=re.compile("Lag, records over the last 24 hours: now [0-9]"))).to_be_visible()
    expect(detail.get_by_role("button", name="The last 24 hours")).to_have_attribute("aria-pressed", "true")
    expect(detail.get_by_text(re.compile("[0-9]+ actions? on summaries and its app"))).to_be_visible()
    expect(detail.locator(".topics")).to_contain_text("summaries-in")
    expect(detail.get_by_label("Last error")).to_contain_text("InternalKafkaConsumer.fetch")
    view.page.wait_for_timeout(3_500)  # a refresh leaves it as it is
    expect(detail.locator("canvas")).to_have_count(8)
    expect(detail.get_by_role("button", name="The last 24 hours")).to_have_attribute("aria-pressed", "true")
    view.page.go_back()
    expect(heading).to_have_text("Streams")
    expect(row(view, "summaries")).to_be_visible()
    assert view.troubles == []


def test_streams_are_found_by_name_app_and_state(visit: Visit) -> None:
    view = visit()
    rows = view.frame.locator("tr.stream")
    view.frame.get_by_role("searchbox").fill("METRICS")
    expect(rows).to_have_count(len(APPS["metrics"]))
    expect(view.frame.get_by_role("status").filter(has_text=" of ")).to_have_text(f"{len(APPS['metrics'])} of 12")
    view.frame.get_by_role("combobox", name="All states").select_option("failing")
    expect(rows).to_have_count(1)
    view.page.wait_for_url("**/plugin/penstock#/streams?q=METRICS&state=failing")
    view.page.reload()
    expect(rows).to_have_count(1)
    expect(view.frame.get_by_role("searchbox")).to_have_value("METRICS")
    view.frame.get_by_role("searchbox").fill("nothing of this name")
    expect(view.frame.locator("#streams")).to_have_text("No stream matches.")
    assert view.troubles == []


def test_an_address_that_does_not_exist_says_so(visit: Visit) -> None:
    view = visit(at="streams/summaries")
    view.frame.locator("html").evaluate("() => location.hash = '#/streams/summarise'")
    expect(view.frame.locator("#banner")).to_contain_text("there is no such stream")
    for nowhere in ("nowhere", "constructor"):
        view.frame.locator("html").evaluate(f"() => location.hash = '#/{nowhere}'")
        expect(view.frame.locator("h2#title")).to_have_text("Overview")
        expect(view.frame.locator("#banner")).to_contain_text("App presence is hung")
        expect(view.frame.locator("#toast")).to_have_text(f"There is no view {nowhere}: this is the overview.")


def test_a_confirmed_stop_is_recorded_with_who_and_why(visit: Visit, control: Control) -> None:
    view = visit()
    view.frame.get_by_role("button", name="Stop topic-quality").click()
    expect(dialog(view)).to_contain_text("Stop topic-quality?")
    expect(dialog(view).get_by_label("Note")).to_be_focused()
    dialog(view).get_by_label("Note").fill("rules are being changed")
    dialog(view).get_by_role("button", name="Stop").click()
    expect(dialog(view)).to_have_count(0)
    expect(view.frame.locator("#toast")).to_have_text("Stop of topic-quality is recorded.")
    expect(row(view, "topic-quality")).to_contain_text("desired off")
    expect(row(view, "topic-quality").locator(".pill")).to_have_text("draining")
    assert control.desired("quality") == {"topic-quality": "off"}
    last = control.actions(1)[0]
    assert [last[k] for k in ("actor", "source", "verb", "target", "detail")] == [
        "olga", "page", "stop", "topic-quality", "rules are being changed",
    ]  # fmt: skip
    view.frame.get_by_role("button", name="Start topic-quality").click()
    dialog(view).get_by_role("button", name="Start").click()
    expect(row(view, "topic-quality").locator(".pill")).to_have_text("running")
    assert control.desired("quality") == {"topic-quality": "on"}


@pytest.mark.parametrize("way", ["Close", "Escape"])
def test_without_confirmation_nothing_happens(visit: Visit, control: Control, way: str) -> None:
    view = visit()
    before = control.actions(1)[0]["id"]
    button = view.frame.get_by_role("button", name="Stop bundles")
    button.click()
    if way == "Close":
        dialog(view).get_by_role("button", name="Close").click()
    else:
        view.page.keyboard.press("Escape")
    expect(dialog(view)).to_have_count(0)
    expect(button).to_be_focused()
    assert control.desired("metrics")["bundles"] == "on"
    assert control.actions(1)[0]["id"] == before


AGENTS = """
from penstock.streams import Stateless, Input, Stream, Topic, TopicOutput
STREAMS = [
    Stream(name, "agents", {"rows": Input(Topic(f"{name}-in"))}, lambda rows: rows,
           TopicOutput(Topic(f"{name}-out"), value="value"), Stateless())
    for name in ("agent-offline", "assignments")
]
"""


@pytest.fixture
def agents(server: Server, control: Control) -> Iterator[None]:
    """The code of app `agents`, so that it can be released; nobody here launches what then follows."""
    folder = server.project / "jobs" / "fleet"
    folder.mkdir()
    (folder / "streams.py").write_text(AGENTS)
    yield
    shutil.rmtree(folder)
    with control.engine.begin() as c:
        c.execute(update(tables.app).where(tables.app.c.name == "agents").values(release_seq=0))


@pytest.mark.long
@pytest.mark.usefixtures("agents")
def test_an_app_is_released_and_stopped_as_a_whole(visit: Visit, control: Control) -> None:
    view = visit(ui=True)
    view.frame.get_by_role("button", name="Release agents").click()
    expect(dialog(view)).to_contain_text("agent-offline, assignments")
    dialog(view).get_by_role("button", name="Release").click()
    expect(view.frame.locator("tr.app", has_text="agents")).to_contain_text(
        "release 1 starts when release 0", timeout=240_000
    )
    view.frame.get_by_role("button", name="Stop all of agents").click()
    view.page.keyboard.press("Enter")
    expect(row(view, "assignments")).to_contain_text("desired off")
    assert set(control.desired("agents").values()) == {"off"}
    verbs = [(a["verb"], a["target"], a["actor"]) for a in control.actions(3)]
    assert ("release", "agents", "olga") in verbs
    assert ("stop", "assignments", "olga") in verbs


def test_a_viewer_sees_but_cannot_act(visit: Visit) -> None:
    view = visit("vera")
    expect(view.frame.locator("#viewer")).to_have_text("vera · view only")
    expect(row(view, "topic-quality")).to_contain_text("31.4k")
    buttons = view.frame.get_by_role("button", name=re.compile("^(Start|Stop|Release) "))
    assert buttons.count() > 10
    for button in buttons.all():
        expect(button).to_be_disabled()
        dag = "release_streams" if (button.text_content() or "").startswith("Release") else "operate_streams"
        expect(button).to_have_attribute("title", f"Needs the permission to trigger the DAG {dag}")


def test_an_operator_without_releases_starts_and_stops(visit: Visit, control: Control) -> None:
    view = visit("otto")
    expect(view.frame.locator("#viewer")).to_have_text("otto · no releases")
    reason = "Needs the permission to trigger the DAG release_streams"
    for release in view.frame.get_by_role("button", name=re.compile("^Release ")).all():
        expect(release).to_be_disabled()
        expect(release).to_have_attribute("title", reason)
    view.frame.get_by_role("button", name="Stop bundles").click()
    dialog(view).get_by_role("button", name="Stop").click()
    expect(row(view, "bundles")).to_contain_text("desired off")
    assert control.desired("metrics")["bundles"] == "off"
    assert control.actions(1)[0]["actor"] == "otto"
    assert view.troubles == []


def test_a_failed_action_shows_its_error_and_can_be_repeated(visit: Visit, control: Control) -> None:
    view = visit()
    view.frame.get_by_role("button", name="Stop bundles").click()
    view.page.context.set_offline(True)
    dialog(view).get_by_role("button", name="Stop").click()
    expect(dialog(view).get_by_role("alert")).to_contain_text("Not done: Airflow's API server does not answer.")
    assert control.desired("metrics")["bundles"] == "on"
    view.page.context.set_offline(False)
    dialog(view).get_by_role("button", name="Stop").click()
    expect(dialog(view)).to_have_count(0)
    wait_until(lambda: control.desired("metrics")["bundles"] == "off")


def test_old_metrics_are_marked_as_old(visit: Visit, scene: Scene, screenshots: Path) -> None:
    view = visit()
    banner = view.frame.locator("#banner")
    expect(banner).to_contain_text("App presence is hung")
    scene.quiet()
    expect(banner).to_contain_text("These metrics are old")
    expect(banner).to_contain_text(re.compile("No stream with desired state on has reported for [0-9]+ s"))
    expect(row(view, "topic-quality").locator(".pill")).to_have_text("unknown")
    view.page.screenshot(path=screenshots / "old.png")
    to(view, "Overview")
    expect(view.frame.locator(".tile", has_text="Rows/s")).not_to_contain_text("46.0k")
    scene.start()
    expect(banner).to_contain_text("App presence is hung")


def test_without_the_database_the_last_metrics_are_grey_with_their_age(
    visit: Visit, scene: Scene, database: MariaDB, screenshots: Path
) -> None:
    view = visit(theme="dark")
    expect(row(view, "topic-quality")).to_contain_text("31.4k")
    scene.quiet()
    database.stop()
    try:
        banner = view.frame.locator("#banner")
        expect(banner).to_contain_text("The control database does not answer")
        expect(banner).to_contain_text("Streams continue")
        expect(view.frame.locator("main")).to_have_attribute("data-old", "")
        expect(view.frame.locator("#as-of")).to_have_text(re.compile("as of .*, [0-9]+ s ago"))
        expect(row(view, "topic-quality")).to_contain_text("31.4k")
        view.page.screenshot(path=screenshots / "away.png")
    finally:
        database.start()
        database.wait()
    scene.start()
    expect(banner).to_contain_text("App presence is hung")
    expect(view.frame.locator("main")).not_to_have_attribute("data-old", "")


def test_an_absent_api_server_is_reported(visit: Visit) -> None:
    view = visit()
    view.page.context.set_offline(True)
    expect(view.frame.locator("#banner")).to_contain_text("Airflow's API server does not answer")
    view.page.context.set_offline(False)
    expect(view.frame.locator("#banner")).to_contain_text("App presence is hung")


def test_a_lost_session_is_reported(visit: Visit) -> None:
    view = visit(ui=True)
    view.page.context.clear_cookies()
    expect(view.frame.locator("#banner")).to_contain_text("You are signed out")


def test_a_hidden_tab_sends_no_requests(visit: Visit) -> None:
    view = visit()
    hide = "hidden => { Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });"
    hide += " document.dispatchEvent(new Event('visibilitychange')); }"
    root = view.frame.locator("html")
    root.evaluate(f"(_, hidden) => ({hide})(hidden)", True)
    view.page.wait_for_timeout(1_000)  # what was under way
    before = sum("/penstock/api/" in url for url in view.requests)
    view.page.wait_for_timeout(7_000)
    assert sum("/penstock/api/" in url for url in view.requests) == before
    with view.page.expect_request("**/penstock/api/streams"):
        root.evaluate(f"(_, hidden) => ({hide})(hidden)", False)


def test_the_page_follows_airflows_theme(visit: Visit) -> None:
    view = visit(theme="light", ui=True)
    background = "node => getComputedStyle(node).backgroundColor"
    body = view.frame.locator("body")
    light = body.evaluate(background)
    view.page.evaluate("document.documentElement.classList.replace('light', 'dark')")
    expect(view.frame.locator("html")).to_have_attribute("data-theme", "dark")
    assert body.evaluate(background) != light


def test_opened_by_itself_it_asks_to_sign_in(browser: Browser, server: Server) -> None:
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{server.url}/penstock/")
    expect(page.locator("input[name=username]")).to_be_visible()
    assert urlsplit(page.url).path.startswith("/auth/login")
    context.close()


@pytest.mark.long
@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_it_fits_and_is_named_at_every_width(visit: Visit, theme: str, screenshots: Path) -> None:
    view = visit(theme=theme, ui=True)
    root, table = view.frame.locator("html"), view.frame.locator("#streams")
    expect(row(view, "topic-quality").locator("canvas")).to_have_count(2)
    for width in (390, 800, 1180, 1600):
        view.page.set_viewport_size({"width": width, "height": 1000})
        view.page.wait_for_timeout(500)
        view.page.screenshot(path=screenshots / f"page-{theme}-{width}.png")
        assert root.evaluate("node => node.scrollWidth <= node.clientWidth"), width
        assert table.evaluate("node => node.scrollWidth <= node.clientWidth"), width
        for name in ("Stop topic-quality", "Release quality"):
            box = view.frame.get_by_role("button", name=name).bounding_box()
            assert box
            assert 0 <= box["x"] <= box["x"] + box["width"] <= width
        nameless = "nodes => nodes.filter(n => n.checkVisibility() && !(n.ariaLabel || n.textContent.trim())).length"
        assert view.frame.locator("button").evaluate_all(nameless) == 0
        view.frame.get_by_role("button", name="Release quality").click()
        view.page.screenshot(path=screenshots / f"dialog-{theme}-{width}.png")
        view.page.keyboard.press("Escape")
        row(view, "topic-quality").get_by_role("link").click()
        expect(view.frame.locator(".detail canvas")).to_have_count(8)
        view.page.wait_for_timeout(500)
        view.page.screenshot(path=screenshots / f"detail-{theme}-{width}.png")
        assert root.evaluate("node => node.scrollWidth <= node.clientWidth"), width
        cut_off = "nodes => nodes.filter(n => n.getBoundingClientRect().right > innerWidth).map(n => n.textContent)"
        assert view.frame.locator(".detail :is(button, dd, .neighbours li)").evaluate_all(cut_off) == [], width
        to(view, "Overview")
        view.frame.locator("#legend summary").click()
        view.frame.locator("#legend").scroll_into_view_if_needed()
        view.page.screenshot(path=screenshots / f"foot-{theme}-{width}.png")
        assert root.evaluate("node => node.scrollWidth <= node.clientWidth"), width
        to(view, "Streams")
    assert view.troubles == []
