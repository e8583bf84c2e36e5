import asyncio

from my_models import model  # any model of Pydantic AI
from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation

from parley.adapters.pydantic_ai import ParleyConversationStore

agent = Agent(model)
store = ParleyConversationStore("127.0.0.1:50051")  # instead of InMemoryConversationStore()


async def answer(conversation_id: str, prompt: str) -> str:
    stored = await store.load(conversation_id)
    conversation = stored or Conversation(conversation_id=conversation_id)
    result = await agent.run(prompt, conversation=conversation)
    await store.save(result)
    return result.output


print(asyncio.run(answer("user@example.com", "Which libraries keep state?")))
