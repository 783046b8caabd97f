"""Snippets of seaborn. Its example data is downloaded, so these create their own."""

DATA = "r = np.random.default_rng(0)\ntips = pd.DataFrame({'bill': r.gamma(4, 5, 80), 'day': r.choice(['Thu', 'Fri', 'Sat'], 80), 'sex': r.choice(['f', 'm'], 80)})\ntips['tip'] = tips.bill * .15 + r.random(80)\n"
S = (6.4, 4.8)

SNIPPETS = {
    "scatterplot": (
        DATA + "sns.scatterplot(tips, x='bill', y='tip');",
        S,
        "c['type'] == 'scatter' and len(c['elements'][0]['points']) == 80 and c['x_label'] == 'bill'",
    ),
    "scatterplot by hue": (
        DATA + "sns.scatterplot(tips, x='bill', y='tip', hue='day');",
        S,
        "c['type'] == 'scatter' and sum(len(e['points']) for e in c['elements']) == 80 and {e['label'] for e in c['elements']} == {'Thu', 'Fri', 'Sat'}",
    ),
    "lineplot": (
        DATA + "sns.lineplot(x=[1, 2, 3], y=[1, 4, 9]);",
        S,
        "c['type'] == 'line' and c['elements'][0]['points'] == [[1, 1], [2, 4], [3, 9]]",
    ),
    "lineplot by hue": (
        DATA + "sns.lineplot(tips.round(), x='bill', y='tip', hue='sex', errorbar=None);",
        S,
        "c['type'] == 'line' and len(c['elements']) >= 2",
    ),
    "barplot": (
        DATA + "sns.barplot(tips, x='day', y='tip', errorbar=None, order=['Thu', 'Fri', 'Sat']);",
        S,
        "c['type'] == 'bar' and [e['label'] for e in c['elements']] == ['Thu', 'Fri', 'Sat']",
    ),
    "barplot by hue": (
        DATA + "sns.barplot(tips, x='day', y='tip', hue='sex', order=['Thu', 'Fri', 'Sat']);",
        S,
        "c['type'] == 'bar' and len(c['elements']) == 6 and {e['group'] for e in c['elements']} == {'f', 'm'}",
    ),
    "countplot": (
        DATA + "sns.countplot(tips, x='day');",
        S,
        "c['type'] == 'bar' and sum(e['value'] for e in c['elements']) == 80",
    ),
    "histplot": (DATA + "sns.histplot(tips.bill, bins=10);", S, "c['type'] == 'bar' and len(c['elements']) == 10"),
    "histplot with density": (DATA + "sns.histplot(tips, x='bill', kde=True);", S, "c['type'] == 'bar'"),
    "kdeplot": (DATA + "sns.kdeplot(tips.bill);", S, "c['type'] == 'line'"),
    "boxplot": (
        DATA + "sns.boxplot(tips, x='day', y='bill', order=['Thu', 'Fri', 'Sat']);",
        S,
        "c['type'] == 'box_and_whisker' and [e['label'] for e in c['elements']] == ['Thu', 'Fri', 'Sat'] and all(e['min'] <= e['median'] <= e['max'] for e in c['elements'])",
    ),
    "boxplot of one": (DATA + "sns.boxplot(x=tips.bill);", S, "c['type'] == 'box_and_whisker' and len(c['elements']) == 1"),
    "violinplot": (DATA + "sns.violinplot(tips, x='day', y='bill');", S, "c['type'] in ('unknown', 'line')"),
    "stripplot": (
        DATA + "sns.stripplot(tips, x='day', y='bill');",
        S,
        "c['type'] == 'scatter' and sum(len(e['points']) for e in c['elements']) == 80",
    ),
    "regplot": (
        DATA + "sns.regplot(tips, x='bill', y='tip', n_boot=20);",
        S,
        "c['type'] == 'scatter' and len(c['elements'][0]['points']) == 80",
    ),
    "heatmap": ("sns.heatmap(np.arange(9).reshape(3, 3), annot=True);", S, "c['type'] == 'unknown'"),
    "pairplot": (DATA + "sns.pairplot(tips[['bill', 'tip']]);", (5, 5), "c['type'] == 'superchart'"),
    "facets": (
        DATA + "sns.relplot(tips, x='bill', y='tip', col='sex', height=3);",
        (6, 3),
        "c['type'] == 'superchart' and [e['type'] for e in c['elements']] == ['scatter', 'scatter']",
    ),
    "catplot": (
        DATA + "sns.catplot(tips, x='day', y='bill', kind='box', height=4);",
        (4, 4),
        "c['type'] == 'box_and_whisker' and len(c['elements']) == 3",
    ),
    "jointplot": (
        DATA + "sns.jointplot(tips, x='bill', y='tip');",
        (6, 6),
        "c['type'] == 'superchart' and c['elements'][0]['type'] == 'scatter'",
    ),
    "clustermap": (
        "sns.clustermap(np.random.default_rng(0).random((6, 6)), figsize=(5, 5));",
        (5, 5),
        "c is None or c['type'] in ('superchart', 'unknown', 'line')",
    ),
    "theme": (
        DATA + "sns.set_theme()\nsns.pointplot(tips, x='day', y='bill', errorbar=None)\nsns.reset_orig();",
        S,
        "c['type'] == 'line'",
    ),
}
