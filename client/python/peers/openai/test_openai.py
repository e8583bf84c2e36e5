"""Tests of the OpenAI API of parleyd with the official client."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from agents import (
    Agent,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    Runner,
    set_tracing_disabled,
)
from openai import APIError, AsyncOpenAI, BadRequestError, ConflictError, NotFoundError

import parley

if TYPE_CHECKING:
    from conftest import Weather
    from facade import Facade
    from openai.types.responses import Response


def stored_texts(server: Facade, response: Response) -> str:
    """Return the texts of the assistant in the conversation of a response."""
    assert response.conversation
    digits = response.conversation.id.removeprefix("conv_")
    hyphens = "-".join(
        digits[start:end] for start, end in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
    )
    with parley.Client(server.server.address) as client:
        request = parley.ListMessagesRequest(conversation_id=hyphens, ascending=True)
        messages = client.list_messages(request).messages
    return "".join(m.content for m in messages if m.role == parley.Role.ROLE_ASSISTANT)


def test_conversations_have_their_items(server: Facade) -> None:
    client = server.client()
    conversation = client.conversations.create(
        items=[{"type": "message", "role": "user", "content": "Hello!"}], metadata={"topic": "demo"}
    )
    assert conversation.metadata == {"topic": "demo"}
    items: Any = [{"role": "user", "content": str(number)} for number in range(19)]
    created = client.conversations.items.create(conversation.id, items=items)
    pages = client.conversations.items.list(conversation.id, order="asc", limit=3)
    ids = [item.id for item in pages]
    assert ids[1:] == [item.id for item in created.data]
    newest = client.conversations.items.list(conversation.id)
    assert [item.id for item in newest] == ids[::-1]
    first = client.conversations.items.retrieve(str(ids[0]), conversation_id=conversation.id)
    assert first.type == "message"
    assert first.content[0].type == "input_text"
    assert first.content[0].text == "Hello!"
    client.conversations.items.delete(str(ids[5]), conversation_id=conversation.id)
    rest = client.conversations.items.list(conversation.id, order="asc", after=str(ids[3]), limit=2)
    assert [item.id for item in rest.data] == [ids[4], ids[6]]
    assert client.conversations.update(conversation.id, metadata={}).metadata == {}
    assert client.conversations.delete(conversation.id).deleted
    with pytest.raises(NotFoundError):
        client.conversations.retrieve(conversation.id)


def test_responses_continue_one_another_with_tools(server: Facade) -> None:
    client = server.client()
    first = client.responses.create(model="own", input="weather")
    assert first.output_text == "I ask. "
    call = first.output[1]
    assert call.type == "function_call"
    second = client.responses.create(
        model="own",
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "12 \u00b0C"}],
    )
    assert second.output_text == "re: 12 \u00b0C"
    assert client.responses.retrieve(second.id) == second
    assert client.responses.input_items.list(second.id).data[0].type == "function_call_output"
    assert [model.id for model in client.models.list()] == ["echo", "own"]


def test_stream_is_accepted_by_the_clients_accumulator(server: Facade) -> None:
    with server.client().responses.stream(model="own", input="weather") as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == "I ask. "
    assert [item.type for item in final.output] == ["message", "function_call"]


def test_background_response_can_be_resumed(server: Facade, agent: Weather) -> None:
    client = server.client()
    begun = client.responses.create(model="own", input="slow", background=True)
    assert begun.status == "in_progress"
    assert begun.conversation
    with pytest.raises(ConflictError) as locked:
        client.with_options(max_retries=0).responses.create(
            model="own", input="x", conversation=begun.conversation.id
        )
    assert locked.value.code == "conversation_locked"
    text, last = "", 0
    for event in client.responses.retrieve(begun.id, stream=True):
        last = event.sequence_number
        if event.type == "response.output_text.delta":
            text += event.delta
            break  # The client leaves.
    agent.released.set()
    for event in client.responses.retrieve(begun.id, stream=True, starting_after=last):
        if event.type == "response.output_text.delta":
            text += event.delta
    assert text == "Once upon a time."
    assert client.responses.retrieve(begun.id).output_text == text


def test_killed_server_and_client_have_the_same_text(server: Facade) -> None:
    stream = server.client().responses.create(model="own", input="slow", stream=True)
    response = ""

    def kill_in_mid_stream() -> None:
        nonlocal response
        for event in stream:
            if event.type == "response.created":
                response = event.response.id
            if event.type == "response.output_text.delta":
                server.server.kill()

    with pytest.raises((APIError, OSError)):
        kill_in_mid_stream()
    server.server.start()
    final = server.client().responses.retrieve(response)
    assert final.status == "failed"
    assert final.output_text == stored_texts(server, final)


def test_unsupported_parameters_are_refused_by_name(server: Facade) -> None:
    client = server.client()
    refused: list[dict[str, Any]] = [
        {"temperature": 0},
        {"tools": [{"type": "web_search"}]},
        {"store": False, "conversation": "conv_1"},
    ]
    for fields in refused:
        with pytest.raises(BadRequestError) as error:
            client.responses.create(model="own", input="x", **fields)
        assert error.value.code == "unsupported_parameter"
        assert error.value.param == next(iter(fields))
    with pytest.raises(BadRequestError) as error:
        client.responses.create(model="nobody", input="x")
    assert error.value.code == "model_not_found"


async def run_agent(url: str) -> None:
    """Run an agent of the SDK whose model and session are those of the server."""
    client = AsyncOpenAI(base_url=url, api_key="any")
    session = OpenAIConversationsSession(openai_client=client)
    model = OpenAIResponsesModel(model="own", openai_client=client)
    agent = Agent(name="assistant", model=model)
    for text in ("one", "two"):
        result = await Runner.run(agent, text, session=session)
        assert result.final_output == f"re: {text}"
    items = await session.get_items()
    assert [item.get("role") for item in items] == ["user", "assistant"] * 2


def test_sdk_runs_with_model_and_session_of_the_server(server: Facade) -> None:
    set_tracing_disabled(disabled=True)
    asyncio.run(run_agent(server.url))
