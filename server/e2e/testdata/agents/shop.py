"""A shop's assistant that knows nothing but the conversation on its standard input."""

import re
import sys

blocks = re.split(r"\n\n(?=\[[A-Z_ ]+\]:)", sys.stdin.read().rstrip("\n"))
said = [re.fullmatch(r"\[([A-Z]+)\]: (.*)", block, re.DOTALL).groups() for block in blocks]
history, (role, words) = said[:-1], said[-1]
assert role == "USER", role

question = "Which product, and at what price?"
if words == "Add a product":
    print(question, end="")
elif words == "What is on the list?":
    added = [re.match(r"Added (.*),", answer) for role, answer in history if role == "ASSISTANT"]
    print("; ".join(match[1] for match in added if match), end="")
elif history[-2:] == [("USER", "Add a product"), ("ASSISTANT", question)]:
    print(f"Added {words}, message {len(said)} of this conversation", end="")
else:
    print(f"{words}? Nobody wanted to add a product.", end="")
