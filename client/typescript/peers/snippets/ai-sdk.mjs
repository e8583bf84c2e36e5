import { useChat } from "@ai-sdk/react";
import { ParleyChatTransport } from "@parleyhq/client/ai-sdk";
import { Client } from "@parleyhq/client/web";

const client = new Client("http://127.0.0.1:8080");
const transport = new ParleyChatTransport({ client });
const id = "user@example.com";
const messages = await transport.loadMessages(id);

/** Returns messages, sendMessage, regenerate, stop and so on, for a component of React. */
export function useConversation() {
  return useChat({ id, messages, transport, resume: true });
}
