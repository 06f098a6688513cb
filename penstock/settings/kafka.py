"""Settings of the Kafka brokers."""

import ssl
from typing import Literal, Self

from pydantic import BaseModel, Field, SecretStr, model_validator

from penstock.settings.connections import connection_id
from penstock.settings.types import Absolute, Authority

# Settings that a Connection does not replace.
OF_NO_CONNECTION = ("kafka_bootstrap", "kafka_port", "replication")


class KafkaSettings(BaseModel):
    """The Kafka brokers and the connection to them."""

    kafka_port: int = Field(
        19092,
        ge=1,
        le=65530,
        description="port of the embedded broker; its controller uses the next one, two more brokers of a cluster the "
        "next four",
    )
    kafka_bootstrap: str = Field("", description="bootstrap servers; empty: the embedded broker")
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="security protocol of the brokers in `PENSTOCK_KAFKA_BOOTSTRAP`"
    )
    kafka_ca: Authority = Field("", description="PEM file of the CAs of the brokers; empty: those of the system")
    kafka_certificate: Absolute = Field(
        "", description="PEM file of the client certificate, for brokers that require one"
    )
    kafka_key: Absolute = Field("", description="PEM file (PKCS#8) of the client certificate's key")
    kafka_key_password: SecretStr = Field(SecretStr(""), description="password of that key, if it has one")
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(
        "SCRAM-SHA-512", description="SASL mechanism"
    )
    kafka_username: str = Field("", description="SASL user")
    kafka_password: SecretStr = Field(SecretStr(""), description="SASL password")
    replication: int = Field(1, ge=1, description="replicas of declared topics; 3 by default on the embedded cluster")

    @model_validator(mode="after")
    def _connection_is_complete(self) -> Self:
        try:
            conn_id = connection_id(self.kafka_bootstrap)
        except ValueError as e:
            raise ValueError(f"PENSTOCK_KAFKA_BOOTSTRAP names no Connection: {e}") from None
        if conn_id:
            others = [
                name
                for name, field in KafkaSettings.model_fields.items()
                if name not in OF_NO_CONNECTION and getattr(self, name) != field.default
            ]
            if others:
                raise ValueError(
                    f"PENSTOCK_KAFKA_BOOTSTRAP names the connection {conn_id}, which holds the login too: unset "
                    + ", ".join(f"PENSTOCK_{name.upper()}" for name in others)
                )
            return self
        protocol = self.kafka_security_protocol
        tls = bool(self.kafka_ca or self.kafka_certificate or self.kafka_key)
        login = {
            "PENSTOCK_KAFKA_USERNAME": self.kafka_username,
            "PENSTOCK_KAFKA_PASSWORD": self.kafka_password.get_secret_value(),
        }
        if protocol != "PLAINTEXT" and not self.kafka_bootstrap:
            raise ValueError(
                f"PENSTOCK_KAFKA_SECURITY_PROTOCOL={protocol} is for external brokers: set PENSTOCK_KAFKA_BOOTSTRAP"
            )
        if protocol.startswith("SASL_"):
            for name, value in login.items():
                if not value:
                    raise ValueError(f"PENSTOCK_KAFKA_SECURITY_PROTOCOL={protocol} needs {name}")
        elif any(login.values()):
            raise ValueError(
                f"PENSTOCK_KAFKA_USERNAME or PENSTOCK_KAFKA_PASSWORD is set, and PENSTOCK_KAFKA_SECURITY_PROTOCOL is "
                f"{protocol}, which does not log in: set it to SASL_SSL"
            )
        if tls and not protocol.endswith("SSL"):
            raise ValueError(
                f"PENSTOCK_KAFKA_CA, PENSTOCK_KAFKA_CERTIFICATE or PENSTOCK_KAFKA_KEY is set, and "
                f"PENSTOCK_KAFKA_SECURITY_PROTOCOL is {protocol}, which does not use TLS: set it to SSL or SASL_SSL"
            )
        if bool(self.kafka_certificate) != bool(self.kafka_key):
            raise ValueError("PENSTOCK_KAFKA_CERTIFICATE and PENSTOCK_KAFKA_KEY must be set together")
        if self.kafka_certificate:
            # Given as a function, so that ssl does not ask for a password on the terminal.
            password = self.kafka_key_password.get_secret_value()
            try:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.load_cert_chain(self.kafka_certificate, self.kafka_key, lambda: password)
            except (OSError, ValueError) as e:
                reason = getattr(e, "strerror", None) or e
                raise ValueError(
                    f"PENSTOCK_KAFKA_CERTIFICATE and PENSTOCK_KAFKA_KEY (with PENSTOCK_KAFKA_KEY_PASSWORD) are no "
                    f"certificate and its key, as PEM files: {reason}"
                ) from None
        return self
