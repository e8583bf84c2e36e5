import asyncio

from agent_framework import Agent
from my_models import client  # any chat client of Agent Framework

from parley.adapters.agent_framework import ParleyHistoryProvider

history = ParleyHistoryProvider("127.0.0.1:50051")  # instead of FileHistoryProvider(folder)
agent = Agent(client, context_providers=[history])


async def answer(session_id: str, prompt: str) -> str:
    session = agent.create_session(session_id=session_id)
    return (await agent.run(prompt, session=session)).text


print(asyncio.run(answer("user@example.com", "Which libraries keep state?")))
