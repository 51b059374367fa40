"""A SuperLink that ends is started again; one that never listens is given up with a reason."""

import socket
import threading
import time
from itertools import pairwise

import pytest

from prifedsync.deploy import superlink as links
from prifedsync.deploy.places import ServerPlaces
from prifedsync.deploy.processes import check_free
from prifedsync.deploy.settings import ListenConfig, ServerSettings
from prifedsync.deploy.superlink import SuperLink
from prifedsync.values import BadValue

from ..owner.sites import until


class FakeProcess:
    """Runs until the test ends it. `fails`: at which starts there is no process at all."""

    started = 0
    fails = ()
    last = None

    def __init__(self, command, log, environment):
        FakeProcess.started += 1
        if FakeProcess.started in FakeProcess.fails:
            raise OSError("no space left on device")
        self.command = command
        self.environment = environment
        self.runs = True
        self.status = None
        FakeProcess.last = self

    def end(self):
        self.runs = False


@pytest.fixture
def link(tmp_path, monkeypatch):
    FakeProcess.started = 0
    FakeProcess.fails = ()
    monkeypatch.setattr(links, "Process", FakeProcess)
    monkeypatch.setattr(links, "program", lambda name: name)
    monkeypatch.setattr(links, "AGAIN", 0.01)
    monkeypatch.setattr(links, "wait_until_listening", lambda process, place, seconds: None)
    monkeypatch.setattr(links, "check_free", lambda host, port: None)
    return SuperLink(ServerSettings(), ServerPlaces(tmp_path))


def follows(command, option, value):
    return (option, str(value)) in pairwise(command)


def test_it_executes_nothing_and_takes_registered_keys_alone(link, tmp_path):
    places = ServerPlaces(tmp_path)
    with link:
        started = FakeProcess.last
    assert follows(started.command, "--isolation", "process")  # else it starts executors, which unpack what comes
    assert follows(started.command, "--superexec-auth-secret-file", places.secret)
    assert follows(started.command, "--ssl-certfile", places.certificate)
    assert "--enable-supernode-auth" in started.command
    assert "--insecure" not in started.command
    assert started.environment["FLWR_TELEMETRY_ENABLED"] == "0"
    assert started.environment["FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION"] == "1"


def test_an_insecure_one_executes_nothing_either(tmp_path, monkeypatch):
    monkeypatch.setattr(links, "program", lambda name: name)
    places = ServerPlaces(tmp_path)
    command = SuperLink(ServerSettings(insecure=True), places)._command()
    assert follows(command, "--isolation", "process")
    assert follows(command, "--superexec-auth-secret-file", places.secret)
    assert follows(command, "--host", "127.0.0.1")
    assert "--insecure" in command


def test_it_is_started_again_after_more_ends_than_a_start_is_tried(link):
    with link:
        for number in range(1, 2 * links.MOST_STARTS):
            until(lambda number=number: FakeProcess.started >= number and FakeProcess.last.runs)
            FakeProcess.last.runs = False
        until(lambda: FakeProcess.started >= 2 * links.MOST_STARTS)
    assert not FakeProcess.last.runs


def test_a_full_disk_is_waited_out_once_it_has_listened(link):
    FakeProcess.fails = (2, 3, 4, 5, 6, 7, 8)
    with link:
        FakeProcess.last.runs = False
        until(lambda: FakeProcess.started >= 9 and FakeProcess.last.runs)


def test_one_that_never_listens_is_given_up_with_the_reason(link, monkeypatch):
    def never(process, place, seconds):
        raise BadValue("flower-superlink", place, "does not listen")

    monkeypatch.setattr(links, "wait_until_listening", never)
    with pytest.raises(BadValue, match="does not listen"), link:
        pass
    assert FakeProcess.started == links.MOST_STARTS


def test_one_that_cannot_be_started_at_all_is_given_up_too(link):
    FakeProcess.fails = range(1, 100)
    with pytest.raises(OSError, match="no space left"), link:
        pass


def test_one_that_is_interrupted_while_it_starts_is_ended(link, monkeypatch):
    """Its files would be written while a rehearsal removes its folder."""
    monkeypatch.setattr(links, "wait_until_listening", lambda process, place, seconds: time.sleep(0.5))
    monkeypatch.setattr(link, "_listens", Interrupted())
    with pytest.raises(KeyboardInterrupt), link:
        pass
    assert not link._thread.is_alive()
    assert not FakeProcess.last.runs


class Interrupted(threading.Event):
    """Ctrl-C while somebody waits."""

    def wait(self, timeout=None):
        until(lambda: FakeProcess.started)
        raise KeyboardInterrupt


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_that_another_program_has_is_refused_and_nothing_is_started(link, tmp_path, monkeypatch, host):
    monkeypatch.setattr(links, "check_free", check_free)
    with socket.create_server(("127.0.0.1", 0)) as other:
        settings = ServerSettings(listen=ListenConfig(host=host, port=other.getsockname()[1]))
        with pytest.raises(BadValue, match=r"cannot be listened on \(Address already in use\); .* in server\.toml"):
            SuperLink(settings, ServerPlaces(tmp_path)).__enter__()
    assert not FakeProcess.started


def test_a_port_that_was_just_left_is_free():
    with socket.create_server(("127.0.0.1", 0)) as left:
        place = left.getsockname()
        with socket.create_connection(place):
            left.accept()[0].close()
    check_free(*place)


def test_what_is_tried_again_is_not_said_before_it_is_given_up(link, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(links, "check_free", check_free)
    settings = ServerSettings(listen=ListenConfig(host="192.0.2.1"))
    with pytest.raises(BadValue):
        SuperLink(settings, ServerPlaces(tmp_path)).__enter__()
    assert not caplog.records


def test_a_host_of_another_machine_is_refused():
    with pytest.raises(BadValue, match=r"listen = 192\.0\.2\.1:9092 cannot be listened on"):
        check_free("192.0.2.1", 9092)


@pytest.mark.parametrize("host", ["fl..example.org", "a" * 64, "fl\0"])
def test_what_no_socket_takes_for_a_host_is_refused_with_its_field(host):
    with pytest.raises(BadValue, match=r"^listen\.host = .* must be a host name or an IP address"):
        ServerSettings(listen=ListenConfig(host=host))
