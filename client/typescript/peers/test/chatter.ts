// Sends a message to the chat "c" and prints the chunks of the answer.
import { Client } from "@parleyhq/client";
import { ParleyChatTransport } from "@parleyhq/client/ai-sdk";

const transport = new ParleyChatTransport({ client: new Client(process.argv[2]!) });
const stream = await transport.sendMessages({
  trigger: "submit-message",
  chatId: "c",
  messageId: undefined,
  messages: [{ id: "u", role: "user", parts: [{ type: "text", text: "slow" }] }],
  abortSignal: undefined,
});
for await (const chunk of stream) {
  console.log(JSON.stringify(chunk));
}
