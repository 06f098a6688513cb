"""Settings: brokers: where they are, how they are reached, and the embedded ones."""

import ssl
from typing import Literal, Self

from pydantic import BaseModel, Field, SecretStr, model_validator

from penstock.settings.types import Absolute, Authority


class KafkaSettings(BaseModel):
    """Brokers: where they are, how they are reached, and the embedded ones."""

    kafka_port: int = Field(
        19092,
        ge=1,
        le=65530,
        description="embedded broker; its controller takes the next port, two more brokers of a cluster the next four",
    )
    kafka_bootstrap: str = Field("", description="brokers; empty means the embedded one")
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="how the brokers of `kafka_bootstrap` are reached"
    )
    kafka_ca: Authority = Field("", description="PEM file of the CAs of brokers; empty: those of the system")
    kafka_certificate: Absolute = Field(
        "", description="PEM file of a client's certificate, for brokers that ask for one"
    )
    kafka_key: Absolute = Field("", description="PEM file (PKCS#8) of that certificate's key")
    kafka_key_password: SecretStr = Field(SecretStr(""), description="of the key, if it has one")
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "SCRAM-SHA-512"
    kafka_username: str = ""
    kafka_password: SecretStr = SecretStr("")
    replication: int = Field(1, ge=1, description="replicas of declared topics; 3 on the brokers of `cluster`")

    @model_validator(mode="after")
    def _connection_is_complete(self) -> Self:
        """How brokers are reached, and what that needs."""
        protocol = self.kafka_security_protocol
        sasl = bool(self.kafka_username or self.kafka_password.get_secret_value())
        tls = bool(self.kafka_ca or self.kafka_certificate or self.kafka_key)
        given = {"PENSTOCK_KAFKA_USERNAME": self.kafka_username}
        given["PENSTOCK_KAFKA_PASSWORD"] = self.kafka_password.get_secret_value()
        if protocol != "PLAINTEXT" and not self.kafka_bootstrap:
            raise ValueError(
                f"PENSTOCK_KAFKA_SECURITY_PROTOCOL={protocol} is of brokers elsewhere: set PENSTOCK_KAFKA_BOOTSTRAP"
            )
        if protocol.startswith("SASL_"):
            for name, value in given.items():
                if not value:
                    raise ValueError(f"PENSTOCK_KAFKA_SECURITY_PROTOCOL={protocol} needs {name}")
        elif sasl:
            raise ValueError(
                f"PENSTOCK_KAFKA_USERNAME or PENSTOCK_KAFKA_PASSWORD is set, and PENSTOCK_KAFKA_SECURITY_PROTOCOL is "
                f"{protocol}, which sends neither: set it to SASL_SSL"
            )
        if tls and not protocol.endswith("SSL"):
            raise ValueError(
                f"PENSTOCK_KAFKA_CA, _CERTIFICATE or _KEY is set, and PENSTOCK_KAFKA_SECURITY_PROTOCOL is {protocol}, "
                "which is without TLS: set it to SSL or SASL_SSL"
            )
        if bool(self.kafka_certificate) != bool(self.kafka_key):
            raise ValueError("PENSTOCK_KAFKA_CERTIFICATE and PENSTOCK_KAFKA_KEY go together")
        if self.kafka_certificate:
            # Never asks a terminal for a password.
            password = self.kafka_key_password.get_secret_value()
            try:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.load_cert_chain(self.kafka_certificate, self.kafka_key, lambda: password)
            except (OSError, ValueError) as e:
                said = getattr(e, "strerror", None) or e
                raise ValueError(
                    f"PENSTOCK_KAFKA_CERTIFICATE and PENSTOCK_KAFKA_KEY (with PENSTOCK_KAFKA_KEY_PASSWORD) are no "
                    f"certificate and its key, as PEM files: {said}"
                ) from None
        return self
