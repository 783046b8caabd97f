"""A loop of tool calls with OpenAI's client and a recorded model."""

from model import run


def test_tools_of_a_model():
    printed, model = run("openai_tools.py", "openai_tools.json")
    assert printed == "The mean is 7.0, and the file has 9 lines.\n"
    # The first call fails because the module is missing; the model gets the error, and tries another way.
    assert model.texts("tool") == ['"ModuleNotFoundError: No module named \'no_such_module\'"', '"7.0"', '"9 numbers.txt\\n"']
