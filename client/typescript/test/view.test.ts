import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";

import { TurnEvent } from "parley";

import { View } from "../src/view.js";

/** One step; exactly one of begin, take, gone and next is there. */
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

/** An event from proto JSON, where the case of a oneof is a property like any other. */
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
        view.begin(step.begin);
      } else if (step.gone !== undefined) {
        assert.equal(view.gone(), step.gone, where);
      } else if (step.next !== undefined) {
        assert.equal(view.next(), step.next, where);
      } else {
        const taken = event(step.take!)!;
        assert.deepEqual(view.take(taken), event(step.shown!), where);
        assert.deepEqual(taken, event(step.take!), `the event of the stream was changed in ${where}`);
      }
    }
  });
}
