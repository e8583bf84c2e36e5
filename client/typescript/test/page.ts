// The functions that tests run in a web page. This module imports nothing of Node.

import { Client } from "@parleyhq/client/web";

import { runStep, type Step } from "./table.js";

// The types of Node do not declare them.
declare const location: { readonly origin: string };
declare const Worker: new (
  url: string,
  options: { type: string },
) => { onmessage: (event: { data: string }) => void; onerror: (event: { message: string }) => void };

/** Executes the steps of the table of calls. Returns the errors by the names of their steps. */
export async function runTable({
  url,
  steps,
}: {
  url: string;
  steps: Step[];
}): Promise<Record<string, string>> {
  const client = new Client(url);
  const saved: Record<string, string> = {};
  const errors: Record<string, string> = {};
  for (const step of steps) {
    try {
      await runStep(client, step, saved);
    } catch (error) {
      errors[step.name] = String((error as Error).stack);
    }
  }
  client.close();
  return errors;
}

/** Reads a turn to its end, and reports each piece of text. Returns the indexes of the events and the text. */
export async function readTurn({
  url,
  content,
}: {
  url: string;
  content: string;
}): Promise<[number[], string]> {
  const client = new Client(url);
  const indexes: number[] = [];
  let text = "";
  for await (const { index, event } of client.chat({ conversationId: "c", content })) {
    indexes.push(index);
    if (event?.$case === "textDelta") {
      text += event.value.text;
      await fetch("/progress", { method: "POST" });
    }
  }
  client.close();
  return [indexes, text];
}

/** Chats in a worker of the page. Returns the text. */
export async function chatInWorker({ url, content }: { url: string; content: string }): Promise<string> {
  const code = `
    import { Client } from "${location.origin}/esm/web/index.js";
    let text = "";
    for await (const { event } of new Client("${url}").chat({ content: "${content}" })) {
      text += event?.$case === "textDelta" ? event.value.text : "";
    }
    postMessage(text);`;
  const worker = new Worker(URL.createObjectURL(new Blob([code], { type: "text/javascript" })), {
    type: "module",
  });
  return await new Promise((resolve, reject) => {
    worker.onmessage = ({ data }) => resolve(data);
    worker.onerror = ({ message }) => reject(new Error(message));
  });
}
