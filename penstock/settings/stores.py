"""Settings: stores of sinks, the object store of archives, and the embedded ones."""

from pydantic import BaseModel, Field, SecretStr


class StoreSettings(BaseModel):
    """Stores of sinks, the object store of archives, and the embedded ones."""

    influxdb_url: SecretStr = Field(
        SecretStr(""), description="InfluxDB 1.x, user and password in the URL; empty means that none is written to"
    )
    mongodb_url: SecretStr = Field(
        SecretStr(""), description="MongoDB, user and password in the URL; empty means that none is written to"
    )
    elasticsearch_url: SecretStr = Field(
        SecretStr(""), description="Elasticsearch, user and password in the URL; empty means that none is written to"
    )
    s3_url: SecretStr = Field(
        SecretStr(""),
        description="object store of the archives: its endpoint, or `s3://` for AWS itself; empty means that none is "
        "written to",
    )
    s3_region: str = Field("us-east-1", description="region of the object store")
    s3_access_key: str = Field(
        "", description="access key; empty takes what AWS's own tools would: variables, files, role"
    )
    s3_secret_key: SecretStr = Field(SecretStr(""), description="the secret of the access key")
    s3_make_buckets: bool = Field(default=False, description="make a bucket that is not there; here it always is made")
    stores: str = Field("", description="stores of sinks that `make up` starts here: elasticsearch mongodb influxdb")
    elasticsearch_port: int = Field(19200, description="embedded Elasticsearch; its transport takes the next port")
    mongodb_port: int = 37017
    influxdb_port: int = Field(18086, description="embedded InfluxDB; its RPC takes the next port")
    s3_port: int = Field(19900, ge=1, le=65535, description="embedded object store; it runs unless one is given")
