"""Pays an amount with as few coins as possible."""


def fewest(amount, coins):
    best = [0] + [None] * amount
    for sum_ in range(1, amount + 1):
        ways = [best[sum_ - coin] for coin in coins if coin <= sum_ and best[sum_ - coin] is not None]
        best[sum_] = min(ways) + 1 if ways else None
    return best[amount]


assert fewest(11, [1, 2, 5]) == 3
assert fewest(6, [1, 3, 4]) == 2
assert fewest(3, [2]) is None
assert fewest(0, [7]) == 0
