"""No server can harm the driver: it ends in time and memory, with a sentence, and believes nobody unproven.

Findings 9, 10 and 12 of the review of security. More conversations: ANNCESTRY_FUZZ=50 makes so many times as many.
"""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anncestry.drive import protocol
from anncestry.drive.client import ERROR, OK
from anncestry.drive.driver import Driver
from anncestry.drive.null import NullServer
from anncestry.errors import ServerError
from tests import hostile
from tests.hostile import (
    BEFORE,
    CACHING,
    KEYS,
    LET_IN,
    NONCE,
    READY,
    ROWS,
    SALT,
    SASL,
    forged,
    frame,
    login,
    packet,
)

TIMES = int(os.environ.get("ANNCESTRY_FUZZ", "1"))
CLIENTS, EACH, ANSWER_BYTES = 24, 40, 1 << 18


@pytest.fixture(autouse=True)
def password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hostile.VARIABLE, hostile.PASSWORD)


def run(
    folder: Path, transport: dict[str, Any], clients: int = 1, each: int = 4, driver: str = "native", **more: Any
) -> protocol.Outcome:
    """By a driver of its own: it has the password in its environment, and tells of its own memory."""
    protocol.write_requests(folder, [b"request"])
    protocol.write_job(
        folder, transport=transport, schedule=np.zeros((clients, each), int),
        prime=np.zeros((clients, more.pop("prime", 0)), int),
        **{"requests": folder, "timeout_s": 60.0, "answer_bytes_max": ANSWER_BYTES, **more},
    )  # fmt: skip
    with Driver(driver) as started:
        started.run(folder)
    return protocol.read_outcome(folder)


def errors(outcome: protocol.Outcome) -> set[str]:
    return {text for client in outcome.facts["clients"] for text in client["errors"]}


@pytest.mark.parametrize("kind", BEFORE)
@pytest.mark.parametrize("seed", range(TIMES))
def test_a_thousand_hostile_conversations_end_in_failed_samples_and_none_is_believed(
    kind: str, seed: int, tmp_path: Path
) -> None:
    with hostile.hostile(kind, CLIENTS, seed) as server:
        outcome = run(tmp_path, server.transport, CLIENTS, EACH, timeout_s=20.0)
    assert len(outcome.samples) == CLIENTS * EACH
    assert server.count > len(outcome.samples) / 4, "most requests met a conversation of their own"
    failed = outcome.samples["status"] != OK
    assert len(outcome.samples) / 10 < failed.sum(), "they were hostile"
    assert len(errors(outcome)) > 7
    assert not [text for text in errors(outcome) if "report this" in text or len(text) > 310], errors(outcome)
    assert outcome.facts["rss_peak_mib"] < 512
    assert server.swallowed == 0, "an answer without an end was taken to its end"
    assert server.believed == []


PROOF = r"did not show that it knows the password"
REFUSED: dict[str, tuple[str, int, bytes, str]] = {
    "finding 9: a switch to another login with an empty salt": (
        "mysql", 1, packet(2, b"\xfe" + CACHING + b"\0") + packet(4, b"\1\4") + packet(6, b"\1" + KEYS[1]),
        "salt for the login has 0 bytes, not 20",
    ),
    "a greeting with half a salt": ("mysql", 0, packet(0, b"\x0a8.0\0" + bytes(4) + SALT[:8] + bytes(3)),
        "salt for the login has 8 bytes, not 20"),
    "a key of the older login": (
        "mysql", 1, packet(2, b"\xfemysql_native_password\0" + SALT + b"\0") + packet(4, b"\1\4"),
        "a login that the driver does not know",
    ),
    "an even modulus": ("mysql", 1, packet(2, b"\1\4") + packet(4, b"\1" + KEYS[0]), "rsa"),
    "a key of 12 kB": ("mysql", 1, packet(2, b"\1\4") + packet(4, b"\1" + KEYS[2]), "none of RSA, or too long"),
    "finding 10: the end of SCRAM before its middle": (
        "postgres", 0, SASL + login(12, b"v=") + LET_IN + READY, PROOF,
    ),
    "the end of SCRAM is left out": ("postgres", 1, forged(NONCE.decode(), 4096) + LET_IN + READY, PROOF),
    "a wrong proof": ("postgres", 2, login(12, b"v=AAAA") + LET_IN + READY, PROOF),
    "no proof is asked or shown": ("postgres", 0, LET_IN + READY, PROOF),
    "no login at all": ("postgres", 0, READY, "is ready before a login"),
    "SCRAM without end": ("postgres", 1, forged(NONCE.decode(), 4_000_000), "4000000 rounds of SCRAM"),
    "SCRAM that hides little": ("postgres", 1, forged(NONCE.decode(), 1), "asks for 1 rounds of SCRAM"),
    "SCRAM twice": ("postgres", 0, SASL * 2, "login 10, which the driver does not know"),
    "another's nonce": ("postgres", 1, forged("A" * 24, 4096), "is not SCRAM"),
    "a window that is too large": ("grpc", 0, frame(4, 0, 0, b"\0\4\xff\xff\xff\xff"), "larger than HTTP/2 has"),
}  # fmt: skip


@pytest.mark.parametrize("trick", REFUSED)
def test_a_login_that_is_none_is_refused_in_a_sentence_and_nothing_is_asked(trick: str, tmp_path: Path) -> None:
    kind, harm, how, complaint = REFUSED[trick]
    with (
        hostile.hostile(kind, how=how, harm=harm) as server,
        pytest.raises(ServerError, match=rf"^client 0 of the driver failed: no connection to .*{complaint}"),
    ):
        run(tmp_path, server.transport, timeout_s=60.0)
    assert server.believed == []


@pytest.mark.parametrize("way", [("native", kind) for kind in BEFORE] + [("python", "grpc"), ("python", "http")])
def test_an_answer_longer_than_any_can_be_fails_and_is_in_no_file(way: tuple[str, str], tmp_path: Path) -> None:
    """Finding 12: an endless answer filled the disk until its time was over."""
    with NullServer(way[1], reply_bytes=2 * ANSWER_BYTES) as server:
        outcome = run(tmp_path, server.transport, driver=way[0])
    assert (outcome.samples["status"] == ERROR).all()
    (text,) = errors(outcome)
    assert re.search(rf"more than {ANSWER_BYTES} bytes|larger than max \(\d+ vs. {ANSWER_BYTES}\)", text)
    assert b"xxxx" not in (tmp_path / "responses.0.bin").read_bytes()


def test_what_a_failed_answer_held_is_in_no_file(tmp_path: Path) -> None:
    head = ROWS[: ROWS.index(packet(4, b"\5hello"))]
    long = head + packet(4, b"planted" * 100_000) + packet(5, b"\xff\x15\x04#28000no planted here")
    with hostile.hostile("mysql", how=long, harm=BEFORE["mysql"]) as server:
        outcome = run(tmp_path, server.transport, each=1, answer_bytes_max=1 << 24)
    assert errors(outcome) == {"MySQL error 1045: no planted here"}
    assert b"planted" not in (tmp_path / "responses.0.bin").read_bytes()


@pytest.mark.parametrize("prime", [0, 1], ids=["measuring", "priming"])
def test_a_panic_of_the_driver_is_a_sentence(prime: int, tmp_path: Path) -> None:
    protocol.write_requests(tmp_path / "damaged", [b"request"])
    np.array([0, 2**40], "<u8").tofile(tmp_path / "damaged" / "requests.idx")
    with (
        NullServer("http") as server,
        pytest.raises(ServerError, match=r"^the native driver failed: .*out of range.*: please report this$"),
    ):
        run(tmp_path / "job", server.transport, prime=prime, requests=tmp_path / "damaged")


def test_a_driver_that_is_ended_is_reported_with_the_last_it_said(tmp_path: Path) -> None:
    died = r"^the native driver failed: it died \(exit 2\): SIGABRT: abort$"
    with Driver() as driver, NullServer("http", delay_ms=20) as server:
        protocol.write_requests(tmp_path, [b"request"])
        rows = np.zeros((1, 1000), int)
        protocol.write_job(
            tmp_path, requests=tmp_path, transport=server.transport, schedule=rows, prime=rows[:, :1], timeout_s=60.0
        )

        def end() -> None:
            for pid in driver.pids():
                os.kill(pid, signal.SIGABRT)

        with pytest.raises(ServerError, match=died):
            driver.run(tmp_path, ready=end)  # it has answered: it is up
