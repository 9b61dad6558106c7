"""Certificates and kubeconfigs of one cluster, made anew for each: one authority, valid for a day."""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Authority:
    """Issues into `folder`: `NAME.crt`, `NAME.key`, and its own `ca.crt`."""

    folder: Path
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def make(cls, folder: Path, name: str = "toktier-e2e") -> Authority:
        folder.mkdir(parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            _builder(subject, subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        (folder / "ca.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        _write_key(folder / "ca.key", key)  # the controller manager signs with it
        return cls(folder, key, certificate)

    def issue(self, name: str, user: str, group: str | None = None, hosts: Sequence[str] = ()) -> None:
        """For a server on `hosts` (addresses or names) and for a client that Kubernetes sees as `user` of `group`."""
        key = ec.generate_private_key(ec.SECP256R1())
        attributes = [x509.NameAttribute(NameOID.COMMON_NAME, user)]
        if group:
            attributes.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, group))
        builder = _builder(x509.Name(attributes), self.certificate.subject, key.public_key())
        builder = builder.add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        if hosts:
            builder = builder.add_extension(
                x509.SubjectAlternativeName(list(map(_general_name, hosts))), critical=False
            )
        certificate = builder.sign(self.key, hashes.SHA256())
        (self.folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        _write_key(self.folder / f"{name}.key", key)

    def kubeconfig(self, name: str, server: str) -> Path:
        """`NAME.kubeconfig` for the client certificate issued as `name`."""
        held = {part: base64.b64encode((self.folder / part).read_bytes()).decode() for part in self._parts(name)}
        authority, certificate, key = held.values()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "e2e", "cluster": {"server": server, "certificate-authority-data": authority}}],
            "users": [{"name": name, "user": {"client-certificate-data": certificate, "client-key-data": key}}],
            "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": name}}],
            "current-context": "e2e",
        }
        path = self.folder / f"{name}.kubeconfig"
        path.write_text(yaml.safe_dump(config))
        path.chmod(0o600)
        return path

    @staticmethod
    def _parts(name: str) -> tuple[str, str, str]:
        return "ca.crt", f"{name}.crt", f"{name}.key"


def service_account_key(folder: Path) -> None:
    """`sa.key` signs the tokens of service accounts, `sa.pub` checks them."""
    key = ec.generate_private_key(ec.SECP256R1())
    _write_key(folder / "sa.key", key)
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    (folder / "sa.pub").write_bytes(public)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + LIFE)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )
