"""Kernels that are forked from a prepared one."""

import json
import os
import pathlib
import signal
import socket
import subprocess
import sys

import driver
import pytest

HUGE_PAGE = 2 << 20

LIBRARIES = [
    "numpy",
    "pandas",
    "pyarrow",
    "matplotlib.pyplot",
    "ssl",
    "uuid",
    "tempfile",
    "random",
    "scipy.stats",
    "sklearn.linear_model",
]


class Parent:
    def __init__(self, modules, python=sys.executable, **env):
        ours, theirs = socket.socketpair()
        self.socket = ours
        self.log = os.memfd_create("log")
        one = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
        self.process = subprocess.Popen(
            [
                python,
                str(pathlib.Path(__file__).with_name("warm_parent.py")),
                str(driver.KERNEL),
                str(theirs.fileno()),
                *modules,
            ],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            cwd="/",
            env={"PATH": os.environ["PATH"], "PARENT": "yes", "MPLCONFIGDIR": "/tmp/belljar-test-mpl", **one, **env},
        )
        theirs.close()
        self.file = ours.makefile("rb")
        ours.settimeout(driver.TIMEOUT)
        self.state = json.loads(self.file.readline())

    def fork(self, **place):
        """Returns a kernel with the driver's methods, but without its output, which goes to the parent's."""
        ours, theirs = socket.socketpair()
        socket.send_fds(self.socket, [json.dumps(place).encode()], [theirs.fileno()])
        theirs.close()
        kernel = driver.Kernel.__new__(driver.Kernel)
        kernel.socket, kernel._buffer, kernel._next = ours, b"", 0
        kernel._out, kernel._err = (os.memfd_create(name) for name in ("out", "err"))
        kernel._pipes = {}
        kernel.printed = lambda: ("", "")
        kernel.pid = int(self.file.readline())
        kernel.ready = kernel.frame()
        return kernel

    def stop(self):
        self.socket.close()
        self.file.close()
        self.process.kill()
        self.process.wait()


@pytest.fixture(scope="module")
def parent():
    parent = Parent(LIBRARIES)
    yield parent
    parent.stop()


def test_the_parent_has_one_thread(parent):
    assert len(parent.state["threads"]) == 1
    assert {"numpy", "pandas", "_belljar.charts", "_belljar.tables", "_belljar.backend"} <= set(parent.state["modules"])


def _mappings(pid):
    """Returns the mappings of a process: address range, and memory of each kind in kB (proc_pid_smaps(5))."""
    mappings = []
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        name, *values = line.split()
        if not name.endswith(":"):
            mappings.append({"range": name})
        elif values[-1] == "kB":
            mappings[-1][name[:-1]] = int(values[0])
    return mappings


def test_objects_are_in_huge_pages(parent):
    if tuple(map(int, os.uname().release.split(".")[:2])) < (6, 1):
        pytest.skip("MADV_COLLAPSE needs Linux 6.1")
    # A huge page is aligned and lies in one mapping: how much of the memory that is depends on where the kernel put the mappings.
    possible = huge = 0
    for mapping in _mappings(parent.process.pid):
        start, end = (int(bound, 16) for bound in mapping["range"].split("-"))
        aligned = end // HUGE_PAGE - -(-start // HUGE_PAGE)
        possible += min(max(aligned, 0) * HUGE_PAGE // 1024, mapping["Anonymous"])
        huge += mapping["AnonHugePages"]
    assert possible > 32 * 1024
    assert huge > possible * 3 / 4


def test_a_fork_works(parent):
    kernel = parent.fork()
    assert kernel.ready["op"] == "ready"
    outcome = kernel.run("import pandas as pd\npd.DataFrame({'a': [1]})")
    assert outcome.started["count"] == 1 and driver.TABLE in outcome.main["data"]
    outcome = kernel.run("import matplotlib.pyplot as plt\nplt.plot([1, 2]);")
    assert outcome.chart()["type"] == "line" and outcome.png().startswith(b"\x89PNG")
    assert kernel.run("import asyncio\nawait asyncio.sleep(0, 3)").text == "3"
    assert kernel.run("1 / 0").error["traceback"].startswith("Traceback (most recent call last):\n  Cell In[4], line 1\n")
    assert kernel.run("import sys; sys.argv, sys.path[0], __name__").text == "([''], '', '__main__')"


def test_forks_have_their_own_environment(parent, tmp_path):
    kernel = parent.fork(env={"A": "b", "PATH": os.environ["PATH"]}, cwd=str(tmp_path))
    assert kernel.run("import os; os.environ.get('PARENT'), os.environ['A'], os.getcwd()").text == repr(
        (None, "b", str(tmp_path))
    )
    assert kernel.run("%sx echo $A$PARENT").text == "['b']"


RANDOM = {
    "random": "import random; random.random()",
    "numpy legacy": "import numpy as np; np.random.rand()",
    "numpy default": "import numpy as np; np.random.default_rng().random()",
    "scipy": "from scipy import stats; stats.norm.rvs()",
    "uuid1": "import uuid; uuid.uuid1()",
    "uuid4": "import uuid; uuid.uuid4()",
    "uuid node": "import uuid; uuid._node, uuid._random_getnode()",
    "ssl": "import ssl; ssl.RAND_bytes(16)",
    "secrets": "import secrets; secrets.token_hex()",
    "tempfile": "import tempfile; next(tempfile._get_candidate_names())",
    "os": "import os; os.urandom(8)",
}


@pytest.mark.parametrize("code", RANDOM.values(), ids=RANDOM.keys())
def test_forks_share_no_randomness(parent, code):
    values = {parent.fork().run(code).text for _ in range(4)}
    assert len(values) == 4 and None not in values


def test_forks_are_independent(parent):
    first, second = parent.fork(), parent.fork()
    first.run("secret = 1")
    assert second.run("'secret' in globals(), len(Out), _").text == "(False, 0, '')"


def test_a_fork_is_interrupted(parent):
    kernel = parent.fork()
    number = kernel.start("display(0)\nimport time\ntime.sleep(1000)")
    assert [kernel.frame()["op"] for _ in range(2)] == ["started", "result"]
    frames = []
    while not frames or frames[-1]["op"] != "done":
        frames.append(kernel.frame(tick=lambda: os.kill(kernel.pid, signal.SIGINT)))
    assert frames[-1] == {"op": "done", "id": number, "status": "interrupted"}


def test_forks_compute_with_blas(parent):
    kernel = parent.fork()
    assert kernel.run("import numpy as np\na = np.ones((300, 300))\nfloat((a @ a)[0, 0])").text == "300.0"


def test_missing_import_is_reported():
    code = f"exec(compile(open({str(driver.KERNEL)!r}).read(), 'k', 'exec'), {{'__name__': 'x'}})\nfrom _belljar import warm as kernel\n"
    code += "try:\n    kernel.prepare(['no_such_module'])\nexcept kernel.Failed as error:\n    print(error)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "the module no_such_module cannot be imported" in found.stdout
