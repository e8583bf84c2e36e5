import { type Code, fromDetails, ParleyError } from "../errors.js";
import { maxMessageBytes } from "../request.js";

/** The limit of one line of a response: a message of 4 MiB is up to six times as long in JSON. */
const maxLineBytes = 6 * maxMessageBytes;

/** The status of a stream without events. */
const noContent = 204;

/** A status between 300 and 399 that is no redirect. */
const notModified = 304;

/** A response from a proxy, and not from Parley, has no status of gRPC. */
const proxyCodes: { readonly [status: number]: Code } = {
  401: "UNAUTHENTICATED",
  403: "PERMISSION_DENIED",
  404: "UNIMPLEMENTED",
  405: "UNIMPLEMENTED",
  408: "UNAVAILABLE",
  413: "RESOURCE_EXHAUSTED",
  429: "UNAVAILABLE",
  431: "RESOURCE_EXHAUSTED",
  502: "UNAVAILABLE",
  503: "UNAVAILABLE",
  504: "UNAVAILABLE",
};

/** A google.rpc.Status as JSON. */
export interface Status {
  readonly code: number;
  readonly message?: string;
  readonly details?: readonly Detail[];
}

interface Detail {
  readonly "@type"?: string;
  readonly reason?: string;
  readonly domain?: string;
  readonly metadata?: Readonly<Record<string, string>>;
  readonly fieldViolations?: readonly { readonly field?: string; readonly description?: string }[];
  readonly retryDelay?: string;
}

/** Reports whether a response is a redirect. Browsers hide its status, and some functions follow it nevertheless. */
export function isRedirect({ type, status, redirected }: Response): boolean {
  return (
    type === "opaqueredirect" || redirected || (status >= 301 && status <= 308 && status !== notModified)
  );
}

/** Returns the error of a redirect from this server. */
export function redirected(base: string, response: Response): ParleyError {
  const location = response.headers.get("location");
  const to = location ? ` to ${JSON.stringify(location.slice(0, 200))}` : "";
  return new ParleyError(
    "FAILED_PRECONDITION",
    `${base} redirects calls${to}; the client does not follow redirects, because another server would receive the ` +
      "token and the messages; make the client with the URL of the server itself",
  );
}

/**
 * Converts the status of a call or of one request of a stream. retryAfter is the delay in milliseconds of the response,
 * for a status that has none.
 */
export function fromStatus({ code, message = "", details = [] }: Status, retryAfter?: number): ParleyError {
  const find = (type: string) => details.find((detail) => detail["@type"]?.endsWith(`/google.rpc.${type}`));
  const info = find("ErrorInfo");
  const delay = find("RetryInfo")?.retryDelay;
  let text = message;
  const fieldViolations = (find("BadRequest")?.fieldViolations ?? []).map(
    ({ field = "", description = "" }) => {
      const path = protoPath(field);
      text = text.replace(`${field}:`, () => `${path}:`);
      return { field: path, description };
    },
  );
  return fromDetails(code, text, {
    ...(info ? { info: { reason: "", domain: "", metadata: {}, ...info } } : {}),
    fieldViolations,
    retryDelay: delay === undefined ? retryAfter : Number.parseFloat(delay) * 1000,
  });
}

/** Converts the path of a field from the names of JSON to those of the protos. Keys of maps stay as they are. */
function protoPath(path: string): string {
  return path.replace(/"(?:[^"\\]|\\.)*"|\B[A-Z]/g, (part) =>
    part.startsWith('"') ? part : `_${part.toLowerCase()}`,
  );
}

/** Returns the error of a response with a status other than 2xx. */
export async function fromResponse(response: Response): Promise<ParleyError> {
  const text = await bodyText(response);
  let status: Status | undefined;
  try {
    status = JSON.parse(text) as Status;
  } catch {
    // A proxy has answered.
  }
  const retryDelay = retryAfter(response.headers);
  if (isStatus(status)) {
    return fromStatus(status, retryDelay);
  }
  const code = proxyCodes[response.status] ?? (response.status < 500 ? "FAILED_PRECONDITION" : "UNKNOWN");
  return new ParleyError(
    code,
    `the response is not from Parley: status ${response.status}: ${text.slice(0, 200)}`,
    { retryDelay },
  );
}

/** Returns the Retry-After of a response in milliseconds: it is in seconds, or a date. */
function retryAfter(headers: Headers): number | undefined {
  const value = headers.get("retry-after")?.trim();
  if (!value) {
    return undefined;
  }
  if (/^\d+$/.test(value)) {
    return Number(value) * 1000;
  }
  const time = /^[a-z]+,? /i.test(value) ? Date.parse(value) : Number.NaN; // Date.parse accepts nearly any text.
  return Number.isNaN(time) ? undefined : Math.max(time - Date.now(), 0);
}

/** Reports whether JSON is a status of gRPC. Other servers have errors with a code, too. */
function isStatus(json: Partial<Status> | null | undefined): json is Status {
  const { code, details = [] } = json ?? {};
  return typeof code === "number" && code > 0 && code <= 16 && Array.isArray(details);
}

/** Returns the only message of a response as JSON. */
export async function bodyJSON(response: Response): Promise<unknown> {
  return parse(await bodyText(response));
}

/** Parses a message of the server. */
export function parse(text: string): object {
  try {
    const value = JSON.parse(text);
    if (typeof value === "object" && value !== null) {
      return value;
    }
  } catch {
    // The error below says what the response is.
  }
  throw notParley(text);
}

async function bodyText(response: Response): Promise<string> {
  let text = "";
  for await (const part of textOf(response)) {
    text += part;
    checkLength(text.length);
  }
  return text;
}

/** A server-sent event. */
export interface ServerEvent {
  /** "message" unless the server names another type. */
  readonly type: string;
  readonly data: string;
}

/** Yields the server-sent events of a response. Comments and other fields are left out. */
export async function* events(response: Response): AsyncGenerator<ServerEvent, void, undefined> {
  if (
    response.status !== noContent &&
    !response.headers.get("content-type")?.startsWith("text/event-stream")
  ) {
    throw notParley(await bodyText(response));
  }
  let type = "";
  let data: string[] = [];
  let length = 0;
  for await (const line of lines(response)) {
    if (line === "") {
      if (data.length > 0) {
        yield { type: type || "message", data: data.join("\n") };
      }
      type = "";
      data = [];
      length = 0;
      continue;
    }
    const [, field, value = ""] = /^([^:]*)(?:: ?(.*))?$/s.exec(line)!;
    if (field === "data") {
      length += value.length + 1; // The line break.
      checkLength(length);
      data.push(value);
    } else if (field === "event") {
      type = value;
    }
  }
  if (data.length > 0) {
    throw brokenOff();
  }
}

/** Yields the lines of a response, which end with CR, LF or both. */
export async function* lines(response: Response): AsyncGenerator<string, void, undefined> {
  const ends = /\r\n|\r|\n/g;
  let line: string[] = []; // The pieces of the line that has not ended.
  let length = 0;
  let afterCR = false;
  for await (const part of textOf(response)) {
    const text = afterCR && part.startsWith("\n") ? part.slice(1) : part;
    afterCR = part === "" ? afterCR : part.endsWith("\r");
    let start = 0;
    ends.lastIndex = 0;
    for (let end = ends.exec(text); end; end = ends.exec(text)) {
      line.push(text.slice(start, end.index));
      yield line.join("");
      line = [];
      length = 0;
      start = ends.lastIndex;
    }
    if (start < text.length) {
      line.push(text.slice(start));
      length += text.length - start;
      checkLength(length);
    }
  }
  if (line.length > 0) {
    throw brokenOff();
  }
}

/** Yields the text of a response, in pieces. Leaving the loop ends the response. */
async function* textOf(response: Response): AsyncGenerator<string, void, undefined> {
  const reader = response.body?.getReader(); // Not all browsers can iterate over a stream.
  const decoder = new TextDecoder();
  try {
    for (;;) {
      const next = await reader?.read().catch((cause: unknown) => {
        throw new ParleyError("UNAVAILABLE", `the connection broke: ${cause}`, { cause });
      });
      if (!next || next.done) {
        yield decoder.decode();
        return;
      }
      yield decoder.decode(next.value, { stream: true });
    }
  } finally {
    reader?.cancel().catch(() => {});
  }
}

function checkLength(length: number): void {
  if (length > maxLineBytes) {
    throw new ParleyError(
      "RESOURCE_EXHAUSTED",
      `the server sent a message of more than ${maxLineBytes} characters`,
    );
  }
}

/** Returns the error of a response that a proxy or another server has sent. */
function notParley(text: string, cause?: unknown): ParleyError {
  return new ParleyError("UNIMPLEMENTED", `the response is not from Parley: ${text.slice(0, 200)}`, {
    cause,
  });
}

function brokenOff(): ParleyError {
  return new ParleyError("UNAVAILABLE", "the connection ended within a message");
}
