"""The secret that proves heartbeats: made once, the owner's alone, or given by a setting."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.codec.heartbeat import SECRET_FILE, heartbeat_signer
from penstock.errors import HostError
from penstock.host.secret_file import load_or_create
from penstock.settings import settings


def test_a_secret_is_made_once_and_for_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "home" / "secret"
    with ThreadPoolExecutor(8) as together:
        found = set(together.map(lambda _: load_or_create(path), range(32)))
    assert len(found) == 1
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]
    assert load_or_create(tmp_path / "another") not in found


@pytest.mark.parametrize("text", ["", "rubbish", "00"])
def test_what_is_no_secret_is_said(tmp_path: Path, text: str) -> None:
    path = tmp_path / "secret"
    path.write_text(text)
    with pytest.raises(HostError, match=r"(?s)has no valid secret.*remove it"):
        load_or_create(path)


def test_a_setting_overrules_the_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = heartbeat_signer()
    assert own == heartbeat_signer()
    assert (home / SECRET_FILE).exists()
    monkeypatch.setenv("PENSTOCK_HEARTBEAT_SECRET", "shared by two hosts")
    settings.cache_clear()
    shared = heartbeat_signer()
    assert shared != own
    assert shared.verified_time("t", 0, own.value("t", 0, 1)) is None
    assert "shared" not in repr(settings())
