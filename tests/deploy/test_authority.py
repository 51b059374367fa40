"""The certificates of a project, as TLS on loopback judges them."""

import socket
import ssl
import threading
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509

from prifedsync.deploy.authority import (
    SERVER_DAYS,
    hosts_of,
    issue,
    new_authority,
    read_authority,
    write_server_certificate,
)
from prifedsync.deploy.places import ProjectPlaces
from prifedsync.files import write_file
from prifedsync.values import BadValue


def project(folder, hosts=("10.0.0.7", "fl.example.org")):
    places = ProjectPlaces(folder)
    places.authority.mkdir(parents=True)
    places.server.key.parent.mkdir(parents=True)
    authority = new_authority()
    write_file(places.authority / "ca.key", authority.secret_pem, private=True)
    write_file(places.authority / "ca.crt", authority.pem)
    write_server_certificate(places, authority, hosts)
    return places


def accept_one(listener, context):
    """Answer one connection, whatever becomes of it."""
    plain, _ = listener.accept()
    with plain:
        try:
            with context.wrap_socket(plain, server_side=True) as wrapped:
                wrapped.recv(1)
        except OSError:
            pass  # the other side has refused


def handshake(places, authority, name="127.0.0.1"):
    """What a client does that trusts this authority, strictly, and knows the server under this name."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(places.server.certificate, places.server.key)
    client = ssl.create_default_context(cadata=authority.decode())
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=accept_one, args=(listener, server))
        thread.start()
        try:
            plain = socket.create_connection(listener.getsockname(), timeout=10)
            with plain, client.wrap_socket(plain, server_hostname=name) as wrapped:
                wrapped.send(b"x")
        finally:
            thread.join(10)


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "10.0.0.7", "fl.example.org"])
def test_a_handshake_under_each_name(tmp_path, name):
    places = project(tmp_path)
    handshake(places, places.server.authority.read_bytes(), name)


def test_another_authority_and_another_name_are_refused(tmp_path):
    places = project(tmp_path)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(places, new_authority().pem)
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(places, places.server.authority.read_bytes(), "other.example.org")


def test_a_server_cannot_sign_certificates(tmp_path):
    places = project(tmp_path)
    certificate = x509.load_pem_x509_certificate(places.server.certificate.read_bytes())
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    span = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert span <= timedelta(days=SERVER_DAYS, hours=1)
    authority = x509.load_pem_x509_certificate(places.server.authority.read_bytes())
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert authority.not_valid_after_utc - datetime.now(UTC) > timedelta(days=3650)


def test_no_certificate_lasts_longer_than_its_authority():
    authority = new_authority()
    late = authority.certificate.not_valid_after_utc - timedelta(days=5)
    _, pem = issue(authority, ["a.org"], late)
    assert x509.load_pem_x509_certificate(pem).not_valid_after_utc == authority.certificate.not_valid_after_utc


def test_a_new_certificate_is_of_the_same_authority(tmp_path):
    places = project(tmp_path)
    before = places.server.authority.read_bytes()
    key = places.server.key.read_bytes()
    write_server_certificate(places, read_authority(places), hosts_of(places.server.certificate))
    assert places.server.key.read_bytes() != key
    assert set(hosts_of(places.server.certificate)) == {
        "10.0.0.7",
        "fl.example.org",
        "127.0.0.1",
        "::1",
        "localhost",
    }
    handshake(places, before, "fl.example.org")


def test_an_authority_that_is_not_whole_is_refused(tmp_path):
    places = project(tmp_path)
    write_file(places.authority / "ca.key", new_authority().secret_pem, private=True)
    with pytest.raises(BadValue, match=r"not the key of ca\.crt"):
        read_authority(places)
    (places.authority / "ca.key").write_text("no key")
    with pytest.raises(BadValue, match="cannot be read"):
        read_authority(places)
    (places.authority / "ca.key").unlink()
    with pytest.raises(BadValue, match=r"has no authority/ca\.key"):
        read_authority(places)
