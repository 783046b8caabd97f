"""Sums a column by another one."""

import csv
import io
from collections import Counter

TEXT = """region,product,sales
north,tea,10
south,"tea, green",5
north,coffee,7
south,tea,1
"""


def totals(text, by, of):
    sums = Counter()
    for row in csv.DictReader(io.StringIO(text)):
        sums[row[by]] += int(row[of])
    return dict(sums)


assert totals(TEXT, "region", "sales") == {"north": 17, "south": 6}
assert totals(TEXT, "product", "sales") == {"tea": 11, "tea, green": 5, "coffee": 7}
out = io.StringIO()
csv.writer(out, lineterminator="\n").writerow(['say "hi"', "a,b", 3])
assert out.getvalue() == '"say ""hi""","a,b",3\n'
