"""A server that replays responses: the first request of a kind is forwarded to the real server, and its response recorded."""

import asyncio
import contextlib
import multiprocessing


class Stub:
    """Recorded responses, by method and path. Served by a separate process, so that the client is not slowed down."""

    def __init__(self, port):
        self.port = port
        self.answers = {}

    @contextlib.contextmanager
    def serving(self):
        """Starts the server, and yields its port."""
        context = multiprocessing.get_context("fork")
        reader, writer = context.Pipe(duplex=False)
        process = context.Process(target=lambda: asyncio.run(self.serve(writer)), daemon=True)
        process.start()
        try:
            yield reader.recv()
        finally:
            process.terminate()
            process.join()

    async def serve(self, ready):
        server = await asyncio.start_server(self.connection, "127.0.0.1", 0)
        ready.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    async def connection(self, reader, writer):
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                request = head + await body(reader, head)
                # The path without its query. The sandbox's id in it is always the recorded one.
                kind = head.split(b" ", 2)[:2]
                kind = (kind[0], kind[1].split(b"?")[0])
                if kind not in self.answers:
                    self.answers[kind] = await self.record(request)
                writer.write(self.answers[kind])
                await writer.drain()
        writer.close()

    async def record(self, request):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        answer = head + await body(reader, head)
        writer.close()
        return answer


async def body(reader, head):
    """Reads a body, as it is on the wire (RFC 9112, 6)."""
    lines = head.lower().split(b"\r\n")
    headers = dict(line.split(b": ", 1) for line in lines[1:] if b": " in line)
    if headers.get(b"transfer-encoding") == b"chunked":
        whole = b""
        while True:
            size = await reader.readuntil(b"\r\n")
            whole += size + await reader.readexactly(int(size, 16) + 2)
            if int(size, 16) == 0:
                return whole
    if lines[0].split(b" ")[1:2] == [b"204"]:
        return b""
    return await reader.readexactly(int(headers.get(b"content-length", b"0")))
