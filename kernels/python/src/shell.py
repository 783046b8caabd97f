"""IPython's shell, without output of its own and without files: displayed objects become frames."""

import ast
import codeop
import io
import os
import re
import subprocess
import sys
import types

from _belljar.light import light_imports

with light_imports():
    from IPython.core import interactiveshell
    from IPython.core.autocall import IPyAutocall
    from IPython.core.compilerop import CachingCompiler
    from IPython.core.displayhook import DisplayHook
    from IPython.core.displaypub import DisplayPublisher
    from IPython.core.formatters import DisplayFormatter, PlainTextFormatter, catch_format_error
    from IPython.core.macro import Macro
    from IPython.core.profiledir import ProfileDir
    from IPython.lib import pretty
    from traitlets import Any, Bool, Dict, Set, Type, Unicode, observe
    from traitlets.config import Config, Configurable

from _belljar import commands, extras, packages
from _belljar.bundle import MAX_VALUE, Shortened, size_text

# The name at the begin of a line.
_WORD = re.compile(r"[^\W\d]\w*")

# Functions in which IPython itself reports the end of a cell.
_REPORTERS = ("run_code", "run_ast_nodes", "run_cell_async", "_run_cell")


class _Store(dict):
    """IPython's database of settings, kept in memory only."""

    def keys(self, globpat=None):
        import fnmatch

        return [key for key in dict.keys(self) if globpat is None or fnmatch.fnmatch(key, globpat)]

    def hset(self, root, key, value):
        self[f"{root}/{key}"] = value

    def hget(self, root, key, default=None):
        return self.get(f"{root}/{key}", default)


class _NoProfile(ProfileDir):
    """A profile without a directory."""

    @observe("location")
    def _location_changed(self, change):
        pass


class _Compiler(CachingCompiler):
    """Names cells as shown in tracebacks, and explains incomplete statements."""

    def __init__(self):
        super().__init__()
        self.flags &= ~getattr(codeop, "PyCF_ALLOW_INCOMPLETE_INPUT", 0)

    def get_code_name(self, raw_code, transformed_code, number):
        return f"Cell In[{number}]"


class _Full(Exception):
    """Raised when the text of an object is long enough."""


class _Sheet(io.StringIO):
    """Collects text up to the limit of a representation."""

    room = MAX_VALUE

    def write(self, text):
        self.room -= len(text)
        if self.room < 0:
            super().write(text[: max(0, self.room + len(text))])
            raise _Full
        return super().write(text)


class _PlainText(PlainTextFormatter):
    """Returns an object's text, up to the limit."""

    @catch_format_error
    def __call__(self, obj):
        if type(obj) in (str, bytes, bytearray) and len(obj) > MAX_VALUE:
            third = MAX_VALUE // 4
            omitted = size_text(len(obj) - 3 * third)
            return Shortened(f"{obj[: 2 * third]!r}\n… {omitted} left out …\n{obj[-third:]!r}")
        if not self.pprint:
            return repr(obj)
        sheet = _Sheet()
        printer = pretty.RepresentationPrinter(
            sheet,
            self.verbose,
            self.max_width,
            self.newline,
            max_seq_length=self.max_seq_length,
            singleton_pprinters=self.singleton_printers,
            type_pprinters=self.type_printers,
            deferred_pprinters=self.deferred_printers,
        )
        try:
            printer.pretty(obj)
            printer.flush()
        except _Full:
            return Shortened(sheet.getvalue() + "\n… the rest is left out …")
        return sheet.getvalue()


# Types without representations of their own: only a registered printer gives them another form than text.
_TEXT_ONLY = frozenset((bool, bytes, bytearray, complex, dict, float, frozenset, int, list, range, set, str, tuple))


class _Formatter(DisplayFormatter):
    """Formats an object: IPython's representations, and a chart or table if applicable."""

    def format(self, obj, include=None, exclude=None):
        shell = self.parent
        shell.formatting += 1
        shell.format_error = None
        try:
            extras.before(obj, self)
            if include or exclude or type(obj) not in _TEXT_ONLY or self._has_printer(obj):
                data, metadata = super().format(obj, include=include, exclude=exclude)
            else:
                text = self.formatters["text/plain"](obj)
                data, metadata = {} if text is None else {"text/plain": text}, {}
            if not data and shell.format_error is None:
                return data, metadata
            if "text/plain" not in data and shell.format_error is not None:
                data["text/plain"] = f"<{type(obj).__name__} object, whose text could not be made: {shell.format_error}>"
            if not include:
                extras.add(obj, data, shell.notes)
            return data, metadata
        finally:
            shell.formatting -= 1

    def _has_printer(self, obj):
        """Reports whether code has registered a printer for this object or its type, of another form than text."""
        kinds = type(obj).__mro__
        others = [one for name, one in self.formatters.items() if name != "text/plain"]
        for one in (self.ipython_display_formatter, self.mimebundle_formatter, *others):
            # Most have no printers at all.
            if (printers := one.singleton_printers) and id(obj) in printers:
                return True
            if (printers := one.type_printers) and any(kind in printers for kind in kinds):
                return True
            if (printers := one.deferred_printers) and any((kind.__module__, kind.__name__) in printers for kind in kinds):
                return True
        return False


class _Hook(DisplayHook):
    """Sends the value of the last expression as a frame."""

    def __call__(self, result=None):
        if isinstance(result, _Leave):
            result()
        super().__call__(result)

    def quiet(self):
        """Reports whether the value is not wanted. Without a semicolon the cell is not searched for the end of its code."""
        cells = self.shell.history_manager.input_hist_parsed
        return bool(cells) and ";" in cells[-1] and super().quiet()

    def write_output_prompt(self):
        pass

    def write_format_data(self, format_dict, md_dict=None):
        self.shell.emit(format_dict, md_dict, main=True)

    def log_output(self, format_dict):
        pass

    def finish_displayhook(self):
        self._is_active = False


class _Publisher(DisplayPublisher):
    """Sends displayed objects as frames."""

    def publish(self, data, metadata=None, source=None, *, transient=None, update=False, **kwargs):
        self.shell.emit(data, metadata, display_id=(transient or {}).get("display_id"), update=update)

    def clear_output(self, wait=False):
        pass


class InlineBackend(Configurable):
    """The settings of `%config InlineBackend`, as in notebooks."""

    figure_formats = Set({"png"}, help="Formats of shown figures: png, retina, jpeg, svg, pdf.").tag(config=True)
    figure_format = Unicode(help="The one format of shown figures.").tag(config=True)
    print_figure_kwargs = Dict({"bbox_inches": "tight"}, help="Arguments of the figure's print_figure.").tag(config=True)
    rc = Dict({}, help="Settings of matplotlib while figures are shown.").tag(config=True)
    close_figures = Bool(True, help="Close figures at the end of the cell.").tag(config=True)

    @observe("figure_format")
    def _format_changed(self, change):
        if change["new"]:
            self.figure_formats = {change["new"]}

    @observe("figure_formats", "print_figure_kwargs")
    def _formats_changed(self, change):
        extras.set_formats(self.parent, self.figure_formats, self.print_figure_kwargs)


class _Leave(IPyAutocall):
    """`exit` and `quit`: with or without parentheses, and with a status."""

    rewrite = False

    def __call__(self, code=None):
        error = SystemExit(code)
        error.ends_context = True
        raise error

    def __repr__(self):
        return "exit() ends the context's interpreter"


def _warn(message, *args, **kwargs):
    """IPython's warnings, except its advice on how to exit."""
    import warnings

    if not str(message).startswith("To exit:"):
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        warnings.warn(message, *args, **kwargs)


class Shell(interactiveshell.InteractiveShell):
    """IPython's shell for the kernel."""

    displayhook_class = Type(_Hook)
    display_pub_class = Type(_Publisher)
    compiler_class = Type(_Compiler)
    # Receiver of displayed objects: set by the kernel.
    sink = Any()
    formatting = 0
    format_error = None
    depth = 0
    soft_error = None
    describer = None

    def __init__(self, *args, **kwargs):
        self.notes = []
        self.__dict__["_store"] = _Store()
        super().__init__(*args, **kwargs)
        self.configurables.append(InlineBackend(parent=self))
        self._first_transformers = self._transformers()
        self._first_hooks = self._later_hooks()
        self.register_magic_function(self._pip, "line", "pip")

    db = property(lambda self: self.__dict__["_store"], lambda self, value: None)

    def init_user_ns(self):
        """Also after a reset, such as that of a warm interpreter."""
        super().init_user_ns()
        for name in ("exit", "quit"):
            self.user_ns[name] = self.user_ns_hidden[name] = _Leave(self)

    def init_ipython_dir(self, ipython_dir):
        pass

    def init_profile_dir(self, profile_dir):
        self.profile_dir = _NoProfile(location=os.path.join(os.sep, "nonexistent"))

    @observe("ipython_dir")
    def _ipython_dir_changed(self, change):
        pass

    def init_virtualenv(self):
        pass

    def init_logstart(self):
        pass

    def init_display_formatter(self):
        self.display_formatter = _Formatter(parent=self)
        self.display_formatter.formatters["text/plain"] = _PlainText(parent=self.display_formatter)
        self.configurables.append(self.display_formatter)

    def init_completer(self):
        """Completions are expensive to set up and unused here; created on demand."""

    @property
    def Completer(self):
        if "_completer" not in self.__dict__:
            self.__dict__["_completer"] = None
            with light_imports():
                super().init_completer()
        return self.__dict__["_completer"]

    @Completer.setter
    def Completer(self, value):
        self.__dict__["_completer"] = value

    def emit(self, data, metadata=None, main=False, display_id=None, update=False):
        """Sends displayed objects."""
        notes, self.notes = self.notes, []
        if self.sink is not None:
            self.sink(data, metadata, main, display_id, update, notes)

    def shows_last(self):
        """Reports whether nothing of the cell runs after its value is shown."""
        has_hooks = self._later_hooks() != self._first_hooks
        return self.depth == 1 and self.ast_node_interactivity.startswith("last_expr") and not has_hooks

    def _later_hooks(self):
        hooks = self.events.callbacks
        return [*hooks.get("post_execute", ()), *hooks.get("post_run_cell", ())]

    def transform_cell(self, raw_cell):
        """Returns the cell as Python. Plain Python is not searched for magics line by line, which takes longer than to run it."""
        if self._is_plain(raw_cell):
            return raw_cell if raw_cell.endswith("\n") else raw_cell + "\n"
        return super().transform_cell(raw_cell)

    def _is_plain(self, cell):
        """Reports whether the cell is Python that IPython's transformations would leave as it is."""
        if self.input_transformers_post or self._transformers() != self._first_transformers:
            return False
        # Blank lines and indentation at the begin are removed, and so are prompts.
        if not cell or cell[0].isspace() or "\r" in cell or "\f" in cell or cell.lstrip("#").startswith("In ["):
            return False
        if "\n" not in cell.rstrip("\n"):
            if self.autocall:
                return False
            # A magic without a percent sign, a macro, or a call without parentheses.
            word = _WORD.match(cell)
            if word and (self.find_line_magic(word[0]) or isinstance(self.user_ns.get(word[0]), (Macro, IPyAutocall))):
                return False
        try:
            ast.parse(cell)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return False
        return True

    def _transformers(self):
        manager = self.input_transformer_manager
        return manager.cleanup_transforms + manager.line_transforms + manager.token_transformers

    def should_run_async(self, raw_cell, *, transformed_cell=None, **kwargs):
        """Reports whether a cell needs the event loop. Without these words it is not compiled to find out."""
        if transformed_cell is not None and "await" not in transformed_cell and "async" not in transformed_cell:
            return False
        return super().should_run_async(raw_cell, transformed_cell=transformed_cell, **kwargs)

    def run_cell(self, *args, **kwargs):
        self.depth += 1
        try:
            return super().run_cell(*args, **kwargs)
        finally:
            self.depth -= 1

    def showtraceback(self, exc_tuple=None, *args, **kwargs):
        self._report(exc_tuple, sys._getframe(1).f_code)

    def _report(self, exc_tuple, caller):
        """Stores the error of a cell, which is sent at its end; writes others to standard error."""
        try:
            error = self._get_exc_info(exc_tuple)[1]
        except ValueError:
            print("No traceback available to show.", file=sys.stderr)
            return
        if self.formatting:
            self.format_error = f"{type(error).__name__}: {self.describer.value(error)[:2000]}"
        if self.depth == 1 and not self.formatting and caller.co_filename == interactiveshell.__file__:
            if caller.co_name not in _REPORTERS:
                self.soft_error = error
            return
        print(self.describer.traceback(error), file=sys.stderr)

    def showsyntaxerror(self, filename=None, *args, **kwargs):
        self._report(None, sys._getframe(1).f_code)

    def showindentationerror(self):
        self._report(None, sys._getframe(1).f_code)

    def _format_exception_for_storage(self, exception, *args, **kwargs):
        """Does nothing: no history is kept, so nothing is formatted twice."""
        return {"ename": type(exception).__name__, "evalue": "", "traceback": []}

    def enable_gui(self, gui=None):
        if gui not in (None, "inline", "agg"):
            print(f"No display is available: {gui} is ignored.", file=sys.stderr)

    def enable_matplotlib(self, gui=None):
        """`%matplotlib`: figures are shown in the results, as they are without it."""
        return extras.enable_matplotlib(gui)

    def ask_exit(self):
        _Leave(self)()

    def system(self, cmd):
        """`!command`: writes to the output of the code. A failed installation is an error of the cell, which runs to its end."""
        cmd = self.var_expand(cmd, depth=1)
        if packages.installs(cmd):
            self._install(cmd, cmd)
        else:
            self._run_command(cmd)

    def _run_command(self, cmd):
        self.user_ns["_exit_code"] = status = commands.run(cmd)
        return status

    def _install(self, name, cmd):
        status = self._run_command(cmd)
        packages.refresh()
        if status:
            self.soft_error = subprocess.CalledProcessError(status, name)

    def _pip(self, line):
        """Run pip for this interpreter, such as `%pip install NAME`: the packages can be imported at once."""
        self._install(f"pip {line}", packages.pip_command(line))

    system_piped = system_raw = system

    def getoutput(self, cmd, split=True, depth=0):
        """`x = !command`: returns its output, by line."""
        from IPython.utils.text import LSString, SList

        text = commands.output(self.var_expand(cmd, depth=depth + 1))
        return SList(text.splitlines()) if split else LSString(text)


def make_shell():
    """Returns the only shell of the process, without history, colours, banner or files."""
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    config.InteractiveShell.banner1 = ""
    config.InteractiveShell.autoindent = False
    config.InteractiveShell.enable_tip = False
    config.InteractiveShell.term_title = False
    config.Completer.use_jedi = False
    interactiveshell.warn = _warn
    if hasattr(interactiveshell, "PickleShareDB"):
        interactiveshell.PickleShareDB = lambda path: None
    module = types.ModuleType("__main__", doc="The code of the context.")
    with light_imports():
        return Shell.instance(config=config, user_module=module)
