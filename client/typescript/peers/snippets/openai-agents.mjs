import { Agent, run } from "@openai/agents";
import { ParleySession } from "@parleyhq/client/openai-agents";

const agent = new Agent({ name: "cook", instructions: "Answer in one sentence." });
const session = new ParleySession({ server: "127.0.0.1:50051", sessionId: "anna@example.com" });
await run(agent, "What do I need for pancakes?", { session });
const result = await run(agent, "How many of them?", { session });
console.log(result.finalOutput);
session.close();
