import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";

import { TurnEvent } from "@parleyhq/client";

import { View } from "../src/view.js";

/** A step. Exactly one of begin, take, gone and next is set. */
interface Step {
  begin?: number;
  take?: object;
  shown?: object | null;
  gone?: boolean;
  next?: number;
}

interface Case {
  name: string;
  turn?: string;
  after?: number;
  steps: Step[];
}

const table = new URL("../../../testdata/views.json", import.meta.url);
const { cases } = JSON.parse(await readFile(table, "utf8")) as { cases: Case[] };

/** Returns an event from proto JSON, in which the case of a oneof is a normal property. */
function event(json: object | null): TurnEvent | undefined {
  if (json === null) {
    return undefined;
  }
  const { turnId, index, ...cases } = json as { turnId?: string; index?: number };
  const [[$case, value] = []] = Object.entries(cases);
  return TurnEvent.fromPartial({ turnId, index, event: $case && { $case, value } } as object);
}

for (const { name, turn, after, steps } of cases) {
  test(name, () => {
    const view = new View(turn, after);
    for (const [i, step] of steps.entries()) {
      const where = `step ${i}: ${JSON.stringify(step)}`;
      if (step.begin !== undefined) {
        view.startStream(step.begin);
      } else if (step.gone !== undefined) {
        assert.equal(view.restart(), step.gone, where);
      } else if (step.next !== undefined) {
        assert.equal(view.resumeIndex(), step.next, where);
      } else {
        const taken = event(step.take!)!;
        assert.deepEqual(view.newPart(taken), event(step.shown!), where);
        assert.deepEqual(taken, event(step.take!), `${where} changed the event of the stream`);
      }
    }
  });
}
