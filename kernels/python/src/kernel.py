"""The kernel: one Python context behind a control socket."""

import json
import os
import sys
import threading
import time

from _belljar import extras, loops, tools, wire
from _belljar.bundle import Budget, plain, shorten
from _belljar.errors import Describer, exit_status
from _belljar.place import Place
from _belljar.streams import flush, forget_descriptors, keep_descriptors, repair_streams

MAX_PROMPT = 4 * 1024
MAX_ARGUMENTS = 256 * 1024
PROTOCOL = 1


class Kernel:
    """A shell and the state around its executions."""

    def __init__(self, shell):
        """Creates a kernel without a connection to a guest."""
        self.shell = shell
        self.describer = Describer()
        self.shell.describer = self.describer
        self.interrupts = None
        self.wire = None
        self.pid = None
        self.current = None
        self.last = None
        self.budget = Budget()
        self.loop = None
        self.answers = False
        self.token = None
        self.calls = 0
        self._warned = False
        self._main_sent = False
        shell.sink = self.show
        shell.loop_runner = self.run_async

    # Called by the code.

    def show(self, data, metadata, main, display_id, update, notes):
        """Sends a result, within the limits."""
        if self.wire is None or os.getpid() != self.pid:
            return
        flush()
        fitted = self.budget.fit(data, metadata, main)
        if fitted is None:
            if not self._warned:
                self._warned = True
                print("belljar: more than 1,000 results of one execution; the others are left out", file=sys.stderr)
            return
        data, metadata, cut = fitted
        frame = {"op": "result", "id": self.last, "main": bool(main and not self._main_sent), "data": data}
        self._main_sent = self._main_sent or main
        if metadata:
            frame["metadata"] = metadata
        if display_id is not None:
            frame["display_id"] = plain(display_id)[:200]
        if update:
            frame["update"] = True
        cut = [plain(note)[:400] for note in notes[:16]] + cut
        if cut:
            frame["cut"] = cut[:32]
        # A value that ends the cell needs no mark: the guest reads all output before the end.
        if self.current is None or self.token is None or (main and self.shell.shows_last()):
            self.wire.send(frame)
        else:
            self.wire.send_marked(frame, self.token)

    def ask(self, prompt="", password=False):
        """`input()` and `getpass()`: a question to the client of the execution."""
        prompt = shorten(plain(str(prompt)), MAX_PROMPT)[0]
        name = "getpass" if password else "input"
        if os.getpid() != self.pid:
            raise EOFError(f"{name}() works in the interpreter's own process only, not in a child process")
        if threading.current_thread() is not threading.main_thread():
            raise EOFError(f"{name}() works in the main thread only")
        if self.current is None or not self.answers:
            raise EOFError(f"{name}() was called, but nobody answers questions of this execution; give the value in the code")
        flush()
        self.wire.send({"op": "input", "id": self.current, "prompt": prompt, "password": password})
        while True:
            frame = self.wire.receive()
            if frame.get("op") != "input" or frame.get("id") != self.current:
                continue
            if frame.get("eof"):
                raise EOFError("the client answered with an end of input")
            return str(frame.get("value", ""))

    def call_tool(self, name, arguments):
        """Calls a tool, and waits for the answer: a value of JSON."""
        if os.getpid() != self.pid:
            raise tools.ToolError("tools can be called in the interpreter's own process only, not in a child process")
        if threading.current_thread() is not threading.main_thread():
            raise tools.ToolError("tools can be called in the main thread only")
        if self.current is None:
            raise tools.ToolError("no execution runs that could call a tool")
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        length = len(text.encode("utf-8", "backslashreplace"))
        if length > MAX_ARGUMENTS:
            raise ValueError(f"the arguments of {name}() have {length:,} bytes as JSON; at most {MAX_ARGUMENTS:,} are allowed")
        self.calls += 1
        call = self.calls
        frame = {"op": "tool", "id": self.current, "call": call, "name": name, "arguments": arguments}
        flush()
        self.wire.send(frame)
        while True:
            frame = self.wire.receive()
            if frame.get("op") != "tool" or frame.get("call") != call or frame.get("id") != self.current:
                continue
            if "error" in frame:
                raise tools.ToolError(str(frame["error"]))
            return frame.get("result")

    def run_async(self, coroutine):
        """Runs a cell with `await`, on the kernel's event loop."""
        import asyncio

        loop = self.event_loop()
        task = loop.create_task(coroutine)
        self.interrupts.task = task
        try:
            return loop.run_until_complete(task)
        except KeyboardInterrupt:
            if task.done():
                raise
            task.cancel()
            return loop.run_until_complete(task)
        except SystemExit:
            # Raised by another task: this one would otherwise continue with the next cell.
            if not task.done():
                task.cancel()
                try:
                    loop.run_until_complete(task)
                except asyncio.CancelledError:
                    pass
            raise
        finally:
            self.interrupts.task = None

    def event_loop(self):
        """Returns the loop of top-level await."""
        import asyncio

        if self.loop is None or self.loop.is_closed():
            self.loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self.loop)
        return self.loop

    # Requests of the guest.

    def execute(self, request):
        """Runs one execution, from `started` to `done`."""
        number = request.get("id")
        code = request.get("code")
        self.current = self.last = number
        self.budget = Budget()
        self._warned = self._main_sent = False
        self.answers = bool(request.get("input"))
        self.token = request.get("mark")
        self.wire.send({"op": "started", "id": number, "count": self.shell.execution_count})
        place = Place()
        error = None
        try:
            place.enter(request.get("env"), request.get("cwd"))
            tools.offer(self.shell, self.call_tool, request.get("tools") or ())
            extras.begin()
            if self.loop is not None or not loops.is_on_demand(self):
                self.event_loop()
            error, described = self._run(code if isinstance(code, str) else "")
        except BaseException as other:
            error, described = other, self.describer.frame(other)
        finally:
            place.leave()
        self._finish(number, error, described)

    def _run(self, code):
        error = described = None
        try:
            try:
                self.interrupts.begin()
                repair_streams()
                error = self._cell(code)
                flush()
                extras.end(show=not self._interrupted(error))
                if error is not None:
                    described = self.describer.frame(error)
            finally:
                self.interrupts.end()
        except BaseException as other:
            while self.interrupts.running:
                try:
                    self.interrupts.end()
                except KeyboardInterrupt:
                    continue
            self._leave_child(other)
            # The first error is that of the code; another one occurred while showing it.
            error = error if error is not None and not isinstance(other, KeyboardInterrupt) else other
        if error is not None and described is None:
            described = self._describe_late(error)
        return error, described

    def _describe_late(self, error):
        if isinstance(error, KeyboardInterrupt):
            return {"name": "KeyboardInterrupt", "value": "", "traceback": self.describer.traceback(error)}
        return self.describer.frame(error)

    def _cell(self, code):
        shell = self.shell
        shell.soft_error = None
        try:
            result = shell.run_cell(code, store_history=True)
            error = result.error_before_exec or result.error_in_exec or shell.soft_error
        except BaseException as other:
            error = other
        self._leave_child(error)
        shell.soft_error = None
        shell.depth = shell.formatting = 0
        # The shell keeps the last error and with it all objects of its frames.
        shell.last_execution_result = None
        return error

    def _leave_child(self, error):
        """Exits a forked child at the end of the code that created it."""
        if os.getpid() == self.pid:
            return
        status = 0
        if isinstance(error, SystemExit):
            status = exit_status(error)
        elif error is not None:
            print(self.describer.traceback(error), file=sys.stderr)
            status = 1
        flush()
        os._exit(status)

    def _interrupted(self, error):
        if error is None or not self.interrupts.seen:
            return False
        if isinstance(error, KeyboardInterrupt) or type(error).__name__ == "CancelledError":
            return True
        # A command that was ended by the interrupt.
        return type(error).__name__ == "CalledProcessError" and getattr(error, "returncode", None) in (None, -2, 130)

    def _finish(self, number, error, described):
        flush(own=True)
        status = "ok"
        if error is not None:
            status = "error"
            if self._interrupted(error):
                status = "interrupted"
                if described["name"] != "KeyboardInterrupt":
                    lines = described["traceback"].splitlines()
                    described.update(name="KeyboardInterrupt", value="", traceback="\n".join([*lines[:-1], "KeyboardInterrupt"]))
            self.wire.send({"op": "error", "id": number, **described})
        self.current = None
        done = {"op": "done", "id": number, "status": status}
        # Only `exit()` and `quit()` end the context: `sys.exit()` is how programs end that are run as a cell.
        leaves = isinstance(error, SystemExit) and getattr(error, "ends_context", False)
        if leaves:
            done["exiting"] = True
        self.wire.send(done)
        if leaves:
            self.leave(exit_status(error))

    def leave(self, status):
        """Exits like `exit()`, but waits for no thread."""
        import atexit

        watchdog = threading.Thread(target=_leave_soon, args=(status,), daemon=True)
        try:
            watchdog.start()
            self.shell.atexit_operations()
        except BaseException:
            pass
        try:
            atexit._run_exitfuncs()
        except BaseException:
            pass
        flush()
        os._exit(status)

    # Lifecycle.

    def connect(self, fd):
        """Takes over the control socket, and installs the handlers of signals and forks."""
        self.pid = os.getpid()
        self.interrupts = wire.Interrupts()
        self.interrupts.install()
        self.wire = wire.Wire(fd, self.interrupts)
        keep_descriptors()
        os.register_at_fork(after_in_child=self._in_child)

    def serve(self):
        """Reports that it is ready, and runs executions until the control socket ends; never returns."""
        self.wire.send({"op": "ready", "protocol": PROTOCOL, "language": "python", "version": sys.version.split()[0]})
        while True:
            try:
                self._idle()
                request = self.wire.receive()
                if request.get("op") == "execute":
                    self.execute(request)
                    # Do not keep the request's objects until the next one.
                    request = None
            except KeyboardInterrupt:
                continue

    def _in_child(self):
        if self.pid is None or os.getpid() == self.pid:
            return
        import signal

        self.wire.forget()
        forget_descriptors()
        self.interrupts.running = False
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def _idle(self):
        """Runs unfinished tasks of a cell until the next one arrives."""
        loop = self.loop
        if loop is None or loop.is_closed():
            return
        import asyncio

        if not asyncio.all_tasks(loop) or self.wire.readable():
            return

        def wake():
            # Code that blocks the loop would block the next execution forever.
            if self.wire.readable():
                raise KeyboardInterrupt

        try:
            loop.add_reader(self.wire.fileno(), loop.stop)
            self.interrupts.wake = wake
            loop.run_forever()
        except BaseException as error:
            self._leave_child(error)
            if not isinstance(error, KeyboardInterrupt):
                print(self.describer.traceback(error), file=sys.stderr)
        finally:
            self.interrupts.wake = None
            try:
                loop.remove_reader(self.wire.fileno())
            except Exception:
                self.loop = None


def _leave_soon(status):
    time.sleep(2)
    os._exit(status)
