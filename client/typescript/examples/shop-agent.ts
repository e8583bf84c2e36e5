/**
 * A shop assistant: a complete agent in one file that you can copy. It serves gRPC without TLS.
 * The agent has no state between two calls: it reads everything from the history in the request.
 * So it may restart in the middle of a conversation, and several processes may answer the same
 * conversation.
 *
 * It understands "create three products", "Sugar costs 50 cents" and "the second one is sold
 * out". "fail" and "slow" show what happens to an answer that fails or is cancelled.
 */
import { setTimeout as sleep } from "node:timers/promises";
import { parseArgs } from "node:util";

import {
  Agent,
  AgentError,
  type Answering,
  type Message,
  type Piece,
  type RespondRequest,
  serve,
} from "@parleyhq/client";

/** The answer to one message. */
interface Answer {
  text: string;
  /** One short clause about the answer, for coordinators that route the next message. */
  summary: string;
  /** The complete new list; undefined if nothing has changed. */
  products?: Product[];
}

/** An entry of a product list. */
interface Product {
  name: string;
  cents?: number;
  sold_out?: boolean;
}

class ShopAgent extends Agent {
  /** Streams the answer to the last message. */
  override async *respond({ messages }: RespondRequest, { signal }: Answering): AsyncGenerator<Piece> {
    const last = messages.at(-1);
    if (!last) {
      throw new AgentError("INVALID_ARGUMENT", "messages is empty; it must end with the message to answer");
    }
    switch (last.content.trim().toLowerCase()) {
      case "fail":
        yield "This will ";
        // Parley stores the text before the error as an incomplete message, and shows the message
        // of the error to the user.
        throw new AgentError("UNAVAILABLE", "the shop is closed");
      case "slow":
        for (let tick = 0; tick < 300; tick++) {
          yield "tick ";
          await sleep(200, undefined, { signal }); // It throws if Parley cancels the answer.
        }
        yield { summary: "ticked for a minute" };
        return;
    }
    const { text, summary, products } = answer(last.content, messages);
    yield* text.split(/(?<=\s)(?=\S)/);
    if (products) {
      yield { structuredData: { type: "product_list", value: products } };
    }
    yield { summary };
  }
}

function answer(content: string, messages: Message[]): Answer {
  const command = content.trim();
  if (/^create three products\.?$/i.test(command)) {
    const products = [{ name: "Flour" }, { name: "Sugar" }, { name: "Salt" }];
    return { text: "Created Flour, Sugar and Salt.", summary: "created three products", products };
  }
  const [, name, cents] = /^(.+) costs (\d{1,9}) cents\.?$/i.exec(command) ?? [];
  if (name) {
    return setPrice(newestProducts(messages), name, Number(cents));
  }
  const [, ordinal] = /^the (first|second|third) one is sold out\.?$/i.exec(command) ?? [];
  if (ordinal) {
    return markSoldOut(newestProducts(messages), ordinal.toLowerCase());
  }
  return {
    text: `You said: ${content}. I know ${messages.length} messages.`,
    summary: "repeated what was said",
  };
}

/** Sets the price of the product with this name, in any case. */
function setPrice(products: Product[], name: string, cents: number): Answer {
  const product = products.find((p) => p.name.toLowerCase() === name.toLowerCase());
  if (!product) {
    return notFound(products, `There is no product ${name}.`);
  }
  product.cents = cents;
  return { text: `${product.name} costs ${cents} cents.`, summary: "set a price", products };
}

/** Marks a product as sold out. The ordinal is "first", "second" or "third". */
function markSoldOut(products: Product[], ordinal: string): Answer {
  const product = products[["first", "second", "third"].indexOf(ordinal)];
  if (!product) {
    return notFound(products, `There is no ${ordinal} product.`);
  }
  product.sold_out = true;
  return { text: `${product.name} is sold out.`, summary: "marked a product as sold out", products };
}

function notFound(products: Product[], text: string): Answer {
  if (products.length === 0) {
    return { text: "There are no products yet.", summary: "found no products" };
  }
  return { text, summary: "did not find a product" };
}

/**
 * Returns the newest product list, or an empty list. Other programs may write into the conversation,
 * so data that is not a list of named entries is skipped.
 */
function newestProducts(messages: Message[]): Product[] {
  const lists = messages.flatMap((m) => m.structuredData).filter((d) => d.type === "product_list");
  return lists.map((d) => d.value).findLast(isProductList) ?? [];
}

function isProductList(value: unknown): value is Product[] {
  return Array.isArray(value) && value.every((entry) => typeof entry?.name === "string");
}

try {
  const { values } = parseArgs({ options: { address: { type: "string", default: "127.0.0.1:7003" } } });
  const { address } = await serve(new ShopAgent(), values.address, { grace: 2000 });
  console.log(`agent serves AgentService address=${address}`);
} catch (error) {
  console.error(`agent: ${(error as Error).message}`);
  process.exitCode = 1;
}
