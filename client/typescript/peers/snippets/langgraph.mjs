import { END, MessagesAnnotation, START, StateGraph } from "@langchain/langgraph";
import { ParleySaver, ParleyStore } from "@parleyhq/client/langgraph";

const checkpointer = new ParleySaver({ server: "127.0.0.1:50051" });
const store = new ParleyStore({ server: "127.0.0.1:50051" });
const graph = new StateGraph(MessagesAnnotation)
  .addNode("answer", () => ({ messages: ["Flour, eggs and milk."] }))
  .addEdge(START, "answer")
  .addEdge("answer", END)
  .compile({ checkpointer, store });
const config = { configurable: { thread_id: "cleo@example.com" } };
const { messages } = await graph.invoke({ messages: ["What do I need for pancakes?"] }, config);
await store.put(["users", "anna"], "drink", { likes: "tea" });
const item = await store.get(["users", "anna"], "drink");
console.log(`${messages.length} messages, anna likes ${item?.value.likes}`);
checkpointer.close();
store.stop();
