import assert from "node:assert/strict";
import { test } from "node:test";

import { type Client, Role } from "@parleyhq/client";

import { converse, options, startConsole } from "./console.js";

/** What attackers write where people read it. */
const payloads = [
  '<script>window.hacked = "script"</script>',
  '<img src=x onerror="window.hacked = 1">',
  '"><svg onload=window.hacked=1>',
  "'-window.hacked=1-'",
  "</bdi></div><iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
  "javascript:window.hacked=1",
  "{{constructor.constructor('window.hacked=1')()}}",
  "\u001b]8;;https://evil.example\u0007click\u001b]8;;\u0007 \u001b[2J",
  "invoice\u202Efdp.exe",
  "a\u2066b\u2069c\u200Bd\uFEFFe",
  // biome-ignore lint/suspicious/noTemplateCurlyInString: it is the payload
  "${window.hacked=1}",
  "<style>*{display:none}</style>",
  "&lt;b&gt;&#x3C;script&#x3E;",
];

/** Creates conversations whose texts of every kind are payloads. */
async function plant(client: Client): Promise<void> {
  for (const [index, payload] of payloads.entries()) {
    const id = `c${index}`;
    const printable = payload.replace(/[\p{Cc}]/gu, "");
    await client.createConversation({
      conversation: {
        id,
        title: payload,
        labels: { [printable.slice(0, 64)]: payload },
        agent: printable.slice(0, 60),
      },
    });
    await client.appendMessages({
      conversationId: id,
      messages: [
        { role: Role.ROLE_USER, content: payload, metadata: { key: payload } },
        {
          role: Role.ROLE_ASSISTANT,
          agent: printable.slice(0, 60),
          content: payload,
          reasoning: payload,
          summary: payload,
          structuredData: [{ type: printable.slice(0, 60), value: { [payload]: payload, list: [payload] } }],
          attachments: [{ uri: "javascript:window.hacked=1", filename: payload, mediaType: "text/html" }],
          toolCalls: [
            {
              id: printable.slice(0, 60),
              name: printable.slice(0, 60),
              arguments: JSON.stringify({ [payload]: payload }),
            },
          ],
        },
      ],
    });
  }
}

test("text of users and agents stays text", options, async (t) => {
  const { client, open } = await startConsole(t);
  await plant(client);
  const page = await open();
  await page.getByText(`${payloads.length} conversations`, { exact: true }).waitFor();
  for (const [index, payload] of payloads.entries()) {
    for (const tab of ["messages", "routing", "context", "turns", "log", "details"]) {
      await page.goto(`${new URL(page.url()).origin}/#/conversations/c${index}/${tab}`);
      await page.locator(`.tabs a[aria-current]`, { hasText: new RegExp(tab, "i") }).waitFor();
    }
    await page.goto(`${new URL(page.url()).origin}/#/conversations/c${index}/messages`);
    const content = page.locator('[data-sequence="1"] .content');
    await content.waitFor();
    for (const summary of await page.locator(".message summary").all()) {
      await summary.click();
    }
    const want = payload.replace(/[\p{Cc}\u202E\u2066\u2069\u200B\uFEFF]/gu, (hidden) => {
      return `U+${hidden.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}`;
    });
    assert.equal(await content.textContent(), want);
  }
  const harm = await page.evaluate(() => ({
    hacked: "hacked" in window,
    elements: document.querySelectorAll("script:not([src]), iframe, svg, style, img, a[href^='javascript']")
      .length,
    listeners: [...document.querySelectorAll("*")].filter((one) =>
      one.getAttributeNames().some((name) => name.startsWith("on")),
    ).length,
  }));
  assert.deepEqual(harm, { hacked: false, elements: 0, listeners: 0 });
});

test(
  "links of attachments lead only to the web, and do not send the address of the page",
  options,
  async (t) => {
    const { client, open } = await startConsole(t);
    await client.appendMessages({
      conversationId: "c",
      messages: [
        {
          role: Role.ROLE_USER,
          attachments: [
            "https://files.example/a.png",
            "javascript:alert(1)",
            "data:text/html,x",
            "file:///etc/passwd",
          ].map((uri) => ({ uri, filename: uri })),
        },
      ],
    });
    const page = await open("#/conversations/c");
    await page.locator(".attachment").nth(3).waitFor();
    const links = await page
      .locator(".attachment a")
      .evaluateAll((all) => all.map((one) => [one.getAttribute("href"), one.getAttribute("rel")]));
    assert.deepEqual(links, [["https://files.example/a.png", "noopener noreferrer nofollow"]]);
  },
);

test("the policy is enforced", options, async (t) => {
  const { client, url, faults, open } = await startConsole(t);
  await converse(client, "c", "hello");
  const page = await open();
  await page.locator(".row").waitFor();
  // Faults of the policy are events here, because the page would count its own errors.
  const refused = await page.evaluate(async () => {
    const directives: string[] = [];
    document.addEventListener("securitypolicyviolation", (event) =>
      directives.push(event.effectiveDirective),
    );
    const attempt = (action: () => unknown) => {
      try {
        action();
      } catch {
        // Trusted types throw.
      }
    };
    attempt(() => document.body.insertAdjacentHTML("beforeend", "<b>x</b>"));
    attempt(() => {
      const script = document.createElement("script");
      script.append("window.hacked = 1");
      document.body.append(script);
    });
    await fetch("https://other.example/").catch(() => {});
    await new Promise((resolve) => setTimeout(resolve));
    return { directives, hacked: "hacked" in window };
  });
  assert.equal(refused.hacked, false);
  for (const directive of ["require-trusted-types-for", "connect-src"]) {
    assert.ok(refused.directives.includes(directive), `${directive} is enforced: ${refused.directives}`);
  }
  faults.length = 0; // The browser has reported what it refused.
  const reply = await fetch(`${url}/`);
  assert.match(reply.headers.get("content-security-policy")!, /default-src 'none'; script-src 'self'/);
});

test("a message of 3 MiB is shown in part, and completely on request", options, async (t) => {
  const { client, open } = await startConsole(t, { more: { max_message_bytes: "3MiB" } });
  const lineOfText = `${"long ".repeat(19)}end\n`;
  const content = lineOfText.repeat(Math.floor((3 << 20) / lineOfText.length) - 100);
  await converse(client, "c", content);
  const page = await open("#/conversations/c");
  const message = page.locator('[data-sequence="1"] > .content');
  await message.waitFor();
  assert.ok((await message.textContent())!.length < 25_000);
  await page.getByRole("button", { name: "Show all (3.0 MiB)" }).click();
  assert.equal((await message.textContent())!.length, content.length);
  await page.getByLabel("Message", { exact: true }).fill("the page still answers");
});
