"""Captures, states and their remedies, dead letters and logs on the operator page."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from playwright.sync_api import Locator, Route, expect

from penstock.control import Control
from penstock.devstack.servers.kafka import Broker
from penstock.kafka.admin import ensure_topics
from penstock.streams import Topic
from tests.browser.conftest import View
from tests.browser.layout import OVERLAPS
from tests.browser.scene import DONE, FAILED, RUNNING, SILENT, WAITS, Scene

pytestmark = [pytest.mark.browser, pytest.mark.long]
Visit = Callable[..., View]


def capture(view: View, name: str) -> Locator:
    return view.frame.locator("tr.capture").filter(has=view.frame.get_by_role("rowheader", name=name))


def stream(view: View, name: str) -> Locator:
    return view.frame.locator("tr.stream").filter(has=view.frame.get_by_role("link", name=name, exact=True))


def test_captures_show_their_state_and_accept_requests(visit: Visit, control: Control) -> None:
    view = visit(at="captures")
    expect(view.frame.locator("tr.capture")).to_have_count(2)
    for said in ("running", "polling", "11 s", "3 of 41.2k"):
        expect(capture(view, "accounts")).to_contain_text(said)
    expect(capture(view, "tests")).to_contain_text("snapshot 36 %")
    expect(capture(view, "tests")).to_contain_text("not compared")
    expect(view.frame.get_by_role("button", name="Continue tests")).to_have_count(0)
    view.frame.get_by_role("button", name="Reconcile accounts").click()
    dialog = view.frame.get_by_role("dialog")
    expect(dialog).to_contain_text("This reads the whole table.")
    dialog.get_by_label("Note").fill("rows were mended by hand")
    view.page.keyboard.press("Enter")
    expect(view.frame.locator("#toast")).to_have_text("Reconcile of accounts is requested.")
    expect(capture(view, "accounts")).to_contain_text("reconcile is requested")
    last = control.actions(1)[0]
    assert [last[k] for k in ("actor", "source", "verb", "target", "detail")] == [
        "olga", "page", "reconcile", "accounts", "rows were mended by hand",
    ]  # fmt: skip
    assert view.troubles == []


def test_a_state_opens_its_meaning_and_remedy(visit: Visit) -> None:
    view = visit()
    pill = stream(view, "summaries").locator(".pill")
    pill.focus()
    view.page.keyboard.press("Enter")
    dialog = view.frame.get_by_role("dialog", name="summaries is failing")
    expect(dialog).to_contain_text("Job aborted due to stage failure")
    expect(dialog.locator("dd", has_text="read last error")).to_be_visible()
    view.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(pill).to_be_focused()


def letter(broker: Broker, value: str) -> None:
    """A record that the stream `bundles` put aside."""
    topic = "bundles-in-dead-letter"
    ensure_topics([Topic(topic, partitions=1)], broker.bootstrap)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    place = {"topic": "bundles-in", "partition": "2", "offset": "77", "stream": "bundles", "reason": "no <b>number</b>"}
    headers: list[tuple[str, str | bytes | None]] = [(f"penstock.{name}", said) for name, said in place.items()]
    producer.produce(topic, value, headers=headers)
    producer.flush()


def test_dead_letters_are_shown_as_text(visit: Visit, fresh_broker: Broker) -> None:
    value = '{"name": "<img src=x onerror=alert(1)>"}'
    letter(fresh_broker, value)
    view = visit(at="streams/bundles")
    view.frame.get_by_role("button", name="Dead letters of bundles").click()
    dialog = view.frame.get_by_role("dialog", name="Dead letters of bundles")
    expect(dialog.locator("article")).to_have_count(1)
    for said in ("no <b>number</b>", "bundles-in, partition 2, offset 77", value, "penstock dead-letters"):
        expect(dialog).to_contain_text(said)
    dialog.get_by_role("button", name="Close").click()
    view.frame.get_by_role("button", name="Late records of bundles").click()
    expect(view.frame.get_by_role("dialog", name="Late records of bundles")).to_contain_text("There are none.")
    assert view.troubles == []


def test_the_log_of_a_driver_is_read_from_its_end(visit: Visit, scene: Scene) -> None:
    scene.logs.mkdir(exist_ok=True)
    log = scene.logs / "metrics.log"
    log.write_text("".join(f"line {n}\n" for n in range(300)))
    view = visit()
    view.frame.get_by_role("button", name="Log of metrics").click()
    dialog = view.frame.get_by_role("dialog", name="Log of the driver of metrics")
    expect(dialog.locator(".log")).to_have_text(re.compile("^line 100\n.*line 299$", re.DOTALL), use_inner_text=True)
    assert dialog.locator("#dialog-body").evaluate("n => n.scrollTop + n.clientHeight >= n.scrollHeight - 2")
    log.unlink()
    dialog.get_by_role("button", name="Read again").click()
    expect(dialog.get_by_role("alert")).to_contain_text("Not read: the log is not here")


def run(view: View, name: str) -> Locator:
    return view.frame.locator("tr.run").filter(has=view.frame.locator(f'[title="{name}"]'))


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_backfills_show_progress_and_link_to_their_dags(visit: Visit, screenshots: Path, theme: str) -> None:
    view = visit(at="backfills", theme=theme, ui=theme == "light")
    declared = view.frame.locator("#backfills tbody tr")
    expect(declared).to_have_count(2)
    replay = declared.filter(has=view.frame.get_by_role("rowheader", name="order-replay"))
    for one in ("order-archive archive", "orders topic", "Orders of a day that is computed again.", "running"):
        expect(replay).to_contain_text(one)
    told = {
        RUNNING: (
            "running",
            "2025-12-31 00:00 to 2026-01-01 00:00 UTC",
            "9 of 24",
            "302k of 804k",
            "37 %",
            "attempt 2",
        ),
        WAITS: ("waiting", "until 2026-01-01 00:00 UTC", "for order-minutes to be stopped", "2 of 400", "tomas@pond"),
        SILENT: (
            "silent",
            "since 2026-01-02 00:00 UTC",
            "its process has not reported for",
            "it continues where it was",
        ),
        FAILED: ("failed", "everything · to order-minutes", "dry run", "<img src=x onerror=alert(1)>"),
        DONE: ("done", "24 of 24", "100 %", "took 1h 00m", "812,000 records, each as in the archive"),
    }
    expect(view.frame.locator("tr.run")).to_have_count(len(told))
    for name, said in told.items():
        for one in said:
            expect(run(view, name)).to_contain_text(one)
        alarming = name in (SILENT, FAILED)
        expect(run(view, name).and_(view.frame.locator("[data-alarm]"))).to_have_count(int(alarming))
    assert run(view, RUNNING).locator("progress").evaluate("bar => bar.value") == pytest.approx(0.375)
    expect(run(view, RUNNING)).to_contain_text("11.2k45 s")
    section = view.frame.locator("#view")
    section.screenshot(path=screenshots / f"backfills-{theme}.png")
    view.page.set_viewport_size({"width": 390, "height": 800})
    section.screenshot(path=screenshots / f"backfills-{theme}-390.png")
    assert section.evaluate(OVERLAPS) == []
    run(view, SILENT).locator(".pill").click()
    expect(view.frame.get_by_role("dialog")).to_contain_text("Backfills, in docs/operations.md")
    view.page.keyboard.press("Escape")

    def without_runs(route: Route) -> None:
        answer = route.fetch()
        content = answer.json()
        declared = [one | {"last_run": None} for one in content["declared"]]
        route.fulfill(response=answer, json=content | {"runs": [], "declared": declared})

    view.page.route("**/penstock/api/backfills*", without_runs)
    expect(view.frame.locator("#runs")).to_have_text("There are no runs yet. Start asks for the interval.")
    expect(replay).to_contain_text("never")
    view.page.unroute_all(behavior="ignoreErrors")
    assert view.troubles == []
    view.frame.get_by_role("button", name="Start order-replay").click()
    view.frame.get_by_role("link", name="The DAG of order-replay, in Airflow").click()
    view.page.wait_for_url("**/dags/backfill_order-replay")


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.long)])
def test_on_a_phone_nothing_overlaps_and_every_dialog_fits(
    visit: Visit, scene: Scene, fresh_broker: Broker, screenshots: Path, theme: str
) -> None:
    letter(fresh_broker, "x" * 3000)
    scene.logs.mkdir(exist_ok=True)
    log = scene.logs / "metrics.log"
    log.write_text(f"{'x' * 3000}\n" * 50)
    view = visit(theme=theme, width=390, height=800, ui=theme == "light")
    html = view.frame.locator("html")

    def fits(root: Locator) -> None:
        assert html.evaluate("node => node.scrollWidth <= node.clientWidth && node.clientWidth <= 390")
        assert root.evaluate("node => node.scrollWidth <= node.clientWidth")
        assert root.evaluate(OVERLAPS) == []

    def opens(what: str, button: Locator) -> None:
        button.click()
        dialog = view.frame.get_by_role("dialog")
        expect(dialog).to_be_visible()
        if what in ("letters", "log"):
            expect(dialog).to_contain_text("xxx")
        view.page.screenshot(path=screenshots / f"phone-{theme}-{what}.png")
        fits(dialog)
        view.page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)

    def button(name: str) -> Locator:
        return view.frame.get_by_role("button", name=name, exact=True)

    fits(view.frame.locator("#view"))
    # Tried, not pressed: it can be scrolled to, and nothing covers it.
    for name in ("Stop topic-quality", "Stop bundles", "Stop accounts"):
        button(name).click(trial=True)
    opens("release", button("Release quality"))
    opens("log", button("Log of metrics"))
    opens("cure", stream(view, "summaries").locator(".pill"))
    stream(view, "bundles").get_by_role("link").click()
    expect(button("Dead letters of bundles")).to_be_visible()
    fits(view.frame.locator("#view"))
    opens("letters", button("Dead letters of bundles"))
    opens("late", button("Late records of bundles"))
    view.frame.get_by_role("link", name="Captures").click()
    expect(capture(view, "accounts")).to_be_visible()
    fits(view.frame.locator("#view"))
    opens("ask", button("Reconcile accounts"))
    log.unlink()
    assert view.troubles == []


def test_a_viewer_sees_no_records_and_sends_no_requests(visit: Visit) -> None:
    view = visit("vera")
    buttons = {
        "Streams": ["Log of metrics"], "bundles": ["Dead letters of bundles", "Try bundles"],
        "Captures": ["Poll accounts"], "Dead letters": ["Read"],
    }  # fmt: skip
    for title, names in buttons.items():
        view.frame.get_by_role("link", name=re.compile(f"^{title}( [0-9]+ faults?)?$")).click()
        for name in names:
            expect(view.frame.get_by_role("button", name=name)).to_be_disabled()


def test_normal_values_are_not_marked(visit: Visit) -> None:
    def declared(route: Route) -> None:
        answer = route.fetch()
        content = answer.json()
        for app in content["apps"]:
            for one in app["streams"]:
                one["behind_ms"] = 9_000 if one["name"] == "bundles" else 0
        route.fulfill(response=answer, json=content)

    view = visit(before=lambda page: page.route("**/penstock/api/streams", declared))
    watermark = stream(view, "bundles").locator("td").nth(4)
    expect(watermark).to_have_text(re.compile("^[23] s\\+ 9 s$"))
    expect(stream(view, "summaries").locator("td").nth(4)).to_contain_text("11 s")
    expect(stream(view, "topic-quality").locator("td").nth(3)).to_have_attribute("data-zero", "")
    expect(view.frame.locator("tr.app", has_text="metrics")).to_contain_text(
        re.compile(r"code 5d41402a, the disk differs \([0-9a-f]{8}\)")
    )
    expect(view.frame.locator("tr.app", has_text="quality")).to_contain_text(
        re.compile("code 5d41402a(?!, the disk differs)")
    )


def test_a_watermark_ahead_and_late_records_are_alarms(visit: Visit, scene: Scene) -> None:
    [late] = [row for row in scene.rows if row.name == "topic-quality"]
    view = visit()
    ahead = stream(view, "assignments").locator("td").nth(4)
    for name in ("assignments", "topic-quality"):
        expect(stream(view, name)).not_to_have_attribute("data-alarm", "")
    scene.ahead["assignments"] = 5 * 60_000
    late.late += 1_000
    try:
        expect(ahead).to_contain_text("ahead of the clock")
        expect(ahead).to_have_attribute("data-warn", "")
        expect(stream(view, "assignments")).to_contain_text("its watermark is 4 min")
        expect(stream(view, "topic-quality")).to_contain_text("late records in the last 10 min: 1,000")
        for name in ("assignments", "topic-quality"):
            expect(stream(view, name)).to_have_attribute("data-alarm", "")
    finally:
        scene.ahead.clear()
        late.late -= 1_000
    expect(stream(view, "assignments")).not_to_have_attribute("data-alarm", "")
    assert view.troubles == []
