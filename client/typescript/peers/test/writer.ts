// Applies operations to the session "s", each with two items, and prints the number of each one that has succeeded.
import { ParleySession } from "@parleyhq/client/openai-agents";

const [, , server, first] = process.argv;
const session = new ParleySession({ server: server!, sessionId: "s" });
for (let i = Number(first); ; i++) {
  const items = [0, 1].map((n) => ({
    type: "message" as const,
    role: "user" as const,
    content: `${i} ${n}`,
  }));
  await session.applyHistoryTransaction({
    operationId: `o${i}`,
    transaction: { type: "append_items", items },
  });
  console.log(i);
}
