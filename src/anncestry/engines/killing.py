"""The kill of a load: its server is ended by SIGKILL and started again on its data, and the client goes on.

It comes right after a batch was acknowledged, at which the server has promised to keep that batch and all before it.
A client of such a server sends again what is not acknowledged, and so does this one, counting.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from anncestry.engines.base import Killed, LoadResult, Spec, T
from anncestry.engines.group import GroupServer
from anncestry.errors import ServerError

_ACCEPT_TIMEOUT_S = 300.0
_AGAIN_AFTER_S = 0.1


class Kill:
    """The kill that a `load` (see `engines.base.Engine`) has, or none.

    kill = Kill(server, load, rows, result)
    for … in …:
        answer = kill.send(lambda: insert(…), lambda answer: first_refusal_of(answer))
        result.acknowledge(…)
        kill.when_due()
    """

    def __init__(self, server: GroupServer, load: Spec, rows: int, result: LoadResult) -> None:
        asked = load.get("kill")
        self._server, self._result = server, result
        self._due_rows = None if asked is None else asked["after_share"] * rows

    def when_due(self) -> None:
        """Kill the server and start it again, if as many rows as were asked are acknowledged; once."""
        result = self._result
        if self._due_rows is None or result.killed is not None or result.rows_acknowledged < self._due_rows:
            return
        result.killed = Killed(result.rows_acknowledged, time.monotonic())
        self._server.crash()

    def send(self, insert: Callable[[], T], refusal: Callable[[T], str | None]) -> T:
        """What `insert` returns; after the kill it is called until it neither fails nor has a `refusal`.

        ServerError from `insert` as long as nothing was killed; later, if the server is gone or time is up.
        """
        killed = self._result.killed
        if killed is None:
            return insert()
        deadline = time.monotonic() + _ACCEPT_TIMEOUT_S
        while True:
            try:
                answer = insert()
                problem = refusal(answer)
            except ServerError as error:
                problem = str(error.args[0])
            else:
                if problem is None:
                    killed.accepted_s = killed.accepted_s or time.monotonic()
                    return answer
            self._server.check_alive()
            if time.monotonic() > deadline:
                raise ServerError(
                    f"not accepted within {_ACCEPT_TIMEOUT_S:.0f} s since the server was killed: {problem}"
                )
            killed.resent += 1
            time.sleep(_AGAIN_AFTER_S)
