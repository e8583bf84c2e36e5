"""The contract of chat stores, retold from LlamaIndex' tests of its own stores.

Each test also runs with SimpleChatStore. Where that differs in 0.14.25, the test says so.
"""

from __future__ import annotations

from typing import Any

import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.storage.chat_store import SimpleChatStore

HELLO = ChatMessage(role="user", content="hello")
WORLD = ChatMessage(role="assistant", content="world")
AGAIN = ChatMessage(role="user", content="again")


def test_messages_are_added_in_order(store: Any) -> None:
    for key in ("user1", "user2"):
        store.add_message(key, HELLO)
        store.add_message(key, WORLD)
    assert store.get_messages("user1") == [HELLO, WORLD]
    assert store.get_messages("user2") == [HELLO, WORLD]
    assert store.get_keys() == ["user1", "user2"]


@pytest.mark.parametrize("idx", [-9, -1, 0, 1, 2, 9])
def test_a_message_is_inserted(store: Any, idx: int) -> None:
    for message in (HELLO, WORLD):
        store.add_message("user1", message)
    store.add_message("user1", AGAIN, idx=idx)
    want = [HELLO, WORLD]
    want.insert(idx, AGAIN)
    assert store.get_messages("user1") == want


def test_a_missing_key_has_no_messages(store: Any) -> None:
    assert store.get_messages("none") == []
    assert store.delete_messages("none") is None
    assert store.delete_message("none", 0) is None
    assert store.delete_last_message("none") is None
    assert store.get_keys() == []


def test_messages_are_replaced(store: Any) -> None:
    store.add_message("user1", HELLO)
    store.set_messages("user1", [AGAIN, WORLD])
    assert store.get_messages("user1") == [AGAIN, WORLD]
    store.set_messages("user1", [])
    assert store.get_messages("user1") == []
    assert store.get_keys() == ["user1"]


def test_a_key_is_deleted(store: Any) -> None:
    store.set_messages("user1", [HELLO, WORLD])
    store.set_messages("user2", [HELLO])
    assert store.delete_messages("user1") == [HELLO, WORLD]
    assert store.get_messages("user1") == []
    assert store.get_messages("user2") == [HELLO]
    assert store.get_keys() == ["user2"]


def test_the_last_message_is_deleted(store: Any) -> None:
    store.set_messages("user1", [HELLO, WORLD])
    assert store.delete_last_message("user1") == WORLD
    assert store.get_messages("user1") == [HELLO]


@pytest.mark.parametrize("idx", [0, 1, 2, -1, -3])
def test_one_message_is_deleted(store: Any, idx: int) -> None:
    messages = [HELLO, WORLD, AGAIN]
    store.set_messages("user1", list(messages))
    assert store.delete_message("user1", idx) == messages.pop(idx)
    assert store.get_messages("user1") == messages


def test_a_message_out_of_range_is_not_deleted(store: Any) -> None:
    store.add_message("user1", HELLO)
    assert store.delete_message("user1", 1) is None
    if not isinstance(store, SimpleChatStore):  # 0.14.25 raises IndexError; later ones do not.
        assert store.delete_message("user1", -2) is None
        assert store.delete_last_message("user1") == HELLO
        assert store.delete_last_message("user1") is None
        assert store.get_messages("user1") == []
