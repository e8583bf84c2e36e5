// The page of ag-ui-page.test.ts: it runs commands of the test and reports each state of its thread.
import { agent, loaded, send } from "./conversation.mjs";

let error;
let last = Promise.resolve();

/** Reports what the page shows, in order. */
function report() {
  const status = agent.isRunning ? "streaming" : "ready";
  const ids = agent.messages.map(({ id }) => id);
  const body = {
    loaded: performance.timeOrigin,
    status,
    error,
    texts: document.body.innerText.split("\n"),
    ids,
  };
  last = last.then(() => fetch("/report", { method: "POST", body: JSON.stringify(body) }));
}

/** Reports the end of a run. */
function watch(run) {
  void run
    .catch((reason) => {
      error = String(reason);
    })
    .finally(report);
}

new MutationObserver(report).observe(document.body, { childList: true });
watch(loaded);
for (;;) {
  const [command, content] = await (await fetch("/command")).json();
  if (command === "reload") {
    location.reload();
  } else if (command === "stop") {
    agent.abortRun();
  } else {
    watch(send(content));
  }
}
