"""A snapshot's readers: the same rows from threads and processes, and no process left behind."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from sqlalchemy import make_url

from penstock.capture.output.position import KeyRange
from penstock.capture.snapshot.parallel_readers import RangeReaders
from penstock.capture.source.sqlite import SQLite
from penstock.errors import PenstockError
from penstock.model.capture import Capture, parse
from tests.support.wait import wait_until

ROWS = 100


@pytest.fixture
def table(tmp_path: Path) -> SQLite:
    database = SQLite(make_url(f"sqlite:///{tmp_path / 'x.db'}"), timedelta(seconds=5))
    with database._connected() as c:
        c.exec_driver_sql("CREATE TABLE t (id INTEGER PRIMARY KEY, c INT, note)")
        for i in range(ROWS):
            c.exec_driver_sql("INSERT INTO t VALUES (?, ?, ?)", (i, i // 10, f"note {i}"))
    return database


def capture(select: str = "SELECT id, c, note FROM t", key: str = "id") -> Capture:
    return parse(f"CAPTURE INTO t FROM sqlite x KEY ({key}) CURSOR c AS {select}", Path("t.sql"))


@pytest.mark.parametrize("count", [1, 2])
def test_all_ranges_are_read_page_by_page(table: SQLite, count: int) -> None:
    ranges = [KeyRange(None, (39,)), KeyRange((39,), (79,)), KeyRange((79,))]
    readers = RangeReaders(capture(), table, 8, 7, ranges, count)
    assert readers.left == tuple(ranges)
    found: list[bytes] = []
    again: list[bytes] = []
    while readers.left:
        read = readers.next()
        assert sum(map(keys_of, readers.left)) == ROWS - len(found) - len(read.records.keys)
        found += read.records.keys
        again += [read.records.keys[row] for row in read.again]
    readers.close()
    # Each range in order, whatever the order between them.
    assert sorted(found, key=lambda key: json.loads(key)["id"] // 40) == [b'{"id":%d}' % i for i in range(ROWS)]
    assert sorted(again) == [b'{"id":%d}' % i for i in range(80, ROWS)]


def keys_of(part: KeyRange) -> int:
    """How many keys lie in a range."""
    [behind] = part.behind or (-1,)
    [upto] = part.upto or (ROWS - 1,)
    return int(upto) - int(behind)


@pytest.mark.parametrize("count", [1, 2])
def test_what_is_wrong_with_a_row_is_said(table: SQLite, count: int) -> None:
    readers = RangeReaders(capture("SELECT c AS id, c, note FROM t"), table, None, 50, [KeyRange()] * count, count)
    with pytest.raises(PenstockError, match=r"t met two rows with one key; got: .*; hint: declare as KEY"):
        readers.next()
    readers.close()


@pytest.mark.processes
def test_readers_end_when_their_driver_is_killed(table: SQLite) -> None:
    program = f"""
        import time
        from datetime import timedelta
        from sqlalchemy import make_url
        from penstock.capture.source.sqlite import SQLite
        from penstock.capture.output.position import KeyRange
        from penstock.capture.snapshot.parallel_readers import RangeReaders
        from tests.unit.capture.snapshot.test_parallel_readers import capture

        if __name__ == "__main__":
            table = SQLite(make_url({table.display_url!r}), timedelta(seconds=5))
            readers = RangeReaders(capture(), table, None, 7, [KeyRange(), KeyRange()], 2)
            for _ in range(2):
                readers.next()
            print("ready", flush=True)
            time.sleep(60)
    """
    script = Path(table.display_url.removeprefix("sqlite:///")).with_name("driver.py")
    script.write_text(textwrap.dedent(program))
    with subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(Path.cwd())}
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        readers = psutil.Process(child.pid).children(recursive=True)
        assert len(readers) >= 2
        child.kill()
    wait_until(lambda: not any(r.is_running() for r in readers), what="its readers end")
