"""Certificates for tests over TLS: an authority, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

LOOPBACK = x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))


@dataclass(frozen=True)
class Pair:
    """A certificate and its private key, both PEM."""

    certificate: bytes
    key: bytes


class Authority:
    def __init__(self, name: str = "an authority") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        extension = x509.BasicConstraints(ca=True, path_length=0)
        built = _builder(self._name, self._name, self._key).add_extension(extension, critical=True)
        self.certificate = built.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def issue(self, common_name: str, *uris: str) -> Pair:
        """Good for 127.0.0.1 as a server, and for a client with these names."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([LOOPBACK, *map(x509.UniformResourceIdentifier, uris)])
        built = _builder(_name(common_name), self._name, key).add_extension(names, critical=False)
        certificate = built.sign(self._key, hashes.SHA256())
        return Pair(
            certificate.public_bytes(serialization.Encoding.PEM),
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ),
        )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
    )
