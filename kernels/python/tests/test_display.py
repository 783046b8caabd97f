"""Results: representations and limits."""

import base64
import json

import pytest
from driver import CHART, TABLE

MIB = 1024 * 1024
IMPORT = "from IPython.display import *\n"

FORMS = {
    "html": ("HTML('<b>x</b>')", {"text/plain", "text/html"}),
    "markdown": ("Markdown('# x')", {"text/plain", "text/markdown"}),
    "latex": ("Latex('$x$')", {"text/plain", "text/latex"}),
    "math": ("Math('x')", {"text/plain", "text/latex"}),
    "svg": ("SVG('<svg xmlns=\"http://www.w3.org/2000/svg\"/>')", {"text/plain", "image/svg+xml"}),
    "json": ("JSON({'a': [1, None]})", {"text/plain", "application/json"}),
    "javascript": ("Javascript('1')", {"text/plain", "application/javascript"}),
    "png": ("Image(b'\\x89PNG\\r\\n\\x1a\\n', format='png')", {"text/plain", "image/png"}),
    "jpeg": ("Image(b'\\xff\\xd8\\xff', format='jpeg')", {"text/plain", "image/jpeg"}),
    "code": ("Code('x = 1', language='python')", {"text/plain", "text/html", "text/latex"}),
    "pretty": ("Pretty('as it is')", {"text/plain"}),
    "repr_html": ("type('H', (), {'_repr_html_': lambda self: '<i>h</i>'})()", {"text/plain", "text/html"}),
    "repr_pdf": ("type('H', (), {'_repr_pdf_': lambda self: b'%PDF'})()", {"text/plain", "application/pdf"}),
    "repr_json": ("type('H', (), {'_repr_json_': lambda self: {'a': 1}})()", {"text/plain", "application/json"}),
    "repr_latex": ("type('H', (), {'_repr_latex_': lambda self: '$y$'})()", {"text/plain", "text/latex"}),
    "repr none": ("type('H', (), {'_repr_html_': lambda self: None})()", {"text/plain"}),
    "mimebundle": (
        "type('H', (), {'_repr_mimebundle_': lambda self, **k: {'text/html': '<p>', 'application/x+json': {'a': 1}}})()",
        {"text/plain", "text/html", "application/x+json"},
    ),
    "mimebundle with metadata": (
        "type('H', (), {'_repr_mimebundle_': lambda self, **k: ({'text/html': '<p>'}, {'text/html': {'w': 1}})})()",
        {"text/plain", "text/html"},
    ),
}


@pytest.mark.parametrize("code,forms", FORMS.values(), ids=FORMS.keys())
@pytest.mark.parametrize("way", ["last", "display"])
def test_forms(kernel, code, forms, way):
    outcome = kernel.run(IMPORT + (code if way == "last" else f"display({code})"))
    assert outcome.status == "ok", outcome.error
    (result,) = outcome.results
    assert result["main"] is (way == "last")
    assert set(result["data"]) == forms
    assert "cut" not in result


PRINTERS = {
    "type": "html.for_type(int, lambda value: f'<i>{value}</i>')",
    "type of each object": "html.for_type(object, lambda value: f'<i>{value}</i>')",
    "name": "html.for_type_by_name('builtins', 'int', lambda value: f'<i>{value}</i>')",
    "object": "html.singleton_printers[id(7)] = lambda value: f'<i>{value}</i>'",
    "mimebundle": "formatter.mimebundle_formatter.for_type(int, lambda value, **k: {'text/html': f'<i>{value}</i>'})",
}


@pytest.mark.parametrize("register", PRINTERS.values(), ids=PRINTERS.keys())
def test_printers_for_types_with_text_only(fresh, register):
    formatter = "formatter = get_ipython().display_formatter\nhtml = formatter.formatters['text/html']\n"
    kernel = fresh()
    assert set(kernel.run("7").main["data"]) == {"text/plain"}
    kernel.run(formatter + register)
    assert kernel.run("7").main["data"] == {"text/plain": "7", "text/html": "<i>7</i>"}


def test_values_of_forms(kernel):
    data = kernel.run(IMPORT + "JSON({'a': float('nan'), 'b': (1, 2)})").main["data"]
    assert data["application/json"] == {"a": None, "b": [1, 2]}
    data = kernel.run(IMPORT + "Image(b'\\x89PNG\\r\\n\\x1a\\nabc', format='png', width=7)").main
    assert base64.b64decode(data["data"]["image/png"]) == b"\x89PNG\r\n\x1a\nabc"
    assert data["metadata"] == {"image/png": {"width": 7}}


def test_display_is_builtin_and_takes_many(kernel):
    outcome = kernel.run("display(1, 'two', [3])")
    assert [one["data"]["text/plain"] for one in outcome.results] == ["1", "'two'", "[3]"]
    assert not any(one["main"] for one in outcome.results)


def test_display_of_nothing(kernel):
    assert kernel.run("display()").results == []


def test_updates(kernel):
    outcome = kernel.run("handle = display('one', display_id=True)\nhandle.update('two')")
    first, second = outcome.results
    assert first["display_id"] == second["display_id"] and second["update"] is True and "update" not in first
    outcome = kernel.run(IMPORT + "update_display('three', display_id='mine')")
    assert outcome.results[0]["display_id"] == "mine" and outcome.results[0]["update"] is True


def test_clear_output_does_nothing(kernel):
    outcome = kernel.run(IMPORT + "print('a')\nclear_output()\nprint('b')")
    assert outcome.stdout == "a\nb\n" and outcome.status == "ok"


def test_raw_display(kernel):
    outcome = kernel.run("display({'text/plain': 'p', 'text/html': '<p>', 'application/x-own': 'own'}, raw=True)")
    data = outcome.results[0]["data"]
    assert data["text/html"] == "<p>" and base64.b64decode(data["application/x-own"]) == b"own"


def test_order_of_output_and_results(kernel):
    number = kernel.start("print('a')\ndisplay(1)\nprint('b')\n2")
    assert kernel.frame()["op"] == "started"
    assert kernel.frame()["main"] is False
    assert kernel.printed()[0].startswith("a\n")
    assert kernel.frame()["main"] is True
    assert kernel.frame() == {"op": "done", "id": number, "status": "ok"}
    kernel.printed()


def _mark(number):
    return f"\x1e0123456789abcdef{number:08x}"


def test_results_have_marks_in_the_streams(kernel):
    code = "import os, subprocess, sys\nprint('a')\ndisplay(1)\n_ = subprocess.run(['echo', 'b'])\nsys.stderr.write('c')\ndisplay(2)\n3"
    outcome = kernel.run(code, mark="0123456789abcdef")
    first, second, main = outcome.results
    assert second["mark"] == first["mark"] + 1 and "mark" not in main
    assert outcome.stdout == f"a\n{_mark(first['mark'])}b\n{_mark(second['mark'])}"
    assert outcome.stderr == f"{_mark(first['mark'])}c{_mark(second['mark'])}"
    # Not in what the code has put in their place.
    code = "kept = os.dup(1)\nos.dup2(os.open('file', os.O_CREAT | os.O_RDWR), 1)\ndisplay(1)\nprint('x')\ndisplay(2)\nos.dup2(kept, 1)\nopen('file').read()"
    outcome = kernel.run(code, mark="0123456789abcdef")
    first, second, main = outcome.results
    assert outcome.stdout == _mark(first["mark"]) + _mark(second["mark"]) and main["data"]["text/plain"] == "'x\\n'"
    # A value that more code follows has one, and without a token there are none.
    kernel.run("%config InteractiveShell.ast_node_interactivity = 'all'")
    outcome = kernel.run("1\n2", mark="0123456789abcdef")
    assert outcome.stdout == "".join(_mark(one["mark"]) for one in outcome.results)
    kernel.run("%config InteractiveShell.ast_node_interactivity = 'last_expr'")
    outcome = kernel.run("display(1)")
    assert outcome.stdout == outcome.stderr == "" and "mark" not in outcome.results[0]


def test_marks_of_threads_are_in_the_order_of_their_results(kernel):
    code = "import threading\ndef work():\n    for n in range(100): display(n)\nall = [threading.Thread(target=work) for _ in range(4)]\nfor one in all: one.start()\nfor one in all: one.join()"
    outcome = kernel.run(code, mark="0123456789abcdef")
    marks = "".join(_mark(one["mark"]) for one in outcome.results)
    assert len(outcome.results) == 400 and outcome.stdout == outcome.stderr == marks


def test_only_one_main(kernel):
    outcome = kernel.run("import sys\nsys.displayhook(1)\nsys.displayhook(2)\n3")
    assert [one["main"] for one in outcome.results].count(True) == 1 and len(outcome.results) == 3


def test_all_expressions(kernel):
    outcome = kernel.run("%config InteractiveShell.ast_node_interactivity = 'all'\n")
    outcome = kernel.run("1\n2\n3")
    assert [one["data"]["text/plain"] for one in outcome.results] == ["1", "2", "3"]
    kernel.run("%config InteractiveShell.ast_node_interactivity = 'last_expr'")


def test_own_display(kernel):
    outcome = kernel.run("class O:\n    def _ipython_display_(self):\n        print('shown by itself')\nO()")
    assert outcome.stdout == "shown by itself\n" and outcome.results == []


def test_capture_includes_results(kernel):
    assert kernel.run("%%capture c\ndisplay(1)\n2").results == []
    assert kernel.run("len(c.outputs)").text == "2"


def test_display_from_a_thread(kernel):
    code = "import threading\nt = threading.Thread(target=display, args=(5,)); t.start(); t.join()"
    assert kernel.run(code).results[0]["data"]["text/plain"] == "5"


def test_display_from_many_threads(kernel):
    code = (
        "import threading\nts = [threading.Thread(target=lambda: [display('x' * 5000) for _ in range(20)]) for _ in range(8)]\n"
    )
    outcome = kernel.run(code + "[t.start() for t in ts]; [t.join() for t in ts];")
    assert len(outcome.results) == 160


def test_display_after_done(fresh):
    kernel = fresh()
    kernel.run(
        "import threading\ngo = threading.Event()\ndef f():\n    go.wait(100)\n    display('late')\nt = threading.Thread(target=f); t.start()"
    )
    number = kernel.start("go.set(); t.join()")
    frames = [kernel.frame() for _ in range(3)]
    assert [one["op"] for one in frames] == ["started", "result", "done"] and frames[1]["id"] == number


BAD = {
    "repr raises": ("def __repr__(self):\n        raise ValueError('no')", "ValueError: no"),
    "repr is a number": ("def __repr__(self):\n        return 5", "TypeError"),
    "repr recursion": ("def __repr__(self):\n        return repr(self)", "RecursionError"),
}


@pytest.mark.parametrize("body,text", BAD.values(), ids=BAD.keys())
def test_bad_text(kernel, body, text):
    outcome = kernel.run(f"class X:\n    {body}\nX()")
    assert outcome.status == "ok"
    assert outcome.text.startswith("<X object, whose text could not be made: ") and text in outcome.text
    assert len(outcome.stderr) < 100_000


BAD_FORMS = {
    "html raises": "def _repr_html_(self):\n        raise ValueError('no')",
    "html is a number": "def _repr_html_(self):\n        return 5",
    "png is text": "def _repr_png_(self):\n        return 'not base64 !'",
    "json is a set": "def _repr_json_(self):\n        return {'a': {1}}",
    "json is deep": "def _repr_json_(self):\n        a = []\n        for _ in range(5000):\n            a = [a]\n        return a",
    "json is itself": "def _repr_json_(self):\n        a = []\n        a.append(a)\n        return a",
    "bundle is a list": "def _repr_mimebundle_(self, **k):\n        return [1]",
    "bundle raises": "def _repr_mimebundle_(self, **k):\n        raise OSError('x')",
    "bundle with odd keys": "def _repr_mimebundle_(self, **k):\n        return {'text/plain': 'fine', 5: 'x', '': 'y', 'a\\nb/c': 'z', 'x/' + 'y' * 999: 'w'}",
    "bundle with odd values": "def _repr_mimebundle_(self, **k):\n        return {'text/plain': 'fine', 'text/html': 5, 'image/png': [], 'application/json': object()}",
    "attribute error": "def __getattr__(self, name):\n        raise OSError(name)",
    "everything answers": "def __getattr__(self, name):\n        return lambda *a, **k: self",
}


@pytest.mark.parametrize("body", BAD_FORMS.values(), ids=BAD_FORMS.keys())
def test_bad_forms(kernel, body):
    outcome = kernel.run(f"class X:\n    {body}\nX()")
    assert outcome.status == "ok", outcome.error
    assert "text/plain" in outcome.main["data"]
    assert set(outcome.main["data"]) <= {"text/plain"}
    assert kernel.run("1 + 1").text == "2"


def test_a_text_of_100_mib(kernel):
    outcome = kernel.run("'x' * (100 * 1024 * 1024)")
    assert len(json.dumps(outcome.text)) <= 8 * MIB
    assert "left out" in outcome.text
    assert outcome.main["cut"] == ["text/plain: shortened to 6.0 MiB"]


def test_a_list_of_large_texts(kernel):
    outcome = kernel.run("['x' * 1_000_000] * 1000")
    assert len(json.dumps(outcome.text)) <= 8 * MIB + 100


def test_text_that_json_escapes(kernel):
    outcome = kernel.run("display({'text/plain': '\\x01' * (4 * 1024 * 1024)}, raw=True)")
    assert len(json.dumps(outcome.results[0]["data"]["text/plain"])) <= 8 * MIB
    assert outcome.results[0]["cut"]


def test_a_picture_that_is_too_large(kernel):
    code = "display({'image/png': b'x' * (9 * 1024 * 1024), 'text/plain': 'p'}, raw=True)"
    result = kernel.run(code).results[0]
    assert set(result["data"]) == {"text/plain"}
    assert result["cut"] == ["image/png: 12.0 MiB are more than the 8.0 MiB of one form"]


def test_html_and_json_that_are_too_large(kernel):
    code = (
        "display({'text/html': 'x' * (9 * 1024 * 1024), 'application/json': ['y' * 100] * 100000, 'text/plain': 'p'}, raw=True)"
    )
    result = kernel.run(code).results[0]
    assert set(result["data"]) == {"text/plain"} and len(result["cut"]) == 2


def test_all_results_together(kernel):
    outcome = kernel.run(
        "for _ in range(10):\n    display({'text/html': 'x' * (5 * 1024 * 1024), 'text/plain': 'p'}, raw=True)\n'main'"
    )
    total = sum(len(value) for one in outcome.results for value in one["data"].values())
    assert total <= 24 * MIB
    assert "24 MiB" in outcome.shown[-1]["cut"][0]
    assert outcome.text == "'main'"


def test_more_than_1000_results(kernel):
    outcome = kernel.run("for i in range(3000):\n    display(i)")
    assert len(outcome.results) == 1000
    assert "1,000 results" in outcome.stderr
    assert kernel.run("5").text == "5"


def test_result_of_one_gigabyte(fresh):
    kernel = fresh()
    outcome = kernel.run("b'x' * (1 << 30)")
    assert len(outcome.text) <= 8 * MIB and kernel.run("1").text == "1"


def test_nothing_optional_is_imported(fresh):
    kernel = fresh()
    kernel.run("1 + 1\ndisplay(2)")
    code = "import sys; sorted({'numpy', 'pandas', 'matplotlib', 'PIL', 'jedi', 'prompt_toolkit', 'zmq'} & set(sys.modules))"
    assert kernel.run(code).text == "[]"


# pandas


def table(kernel, code):
    outcome = kernel.run("import pandas as pd, numpy as np, datetime as dt\n" + code)
    assert outcome.status == "ok", outcome.error
    assert outcome.main is not None and "cut" not in outcome.main, outcome.main.get("cut")
    return outcome.main["data"][TABLE]


def test_table(kernel):
    outcome = kernel.run(
        "import pandas as pd\npd.DataFrame({'a': [1, 2], 'b': ['x', None], 'c': [1.5, float('nan')], 'd': [True, False]})"
    )
    assert set(outcome.main["data"]) == {"text/plain", "text/html", TABLE}
    assert outcome.main["data"][TABLE] == {
        "columns": [
            {"name": "a", "type": "integer"},
            {"name": "b", "type": "string"},
            {"name": "c", "type": "number"},
            {"name": "d", "type": "boolean"},
        ],
        "rows": [[1, "x", 1.5, True], [2, None, None, False]],
        "index": None,
        "row_count": 2,
        "truncated": False,
    }


TYPES = {
    "datetime": ("pd.to_datetime(['2024-01-02', None])", "datetime", ["2024-01-02T00:00:00", None]),
    "zone": ("pd.to_datetime(['2024-01-02']).tz_localize('UTC')", "datetime", ["2024-01-02T00:00:00+00:00"]),
    "duration": ("pd.to_timedelta(['1h', None])", "duration", ["P0DT1H0M0S", None]),
    "period": ("pd.period_range('2024-01', periods=1, freq='M')", "datetime", ["2024-01-01T00:00:00"]),
    "category": ("pd.Categorical(['u', 'v'])", "string", ["u", "v"]),
    "nullable": ("pd.array([1, None], dtype='Int64')", "integer", [1, None]),
    "mixed": ("[1, 'a']", "other", [1, "a"]),
    "dates": ("[dt.date(2024, 1, 2)]", "datetime", ["2024-01-02"]),
    "lists": ("[[1, 2]]", "other", ["[1, 2]"]),
    "infinite": ("[float('inf'), 1.0]", "number", [None, 1.0]),
    "complex": ("[1 + 2j]", "other", ["(1+2j)"]),
    "surrogate": ("pd.Series(['\\ud800'], dtype=object)", "string", ["\\ud800"]),
}


@pytest.mark.parametrize("code,kind,values", TYPES.values(), ids=TYPES.keys())
def test_table_types(kernel, code, kind, values):
    found = table(kernel, f"pd.DataFrame({{'v': {code}}})")
    assert found["columns"] == [{"name": "v", "type": kind}]
    assert [row[0] for row in found["rows"]] == values


def test_table_index(kernel):
    found = table(kernel, "pd.DataFrame({'v': [1, 2]}, index=pd.Index(['p', 'q'], name='key'))")
    assert found["index"] == {"name": "key", "type": "string", "values": ["p", "q"]}
    found = table(kernel, "pd.DataFrame({'g': ['a', 'a'], 'h': [1, 2], 'v': [3, 4]}).set_index(['g', 'h'])")
    assert found["index"] == {"name": "g, h", "type": "other", "values": [["a", 1], ["a", 2]]}


def test_table_of_series_describe_and_groups(kernel):
    assert table(kernel, "pd.Series([1, 2], name='s')")["columns"] == [{"name": "s", "type": "integer"}]
    found = table(kernel, "pd.DataFrame({'v': [1, 2]}).describe()")
    assert found["index"]["values"][0] == "count" and found["rows"][0] == [2.0]
    found = table(kernel, "pd.DataFrame({'g': ['a', 'b'], 'v': [1, 2]}).groupby('g').agg(['min', 'max'])")
    assert [one["name"] for one in found["columns"]] == ["v, min", "v, max"]


def test_empty_tables(kernel):
    assert table(kernel, "pd.DataFrame()")["rows"] == []
    assert table(kernel, "pd.DataFrame({'a': []})")["row_count"] == 0


def test_large_table(kernel):
    outcome = kernel.run("import pandas as pd, numpy as np\npd.DataFrame(np.zeros((5000, 150)))")
    found = outcome.main["data"][TABLE]
    assert (len(found["rows"]), len(found["columns"]), found["row_count"], found["truncated"]) == (1000, 100, 5000, True)
    assert "1,000 of 5,000 rows and 100 of 150 columns" in outcome.main["cut"][0]


def test_table_of_large_texts(kernel):
    outcome = kernel.run("import pandas as pd\npd.DataFrame({'t': ['x' * 100_000] * 1000})")
    found = outcome.main["data"][TABLE]
    assert found["truncated"] and len(json.dumps(found)) < 8 * MIB and len(found["rows"][0][0]) < 10_000


WIDE = "import pandas as pd\nwide = pd.DataFrame({f'column_{n}': [n * 1000.5] for n in range(12)})\n"


def test_wide_frames_are_wrapped_and_complete(fresh):
    kernel = fresh()
    outcome = kernel.run(WIDE + "print(wide)\nwide")
    for text in (outcome.stdout, outcome.text):
        assert all(f"column_{n} " in text or f"column_{n}\n" in text for n in range(12)), text
        assert "..." not in text and max(map(len, text.splitlines())) <= 80
    assert "..." in kernel.run("pd.DataFrame([range(30)])").text


def test_options_of_pandas_are_kept(fresh):
    kernel = fresh()
    assert kernel.run("import pandas as pd\npd.get_option('display.max_columns')").text == "20"
    kernel.run("pd.set_option('display.max_columns', 4)")
    kernel.run("import importlib, pandas.plotting")
    assert "..." in kernel.run(WIDE + "wide").text
    kernel.run("pd.set_option('display.width', 40)")
    assert max(map(len, kernel.run("wide").text.splitlines())) <= 40
    kernel.run("pd.reset_option('display.max_columns')")
    assert kernel.run("pd.get_option('display.max_columns')").text == "20"


def test_hostile_frame(kernel):
    code = "import pandas as pd\nclass F(pd.DataFrame):\n    @property\n    def iloc(self):\n        raise OSError('no')\n"
    outcome = kernel.run(code + "F({'a': [1]})")
    assert outcome.status == "ok" and TABLE not in outcome.main["data"]
    assert outcome.main["cut"]


# matplotlib and Pillow

PLOT = "import matplotlib.pyplot as plt\n"


def test_open_figures_are_shown_and_closed(kernel):
    outcome = kernel.run(PLOT + "plt.plot([1, 2]);\nplt.figure(); plt.plot([3]);")
    assert len(outcome.results) == 2
    assert all(set(one["data"]) == {"text/plain", "image/png", CHART} for one in outcome.results)
    assert kernel.run("plt.get_fignums()").text == "[]"


def test_show_is_immediate(kernel):
    outcome = kernel.run(PLOT + "plt.plot([1, 2])\nplt.show()\nprint('after')\nplt.plot([5, 6])\nplt.show()")
    assert len(outcome.results) == 2 and outcome.stdout == "after\n"
    outcome = kernel.run("fig, ax = plt.subplots(); ax.plot([1]); fig.show()\n5")
    assert outcome.text == "5" and len(outcome.shown) == 1


def test_a_figure_as_the_value_is_shown_once(kernel):
    outcome = kernel.run(PLOT + "fig, ax = plt.subplots()\nax.plot([1, 2])\nfig")
    assert len(outcome.results) == 1 and outcome.main["data"]["image/png"]


def test_figures_without_pyplot(kernel):
    outcome = kernel.run("from matplotlib.figure import Figure\nf = Figure()\nf.subplots().plot([1, 2])\nf")
    assert "image/png" in outcome.main["data"] and outcome.main["data"][CHART]["type"] == "line"


def test_empty_figures_are_not_shown(kernel):
    assert kernel.run(PLOT + "plt.figure();").results == []


def test_figures_of_a_failed_cell(kernel):
    outcome = kernel.run(PLOT + "plt.plot([1, 2])\n1 / 0")
    assert outcome.error["name"] == "ZeroDivisionError" and len(outcome.results) == 1
    assert outcome.frames[-2]["op"] == "error"


def test_a_figure_that_cannot_be_drawn(kernel):
    outcome = kernel.run(PLOT + "plt.plot([1, 2]); plt.title('$\\\\nosuch$');")
    assert "ValueError" in outcome.stderr and outcome.status == "ok"
    assert kernel.run("plt.get_fignums()").text == "[]"
    assert kernel.run("1 + 1").text == "2"


def test_magic_inline_does_not_break(kernel):
    for magic in ("%matplotlib inline", "%matplotlib", "%matplotlib auto", "%matplotlib qt", "%pylab inline"):
        outcome = kernel.run(f"{magic}\nimport matplotlib.pyplot as plt\nplt.plot([1, 2]);")
        assert outcome.status == "ok", (magic, outcome.error)
        assert [set(one["data"]) for one in outcome.results] == [{"text/plain", "image/png", CHART}], magic


def test_formats(kernel):
    kernel.run("from matplotlib_inline.backend_inline import set_matplotlib_formats\nset_matplotlib_formats('svg', 'pdf')")
    outcome = kernel.run(PLOT + "plt.plot([1, 2]);")
    assert set(outcome.results[0]["data"]) == {"text/plain", "image/svg+xml", "application/pdf", CHART}
    assert base64.b64decode(outcome.results[0]["data"]["application/pdf"]).startswith(b"%PDF")
    kernel.run("%config InlineBackend.figure_formats = ['png']")
    assert "image/png" in kernel.run("plt.plot([1, 2]);").results[0]["data"]


def test_retina(kernel):
    kernel.run("%config InlineBackend.figure_format = 'retina'")
    result = kernel.run(PLOT + "plt.plot([1, 2]);").results[0]
    assert result["metadata"]["image/png"]["width"] > 300
    kernel.run("%config InlineBackend.figure_format = 'png'")


def test_format_set_before_matplotlib_is_imported(fresh):
    kernel = fresh()
    kernel.run("%config InlineBackend.figure_format = 'svg'")
    assert "image/svg+xml" in kernel.run(PLOT + "plt.plot([1, 2]);").results[0]["data"]


def test_a_figure_that_the_code_has_closed_is_not_shown(kernel):
    outcome = kernel.run(PLOT + "plt.plot([1, 2]); plt.savefig('x.png')\nplt.close()")
    assert outcome.status == "ok" and outcome.results == []
    assert kernel.run("import os; os.path.exists('x.png')").text == "True"


def test_interactive_and_close(kernel):
    outcome = kernel.run(PLOT + "plt.ion(); plt.plot([1]); plt.pause(0.01); plt.ioff()\nplt.close('all')")
    assert outcome.status == "ok"


def test_pillow(kernel):
    outcome = kernel.run("from PIL import Image\nim = Image.new('RGB', (32, 16), 'red')\nim.show()\nim")
    assert len(outcome.results) == 2
    for one in outcome.results:
        assert base64.b64decode(one["data"]["image/png"])[16:24] == (32).to_bytes(4, "big") + (16).to_bytes(4, "big")


def test_many_points_are_bounded(kernel):
    outcome = kernel.run(PLOT + "plt.plot(range(50000));")
    assert len(outcome.chart()["elements"][0]["points"]) == 10_000
    assert "10,000 of 50,000" in outcome.results[0]["cut"][0]


def test_a_picture_of_noise_that_is_too_large(kernel):
    code = (
        PLOT
        + "import numpy as np\nplt.figure(figsize=(30, 30)); plt.imshow(np.random.rand(3000, 3000, 3), interpolation='none');"
    )
    result = kernel.run(code).results[0]
    assert "image/png" not in result["data"] and "image/png" in result["cut"][0]


# plotly and tqdm

PLOTLY = "application/vnd.plotly.v1+json"
FIGURE = "import plotly.graph_objects as go\nfig = go.Figure([go.Scatter(y=[1, 2, 3]), go.Bar(y=[3, 4])])\n"


@pytest.mark.parametrize("nbformat", [False, True], ids=["without nbformat", "with nbformat"])
def test_plotly(fresh, nbformat):
    kernel = fresh()
    if nbformat:
        kernel.run("open('nbformat.py', 'w').write('__version__ = \"5.10.4\"')")
    assert kernel.run("import importlib.util; importlib.util.find_spec('nbformat') is not None").text == str(nbformat)
    for code in ("fig", "fig.show()", "display(fig)", "import plotly.offline\nplotly.offline.iplot(fig)"):
        outcome = kernel.run(FIGURE + code)
        assert (outcome.status, outcome.stderr) == ("ok", ""), (code, outcome.error)
        (result,) = outcome.results
        assert set(result["data"]) == {"text/plain", "text/html", PLOTLY} and "cut" not in result
        assert result["data"]["text/plain"] == "<plotly figure of 2 traces: scatter, bar>"
        assert [trace["type"] for trace in result["data"][PLOTLY]["data"]] == ["scatter", "bar"]
        html = result["data"]["text/html"]
        # It stands alone: it has the script's address, and not the script.
        assert len(html) < 20_000 and "https://cdn.plot.ly/plotly-" in html and "Plotly.newPlot" in html
        assert html.count("cdn.plot.ly") == 1


def test_plotly_with_another_renderer(fresh):
    kernel = fresh()
    kernel.run("import plotly.io\nplotly.io.renderers.default = 'json'")
    assert set(kernel.run(FIGURE + "fig.show()").results[0]["data"]) == {"application/json"}
    other = fresh(env={"PLOTLY_RENDERER": "plotly_mimetype"})
    assert set(other.run(FIGURE + "fig.show()").results[0]["data"]) == {PLOTLY}


def test_progress_bars_without_widgets(fresh):
    kernel = fresh()
    for code in (
        "from tqdm.notebook import tqdm, trange\nlist(tqdm([1, 2], desc='work', ncols='80%', display=True)); [n for n in trange(1, 3)]",
        "from tqdm.auto import tqdm\n[n for n in tqdm([1, 2], desc='work')]",
        "from tqdm import tqdm_notebook\n[n for n in tqdm_notebook([1, 2], desc='work')]",
    ):
        outcome = kernel.run(code)
        assert (outcome.status, outcome.text) == ("ok", "[1, 2]"), outcome.error
        assert "work: 100%" in outcome.stderr


WITHIN_OTHERS = {
    "signal": (
        "import signal\nn = 0\ndef act(*_):\n    global n\n    n += 1\n    display(('inner', n))\n"
        "signal.signal(signal.SIGALRM, act)\nsignal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)\n"
        "i = 0\nwhile n < 20 and i < 900: i += 1; display(i)\nsignal.setitimer(signal.ITIMER_REAL, 0)"
    ),
    "garbage collector": (
        "import gc\nn = 0\ndef act(*_):\n    global n\n    if n < 20: n += 1; display(('inner', n))\n"
        "gc.callbacks.append(act); gc.set_threshold(1)\n"
        "i = 0\nwhile n < 20: i += 1; display([i])\ngc.callbacks.remove(act); gc.set_threshold(700)"
    ),
}


@pytest.mark.parametrize("code", WITHIN_OTHERS.values(), ids=WITHIN_OTHERS.keys())
def test_results_that_are_shown_while_others_are_sent(kernel, code):
    outcome = kernel.run(code + "\nprint(i, n)")
    assert outcome.status == "ok", outcome.error
    shown = [one["data"]["text/plain"] for one in outcome.results]
    inner = {text for text in shown if "inner" in text}
    count, seen = map(int, outcome.stdout.split())
    assert seen > 0
    assert inner == {f"('inner', {number})" for number in range(1, seen + 1)}
    assert len(shown) == count + seen
