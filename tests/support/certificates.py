"""Certificates for servers of tests on 127.0.0.1, by CAs of their own."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID


class Authority:
    """A CA; `ca` is the file of its certificate."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name, self._key = folder, _named(name), ec.generate_private_key(ec.SECP256R1())
        self.ca = folder / f"{name}.pem"
        self.ca.write_bytes(self._signed(name, self._key, x509.BasicConstraints(ca=True, path_length=None)))

    def issue(self, name: str) -> tuple[Path, Path]:
        """Certificate and key (PKCS#8), each a PEM file, of 127.0.0.1 or of a client of that name."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate, private = (self._folder / f"{name}.{end}" for end in ("pem", "key"))
        certificate.write_bytes(self._signed(name, key, x509.SubjectAlternativeName([x509.IPAddress(LOOPBACK)])))
        private.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return certificate, private

    def _signed(self, name: str, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType) -> bytes:
        now = datetime.now(UTC)
        made = x509.CertificateBuilder(
            self._name, _named(name), key.public_key(), x509.random_serial_number(), now - timedelta(hours=1),
            now + timedelta(days=2),
        )  # fmt: skip
        critical = isinstance(extension, x509.BasicConstraints)
        return made.add_extension(extension, critical).sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM)


LOOPBACK = ip_address("127.0.0.1")


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
