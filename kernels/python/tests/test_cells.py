"""Single cells: values, output, errors, magics."""

import sys

import pytest

VALUES = {
    "sum": ("1 + 1", "2"),
    "big": ("2**64", "18446744073709551616"),
    "text": ("'a' * 3", "'aaa'"),
    "none": ("None", None),
    "assignment": ("x = 5", None),
    "semicolon": ("5;", None),
    "semicolon in text": ("';'", "';'"),
    "comment after": ("7  # seven", "7"),
    "empty": ("", None),
    "blank": ("  \n\t\n", None),
    "only comment": ("# nothing", None),
    "last of many": ("1\n2\n3", "3"),
    "loop shows nothing": ("for i in range(2):\n    i", None),
    "list": ("[1, 2]", "[1, 2]"),
    "long list": ("list(range(2000))[-1], len(list(range(2000)))", "(1999, 2000)"),
    "unicode": ("'grün ☃ 🎉'", "'grün ☃ 🎉'"),
    "unicode name": ("größe = 3\ngröße", "3"),
    "surrogate": (r"'\ud800'", r"'\ud800'"),
    "function": ("def f(a):\n    return a * 2\nf(21)", "42"),
    "class": ("class A:\n    def __repr__(self):\n        return 'an A'\nA()", "an A"),
    "lambda": ("(lambda: 3)()", "3"),
    "walrus": ("(y := 4)", "4"),
    "match": ("match 3:\n    case 3:\n        z = 'three'\nz", "'three'"),
    "decorator": ("import functools\n@functools.cache\ndef g(n):\n    return n\ng(9)", "9"),
    "windows lines": ("a = 1\r\na + 1", "2"),
    "name": ("__name__", "'__main__'"),
    "main module": ("import sys; sys.modules['__main__'].__dict__ is globals()", "True"),
    "argv": ("import sys; sys.argv", "['']"),
    "path": ("import sys; sys.path[0]", "''"),
    "no file": ("'__file__' in globals()", "False"),
    "env": ("import os; 'BELLJAR_KERNEL_FD' in os.environ", "False"),
    "no backend in env": ("import os; 'MPLBACKEND' in os.environ", "False"),
    "stdin": ("import sys; sys.stdin.read()", "''"),
    "encoding": ("import sys; sys.stdout.encoding, sys.stdout.errors", "('utf-8', 'backslashreplace')"),
    "recursive list": ("a = []\na.append(a)\na", "[[...]]"),
    "getsource": ("def h():\n    return 1\nimport inspect\ninspect.getsource(h)", "'def h():\\n    return 1\\n'"),
    "pickle": ("import pickle\nclass P:\n    pass\ntype(pickle.loads(pickle.dumps(P()))) is P", "True"),
    "dataclass": ("import dataclasses\n@dataclasses.dataclass\nclass D:\n    a: int\nD(1)", "D(a=1)"),
    "annotations": ("from __future__ import annotations\nx: Nothing = 3\nx", "3"),
    "asyncio.run in a plain cell": ("import asyncio\nasync def f():\n    return 8\nasyncio.run(f())", "8"),
    "get_event_loop": ("import asyncio\nasyncio.get_event_loop().run_until_complete(asyncio.sleep(0, 5))", "5"),
    "await": ("import asyncio\nawait asyncio.sleep(0, 6)", "6"),
    "await gather": ("import asyncio\nawait asyncio.gather(*[asyncio.sleep(0, i) for i in range(3)])", "[0, 1, 2]"),
    "async for": ("async def agen():\n    yield 1\n    yield 2\n[i async for i in agen()]", "[1, 2]"),
    "async with": (
        "import contextlib\n@contextlib.asynccontextmanager\nasync def c():\n    yield 4\nasync with c() as v:\n    w = v\nw",
        "4",
    ),
    "threads": ("import threading\nr = []\nt = threading.Thread(target=r.append, args=(1,)); t.start(); t.join(); r", "[1]"),
    "multiprocessing": (
        "import multiprocessing as mp\ndef sq(x):\n    return x * x\n"
        "with mp.get_context('fork').Pool(2) as p:\n    r = p.map(sq, [1, 2, 3])\nr",
        "[1, 4, 9]",
    ),
    "subprocess": ("import subprocess\nsubprocess.run(['echo', 'hi'], capture_output=True).stdout", "b'hi\\n'"),
    "shell output": ("o = !echo a; echo b\nlist(o)", "['a', 'b']"),
    "shell variable": ("word = 'hey'\no = !echo $word\no[0]", "'hey'"),
    "shell status": ("!exit 3\n_exit_code", "3"),
    "env magic": ("%env BELLJAR_X=5\nimport os\nos.environ['BELLJAR_X']", "'5'"),
    "automagic pwd": ("d = %pwd\nimport os\nd == os.getcwd()", "True"),
    "underscore": ("41\n", "41"),
    "In": ("len(In) > 1", "True"),
    "get_ipython": ("get_ipython().__class__.__name__", "'Shell'"),
    "exit is shown": ("repr(exit)", '"exit() ends the context\'s interpreter"'),
    "completer on demand": ("get_ipython().Completer is not None", "True"),
    "no history file": ("get_ipython().history_manager.enabled", "False"),
    "json text": ("import json\njson.dumps({'a': 1})", "'{\"a\": 1}'"),
}


@pytest.mark.parametrize("code,expected", VALUES.values(), ids=VALUES.keys())
def test_value(kernel, code, expected):
    outcome = kernel.run(code)
    assert outcome.status == "ok", outcome.error
    assert outcome.text == expected


OUTPUT = {
    "print": ("print('hi')", "hi\n", ""),
    "stderr": ("import sys\nprint('bad', file=sys.stderr)", "", "bad\n"),
    "no newline": ("print('a', end='')", "a", ""),
    "surrogate": (r"print('\ud800')", "\\ud800\n", ""),
    "raw": ("import os\nx = os.write(1, b'raw\\n')", "raw\n", ""),
    "order": ("print('one')\nimport os\nx = os.system('echo two')\nprint('three')", "one\ntwo\nthree\n", ""),
    "bang": ("print('one')\n!echo two\nprint('three')", "one\ntwo\nthree\n", ""),
    "bang error": ("!echo oops >&2", "", "oops\n"),
    "bash cell": ("%%bash\necho from bash", "from bash\n", ""),
    "sh cell": ("%%sh\necho from sh", "from sh\n", ""),
    "capture": ("%%capture out\nprint('hidden')", "", ""),
    "captured": ("print(out.stdout, end='')", "hidden\n", ""),
    "captured bang": (
        "from IPython.utils.capture import capture_output\nwith capture_output() as c:\n    !echo x\nprint(repr(c.stdout))",
        "'x\\n'\n",
        "",
    ),
    "redirect": (
        "import contextlib, io\nb = io.StringIO()\nwith contextlib.redirect_stdout(b):\n    print('q')\nprint(b.getvalue().upper())",
        "Q\n\n",
        "",
    ),
    "C stdio": ("import ctypes\nx = ctypes.CDLL(None).printf(b'from C\\n')", "from C\n", ""),
    "child inherits": ("import subprocess, sys\nx = subprocess.run([sys.executable, '-c', 'print(7)'])", "7\n", ""),
    "forked child": (
        "import os, warnings\nwarnings.simplefilter('ignore')\npid = os.fork()\nif pid == 0:\n    print('child')\n    os._exit(0)\nx = os.waitpid(pid, 0)",
        "child\n",
        "",
    ),
    "thread": ("import threading\nt = threading.Thread(target=print, args=('t',)); t.start(); t.join()", "t\n", ""),
    "many lines": ("for i in range(20000):\n    print(i)", "".join(f"{i}\n" for i in range(20000)), ""),
    "writefile": ("%%writefile note.txt\nhello", "Writing note.txt\n", ""),
    "cat": ("!echo hello > note2.txt; cat note2.txt", "hello\n", ""),
}


@pytest.mark.parametrize("code,stdout,stderr", OUTPUT.values(), ids=OUTPUT.keys())
def test_output(kernel, code, stdout, stderr):
    outcome = kernel.run(code)
    assert outcome.status == "ok", outcome.error
    assert (outcome.stdout, outcome.stderr) == (stdout, stderr)
    assert not outcome.results


MAGICS = {
    "time": ("%time 1 + 1", "Wall time"),
    "timeit": ("%timeit -n1 -r1 pass", "per loop"),
    "cell timeit": ("%%timeit -n1 -r1\npass", "per loop"),
    "who": ("some_name = 1\n%who int", "some_name"),
    "lsmagic": ("%lsmagic", ""),
    "cd": ("%cd /", "/"),
    "precision": ("%precision 3", ""),
    "history": ("%history -l 1", ""),
    "pinfo": ("len?", ""),
    "matplotlib": ("%matplotlib inline", ""),
    "config": ("%config InlineBackend.figure_format = 'png'", ""),
    "config retina": ("%config InlineBackend.figure_format = 'retina'", ""),
    "reset": ("%reset -f", ""),
    "load_ext": ("%load_ext autoreload\n%autoreload 2", ""),
    "store": ("%alias_magic t timeit", ""),
    "prun": ("%prun -q sum([1])", ""),
    "colors": ("%xmode Plain", ""),
    "sx": ("%sx echo hi", ""),
    "python cell": ("%%script python3\nprint(3)", "3"),
    "html cell": ("%%html\n<b>x</b>", ""),
    "latex cell": ("%%latex\n$x$", ""),
    "markdown cell": ("%%markdown\n# x", ""),
    "svg cell": ("%%svg\n<svg xmlns='http://www.w3.org/2000/svg'/>", ""),
    "javascript cell": ("%%javascript\n1", ""),
}


@pytest.mark.parametrize("code,text", MAGICS.values(), ids=MAGICS.keys())
def test_magic(kernel, code, text):
    outcome = kernel.run(code)
    assert outcome.status == "ok", outcome.error
    assert text in outcome.stdout
    assert "Traceback" not in outcome.stderr


ERRORS = {
    "zero": ("1 / 0", "ZeroDivisionError", "division by zero", "Cell In["),
    "name": ("nothing_here", "NameError", "name 'nothing_here' is not defined", "line 1"),
    "second line": ("x = 1\n\nraise ValueError('no')", "ValueError", "no", "line 3"),
    "in a function": ("def f():\n    raise KeyError('k')\nf()", "KeyError", "'k'", "line 2, in f"),
    "syntax": ("x = (", "SyntaxError", "was never closed", "line 1"),
    "syntax second line": ("a = 1\nb = = 2", "SyntaxError", "invalid syntax", "line 2"),
    "indentation": ("if True:\n    x = 1\n  y = 2", "IndentationError", "unindent", "line 3"),
    "tab": ("if True:\n\tx = 1\n        y = 2", "TabError", "inconsistent", "line 3"),
    "return": ("return 5", "SyntaxError", "'return' outside function", "line 1"),
    "NUL": ("x = '\0'", None, "null", "null"),
    "nested brackets": ("(" * 5000 + ")" * 5000, None, "", ""),
    "import": ("import there_is_no_such_module", "ModuleNotFoundError", "there_is_no_such_module", "line 1"),
    "chained": (
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise RuntimeError('later') from e",
        "RuntimeError",
        "later",
        "direct cause",
    ),
    "context": (
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    raise RuntimeError('later')",
        "RuntimeError",
        "later",
        "During handling",
    ),
    "group": (
        "raise ExceptionGroup('g', [ValueError('a'), KeyError('b')])",
        "ExceptionGroup",
        "g (2 sub-exceptions)",
        "ValueError: a",
    ),
    "note": ("e = ValueError('v')\ne.add_note('a note')\nraise e", "ValueError", "v", "a note"),
    "recursion": ("def r():\n    return r()\nr()", "RecursionError", "maximum recursion", "Previous line repeated"),
    "assert": ("assert 1 == 2, 'not so'", "AssertionError", "not so", "line 1"),
    "unknown magic": ("%no_such_magic", "UsageError", "no_such_magic", "UsageError"),
    "unknown cell magic": ("%%no_such_magic\n1", "UsageError", "no_such_magic", "UsageError"),
    "failing bash": ("%%bash\nexit 3", "CalledProcessError", "exit status 3", "Cell In["),
    "missing script": ("%run no_such_script.py", None, "no_such_script.py", ""),
    "failing script": (
        "open('bad.py', 'w').write('x = 1\\n1 / 0\\n')\n%run bad.py",
        "ZeroDivisionError",
        "division by zero",
        "bad.py",
    ),
    "await": (
        "import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    raise OSError('wet')\nawait f()",
        "OSError",
        "wet",
        "line 4, in f",
    ),
    "cancelled": ("import asyncio\nraise asyncio.CancelledError('c')", "CancelledError", "c", "line 2"),
    "own class": ("class Odd(Exception):\n    pass\nraise Odd('o')", "Odd", "o", "Odd: o"),
    "str raises": (
        "class S(Exception):\n    def __str__(self):\n        raise ValueError('x')\nraise S()",
        "S",
        "its text could not be made",
        "S",
    ),
    "str is no str": (
        "class S2(Exception):\n    def __str__(self):\n        return 5\nraise S2()",
        "S2",
        "its text could not be made",
        "S2",
    ),
    "long value": ("raise ValueError('x' * 1_000_000)", "ValueError", "left out", "left out"),
    "surrogate": (r"raise ValueError('\ud800')", "ValueError", r"\ud800", "ValueError"),
    "colours": ("raise ValueError('\\x1b[31mred\\x1b[0m')", "ValueError", "red", "red"),
    "keyboard": ("raise KeyboardInterrupt", "KeyboardInterrupt", "", "KeyboardInterrupt"),
    "base": ("class B(BaseException):\n    pass\nraise B('b')", "B", "b", "B: b"),
    "generator exit": ("raise GeneratorExit('g')", "GeneratorExit", "g", "GeneratorExit"),
    "not an exception": ("raise 5", "TypeError", "exceptions must derive", "line 1"),
    "memory": ("raise MemoryError('big')", "MemoryError", "big", "line 1"),
    "input refused": ("input('who? ')", "EOFError", "nobody answers", "line 1"),
    "getpass refused": ("import getpass\ngetpass.getpass()", "EOFError", "nobody answers", "line 2"),
    "from a library": ("import json\njson.loads('{')", "JSONDecodeError", "property name", "json/decoder.py"),
}


@pytest.mark.parametrize("code,name,value,trace", ERRORS.values(), ids=ERRORS.keys())
def test_error(kernel, code, name, value, trace):
    outcome = kernel.run(code)
    assert outcome.status == "error"
    if name is not None:
        assert outcome.error["name"] == name
    assert value in outcome.error["value"] and trace in outcome.error["traceback"]
    assert len(outcome.error["value"].encode()) <= 64 * 1024
    assert len(outcome.error["traceback"].encode()) <= 256 * 1024
    for word in ("IPython/core", "<belljar", "run_code", "\x1b"):
        assert word not in outcome.error["traceback"]
    assert kernel.run("1 + 1").text == "2"


def test_state_is_kept(kernel):
    kernel.run("kept = [1]")
    kernel.run("kept.append(2)")
    assert kernel.run("kept").text == "[1, 2]"


def test_count_increases(fresh):
    kernel = fresh()
    assert [kernel.run("1").started["count"] for _ in range(3)] == [1, 2, 3]
    assert kernel.run("Out").text == "{1: 1, 2: 1, 3: 1}"


def test_ready_frame(fresh):
    ready = fresh().ready
    assert ready["op"] == "ready" and ready["protocol"] == 1 and ready["language"] == "python"
    assert ready["version"].startswith("3.")


def test_nothing_is_written_to_the_home_directory(fresh):
    import os

    kernel = fresh()
    kernel.run("1 + 1\n%who\nimport asyncio\nawait asyncio.sleep(0)")
    assert os.listdir(kernel.home) == []


def test_user_modules_do_not_prevent_the_start(fresh, tmp_path):
    (tmp_path / "json.py").write_text("raise RuntimeError('mine')\n")
    (tmp_path / "IPython.py").write_text("raise RuntimeError('mine')\n")
    kernel = fresh(cwd=str(tmp_path))
    assert kernel.ready["op"] == "ready"
    assert kernel.run("1 + 1").text == "2"


def test_failed_without_ipython(fresh, tmp_path):
    import subprocess
    import sys

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    kernel = fresh(python=str(tmp_path / "bare" / "bin" / "python"))
    assert kernel.ready["op"] == "failed"
    assert "IPython is missing" in kernel.ready["message"] and "apt-get install python3-ipython" in kernel.ready["message"]
    assert kernel.ended() == 1


def test_started_by_a_command(fresh):
    import driver

    kernel = fresh(args=["-c", driver.KERNEL.read_text()])
    assert kernel.run("import sys; sys.argv, sys.path[0], __name__").text == "([''], '', '__main__')"


def test_env_of_one_execution(kernel):
    kernel.run("import os; os.environ['KEPT'] = 'old'")
    outcome = kernel.run("os.environ['OTHER'] = 'x'; os.environ['A'], os.environ['KEPT']", env={"A": "b", "KEPT": "new"})
    assert outcome.text == "('b', 'new')"
    assert kernel.run("os.environ.get('A'), os.environ['KEPT'], os.environ['OTHER']").text == "(None, 'old', 'x')"
    assert kernel.run("%sx echo $A", env={"A": "for children"}).text == "['for children']"


def test_env_is_restored_after_an_error(kernel):
    assert kernel.run("1/0", env={"GONE": "x"}).status == "error"
    assert kernel.run("import os; 'GONE' in os.environ").text == "False"


def test_bad_env_is_an_error(kernel):
    outcome = kernel.run("print('ran')", env={"A=B": "x"})
    assert outcome.status == "error" and outcome.stdout == ""
    assert kernel.run("1 + 1").text == "2"


def test_cwd_of_one_execution(kernel, tmp_path):
    before = kernel.run("import os; os.getcwd()").text
    assert kernel.run("import os; os.getcwd()", cwd=str(tmp_path)).text == repr(str(tmp_path))
    assert kernel.run("os.chdir('/'); os.getcwd()", cwd=str(tmp_path)).text == "'/'"
    assert kernel.run("os.getcwd()").text == before


def test_cwd_that_was_removed(fresh, tmp_path):
    kernel = fresh()
    kernel.run(
        f"import os\nos.mkdir({str(tmp_path / 'x')!r}); os.chdir({str(tmp_path / 'x')!r}); os.rmdir({str(tmp_path / 'x')!r})"
    )
    assert kernel.run("1 + 1", cwd="/").text == "2"


def test_cwd_that_is_missing(kernel):
    outcome = kernel.run("print('ran')", cwd="/no/such/place")
    assert outcome.status == "error" and outcome.stdout == ""
    assert outcome.error["name"] == "FileNotFoundError" and "/no/such/place" in outcome.error["value"]


def test_input(kernel):
    outcome = kernel.run("name = input('Who? ')\nprint('Hello', name)", input=True, answers=["Ada"])
    assert outcome.questions[0]["prompt"] == "Who? " and outcome.questions[0]["password"] is False
    assert outcome.stdout == "Hello Ada\n"


def test_password(kernel):
    outcome = kernel.run("from getpass import getpass\ngetpass('Key: ')", input=True, answers=["s3"])
    assert outcome.questions[0]["prompt"] == "Key: " and outcome.questions[0]["password"] is True
    assert outcome.text == "'s3'"


def test_end_of_input(kernel):
    outcome = kernel.run("input()", input=True, answers=[])
    assert outcome.status == "error" and outcome.error["name"] == "EOFError"


def test_many_questions(kernel):
    outcome = kernel.run("[input(str(i)) for i in range(5)]", input=True, answers=list("abcde"))
    assert outcome.text == "['a', 'b', 'c', 'd', 'e']"
    assert [one["prompt"] for one in outcome.questions] == list("01234")


def test_long_prompt(kernel):
    outcome = kernel.run("input('x' * 100000)", input=True, answers=["a"])
    assert len(outcome.questions[0]["prompt"].encode()) <= 4096


def test_input_in_a_thread_is_refused(kernel):
    code = "import threading\ndef f():\n    try:\n        input()\n    except EOFError as e:\n        print(e)\nt = threading.Thread(target=f); t.start(); t.join()"
    assert "main thread only" in kernel.run(code, input=True).stdout


def test_output_comes_before_the_question(kernel):
    number = kernel.start("print('first', end='')\ninput('q')", input=True)
    assert kernel.frame()["op"] == "started"
    assert kernel.frame()["op"] == "input"
    assert kernel.printed()[0] == "first"
    kernel.send({"op": "input", "id": number, "value": "a"})
    assert [kernel.frame()["op"], kernel.frame()["op"]] == ["result", "done"]


def test_old_answer_is_ignored(kernel):
    number = kernel.start("input('q')", input=True)
    kernel.send({"op": "input", "id": number - 1, "value": "old"})
    kernel.send({"op": "something new", "id": number})
    assert kernel.finish(number, answers=["right"]).text == "'right'"


def test_tools_are_called(kernel):
    calls = []

    def answer(frame):
        calls.append((frame["name"], frame["arguments"]))
        # Answers to other calls, and to questions, are ignored.
        kernel.send({"op": "tool", "id": frame["id"], "call": frame["call"] + 1, "result": 0})
        kernel.send({"op": "input", "id": frame["id"], "value": "x"})
        return {"result": [None, "ü"]} if frame["arguments"] else {"result": None}

    kernel.answer_call = answer
    outcome = kernel.run("(belljar.tools.f(a=1), belljar.tools['g-h'](), repr(belljar.tools))", tools=["f", "g-h"])
    assert outcome.text == "([None, 'ü'], None, '<tools: f, g-h>')"
    assert calls == [("f", {"a": 1}), ("g-h", {})]
    refused = kernel.run("belljar.tools.f()")
    assert refused.error["name"] == "AttributeError" and "may call no tools" in refused.error["value"]


def test_tool_that_fails(kernel):
    kernel.answer_call = lambda frame: {"error": "no such city"}
    outcome = kernel.run("import belljar\nbelljar.tools.f()", tools=["f"])
    assert (outcome.status, outcome.error["name"], outcome.error["value"]) == ("error", "ToolError", "no such city")


def test_answer_with_a_huge_integer(kernel):
    limit = getattr(sys, "get_int_max_str_digits", int)()
    getattr(sys, "set_int_max_str_digits", int)(0)
    try:
        kernel.answer_call = lambda frame: {"result": [10**5000, 7]}
        outcome = kernel.run("kept = belljar.tools.f()\nkept[0] >= 1e300, kept[1]", tools=["f"])
    finally:
        getattr(sys, "set_int_max_str_digits", int)(limit)
    assert outcome.text == "(True, 7)"


def test_output_comes_before_the_call(kernel):
    number = kernel.start("print('first', end='')\nbelljar.tools.f()", tools=["f"])
    assert kernel.frame()["op"] == "started"
    call = kernel.frame()
    assert (call["op"], kernel.printed()[0]) == ("tool", "first")
    kernel.send({"op": "tool", "id": number, "call": call["call"], "result": 5})
    assert [kernel.frame()["op"], kernel.frame()["op"]] == ["result", "done"]


def test_call_that_is_interrupted(kernel):
    kernel.answer_call = None
    number = kernel.start("print('here', flush=True)\nbelljar.tools.f()", tools=["f"])
    outcome = kernel.finish(number, interrupt="here")
    assert outcome.status == "interrupted"
    # Its answer comes too late.
    call = next(frame for frame in outcome.frames if frame["op"] == "tool")
    kernel.send({"op": "tool", "id": number, "call": call["call"], "result": 1})
    assert kernel.run("1 + 1").text == "2"


def test_name_of_the_code_is_kept(kernel):
    assert kernel.run("belljar = 5\nbelljar", tools=["f"]).text == "5"
    assert kernel.run("del belljar\nimport belljar\nsorted(belljar.tools)", tools=["f"]).text == "['f']"


def test_unknown_frames_are_ignored(kernel):
    kernel.send({"op": "dance", "id": 99999})
    kernel.send({})
    assert kernel.run("1 + 1", surprise=[1, 2]).text == "2"


def test_tasks_continue_between_cells(kernel):
    kernel.run("import asyncio\nasync def later():\n    await asyncio.sleep(0.01)\n    print('task done', flush=True)")
    kernel.run("task = asyncio.get_event_loop().create_task(later())\nawait asyncio.sleep(0)")
    kernel.wait_printed("task done")
    assert kernel.run("task.done()").text == "True"


def test_loop_is_kept(kernel):
    kernel.run("import asyncio\nevent = asyncio.Event()\nlock = asyncio.Lock()\nawait lock.acquire()")
    assert kernel.run("event.set()\nawait event.wait()\nlock.locked()").text == "True"


def test_a_closed_loop_is_replaced(kernel):
    kernel.run("import asyncio\nasyncio.get_event_loop().close()")
    assert kernel.run("await asyncio.sleep(0, 3)").text == "3"


def test_a_large_cell(kernel):
    code = "x = 0\n" + "x += 1\n" * 20_000 + "x"
    assert kernel.run(code).text == "20000"


def test_a_large_text(kernel):
    code = "len('''" + "y" * (4 * 1024 * 1024 - 100) + "''')"
    assert kernel.run(code).text == str(4 * 1024 * 1024 - 100)


def test_kernel_file_is_generated_from_src():
    import pathlib
    import subprocess
    import sys

    folder = pathlib.Path(__file__).resolve().parent.parent
    subprocess.run([sys.executable, str(folder / "assemble.py"), "--check"], check=True)
