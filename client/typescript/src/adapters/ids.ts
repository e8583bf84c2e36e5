import { sha256 } from "@noble/hashes/sha2";
import { bytesToHex } from "@noble/hashes/utils";

const maxIDBytes = 256;
const maxKeyBytes = 512;
/** The size of what ends a shortened id: a tilde and a SHA-256 in hexadecimal. */
const digestBytes = 65;
const shortened = /~[0-9a-f]{64}$/;
/** Without the option, it would remove a U+FEFF at the start of an id. */
const text = new TextDecoder("utf-8", { ignoreBOM: true });

/**
 * Returns the id of the conversation for one or more ids of a framework. The adapters of all languages use the
 * same rule.
 *
 * The ids are joined by "/". In each of them these characters are percent-encoded as UTF-8: "%", control
 * characters, line breaks, a space as the first or last character, and "/" if there are several ids. The
 * single ids "." and ".." become "%2E" and "%2E%2E". A result of more than 256 bytes, the limit of the API, is
 * cut to 191 bytes, or less to keep a character whole; "~" and the SHA-256 of the complete one follow. A shorter
 * result that already ends like that is treated in the same way. So different ids never get the same
 * conversation, and most ids stay as they are.
 *
 * Throws a RangeError if there is no id, if all are empty, or if one is not Unicode.
 */
export function conversationId(...ids: readonly string[]): string {
  if (!ids.some(Boolean)) {
    throw new RangeError("the id of a conversation is empty");
  }
  let joined = ids.map((id) => encoded(id, ids.length > 1)).join("/");
  if (joined === "." || joined === "..") {
    joined = joined.replaceAll(".", "%2E");
  }
  const complete = new TextEncoder().encode(joined);
  if (complete.length <= maxIDBytes && !shortened.test(joined)) {
    return joined;
  }
  let end = Math.min(complete.length, maxIDBytes - digestBytes);
  while ((complete[end]! & 0xc0) === 0x80) {
    end--; // The byte after the cut continues a character.
  }
  return `${text.decode(complete.subarray(0, end))}~${bytesToHex(sha256(complete))}`;
}

/**
 * Returns the key of a record for the parts of a path: they are encoded as {@link conversationId} encodes several
 * ids, and joined by "/". The keys of paths that begin with the same parts begin with the same bytes.
 *
 * Throws a RangeError if the key has more than 512 bytes, the limit of the API, or if a part is not Unicode.
 */
export function recordKey(...parts: readonly string[]): string {
  const key = parts.map((part) => encoded(part, true)).join("/");
  if (new TextEncoder().encode(key).length > maxKeyBytes) {
    throw new RangeError(`the key ${JSON.stringify(key)} has more than ${maxKeyBytes} bytes`);
  }
  return key;
}

/** Returns an id with the characters percent-encoded that {@link conversationId} names. */
export function encoded(id: string, several: boolean): string {
  if (/\p{Surrogate}/u.test(id)) {
    throw new RangeError(`the id ${JSON.stringify(id)} is not Unicode`);
  }
  const text = id.replace(/[%\p{Cc}\p{Zl}\p{Zp}]|^\p{Zs}|\p{Zs}$/gu, encodeURIComponent);
  return several ? text.replaceAll("/", "%2F") : text;
}
