"""Puts the modules of `src` into the one file that the guest starts, `kernel.py`. `--check` only compares."""

import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
TARGET = HERE / "kernel.py"

HEAD = '''"""Belljar's Python kernel, in one file. Made by assemble.py from src; change it there."""

import sys

SOURCES = {}
'''

TAIL = '''

class _Modules:
    """Finds the kernel's own modules, which are compiled when they are needed."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        package, _, module = name.partition(".")
        if package != "_belljar" or (module and module not in SOURCES):
            return None
        from importlib.machinery import ModuleSpec

        spec = ModuleSpec(name, _Modules, is_package=not module)
        spec.origin = f"<belljar {module}>"
        return spec

    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        name = module.__name__.partition(".")[2]
        if name:
            exec(compile(SOURCES[name], f"<belljar {name}>", "exec", dont_inherit=True), module.__dict__)

    @staticmethod
    def get_source(name):
        return SOURCES.get(name.partition(".")[2], "")


sys.meta_path.insert(0, _Modules)

if __name__ == "__main__" and not globals().get("BELLJAR_WARM"):
    # The shell puts the code's own module in this one's place; this keeps it alive.
    _Modules.first = sys.modules["__main__"]
    import os

    if "BELLJAR_WARM" in os.environ:
        from _belljar.parent import main
    else:
        from _belljar.start import main

    main()
'''


def assembled():
    """The text of `kernel.py`."""
    parts = [HEAD]
    for path in sorted((HERE / "src").glob("*.py")):
        text = path.read_text()
        if "'''" in text or text.endswith("\\\n"):
            raise SystemExit(f"{path}: it has three single quotes in a row, which the one file cannot hold")
        parts.append(f"\nSOURCES[{path.stem!r}] = r'''{text}'''\n")
    return "".join(parts) + TAIL


def main():
    """Writes the file, or says that it is out of date."""
    if sys.argv[1:] == ["--check"]:
        if not TARGET.exists() or TARGET.read_text() != assembled():
            raise SystemExit("kernels/python/kernel.py is not what src says; run `make -C kernels/python kernel.py`")
        return
    TARGET.write_text(assembled())


if __name__ == "__main__":
    main()
