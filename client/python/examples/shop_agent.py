"""A shop assistant: a complete agent for Parley that you can copy.

Start it, set its address in the configuration of parleyd, and chat with the agent "shop":

    .venv/bin/python examples/shop_agent.py --address 127.0.0.1:7002

    agents:
      shop: {kind: remote, address: "127.0.0.1:7002"}

It understands "create three products", "Sugar costs 50 cents" and "the second one is sold out".
"fail" and "slow" show what happens to an answer that fails or is cancelled. The agent has no state
between two calls: it reads everything from the history in the request. So it may restart in the
middle of a conversation, and several processes may answer the same conversation.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import grpc
from google.protobuf import json_format, struct_pb2

import parley
from parley import Message, Piece, RespondRequest, RespondResponse, StructuredData

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

PRODUCT_LIST = "product_list"
TICKS, TICK_SECONDS = 300, 0.2
STOP_SECONDS = 2.0  # for answers that are running at a stop

PRICE = re.compile(r"(?P<name>.+) costs (?P<cents>\d{1,9}) cents\.?", re.IGNORECASE)
SOLD_OUT = re.compile(r"the (?P<ordinal>first|second|third) one is sold out\.?", re.IGNORECASE)
ORDINALS = ("first", "second", "third")


class Product(TypedDict, total=False):
    """An entry of a product list. Only the name is always set."""

    name: str
    cents: int
    sold_out: bool


@dataclass(frozen=True)
class Answer:
    """The shop's answer to one message.

    The summary is one short clause, for coordinators that route the next message. The field
    products is the complete new list, or None if nothing has changed.
    """

    text: str
    summary: str
    products: list[Product] | None = None


def answer(messages: Sequence[Message]) -> Answer:
    """Answer the last message. There must be at least one."""
    content = messages[-1].content
    command = content.strip()
    if command.removesuffix(".").lower() == "create three products":
        products: list[Product] = [{"name": "Flour"}, {"name": "Sugar"}, {"name": "Salt"}]
        return Answer("Created Flour, Sugar and Salt.", "created three products", products)
    if price := PRICE.fullmatch(command):
        return set_price(newest_products(messages), price["name"], int(price["cents"]))
    if sold_out := SOLD_OUT.fullmatch(command):
        return mark_sold_out(newest_products(messages), sold_out["ordinal"].lower())
    known = f"I know {len(messages)} messages."
    return Answer(f"You said: {content}. {known}", "repeated what was said")


def set_price(products: list[Product], name: str, cents: int) -> Answer:
    """Set the price of the product with this name, in any case."""
    if not products:
        return Answer("There are no products yet.", "found no products")
    for product in products:
        if product["name"].casefold() == name.casefold():
            product["cents"] = cents
            return Answer(f"{product['name']} costs {cents} cents.", "set a price", products)
    return Answer(f"There is no product {name}.", "did not find a product")


def mark_sold_out(products: list[Product], ordinal: str) -> Answer:
    """Mark a product as sold out. The ordinal is "first", "second" or "third"."""
    if not products:
        return Answer("There are no products yet.", "found no products")
    index = ORDINALS.index(ordinal)
    if index >= len(products):
        return Answer(f"There is no {ordinal} product.", "did not find a product")
    product = products[index]
    product["sold_out"] = True
    return Answer(f"{product['name']} is sold out.", "marked a product as sold out", products)


def newest_products(messages: Sequence[Message]) -> list[Product]:
    """Return a copy of the newest product list, or an empty list.

    Other programs may write into the conversation, so data that is not a list of named entries is
    skipped.
    """
    for message in reversed(messages):
        for data in reversed(message.structured_data):
            if data.type != PRODUCT_LIST:
                continue
            value: Any = json_format.MessageToDict(data.value)
            if isinstance(value, list) and all(
                isinstance(product, dict) and isinstance(product.get("name"), str)
                for product in value
            ):
                return value
    return []


class Shop(parley.Agent):
    """The agent of the shop."""

    async def respond(self, request: RespondRequest) -> AsyncIterator[Piece]:
        """Stream the answer to the last message, word by word."""
        match request.messages[-1].content.strip().lower():
            case "fail":
                for word in words_of("This will "):
                    yield word
                # Parley stores the text before the error as an incomplete message, and shows the
                # message of the error to the user.
                raise parley.AgentError(grpc.StatusCode.UNAVAILABLE, "the shop is closed")
            case "slow":
                for _ in range(TICKS):
                    yield "tick "
                    await asyncio.sleep(TICK_SECONDS)
                yield RespondResponse(summary="ticked for a minute")
            case _:
                reply = answer(request.messages)
                for word in words_of(reply.text):
                    yield word
                if reply.products is not None:
                    value = json_format.Parse(json.dumps(reply.products), struct_pb2.Value())
                    yield StructuredData(type=PRODUCT_LIST, value=value)
                yield RespondResponse(summary=reply.summary)


def words_of(text: str) -> Iterator[str]:
    """Split the text before each word. The pieces joined are the text."""
    yield from re.split(r"(?<=\s)(?=\S)", text)


def host_and_port(text: str) -> str:
    """Check an address of the command line. gRPC would choose a port for an invalid one."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return text


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description="A shop assistant: an example agent for Parley.")
    parser.add_argument(
        "--address",
        type=host_and_port,
        default="127.0.0.1:7002",
        metavar="HOST:PORT",
        help="address of AgentService; port 0 chooses a free port (default %(default)s)",
    )
    address = parser.parse_args().address
    try:
        Shop().serve(address, grace=STOP_SECONDS, on_start=announce)
    except OSError as error:
        raise SystemExit(str(error)) from error


def announce(address: str) -> None:
    """Print the address of the agent."""
    print(f"agent serves AgentService address={address}", flush=True)


if __name__ == "__main__":
    main()
