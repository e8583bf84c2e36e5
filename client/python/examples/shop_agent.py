"""A shop assistant that answers Parley's Chat: a complete agent, to be copied.

Start it, name its address in the configuration of parleyd, and chat with the agent "shop":

    .venv/bin/python examples/shop_agent.py --address 127.0.0.1:7002

    agents:
      shop: {kind: remote, address: "127.0.0.1:7002"}

It understands "create three products", "Sugar costs 50 cents", "the second one is sold out";
"fail" and "slow" show what becomes of an answer that breaks off. It keeps nothing between two
calls: all it knows is in the history that comes with each of them. So it may be restarted in
the middle of a conversation, and any number of it may answer the same one.
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
STOP_SECONDS = 2.0  # for the answers that are under way at a stop

PRICE = re.compile(r"(?P<name>.+) costs (?P<cents>\d{1,9}) cents\.?", re.IGNORECASE)
SOLD_OUT = re.compile(r"the (?P<ordinal>first|second|third) one is sold out\.?", re.IGNORECASE)
ORDINALS = ("first", "second", "third")


class Product(TypedDict, total=False):
    """An entry of a product list; only the name is always there."""

    name: str
    cents: int
    sold_out: bool


@dataclass(frozen=True)
class Answer:
    """What the shop says to one message.

    The summary is one short clause, for coordinators that route the next message; products
    is the whole list as it now is, or None when nothing changed.
    """

    text: str
    summary: str
    products: list[Product] | None = None


def answer(messages: Sequence[Message]) -> Answer:
    """Answer the last of the messages, of which there is at least one."""
    content = messages[-1].content
    words = content.strip()
    if words.removesuffix(".").lower() == "create three products":
        products: list[Product] = [{"name": "Flour"}, {"name": "Sugar"}, {"name": "Salt"}]
        return Answer("Created Flour, Sugar and Salt.", "created three products", products)
    if price := PRICE.fullmatch(words):
        return set_price(newest_products(messages), price["name"], int(price["cents"]))
    if sold_out := SOLD_OUT.fullmatch(words):
        return mark_sold_out(newest_products(messages), sold_out["ordinal"].lower())
    known = f"I know {len(messages)} messages."
    return Answer(f"You said: {content}. {known}", "repeated what was said")


def set_price(products: list[Product], name: str, cents: int) -> Answer:
    """Give the product of that name, in whatever case, its price."""
    if not products:
        return Answer("There are no products yet.", "found no products")
    for product in products:
        if product["name"].casefold() == name.casefold():
            product["cents"] = cents
            return Answer(f"{product['name']} costs {cents} cents.", "set a price", products)
    return Answer(f"There is no product {name}.", "did not find a product")


def mark_sold_out(products: list[Product], ordinal: str) -> Answer:
    """Mark the product at that place of the list, "first" to "third", as sold out."""
    if not products:
        return Answer("There are no products yet.", "found no products")
    place = ORDINALS.index(ordinal)
    if place >= len(products):
        return Answer(f"There is no {ordinal} product.", "did not find a product")
    product = products[place]
    product["sold_out"] = True
    return Answer(f"{product['name']} is sold out.", "marked a product as sold out", products)


def newest_products(messages: Sequence[Message]) -> list[Product]:
    """Return the product list that was sent last, the caller's to change; empty if none was.

    Anyone may write into a conversation: what is no list of named things is passed over.
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
    """The shop as an agent."""

    async def respond(self, request: RespondRequest) -> AsyncIterator[Piece]:
        """Stream the answer to the last message, each word as soon as it is there."""
        match request.messages[-1].content.strip().lower():
            case "fail":
                for word in words_of("This will "):
                    yield word
                # Parley keeps what came before as an incomplete message and shows the text of
                # the error to the user.
                raise parley.AgentError(grpc.StatusCode.UNAVAILABLE, "the shop is closed")
            case "slow":
                for _ in range(TICKS):
                    yield "tick "
                    await asyncio.sleep(TICK_SECONDS)
                yield RespondResponse(summary="ticked for a minute")
            case _:
                said = answer(request.messages)
                for word in words_of(said.text):
                    yield word
                if said.products is not None:
                    value = json_format.Parse(json.dumps(said.products), struct_pb2.Value())
                    yield StructuredData(type=PRODUCT_LIST, value=value)
                yield RespondResponse(summary=said.summary)


def words_of(text: str) -> Iterator[str]:
    """Cut the text ahead of each word; the pieces together are the text."""
    yield from re.split(r"(?<=\s)(?=\S)", text)


def host_and_port(text: str) -> str:
    """Check an address of the command line; gRPC would take a port of its own choice."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT")
    return text


def main() -> None:
    """Run the program."""
    parser = argparse.ArgumentParser(description="A shop assistant that answers Parley's Chat.")
    parser.add_argument(
        "--address",
        type=host_and_port,
        default="127.0.0.1:7002",
        metavar="HOST:PORT",
        help="where to serve AgentService, port 0 picks one (default %(default)s)",
    )
    address = parser.parse_args().address
    try:
        Shop().serve(address, grace=STOP_SECONDS, on_start=announce)
    except OSError as error:
        raise SystemExit(str(error)) from error


def announce(address: str) -> None:
    """Say where the agent serves."""
    print(f"agent serves AgentService address={address}", flush=True)


if __name__ == "__main__":
    main()
