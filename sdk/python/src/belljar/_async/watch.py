"""A watch on a directory of a sandbox."""

from __future__ import annotations

from typing import List, Optional

from .. import _calls as calls
from ..errors import ConnectionException, SandboxException, error_from_problem
from ..models import FilesystemEvent
from . import _io
from ._io import EventCallback
from ._transport import AsyncEventStream

MAX_WAITING_EVENTS = 10_000
"""Maximum number of unread events. Further events are dropped and reported as one `overflow`."""


class AsyncWatchHandle:
    """A watch. Iterate over its events, or poll with `get_new_events`; call `stop` when done."""

    def __init__(self, stream: AsyncEventStream, on_event: Optional[EventCallback[FilesystemEvent]]) -> None:
        """Reads this stream in the background."""
        self._stream = stream
        self._on_event = on_event
        self._mailbox: _io.Mailbox[FilesystemEvent] = _io.Mailbox(MAX_WAITING_EVENTS)
        self._overflowed = False
        self._stopping = False
        self._reader = _io.Background(self._read, self._interrupt)

    @classmethod
    async def _begin(cls, stream: AsyncEventStream, on_event: Optional[EventCallback[FilesystemEvent]]) -> AsyncWatchHandle:
        try:
            event = await stream.receive()
            if event is None:
                raise ConnectionException("the server ended the watch before it started")
            if event.name == "error":
                raise error_from_problem(event.data)
            if event.name != "ready":
                raise SandboxException(f"the watch started with {event.name!r}")
        except BaseException:
            await stream.close()
            raise
        return cls(stream, on_event)

    def get_new_events(self) -> List[FilesystemEvent]:
        """Returns the events since the last call; does not wait. Raises if the watch has failed and no events are left."""
        events = self._mailbox.drain()
        if self._overflowed:
            self._overflowed = False
            events.append(FilesystemEvent(type="overflow", path=None, is_dir=False))
        return events

    def __aiter__(self) -> AsyncWatchHandle:
        """Yields the events, until `stop`."""
        return self

    async def __anext__(self) -> FilesystemEvent:
        """The next event."""
        if self._on_event is not None:
            raise SandboxException("the events of this watch are passed to a callback; they cannot be iterated over as well")
        if self._overflowed:
            self._overflowed = False
            return FilesystemEvent(type="overflow", path=None, is_dir=False)
        there, event = await self._mailbox.take()
        if not there or event is None:
            raise StopAsyncIteration
        return event

    async def stop(self) -> None:
        """Ends the watch. Raises the exception of a callback, or the error that ended the watch."""
        self._stopping = True
        ended_before = self._reader.done
        await self._reader.stop()
        await self._stream.close()
        self._mailbox.end()
        if ended_before:
            await self._reader.join()

    async def __aenter__(self) -> AsyncWatchHandle:
        """Returns itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stops the watch."""
        await self.stop()

    async def _interrupt(self) -> None:
        await self._stream.interrupt()

    async def _read(self) -> None:
        try:
            while True:
                event = await self._stream.receive()
                if event is None:
                    raise ConnectionException("the server ended the watch")
                if event.name == "error":
                    raise error_from_problem(event.data)
                told = calls.files.watch_event(event.name, event.data)
                if self._on_event is not None:
                    await _io.notify(self._on_event, told)
                elif not self._mailbox.put(told):
                    self._overflowed = True
        except BaseException as error:
            if self._stopping:
                self._mailbox.end()
                return
            self._mailbox.end(error)
            raise
