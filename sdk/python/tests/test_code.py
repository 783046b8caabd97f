"""Code in contexts. The code tells the test double what to do (see double_code.py)."""

from __future__ import annotations

import base64
import json
from datetime import datetime, timedelta, timezone
from typing import Any, Dict, List

import pytest

import belljar
from belljar.models import charts, code

PNG = b"\x89PNG\r\n\x1a\n\x00\xff"
TABLE = {
    "columns": [{"name": "region", "type": "string"}, {"name": "sales", "type": "integer"}],
    "rows": [["north", 3], ["south", None]],
    "index": None,
    "row_count": 12,
    "truncated": True,
}
CHART = {
    "type": "line",
    "title": "Sales",
    "x_label": "year",
    "x_ticks": [1, 2],
    "x_tick_labels": ["1", "2"],
    "elements": [{"label": "a", "points": [[1, 2.5], [2, 3]]}],
}
RESULT = {
    "main": True,
    "data": {
        "text/plain": "'x'",
        "text/html": "<b>x</b>",
        "image/svg+xml": "<svg/>",
        "image/png": base64.b64encode(PNG).decode(),
        "application/json": {"a": [1]},
        code.TABLE: TABLE,
        code.CHART: CHART,
        "application/x-own": base64.b64encode(b"own").decode(),
    },
    "metadata": {"image/png": {"width": 2}},
    "cut": ["text/latex: it is too large"],
}


@pytest.fixture
def scripted(server: Any) -> None:
    """Skips a test that needs the test double."""
    if server[2]:
        pytest.skip("the real server runs code, and not what these tests write down")


@pytest.mark.asyncio
async def test_languages_without_contexts_are_programs(sbx: Any, real: None) -> None:
    if (await sbx.commands.run("command -v perl", check=False)).exit_code != 0:
        pytest.skip("SKIPPED: the sandbox has no perl")
    done = await sbx.run_code('print 6 * 7, " $ENV{A} it\'s\\n";', language="perl", envs={"A": "b"})
    assert (done.stdout, done.status, done.state, done.ok) == ("42 b it's\n", "ok", "preserved", True)
    seen: List[str] = []
    failed = await sbx.run_code("print STDERR 'no'; exit 3", language="pl", on_stderr=seen.append)
    assert (failed.status, failed.stderr, "".join(seen)) == ("error", "no", "no")
    assert failed.error is not None and failed.error.value == "exit status 3"
    assert [entry.name for entry in await sbx.files.list()] == []
    late = await sbx.run_code("sleep 60", language="perl", timeout=0.3)
    assert late.status == "timed_out"
    assert (await sbx.run_code("print 'next'", language="perl")).stdout == "next"
    with pytest.raises(belljar.InvalidArgumentException, match="cobol"):
        await sbx.run_code("x", language="cobol")


def script(*events: Any) -> str:
    return json.dumps(events)


@pytest.mark.asyncio
@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("streamed", [False, True])
async def test_what_comes_of_code(sbx: Any, streamed: bool) -> None:
    seen: List[Any] = []
    callbacks: Dict[str, Any] = {}
    if streamed:
        callbacks = {name: seen.append for name in ("on_stdout", "on_stderr", "on_result", "on_error")}
    failed = {"name": "ValueError", "value": "no", "traceback": "Traceback"}
    events = (["stdout", "ä"], ["stdout", "b\n"], ["stderr", "e"], ["result", RESULT], ["error", failed])
    end = {"status": "error", "state": "lost", "reason": "it was killed", "cause": "out_of_memory", "signal": "SIGKILL"}
    done = await sbx.run_code(script(*events, ["ended", end]), **callbacks)
    assert (done.stdout, done.stderr, "".join(done.logs.stdout)) == ("äb\n", "e", "äb\n")
    assert done.error == belljar.ExecutionError("ValueError", "no", "Traceback")
    assert (done.status, done.state, done.reason, done.cause, done.signal) == tuple(end.values())
    assert (done.text, done.context, done.execution_count, done.wall_ms, done.ok) == ("'x'", "python", 1, 1.5, False)
    (result,) = done.results
    assert seen == (["ä", "b\n", "e", result, done.error] if streamed else [])


def test_forms_of_a_result() -> None:
    result = belljar.Result.from_json(RESULT)
    assert (result.text, result.html, result.svg, result.png, result.json) == ("'x'", "<b>x</b>", "<svg/>", PNG, {"a": [1]})
    assert result.is_main_result and result.jpeg is None and result.latex is None
    assert result.formats() == ["text", "html", "svg", "png", "json", "data", "chart", "application/x-own"]
    assert result.extra == {"application/x-own": b"own"} and result["png"] == PNG and result["text/plain"] == "'x'"
    assert result.cut == ("text/latex: it is too large",)
    data, metadata = result._repr_mimebundle_()
    assert data["image/png"] == PNG and metadata == {"image/png": {"width": 2}}
    assert "PNG" not in repr(result)


def test_tables() -> None:
    table = belljar.Table.from_json(TABLE)
    assert table["sales"] == [3, None] and table.to_dict() == {"region": ["north", "south"], "sales": [3, None]}
    assert table.records()[0] == {"region": "north", "sales": 3}
    assert (table.row_count, table.truncated, table.columns[1].type) == (12, True, "integer")
    with pytest.raises(KeyError):
        table["nothing"]
    with pytest.raises(belljar.ServerException):
        belljar.Table.from_json({**TABLE, "rows": [[1]]})


@pytest.mark.parametrize(
    ("kind", "chart", "element", "expected"),
    [
        ("scatter", belljar.ScatterChart, {"label": "s", "points": [[1, 2]]}, belljar.Points("s", ((1, 2),))),
        ("bar", belljar.BarChart, {"label": "b", "group": "g", "value": 4}, belljar.Bar("b", 4, "g")),
        ("pie", belljar.PieChart, {"label": "p", "angle": 90, "radius": 1}, belljar.Slice("p", 90.0, 1.0)),
        (
            "box_and_whisker",
            belljar.BoxAndWhiskerChart,
            {"label": "x", "min": 1, "first_quartile": 2, "median": 3, "third_quartile": 4, "max": 5, "outliers": [9]},
            belljar.Box("x", 1.0, 2.0, 3.0, 4.0, 5.0, (9,)),
        ),
    ],
)
def test_charts(kind: str, chart: type, element: Any, expected: Any) -> None:
    one = {"type": kind, "title": "t", "elements": [element]}
    found = charts.chart_from_json(one)
    assert type(found) is chart and isinstance(found, belljar.Chart)
    assert (found.type, found.title, found.elements) == (kind, "t", (expected,))
    several = charts.chart_from_json({"type": "superchart", "title": None, "elements": [one, CHART]})
    assert isinstance(several, belljar.SuperChart) and [part.type for part in several.elements] == [kind, "line"]
    unknown = charts.chart_from_json({"type": "heatmap", "title": "t", "elements": [{"a": 1}]})
    assert isinstance(unknown, belljar.UnknownChart) and (unknown.type, unknown.elements) == ("unknown", ())
    assert unknown.to_dict()["type"] == "heatmap"


@pytest.mark.asyncio
@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize("streamed", [False, True])
async def test_an_end_without_an_error_of_the_code_is_one(sbx: Any, streamed: bool) -> None:
    seen: List[Any] = []
    callbacks: Dict[str, Any] = {"on_error": seen.append} if streamed else {}
    end = {"status": "died", "state": "lost", "reason": "it ran out of memory", "cause": "out_of_memory", "signal": "SIGKILL"}
    died = await sbx.run_code(script(["ended", end]), **callbacks)
    assert isinstance(died.error, belljar.KernelDied) and not died.ok
    assert (died.error.name, died.error.value, died.error.traceback) == (
        "KernelDied",
        "it ran out of memory",
        "KernelDied: it ran out of memory",
    )
    assert (died.error.cause, died.error.exit_code, died.error.signal) == ("out_of_memory", None, "SIGKILL")
    assert seen == ([died.error] if streamed else [])
    for status, name in (("timed_out", "TimeoutError"), ("interrupted", "KeyboardInterrupt")):
        late = await sbx.run_code(script(["ended", {"status": status}]), **callbacks)
        assert late.error is not None and late.error.name == name and late.error.value and not late.ok
    # What the interpreter itself reported is kept.
    own = {"name": "SystemExit", "value": "3", "traceback": "…"}
    assert (await sbx.run_code(script(["error", own], ["ended", end]))).error == belljar.ExecutionError(**own)


def test_executions_as_json() -> None:
    error = belljar.KernelDied("KernelDied", "why", "trace", signal="SIGKILL")
    execution = belljar.Execution((belljar.Result.from_json(RESULT),), belljar.Logs(("o",), ("e",)), error, "died", context="c1")
    value = json.loads(execution.to_json())
    (result,) = value["results"]
    assert (result["text"], result["png"], result["json"]) == ("'x'", base64.b64encode(PNG).decode(), {"a": [1]})
    assert (result["data"], result["chart"], result["is_main_result"]) == (TABLE, CHART, True)
    assert result["application/x-own"] == base64.b64encode(b"own").decode()
    assert value["logs"] == {"stdout": ["o"], "stderr": ["e"], "truncated": False}
    assert value["error"] == {"name": "KernelDied", "value": "why", "traceback": "trace"}
    assert (value["status"], value["context"], value["reason"]) == ("died", "c1", None)


@pytest.mark.asyncio
@pytest.mark.usefixtures("scripted")
@pytest.mark.parametrize(("answer", "printed"), [("Ada", "got Ada\n"), (None, "got None\n")])
async def test_questions_are_answered(sbx: Any, answer: Any, printed: str) -> None:
    asked: List[Any] = []

    def on_input(question: belljar.Question) -> Any:
        asked.append((question, question.password))
        return answer

    done = await sbx.run_code(script(["input_requested", {"prompt": "name? ", "password": True}]), on_input=on_input)
    assert asked == [("name? ", True)] and done.stdout == printed


@pytest.mark.asyncio
@pytest.mark.usefixtures("scripted")
async def test_a_callback_that_fails_leaves_no_question_open(sbx: Any) -> None:
    def on_input(question: str) -> str:
        raise LookupError(question)

    with pytest.raises(LookupError):
        await sbx.run_code(script(["input_requested", {"prompt": "p", "password": False}]), on_input=on_input)


@pytest.mark.asyncio
async def test_a_coroutine_may_answer(environment: Any, server: Any) -> None:
    if server[2]:
        pytest.skip("the real server runs code")

    async def on_input(question: str) -> str:
        return question.upper()

    async with await belljar.AsyncSandbox.create() as sbx:
        done = await sbx.run_code(script(["input_requested", {"prompt": "p", "password": False}]), on_input=on_input)
        assert done.stdout == "got P\n"


@pytest.mark.asyncio
@pytest.mark.usefixtures("scripted")
async def test_problems_in_the_stream(sbx: Any) -> None:
    problem = {"status": 500, "code": "internal", "title": "t", "detail": "d"}
    with pytest.raises(belljar.ServerException):
        await sbx.run_code(script(["error", problem]), on_stdout=print)
    with pytest.raises(belljar.ConnectionException, match="unknown"):
        await sbx.run_code(script(["break", None]), on_stdout=print)


@pytest.mark.asyncio
async def test_arguments_that_exclude_each_other(sbx: Any) -> None:
    refusals: List[Dict[str, Any]] = [*({"language": "python", "context": "c1"}, {"env": {}, "envs": {}}, {"timeout": -1})]
    for arguments in refusals:
        with pytest.raises(belljar.InvalidArgumentException):
            await sbx.run_code("1", **arguments)
    with pytest.raises(belljar.InvalidArgumentException) as refused:
        await sbx.run_code("'\ud800'")
    assert refused.value.field == "code"


@pytest.mark.asyncio
@pytest.mark.usefixtures("scripted")
async def test_contexts_of_the_stand_in(sbx: Any) -> None:
    made = await sbx.create_code_context(language="javascript", cwd="/tmp", envs={"A": "b"})
    assert (made.id, made.language, made.cwd, made.state, made.generation) == ("c1", "javascript", "/tmp", "idle", 1)
    assert (await sbx.run_code("[]", context=made)).context == "c1"
    assert [context.id for context in await sbx.list_code_contexts()] == ["c1"]
    assert (await sbx.restart_code_context(made)).generation == 2
    assert await sbx.interrupt_code_context("c1") is False
    await sbx.remove_code_context(made)
    assert await sbx.list_code_contexts() == []
    with pytest.raises(belljar.ContextNotFoundException):
        await sbx.run_code("[]", context="c1")


@pytest.mark.asyncio
@pytest.mark.usefixtures("real")
class TestReal:
    """With a real server."""

    async def test_variables_live_on(self, sbx: Any) -> None:
        await sbx.run_code("x = 40")
        done = await sbx.run_code("x + 2")
        assert (done.text, done.status, done.state, done.execution_count) == ("42", "ok", "preserved", 2)
        assert (await sbx.run_code("print(x)")).stdout == "40\n"

    async def test_errors(self, sbx: Any) -> None:
        done = await sbx.run_code("a = 1\n1/0")
        assert done.error.name == "ZeroDivisionError" and done.status == "error" and done.state == "preserved"
        assert "line 2" in done.error.traceback

    async def test_streams(self, sbx: Any) -> None:
        seen: List[Any] = []
        await sbx.run_code("import sys; print('o'); print('e', file=sys.stderr); 7", on_stdout=seen.append, on_stderr=seen.append)
        assert sorted(seen) == ["e\n", "o\n"]

    async def test_input(self, sbx: Any) -> None:
        done = await sbx.run_code("input('name? ')", on_input=lambda question: f"<{question}>")
        assert done.text == "'<name? >'"
        assert (await sbx.run_code("input('name? ')")).status == "error"

    async def test_functions(self, sbx: Any) -> None:
        def lookup(city: str, size: int = 1) -> Any:
            return {"city": city, "size": size, "none": None}

        def fail() -> Any:
            raise LookupError("no such city")

        lines = [
            "import belljar",
            "said = [belljar.tools.lookup(city='Köln', size=2)]",
            "for name in ['fail', 'other', 'lookup']:",
            "    try: belljar.tools[name]()",
            "    except belljar.ToolError as error: said.append(str(error))",
            "said",
        ]
        done = await sbx.run_code("\n".join(lines), functions={"lookup": lookup, "fail": fail, "other": object})
        said = done.text
        assert "{'city': 'Köln', 'size': 2, 'none': None}" in said, said
        assert "LookupError: no such city" in said and "other() returned what is no JSON" in said and "TypeError: " in said
        done = await sbx.run_code("belljar.tools.fail()", functions=[fail])
        assert (done.error.name, done.error.value) == ("ToolError", "LookupError: no such city")
        with pytest.raises(belljar.InvalidArgumentException, match="give a mapping of names"):
            await sbx.run_code("1", functions=[lambda: 1])
        for wrong in (fail, "fail", ["fail"], {"fail": 3}):
            with pytest.raises(belljar.ArgumentTypeException, match=r"functions must be .*\[lookup\]"):
                await sbx.run_code("1", functions=wrong)
        with pytest.raises(belljar.ArgumentTypeException, match=r'such as \["analyse"\]'):
            await sbx.run_code("1", tools="analyse")

    async def test_steps(self, sbx: Any, api: Any) -> None:
        code = "import belljar\nprint(1)\nfound = belljar.tools.lookup(city='Köln')\n"
        code += "try: belljar.tools.lookup()\nexcept belljar.ToolError as error: print(error)\nfound"
        step = await sbx.run_code_step(code, functions=["lookup"], call_timeout="30s")
        (call,) = step.tool_calls
        assert (call.name, call.arguments, step.execution) == ("lookup", {"city": "Köln"}, None)
        left = step.expires_at - datetime.now(timezone.utc)
        assert timedelta(0) < left <= timedelta(seconds=30)
        assert (await sbx.get_info()).held_by == call.id
        with pytest.raises(belljar.InvalidArgumentException, match="is no JSON"):
            await sbx.run_code_step({call.id: object()})
        with pytest.raises(belljar.InvalidArgumentException, match="pass nothing else"):
            await sbx.run_code_step({call.id: 1}, functions=["lookup"])
        with pytest.raises(belljar.NotFoundException) as refused:
            await sbx.run_code_step({"call_1": 1})
        assert refused.value.code == "call_not_found"
        # By its id alone, as from another process.
        again = await api.Sandbox.connect(sbx.sandbox_id)
        step = await again.run_code_step({call.id: {"people": 1.1}})
        (second,) = step.tool_calls
        with pytest.raises(belljar.ConflictException) as closed:
            await sbx.run_code_step({call.id: 1})
        assert closed.value.code == "call_closed"
        step = await sbx.run_code_step({second.id: LookupError("no such city")})
        assert step.tool_calls == () and step.expires_at is None
        done = step.execution
        assert (done.ok, done.stdout, done.text) == (True, "1\nLookupError: no such city\n", "{'people': 1.1}")
        assert (await sbx.run_code_step("2", functions=["lookup"])).execution.text == "2"
        with pytest.raises(belljar.InvalidArgumentException, match="give the names"):
            await sbx.run_code_step("1")
        with pytest.raises(belljar.ArgumentTypeException, match=r'such as \["lookup"\]'):
            await sbx.run_code_step("1", functions="lookup")

    async def test_timeout_then_rebuilt(self, sbx: Any) -> None:
        await sbx.run_code("kept = 1")
        done = await sbx.run_code("while True: pass", timeout=1)
        assert (done.status, done.state) == ("timed_out", "preserved") and done.error is not None
        assert (await sbx.run_code("kept")).text == "1"
        done = await sbx.run_code("import os; os._exit(3)")
        assert (done.status, done.state, done.exit_code) == ("died", "lost", 3)
        assert isinstance(done.error, belljar.KernelDied) and done.error.exit_code == 3
        done = await sbx.run_code("'kept' in globals()")
        assert done.text == "False" and done.rebuilt

    async def test_contexts(self, sbx: Any) -> None:
        first, second = await sbx.create_code_context(), await sbx.create_code_context(cwd="/tmp", env={"A": "b"})
        await sbx.run_code("v = 1", context=first)
        assert (await sbx.run_code("v", context=second)).error.name == "NameError"
        assert (await sbx.run_code("import os; [os.getcwd(), os.environ['A']]", context=second)).text == "['/tmp', 'b']"
        await sbx.restart_code_context(first)
        assert (await sbx.run_code("v", context=first)).error.name == "NameError"
        await sbx.remove_code_context(first)
        with pytest.raises(belljar.NotFoundException):
            await sbx.run_code("v", context=first)
        with pytest.raises(belljar.SandboxException):
            await sbx.create_code_context(language="cobol")

    @pytest.mark.parametrize(
        ("language", "program", "first", "second", "text"),
        [
            ("javascript", "node", "const x = await Promise.resolve(41)", "x + 1", "42"),
            ("typescript", "esbuild", "const x: number = 41", "x as number + 1", "42"),
            ("bash", "bash", "x=41", "echo $((x + 1))", None),
        ],
    )
    async def test_languages(self, sbx: Any, language: str, program: str, first: str, second: str, text: Any) -> None:
        present = await sbx.commands.run(f"command -v {program}", check=False)
        if present.exit_code != 0:
            pytest.skip(f"SKIPPED: the sandbox has no {program}")
        await sbx.run_code(first, language)
        done = await sbx.run_code(second, language)
        assert done.error is None and done.text == text and (text or done.stdout == "42\n")
