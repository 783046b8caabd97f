"""Support for optional libraries: matplotlib, pandas, Pillow. Nothing is imported before the code imports it."""

import sys

CHART = "application/vnd.belljar.chart.v1+json"
TABLE = "application/vnd.belljar.table.v1+json"
BACKEND = "module://_belljar.backend"

# Figures of this execution that were already shown, by id.
_shown = {}
_formats = {"formats": None, "kwargs": {}, "applied": False}


def _loaded(module, name):
    found = sys.modules.get(module)
    value = getattr(found, name, None) if found is not None else None
    return value if isinstance(value, type) else None


def _is(obj, module, name):
    kind = _loaded(module, name)
    return kind is not None and isinstance(obj, kind)


def add(obj, data, notes):
    """Adds the chart of a figure, or the table of a data frame, to its representations."""
    if _is(obj, "matplotlib.figure", "Figure"):
        from _belljar import charts

        _add(data, notes, CHART, charts.of_figure, obj)
        # Later changes make it stale again.
        _shown[id(obj)] = obj
        obj.stale = False
    elif _is(obj, "pandas", "DataFrame") or _is(obj, "pandas", "Series"):
        from _belljar import tables

        _add(data, notes, TABLE, tables.of_frame, obj)


def _add(data, notes, mime, make, obj):
    try:
        value = make(obj, notes)
    except Exception as error:
        notes.append(f"{mime}: could not be created ({type(error).__name__})")
        return
    if value is not None:
        data[mime] = value


def shown():
    """Returns the figures that this execution has shown, by id."""
    return _shown


def before(obj, formatter):
    """Registers picture formats for figures, unless the code has chosen its own."""
    if _formats["applied"] or not _is(obj, "matplotlib.figure", "Figure"):
        return
    figure = _loaded("matplotlib.figure", "Figure")
    if not any(figure in one.type_printers for one in formatter.formatters.values()):
        apply_formats(formatter.parent)
    _formats["applied"] = True


def _shell():
    from IPython.core.getipython import get_ipython

    return get_ipython()


def set_formats(shell, formats, kwargs):
    """Sets the formats of figures."""
    _formats.update(formats=set(formats), kwargs=dict(kwargs))
    if "matplotlib.figure" in sys.modules:
        apply_formats(shell)


def apply_formats(shell):
    """Sets the formats; matplotlib is loaded."""
    from IPython.core.pylabtools import select_figure_formats

    select_figure_formats(shell, _formats["formats"] or {"png"}, **_formats["kwargs"])


def enable_matplotlib(gui=None):
    """`%matplotlib`: the kernel's own backend, or one without windows."""
    import matplotlib

    if gui in (None, "auto", "inline"):
        import matplotlib.pyplot as plt

        if matplotlib.get_backend() != BACKEND:
            plt.switch_backend(BACKEND)
        return "inline", BACKEND
    if gui in ("agg", "svg", "pdf", "ps", "cairo"):
        matplotlib.use(gui)
        return gui, gui
    print(f"No display is available: {gui} is ignored; figures are shown in the results.", file=sys.stderr)
    return enable_matplotlib("inline")


def begin():
    """Prepares an execution."""
    _shown.clear()


def end(show):
    """Finishes an execution: shows and closes open figures."""
    backend = sys.modules.get("_belljar.backend")
    try:
        if backend is not None and "matplotlib.pyplot" in sys.modules:
            backend.finish(show)
    finally:
        _shown.clear()


class Hooks:
    """Import hook that detects when code imports these libraries. First of the finders; finds nothing itself."""

    def __init__(self):
        """Maps modules to the steps that follow their loading."""
        self._after = {
            "matplotlib": _matplotlib,
            "matplotlib.axes": _axes,
            "PIL.Image": _pillow,
        }

    def find_spec(self, name, path=None, target=None):
        """Calls the other finders, and adds a step to the module's loading."""
        step = self._after.get(name)
        if step is None:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                break
        else:
            return None
        loader = spec.loader
        if loader is not None and hasattr(loader, "exec_module"):
            original = loader.exec_module

            def exec_module(module):
                original(module)
                try:
                    step(module)
                except Exception as error:
                    print(f"{name} is installed, but its results are not shown automatically: {error}", file=sys.stderr)

            try:
                loader.exec_module = exec_module
            except AttributeError:
                pass
        return spec


def _matplotlib(module):
    import os

    if not os.environ.get("MPLBACKEND"):
        module.rcParams["backend"] = BACKEND
        if hasattr(module, "rcParamsOrig"):
            module.rcParamsOrig["backend"] = BACKEND


def _axes(module):
    from _belljar import charts

    charts.watch(module.Axes)


def _pillow(module):
    def show(self, title=None):
        """Shows the picture in the results."""
        from IPython.display import display

        display(self)

    module.Image.show = show
