"""Code in contexts: interpreters with persistent variables."""

from __future__ import annotations

import contextlib
from typing import Any, Dict, Iterable, List, Literal, Mapping, Optional, Sequence, Tuple, Union

from .. import _calls as calls
from .. import _json as read
from .._calls._call import Duration, Size
from .._calls.code import ContextRef, Function
from .._output import DEFAULT_KEPT_BYTES, OutputCollector
from .._sse import ServerEvent
from ..errors import (
    ConflictException,
    ConnectionException,
    InvalidArgumentException,
    NotFoundException,
    SandboxException,
    error_from_problem,
)
from ..models import CodeContext, CodeStep, Execution, ExecutionError, Logs, Question, Result, SandboxInfo
from . import _io
from ._io import EventCallback, InputCallback, OutputCallback
from ._transport import AsyncTransport


class AsyncCode:
    """Code execution in a sandbox."""

    _transport: AsyncTransport
    _info: SandboxInfo

    @property
    def sandbox_id(self) -> str:
        """The id of the sandbox."""
        return self._info.sandbox_id

    async def run_code(
        self,
        code: str,
        language: Optional[str] = None,
        *,
        context: Optional[ContextRef] = None,
        envs: Optional[Mapping[str, str]] = None,
        env: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        timeout: Optional[Duration] = None,
        on_stdout: Optional[OutputCallback] = None,
        on_stderr: Optional[OutputCallback] = None,
        on_result: Optional[EventCallback[Result]] = None,
        on_error: Optional[EventCallback[ExecutionError]] = None,
        on_input: Optional[InputCallback] = None,
        tools: Optional[Sequence[str]] = None,
        functions: Union[Mapping[str, Function], Iterable[Function], None] = None,
        max_tool_calls: Optional[int] = None,
        on_disconnect: Optional[Literal["continue", "kill"]] = None,
        output: Optional[Size] = None,
        request_timeout: Optional[float] = None,
    ) -> Execution:
        """Runs code in a context, whose variables persist, and waits for its end.

        An error in the code raises no exception: see `error` and `status` of the result. `error` is a `KernelDied` if the
        interpreter ended before the code did.

        Args:
            code: The code, at most 4 MiB.
            language: `python` (the default), `javascript`, `typescript` or `bash`: runs in the default context of the language,
                created on first use. Any other language of `belljar run`, such as `ruby` or `c`, is a separate program each
                time, without persistent variables.
            context: A context of `create_code_context`, or the id of one, instead of a language.
            envs: Variables for this execution alone.
            env: Another name of `envs`.
            cwd: Working directory, for this execution alone: absolute, or relative to the home directory.
            timeout: Time limit; then the code is interrupted, and if that does not help its interpreter is killed. Default: the
                sandbox's `limits.timeout`; 0: no limit.
            on_stdout: Called with each piece of standard output.
            on_stderr: Called with each piece of standard error.
            on_result: Called with each result.
            on_error: Called with the error, if there is one.
            on_input: Answers questions (`input()`): receives the question, a string with the attribute `password`, and returns
                a line, or None to refuse. Without it a question is an error in the code.
            tools: Stored tools that the code may call as `belljar.tools.NAME(…)`: `NAME` or `NAME@VERSION`. Each call is one of
                this client's key, and may wait for approval.
            functions: Functions of this program that the code may call in the same way, by name or as they are called here. The
                code gets the result, or what was raised as a `ToolError`.
            max_tool_calls: How often the code may call them together: 100 if not given, at most 1,000.
            on_disconnect: Behaviour if the connection breaks: the code continues (`continue`), or is ended (`kill`).
            output: Number of bytes kept of each stream; callbacks get everything.
            request_timeout: Seconds without data from the server beyond the code's own time, 0 for no limit.
        """
        if env is not None and envs is not None:
            raise InvalidArgumentException("env is another name of envs; pass only one", field="env")
        offered = calls.code.named(functions)
        streamed = bool(offered) or any(one is not None for one in (on_stdout, on_stderr, on_result, on_error, on_input))
        call = calls.code.run(
            self.sandbox_id,
            code,
            language=language,
            context=context,
            envs=envs if envs is not None else env,
            cwd=cwd,
            timeout=timeout,
            allow_input=on_input is not None,
            tools=tools,
            functions=list(offered),
            max_tool_calls=max_tool_calls,
            on_disconnect=on_disconnect,
            output=output,
            default_timeout=self._info.limits.timeout_s,
            streamed=streamed,
        )
        if not streamed:
            return await self._transport.request(call, request_timeout=request_timeout)
        running = AsyncRunning(self._transport, self.sandbox_id, on_stdout, on_stderr, on_result, on_error, on_input, offered)
        return await running.follow(call)

    async def run_code_step(
        self,
        code: Union[str, Mapping[str, Any]],
        language: Optional[str] = None,
        *,
        functions: Optional[Sequence[str]] = None,
        context: Optional[ContextRef] = None,
        envs: Optional[Mapping[str, str]] = None,
        cwd: Optional[str] = None,
        timeout: Optional[Duration] = None,
        tools: Optional[Sequence[str]] = None,
        max_tool_calls: Optional[int] = None,
        call_timeout: Optional[Duration] = None,
        on_disconnect: Optional[Literal["continue", "kill"]] = None,
        output: Optional[Size] = None,
        request_timeout: Optional[float] = None,
    ) -> CodeStep:
        """Runs code until it calls functions, and returns the calls; or goes on with their results, until it calls again or ends.

        For a caller that answers later, as a loop around a model does, also in another process. The sandbox is frozen between
        two steps. Functions of this program are simpler with `run_code`.

        Args:
            code: The code. Or the results of all calls of a step, by the ids of the calls: JSON, or an exception, which the code
                gets as a `ToolError`; then nothing else but `request_timeout` is given.
            functions: The names of the functions that the code may call as `belljar.tools.NAME(…)`.
            call_timeout: Time for which calls wait for their results: 10 minutes if not given, 1 second to 1 hour. Then the
                code gets an error for each.
            language: See `run_code`, also for the other arguments.
            context: A context instead of a language.
            envs: Variables for this execution alone.
            cwd: Working directory, for this execution alone.
            timeout: Time limit, in which the time between two steps does not count.
            tools: Stored tools that the code may call as well.
            max_tool_calls: How often the code may call them together: 100 if not given, at most 1,000.
            on_disconnect: Whether the code goes on when its calls are not answered in time (`continue`), or is ended (`kill`).
            output: Number of bytes kept of each stream.
            request_timeout: Seconds without data from the server beyond the code's own time, 0 for no limit.
        """
        if isinstance(code, Mapping):
            begun = (language, functions, context, envs, cwd, timeout, tools, max_tool_calls, call_timeout, on_disconnect, output)
            if any(one is not None for one in begun):
                raise InvalidArgumentException("with results the code goes on as it began; pass nothing else", field="code")
            return await self._transport.request(calls.code.go_on(self.sandbox_id, code), request_timeout=request_timeout)
        call = calls.code.begin(
            self.sandbox_id,
            code,
            functions=functions or (),
            call_timeout=call_timeout,
            language=language,
            context=context,
            envs=envs,
            cwd=cwd,
            timeout=timeout,
            tools=tools,
            max_tool_calls=max_tool_calls,
            on_disconnect=on_disconnect,
            output=output,
            default_timeout=self._info.limits.timeout_s,
        )
        return await self._transport.request(call, request_timeout=request_timeout)

    async def create_code_context(
        self,
        language: Optional[str] = None,
        cwd: Optional[str] = None,
        envs: Optional[Mapping[str, str]] = None,
        *,
        env: Optional[Mapping[str, str]] = None,
    ) -> CodeContext:
        """Creates a context in addition to the default contexts of the languages.

        Args:
            language: `python` (the default), `javascript`, `typescript` or `bash`.
            cwd: Initial working directory: absolute, or relative to the home directory, which is the default.
            envs: Variables of everything that runs in it, added to those of the sandbox.
            env: Another name of `envs`.
        """
        if env is not None and envs is not None:
            raise InvalidArgumentException("env is another name of envs; pass only one", field="env")
        call = calls.code.create(self.sandbox_id, language, cwd, envs if envs is not None else env)
        return await self._transport.request(call)

    async def list_code_contexts(self) -> List[CodeContext]:
        """Lists the contexts, oldest first."""
        return await self._transport.request(calls.code.list_contexts(self.sandbox_id))

    async def restart_code_context(self, context: ContextRef) -> CodeContext:
        """Ends a context's interpreter and starts a fresh one under the same id. Its variables are lost."""
        return await self._transport.request(calls.code.restart(self.sandbox_id, context))

    async def interrupt_code_context(self, context: ContextRef) -> bool:
        """Interrupts the running code of a context, like Ctrl-C. Returns False if none was running."""
        return await self._transport.request(calls.code.interrupt(self.sandbox_id, context))

    async def remove_code_context(self, context: ContextRef) -> None:
        """Ends a context, with all processes started in it."""
        await self._transport.request(calls.code.remove(self.sandbox_id, context))


class AsyncRunning:
    """Running code and its results."""

    def __init__(
        self,
        transport: AsyncTransport,
        sandbox_id: str,
        on_stdout: Optional[OutputCallback],
        on_stderr: Optional[OutputCallback],
        on_result: Optional[EventCallback[Result]],
        on_error: Optional[EventCallback[ExecutionError]],
        on_input: Optional[InputCallback],
        functions: Mapping[str, Function],
    ) -> None:
        self._transport = transport
        self._sandbox_id = sandbox_id
        self._callbacks = {"stdout": on_stdout, "stderr": on_stderr}
        self._streams = {"stdout": OutputCollector(), "stderr": OutputCollector()}
        self._texts: Dict[str, List[str]] = {"stdout": [], "stderr": []}
        self._on_result = on_result
        self._on_error = on_error
        self._on_input = on_input
        self._functions = functions
        self._started: Mapping[str, Any] = {}
        self._results: List[Result] = []
        self._error: Optional[ExecutionError] = None

    async def follow(self, call: calls.Call[Execution]) -> Execution:
        """Reads events until the end."""
        stream = await self._transport.events(call)
        try:
            while True:
                event = await stream.receive()
                if event is None:
                    raise ConnectionException("the stream ended before the code; the state of its context is unknown")
                if event.name == "ended":
                    return await self._end(event.data)
                await self._take(event)
        finally:
            await stream.close()

    async def _take(self, event: ServerEvent) -> None:
        if event.name == "started":
            self._started = event.data
        elif event.name in self._streams:
            collector = self._streams[event.name]
            new = collector.feed(read.integer(event.data, "offset", collector.offset), read.data(event.data))
            await self._text(event.name, collector.text(new))
        elif event.name == "result":
            result = Result.from_json(event.data)
            self._results.append(result)
            if self._on_result is not None:
                await _io.notify(self._on_result, result)
        elif event.name == "error":
            if "traceback" not in event.data:
                raise error_from_problem(event.data)
            self._error = ExecutionError.from_json(event.data)
            if self._on_error is not None:
                await _io.notify(self._on_error, self._error)
        elif event.name == "input_requested" and self._on_input is not None:
            question = Question(read.optional_text(event.data, "prompt") or "", bool(event.data.get("password")))
            try:
                answer = await _io.ask(self._on_input, question)
                if answer is not None and not isinstance(answer, str):
                    raise InvalidArgumentException("on_input must return a string or None", field="on_input")
            except BaseException:
                # Do not leave the code waiting. Whether that works or not, the caller gets this error.
                with contextlib.suppress(SandboxException):
                    await self._answer(None)
                raise
            await self._answer(answer)

        elif event.name == "tool_called":
            await self._called(event.data)

    async def _called(self, data: Mapping[str, Any]) -> None:
        name = read.text(data, "name")
        function = self._functions.get(name)
        if function is None:
            # A stored tool, which the server calls.
            return
        try:
            answer = calls.code.to_answer(name, await _io.call(function, read.mapping(data.get("arguments"), "`arguments`")))
        except Exception as error:
            answer = calls.code.to_failure(error)
        except BaseException as error:
            # Do not leave the code waiting. Whether that works or not, the caller gets this error.
            with contextlib.suppress(SandboxException):
                await self._answer_call(data, calls.code.to_failure(error))
            raise
        await self._answer_call(data, answer)

    async def _answer_call(self, data: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        context, number = self._place()
        call = read.integer(data, "call")
        try:
            await self._send(calls.code.answer_call(self._sandbox_id, context, number, call, answer))
        except SandboxException as refused:
            # Such as a result that is too long: the code must not wait for another.
            if "error" in answer:
                raise
            # If only the response was lost, the call has its result, and this one is not waited for.
            failure = calls.code.to_failure(refused)
            await self._send(calls.code.answer_call(self._sandbox_id, context, number, call, failure))

    def _place(self) -> Tuple[str, int]:
        context = read.text(read.mapping(self._started.get("context"), "`context`"), "id")
        return context, read.integer(self._started, "execution")

    async def _answer(self, value: Optional[str]) -> None:
        context, number = self._place()
        await self._send(calls.code.answer(self._sandbox_id, context, number, value))

    async def _send(self, answer: calls.Call[None]) -> None:
        try:
            await self._transport.request(answer)
        except NotFoundException:
            # Nothing waits for it: the code has ended meanwhile, which the next event says.
            pass
        except ConflictException as refused:
            # So is this; but a sandbox that is paused meanwhile goes on to wait.
            if refused.code != "failed_precondition":
                raise

    async def _text(self, name: str, text: str) -> None:
        if not text:
            return
        # If more was written than is kept, the collector's data counts.
        if self._streams[name].offset <= DEFAULT_KEPT_BYTES:
            self._texts[name].append(text)
        callback = self._callbacks[name]
        if callback is not None:
            await _io.notify(callback, text)

    async def _end(self, end: Mapping[str, Any]) -> Execution:
        for name, collector in self._streams.items():
            await self._text(name, collector.text(b"", final=True))
        execution = Execution.from_parts(self._started, self._results, self._logs(), self._error, end)
        if self._error is None and execution.error is not None and self._on_error is not None:
            await _io.notify(self._on_error, execution.error)
        return execution

    def _logs(self) -> Logs:
        kept: Dict[str, Tuple[str, ...]] = {}
        truncated = False
        for name, collector in self._streams.items():
            stream = collector.result()
            truncated = truncated or stream.truncated
            kept[name] = (stream.text,) if stream.truncated else tuple(self._texts[name])
        return Logs(kept["stdout"], kept["stderr"], truncated)
