"""Wraps the synchronous client in the interface of the asynchronous one, so that each test runs with both."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, AsyncIterator

import belljar
from belljar._dual import dual

_END = object()


class Lifted:
    """An object of the synchronous client. Calls that its counterpart would await run in a thread."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        if callable(found) and not isinstance(found, type):
            return _method(self.inner, name, found)
        return lift(found)

    async def __aenter__(self) -> Any:
        return lift(await asyncio.to_thread(self.inner.__enter__))

    async def __aexit__(self, *error: Any) -> Any:
        return await asyncio.to_thread(self.inner.__exit__, *error)

    async def __aiter__(self) -> AsyncIterator[Any]:
        iterator = iter(self.inner)
        while True:
            item = await asyncio.to_thread(next, iterator, _END)
            if item is _END:
                return
            yield lift(item)

    def __repr__(self) -> str:
        return repr(self.inner)


def lift(value: Any) -> Any:
    """Returns the asynchronous form of a result."""
    if isinstance(value, list):
        return [lift(item) for item in value]
    if type(value).__module__.startswith("belljar._sync") or inspect.isgenerator(value):
        return Lifted(value)
    return value


def _lower(value: Any) -> Any:
    return value.inner if isinstance(value, Lifted) else value


def _method(owner: Any, name: str, function: Any) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        given = [_lower(value) for value in args]
        return lift(function(*given, **{key: _lower(value) for key, value in kwargs.items()}))

    async def call_in_thread(*args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(call, *args, **kwargs)

    return call_in_thread if _awaited(owner, name) else call


def _awaited(owner: Any, name: str) -> bool:
    """Reports whether the asynchronous form of this method is awaited."""
    kind = owner if isinstance(owner, type) else type(owner)
    other = inspect.getattr_static(asynchronous(kind), name)
    if isinstance(other, dual):
        other = other.on_object
    if isinstance(other, (classmethod, staticmethod)):
        other = other.__func__
    return inspect.iscoroutinefunction(other)


def asynchronous(kind: type) -> type:
    """Returns the asynchronous form of a class."""
    name = f"Async{kind.__name__}"
    found = getattr(belljar, name, None)
    if found is None:
        import belljar._async._transport as transport

        found = getattr(transport, name)
    assert isinstance(found, type)
    return found


class Api:
    """The client under test, by the names of the synchronous one."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.is_async = kind == "async"
        self.Sandbox: Any = belljar.AsyncSandbox if self.is_async else Lifted(belljar.Sandbox)
        self.Volume: Any = belljar.AsyncVolume if self.is_async else Lifted(belljar.Volume)
        self.Secret: Any = belljar.AsyncSecret if self.is_async else Lifted(belljar.Secret)

    def Belljar(self, *args: Any, **kwargs: Any) -> Any:
        if self.is_async:
            return belljar.AsyncBelljar(*args, **kwargs)
        return Lifted(belljar.Belljar(*args, **kwargs))

    def SandboxProvider(self, **options: Any) -> Any:
        if self.is_async:
            return belljar.AsyncSandboxProvider(**options)
        return Lifted(belljar.SandboxProvider(**options))
