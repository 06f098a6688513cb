"""Where the object store is: by settings, an Airflow connection in the environment, or the part that runs here.

`PENSTOCK_S3_URL` with region, access key and secret, else `AIRFLOW_CONN_S3`: a URI or the JSON form, the access key as
login, the secret as password, and `endpoint_url` and `region_name` among its extras, as Airflow's own has them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from penstock.errors import SinkError
from penstock.host import process, secret_file
from penstock.settings import settings

AWS = "s3://"
CONNECTION = "AIRFLOW_CONN_S3"
# The part of `penstock up`: its name, its access key, and where its secret lies.
LOCAL_SERVICE, ACCESS_KEY, SECRET_FILE = "s3", "penstock", "s3.secret"


@dataclass(frozen=True)
class Endpoint:
    """How to reach the object store.

    Attributes:
        url: http(s) URL, or `s3://` for AWS.
        region: AWS region.
        access_key: empty to use AWS's default credential chain.
        secret_key: the secret.
        create_buckets: whether missing buckets may be created.
    """

    url: str
    region: str = "us-east-1"
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    create_buckets: bool = False


def find_endpoint() -> Endpoint | None:
    """Returns the configured endpoint; None if there is none. SinkError if the connection cannot be parsed."""
    s = settings()
    if url := s.s3_url.get_secret_value():
        key, secret = s.s3_access_key, s.s3_secret_key.get_secret_value()
        return Endpoint(url, s.s3_region, key, secret, s.s3_make_buckets)
    if connection := os.environ.get(CONNECTION, "").strip():
        try:
            return _from_connection(json.loads(connection) if connection.startswith("{") else _parse_uri(connection))
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            # Its text may hold a secret.
            raise SinkError(
                "connection s3 cannot be read",
                got=f"{type(e).__name__} in {CONNECTION}",
                hint="give a URI, or the JSON form of Airflow's connections",
            ) from None
    record = process.read(s.home / "run", LOCAL_SERVICE)
    if record is None or not record.ports:
        return None
    port = next(iter(record.ports.values()))
    return Endpoint(
        f"http://127.0.0.1:{port}",
        "us-east-1",
        ACCESS_KEY,
        secret_file.load_or_create(s.home / SECRET_FILE).hex(),
        True,
    )


def _parse_uri(uri: str) -> dict[str, Any]:
    parts = urlsplit(uri)
    if not parts.scheme:
        raise ValueError(uri)
    extra = {name: values[-1] for name, values in parse_qs(parts.query).items()}
    return {
        "login": unquote(parts.username or ""), "password": unquote(parts.password or ""), "extra": extra,
    }  # fmt: skip


def _from_connection(connection: Mapping[str, Any]) -> Endpoint:
    extra = connection.get("extra") or {}
    extra = json.loads(extra) if isinstance(extra, str) else extra
    s = settings()
    return Endpoint(
        str(extra.get("endpoint_url") or AWS), str(extra.get("region_name") or s.s3_region),
        str(connection.get("login") or ""), str(connection.get("password") or ""), s.s3_make_buckets,
    )  # fmt: skip
