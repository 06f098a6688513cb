"""The embedded InfluxDB 1.x: the machine's own, or Debian's package unpacked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import ClassVar

import httpx

from penstock.devstack import debian_packages
from penstock.devstack.servers.base import StoreServer, check_passes, get
from penstock.errors import HostError
from penstock.settings import settings

CONFIG = """reporting-disabled = true
bind-address = "127.0.0.1:{rpc}"
[meta]
  dir = "{folder}/meta"
[data]
  dir = "{folder}/data"
  wal-dir = "{folder}/wal"
[http]
  bind-address = "127.0.0.1:{http}"
  log-enabled = false
[monitor]
  store-enabled = false
"""


@cache
def find() -> tuple[Path, dict[str, str]]:
    """The daemon and what its environment needs. HostError if there is none."""
    if program := shutil.which("influxd", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/bin"])):
        return Path(program), {}
    if debian_packages.is_available():
        root = debian_packages.ensure_unpacked("influxdb", ["influxdb"])
        return root / "usr" / "bin" / "influxd", debian_packages.environment(root)
    raise HostError("InfluxDB is not installed", hint="install InfluxDB 1.x (on Debian it is downloaded)")


class InfluxDBServer(StoreServer):
    """A private InfluxDB 1.x; its RPC takes the next port."""

    name: str = "influxdb"
    label: str = "the InfluxDB server"
    variable: ClassVar[str] = "PENSTOCK_INFLUXDB_PORT"

    def __init__(self, home: Path | None = None, *, port: int) -> None:
        super().__init__(home or settings().home)
        self.port = port
        self.folder = self.home / "influxdb"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def ports(self) -> Mapping[str, int]:
        return {"http": self.port, "rpc": self.port + 1}

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        config = CONFIG.format(folder=self.folder, http=self.port, rpc=self.port + 1)
        (self.folder / "influxdb.conf").write_text(config)

    def environment(self) -> dict[str, str]:
        return find()[1]

    def command(self) -> list[str]:
        return [str(find()[0]), "-config", str(self.folder / "influxdb.conf")]

    def ready(self) -> bool:
        return check_passes(lambda: get(f"{self.url}/ping", timeout=3).is_success, httpx.HTTPError)
