"""What a requested reset replaces of the folder that waits beside a checkpoint."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.engine.checkpoint.layout import RESET_FILE, Checkpoint
from penstock.engine.jvm.hadoop_fs import COPIED


class WaitingFolder:
    """The folder `<checkpoint>.reset`, in memory."""

    def __init__(self, *names: str) -> None:
        self.files = dict.fromkeys(names, "")

    def list_names(self, _: str) -> list[str]:
        return list(self.files)

    def remove(self) -> None:
        self.files.clear()

    def replace(self, name: str, text: str) -> None:
        self.files[name] = text


@pytest.mark.parametrize(
    ("there", "rebuilt", "stays"),
    [
        (["metadata"], False, []),
        (["metadata"], True, ["metadata"]),
        # Moved, in an object store, and not deleted whole: a move of it would end at once.
        ([COPIED], False, []),
    ],
)
def test_a_requested_reset_replaces_what_an_earlier_one_left(there: list[str], rebuilt: bool, stays: list[str]) -> None:
    folder: Any = WaitingFolder(*there)
    checkpoint = Checkpoint.__new__(Checkpoint)
    checkpoint._waiting = folder
    checkpoint.request_reset(json.dumps({"rebuilt": rebuilt}))
    assert sorted(folder.files) == sorted([*stays, RESET_FILE])
