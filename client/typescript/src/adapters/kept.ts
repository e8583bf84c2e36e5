import type { Retention } from "@parleyhq/client";

/** The retention of conversations that live until they are deleted. */
export const kept: Partial<Retention> = { keepAll: true, noExpiry: true, noEviction: true };
