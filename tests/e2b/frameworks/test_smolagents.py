"""smolagents with its executor for E2B."""

from model import run


def test_an_agent_that_writes_code():
    printed, model = run("smolagents_code.py", "smolagents_code.json")
    assert printed.splitlines()[-1] == "answer: [233.15, 293.65]"
    # The model gets the output and the exception.
    texts = model.texts("user")
    assert any("converted: [293.65, 233.14999999999998]" in text for text in texts), texts
    assert any("ZeroDivisionError" in text for text in texts), texts
