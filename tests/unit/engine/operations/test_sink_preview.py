"""What a preview of a sink says when the documents cannot be rendered."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from penstock.engine.operations import sink_preview


def test_without_records_the_error_of_the_session_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> NoReturn:
        raise ConnectionRefusedError("the session has ended")

    monkeypatch.setattr(sink_preview, "_render", fail)
    nothing: Any = None
    with pytest.raises(ConnectionRefusedError):
        sink_preview.render_documents(nothing, nothing, [])
