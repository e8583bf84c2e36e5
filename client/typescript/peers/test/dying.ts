// Kills itself in the fourth turn of a graph on the thread "dying", before the node answers.
import { AIMessage, HumanMessage } from "@langchain/core/messages";
import { MessagesAnnotation, StateGraph } from "@langchain/langgraph";
import { ParleySaver } from "@parleyhq/client/langgraph";

const graph = new StateGraph(MessagesAnnotation)
  .addNode("answer", async ({ messages }) => {
    if (messages.length === 7) {
      process.kill(process.pid, "SIGKILL");
      await new Promise(() => {}); // The kill may take a moment.
    }
    return { messages: [new AIMessage(`re: ${messages.at(-1)!.text}`)] };
  })
  .addEdge("__start__", "answer")
  .addEdge("answer", "__end__")
  .compile({ checkpointer: new ParleySaver({ server: process.argv[2]! }) });
for (let turn = 0; ; turn++) {
  const config = { configurable: { thread_id: "dying" }, durability: "sync" as const };
  await graph.invoke({ messages: [new HumanMessage(`${turn}`)] }, config);
}
