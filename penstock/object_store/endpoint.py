"""Where the object store is: by settings, an Airflow Connection, or the part that runs here.

`PENSTOCK_S3_URL` with region, access key and secret, or the name of a Connection; else `AIRFLOW_CONN_S3`, a URI or the
JSON form. A Connection has the access key as login, the secret as password, and `endpoint_url` and `region_name` among
its extras, as Airflow's own has them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.errors import SettingError, SinkError
from penstock.host import process, secret_file
from penstock.host.embedded import refuse_another_home
from penstock.settings import settings
from penstock.settings.connection_types import object_store_fields
from penstock.settings.connections import AirflowConnection, find, find_text

AWS = "s3://"
# The id of the Connection that is taken without a setting, if the environment has it.
CONNECTION = "s3"
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


def is_configured() -> bool:
    """Whether there is an object store, or a Connection that should name one; Airflow is not asked."""
    s = settings()
    if s.s3_url.get_secret_value() or find_text(CONNECTION, ask=False):
        return True
    record = process.read(s.home / "run", LOCAL_SERVICE)
    return record is not None and bool(record.ports)


def find_endpoint() -> Endpoint | None:
    """Returns the configured endpoint; None if there is none.

    Raises:
        SinkError: The Connection is missing, malformed, of another type or incomplete; or the port of the embedded
            store is that of another home.
    """
    s = settings()
    try:
        if conn_id := s.connection_ids.get("s3_url"):
            return connection_endpoint(find(conn_id, "aws://KEY:SECRET@/?region_name=us-east-1"))
        if url := s.s3_url.get_secret_value():
            key, secret = s.s3_access_key, s.s3_secret_key.get_secret_value()
            return Endpoint(url, s.s3_region, key, secret, s.s3_make_buckets)
        if text := find_text(CONNECTION, ask=False):
            return connection_endpoint(AirflowConnection.parse(CONNECTION, text))
    except SettingError as e:
        raise SinkError(e.what, got=e.got, hint=e.hint) from None
    record = process.read(s.home / "run", LOCAL_SERVICE)
    if record is None or not record.ports:
        return None
    port = next(iter(record.ports.values()))
    refuse_another_home("object store", port, "PENSTOCK_S3_PORT", SinkError)
    return Endpoint(
        f"http://127.0.0.1:{port}",
        "us-east-1",
        ACCESS_KEY,
        secret_file.load_or_create(s.home / SECRET_FILE).hex(),
        True,
    )


def connection_endpoint(connection: AirflowConnection) -> Endpoint:
    """The endpoint that a Connection describes. SettingError if it is of another type or incomplete."""
    s, fields = settings(), object_store_fields(connection)
    return Endpoint(
        fields.url or AWS, fields.region or s.s3_region, fields.access_key, fields.secret_key, s.s3_make_buckets
    )
