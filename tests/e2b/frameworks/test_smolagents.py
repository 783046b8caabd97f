"""smolagents with its executor for E2B."""

from model import run


def test_an_agent_that_writes_code():
    printed, model = run("smolagents_code.py", "smolagents_code.json")
    assert printed.splitlines()[-1] == "answer: [233.15, 293.65]"
    # What was printed, and what was raised, is told to the model.
    told = model.texts("user")
    assert any("converted: [293.65, 233.14999999999998]" in text for text in told), told
    assert any("ZeroDivisionError" in text for text in told), told
