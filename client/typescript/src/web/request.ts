import { ParleyError } from "../errors.js";
import { type Method, methods } from "../gen/schema.js";
import { maxMessageBytes, tooLarge } from "../request.js";
import { fieldsOf } from "./json.js";

type Fields = { [name: string]: unknown };

/** An HTTP request without its headers. */
export interface HTTPRequest {
  readonly method: string;
  /** The path and the query, which begins with a slash. */
  readonly path: string;
  readonly body?: Uint8Array<ArrayBuffer>;
}

/** The server accepts 20 KiB of headers, in which the path is. This leaves space for a token. */
const maxPathBytes = 16 << 10;

/** Returns the HTTP request of a call, whose request is JSON. Throws a ParleyError if it cannot be sent. */
export function httpRequest(name: string, request: Fields): HTTPRequest {
  const method = methods[name]!;
  const [verb, template, body] = chooseRoute(method, request);
  let rest = request;
  const path = template!.replace(/\{([^}]+)\}/g, (_, field: string) => {
    const id = valueAt(request, field);
    // The parser of URLs would remove such a segment, and the path would belong to another call.
    if (id === "." || id === "..") {
      throw invalidField(protoName(field), 'must not be "." or ".."');
    }
    rest = without(rest, field.split("."));
    return encodeURIComponent(id);
  });
  if (body === "*") {
    return { method: verb!, path, body: encode(rest) };
  }
  const fields = body ? without(rest, [body]) : rest;
  const query = new URLSearchParams(parameters(method.request, fields)).toString();
  const complete = query ? `${path}?${query}` : path;
  if (complete.length > maxPathBytes) {
    throw new ParleyError(
      "RESOURCE_EXHAUSTED",
      `the request cannot be sent: over HTTP its fields are in the path, which has ${complete.length} bytes; ` +
        `the limit is ${maxPathBytes}; name fewer of them`,
    );
  }
  return { method: verb!, path: complete, ...(body ? { body: encode((rest[body] as Fields) ?? {}) } : {}) };
}

/** Returns the HTTP request of a call whose requests are lines of JSON. */
export function linesRequest(name: string, lines: readonly string[]): HTTPRequest {
  const [verb, path] = chooseRoute(methods[name]!, {});
  return { method: verb!, path: path!, body: utf8(lines.join("")) };
}

/** Returns a request as a line. */
export function line(json: Fields): string {
  return `${JSON.stringify(json)}\n`;
}

/** Returns the route whose path has no empty id, or the last one: the server then names the id. */
function chooseRoute({ routes }: Method, request: Fields): string[] {
  const isComplete = (route: string) =>
    Array.from(route.matchAll(/\{([^}]+)\}/g)).every(([, field]) => valueAt(request, field!) !== "");
  return (routes.find(isComplete) ?? routes.at(-1)!).split(" ");
}

/** Returns the text of a field, which may be in an inner message: "conversation.id". */
function valueAt(message: Fields, path: string): string {
  let value: unknown = message;
  for (const name of path.split(".")) {
    value = (value as Fields | undefined)?.[name];
  }
  return (value as string | undefined) ?? "";
}

/** Returns a message without a field, which may be in an inner message. */
function without(message: Fields, [first, ...others]: readonly string[]): Fields {
  const { [first!]: value, ...rest } = message;
  return others.length === 0 || value === undefined
    ? rest
    : { ...rest, [first!]: without(value as Fields, others) };
}

/** Returns the parameters of a query for the fields of a message. */
function parameters(message: string, json: Fields, prefix = ""): [string, string][] {
  return fieldsOf(message).flatMap(({ name, kind, shape }): [string, string][] => {
    const value = json[name];
    const key = prefix + name;
    if (value === undefined) {
      return [];
    }
    if (shape === "*") {
      return (value as unknown[]).map((element) => [key, String(element)]);
    }
    if (shape === "%") {
      return Object.entries(value as object).map(([entry, element]) => {
        // The server would read another key, or none.
        if (/[[\n]/.test(entry)) {
          throw invalidField(
            `${protoName(key)}[${JSON.stringify(entry)}]`,
            'must not contain "[" or a line break over HTTP, where it is in the URL; use the client over gRPC',
          );
        }
        return [`${key}[${entry}]`, String(element)];
      });
    }
    return typeof value === "object" ? parameters(kind, value as Fields, `${key}.`) : [[key, String(value)]];
  });
}

/** Returns JSON as bytes. Throws an error if there are too many. */
export function encode(json: Fields): Uint8Array<ArrayBuffer> {
  const bytes = utf8(JSON.stringify(json));
  if (bytes.length > maxMessageBytes) {
    throw tooLarge(bytes.length);
  }
  return bytes;
}

function utf8(text: string): Uint8Array<ArrayBuffer> {
  return new TextEncoder().encode(text) as Uint8Array<ArrayBuffer>;
}

/** Returns the path of a field in the names of the protos. */
function protoName(path: string): string {
  return path.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

function invalidField(field: string, description: string): ParleyError {
  return new ParleyError("INVALID_ARGUMENT", `invalid request: ${field}: ${description}`, {
    reason: "INVALID_REQUEST",
    fieldViolations: [{ field, description }],
  });
}
