# Made by scripts/make_sync.py from ../_async/code.py. Change that one.
"""Code in contexts: interpreters whose variables live on."""

from __future__ import annotations

from typing import Any, Dict, List, Literal, Mapping, Optional, Tuple

from .. import _calls as calls
from .. import _json as read
from .._calls._call import Duration, Size
from .._calls.code import ContextRef
from .._output import DEFAULT_KEPT_BYTES, OutputCollector
from .._sse import ServerEvent
from ..errors import ConnectionException, InvalidArgumentException, error_from_problem
from ..models import CodeContext, Execution, ExecutionError, Logs, Question, Result, SandboxInfo
from . import _io
from ._io import EventCallback, InputCallback, OutputCallback
from ._transport import Transport


class Code:
    """What a sandbox can do with code."""

    _transport: Transport
    _info: SandboxInfo

    @property
    def sandbox_id(self) -> str:
        """Its id."""
        return self._info.sandbox_id

    def run_code(
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
        on_disconnect: Optional[Literal["continue", "kill"]] = None,
        output: Optional[Size] = None,
        request_timeout: Optional[float] = None,
    ) -> Execution:
        """Runs code in a context, whose variables live on, and waits for its end.

        An error in the code is no exception here: see `error` and `status` of what comes back.

        Args:
            code: The code, at most 4 MiB.
            language: `python` (if nothing is given), `javascript`, `typescript` or `bash`: the context that each language has of
                its own, which is made when it is first used. Any other that `belljar run` knows, such as `ruby` or `c`, is a
                program each time, of which no variables live on.
            context: A context of `create_code_context`, or the id of one, in place of a language.
            envs: Variables for this execution alone.
            env: Another name of `envs`.
            cwd: Where it runs, for this execution alone: absolute, or relative to the home directory.
            timeout: How long it may take; then it is interrupted, and if that does not help its interpreter is killed. The
                sandbox's `limits.timeout` if not given, 0: no limit.
            on_stdout: Called with each piece of standard output as it comes.
            on_stderr: The same for standard error.
            on_result: Called with each result as it comes.
            on_error: Called with the error, if there is one.
            on_input: Answers questions (`input()`): gets the question, a text with the attribute `password`, and gives a line,
                or None if nobody will answer. Without it a question is an error in the code.
            on_disconnect: What happens when the connection breaks: the code goes on (`continue`), or is ended (`kill`).
            output: How many bytes of each stream are kept; callbacks get everything.
            request_timeout: Seconds that the server may be silent beyond the code's own time, 0 for no limit.
        """
        if env is not None and envs is not None:
            raise InvalidArgumentException("env is another name of envs; give one of them", field="env")
        streamed = any(one is not None for one in (on_stdout, on_stderr, on_result, on_error, on_input))
        call = calls.code.run(
            self.sandbox_id,
            code,
            language=language,
            context=context,
            envs=envs if envs is not None else env,
            cwd=cwd,
            timeout=timeout,
            allow_input=on_input is not None,
            on_disconnect=on_disconnect,
            output=output,
            default_timeout=self._info.limits.timeout_s,
            streamed=streamed,
        )
        if not streamed:
            return self._transport.request(call, request_timeout=request_timeout)
        running = Running(self._transport, self.sandbox_id, on_stdout, on_stderr, on_result, on_error, on_input)
        return running.follow(call)

    def create_code_context(
        self,
        language: Optional[str] = None,
        cwd: Optional[str] = None,
        envs: Optional[Mapping[str, str]] = None,
        *,
        env: Optional[Mapping[str, str]] = None,
    ) -> CodeContext:
        """Makes a context beside those that each language has of its own.

        Args:
            language: `python` (if not given), `javascript`, `typescript` or `bash`.
            cwd: Where it begins: absolute, or relative to the home directory, which it is if not given.
            envs: Variables of all that runs in it, added to those of the sandbox.
            env: Another name of `envs`.
        """
        if env is not None and envs is not None:
            raise InvalidArgumentException("env is another name of envs; give one of them", field="env")
        call = calls.code.create(self.sandbox_id, language, cwd, envs if envs is not None else env)
        return self._transport.request(call)

    def list_code_contexts(self) -> List[CodeContext]:
        """The contexts, the oldest first."""
        return self._transport.request(calls.code.list_contexts(self.sandbox_id))

    def restart_code_context(self, context: ContextRef) -> CodeContext:
        """Ends a context's interpreter and starts a fresh one under the same id. Its variables are lost."""
        return self._transport.request(calls.code.restart(self.sandbox_id, context))

    def interrupt_code_context(self, context: ContextRef) -> bool:
        """Interrupts the code that runs in a context, as Ctrl-C does. False: none ran."""
        return self._transport.request(calls.code.interrupt(self.sandbox_id, context))

    def remove_code_context(self, context: ContextRef) -> None:
        """Ends a context, with everything that was started in it."""
        self._transport.request(calls.code.remove(self.sandbox_id, context))


class Running:
    """Code that runs, and what has come of it."""

    def __init__(
        self,
        transport: Transport,
        sandbox_id: str,
        on_stdout: Optional[OutputCallback],
        on_stderr: Optional[OutputCallback],
        on_result: Optional[EventCallback[Result]],
        on_error: Optional[EventCallback[ExecutionError]],
        on_input: Optional[InputCallback],
    ) -> None:
        self._transport = transport
        self._sandbox_id = sandbox_id
        self._callbacks = {"stdout": on_stdout, "stderr": on_stderr}
        self._streams = {"stdout": OutputCollector(), "stderr": OutputCollector()}
        self._texts: Dict[str, List[str]] = {"stdout": [], "stderr": []}
        self._on_result = on_result
        self._on_error = on_error
        self._on_input = on_input
        self._started: Mapping[str, Any] = {}
        self._results: List[Result] = []
        self._error: Optional[ExecutionError] = None

    def follow(self, call: calls.Call[Execution]) -> Execution:
        """Reads events until the end."""
        stream = self._transport.events(call)
        try:
            while True:
                event = stream.receive()
                if event is None:
                    raise ConnectionException("the stream ended before the code; what became of its context is not known")
                if event.name == "ended":
                    return self._end(event.data)
                self._take(event)
        finally:
            stream.close()

    def _take(self, event: ServerEvent) -> None:
        if event.name == "started":
            self._started = event.data
        elif event.name in self._streams:
            collector = self._streams[event.name]
            new = collector.feed(read.integer(event.data, "offset", collector.offset), read.data(event.data))
            self._text(event.name, collector.text(new))
        elif event.name == "result":
            result = Result.from_json(event.data)
            self._results.append(result)
            if self._on_result is not None:
                _io.notify(self._on_result, result)
        elif event.name == "error":
            if "traceback" not in event.data:
                raise error_from_problem(event.data)
            self._error = ExecutionError.from_json(event.data)
            if self._on_error is not None:
                _io.notify(self._on_error, self._error)
        elif event.name == "input_requested" and self._on_input is not None:
            question = Question(read.optional_text(event.data, "prompt") or "", bool(event.data.get("password")))
            try:
                answer = _io.ask(self._on_input, question)
                if answer is not None and not isinstance(answer, str):
                    raise InvalidArgumentException("on_input has to give a text or None", field="on_input")
            except BaseException:
                # The code is not left waiting.
                self._answer(None)
                raise
            self._answer(answer)

    def _answer(self, value: Optional[str]) -> None:
        context = read.text(read.mapping(self._started.get("context"), "`context`"), "id")
        number = read.integer(self._started, "execution")
        self._transport.request(calls.code.answer(self._sandbox_id, context, number, value))

    def _text(self, name: str, text: str) -> None:
        if not text:
            return
        # Of more than is kept, what the collector has is what counts.
        if self._streams[name].offset <= DEFAULT_KEPT_BYTES:
            self._texts[name].append(text)
        callback = self._callbacks[name]
        if callback is not None:
            _io.notify(callback, text)

    def _end(self, end: Mapping[str, Any]) -> Execution:
        for name, collector in self._streams.items():
            self._text(name, collector.text(b"", final=True))
        return Execution.from_parts(self._started, self._results, self._logs(), self._error, end)

    def _logs(self) -> Logs:
        kept: Dict[str, Tuple[str, ...]] = {}
        truncated = False
        for name, collector in self._streams.items():
            stream = collector.result()
            truncated = truncated or stream.truncated
            kept[name] = (stream.text,) if stream.truncated else tuple(self._texts[name])
        return Logs(kept["stdout"], kept["stderr"], truncated)
