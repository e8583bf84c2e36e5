"""An agent with a scripted model, which adds up what its tool returns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.adk.agents import LlmAgent
from google.adk.agents.run_config import RunConfig
from google.adk.models import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import GetSessionConfig
from google.genai import types

# The model of the tool finds it by its annotation.
from google.adk.tools.tool_context import ToolContext  # noqa: TC002  isort: skip

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from google.adk.events import Event
    from google.adk.models.llm_request import LlmRequest
    from google.adk.sessions import BaseSessionService


class ScriptedModel(BaseLlm):
    """A model that calls the tool for each message of the user, and then says the total."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Answer the last message of the request."""
        del stream
        parts = llm_request.contents[-1].parts or []
        if parts and (result := parts[-1].function_response):
            part = types.Part(text=f"The total is {(result.response or {})['total']}.")
        else:
            part = types.Part(function_call=types.FunctionCall(name="add", args={"number": 1}))
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


def add(number: int, tool_context: ToolContext) -> dict[str, int]:
    """Add a number to the totals of the session, the user and the application."""
    for key in ("total", "user:total", "app:total"):
        tool_context.state[key] = tool_context.state.get(key, 0) + number
    tool_context.state["temp:seen"] = True
    return {"total": tool_context.state["total"]}


def runner(service: BaseSessionService, app: str) -> Runner:
    """Return a runner of the agent."""
    agent = LlmAgent(
        name="adder",
        model=ScriptedModel(model="scripted"),
        tools=[add],
        output_key="answer",
        # Otherwise each turn builds a request of all turns before it.
        include_contents="none",
    )
    return Runner(app_name=app, agent=agent, session_service=service)


async def turn(run: Runner, user: str, session: str, text: str) -> list[Event]:
    """Send a message, and return the events of the turn.

    The runner loads the newest events only: to load all of them in each turn, as it does otherwise,
    takes most of the time of a long session.
    """
    message = types.Content(role="user", parts=[types.Part(text=text)])
    events = run.run_async(
        user_id=user,
        session_id=session,
        new_message=message,
        run_config=RunConfig(get_session_config=GetSessionConfig(num_recent_events=20)),
    )
    return [event async for event in events]
