"""A start that falls over what passes is made once more, and the server says so; any other is not."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from anncestry.engines.base import Server
from anncestry.engines.milvus.serve import PASSING
from anncestry.engines.native import start_native
from anncestry.errors import ServerError
from anncestry.runtimes.base import Limits, Member, Runner
from anncestry.runtimes.native import NativeRunner, clean_environment, free_ports

PROGRAM = """
import pathlib, socket, sys
before = pathlib.Path("starts").read_text().split() if pathlib.Path("starts").exists() else []
pathlib.Path("starts").write_text(" ".join([*before, sys.argv[1]]))
if len(before) < int(sys.argv[2]):
    sys.exit(sys.argv[3])
listening = socket.create_server(("127.0.0.1", int(sys.argv[1])))
while True:
    listening.accept()[0].close()
"""


class Listener(Server):
    @property
    def endpoint(self) -> str:
        return next(iter(self.group)).addresses["port"]


def start(
    folder: Path, fails: int, words: str, first_port: int | None = None, runner_of: Callable[[], Runner] = NativeRunner
) -> Listener:
    """A server whose first `fails` starts end with these words."""
    folder.mkdir(exist_ok=True)

    def launch(group, ports, runner) -> Listener:
        command = [sys.executable, "-c", PROGRAM, str(ports["port"]), str(fails), words]
        log = folder / "server.log"
        handle = runner.start("one", "one", command, clean_environment(), folder, log, Limits(), [ports["port"]])
        group.add(Member("one", "one", handle, {"port": f"127.0.0.1:{ports['port']}"}, term_wait_s=3))
        return Listener(group, {})

    def answers(server: Listener) -> bool | None:
        host, _, port = server.endpoint.partition(":")
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            return None
        return True

    return start_native("one", launch, answers, ["port"], first_port, runner_of=runner_of, passing=PASSING)


PANIC = "panic: find no available datacoord, check datacoord state"


def test_a_start_that_finds_a_part_of_itself_not_registered_yet_is_made_once_more_and_says_so(tmp_path, capfd):
    server = start(tmp_path, 1, PANIC)
    try:
        first, second = (tmp_path / "starts").read_text().split()
        assert first == second, "on the same ports: what the first one registered there is found again"
        said = "one died before anything answered: find no available datacoord"
        assert server.repeats() == {"start_repeated": said}
        assert said in capfd.readouterr().err
    finally:
        server.stop()


TAKEN = "listen tcp 127.0.0.1: bind: address already in use"


def test_a_start_whose_port_was_taken_meanwhile_is_made_again_on_others_and_says_so(tmp_path):
    server = start(tmp_path, 2, TAKEN)
    try:
        ports = (tmp_path / "starts").read_text().split()
        assert len(ports) == 3 and len(set(ports)) > 1
        assert server.repeats() == {
            "start_repeated": "another program had taken a port; another program had taken a port"
        }
    finally:
        server.stop()


def test_a_start_on_ports_that_the_user_chose_and_a_third_one_in_vain_are_errors(tmp_path):
    with pytest.raises(ServerError, match="start failed"):
        start(tmp_path / "chosen", 1, TAKEN, free_ports(1)[0])
    assert len((tmp_path / "chosen" / "starts").read_text().split()) == 1
    with pytest.raises(ServerError, match="start failed"):
        start(tmp_path / "any", 3, TAKEN)
    assert len((tmp_path / "any" / "starts").read_text().split()) == 3


def test_the_time_of_a_start_begins_with_its_first_member_and_not_with_what_we_prepare(tmp_path):
    """As the image of a container, which may have to be fetched."""
    ready_s = []

    def runner() -> NativeRunner:
        time.sleep(0.2)
        ready_s.append(time.monotonic())
        return NativeRunner()

    server = start(tmp_path, 2, TAKEN, runner_of=runner)
    try:
        assert len(ready_s) == 3
        assert ready_s[0] <= server.began_s < ready_s[1], "of a start that was repeated, too"
        assert server.start_s <= time.monotonic() - ready_s[-1]
    finally:
        server.stop()


def test_a_server_that_was_started_once_says_nothing_of_it(tmp_path):
    server = start(tmp_path, 0, "")
    try:
        assert server.repeats() == {}
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("fails", "words", "starts"),
    [(2, PANIC, 2), (1, "panic: the data folder was written by a newer version", 1)],
)
def test_a_start_that_fails_again_or_for_another_reason_is_an_error(tmp_path, fails, words, starts):
    with pytest.raises(ServerError, match="start failed") as failed:
        start(tmp_path, fails, words)
    assert words in failed.value.log_tail
    assert len((tmp_path / "starts").read_text().split()) == starts
