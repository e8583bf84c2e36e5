"""The ids of conversations and the keys of records that adapters use."""

from __future__ import annotations

import pytest

from parley import Client, Conversation, CreateConversationRequest, GetConversationRequest
from parley.adapters import conversation_id, record_key

LONG = "é" * 200


@pytest.mark.parametrize(
    ("ids", "want"),
    [
        (("user@example.com",), "user@example.com"),
        (("app/1",), "app/1"),
        (("app/1", "anna", "s 1"), "app%2F1/anna/s 1"),
        (("100%",), "100%25"),
        ((" a ",), "%20a%20"),
        (("a\nb\u2028c\x00",), "a%0Ab%E2%80%A8c%00"),
        ((".",), "%2E"),
        (("..",), "%2E%2E"),
        (("..", ".."), "../.."),
        (("", "a", ""), "/a/"),
        (("\U0001f469\u200d\U0001f52c",), "\U0001f469\u200d\U0001f52c"),
        (
            ("a~" + "0" * 64,),
            "a~" + "0" * 64 + "~64040922f8ccc409960b29d33028a2a1d332ac7a602dc5c1e7c16b7aa31eaae2",
        ),
        (
            (LONG,),
            "é" * 95 + "~df20b2aa6262e99e133aa7f3614be707d35c4155d17e2aa7cbb49da555a454c3",
        ),
    ],
)
def test_ids(ids: tuple[str, ...], want: str, server_address: str) -> None:
    """Each id maps to the one that is documented, and the server accepts it."""
    got = conversation_id(*ids)
    assert got == want
    with Client(server_address) as client:
        client.create_conversation(CreateConversationRequest(conversation=Conversation(id=got)))
        reply = client.get_conversation(GetConversationRequest(conversation_id=got))
        assert reply.conversation.id == got


def test_different_ids_stay_different() -> None:
    """Ids that look alike when they are joined have different conversations."""
    ids = [
        ("a", "b", "c"),
        ("a/b", "c"),
        ("a", "b/c"),
        ("a%2Fb", "c"),
        ("a", "b", "c", ""),
        ("", "a", "b", "c"),
        ("a ", "b", "c"),
        ("a%20", "b", "c"),
        (LONG + "a", "b"),
        (LONG + "b", "b"),
        (conversation_id(LONG + "b", "b"),),
        (conversation_id(conversation_id(LONG + "b", "b")),),
    ]
    assert len({conversation_id(*of) for of in ids}) == len(ids)


@pytest.mark.parametrize("ids", [(), ("",), ("", "")])
def test_no_id(ids: tuple[str, ...]) -> None:
    """Without any id there is no conversation."""
    with pytest.raises(ValueError, match="is empty"):
        conversation_id(*ids)


def test_keys() -> None:
    """The keys of paths with the same start have the same start; a long one is refused."""
    assert record_key("state", "a/b", "c%") == "state/a%2Fb/c%25"
    with pytest.raises(ValueError, match="512 bytes"):
        record_key("k" * 513)
