"""Keys of SuperNodes: ECDSA on P-384 in OpenSSH's format. A server knows a client by the public half."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ..files import keep_dated, write_file
from ..values import NOT_GIVEN, BadValue
from .places import SitePlaces
from .settings import site_settings


def make_node_key(site: SitePlaces, *, new: bool = False, today: date | None = None) -> str:
    """A new key in the folder of a client's network side; the line of its public half.

    new: in the place of an old one, which stays beside it under its name and the date.
    """
    if site.key.exists():
        if not new:
            remedy = "to replace it, add --new; the server must then be given the new public line"
            raise BadValue("key", site.key, "exists already", remedy)
        keep_dated(site.key, today)
        if site.public.exists():
            keep_dated(site.public, today)
    secret = ec.generate_private_key(ec.SECP384R1())
    line = _public_line(secret)
    write_file(site.key, _secret_text(secret), private=True)
    write_file(site.public, f"{line}\n".encode())
    return line


def node_key_of(folder: Path, *, new: bool = False) -> tuple[str, str]:
    """Make the key of the site in this folder; the client's name, and the line of the public half."""
    settings = site_settings(folder)
    if settings.insecure:
        rule = "means that no key is used"
        raise BadValue("insecure", "true", rule, "make a project without --insecure for a run on several machines")
    return settings.client, make_node_key(SitePlaces(folder), new=new)


def check_public_line(field: str, text: bytes) -> None:
    """Refuse what is no public key of a SuperNode, as OpenSSH writes it."""
    try:
        key = serialization.load_ssh_public_key(text)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        remedy = "write the line there that `prifedsync deploy key` prints at the client"
        raise BadValue(field, NOT_GIVEN, "is no public key of a SuperNode", remedy)


def _secret_text(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption())


def _public_line(key: ec.EllipticCurvePrivateKey) -> str:
    public = key.public_key()
    return public.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
