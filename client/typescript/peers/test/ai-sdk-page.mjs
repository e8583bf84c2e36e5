// The page of ai-sdk-page.test.ts: it runs commands of the test and reports each state of its chat.
import { createElement, StrictMode } from "react";
import { createRoot } from "react-dom/client";

import { useConversation } from "./conversation.mjs";

const post = (body) => fetch("/report", { method: "POST", body: JSON.stringify(body) });
let chat;

function Page() {
  chat = useConversation();
  const texts = chat.messages.map(({ parts }) => parts.map(({ text = "" }) => text).join(""));
  const ids = chat.messages.map(({ id }) => id);
  void post({ loaded: performance.timeOrigin, status: chat.status, error: chat.error?.message, texts, ids });
  return createElement("pre", null, texts.join("\n"));
}

createRoot(document.body).render(createElement(StrictMode, null, createElement(Page)));
for (;;) {
  const [command, text] = await (await fetch("/command")).json();
  if (command === "reload") {
    location.reload();
  } else {
    void chat[command](text);
  }
}
