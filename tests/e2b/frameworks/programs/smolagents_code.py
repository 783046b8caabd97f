"""An agent that writes code, run by E2B's executor. Nothing in this program is specific to Belljar."""

import os

from smolagents import CodeAgent, OpenAIModel, tool


@tool
def kelvin(celsius: float) -> float:
    """Converts a temperature.

    Args:
        celsius: The temperature in degrees Celsius.
    """
    return celsius + 273.15


model = OpenAIModel("recorded", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
with CodeAgent(tools=[kelvin], model=model, executor_type="e2b") as agent:
    answer = agent.run("What are these temperatures in kelvin, in order?", additional_args={"temperatures": [20.5, -40]})
print("answer:", answer)
