"""What stands before a managed server: it takes TLS off, or only listens, and passes everything on as it is."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress

from anncestry.drive.certificates import Certificates


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, seen: bytearray | None = None) -> None:
    with suppress(OSError):
        while part := await reader.read(1 << 16):
            if seen is not None:
                seen += part
            writer.write(part)
            await writer.drain()
    with suppress(OSError):
        writer.close()


@contextmanager
def pump(upstream: str, certificates: Certificates, protocol: str, asked: bytes = b"") -> Iterator[str]:
    """host:port that speaks TLS (and `protocol` under it, by ALPN) before `upstream`, while the block lasts.

    With `asked`, only once a client has sent that in the clear, as PostgreSQL's do; it is told S.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.certificate, certificates.key)
    context.set_alpn_protocols([protocol])
    host, _, port = upstream.rpartition(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if asked:
            if await reader.read(len(asked)) != asked:
                return writer.close()
            writer.write(b"S")
            await writer.start_tls(context)
        there, back = await asyncio.open_connection(host, int(port))
        await asyncio.gather(_pass_on(reader, back), _pass_on(there, writer))

    with _serving(serve, None if asked else context) as address:
        yield address


@contextmanager
def tap(upstream: str) -> Iterator[tuple[str, list[bytearray]]]:
    """host:port before `upstream`, while the block lasts, and what clients sent there, by connection."""
    host, _, port = upstream.rpartition(":")
    seen: list[bytearray] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        own = bytearray()
        seen.append(own)
        there, back = await asyncio.open_connection(host, int(port))
        await asyncio.gather(_pass_on(reader, back, own), _pass_on(there, writer))

    with _serving(serve, None) as address:
        yield address, seen


@contextmanager
def _serving(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]], context: ssl.SSLContext | None
) -> Iterator[str]:
    loop, found, stop = asyncio.new_event_loop(), threading.Event(), asyncio.Event()
    address: list[str] = []

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        address.append(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        found.set()
        await stop.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), daemon=True)
    thread.start()
    assert found.wait(600)
    try:
        yield address[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(600)
        loop.close()
