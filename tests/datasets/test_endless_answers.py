"""No server's answer is longer, takes longer or leads further than it may: downloads, and questions to what we run."""

from __future__ import annotations

import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc
import pymysql
import pytest

from anncestry import web
from anncestry.datasets import fetching
from anncestry.datasets.fetching import fetch
from anncestry.engines.channel import CHANNEL_OPTIONS
from anncestry.engines.mysql import serve as mysql
from anncestry.engines.weaviate.serve import Rest
from anncestry.errors import DataError, ServerError
from anncestry.runtimes.native import http_get

HEAD = b"HTTP/1.1 200 OK\r\n"


@contextmanager
def saying(say: Callable[[socket.socket], None]) -> Iterator[tuple[str, list[int]]]:
    """A server that reads a request of each connection and then says what it likes: host:port, bytes that it sent."""
    sent = [0]

    class Counted:
        def __init__(self, connection: socket.socket) -> None:
            self._connection = connection

        def sendall(self, data: bytes) -> None:
            self._connection.sendall(data)
            sent[0] += len(data)

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listening.accept()
                threading.Thread(target=answer, args=[connection], daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.recv(1 << 16)
            say(Counted(connection))  # type: ignore[arg-type]  # it sends as one

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}", sent
        listening.shutdown(socket.SHUT_RDWR)


def endlessly(connection: Any, piece: bytes = bytes(1 << 16)) -> None:
    while True:
        connection.sendall(piece)


def dripping(connection: Any, piece: bytes = b"x") -> None:
    while True:
        connection.sendall(piece)
        threading.Event().wait(0.05)


ENDLESS: dict[str, Callable[[Any], None]] = {
    "a body without a length": lambda it: (it.sendall(HEAD + b"\r\n"), endlessly(it)),
    "a body longer than any": lambda it: (it.sendall(HEAD + b"Content-Length: 99999999999\r\n\r\n"), endlessly(it)),
    "chunks": lambda it: (
        it.sendall(HEAD + b"Transfer-Encoding: chunked\r\n\r\n"),
        endlessly(it, b"10000\r\n" + bytes(1 << 16) + b"\r\n"),
    ),
}
DRIPPING: dict[str, Callable[[Any], None]] = {
    "a body": lambda it: (it.sendall(HEAD + b"\r\n"), dripping(it)),
    "a body of a length": lambda it: (it.sendall(HEAD + b"Content-Length: 9999\r\n\r\n"), dripping(it)),
    "a header": lambda it: (it.sendall(HEAD + b"X: "), dripping(it)),
    "answers to come": lambda it: dripping(it, b"HTTP/1.1 100 Continue\r\n\r\n"),
}


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(fetching, "_PAUSE_S", 0.0)


# Downloads


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_download_ends_at_the_bytes_that_the_config_allows(kind: str, tmp_path: Path) -> None:
    with (
        saying(ENDLESS[kind]) as (address, _),
        pytest.raises(DataError, match=r"sends more than 1000000 bytes|allows at most 1000000"),
    ):
        fetch(f"http://{address}/a", tmp_path / "a", most=1_000_000)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1_000_001
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("kind", DRIPPING)
def test_a_download_that_drips_ends_when_its_time_is_over(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_LONGEST_S", 0.5)
    with saying(DRIPPING[kind]) as (address, _), pytest.raises(DataError, match="not complete within 1 s"):
        fetch(f"http://{address}/a", tmp_path / "a", most=10_000)
    assert not (tmp_path / "a").exists()


def redirect(to: str) -> Callable[[Any], None]:
    return lambda it: it.sendall(f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n".encode("latin-1"))


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("ftp://127.0.0.1/a", "302 .*not allowed|leads from http to ftp"),
        ("file:///etc/hostname", "302 .*not allowed|leads from http to file"),
        ("data:text/plain,x", "302 .*not allowed|leads from http to data"),
        ("http://[::1/a", "redirects to an invalid address"),
        ("http://127.0.0.1:port/a", "redirects to an invalid address|nonnumeric port"),
        ("http://a\xfcb:99999999/", "."),
        ("?again", "302 .*redirect|infinite loop"),
        ("", "."),
    ],
)
def test_a_redirect_that_leads_elsewhere_or_nowhere_is_one_sentence(to: str, said: str, tmp_path: Path) -> None:
    with saying(redirect(to)) as (address, _), pytest.raises(DataError, match=said) as raised:
        fetch(f"http://{address}/a", tmp_path / "a")
    assert "\n" not in str(raised.value) and not (tmp_path / "a").exists()


def test_what_comes_with_a_redirect_is_not_read(tmp_path: Path) -> None:
    def say(connection: Any) -> None:
        connection.sendall(b"HTTP/1.1 302 Found\r\nLocation: /again\r\n\r\n")
        endlessly(connection)

    with saying(say) as (address, sent):
        with pytest.raises(DataError, match="302"):
            fetch(f"http://{address}/a", tmp_path / "a")
        assert sent[0] < 100 << 20  # what the sockets hold, of each redirect


def test_a_redirect_from_https_to_http_is_not_followed() -> None:
    request = fetching.urllib.request.Request("https://127.0.0.1/a")
    with pytest.raises(fetching._Unreachable, match="leads from https to http"):
        fetching._Redirects().redirect_request(request, None, 302, "", {}, "http://127.0.0.1/a")


@pytest.mark.parametrize("stated", ["-1", "1_000", "\xb2", "9" * 5000, "ten", "1, 1"])
def test_a_length_that_is_none_is_one_sentence(stated: str, tmp_path: Path) -> None:
    answer = HEAD + f"Content-Length: {stated}\r\n\r\nabc".encode("latin-1")
    with (
        saying(lambda it: it.sendall(answer)) as (address, _),
        pytest.raises(DataError, match="the server states an invalid length") as raised,
    ):
        fetch(f"http://{address}/a", tmp_path / "a")
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 200


# Questions to servers


@pytest.mark.parametrize("kind", ENDLESS)
def test_an_endless_answer_to_a_question_is_cut_at_its_cap(kind: str) -> None:
    """It wrote 0.63 GB into memory in a time-out of 2 s."""
    with saying(ENDLESS[kind]) as (address, sent):
        with pytest.raises(OSError, match=f"an answer of more than {web.ANSWER_BYTES} bytes"):
            http_get(address, "/metrics", 60.0)
        assert sent[0] < 2 * web.ANSWER_BYTES  # what the sockets hold comes on top
        host, _, port = address.rpartition(":")
        with pytest.raises(ServerError, match="weaviate: GET /v1/schema: an answer of more than"):
            Rest(host, int(port)).call("GET", "/v1/schema", timeout_s=60.0)


@pytest.mark.parametrize("kind", DRIPPING)
def test_an_answer_that_drips_ends_with_the_time_out_of_the_whole(kind: str) -> None:
    with saying(DRIPPING[kind]) as (address, _):
        with pytest.raises(TimeoutError, match=r"no whole answer within 0\.5 s"):
            http_get(address, "/healthz", 0.5)
        host, _, port = address.rpartition(":")
        assert Rest(host, int(port)).status("/v1/.well-known/ready", timeout_s=0.5) is None


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP", b"\xff" * 100, HEAD + b"Content-Length: 5\r\n\r\nab", b"HTTP/1.1 302 Found\r\nLocation: /b\r\n\r\n"],
)
def test_an_answer_that_is_none_is_an_error_that_callers_expect(answer: bytes) -> None:
    with saying(lambda it: it.sendall(answer)) as (address, _), pytest.raises(OSError):
        http_get(address, "/", 30.0)


def test_an_answer_that_is_no_json_is_one_sentence() -> None:
    with (
        saying(lambda it: it.sendall(HEAD + b"Content-Length: 3\r\n\r\n{]}")) as (address, _),
        pytest.raises(ServerError, match="GET /v1/schema: answered what is no JSON"),
    ):
        Rest("127.0.0.1", int(address.rpartition(":")[2])).call("GET", "/v1/schema")


def test_a_whole_answer_is_had() -> None:
    with saying(lambda it: it.sendall(HEAD + b"Content-Length: 2\r\n\r\nOK")) as (address, _):
        assert http_get(address, "/", 30.0) == b"OK"


def test_a_grpc_answer_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = dict(CHANNEL_OPTIONS)
    assert 0 < limits["grpc.max_receive_message_length"] <= 1 << 30
    server = grpc.server(futures.ThreadPoolExecutor(1), options=[("grpc.max_send_message_length", -1)])
    size = limits["grpc.max_receive_message_length"] + 1
    answer = grpc.method_handlers_generic_handler(
        "a", {"b": grpc.unary_unary_rpc_method_handler(lambda *_: bytes(size))}
    )
    server.add_generic_rpc_handlers([answer])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with (
            grpc.insecure_channel(f"127.0.0.1:{port}", options=CHANNEL_OPTIONS) as channel,
            pytest.raises(grpc.RpcError) as raised,
        ):
            channel.unary_unary("/a/b")(b"", timeout=300)
        assert raised.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    finally:
        server.stop(None).wait()


def packet(number: int, body: bytes) -> bytes:
    return struct.pack("<I", len(body))[:3] + bytes([number % 256]) + body


def test_a_mysql_answer_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result whose rows never end, from a server that lets everybody in."""
    monkeypatch.setattr(mysql, "_ANSWER_BYTES", 1 << 20)
    hello = b"\x0a8.0.1\0" + struct.pack("<I", 1) + b"12345678\0" + struct.pack("<HBHHB", 0x8200, 45, 2, 0x0008, 21)
    hello += bytes(10) + b"123456789012\0mysql_native_password\0"
    column = b"\x03def\0\0\0\x01a\0\x0c" + struct.pack("<HIBHB", 45, 100, 0xFD, 0, 0) + bytes(2)
    ok = b"\0\0\0\2\0\0\0"

    def serve(listening: socket.socket) -> None:
        connection, _ = listening.accept()
        with connection, suppress(OSError):
            connection.sendall(packet(0, hello))
            connection.recv(1 << 16)
            connection.sendall(packet(2, ok))
            while not re.search(b"SELECT 1", connection.recv(1 << 16)):
                connection.sendall(packet(1, ok))
            connection.sendall(packet(1, b"\1") + packet(2, column) + packet(3, b"\xfe\0\0\2\0"))
            number = 4
            while True:
                connection.sendall(packet(number, b"\xfc\xe8\x03" + bytes(1000)))
                number += 1

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, args=[listening], daemon=True).start()
        host, port = listening.getsockname()
        connection = mysql._Connection(host=host, port=port, user="a", password="", autocommit=None, ssl_disabled=True)
        with pytest.raises(pymysql.err.OperationalError, match="an answer of more than 1048576 bytes"):
            connection.query("SELECT 1")
