"""Cases in YAML are read as they are documented, and a mistake is told with its file and line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock.errors import DeclarationError
from penstock.settings import PROJECT
from penstock.testing.case_file import as_text, read_cases
from penstock.testing.strict_yaml import YamlDocument, epoch_ms

CASE = """\
streams: [totals]
cases:
  first:
    clock: 2026-01-31T12:00:00Z
    steps:
      - about: one order
        send:
          - value: {shop: no, amount: 2.50, at: !ms 2026-01-31T12:00:05Z, day: 2026-01-31}
            key: north
            timestamp: 2026-01-31T13:00:00+01:00
          - value: null
      - clock: 1769860870000
        expect:
          - value: 6.5
        late: 1
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "totals.yaml"
    path.write_text(text)
    return path


def test_a_file_is_read(tmp_path: Path) -> None:
    case = read_cases(written(tmp_path, CASE)).cases["first"]
    assert (case.streams, case.clock, case.ways, case.name) == (["totals"], 1769860800000, ["stream"], "first")
    order, tombstone = case.steps[0].send
    assert as_text(order.value) == '{"shop":"no","amount":2.5,"at":1769860805000,"day":"2026-01-31"}'
    assert (order.key, order.timestamp, order.topic, order.partition) == ("north", 1769860800000, None, 0)
    assert as_text(tombstone.value) is None
    assert (case.steps[1].clock, as_text(case.steps[1].expect[0].value), case.steps[1].late) == (
        1769860870000,
        "6.5",
        1,
    )
    assert case.label(1) == "totals.yaml:6: first, step 1 (one order)"


def test_a_case_without_streams_is_of_the_files_name(tmp_path: Path) -> None:
    file = read_cases(written(tmp_path, "cases:\n  one:\n    steps: [{late: 0}]\n"))
    assert file.cases["one"].streams == ["totals"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("late: 1", "lat: 1", r"totals.yaml:15: cases.first.steps.1.lat: this key is unknown; got: lat"),
        ("late: 1", "late: many", r"totals.yaml:15: cases.first.steps.1.late: Input should be a valid integer"),
        ("late: 1", "late: true", r"totals.yaml:15: .*valid integer"),
        ("late: 1", "late: -1", r"totals.yaml:15: .*greater than or equal to 0"),
        ("late: 1", "late: 1\n        late: 2", r"totals.yaml:16: a key is there twice; got: late"),
        ("late: 1", "late: !!int 1", r"totals.yaml:15: this tag is unknown"),
        ("late: 1", "late: !!str 1", r"totals.yaml:15: this tag is unknown; got: tag:yaml.org,2002:str"),
        ("late: 1", "!!str late: 1", r"totals.yaml:15: this tag is unknown"),
        ("value: null", "value: !shop {a: 1}", r"totals.yaml:11: this tag is unknown; got: !shop"),
        ("value: null", "value: !ms {a: 1}", r"totals.yaml:11: this tag is unknown; got: !ms"),
        ("value: null", "value: [!!set [1]]", r"totals.yaml:11: this tag is unknown"),
        ("value: null", "value: {<<: {a: 1}}", r"totals.yaml:11: a mapping is not merged into another"),
        ("!ms 2026-01-31T12:00:05Z", "!ms noon", r"totals.yaml:8: !ms needs a time; got: noon"),
        ("timestamp: 2026-01-31T13:00:00+01:00", "timestamp: noon", r"totals.yaml:10: .*timestamp: Invalid isoformat"),
        ("timestamp: 2026-01-31T13:00:00+01:00", "timestamp: 0", r"totals.yaml:10: .*timestamp: .* after 1970"),
        ("clock: 2026-01-31T12:00:00Z", "clock: 1970-01-01", r"totals.yaml:4: .*clock: .* after 1970"),
        ("- value: 6.5", "- key: 6.5", r"totals.yaml:14: cases.first.steps.1.expect.0.value: this key is missing"),
        ("clock: 1769860870000", "clock: 1769860799999", r"totals.yaml:12: the clock goes back"),
        ("    clock: 2026-01-31T12:00:00Z\n", "", r"totals.yaml:11: a step moves a clock that the case does not have"),
        ("    steps:", "    ways: [batch]\n    steps:", r"totals.yaml:5: cases.first.ways.0: Input should be 'stream'"),
        ("streams: [totals]", "streams: totals", r"totals.yaml:1: .*valid list"),
        ("streams: [totals]", "stream: totals", r"totals.yaml:1: stream: this key is unknown"),
        ("key: north", "key: {north", r"totals.yaml:10: this is not YAML"),
        ("key: north", "key: &a [*a]", r"totals.yaml:9: an alias contains itself"),
        ("key: north", "? [a]\n            : b", r"totals.yaml:9: a key is a text"),
    ],
)  # fmt: skip
def test_a_mistake_has_its_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in CASE
    with pytest.raises(DeclarationError, match=message):
        read_cases(written(tmp_path, CASE.replace(old, new, 1)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "totals.yaml: the file is empty"),
        ("# nothing\n", "totals.yaml: the file is empty"),
        ("about: none\n", "totals.yaml:1: the file has no case"),
        ("- one\n", "totals.yaml:1: the file: Input should be"),
        ("cases: [one]\n", "totals.yaml:1: cases: Input should be"),
        ("cases:\n  one: 1\n", "totals.yaml:2: cases.one: Input should be"),
        ("refused:\n  one: {sql: SELECT 1, error: ''}\n", "totals.yaml:2: refused.one.error: String should have"),
    ],
)
def test_a_file_without_cases_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(DeclarationError, match=message):
        read_cases(written(tmp_path, text))


def test_scalars_are_those_of_json(tmp_path: Path) -> None:
    text = "[null, ~, true, no, 'yes', 12, -1.50, 1e3, 12:30, 0x10, .5, 2026-01-31, '1', 1_000, <<]\n"
    assert YamlDocument(written(tmp_path, text)).data == [
        None, None, True, "no", "yes", 12, -1.5, 1000.0, "12:30", "0x10", 0.5, "2026-01-31", "1", "1_000", "<<",
    ]  # fmt: skip


def test_a_field_may_be_called_as_yaml_merges_if_it_is_quoted(tmp_path: Path) -> None:
    assert YamlDocument(written(tmp_path, "{'<<': 1, \"b\": ! [2]}\n")).data == {"<<": 1, "b": [2]}


@pytest.mark.parametrize("time", [True, 1.5, None, [1], "noon"])
def test_a_time_is_a_text_or_epoch_ms(time: Any) -> None:
    assert epoch_ms("2026-01-31T12:00:00") == epoch_ms("2026-01-31T12:00:00Z") == epoch_ms(1769860800000)
    with pytest.raises(ValueError, match=r"epoch ms|isoformat"):
        epoch_ms(time)


def test_every_file_of_the_repository_is_valid() -> None:
    folders = (PROJECT, PROJECT / "tests" / "examples", PROJECT / "penstock" / "templates" / "project")
    for folder in folders:
        files = sorted((folder / "tests" / "streams").glob("*.yaml"))
        assert files
        for path in files:
            read_cases(path)


def test_a_case_may_have_markers(tmp_path: Path) -> None:
    text = CASE.replace("  first:\n", "  first:\n    markers: [slow]\n")
    assert read_cases(written(tmp_path, text)).cases["first"].markers == ["slow"]
