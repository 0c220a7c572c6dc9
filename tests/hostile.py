"""Servers that want the driver to come to harm: each connection gets a conversation of its own, from a seed.

A conversation goes as it should up to one of its steps; there the server says something else: good bytes damaged, a
trick of its protocol, a part over and over, nothing at all, or one byte after the other.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import random
import struct
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

PASSWORD, VARIABLE = "the planted password", "TEST_HOSTILE_PASSWORD"
NONCE = b"N" * 24
"""What stands for the client's, which is as long, in what a test wants said."""
ENDLESS_BYTES = 64 << 20
"""What nobody may take of an answer without an end. (A socket's buffers hold some of it.)"""


class Over(Exception):
    """The conversation has ended."""


class Talk:
    """One conversation. `harm` is the step at which it goes wrong; `how` is to be said there, else it is drawn."""

    def __init__(self, hostile: Hostile, harm: int, dice: random.Random, how: bytes | None = None) -> None:
        self.hostile, self.harm, self.dice, self.how = hostile, harm, dice, how
        self.step, self.nonce = 0, NONCE

    async def begin(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.exactly = reader.readexactly
        with suppress(Over, OSError, EOFError, asyncio.LimitOverrunError, asyncio.CancelledError):
            await TALKS[self.hostile.kind](self)

    async def say(self, good: bytes, tricks: list[bytes]) -> None:
        """Say what is good, or at its step do harm and end."""
        self.step += 1
        if self.step <= self.harm:
            self.writer.write(good)
            return await self.writer.drain()
        if self.how is not None:
            self.writer.write(self.how.replace(NONCE, self.nonce))
        else:
            await self.drawn(good, tricks)
        await self.writer.drain()
        half_open = self.dice.random() < 0.01
        if self.how is not None or half_open:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.reader.read(1 << 20), 3 if half_open and self.how is None else None)
        if half_open:  # that was all that it will ever say
            await asyncio.sleep(3)
        raise Over

    async def drawn(self, good: bytes, tricks: list[bytes]) -> None:
        said = self.dice.choice(tricks) if self.dice.random() < 0.6 else damaged(good, self.dice)
        way = self.dice.random()
        if way < 0.1 and said:
            sent = 0
            part = said * (1 + (1 << 16) // len(said))
            while sent < ENDLESS_BYTES:
                self.writer.write(part)
                await self.writer.drain()
                sent += len(part)
            self.hostile.swallowed += 1
        elif way < 0.15:
            for number in range(min(40, len(said))):
                self.writer.write(said[number : number + 1])
                await self.writer.drain()
                await asyncio.sleep(0.002)
        else:
            self.writer.write(said)


def damaged(good: bytes, dice: random.Random) -> bytes:
    data = bytearray(good)
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(data) + 1)
        match dice.randrange(5):
            case 0:
                del data[at:]
            case 1:
                data[at:at] = dice.randbytes(dice.randint(1, 9))
            case 2:
                data[at : at + 4] = dice.choice([b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff", b"\x80\0\0\0"])
            case 3:
                data[at:at] = data[at : at + dice.randint(1, 40)]
            case _:
                if at < len(data):
                    data[at] ^= 1 << dice.randrange(8)
    return bytes(data)


# HTTP/1.1

OK_HTTP = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\nhello"
HEAD = b"HTTP/1.1 200 OK\r\n"
HTTP = [
    HEAD + b"X: y\r\n",
    HEAD + b"X: " + b"y" * 100_000,
    HEAD + b"X: y\r\n" * 9_000 + b"\r\n",
    *(HEAD + b"Content-Length: %b\r\n\r\nhello" % size for size in (b"-1", b"4611686018427387904", b"x", b"9" * 80)),
    HEAD + b"Content-Length: 1\r\nContent-Length: 99\r\n\r\nhello",
    *(
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n%b\r\nhello" % size
        for size in (b"7fffffffffffffff", b"-5", b"g", b"", b"0", b"1" * 200, b"5;" + b"a" * 70_000)
    ),
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 50_000,
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n0\r\n" + b"X: y\r\n" * 50_000,
    b"HTTP/1.1 100 Continue\r\n\r\n" * 3,
    b"HTTP/1.1 101 Switching Protocols\r\n\r\nhello",
    *(b"HTTP/1.1 %b OK\r\n\r\nhello" % status for status in (b"abc", b"999", b"000", b"-20", b"2")),
    b"HTTP/2.0 200 OK\r\n\r\n",
    OK_HTTP * 3,
    b"HTTP/1.1 500 No\r\n\r\n" + b"z" * 100_000,
    b"\0" * 70_000,
    b"\r\n\r\n",
    b"",
]


async def http(talk: Talk) -> None:
    while True:
        head = await talk.reader.readuntil(b"\r\n\r\n")
        await talk.exactly(int(head.rpartition(b"Content-Length: ")[2]))
        await talk.say(OK_HTTP, HTTP)


# gRPC


def frame(kind: int, flags: int, stream: int, payload: bytes, length: int | None = None) -> bytes:
    size = len(payload) if length is None else length
    return size.to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def literal(name: bytes, value: bytes, first: int = 0) -> bytes:
    """A header; its value is of less than 127 bytes, or 16,000."""
    size = len(value)
    length = bytes([size]) if size < 127 else bytes([127, (size - 127) & 127 | 128, (size - 127) >> 7])
    return bytes([first, len(name)]) + name + length + value


BOMB = literal(b"x", b"y" * 120, 0x40) * 30 + b"\xbe" * 16_000
"""Entries of the table, and thousands of one byte that each stand for one of them."""
SETTINGS = frame(4, 0, 0, b"")
GREETING_H2 = [
    *(frame(4, 0, 0, struct.pack(">HI", *each)) for each in ((1, 0), (1, 2**32 - 1), (4, 2**32 - 1), (5, 0), (5, 1))),
    frame(4, 0, 0, b"\0\4\0"),
    frame(4, 0, 0, bytes(6) * 2000),
    frame(4, 0, 0, b"", 2**24 - 1),
    SETTINGS + frame(8, 0, 0, b"\x7f\xff\xff\xff") * 3,
    SETTINGS + frame(6, 0, 0, b"pingpong"),
    frame(7, 0, 0, bytes(8)),
    frame(7, 0, 0, b""),
    frame(5, 4, 1, b"\0\0\0\2"),
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"",
]


def answer_h2(stream: int) -> tuple[bytes, list[bytes]]:
    start = frame(1, 4, stream, b"\x88" + literal(b"content-type", b"application/grpc"))
    good = frame(1, 5, stream, literal(b"grpc-status", b"0"))

    def told(*payloads: bytes) -> bytes:
        return start + b"".join(frame(0, 0, stream, each) for each in payloads) + good

    def trailers(*pairs: tuple[bytes, bytes]) -> bytes:
        return start + frame(1, 5, stream, b"".join(literal(*pair) for pair in pairs))

    tricks = [
        told(),
        told(b"\1\0\0\0\5hello"),
        told(b"\0\xff\xff\xff\xffhello"),
        told(b"\0\0\0\0\5hello" * 2),
        told(b"\0\0\0\0\5he"),
        told(*[b"\0"] * 300),
        start + frame(0, 0, stream, b"\0\xff\xff\xff\xff") + frame(0, 0, stream, bytes(16_000)) * 3,
        start + frame(0, 8, stream, b"\xff1"),
        start + frame(1, 40, stream, b"\0"),
        frame(1, 0, stream, b"\x88") + frame(0, 0, stream, b"hello"),
        frame(1, 0, stream, b"\x88") + frame(9, 0, stream, literal(b"x", b"y" * 120) * 60),
        frame(1, 0, stream, b"\x88") + frame(9, 0, stream, b"") * 500,
        frame(9, 4, stream, b""),
        frame(1, 5, stream, BOMB),
        frame(1, 4, stream, b"\x88" + BOMB) + frame(0, 0, stream, b"\0\0\0\0\5hello") + good,
        frame(1, 5, stream, b"\x3f\xff\xff\xff\xff\x0f"),
        frame(1, 5, stream, b"\x7f\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
        frame(1, 5, stream, b"\0\x8f" + b"\xff" * 15 + b"\0"),
        frame(1, 5, stream, b"\xff\xff\xff\xff\x7f"),
        trailers((b"grpc-status", b"9" * 90)),
        trailers((b"grpc-status", b"-1"), (b"grpc-message", b"%zz%")),
        trailers((b"grpc-status", b"13"), (b"grpc-message", b"%41" * 30)),
        trailers((b"x", b"y")),
        frame(1, 5, stream, literal(b":status", b"503")),
        frame(3, 0, stream, b"\0\0\0\1"),
        frame(3, 0, stream, b""),
        frame(5, 4, stream, b"\0\0\0\2"),
        frame(7, 0, 0, bytes(8)),
        frame(6, 0, 0, b"pingpong") * 2000,
        frame(8, 0, stream, b"\x7f\xff\xff\xff") * 2,
        frame(0, 1, stream, b""),
        frame(0, 0, stream + 2, b"\0\0\0\0\5hello"),
        frame(255, 255, 2**31 - 1, b"?" * 16_384),
        b"",
    ]
    return told(b"\0\0\0\0\5hello"), tricks


async def grpc(talk: Talk) -> None:
    await talk.exactly(24)
    await talk.say(SETTINGS, GREETING_H2)
    while True:
        head = await talk.exactly(9)
        await talk.exactly(int.from_bytes(head[:3], "big"))
        if head[3] == 0 and head[4] & 1:
            await talk.say(*answer_h2(int.from_bytes(head[5:9], "big")))


# MySQL


def packet(number: int, body: bytes, size: int | None = None) -> bytes:
    return (len(body) if size is None else size).to_bytes(3, "little") + bytes([number]) + body


FLAGS = 1 << 0 | 1 << 2 | 1 << 3 | 1 << 9 | 1 << 13 | 1 << 15 | 1 << 17 | 1 << 19
SALT = b"12345678abcdefghijkl"
CACHING = b"caching_sha2_password"


def greeting(salt: bytes = SALT, plugin: bytes = CACHING) -> bytes:
    flags = struct.pack("<HBHH", FLAGS & 0xFFFF, 45, 2, FLAGS >> 16)
    head = b"\x0a8.0-null\0\1\0\0\0" + salt[:8] + b"\0" + flags + b"\x15" + bytes(10)
    return packet(0, head + salt[8:] + b"\0" + plugin + b"\0")


def pem(der: bytes) -> bytes:
    return b"-----BEGIN PUBLIC KEY-----\n" + base64.encodebytes(der) + b"-----END PUBLIC KEY-----\n"


def rsa(modulus: int, exponent: int = 65537) -> bytes:
    """A public key of RSA, as good or bad as its numbers."""

    def der(tag: int, body: bytes) -> bytes:
        size = len(body).to_bytes((len(body).bit_length() + 7) // 8, "big")
        return bytes([tag]) + (size if len(body) < 128 else bytes([0x80 | len(size)]) + size) + body

    def whole(value: int) -> bytes:
        return der(2, value.to_bytes(value.bit_length() // 8 + 1, "big"))

    kind = der(0x30, bytes.fromhex("06092a864886f70d0101010500"))
    return pem(der(0x30, kind + der(3, b"\0" + der(0x30, whole(modulus) + whole(exponent)))))


KEYS = [rsa(2**2047), rsa(2**2047 + 1), rsa(2**100_001 + 1), rsa(15), rsa(1), rsa(2**2047 + 1, 1), pem(b"garbage"), b""]
OK_PACKET = b"\0\0\0\2\0\0\0"
MORE = b"\0\0\0\x0a\0\0\0"
GREETINGS = [
    greeting(b""),
    greeting(SALT[:8]),
    greeting(SALT[:19]),
    greeting(plugin=b"\xff" * 60),
    packet(0, b"\x09old"),
    packet(0, b"\x0a8.0\0" + bytes(15)),
    packet(0, b"\xff\x10\x04Too many connections"),
    packet(0, b"\xff"),
    packet(0, b""),
    packet(0, b"\x0a" * 70_000),
    packet(0, b"\x0a", 2**24 - 1),
    b"",
]
LOGINS = [
    packet(2, b"\xfe" + CACHING + b"\0"),
    packet(2, b"\xfe" + CACHING + b"\0") + packet(4, b"\1\4"),
    packet(2, b"\xfe" + CACHING + b"\0" + SALT + b"\0") * 50,
    packet(2, b"\xfemysql_native_password\0" + SALT[:4] + b"\0"),
    packet(2, b"\xfemysql_native_password\0" + SALT + b"\0") + packet(4, b"\1\4") + packet(6, b"\1" + KEYS[1]),
    packet(2, b"\xfemysql_clear_password\0\0"),
    packet(2, b"\xfedialog\0\0"),
    packet(2, b"\xfe"),
    packet(2, b"\1"),
    packet(2, b"\1\3") * 100,
    packet(2, b"\1\4") * 2,
    *(packet(2, b"\1\4") + packet(4, b"\1" + key) for key in KEYS),
    packet(2, b"\xff\x15\x04#28000Access denied"),
    packet(2, b""),
    b"",
]
COLUMN = b"\3def\0\0\0\1v\0\x0c\x3f\0\0\0\0\1\xfc\0\0\0\0\0"
ROWS = packet(1, b"\1") + packet(2, COLUMN) + packet(3, b"\xfe\0\0\2\0") + packet(4, b"\5hello")
REPLIES = [
    packet(1, b"\xfe" + b"\xff" * 8),
    packet(1, b"\xfe" + b"\0" * 7 + b"\x80") + packet(2, COLUMN) * 500,
    packet(1, b"\xfd\xff"),
    packet(1, b"\xfb/etc/passwd"),
    packet(1, b"\0"),
    packet(1, b"\0\xff\xff"),
    packet(1, MORE) * 1000,
    packet(1, b"\xff"),
    packet(1, b"\xff\1\2#"),
    packet(1, b""),
    packet(1, bytes(70_000), 2**24 - 1),
    packet(1, b"\1") + packet(2, COLUMN) * 2,
    ROWS,
    packet(1, b"\1") + packet(2, COLUMN) + packet(3, b"\xfe\0\0\2\0") + packet(4, b"\xff\x15\x04gone"),
    packet(1, b"\0\1\0\0\0\xff\xff\xff\xff\0\0\0") + packet(2, COLUMN) * 300,
    b"",
]


async def mysql(talk: Talk) -> None:
    async def read() -> bytes:
        head = await talk.exactly(4)
        return await talk.exactly(int.from_bytes(head[:3], "little"))

    await talk.say(greeting(), GREETINGS)
    await read()
    await talk.say(packet(2, b"\1\3") + packet(3, OK_PACKET), LOGINS)
    while True:
        sent = await read()
        good = packet(1, OK_PACKET) if sent.startswith(b"\3SET") else ROWS + packet(5, b"\xfe\0\0\2\0")
        await talk.say(good, REPLIES)


# PostgreSQL


def message(kind: bytes, body: bytes, size: int | None = None) -> bytes:
    return kind + struct.pack(">I", len(body) + 4 if size is None else size) + body


def login(kind: int, body: bytes = b"") -> bytes:
    return message(b"R", struct.pack(">I", kind) + body)


def forged(nonce: str, rounds: object, salt: str = "c2FsdHNhbHQ=") -> bytes:
    """The server's first message of SCRAM."""
    return login(11, f"r={nonce},s={salt},i={rounds}".encode())


READY, LET_IN, SASL = message(b"Z", b"I"), login(0), login(10, b"SCRAM-SHA-256\0\0")
ODD = [
    *(message(b"R", b"", size) for size in (0, 3, 4, 2**31 - 1, 2**31, 2**32 - 1)),
    *(login(kind, b"abcd") for kind in (0, 2, 3, 5, 6, 7, 8, 9, 12, 99, 2**32 - 1)),
    LET_IN + READY,
    READY,
    login(12, b"v="),
    login(12, b"v=") + LET_IN + READY,
    login(12) + LET_IN + READY,
    SASL + login(12, b"v=") + LET_IN + READY,
    SASL * 20,
    login(10),
    login(10, b"PLAIN\0\0"),
    message(b"N", b"SNOTICE\0MHello\0\0") * 900,
    message(b"S", b"x\0y\0") * 900,
    message(b"E", b""),
    message(b"E", b"SFATAL\0"),
    message(b"E", b"SFATAL\0C28P01\0M" + b"no " * 30_000 + b"\0\0"),
    b"SSSS",
    b"",
]
HELLO = message(b"T", b"\0\1v" + bytes(19)) + message(b"D", b"\0\1\0\0\0\5hello") + message(b"C", b"SELECT 1\0") + READY
ANSWERS = [
    *ODD,
    message(b"D", bytes(60_000)),
    message(b"D", bytes(1000), 2**30),
    message(b"D", b"") * 3000,
    message(b"G", b"\0\0\0"),
    message(b"H", b"\0\0\0") + message(b"d", b"x" * 100) * 500,
    message(b"E", b"SERROR\0C1\0Mno\0\0") * 3,
    READY * 3,
]


async def postgres(talk: Talk) -> None:
    async def read() -> bytes:
        head = await talk.exactly(5)
        return head[:1] + await talk.exactly(int.from_bytes(head[1:], "big") - 4)

    await talk.exactly(int.from_bytes(await talk.exactly(4), "big") - 4)
    talk.hostile.unproven.add(talk)
    await talk.say(SASL, ODD)
    first = (await read()).partition(b"n,,")[2].decode()
    nonce = first.partition("r=")[2]
    talk.nonce = nonce.encode()
    good = forged(nonce + "more", 4096)
    tricks = [
        *ODD,
        good * 2,
        good + login(12, b"v=") + LET_IN + READY,
        *(forged(nonce, rounds) for rounds in (0, -1, 1, 4095, 1_000_001, 2**31, 10**18, "x", "")),
        forged("", 4096),
        forged(nonce, 4096, ""),
        forged(nonce, 4096, "%"),
        login(11),
    ]
    await talk.say(good, tricks)
    final = (await read())[1:].decode().rpartition(",p=")[0]
    salted = hashlib.pbkdf2_hmac("sha256", PASSWORD.encode(), b"saltsalt", 4096)
    whole = f"{first},{good[9:].decode()},{final}".encode()
    key = hmac.digest(salted, b"Server Key", "sha256")
    shown = login(12, b"v=" + base64.b64encode(hmac.digest(key, whole, "sha256")))
    if talk.step < talk.harm:
        talk.hostile.unproven.discard(talk)
    # What is damaged here is what would follow: a signature that a flipped bit leaves as it is would be a good one.
    await talk.say(shown, [*ODD, login(12, b"v=AAAA") + LET_IN + READY, login(12, b"v=") + LET_IN, good])
    await talk.say(LET_IN + READY, ODD)
    while True:
        sent = await read()
        if talk in talk.hostile.unproven:
            talk.hostile.believed.append(sent)
        if sent[:1] == b"P":
            continue
        good = {b"S": message(b"1", b"") + READY}.get(sent[:1], HELLO)
        await talk.say(message(b"C", b"SET\0") + READY if sent.startswith(b"QSET") else good, ANSWERS)


# Redis

LIST = b"*3\r\n:1\r\n$3\r\nd:7\r\n*2\r\n$4\r\ndist\r\n$3\r\n0.5\r\n"
VALUES = [
    b"$-2\r\n",
    b"*99999999999\r\n",
    b"*2147483647\r\n" * 3,
    b"*1\r\n" * 40_000,
    b"$1099511627776\r\n",
    b"$1099511627775\r\n" + b"x" * 50_000,
    b"$9223372036854775807\r\n",
    b"$x\r\n",
    b"$3\r\nhello\r\n",
    b"$2\r\nhello\r\n",
    b"+" + b"x" * 70_000,
    b"-ERR " + b"no " * 30_000 + b"\r\n",
    b"-\xff\xfe\r\n",
    b"*1\r\n-ERR inside\r\n" * 2,
    b"%1\r\n+a\r\n+b\r\n",
    b"\r\n",
    b"\n",
    LIST * 3,
    b"HTTP/1.1 400 Bad Request\r\n\r\n",
    b"",
]


async def redis(talk: Talk) -> None:
    async def read() -> bytes:
        count = int((await talk.reader.readuntil(b"\r\n"))[1:])
        for _ in range(count):
            part = await talk.exactly(int((await talk.reader.readuntil(b"\r\n"))[1:]) + 2)
        return part[:-2]

    assert await read() == PASSWORD.encode()
    await talk.say(b"+OK\r\n", VALUES)
    while True:
        await read()
        await talk.say(LIST, VALUES)


TALKS: dict[str, Callable[[Talk], Awaitable[None]]] = {
    "http": http, "grpc": grpc, "mysql": mysql, "postgres": postgres, "redis": redis,
}  # fmt: skip
BEFORE = {"http": 0, "grpc": 1, "mysql": 3, "postgres": 6, "redis": 1}
"""Steps before the first answer."""
TRANSPORTS: dict[str, dict[str, Any]] = {
    "http": {"method": "POST", "path": "/", "headers": {}},
    "grpc": {"method": "/a/b"},
    "mysql": {"user": "root", "password_env": VARIABLE, "init": ["SET a = 1"]},
    "postgres": {"user": "root", "password_env": VARIABLE, "init": ["SET a = 1"], "prepare": ["SELECT 1"]},
    "redis": {"user": "root", "password_env": VARIABLE},
}


class Hostile:
    """A hostile server of a kind. The first `tame` conversations go well up to the first answer.

    `how` and `harm`: what every conversation says, and at which step; else both are drawn.
    """

    def __init__(self, kind: str, tame: int = 0, seed: int = 0, how: bytes | None = None, harm: int = 0) -> None:
        self.kind, self.tame, self.seed, self.how, self.harm = kind, tame, seed, how, harm
        self.count = self.swallowed = 0
        self.believed: list[bytes] = []
        """What was sent to a server of PostgreSQL that had not shown that it knows the password."""
        self.unproven: set[Talk] = set()

    @property
    def transport(self) -> dict[str, Any]:
        return {"kind": self.kind, "target": self.target, **TRANSPORTS[self.kind]}

    async def meet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dice = random.Random(f"{self.kind} {self.seed} {self.count}")
        lowest = BEFORE[self.kind] if self.count < self.tame else 0
        self.count += 1
        harm = self.harm if self.how is not None else dice.randint(lowest, BEFORE[self.kind] + 1)
        try:
            await Talk(self, harm, dice, self.how).begin(reader, writer)
        finally:
            writer.close()


@contextmanager
def hostile(*arguments: Any, **more: Any) -> Iterator[Hostile]:
    """One that listens while the block lasts."""
    server = Hostile(*arguments, **more)
    loop, ready = asyncio.new_event_loop(), threading.Event()
    stop = asyncio.Event()

    async def run() -> None:
        listener = await asyncio.start_server(server.meet, "127.0.0.1", 0, backlog=1000)
        server.target = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
        ready.set()
        await stop.wait()
        listener.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), daemon=True)
    thread.start()
    assert ready.wait(600)
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(600)
        loop.close()


def forms(secret: str) -> list[bytes]:
    """The secret as it is, and as the encodings show it that are in use around headers."""
    plain = secret.encode()
    return [
        plain,
        base64.b64encode(plain)[:-4],
        base64.b64encode(f"Bearer {secret}".encode())[:-4],
        plain.hex().encode(),
    ]
