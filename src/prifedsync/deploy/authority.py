"""The project's own certificate authority, and the server's certificate that it signs.

The authority's secret key stays with whoever made the project. Servers and clients get its certificate alone.

A certificate for two processes of one machine needs no project: `vouched` makes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..files import write_file
from ..values import BadValue
from .hosts import ALWAYS, is_address
from .places import ProjectPlaces

AUTHORITY_DAYS = 3652  # ten years
SERVER_DAYS = 825  # the most that common clients accept
CLOCKS = timedelta(hours=1)  # by which clocks of two machines may differ


@dataclass(frozen=True)
class Authority:
    """A key that signs certificates, and its own certificate."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def pem(self) -> bytes:
        """The certificate as a file has it."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def secret_pem(self) -> bytes:
        """The secret key as a file has it."""
        return _secret_pem(self.key)


def new_authority(now: datetime | None = None) -> Authority:
    """A certificate authority that signs certificates of servers, for ten years."""
    now = now or datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP384R1())
    name = _named("PriFedSync project authority")
    builder = _builder(name, name, key.public_key(), now, now + timedelta(days=AUTHORITY_DAYS))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return Authority(key, builder.sign(key, hashes.SHA384()))


def read_authority(places: ProjectPlaces) -> Authority:
    """The authority of a project."""
    secret = places.authority / "ca.key"
    public = places.authority / "ca.crt"
    for path in (secret, public):
        if not path.is_file():
            remedy = "restore it from a backup; a project made with --insecure has no certificates"
            raise BadValue("project", places.folder, f"has no {path.relative_to(places.folder)}", remedy)
    try:
        key = serialization.load_pem_private_key(secret.read_bytes(), password=None)
        certificate = x509.load_pem_x509_certificate(public.read_bytes())
    except (ValueError, TypeError) as error:
        remedy = "restore ca.key and ca.crt from a backup"
        raise BadValue("project", places.authority, f"cannot be read: {error}", remedy) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        remedy = "restore both from one backup"
        raise BadValue("project", places.authority, "holds a ca.key that is not the key of ca.crt", remedy)
    return Authority(key, certificate)


def issue(authority: Authority, hosts: Sequence[str], now: datetime | None = None) -> tuple[bytes, bytes]:
    """A new key and certificate of a server at these hosts, as PEM."""
    now = now or datetime.now(UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    end = min(now + timedelta(days=SERVER_DAYS), authority.certificate.not_valid_after_utc)
    builder = _builder(_named("PriFedSync server"), authority.certificate.subject, key.public_key(), now, end)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(_alternative_names(hosts), critical=False)
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = builder.add_extension(signer, critical=False)
    certificate = builder.sign(authority.key, hashes.SHA384())
    return _secret_pem(key), certificate.public_bytes(serialization.Encoding.PEM)


@dataclass(frozen=True)
class Vouched:
    """A secret key, its certificate, and the certificate of the authority that signed it, as PEM."""

    key: bytes = field(repr=False)
    certificate: bytes
    authority: bytes


def vouched(hosts: Sequence[str]) -> Vouched:
    """A certificate for these hosts, from an authority that never signs another: its secret key is kept nowhere."""
    authority = new_authority()
    return Vouched(*issue(authority, hosts), authority.pem)


def write_server_certificate(places: ProjectPlaces, authority: Authority, hosts: Sequence[str]) -> None:
    """Issue a certificate, and put it with its key and the authority's certificate into the server's folder."""
    secret, certificate = issue(authority, hosts)
    write_file(places.server.key, secret, private=True)
    write_file(places.server.certificate, certificate)
    write_file(places.server.authority, authority.pem)


def hosts_of(certificate: Path) -> tuple[str, ...]:
    """The names and addresses in a server's certificate."""
    try:
        read = x509.load_pem_x509_certificate(certificate.read_bytes())
        named = read.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, x509.ExtensionNotFound):
        rule = "cannot be read, so that the hosts of the new one are not known"
        raise BadValue("certificate", certificate, rule, "name the hosts with --host") from None
    names = named.get_values_for_type(x509.DNSName)
    addresses = [str(address) for address in named.get_values_for_type(x509.IPAddress)]
    return (*names, *addresses)


def check_valid(certificate: Path, now: datetime | None = None) -> None:
    """Refuse a certificate that is not valid at this time."""
    now = now or datetime.now(UTC)
    remedy = "`prifedsync deploy certificate` makes a new one, where the project is"
    try:
        read = x509.load_pem_x509_certificate(certificate.read_bytes())
    except ValueError:
        raise BadValue("certificate", certificate, "is no certificate", remedy) from None
    begin, end = read.not_valid_before_utc, read.not_valid_after_utc
    if not begin <= now <= end:
        rule = f"is valid from {begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M}, and it is {now:%Y-%m-%d %H:%M} UTC here"
        raise BadValue("certificate", certificate, rule, f"set the clock of this machine, or {remedy}")


def ends(certificate: Path) -> datetime:
    """When a certificate expires."""
    return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, begin: datetime, end: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin - CLOCKS)
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_names(hosts: Sequence[str]) -> x509.SubjectAlternativeName:
    named = dict.fromkeys((*hosts, *ALWAYS))  # each once, in this order
    return x509.SubjectAlternativeName(
        [x509.IPAddress(ip_address(host)) if is_address(host) else x509.DNSName(host) for host in named]
    )


def _secret_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
