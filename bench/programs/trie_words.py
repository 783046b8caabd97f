"""Finds words by their beginnings in a tree of letters."""

END = object()


def trie(words):
    root = {}
    for word in words:
        node = root
        for letter in word:
            node = node.setdefault(letter, {})
        node[END] = word
    return root


def beginning(root, prefix):
    node = root
    for letter in prefix:
        node = node.get(letter, {})
    found, todo = [], [node]
    while todo:
        for key, below in todo.pop().items():
            if key is END:
                found.append(below)
            else:
                todo.append(below)
    return sorted(found)


root = trie(["car", "card", "care", "cat", "dog"])
assert beginning(root, "car") == ["car", "card", "care"]
assert beginning(root, "") == ["car", "card", "care", "cat", "dog"]
assert beginning(root, "cart") == [] and beginning(root, "x") == []
