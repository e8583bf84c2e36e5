/**
 * What may be left out of a T that is sent: everything. A field that is left out has its default,
 * as it has in the contract, and so has one that is undefined.
 */
export type Input<T> = unknown extends T
  ? T
  : T extends Date | Uint8Array | string | number | boolean | undefined
    ? T
    : T extends readonly (infer U)[]
      ? readonly Input<U>[]
      : T extends { $case: string; value: unknown }
        ? { $case: T["$case"]; value?: Input<T["value"]> | undefined }
        : { [K in keyof T]?: Input<T[K]> | undefined };
