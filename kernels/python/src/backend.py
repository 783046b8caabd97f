"""Matplotlib backend that shows figures as results."""

import sys

from _belljar import extras
from matplotlib import _pylab_helpers
from matplotlib.backend_bases import FigureManagerBase
from matplotlib.backends.backend_agg import FigureCanvasAgg


def _display(figure):
    from IPython.display import display

    if figure.axes or figure.lines or figure.texts or figure.images or figure.patches or getattr(figure, "subfigs", None):
        display(figure, metadata={})


class FigureManager(FigureManagerBase):
    """A figure without a window."""

    def show(self):
        """Shows this figure immediately."""
        _display(self.canvas.figure)

    @classmethod
    def pyplot_show(cls, *, block=None):
        """`plt.show()`: shows all open figures immediately, and closes them."""
        show()


class FigureCanvas(FigureCanvasAgg):
    """Canvas of a figure."""

    manager_class = FigureManager


def new_figure_manager_given_figure(num, figure):
    """Creates a manager for a figure."""
    return FigureManager(FigureCanvas(figure), num)


def new_figure_manager(num, *args, FigureClass=None, **kwargs):
    """Creates a figure and its manager."""
    if FigureClass is None:
        from matplotlib.figure import Figure as FigureClass
    return new_figure_manager_given_figure(num, FigureClass(*args, **kwargs))


def _closes():
    shell = extras._shell()
    settings = [one for one in shell.configurables if type(one).__name__ == "InlineBackend"]
    return not settings or settings[0].close_figures


def show(*args, **kwargs):
    """Shows all open figures immediately, and closes them."""
    try:
        for manager in _pylab_helpers.Gcf.get_all_fig_managers():
            _display(manager.canvas.figure)
    finally:
        if _closes():
            _close()


def _close():
    _pylab_helpers.Gcf.destroy_all()


def draw_if_interactive():
    """Does nothing: figures are drawn when they are shown."""


def finish(show_them):
    """Ends an execution: shows open figures that were not shown yet, and closes all."""
    managers = _pylab_helpers.Gcf.get_all_fig_managers()
    if not managers or extras.shows_itself(sys.modules["matplotlib"].get_backend()):
        return
    try:
        if show_them:
            seen = extras.shown()
            for manager in managers:
                figure = manager.canvas.figure
                if seen.get(id(figure)) is not figure or figure.stale:
                    _display(figure)
    finally:
        if _closes():
            _close()
