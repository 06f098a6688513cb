"""Settings: instances of the views."""

from pydantic import BaseModel, Field, SecretStr


class ViewSettings(BaseModel):
    """Instances of the views."""

    views_instances: int = Field(
        1, ge=0, le=64, description="processes that share the partitions of the views; 0 serves none"
    )
    views_standby: int = Field(0, ge=0, le=63, description="copies of each partition beside its owner's")
    views_host: str = Field("127.0.0.1", description="address that instances of the views listen on")
    views_port: int = Field(19470, ge=1, le=65472, description="port of the first instance; the next has the next")
    views_url: str = Field(
        "", description="how other instances reach one on this host; `{port}` is put in. Empty: the address"
    )
    views_token: SecretStr = Field(
        SecretStr(""), description="what callers of the views send; empty means what <home>/views.token keeps, if any"
    )
