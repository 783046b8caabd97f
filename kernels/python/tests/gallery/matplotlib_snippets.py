"""Snippets of matplotlib. Each is: code, size in inches, and a condition on the chart `c`."""

S = (6.4, 4.8)

SNIPPETS = {
    "line": (
        "plt.plot([1, 2, 3], [2, 4, 8]); plt.title('Growth'); plt.xlabel('time (s)'); plt.ylabel('size [MB]');",
        S,
        "c['type'] == 'line' and c['title'] == 'Growth' and c['x_unit'] == 's' and c['y_unit'] == 'MB' and c['x_label'] == 'time (s)' and c['elements'][0]['points'] == [[1, 2], [2, 4], [3, 8]]",
    ),
    "two lines": (
        "x = np.linspace(0, 6, 50)\nplt.plot(x, np.sin(x), label='sin'); plt.plot(x, np.cos(x), '--', label='cos'); plt.legend();",
        S,
        "[e['label'] for e in c['elements']] == ['sin', 'cos'] and len(c['elements'][0]['points']) == 50",
    ),
    "lines without labels": (
        "plt.plot([1, 2]); plt.plot([2, 1]);",
        S,
        "[e['label'] for e in c['elements']] == ['Line 1', 'Line 2']",
    ),
    "log scale": ("plt.semilogy([1, 10, 100]);", S, "c['y_scale'] == 'log' and c['x_scale'] == 'linear'"),
    "loglog": ("plt.loglog([1, 10], [1, 100]);", S, "c['x_scale'] == c['y_scale'] == 'log'"),
    "symlog": ("plt.plot([-100, 0, 100]); plt.yscale('symlog');", S, "c['y_scale'] == 'symlog'"),
    "dates": (
        "import datetime as dt\nplt.plot([dt.date(2024, 1, d) for d in (1, 2, 3)], [1, 4, 9]); plt.gcf().autofmt_xdate();",
        S,
        "c['x_scale'] == 'datetime' and c['elements'][0]['points'][0] == ['2024-01-01', 1] and c['x_ticks'][0].startswith('2024-01-01')",
    ),
    "numpy dates": (
        "plt.plot(np.arange('2024-01', '2024-04', dtype='datetime64[M]'), [1, 2, 3]);",
        S,
        "c['x_scale'] == 'datetime' and c['elements'][0]['points'][2][0].startswith('2024-03')",
    ),
    "categories as a line": (
        "plt.plot(['a', 'b', 'c'], [1, 3, 2]);",
        S,
        "c['x_scale'] == 'categorical' and c['elements'][0]['points'][1] == ['b', 3] and c['x_tick_labels'] == ['a', 'b', 'c']",
    ),
    "steps": ("plt.step([1, 2, 3], [1, 3, 2], label='st');", S, "c['type'] == 'line' and c['elements'][0]['label'] == 'st'"),
    "error bars": (
        "plt.errorbar([1, 2, 3], [3, 2, 1], yerr=0.5, capsize=4, label='e');",
        S,
        "c['type'] == 'line' and len(c['elements']) == 1 and c['elements'][0]['points'] == [[1, 3], [2, 2], [3, 1]]",
    ),
    "gaps": ("plt.plot([1, np.nan, 3]);", S, "c['elements'][0]['points'] == [[0, 1], [1, None], [2, 3]]"),
    "reference line": ("plt.plot([1, 2, 3]); plt.axhline(2); plt.axvline(1, color='r');", S, "len(c['elements']) == 1"),
    "fill": ("x = np.linspace(0, 1, 20)\nplt.plot(x, x**2); plt.fill_between(x, 0, x**2, alpha=.3);", S, "c['type'] == 'line'"),
    "scatter": (
        "plt.scatter([1, 2, 3], [4, 5, 6], label='dots');",
        S,
        "c['type'] == 'scatter' and c['elements'] == [{'label': 'dots', 'points': [[1, 4], [2, 5], [3, 6]]}]",
    ),
    "scatter groups": (
        "for g in 'ab':\n    plt.scatter([1, 2], [ord(g), 2], label=g)\nplt.legend();",
        S,
        "[e['label'] for e in c['elements']] == ['a', 'b']",
    ),
    "scatter with colours": (
        "r = np.random.default_rng(1)\nplt.scatter(r.random(50), r.random(50), c=r.random(50), s=80); plt.colorbar();",
        S,
        "c['type'] == 'scatter' and len(c['elements'][0]['points']) == 50",
    ),
    "scatter of categories": (
        "plt.scatter(['x', 'y'], [1, 2]);",
        S,
        "c['elements'][0]['points'] == [['x', 1], ['y', 2]] and c['x_scale'] == 'categorical'",
    ),
    "scatter of dates": (
        "import datetime as dt\nplt.scatter([dt.datetime(2024, 5, 1), dt.datetime(2024, 5, 3)], [1, 2]);",
        S,
        "c['elements'][0]['points'][0] == ['2024-05-01T00:00:00', 1] and c['x_scale'] == 'datetime'",
    ),
    "bar": (
        "plt.bar(['a', 'b', 'c'], [3, 1, 2]); plt.ylabel('count');",
        S,
        "c['type'] == 'bar' and c['elements'] == [{'label': 'a', 'group': '', 'value': 3}, {'label': 'b', 'group': '', 'value': 1}, {'label': 'c', 'group': '', 'value': 2}] and c['y_label'] == 'count'",
    ),
    "horizontal bar": (
        "plt.barh(['a', 'b'], [3, 1]);",
        S,
        "[(e['label'], e['value']) for e in c['elements']] == [('a', 3), ('b', 1)]",
    ),
    "one horizontal bar": ("plt.barh(['only'], [3]);", S, "[(e['label'], e['value']) for e in c['elements']] == [('only', 3)]"),
    "grouped bars": (
        "x = np.arange(2)\nplt.bar(x - .2, [1, 2], .4, label='m'); plt.bar(x + .2, [3, 4], .4, label='w'); plt.xticks(x, ['A', 'B']); plt.legend();",
        S,
        "[(e['group'], e['label'], e['value']) for e in c['elements']] == [('m', 'A', 1), ('m', 'B', 2), ('w', 'A', 3), ('w', 'B', 4)]",
    ),
    "stacked bars": (
        "plt.bar(['a', 'b'], [1, 2], label='low'); plt.bar(['a', 'b'], [3, 4], bottom=[1, 2], label='high');",
        S,
        "[e['value'] for e in c['elements']] == [1, 2, 3, 4]",
    ),
    "bars by number": ("plt.bar([10, 20], [1, 2]);", S, "[e['label'] for e in c['elements']] == ['10', '20']"),
    "bars with labels": ("b = plt.bar(['a', 'b'], [3, 1]); plt.bar_label(b);", S, "len(c['elements']) == 2"),
    "bars and a line": ("plt.bar(['a', 'b'], [3, 1]); plt.plot(['a', 'b'], [2, 2], 'r-');", S, "c['type'] == 'bar'"),
    "histogram": (
        "plt.hist(np.random.default_rng(0).normal(size=500), bins=20);",
        S,
        "c['type'] == 'bar' and len(c['elements']) == 20 and sum(e['value'] for e in c['elements']) == 500",
    ),
    "pie": (
        "plt.pie([1, 3], labels=['quarter', 'rest'], autopct='%1.0f%%'); plt.title('Parts');",
        S,
        "c['type'] == 'pie' and c['title'] == 'Parts' and [(e['label'], round(e['angle']), e['radius']) for e in c['elements']] == [('quarter', 90, 1), ('rest', 270, 1)]",
    ),
    "doughnut": (
        "plt.pie([1, 1], labels=['a', 'b'], wedgeprops={'width': .4}, explode=[.1, 0]);",
        S,
        "[round(e['angle']) for e in c['elements']] == [180, 180]",
    ),
    "pie of tenths": (
        "plt.pie([.1, .2, .7], labels=list('abc'));",
        S,
        "[e['angle'] for e in c['elements']] == [36, 72, 252]",
    ),
    "ticks": (
        "plt.plot([0, 1.2]); plt.xticks(np.arange(0, 1.3, .1)); plt.yticks([3 * .1, 4 * .1 + 1e-16, .7], ['low', 'mid', '$x$']);",
        S,
        "c['x_ticks'] == [0, .1, .2, .3, .4, .5, .6, .7, .8, .9, 1, 1.1, 1.2] and c['y_ticks'] == [.3, .4, .7] and c['y_tick_labels'] == ['low', 'mid', '$x$']",
    ),
    "labels of a log scale": (
        "plt.loglog([.1, 1, 10], [1, 100, 1000]);",
        S,
        "c['x_tick_labels'] == ['10^-1', '10^0', '10^1'] and c['x_ticks'] == [.1, 1, 10] and c['y_tick_labels'][-1] == '10^3'",
    ),
    **{
        f"box with {name} by {way}": (
            f"fig, ax = plt.subplots(); {way}.boxplot([[1, 2, 3], [2, 3, 4]], {name}=['p', 'q'], patch_artist={way == 'ax'}); ax.set_title('Boxes');",
            S,
            "c['type'] == 'box_and_whisker' and c['title'] == 'Boxes' and [(e['label'], e['median']) for e in c['elements']] == [('p', 2), ('q', 3)]",
        )
        for name in ("labels", "tick_labels")
        for way in ("plt", "ax")
    },
    "boxes that are no longer there": (
        "fig, ax = plt.subplots(); ax.boxplot([[1, 2, 3]]); ax.clear(); ax.plot([1, 2]);",
        S,
        "c['type'] == 'line'",
    ),
    "box": (
        "plt.boxplot([[1, 2, 3, 4, 100], [2, 3, 4]]); plt.xticks([1, 2], ['p', 'q']);",
        S,
        "c['type'] == 'box_and_whisker' and c['elements'][0] == {'label': 'p', 'min': 1, 'first_quartile': 2, 'median': 3, 'third_quartile': 4, 'max': 4, 'outliers': [100]} and c['elements'][1]['label'] == 'q'",
    ),
    "horizontal box": ("plt.boxplot([[1, 2, 3]], vert=False);", S, "c['elements'][0]['median'] == 2"),
    "subplots": (
        "f, a = plt.subplots(1, 2, figsize=(8, 3)); a[0].plot([1, 2]); a[1].bar(['x'], [1]); f.suptitle('Both');",
        (8, 3),
        "c['type'] == 'superchart' and c['title'] == 'Both' and [e['type'] for e in c['elements']] == ['line', 'bar']",
    ),
    "grid of subplots": (
        "f, a = plt.subplots(2, 2, layout='constrained')\nfor i, x in enumerate(a.flat):\n    x.scatter([1], [i]); x.set_title(str(i))",
        S,
        "[e['title'] for e in c['elements']] == list('0123')",
    ),
    "empty subplots are left out": ("f, a = plt.subplots(1, 3); a[0].plot([1, 2]);", S, "c['type'] == 'line'"),
    "twin axes": (
        "f, a = plt.subplots(); a.plot([1, 2]); b = a.twinx(); b.plot([20, 10], 'r');",
        S,
        "c['type'] == 'superchart' and [e['elements'][0]['points'][0][1] for e in c['elements']] == [1, 20]",
    ),
    "image": (
        "plt.imshow(np.eye(5)); plt.colorbar(); plt.title('Eye');",
        S,
        "c['type'] == 'unknown' and c['title'] == 'Eye' and c['elements'] == []",
    ),
    "contour": ("plt.contourf(np.outer(np.arange(5), np.arange(5)));", S, "c['type'] == 'unknown'"),
    "violin": ("plt.violinplot([[1, 2, 3, 4]]);", S, "c['type'] in ('unknown', 'line')"),
    "surface": (
        "ax = plt.figure().add_subplot(projection='3d'); x, y = np.meshgrid(range(5), range(5)); ax.plot_surface(x, y, x * y);",
        S,
        "c['type'] == 'unknown'",
    ),
    "polar": ("plt.polar([0, 1, 2], [1, 2, 3]);", S, "c['type'] == 'line' and len(c['elements'][0]['points']) == 3"),
    "stem": ("plt.stem([1, 2, 3], [3, 1, 2]);", S, "c['type'] == 'line' and len(c['elements']) == 1"),
    "quiver": ("plt.quiver([0, 1], [0, 1], [1, 0], [0, 1]);", S, "c['type'] == 'unknown'"),
    "large figure": ("plt.figure(figsize=(12, 8), dpi=50); plt.plot([1, 2]);", (6, 4), "c['type'] == 'line'"),
    "style": ("with plt.style.context('ggplot'):\n    plt.plot([1, 2], label='r'); plt.legend()", S, "c['type'] == 'line'"),
    "annotation and mathematics": (
        "plt.plot([1, 2]); plt.annotate('here', (0, 1)); plt.title(r'$\\alpha^2$');",
        S,
        "c['title'] == r'$\\alpha^2$'",
    ),
}
