"""The code interpreter."""

import threading

import pytest
from conftest import until
from e2b import NotFoundException, TimeoutException
from e2b_code_interpreter import Sandbox


def test_code_of_some_size(sbx):
    text = "y" * 100_000
    assert sbx.run_code(f"len({text!r})").text == "100000"


def test_expression(sbx):
    done = sbx.run_code("x = 1\nx + 1")
    assert (done.text, done.error, len(done.results)) == ("2", None, 1)
    assert done.results[0].is_main_result is True
    assert done.execution_count >= 1


def test_state_is_kept(sbx):
    sbx.run_code("kept = 'abc'")
    assert sbx.run_code("kept").text == "abc"


def test_output(sbx):
    seen = []
    done = sbx.run_code(
        "import sys\nprint('out')\nprint('err', file=sys.stderr)",
        on_stdout=lambda message: seen.append(message.line),
        on_stderr=lambda message: seen.append(message.line),
    )
    assert "".join(done.logs.stdout) == "out\n" and "".join(done.logs.stderr) == "err\n"
    assert sorted(seen) == ["err\n", "out\n"]


def test_error(sbx):
    errors = []
    done = sbx.run_code("1 / 0", on_error=errors.append)
    assert (done.error.name, done.error.value) == ("ZeroDivisionError", "division by zero")
    assert "ZeroDivisionError" in done.error.traceback and errors[0].name == done.error.name


def test_displayed_result_is_not_the_main_result(sbx):
    done = sbx.run_code("from IPython.display import HTML, display\ndisplay(HTML('<b>x</b>'))\n'last'")
    if done.error:
        pytest.skip("IPython is not installed on this machine's Python")
    assert done.results[0].html == "<b>x</b>" and done.results[0].is_main_result is False
    assert done.text == "last"


def test_contexts(sbx):
    assert sbx.create_code_context().cwd == "/home/user"
    context = sbx.create_code_context(cwd="/tmp")
    assert (context.language, context.cwd) == ("python", "/tmp")
    sbx.run_code("mine = 1", context=context)
    assert sbx.run_code("mine", context=context).text == "1"
    assert sbx.run_code("mine").error.name == "NameError"
    assert sbx.run_code("import os; os.getcwd()", context=context).text == "/tmp"
    assert context.id in [one.id for one in sbx.list_code_contexts()]
    sbx.restart_code_context(context)
    assert sbx.run_code("mine", context=context).error.name == "NameError"
    sbx.remove_code_context(context.id)
    assert context.id not in [one.id for one in sbx.list_code_contexts()]
    with pytest.raises(NotFoundException, match=f"Context {context.id} not found"):
        sbx.run_code("1", context=context)


def test_contexts_from_the_start():
    with Sandbox.create() as sandbox:
        assert {"python", "javascript"} <= {one.language for one in sandbox.list_code_contexts()}


def test_unknown_context(sbx):
    with pytest.raises(NotFoundException):
        sbx.remove_code_context("c999")
    with pytest.raises(NotFoundException):
        sbx.restart_code_context("c999")


def test_bash(sbx):
    assert "".join(sbx.run_code("echo $((6 * 7))", language="bash").logs.stdout) == "42\n"


def test_javascript(sbx):
    done = sbx.run_code("const y = 20; y + 1", language="js")
    assert done.text == "21", done.error


def test_unknown_language(sbx):
    with pytest.raises(Exception, match="cobol"):
        sbx.run_code("x", language="cobol")


def test_envs():
    with Sandbox.create(envs={"GLOBAL": "g"}) as sandbox:
        assert sandbox.run_code("import os; os.environ['GLOBAL']").text == "g"
        assert sandbox.run_code("os.environ['GLOBAL'] + os.environ['OWN']", envs={"OWN": "o"}).text == "go"
        assert sandbox.run_code("os.environ.get('OWN')").text is None


def test_timeout_interrupts(sbx):
    with pytest.raises(TimeoutException):
        sbx.run_code("import time; time.sleep(300)", timeout=1)
    assert sbx.run_code("1 + 1", timeout=30).text == "2"


def test_large_output(sbx):
    done = sbx.run_code("print('ü' * 1_000_000)")
    assert "".join(done.logs.stdout) == "ü" * 1_000_000 + "\n"


def test_files_and_code_share_the_sandbox(sbx):
    sbx.files.write("shared.txt", "both")
    assert sbx.run_code("open('/home/user/shared.txt').read()").text == "both"


def test_killed_while_code_runs():
    sandbox = Sandbox.create()
    raised = []

    def run():
        try:
            sandbox.run_code("print('runs', flush=True)\nimport time; time.sleep(300)", on_stdout=lambda _: running.set())
        except Exception as error:
            raised.append(error)

    running = threading.Event()
    thread = threading.Thread(target=run)
    thread.start()
    assert running.wait(60)
    sandbox.kill()
    thread.join(60)
    assert isinstance(raised[0], TimeoutException) and "killed" in str(raised[0])


def test_charts(sbx):
    done = sbx.run_code(
        "import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4], label='a')\nplt.title('t')\nplt.xlabel('x (s)')\nplt.show()"
    )
    if done.error:
        pytest.skip("matplotlib is not installed on this machine's Python")
    result = done.results[0]
    assert result.png and result.chart.type.value == "line"
    assert (result.chart.title, result.chart.x_unit) == ("t", "s")
    assert result.chart.elements[0].points == [(1, 3), (2, 4)]


def test_tables(sbx):
    done = sbx.run_code("import pandas\npandas.DataFrame({'a': [1, 2], 'b': ['x', 'y']})")
    if done.error:
        pytest.skip("pandas is not installed on this machine's Python")
    assert done.results[0].data == {"a": [1, 2], "b": ["x", "y"]}
    assert "<table" in done.results[0].html


def test_stays_usable_after_the_kernel_has_died():
    with Sandbox.create() as sandbox:
        other = sandbox.create_code_context()
        for context in (None, other):
            for code in ("import os; os._exit(1)", "import os; os.kill(os.getpid(), 9)"):
                done = sandbox.run_code(code, context=context)
                assert done.error.name == "KernelDied"
                assert done.error.value.endswith("; the next code gets a fresh interpreter, without the variables")
                assert sandbox.run_code("1 + 1", context=context).text == "2"
