"""A client's network side: what it refuses before it starts anything, and from whom it takes questions."""

import signal
import socket
import ssl
import stat
import threading

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509 import load_pem_x509_certificate

from prifedsync.config import to_toml
from prifedsync.deploy import site as sites
from prifedsync.deploy.authority import vouched
from prifedsync.deploy.places import SitePlaces
from prifedsync.deploy.settings import ListenConfig, ServerSettings, SiteSettings
from prifedsync.deploy.site import HERE, join
from prifedsync.engines.flower import site as carrying
from prifedsync.engines.flower.calls import Address
from prifedsync.engines.flower.site import Door, carry
from prifedsync.values import BadValue

FILES = ("tasks.secret", "node.key", "ca.crt")
SECRET = b"the secret of the tasks" * 2
ASKED = b"POST /v1/runtime/acquire-task "
HELLO = b"\x16\x03"  # how a TLS connection begins


def site(folder, without=(), insecure=False, mode=0o600):
    folder.mkdir(mode=0o700)
    (folder / "site.toml").write_text(to_toml(SiteSettings(client="a", server="127.0.0.1:9", insecure=insecure)))
    for name in FILES:
        if name not in without:
            (folder / name).write_bytes(b"x")
            (folder / name).chmod(mode)
    return folder


@pytest.mark.parametrize("missing", FILES)
def test_a_folder_that_lacks_a_file_is_refused(tmp_path, missing):
    with pytest.raises(BadValue, match=f"{missing} is not there; .* copy the whole folder"):
        join(site(tmp_path / "site", [missing]))


@pytest.mark.parametrize("name", ["tasks.secret", "node.key"])
def test_a_secret_that_others_may_read_is_refused(tmp_path, name):
    folder = site(tmp_path / "site")
    (folder / name).chmod(0o640)
    with pytest.raises(BadValue, match="may be read or changed by other users"):
        join(folder)


def test_without_keys_none_is_asked_for(tmp_path):
    with pytest.raises(BadValue, match=r"tasks\.secret is not there"):
        join(site(tmp_path / "site", FILES, insecure=True))


# ---------------------------------------------------------------------- whose questions are carried


class NoProcess:
    """Ends the network side where a SuperNode would be started."""

    runs = False

    def __init__(self, command, seen):
        seen.append(command)
        signal.raise_signal(signal.SIGTERM)

    def end(self):
        pass


@pytest.fixture
def joined(monkeypatch):
    """Joins until a SuperNode is started: its command, and the address that questions are taken from."""
    seen = []
    monkeypatch.setattr(sites, "KNOCKING", 0.0)
    monkeypatch.setattr(sites, "Process", lambda command, log, environment: NoProcess(command, seen))
    monkeypatch.setattr(carrying, "carry", lambda address, secret, door, over: seen.append(address))
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def run(folder):
        seen.clear()
        assert join(folder) == signal.SIGTERM
        (address,) = [each for each in seen if isinstance(each, Address)]
        (command,) = [each for each in seen if isinstance(each, list)]
        return command, address

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


def option(command, name):
    return command[command.index(name) + 1]


@pytest.mark.parametrize("insecure", [False, True])
def test_a_supernode_has_a_certificate_that_the_carrier_knows(tmp_path, joined, insecure):
    places = SitePlaces(site(tmp_path / "site", insecure=insecure))
    command, address = joined(places.folder)
    assert option(command, "--ssl-certfile") == str(places.task_certificate)
    assert option(command, "--ssl-keyfile") == str(places.task_key)
    assert option(command, "--ssl-ca-certfile") == str(places.task_authority)
    assert option(command, "--isolation") == "process"  # else it starts executors, which unpack what comes
    assert option(command, "--superexec-auth-secret-file") == str(places.secret)
    assert ("--insecure" in command) == insecure
    assert ("--auth-supernode-private-key" in command) == (not insecure)
    assert address.place == f"{option(command, '--host')}:{option(command, '--port')}"
    assert address.certificate == places.task_authority.read_bytes()
    certificate = load_pem_x509_certificate(places.task_certificate.read_bytes())
    certificate.verify_directly_issued_by(load_pem_x509_certificate(address.certificate))
    key = load_pem_private_key(places.task_key.read_bytes(), None)
    assert key.public_key() == certificate.public_key()


def test_nobody_else_may_read_its_key_and_the_authority_has_none(tmp_path, joined):
    places = SitePlaces(site(tmp_path / "site"))
    places.flower.mkdir(mode=0o755)
    places.task_key.write_bytes(b"an old one")
    places.task_key.chmod(0o644)
    joined(places.folder)
    assert stat.S_IMODE(places.flower.stat().st_mode) == 0o700
    assert stat.S_IMODE(places.task_key.stat().st_mode) == 0o600
    assert [path for path in places.flower.iterdir() if b"PRIVATE" in path.read_bytes()] == [places.task_key]
    authority = load_pem_x509_certificate(places.task_authority.read_bytes())
    assert load_pem_private_key(places.task_key.read_bytes(), None).public_key() != authority.public_key()


def test_every_start_makes_another_authority(tmp_path, joined):
    folder = site(tmp_path / "site")
    (_, first), (_, second) = joined(folder), joined(folder)
    assert first.certificate != second.certificate


def with_tls(supernode, folder):
    """How a server takes a connection that has this certificate."""
    key, certificate = folder / "key", folder / "crt"
    key.write_bytes(supernode.key)
    certificate.write_bytes(supernode.certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    return lambda plain: context.wrap_socket(plain, server_side=True)


def told(taking, known, folder, monkeypatch):
    """What a server is told, in three connections, by a carrier that knows this authority."""
    found = []
    over = threading.Event()
    monkeypatch.setattr(carrying, "AWAY", 0.01)
    with socket.create_server((HERE, 0)) as listener:
        listener.settimeout(20)
        address = Address(f"{HERE}:{listener.getsockname()[1]}", known.authority)
        args = (address, SECRET, Door(folder / "owner.sock", 1.0), over)
        carrier = threading.Thread(target=carry, args=args, daemon=True)
        carrier.start()
        try:
            for _ in range(3):
                found.append(_told_to(listener, taking))
        finally:
            over.set()
            listener.close()
            carrier.join(20)
    assert not carrier.is_alive()
    return found


def _told_to(listener, taking):
    plain, _ = listener.accept()
    plain.settimeout(20)
    try:
        with plain, taking(plain) as taken:
            return taken.recv(2**16)
    except ssl.SSLError as refused:
        return refused.reason


def test_a_server_with_another_certificate_is_asked_for_no_task(tmp_path, monkeypatch):
    stranger = with_tls(vouched([HERE]), tmp_path)
    assert told(stranger, vouched([HERE]), tmp_path, monkeypatch) == ["TLSV1_ALERT_UNKNOWN_CA"] * 3


def test_a_server_without_tls_is_asked_for_no_task(tmp_path, monkeypatch):
    for said in told(lambda plain: plain, vouched([HERE]), tmp_path, monkeypatch):
        assert said.startswith(HELLO)
        assert ASKED not in said


def test_the_supernode_is_asked(tmp_path, monkeypatch):
    supernode = vouched([HERE])
    for said in told(with_tls(supernode, tmp_path), supernode, tmp_path, monkeypatch):
        assert said.startswith(ASKED)


@pytest.mark.parametrize("server", ["127.0.0.1:9092", "fl.example.org:443", "[::1]:9092", "[2001:db8::7]:1"])
def test_a_place_of_a_server(server):
    assert SiteSettings(client="a", server=server).server == server


@pytest.mark.parametrize(
    "server",
    [
        *("fl.example.org", ":9092", "fl:0", "fl:65536", "fl:９", "https://fl:9092", "fl :9092", "::1:9092", "[]:1"),
        *("fl..example.org:9092", f"{'a' * 64}.org:9092", "fl\0:9092"),  # no socket takes them
    ],
)
def test_what_is_no_place_of_a_server_is_refused(server):
    with pytest.raises(BadValue, match=r"server = .* must be"):
        SiteSettings(client="a", server=server)


@pytest.mark.parametrize("server", ["0.0.0.0:9092", "[::]:9092", "10.0.0.7:9092", "localhost.example.org:9092"])
def test_insecure_is_for_loopback_alone(server):
    with pytest.raises(BadValue, match="insecure = true cannot be combined with server"):
        SiteSettings(client="a", server=server, insecure=True)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "localhost.example.org"])
def test_an_insecure_server_listens_on_loopback_alone(host):
    with pytest.raises(BadValue, match=r"insecure = true cannot be combined with listen\.host"):
        ServerSettings(insecure=True, listen=ListenConfig(host=host))
