"""Queries an in-memory database, with a transaction that is rolled back."""

import sqlite3

base = sqlite3.connect(":memory:")
base.execute("CREATE TABLE sales (region TEXT, amount INTEGER CHECK (amount > 0))")
base.executemany("INSERT INTO sales VALUES (?, ?)", [("north", 3), ("south", 5), ("north", 9)])
base.commit()
rows = base.execute("SELECT region, sum(amount), count(*) FROM sales GROUP BY region ORDER BY 2 DESC").fetchall()
assert rows == [("north", 12, 2), ("south", 5, 1)]
try:
    with base:
        base.execute("DELETE FROM sales")
        base.execute("INSERT INTO sales VALUES ('west', -1)")
except sqlite3.IntegrityError:
    pass
assert base.execute("SELECT count(*) FROM sales").fetchone() == (3,)
base.close()
