/**
 * A message T as an argument: all of its fields are optional. A field that is missing or undefined
 * has its default value, as in the protos. A field of bytes takes any Uint8Array.
 */
export type Input<T> = unknown extends T
  ? T
  : T extends Uint8Array
    ? Uint8Array
    : T extends Date | string | number | boolean | undefined
      ? T
      : T extends readonly (infer U)[]
        ? readonly Input<U>[]
        : T extends { $case: string; value: unknown }
          ? { $case: T["$case"]; value?: Input<T["value"]> | undefined }
          : { [K in keyof T]?: Input<T[K]> | undefined };
