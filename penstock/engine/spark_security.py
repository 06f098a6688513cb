"""Spark's authentication and encryption, for processes on more than one host."""

from __future__ import annotations

import sys
from pathlib import Path

from penstock.host import secret_file
from penstock.java.properties import properties_text
from penstock.settings import settings


def security_conf(master: str, home: Path | None = None) -> dict[str, str]:
    """Spark settings that protect the connections between a driver and its executors; none for a local master.

    They belong in a file, never on a command line: those of a standalone cluster have its secret. All its daemons need
    the same settings, in the file of `--properties-file`; YARN and Kubernetes make a secret for each application.

    Args:
        master: URL of the master.
        home: folder of the secret, if the settings have none; None for the home of the settings.
    """
    if master.startswith("local"):
        return {}
    conf = {
        "spark.authenticate": "true",
        # AES-GCM with keys that each connection negotiates.
        "spark.network.crypto.enabled": "true",
        "spark.network.crypto.cipher": "AES/GCM/NoPadding",
        # Otherwise a server still accepts SASL, whose ciphers are old.
        "spark.network.crypto.saslFallback": "false",
        # Data that is shuffled and spilled to a worker's disk.
        "spark.io.encryption.enabled": "true",
    }
    if master.startswith("spark://"):
        secret = settings().secret("spark_secret")
        conf["spark.authenticate.secret"] = (
            secret or secret_file.load_or_create((home or settings().home) / "spark.secret").hex()
        )
    return conf


def main() -> None:
    """Print the settings for a master, as a file for `--properties-file` has them."""
    print(properties_text(security_conf(sys.argv[1])), end="")


if __name__ == "__main__":
    main()
