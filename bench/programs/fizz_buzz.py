"""Says numbers as children do in a game."""


def fizz_buzz(number):
    return "Fizz" * (number % 3 == 0) + "Buzz" * (number % 5 == 0) or str(number)


said = [fizz_buzz(number) for number in range(1, 101)]
assert said[:6] == ["1", "2", "Fizz", "4", "Buzz", "Fizz"]
assert said[14] == "FizzBuzz"
assert said.count("FizzBuzz") == 6 and said.count("Fizz") == 27 and said.count("Buzz") == 14
