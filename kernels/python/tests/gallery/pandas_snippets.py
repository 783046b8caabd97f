"""Snippets of pandas: plots (with a chart) and frames (with a table)."""

S = (6.4, 4.8)
SALES = "df = pd.DataFrame({'region': ['N', 'S', 'W'], 'sales': [3, 1, 2], 'cost': [1, 1, 2]})\n"
TIMES = "ts = pd.Series(range(60), index=pd.date_range('2024-01-01', periods=60), name='v')\n"

SNIPPETS = {
    "plot": (
        SALES + "df.plot(y='sales');",
        S,
        "c['type'] == 'line' and c['elements'] == [{'label': 'sales', 'points': [[0, 3], [1, 1], [2, 2]]}]",
    ),
    "plot all": (
        SALES + "df.plot(x='region');",
        S,
        "[e['label'] for e in c['elements']] == ['sales', 'cost'] and c['x_label'] == 'region'",
    ),
    "bar": (
        SALES + "df.plot.bar(x='region', y='sales');",
        S,
        "c['type'] == 'bar' and [(e['label'], e['group'], e['value']) for e in c['elements']] == [('N', 'sales', 3), ('S', 'sales', 1), ('W', 'sales', 2)]",
    ),
    "grouped bar": (
        SALES + "df.plot.bar(x='region', rot=0);",
        S,
        "[(e['label'], e['group']) for e in c['elements']] == [('N', 'sales'), ('S', 'sales'), ('W', 'sales'), ('N', 'cost'), ('S', 'cost'), ('W', 'cost')]",
    ),
    "stacked bar": (SALES + "df.plot.bar(x='region', stacked=True);", S, "len(c['elements']) == 6"),
    "barh": (
        SALES + "df.plot.barh(x='region', y='cost');",
        S,
        "[(e['label'], e['value']) for e in c['elements']] == [('N', 1), ('S', 1), ('W', 2)]",
    ),
    "pie": (
        SALES + "df.set_index('region').sales.plot.pie();",
        S,
        "c['type'] == 'pie' and [e['label'] for e in c['elements']] == ['N', 'S', 'W'] and round(sum(e['angle'] for e in c['elements'])) == 360",
    ),
    "scatter": (
        SALES + "df.plot.scatter('sales', 'cost');",
        S,
        "c['type'] == 'scatter' and c['elements'][0]['points'][0] == [3, 1]",
    ),
    "box": (
        SALES + "df.plot.box();",
        S,
        "c['type'] == 'box_and_whisker' and [(e['label'], e['median']) for e in c['elements']] == [('sales', 2), ('cost', 1)]",
    ),
    "boxplot by": (
        "pd.DataFrame({'g': list('aabb'), 'v': [1, 3, 5, 9]}).boxplot(column='v', by='g');",
        S,
        "c['type'] == 'box_and_whisker' and [(e['label'], e['median']) for e in c['elements']] == [('a', 2), ('b', 7)]",
    ),
    "hist": (
        "pd.Series([1, 1, 2, 5]).hist(bins=4);",
        S,
        "c['type'] == 'bar' and [e['value'] for e in c['elements']] == [2, 1, 0, 1]",
    ),
    "time series": (
        TIMES + "ts.plot();",
        S,
        "c['type'] == 'line' and c['x_scale'] == 'datetime' and c['elements'][0]['points'][0] == ['2024-01-01T00:00:00', 0]",
    ),
    "monthly": (
        TIMES + "ts.resample('MS').sum().plot.bar();",
        S,
        "c['type'] == 'bar' and len(c['elements']) == 2 and c['elements'][0]['label'].startswith('2024-01-01')",
    ),
    "rolling": (
        TIMES + "ts.rolling(7).mean().plot();",
        S,
        "c['elements'][0]['points'][0][1] is None and c['elements'][0]['points'][6][1] == 3",
    ),
    "area": (SALES + "df[['sales', 'cost']].plot.area();", S, "c['type'] == 'line'"),
    "subplots": (SALES + "df.plot(subplots=True);", S, "c['type'] == 'superchart' and len(c['elements']) == 2"),
    "value counts": (
        "pd.Series(list('aab')).value_counts().plot(kind='bar');",
        S,
        "[(e['label'], e['value']) for e in c['elements']] == [('a', 2), ('b', 1)]",
    ),
    "density": ("pd.Series([1., 2, 2, 3]).plot.kde();", S, "c['type'] == 'line' and len(c['elements'][0]['points']) == 1000"),
    "hexbin": (SALES + "df.plot.hexbin('sales', 'cost', gridsize=5);", S, "c['type'] == 'unknown'"),
}

FRAMES = {
    "frame": (SALES + "df", "t['rows'] == [['N', 3, 1], ['S', 1, 1], ['W', 2, 2]]"),
    "head": (SALES + "df.head(1)", "t['row_count'] == 1"),
    "describe": (SALES + "df.describe()", "t['index']['values'][:2] == ['count', 'mean'] and t['rows'][0] == [3, 3]"),
    "group by": (SALES + "df.groupby('region').sales.sum()", "t['index']['name'] == 'region' and t['rows'] == [[3], [1], [2]]"),
    "pivot": (
        SALES + "df.pivot_table(index='region', values=['sales', 'cost'])",
        "[k['name'] for k in t['columns']] == ['cost', 'sales']",
    ),
    "merge": (SALES + "df.merge(df, on='region')", "t['columns'][1]['name'] == 'sales_x'"),
    "dates": (TIMES + "ts.head(2)", "t['index']['type'] == 'datetime' and t['index']['values'][0] == '2024-01-01T00:00:00'"),
    "transposed": (SALES + "df.T", "t['index']['values'] == ['region', 'sales', 'cost']"),
    "crosstab": ("pd.crosstab(pd.Series(list('aab')), pd.Series(list('xyx')))", "t['rows'] == [[1, 1], [1, 0]]"),
    "correlation": (SALES + "df[['sales', 'cost']].corr()", "t['rows'][0][0] == 1"),
    "read csv": ("import io\npd.read_csv(io.StringIO('a,b\\n1,x\\n2,'))", "t['rows'] == [[1, 'x'], [2, None]]"),
    "excel and back": (SALES + "df.to_excel('t.xlsx', index=False)\npd.read_excel('t.xlsx')", "t['row_count'] == 3"),
}
