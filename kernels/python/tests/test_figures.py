"""Figures are results in plain and in warm contexts, whatever backend is asked for."""

import os

import driver
import pytest
from test_warm import Parent

ENVIRONMENT = {"PATH": os.environ["PATH"], "MPLBACKEND": "agg", "MPLCONFIGDIR": "/tmp/belljar-test-mpl"}

BACKENDS = {
    "none": "",
    "Agg": "import matplotlib\nmatplotlib.use('Agg')",
    "agg after pyplot": "import matplotlib, matplotlib.pyplot\nmatplotlib.use('agg', force=True)",
    "switch_backend": "import matplotlib.pyplot as plt\nplt.switch_backend('Agg')",
    "rcParams": "import matplotlib\nmatplotlib.rcParams['backend'] = 'Agg'",
    "environment": "import os\nos.environ['MPLBACKEND'] = 'Agg'",
    "svg": "import matplotlib\nmatplotlib.use('svg')",
    "pdf": "import matplotlib.pyplot as plt\nplt.switch_backend('pdf')",
    "a window": "import matplotlib\nmatplotlib.use('TkAgg')",
    "a notebook's": "import matplotlib\nmatplotlib.use('module://matplotlib_inline.backend_inline')",
    "%matplotlib agg": "%matplotlib agg",
}

# Code, and the number of figures that it shows.
FIGURES = {
    "import matplotlib.pyplot as plt\nplt.plot([1, 2]); plt.show()": 1,
    "plt.plot([1, 2]);": 1,
    "plt.plot([1, 2]); plt.savefig('x.png')": 1,
    "for _ in range(2):\n    plt.plot([1, 2]); plt.show()": 2,
    "import pandas as pd\npd.DataFrame({'a': [1, 2]}).plot.bar()": 1,
    "fig, ax = plt.subplots(); ax.plot([1, 2])\nfig": 1,
    "plt.figure(); plt.plot([1]); plt.figure(); plt.plot([2]);": 2,
}


@pytest.fixture(scope="module")
def warm_parent():
    parent = Parent(["pandas", "matplotlib.pyplot"])
    yield parent
    parent.stop()


@pytest.fixture(params=["plain", "warm"])
def start(request, fresh, warm_parent):
    def make():
        return (
            fresh(env=ENVIRONMENT) if request.param == "plain" else warm_parent.fork(env={**ENVIRONMENT, "HOME": driver.home()})
        )

    return make


@pytest.mark.parametrize("backend", BACKENDS.values(), ids=BACKENDS.keys())
def test_figures_are_shown(start, backend, tmp_path):
    kernel = start()
    assert kernel.run(f"import os; os.environ['MPLBACKEND'], os.chdir({str(tmp_path)!r})").text == "('agg', None)"
    assert kernel.run(backend).status == "ok"
    for code, count in FIGURES.items():
        outcome = kernel.run(code)
        pictures = [one["data"] for one in outcome.results if "image/png" in one["data"]]
        assert (outcome.status, len(pictures)) == ("ok", count), (code, outcome.error)
        assert all(driver.CHART in one for one in pictures)
        assert all(len(one[driver.CHART]["elements"]) < 3 for one in pictures), "a figure of an earlier cell"
        assert kernel.run("plt.get_fignums()").text == "[]"


def test_a_backend_that_does_not_exist_is_an_error(start):
    kernel = start()
    for code in ("import matplotlib\nmatplotlib.use('nosuch')", "import matplotlib.pyplot as plt\nplt.switch_backend('nosuch')"):
        assert kernel.run(code).error["name"] in ("ValueError", "ModuleNotFoundError")


def test_a_window_is_noted(fresh):
    outcome = fresh().run("import matplotlib.pyplot as plt\nplt.switch_backend('QtAgg')\nplt.plot([1]);")
    assert "No display is available: QtAgg is ignored" in outcome.stderr and len(outcome.results) == 1


def test_a_backend_of_the_code_shows_in_its_own_way(fresh):
    kernel = fresh()
    kernel.run("open('own.py', 'w').write('from matplotlib.backends.backend_agg import *\\ndef show(**k): print(\"own\")')")
    outcome = kernel.run(
        "import matplotlib\nmatplotlib.use('module://own')\nimport matplotlib.pyplot as plt\nplt.plot([1]); plt.show()"
    )
    assert (outcome.status, outcome.stdout, outcome.results) == ("ok", "own\n", [])
