"""Plays all games of noughts and crosses to their ends."""

from functools import lru_cache

LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


def winner(board):
    return next((board[a] for a, b, c in LINES if board[a] == board[b] == board[c] != "."), None)


@lru_cache(maxsize=None)
def value(board, player):
    if won := winner(board):
        return 1 if won == "x" else -1
    if "." not in board:
        return 0
    other = "o" if player == "x" else "x"
    results = [value(board[:n] + player + board[n + 1 :], other) for n in range(9) if board[n] == "."]
    return max(results) if player == "x" else min(results)


assert winner("xxx......") == "x" and winner("." * 9) is None
assert value("xx.oo....", "x") == 1
assert value("xx.oo....", "o") == -1
assert value("x...o...x", "o") == 0
assert value("." * 9, "x") == 0
