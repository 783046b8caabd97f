"""A linked list that can be reversed."""


class Linked:
    def __init__(self, values=()):
        self.head = None
        for value in reversed(list(values)):
            self.head = (value, self.head)

    def __iter__(self):
        node = self.head
        while node:
            value, node = node
            yield value

    def reversed(self):
        result = Linked()
        for value in self:
            result.head = (value, result.head)
        return result


assert list(Linked()) == []
assert list(Linked("abc")) == ["a", "b", "c"]
assert list(Linked(range(5)).reversed()) == [4, 3, 2, 1, 0]
assert list(Linked([1]).reversed().reversed()) == [1]
