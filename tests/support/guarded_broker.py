"""A broker with TLS and a login."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from penstock.devstack.servers.kafka import Broker
from penstock.host.ports import free_port
from tests.support.certificates import Authority

USER = "penstock"
# All that a configuration file of Java's might take for its own.
PASSWORD = 'hidden "a\\b; c#ö'


class Guarded(Broker):
    """A broker that takes TLS with a login (SCRAM) beside the plain port, by which the login is made."""

    def __init__(self, home: Path, port: int, authority: Authority) -> None:
        certificate, key = authority.issue("broker")
        store = home / "store.pem"
        store.write_text(key.read_text() + certificate.read_text())
        inside, controller, outside = (f"127.0.0.1:{port + n}" for n in range(3))
        self.outside = outside
        super().__init__(
            home,
            port,
            config={
                "listeners": f"PLAINTEXT://{inside},CONTROLLER://{controller},SASL_SSL://{outside}",
                "advertised.listeners": f"PLAINTEXT://{inside},SASL_SSL://{outside}",
                "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_SSL:SASL_SSL",
                "sasl.enabled.mechanisms": "SCRAM-SHA-512",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(store),
                "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": "org.apache.kafka.common.security.scram."
                "ScramLoginModule required;",
            },
        )


@contextmanager
def guarded_broker(home: Path, authority: Authority, password: str = PASSWORD) -> Iterator[Guarded]:
    """A broker in a folder, that knows the login of USER."""
    with Guarded(home, free_port(3), authority) as broker:
        client = AdminClient({"bootstrap.servers": broker.bootstrap})
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        login = UserScramCredentialUpsertion(USER, info, password.encode())
        for done in client.alter_user_scram_credentials([login]).values():
            done.result(30)
        yield broker
