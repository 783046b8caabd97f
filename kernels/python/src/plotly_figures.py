"""Plotly's figures as results."""

import os
import types

NAME = "belljar"


def install(renderers):
    """Makes the kernel's renderer plotly's default one; `renderers` is the module `plotly.io._renderers`."""
    from plotly.io._base_renderers import HtmlRenderer, PlotlyRenderer

    class Renderer(HtmlRenderer):
        """HTML that stands alone and loads plotly.js from its CDN, and the figure as data."""

        def to_mimebundle(self, fig_dict):
            kinds = [trace.get("type", "scatter") for trace in fig_dict.get("data", ())]
            text = f"<plotly figure of {len(kinds)} traces: {', '.join(dict.fromkeys(kinds))}>"
            return {"text/plain": text, **super().to_mimebundle(fig_dict), **PlotlyRenderer().to_mimebundle(fig_dict)}

    # Only its presence is checked, for the sake of front ends that store notebooks.
    if getattr(renderers, "nbformat", None) is None:
        renderers.nbformat = types.SimpleNamespace(__version__="5.0")
    renderer = Renderer(connected=True, full_html=False, global_init=False)
    # Older versions otherwise load plotly.js by require.js.
    renderer.requirejs = False
    renderers.renderers[NAME] = renderer
    if not os.environ.get("PLOTLY_RENDERER"):
        renderers.renderers.default = NAME
