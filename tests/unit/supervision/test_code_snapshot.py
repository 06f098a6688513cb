"""Snapshots of a project's code, while somebody works on the files."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from penstock.errors import HostError, ReleaseRefused
from penstock.host import files
from penstock.settings import settings
from penstock.supervision import code_snapshot
from penstock.supervision.code_snapshot import digest_of, disk_digest, pack, read_project, unpack

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project as somebody might have it."""
    monkeypatch.setenv("PENSTOCK_RELEASE_EXCLUDE", '["data", "jobs/*/notes.txt"]')
    settings.cache_clear()
    folder = tmp_path / "project"
    texts = {
        "jobs/shop/orders.py": "import shared\n",
        "jobs/shop/rates.csv": "EUR,1\n",
        "jobs/shop/docs/rules.md": "read by a stream\n",
        "sql/sinks/orders.sql": "SELECT 1",
        "shared/__init__.py": "",
        "pyproject.toml": "",
        # None of these is code.
        "README.md": "",
        "tests/test_orders.py": "",
        "dags/streams.py": "",
        ".git/HEAD": "",
        ".env": "PASSWORD=1",
        "env/pyvenv.cfg": "",
        "env/lib/x.py": "",
        "jobs/__pycache__/x.pyc": "",
        "data/big.csv": "",
        "jobs/shop/notes.txt": "",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_a_snapshot_has_what_streams_may_read(project: Path) -> None:
    assert sorted(read_project(project)) == [
        "jobs/shop/docs/rules.md", "jobs/shop/orders.py", "jobs/shop/rates.csv", "pyproject.toml",
        "shared/__init__.py", "sql/sinks/orders.sql",
    ]  # fmt: skip


@pytest.mark.parametrize("variable", ["PENSTOCK_HOME", "PENSTOCK_CACHE", "PENSTOCK_CHECKPOINTS"])
def test_a_home_in_the_project_is_not_code(
    variable: str, project: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv(variable, str(project / "var"))
    settings.cache_clear()
    request.addfinalizer(settings.cache_clear)
    before = disk_digest(project)
    (project / "var" / "logs").mkdir(parents=True)
    (project / "var" / "logs" / "driver.log").write_text("a line")
    assert disk_digest(project) == before


def test_links_are_followed_and_do_not_loop(project: Path) -> None:
    (project / "jobs" / "common").symlink_to(project / "shared")
    (project / "jobs" / "loop").symlink_to(project)
    (project / "jobs" / "gone.py").symlink_to(project / "nowhere")
    content = read_project(project)
    assert {"jobs/common/__init__.py", "shared/__init__.py"} <= content.keys()
    assert not [path for path in content if "loop" in path or "gone" in path]


def test_the_digest_is_of_paths_and_contents_alone(project: Path, tmp_path: Path) -> None:
    content = read_project(project)
    digest = digest_of(content)
    assert digest == disk_digest(project) == digest_of(dict(reversed([*content.items()])))
    os.utime(project / "jobs" / "shop" / "orders.py", (1, 1))
    moved = project.rename(tmp_path / "elsewhere")
    assert disk_digest(moved) == digest
    assert digest_of({"a": b"bc"}) != digest_of({"ab": b"c"})
    (moved / "jobs" / "shop" / "orders.py").rename(moved / "jobs" / "shop" / "order.py")
    assert disk_digest(moved) != digest


def test_a_script_stays_executable(project: Path) -> None:
    """Of its mode nothing else counts: the rest depends on the umask of whoever checked it out."""
    script = project / "jobs" / "shop" / "rates.csv"
    before, before_digest = read_project(project), disk_digest(project)
    for mode in (0o600, 0o644, 0o666, 0o611):
        script.chmod(mode)
        assert digest_of(read_project(project)) == disk_digest(project) == before_digest == digest_of(before)
    digests = set()
    for mode in (0o700, 0o755, 0o711):
        script.chmod(mode)
        content = read_project(project)
        digests |= {digest_of(content), disk_digest(project)}
    [digest] = digests - {before_digest}
    assert len(digests) == 1
    assert code_snapshot.changed_paths(before, content) == ["jobs/shop/rates.csv"]
    unpacked = unpack(pack(content))
    assert unpacked is not None
    assert digest_of(unpacked) == digest
    code_snapshot.write_copy(digest, unpacked)
    assert code_snapshot.is_copied(digest)
    modes = {
        path.name: stat.S_IMODE(path.stat().st_mode) for path in code_snapshot.folder_of(digest).glob("jobs/shop/*.*")
    }
    assert modes == {"rates.csv": 0o500, "orders.py": 0o400}
    archived = unpack(code_snapshot.archive_copy(digest).read_bytes())
    assert archived is not None
    assert digest_of(archived) == digest
    (code_snapshot.folder_of(digest) / "jobs" / "shop" / "rates.csv").chmod(0o400)
    assert not code_snapshot.is_copied(digest), "it would fail"


def test_the_digest_of_files_that_nobody_executes_is_as_before() -> None:
    assert digest_of({"a.py": b"1"}) == sha256(b"a.py\x001\x001").hexdigest()


def test_an_archive_is_the_same_for_the_same_files() -> None:
    content = {"jobs/a.py": b"a", "sql/b.sql": b"b"}
    assert pack(content) == pack(dict(reversed([*content.items()])))
    assert unpack(pack(content)) == content
    assert unpack(pack(content)[:-30]) is None
    assert unpack(b"") is None


def test_files_that_change_meanwhile_are_read_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders, edits = project / "jobs" / "shop" / "orders.py", iter(range(2))
    read = code_snapshot._read

    def read_and_edit(folder: Path) -> code_snapshot.CodeFiles:
        content = read(folder)
        if (n := next(edits, None)) is not None:
            orders.write_text(f"edit = {n}\n")
        return content

    monkeypatch.setattr(code_snapshot, "READ_AGAIN_AFTER", 0)
    monkeypatch.setattr(code_snapshot, "_read", read_and_edit)
    assert read_project(project)["jobs/shop/orders.py"] == b"edit = 1\n"
    edits = iter(range(2, 100))
    with pytest.raises(ReleaseRefused, match=r"being changed.*jobs/shop/orders\.py"):
        read_project(project)


def test_files_that_are_written_one_after_another_are_read_when_all_are(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (project / "jobs" / "shop" / name for name in ("orders.py", "rates.csv"))
    first.write_text("new")
    monkeypatch.setattr("time.sleep", lambda _: second.write_text("new"))
    content = read_project(project)
    assert content["jobs/shop/orders.py"] == content["jobs/shop/rates.csv"] == b"new"


def test_what_cannot_be_a_snapshot_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ReleaseRefused, match="there is no project"):
        read_project(project / "dags")
    monkeypatch.setattr(code_snapshot, "MAX_BYTES", 10)
    with pytest.raises(ReleaseRefused, match=r"more than 0 MiB.*exclude"):
        read_project(project)


def test_a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list_folder = os.scandir

    def fail(path: str) -> Iterator[os.DirEntry[str]]:
        if str(path).endswith("jobs/shop"):
            raise OSError(errno.EIO, "Input/output error", path)
        return list_folder(path)

    monkeypatch.setattr(os, "scandir", fail)
    with pytest.raises(ReleaseRefused, match=r"jobs/shop cannot be read; got: Input/output error"):
        read_project(project)
    before = disk_digest(project)
    (project / "shared" / "__init__.py").write_text("edited")
    assert disk_digest(project) != before, "the other files count"


def test_a_file_whose_name_is_not_utf8_is_refused_or_excluded(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(os.fsdecode(os.fsencode(project / "jobs" / "shop") + b"/caf\xe9.csv"))
    path.touch()
    assert disk_digest(project)
    with pytest.raises(ReleaseRefused, match=r"not UTF-8; got: 'jobs/shop/caf\\udce9\.csv'"):
        read_project(project)
    monkeypatch.setenv("PENSTOCK_RELEASE_EXCLUDE", '["jobs/shop/caf*"]')
    settings.cache_clear()
    assert unpack(pack(read_project(project)))


def test_a_copy_is_verified_and_written_whole(project: Path, home: Path) -> None:
    content = read_project(project)
    digest = digest_of(content)
    assert not code_snapshot.is_copied(digest)
    code_snapshot.write_copy(digest, content)
    folder = code_snapshot.folder_of(digest)
    assert folder.parent == home / "releases"
    (folder / "jobs" / "__pycache__").mkdir()
    (folder / "jobs" / "__pycache__" / "x.pyc").write_bytes(b"")
    assert code_snapshot.is_copied(digest), "Python's bytecode changes nothing"
    for damage in (lambda path: path.unlink(), lambda path: (path.chmod(0o600), path.write_text("edited"))):
        damage(folder / "jobs" / "shop" / "orders.py")
        assert not code_snapshot.is_copied(digest)
        code_snapshot.write_copy(digest, content)
        assert code_snapshot.read_copy(digest) == content
    assert [path.name for path in folder.parent.iterdir() if path.name.startswith(".part")] == []


@pytest.mark.parametrize("damage", [b"", b"nothing", None])
def test_the_archive_for_executors_is_verified(project: Path, damage: bytes | None) -> None:
    content = read_project(project)
    digest = digest_of(content)
    code_snapshot.write_copy(digest, content)
    path = code_snapshot.archive_copy(digest)
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    assert code_snapshot.archive_copy(digest).read_bytes() == whole


def test_copies_that_nothing_needs_are_removed_after_a_while(home: Path) -> None:
    contents = [{"jobs/a.py": str(n).encode()} for n in range(3)]
    digests = [digest_of(content) for content in contents]
    for digest, content in zip(digests, contents, strict=True):
        code_snapshot.write_copy(digest, content)
    code_snapshot.archive_copy(digests[1])
    for path in (home / "releases").iterdir():
        if digests[2] not in path.name:
            os.utime(path, (1, 1))
    code_snapshot.prune_copies({digests[0]})
    assert sorted(p.name for p in (home / "releases").iterdir()) == sorted([".lock", digests[0], digests[2]])


def test_a_folder_that_cannot_be_written_is_a_clear_error(project: Path, home: Path) -> None:
    """Tests may run as root, whom no mode keeps from writing."""
    content = read_project(project)
    digest = digest_of(content)
    home.mkdir(exist_ok=True)
    (home / "releases").write_text("")
    for write in (lambda: code_snapshot.write_copy(digest, content), lambda: code_snapshot.archive_copy(digest)):
        with pytest.raises(ReleaseRefused, match=r"snapshot cannot be written; got: .*; hint: let the user .*releases"):
            write()
    assert not code_snapshot.is_copied(digest)
    code_snapshot.prune_copies(set())
    (home / "releases").unlink()
    (home / "releases" / ".lock").mkdir(parents=True)
    with pytest.raises(ReleaseRefused, match=r"a lock file cannot be written; got: .*\.lock.*; hint: let the user"):
        code_snapshot.write_copy(digest, content)
    (home / "file").write_text("")
    with pytest.raises(HostError, match=r"a lock file cannot be written; got: .*file.*; hint: let the user"):
        with files.locked(home / "file" / "y.lock"):
            pass
