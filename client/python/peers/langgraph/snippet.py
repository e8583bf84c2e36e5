from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph

from parley.adapters.langgraph import ParleySaver

builder = StateGraph(MessagesState)
builder.add_node("model", lambda state: {"messages": [("ai", f"{len(state['messages'])} so far")]})
builder.add_edge(START, "model")
config: RunnableConfig = {"configurable": {"thread_id": "ben@example.com"}}
with ParleySaver("127.0.0.1:50051") as saver:
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"messages": [HumanMessage("Hi.")]}, config)
    print([message.content for message in graph.get_state(config).values["messages"]])
