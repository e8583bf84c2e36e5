"""A shopping list that answers the last message from the earlier ones."""

import re
import sys

blocks = re.split(r"\n\n(?=\[[A-Z_]+[^\]\n]*\]:)", sys.stdin.read().strip())
users = [b.removeprefix("[USER]: ") for b in blocks if b.startswith("[USER]: ")]
message, before = users[-1], users[:-1]

if before and before[-1] == "Add a product":
    name, price = re.fullmatch(r"(\w+) for (.+)", message).groups()
    print(f"Added {name} at {price}.")
elif message == "Add a product":
    print("Which product, and for how much?")
elif before:
    print(f"You said: {', '.join(before)}.")
else:
    sys.exit("shop: no message to answer")
