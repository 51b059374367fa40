"""That the attack of `hostile.py` is real: Flower as it comes runs the server's code at the client, which sends rows."""

import os

import pytest

from prifedsync.deploy.processes import FLOWER, Process, free_port, program, wait_until_listening

from .hostile import KINDS, Operator
from .live import PATIENT, last_lines, until

ROWS = "age,dose,label\n41,0.25,1\n77,0.125,0\n"


@pytest.fixture
def stock(tmp_path):
    """A SuperLink and a SuperNode as they come, and an operator."""
    place = f"127.0.0.1:{free_port()}"
    path = f"{os.path.dirname(program('flwr'))}:{os.environ['PATH']}"
    started = []

    def start(name, *words):
        home = {**FLOWER, "FLWR_HOME": str(tmp_path / name), "PATH": path}
        process = Process([program(name), "--insecure", *words], tmp_path / f"{name}.log", home)
        started.append(process)
        return process

    try:
        link = start("flower-superlink", "--host", "127.0.0.1", "--port", place.rpartition(":")[2])
        wait_until_listening(link, place, PATIENT)
        start("flower-supernode", "--superlink", place, "--port", str(free_port()))
        with Operator(tmp_path / "operator", place) as operator:
            yield operator
    finally:
        for process in reversed(started):
            process.end()


def test_a_stock_client_sends_its_rows(stock, tmp_path):
    records = tmp_path / "records.csv"
    records.write_text(ROWS)
    stock.submit([records], nodes=1)
    got = until(stock.got, lambda: "\n".join(map(last_lines, sorted(tmp_path.glob("*.log")))))
    assert {reply["kind"] for reply in got["replies"]} == set(KINDS)
    for reply in got["replies"]:
        assert reply["content"]["found"] == {str(records): repr(ROWS.encode())}
    assert stock.marker.read_text() == "here"
