from llama_index.core.llms import ChatMessage
from llama_index.core.memory import ChatMemoryBuffer

from parley.adapters.llama_index import ParleyChatStore

store = ParleyChatStore("127.0.0.1:50051")  # instead of SimpleChatStore()
memory = ChatMemoryBuffer.from_defaults(
    token_limit=8000, chat_store=store, chat_store_key="dora@example.com"
)
memory.put(ChatMessage(role="user", content="Which libraries keep state?"))
memory.put(ChatMessage(role="assistant", content="Zustand and Jotai do."))
print([message.content for message in memory.get()])
