"""FerretDB over SQLite, a second server of MongoDB's protocol: built from its module where a Go compiler is found."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from penstock.devstack.servers.mongodb import MongoDBServer
from penstock.errors import HostError
from penstock.host import files, process
from penstock.settings import settings

VERSION = "v1.24.2"


def _go(folder: Path, *words: str) -> str:
    done = process.run_captured(["go", *words], cwd=folder, env={"CGO_ENABLED": "0"})
    if done.returncode:
        raise HostError("FerretDB cannot be built", got=done.stderr[-500:], hint="see whether Go's proxy answers")
    return done.stdout


def _program() -> Path:
    target = settings().cache / f"ferretdb-{VERSION}"
    target.parent.mkdir(parents=True, exist_ok=True)
    with files.publish(target) as fresh, tempfile.TemporaryDirectory() as folder:
        if fresh is not None:
            module = json.loads(_go(fresh, "mod", "download", "-json", f"github.com/FerretDB/FerretDB@{VERSION}"))
            source = Path(folder) / "source"
            shutil.copytree(module["Dir"], source)
            # Go's copy is read-only, and lacks a file without which the server does not start.
            version = source / "build" / "version"
            version.chmod(0o755)
            (version / "version.txt").write_text(f"{VERSION}\n")
            _go(source, "build", "-o", str(fresh / "ferretdb"), "./cmd/ferretdb")
    return target / "ferretdb"


class FerretDB(MongoDBServer):
    name: str = "ferretdb"
    label: str = "FerretDB"

    @staticmethod
    def can_be_built() -> bool:
        return shutil.which("go") is not None

    def command(self) -> list[str]:
        return [
            str(_program()), "--handler=sqlite", f"--sqlite-url=file:{self.folder}/", f"--state-dir={self.folder}",
            f"--listen-addr=127.0.0.1:{self.port}", "--debug-addr=-", "--telemetry=disable", "--log-level=error",
        ]  # fmt: skip
