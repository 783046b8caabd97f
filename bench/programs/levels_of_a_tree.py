"""Lists a tree level by level."""


def levels(tree):
    found, row = [], [tree]
    while row:
        found.append([name for name, _ in row])
        row = [below for _, children in row for below in children]
    return found


TREE = ("root", [("a", [("c", []), ("d", [])]), ("b", [("e", [("f", [])])])])
assert levels(TREE) == [["root"], ["a", "b"], ["c", "d", "e"], ["f"]]
assert levels(("one", [])) == [["one"]]
