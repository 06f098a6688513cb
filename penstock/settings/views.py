"""Settings of the instances that serve the views."""

from pydantic import BaseModel, Field, SecretStr

from penstock.settings.types import Url


class ViewSettings(BaseModel):
    """The instances that serve the views."""

    views_instances: int = Field(
        1,
        ge=0,
        le=64,
        description="number of instances, which share the partitions of the views; 0: views are not served",
    )
    views_standby: int = Field(0, ge=0, le=63, description="standby copies of each partition")
    views_host: str = Field("127.0.0.1", description="address that instances listen on")
    views_port: int = Field(
        19470, ge=1, le=65472, description="port of the first instance; each further one uses the next"
    )
    views_url: Url = Field(
        "", description="URL at which other instances reach one on this host, with `{port}`; empty: by the address"
    )
    views_token: SecretStr = Field(
        SecretStr(""), description="bearer token of requests; empty: the one in `views.token` of the home, if any"
    )
