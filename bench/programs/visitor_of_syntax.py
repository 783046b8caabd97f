"""Counts what a program calls, from its syntax tree."""

import ast


class Calls(ast.NodeVisitor):
    def __init__(self):
        self.names = []

    def visit_Call(self, node):
        self.names.append(ast.unparse(node.func))
        self.generic_visit(node)


SOURCE = """
def f(x):
    return print(len(x), sorted(x, key=lambda y: y.strip()))
f([1])
"""
calls = Calls()
tree = ast.parse(SOURCE)
calls.visit(tree)
assert calls.names == ["print", "len", "sorted", "y.strip", "f"]
assert [node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)] == ["f"]
assert ast.literal_eval("{'a': [1, (2, None)]}") == {"a": [1, (2, None)]}
