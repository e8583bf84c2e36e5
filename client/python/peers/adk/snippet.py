import asyncio

from google.adk.events import Event, EventActions

from parley.adapters.adk import ParleySessionService


async def main() -> None:
    async with ParleySessionService("127.0.0.1:50051") as sessions:  # Runner(session_service=...)
        session = await sessions.create_session(app_name="shop", user_id="ada@example.com")
        delta = {"cart": ["tea"], "user:language": "en"}
        await sessions.append_event(
            session, Event(author="user", actions=EventActions(state_delta=delta))
        )
        listed = await sessions.list_sessions(app_name="shop", user_id="ada@example.com")
        print(listed.sessions[-1].state)


asyncio.run(main())
