"""Settings of the stores of sinks, the object store of archives, and the schema registry."""

import json
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, SecretStr

from penstock.settings.types import Authority, SecretUrl, Url


def _check_options(value: SecretStr) -> SecretStr:
    try:
        options = json.loads(value.get_secret_value() or "{}")
    except ValueError:
        options = None
    if not isinstance(options, dict) or not all(isinstance(one, str | dict) for one in options.values()):
        raise ValueError('write a JSON object of texts, or of objects for `auth` and `ssl`: {"token": "..."}')
    return value


class StoreSettings(BaseModel):
    """Stores of sinks, the object store of archives, and the schema registry."""

    influxdb_url: SecretUrl = Field(
        SecretStr(""), description="URL of InfluxDB 1.x, with user and password; empty: none"
    )
    mongodb_url: SecretUrl = Field(SecretStr(""), description="URL of MongoDB, with user and password; empty: none")
    elasticsearch_url: SecretUrl = Field(
        SecretStr(""), description="URL of Elasticsearch, with user and password; empty: none"
    )
    s3_url: SecretUrl = Field(
        SecretStr(""),
        description="endpoint of the object store of archives, or `s3://` for AWS; empty: none",
    )
    s3_region: str = Field("us-east-1", description="region of the object store")
    s3_access_key: str = Field("", description="access key; empty: what AWS tools use (variables, files, role)")
    s3_secret_key: SecretStr = Field(SecretStr(""), description="secret of the access key")
    s3_make_buckets: bool = Field(
        default=False, description="create buckets that are missing; the embedded object store always does"
    )
    iceberg_catalog: Url = Field(
        "", description="URL of the REST catalog of the archives' tables; empty: they are in the control database"
    )
    iceberg_options: Annotated[SecretStr, AfterValidator(_check_options)] = Field(
        SecretStr(""),
        description="JSON object: properties of the REST catalog, as pyiceberg names them, such as `token`, "
        "`credential` and `warehouse`; empty: none",
    )
    stores: str = Field(
        "", description="embedded stores that `penstock up` starts: some of `elasticsearch mongodb influxdb`"
    )
    elasticsearch_port: int = Field(
        19200, ge=1, le=65534, description="port of the embedded Elasticsearch; its transport uses the next one"
    )
    mongodb_port: int = Field(27117, ge=1, le=65535, description="port of the embedded MongoDB")
    influxdb_port: int = Field(
        18086, ge=1, le=65534, description="port of the embedded InfluxDB; its RPC uses the next one"
    )
    s3_port: int = Field(
        19900, ge=1, le=65535, description="port of the embedded object store, which runs unless another is configured"
    )
    schema_registry_url: SecretUrl = Field(
        SecretStr(""),
        description="URL of the schema registry, with user and password; several, separated by commas; empty: none",
    )
    registry: bool = Field(default=False, description="embedded schema registry: `penstock up` starts one")
    schema_registry_port: int = Field(19081, ge=1, le=65535, description="port of the embedded schema registry")
    schema_registry_ca: Authority = Field(
        "", description="PEM file of the CAs of the schema registry; empty: those of the system"
    )
