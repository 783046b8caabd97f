"""An account that rejects overdrafts and records its transactions."""

from dataclasses import dataclass, field


class Overdrawn(Exception):
    pass


@dataclass
class Account:
    balance: int = 0
    history: list = field(default_factory=list)

    def move(self, amount):
        if self.balance + amount < 0:
            raise Overdrawn(f"{-amount} is more than {self.balance}")
        self.balance += amount
        self.history.append(amount)


account = Account()
account.move(100)
account.move(-30)
try:
    account.move(-71)
except Overdrawn as error:
    assert str(error) == "71 is more than 70"
else:
    raise AssertionError("it was overdrawn")
assert account == Account(70, [100, -30]) and sum(account.history) == account.balance
