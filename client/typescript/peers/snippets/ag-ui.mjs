import { ParleyAgent } from "@parleyhq/client/ag-ui";

export const agent = new ParleyAgent({
  url: "http://127.0.0.1:8080/ag-ui/echo",
  threadId: "user@example.com",
});
agent.subscribe({
  onMessagesChanged: ({ messages }) => {
    document.body.innerText = messages.map(({ role, content }) => `${role}: ${content}`).join("\n");
  },
});

/** Resolves when the thread is loaded, and the answer that was being written is complete. */
export const loaded = agent.connectAgent();

/** Sends a message of the user and shows its answer. */
export async function send(content) {
  await loaded;
  agent.addMessage({ id: crypto.randomUUID(), role: "user", content });
  await agent.runAgent();
}
