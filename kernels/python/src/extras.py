"""Support for optional libraries: matplotlib, pandas, Pillow, plotly, tqdm. Nothing is imported before the code imports it."""

import functools
import sys

CHART = "application/vnd.belljar.chart.v1+json"
TABLE = "application/vnd.belljar.table.v1+json"
BACKEND = "module://_belljar.backend"
# Names of matplotlib's own backends that the kernel's one replaces without a word: it draws what they draw.
_REPLACED = frozenset(("agg", "inline", "module://matplotlib_inline.backend_inline"))
# Backends that write files only.
_FILES = frozenset(("cairo", "pdf", "pgf", "ps", "svg", "template"))

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
    _note_display(gui)
    return enable_matplotlib("inline")


def _note_display(name):
    print(f"No display is available: {name} is ignored; figures are shown in the results.", file=sys.stderr)


def shows_itself(backend):
    """Reports whether a backend is one of the code's own, which shows figures in its own way."""
    return backend.startswith("module://") and backend != BACKEND and backend not in _REPLACED


def begin():
    """Prepares an execution."""
    _shown.clear()


def end(show):
    """Finishes an execution: shows and closes open figures."""
    try:
        figures = sys.modules.get("matplotlib._pylab_helpers")
        if figures is not None and figures.Gcf.figs:
            from _belljar import backend

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
            "matplotlib.pyplot": _pyplot,
            "pandas": _pandas,
            "PIL.Image": _pillow,
            "plotly.io._renderers": _plotly,
            "tqdm.notebook": _tqdm,
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
    """Chooses the kernel's backend, whatever MPLBACKEND or a configuration file says: they are meant for programs."""
    module.rcParams["backend"] = BACKEND
    if hasattr(module, "rcParamsOrig"):
        module.rcParamsOrig["backend"] = BACKEND


def _pyplot(module):
    """Shows figures whatever backend the code chooses."""
    original = module.switch_backend

    @functools.wraps(original)
    def switch_backend(newbackend):
        from matplotlib import rcParams, rcsetup

        # Not a string: the choice is left to matplotlib.
        name = rcsetup.validate_backend(newbackend).lower() if isinstance(newbackend, str) else "agg"
        if name in _FILES or shows_itself(name):
            original(newbackend)
            if name in _FILES:
                from _belljar import backend

                module._backend_mod.show = backend.show
            return
        if name not in _REPLACED and name != BACKEND:
            _note_display(newbackend)
        if module._backend_mod is None or module._backend_mod.FigureCanvas.__module__ != "_belljar.backend":
            original(BACKEND)
        rcParams["backend"] = BACKEND

    module.switch_backend = switch_backend
    from _belljar import charts

    module.boxplot = charts.with_both_names(module.boxplot)


def _pandas(module):
    """Lays out data frames as in a notebook: columns are wrapped into blocks, not left out, up to 20 of them."""
    from pandas._config import config

    name = "display.max_columns"
    if module.get_option(name) == 0:
        option = config._registered_options[name]
        config._registered_options[name] = option._replace(defval=20)
        module.set_option(name, 20)


def _plotly(module):
    from _belljar import plotly_figures

    plotly_figures.install(module)


def _tqdm(module):
    """Shows progress as text: there are no widgets."""
    from tqdm import std

    class tqdm_notebook(std.tqdm):
        """`tqdm.std.tqdm`, which takes and ignores the arguments of widgets."""

        def __init__(self, *args, display=True, ncols=None, **kwargs):
            super().__init__(*args, ncols=ncols if isinstance(ncols, int) else None, **kwargs)

    def tnrange(*args, **kwargs):
        return tqdm_notebook(range(*args), **kwargs)

    module.tqdm = module.tqdm_notebook = tqdm_notebook
    module.trange = module.tnrange = tnrange


def _axes(module):
    from _belljar import charts

    charts.watch(module.Axes)


def _pillow(module):
    def show(self, title=None):
        """Shows the picture in the results."""
        from IPython.display import display

        display(self)

    module.Image.show = show
