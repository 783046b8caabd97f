"""Packages that code installs."""

import os
import sys
import sysconfig
import zipfile

import driver
import pytest
from test_warm import Parent

# The interpreter of the virtual environment, outside of it: packages go to the user's own directory.
OUTSIDE = {"python": sys._base_executable, "env": {"PYTHONPATH": sysconfig.get_path("purelib")}}
USER_SITE = f".local/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
OPTIONS = "--user --no-index --find-links wheels"


def wheel(home, name="mine", version="1.0", body="value = 42\n"):
    """Makes a wheel with one module, in `wheels` of a home directory."""
    os.makedirs(f"{home}/wheels", exist_ok=True)
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": body,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{file},,\n" for file in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(f"{home}/wheels/{name}-{version}-py3-none-any.whl", "w") as archive:
        for file, text in files.items():
            archive.writestr(file, text)


WAYS = {
    "%pip": f"%pip install {OPTIONS} mine",
    "pip": f"pip install {OPTIONS} mine",
    "!pip": f"!PIP_BREAK_SYSTEM_PACKAGES=1 {{sys.executable}} -m pip install {OPTIONS} mine",
    "subprocess": f"import subprocess\nsubprocess.run([sys.executable, '-m', 'pip', 'install', '--break-system-packages', *'{OPTIONS}'.split(), 'mine'], check=True, capture_output=True)",
}


@pytest.mark.parametrize("code", WAYS.values(), ids=WAYS.keys())
def test_an_installed_package_can_be_imported_at_once(fresh, code):
    kernel = fresh(**OUTSIDE)
    wheel(kernel.home)
    outcome = kernel.run("import sys\ntry:\n    import mine\nexcept ImportError as error:\n    print(error.name)")
    assert outcome.stdout == "mine\n" and not os.path.exists(f"{kernel.home}/.local")
    # `pip` without a sign has to be the whole cell.
    after = "import mine\nmine.value, mine.__file__"
    outcomes = [kernel.run(code), kernel.run(after)] if code.startswith("pip") else [kernel.run(f"{code}\n{after}")]
    assert all(one.status == "ok" for one in outcomes), outcomes[0].error or outcomes[-1].error
    assert outcomes[-1].text == repr((42, f"{kernel.home}/{USER_SITE}/mine.py"))


FAILURES = {
    "%pip": ("%pip install --no-index nosuch", "Command 'pip install --no-index nosuch' returned non-zero exit status 1."),
    "!pip": (
        "!{sys.executable} -m pip install --no-index nosuch",
        "pip install --no-index nosuch' returned non-zero exit status 1.",
    ),
    "!npm": ("!cd / && PATH=/nowhere npm install -g nosuch", "npm install -g nosuch' returned non-zero exit status 127."),
}


@pytest.mark.parametrize("code,text", FAILURES.values(), ids=FAILURES.keys())
def test_a_failed_installation_is_an_error(kernel, code, text):
    outcome = kernel.run(f"import sys\n{code}\nafter = 'ran'\ndisplay(7)")
    assert (outcome.status, outcome.error["name"]) == ("error", "CalledProcessError")
    assert outcome.error["value"].endswith(text) and outcome.error["traceback"].endswith(text)
    assert outcome.shown[0]["data"]["text/plain"] == "7"
    if "pip" in code.split()[0]:
        assert "No matching distribution found for nosuch" in outcome.stdout + outcome.stderr
    assert kernel.run("after, _exit_code > 0").text == "('ran', True)"


@pytest.mark.parametrize(
    "code", ["!false", "!grep 'pip install' /dev/null", "!echo pip install x; exit 3", "!pip --version; false"]
)
def test_other_failed_commands_are_no_errors(kernel, code):
    assert kernel.run(code).status == "ok"
    assert kernel.run("_exit_code != 0").text == "True"


def test_an_error_of_the_code_comes_first(kernel):
    assert kernel.run("%pip install --no-index nosuch\nimport nosuch").error["name"] == "ModuleNotFoundError"


def test_without_pip_the_error_says_how_to_get_it(fresh):
    kernel = fresh(python=sys.executable)
    outcome = kernel.run("import os, sys\nsys.modules['pip'] = None\nos.environ['PATH'] = '/nowhere'\n%pip install x")
    assert outcome.error["name"] == "UsageError"
    assert outcome.error["value"].startswith(f"there is no pip for {sys.executable}: give the template a step")


def test_an_environment_that_cannot_be_changed(fresh):
    kernel = fresh(python=sys.executable)
    wheel(kernel.home)
    kernel.run("from _belljar import packages\npackages._is_fixed = lambda: True")
    outcome = kernel.run("%pip install --no-index --find-links wheels mine\nimport mine\nmine.__file__")
    assert (outcome.status, outcome.text) == ("ok", repr(f"{kernel.home}/{USER_SITE}/mine.py")), outcome.stderr


def test_an_environment_of_the_code_does_not_see_the_user_s_packages(fresh):
    kernel = fresh(python=sys.executable)
    assert kernel.run("import sys; [one for one in sys.path if '.local' in one]").text == "[]"


def test_the_user_s_packages_come_before_the_interpreter_s(fresh):
    kernel = fresh(**OUTSIDE)
    places = kernel.run("import sys; sys.path").text
    assert places.index(f"{kernel.home}/{USER_SITE}") < places.index(
        "dist-packages" if "dist-packages" in places else "site-packages'"
    )


def test_links_to_packages_are_read(fresh):
    kernel = fresh(**OUTSIDE)
    kernel.run(f"import os\nos.makedirs('{USER_SITE}'); os.makedirs('source')\nopen('source/linked.py', 'w').close()")
    kernel.run(f"open('{USER_SITE}/linked.pth', 'w').write(os.path.abspath('source'))")
    assert kernel.run("%pip --version\nimport linked").status == "ok"


def test_a_package_that_is_loaded_already_is_noted(fresh):
    kernel = fresh(**OUTSIDE)
    wheel(kernel.home, "iniconfig", "99.0")
    outcome = kernel.run(f"import iniconfig\n%pip install {OPTIONS} --ignore-installed iniconfig")
    assert outcome.status == "ok", outcome.error
    assert outcome.stderr.endswith("iniconfig is loaded already: restart the context to use the version that is installed now\n")


def test_a_warm_interpreter_does_not_hide_the_user_s_packages():
    parent = Parent(["json", "iniconfig"], python=OUTSIDE["python"], **OUTSIDE["env"])
    try:
        home = driver.home()
        os.makedirs(f"{home}/{USER_SITE}/other")
        kernel = parent.fork(env={"PATH": os.environ["PATH"], "HOME": home}, cwd=home)
        assert kernel.ready["op"] == "ready"
        assert f"{home}/{USER_SITE}" in kernel.run("import sys; sys.path").text
        os.makedirs(f"{home}/{USER_SITE}/iniconfig")
        assert parent.fork(env={"HOME": home}, cwd=home).ready == {
            "op": "failed",
            "message": "the package iniconfig that the user has installed differs from the one that is loaded already",
        }
    finally:
        parent.stop()
