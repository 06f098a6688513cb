"""The servers that archives need."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from penstock.devstack.servers.mariadb import MariaDB
from penstock.host.ports import free_port
from penstock.settings import settings
from tests.support import s3_store


@contextmanager
def archive_servers(folder: Path) -> Iterator[None]:
    """An object store, and a control database with the archives' catalog; this process's settings name them."""
    with s3_store.server(folder / "s3") as server, MariaDB(home=folder / "mariadb", port=free_port()) as mariadb:
        endpoint = s3_store.endpoint_of(server)
        os.environ.update(
            PENSTOCK_HOME=str(folder / "home"), PENSTOCK_CONTROL_URL=mariadb.url, PENSTOCK_S3_URL=endpoint.url,
            PENSTOCK_S3_ACCESS_KEY=endpoint.access_key, PENSTOCK_S3_SECRET_KEY=endpoint.secret_key,
            PENSTOCK_S3_MAKE_BUCKETS="1",
        )  # fmt: skip
        settings.cache_clear()
        yield
