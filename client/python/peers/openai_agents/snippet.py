import asyncio

from agents import Agent, Runner

from parley.adapters.openai_agents import ParleySession


async def main() -> None:
    session = ParleySession("user@example.com", "127.0.0.1:50051")
    agent = Agent(name="guide", instructions="Answer in one sentence.")
    result = await Runner.run(agent, "Where is the Golden Gate Bridge?", session=session)
    print(result.final_output, len(await session.get_items()))


asyncio.run(main())
