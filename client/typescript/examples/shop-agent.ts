/**
 * A shop's assistant: a whole agent in one file, to copy and to change. It speaks gRPC over
 * HTTP/2 without TLS, keeps nothing between two calls, and finds all that it knows in the
 * history that comes with each of them. So it may be restarted in the middle of a
 * conversation, and any number of it may answer the same one.
 *
 * It understands "create three products", "Sugar costs 50 cents" and "the second one is sold
 * out"; "fail" and "slow" show what becomes of an answer that breaks off.
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
} from "parley";

/** What the assistant says, and what goes with it. */
interface Answer {
  text: string;
  /** What this answer did, in one short clause, for coordinators that route the next message. */
  summary: string;
  /** The whole list as it now is; left out when nothing has changed. */
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
      throw new AgentError("INVALID_ARGUMENT", "messages is empty: there is nothing to answer");
    }
    switch (last.content.trim().toLowerCase()) {
      case "fail":
        yield "This will ";
        // This is how an agent says that it failed. Parley keeps what came before as an
        // incomplete message and shows the text to the user.
        throw new AgentError("UNAVAILABLE", "the shop is closed");
      case "slow":
        for (let tick = 0; tick < 300; tick++) {
          yield "tick ";
          await sleep(200, undefined, { signal }); // Throws when Parley gives the answer up.
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
  const words = content.trim();
  if (/^create three products\.?$/i.test(words)) {
    const products = [{ name: "Flour" }, { name: "Sugar" }, { name: "Salt" }];
    return { text: "Created Flour, Sugar and Salt.", summary: "created three products", products };
  }
  const [, name, cents] = /^(.+) costs (\d{1,9}) cents\.?$/i.exec(words) ?? [];
  if (name) {
    return setPrice(newestProducts(messages), name, Number(cents));
  }
  const [, ordinal] = /^the (first|second|third) one is sold out\.?$/i.exec(words) ?? [];
  if (ordinal) {
    return markSoldOut(newestProducts(messages), ordinal.toLowerCase());
  }
  return {
    text: `You said: ${content}. I know ${messages.length} messages.`,
    summary: "repeated what was said",
  };
}

/** Gives the product of that name, in whatever case, its price. */
function setPrice(products: Product[], name: string, cents: number): Answer {
  const product = products.find((p) => p.name.toLowerCase() === name.toLowerCase());
  if (!product) {
    return notFound(products, `There is no product ${name}.`);
  }
  product.cents = cents;
  return { text: `${product.name} costs ${cents} cents.`, summary: "set a price", products };
}

/** Marks the product at that place of the list, "first" to "third", as sold out. */
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
 * The product list that was sent last; empty when none was. Anyone may write into a
 * conversation: what is no list of named things is passed over.
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
