import * as allEnums from "../gen/enums.js";
import { messages } from "../gen/schema.js";

// The plain objects of this package, and their form in the JSON of the protos. src/gen/schema.ts describes the
// messages. Each function below is for one message or kind, by its name there.

type Fields = { [name: string]: unknown };

/** A field of a message. */
interface Field {
  readonly name: string;
  readonly kind: string;
  /** "" for a single value, "?" if it has presence, "*" for a list, "%" for a map. */
  readonly shape: string;
  /** The oneof that the field belongs to; empty if there is none. */
  readonly oneof: string;
}

/** The values of the enums, by name. The first one is the default. */
const enums = new Map(Object.entries(allEnums).map(([name, values]) => [name, Object.keys(values)]));

const parsed = new Map<string, readonly Field[]>();

/** Returns the fields of a message. */
export function fieldsOf(message: string): readonly Field[] {
  let fields = parsed.get(message);
  if (!fields) {
    const matches = messages[message]!.matchAll(/(\w+):(\w+)([?*%]?)(?:\|(\w+))?/g);
    fields = Array.from(matches, ([, name, kind, shape, oneof = ""]) => {
      return { name: name!, kind: kind!, shape: shape!, oneof };
    });
    parsed.set(message, fields);
  }
  return fields;
}

/** Converts a message to JSON, without fields that have their default. Throws an error if a value is not valid. */
export function toJSON(message: string, value: object): Fields {
  if (typeof value !== "object" || value === null) {
    throw new TypeError(`is ${value === null ? "null" : typeof value}, want an object`);
  }
  const json: Fields = {};
  for (const { name, kind, shape, oneof } of fieldsOf(message)) {
    const chosen = oneof && ((value as Fields)[oneof] as { $case?: string; value?: unknown } | undefined);
    const given = oneof
      ? chosen && chosen.$case === name
        ? chosen.value
        : undefined
      : (value as Fields)[name];
    if (given === undefined || (given === null && kind !== "Value")) {
      continue;
    }
    try {
      if (shape === "*") {
        if (!Array.isArray(given)) {
          throw new TypeError(`is ${typeof given}, want an array`);
        }
        if (given.length > 0) {
          json[name] = given.map((element) => single(kind, element));
        }
      } else if (shape === "%") {
        const entries = Object.entries(given as object).filter(([, element]) => element !== undefined);
        if (entries.length > 0) {
          json[name] = fromEntries(
            entries.map(([key, element]) => [wellFormed(key), wellFormed(String(element))]),
          );
        }
      } else {
        const converted = single(kind, given);
        if (shape === "?" || oneof || !isDefault(kind, converted)) {
          json[name] = converted;
        }
      }
    } catch (error) {
      throw error instanceof FieldError
        ? new FieldError(`${name}.${error.path}`, error.fault)
        : new FieldError(name, (error as Error).message);
    }
  }
  return json;
}

/** A value that JSON cannot represent, or of another type. */
class FieldError extends TypeError {
  readonly path: string;
  readonly fault: string;

  constructor(path: string, fault: string) {
    super(`${path} ${fault}`);
    this.path = path;
    this.fault = fault;
  }
}

/** Reports whether a field without presence has its default. */
function isDefault(kind: string, json: unknown): boolean {
  switch (kind) {
    case "string":
    case "bytes":
    case "FieldMask":
      return json === "";
    case "bool":
      return json === false;
    case "int32":
      return json === 0;
    case "int64":
      return json === "0";
    default:
      return enums.has(kind) && json === defaultOf(kind);
  }
}

/** Converts a value of a kind to JSON. */
function single(kind: string, value: unknown): unknown {
  switch (kind) {
    case "string":
      return wellFormed(typed<string>("string", value));
    case "bool":
      return typed<boolean>("boolean", value);
    case "int32":
      if (typed<number>("number", value) !== ((value as number) | 0)) {
        throw new RangeError(`is ${value}, want an integer of 32 bits`);
      }
      return value;
    case "int64":
      if (!Number.isSafeInteger(typed<number>("number", value))) {
        throw new RangeError(`is ${value}, want an integer of at most 2^53 - 1`);
      }
      return String(value);
    case "bytes":
      if (!(value instanceof Uint8Array)) {
        throw new TypeError(`is ${typeof value}, want a Uint8Array`);
      }
      return toBase64(value);
    case "Timestamp":
      if (!(value instanceof Date)) {
        throw new TypeError(`is ${typeof value}, want a Date`);
      }
      return value.toISOString();
    case "Duration":
      return durationText(value as { seconds?: number; nanos?: number });
    case "FieldMask":
      // The server accepts the names of the protos, which the caller uses.
      return (value as string[]).map((path) => wellFormed(typed<string>("string", path))).join(",");
    case "Value":
    case "Struct":
      return anyJSON(value);
    default:
      return enums.has(kind) ? typed<string>("string", value) : toJSON(kind, value as object);
  }
}

function typed<T>(type: string, value: unknown): T {
  if (typeof value !== type) {
    throw new TypeError(`is ${value === null ? "null" : typeof value}, want a ${type}`);
  }
  return value as T;
}

/** Converts structured data to JSON. Throws an error if JSON would change a value. */
function anyJSON(value: unknown): unknown {
  switch (typeof value) {
    case "string":
      return wellFormed(value);
    case "boolean":
      return value;
    case "number":
      if (!Number.isFinite(value)) {
        throw new RangeError(`contains ${value}`);
      }
      return value;
    case "object":
      if (value === null) {
        return null;
      }
      if (Array.isArray(value)) {
        return value.map(anyJSON);
      }
      return fromEntries(
        Object.entries(value)
          .filter(([, element]) => element !== undefined)
          .map(([key, element]) => [wellFormed(key), anyJSON(element)]),
      );
    default:
      throw new TypeError(`contains ${typeof value}`);
  }
}

/** Like TextEncoder, replaces surrogates without a partner. JSON would escape them, and the server refuses that. */
function wellFormed(text: string): string {
  return text.replace(/\p{Surrogate}/gu, "\ufffd");
}

function durationText({ seconds = 0, nanos = 0 }: { seconds?: number; nanos?: number }): string {
  if (!Number.isSafeInteger(seconds) || !Number.isInteger(nanos) || Math.abs(nanos) > 999_999_999) {
    throw new RangeError(`is ${seconds} s and ${nanos} ns, want integers and less than 1 s of nanoseconds`);
  }
  if (seconds * nanos < 0) {
    throw new RangeError(`is ${seconds} s and ${nanos} ns, want the same sign`);
  }
  const sign = seconds < 0 || nanos < 0 ? "-" : "";
  const fraction = nanos === 0 ? "" : `.${String(Math.abs(nanos)).padStart(9, "0")}`;
  return `${sign}${Math.abs(seconds)}${fraction}s`;
}

/** Converts JSON to a message with all fields set. A field or value that this package does not know is left out. */
export function fromJSON(message: string, json: unknown): Fields {
  if (typeof json !== "object" || json === null || Array.isArray(json)) {
    throw new TypeError(`${message} is not an object`);
  }
  const value: Fields = {};
  for (const { name, kind, shape, oneof } of fieldsOf(message)) {
    const given = (json as Fields)[name];
    const isAbsent = given === undefined || (given === null && kind !== "Value");
    if (oneof) {
      value[oneof] = isAbsent ? value[oneof] : { $case: name, value: singleFrom(kind, given) };
    } else if (shape === "*") {
      value[name] = isAbsent ? [] : (given as unknown[]).map((element) => singleFrom(kind, element));
    } else if (shape === "%") {
      value[name] = isAbsent ? {} : fromEntries(Object.entries(given as object));
    } else if (isAbsent) {
      value[name] = shape === "?" ? undefined : defaultOf(kind);
    } else {
      value[name] = singleFrom(kind, given);
    }
  }
  return value;
}

function singleFrom(kind: string, json: unknown): unknown {
  switch (kind) {
    case "int64": {
      const number = Number(json);
      if (!Number.isSafeInteger(number)) {
        throw new RangeError(`${json} is above 2^53 - 1`);
      }
      return number;
    }
    case "bytes":
      return fromBase64(json as string);
    case "Timestamp":
      // Not all browsers parse more than milliseconds.
      return new Date((json as string).replace(/(\.\d{3})\d+/, "$1"));
    case "Duration": {
      const [, sign, seconds, fraction = ""] = /^(-?)(\d+)(?:\.(\d{1,9}))?s$/.exec(json as string)!;
      const factor = sign ? -1 : 1;
      // Adding 0 makes -0 a 0.
      return { seconds: factor * Number(seconds) + 0, nanos: factor * Number(fraction.padEnd(9, "0")) + 0 };
    }
    case "FieldMask":
      return (json as string).split(",");
    case "string":
    case "bool":
    case "int32":
    case "Value":
    case "Struct":
      return json;
    default:
      if (enums.has(kind)) {
        return enums.get(kind)!.includes(json as string) ? json : "UNRECOGNIZED";
      }
      return fromJSON(kind, json);
  }
}

/** Returns the default of a field without presence. */
function defaultOf(kind: string): unknown {
  switch (kind) {
    case "string":
      return "";
    case "bool":
      return false;
    case "int32":
    case "int64":
      return 0;
    case "bytes":
      return new Uint8Array(0);
    default:
      return enums.get(kind)?.[0];
  }
}

/** Like Object.fromEntries; "__proto__" is a key like any other. */
function fromEntries(entries: (readonly [string, unknown])[]): Fields {
  return Object.fromEntries(entries);
}

/** The number of bytes that are converted to characters at once: arguments of a function are limited. */
const chunkBytes = 0x8000;

function toBase64(bytes: Uint8Array): string {
  let text = "";
  for (let start = 0; start < bytes.length; start += chunkBytes) {
    text += String.fromCharCode(...bytes.subarray(start, start + chunkBytes));
  }
  return btoa(text);
}

function fromBase64(text: string): Uint8Array {
  const characters = atob(text);
  const bytes = new Uint8Array(characters.length);
  for (let i = 0; i < bytes.length; i++) {
    bytes[i] = characters.charCodeAt(i);
  }
  return bytes;
}
