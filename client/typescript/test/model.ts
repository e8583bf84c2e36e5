import { Buffer } from "node:buffer";

import { type TurnEvent as Event, TurnEvent } from "parley";

// What a server makes of a turn.

type Cases = NonNullable<Event["event"]>;
type Step = Parameters<typeof TurnEvent.fromPartial>[0];

/** The events of a turn one by one: with its id, indexes and offsets. */
export function numbered(turnId: string, ...steps: Step[]): Event[] {
  let offset = 0;
  return steps.map((step, i) => {
    const event = TurnEvent.fromPartial({ ...step, turnId, index: i + 1 });
    if (opens(event)) {
      offset = 0;
    } else if (event.event?.$case === "textDelta") {
      event.event.value.offset = offset;
      offset += Buffer.byteLength(event.event.value.text);
    }
    return event;
  });
}

/** Whether an event opens another answer message. */
function opens({ event }: Event): boolean {
  return event?.$case === "answerStarted" || event?.$case === "toolResult";
}

/** Events as the store has them: texts merged, notes left out. */
export function merged(events: Event[]): Event[] {
  const kept: Event[] = [];
  let text: { event: Event; delta: { text: string } } | undefined; // Of the answer message under way.
  for (const original of events) {
    const event = structuredClone(original);
    switch (event.event?.$case) {
      case "progress":
      case "queued":
        continue;
      case "started":
        event.event.value.replayed = true;
        break;
      case "textDelta":
        if (text) {
          text.event.index = event.index;
          text.delta.text += event.event.value.text;
          continue;
        }
        text = { event, delta: event.event.value };
        break;
      default:
        text = opens(event) ? undefined : text;
    }
    kept.push(event);
  }
  return kept.sort((a, b) => a.index - b.index);
}

/**
 * Tells events in lines that do not depend on how they were cut: the text of a message in one, its
 * data beside it. Notes may be left out.
 */
export function story(events: Event[]): string[] {
  const lines: string[] = [];
  let text = "";
  let message = 0;
  for (const event of events) {
    const step = event.event;
    if (step?.$case === "textDelta") {
      text += step.value.text;
    } else if (step && step.$case !== "progress" && step.$case !== "queued") {
      if (opens(event) || step.$case === "finished") {
        lines.push(...(text ? [`text ${message}: ${text}`] : []));
        text = "";
        message = event.index; // The same in every telling.
      }
      lines.push(`${event.index} ${step.$case}`);
    }
  }
  return text ? [...lines, `text ${message}: ${text}`] : lines;
}

/** The text of all messages together. */
export function textOf(events: Event[]): string {
  return events.map(({ event }) => (event?.$case === "textDelta" ? event.value.text : "")).join("");
}

// Steps of a turn, without their place in it.

function step<C extends Cases["$case"]>($case: C, value: object): Step {
  return { event: { $case, value } as NonNullable<Step["event"]> };
}

export const started = (id: string, replayed = false): Step =>
  step("started", { conversation: { id }, replayed });
export const text = (words: string): Step => step("textDelta", { text: words });
export const data = (type: string): Step => step("structuredData", { type });
export const call = (id: string): Step => step("toolCall", { id });
export const result = (callId: string): Step => step("toolResult", { callId });
export const next = (agent: string): Step => step("answerStarted", { agent });
export const note = (words: string): Step => step("progress", { text: words });
export const queued = (position: number): Step => step("queued", { position });
export const finished = (): Step => step("finished", { turn: { state: "TURN_STATE_COMPLETED" } });

/** A turn of few events. */
export const short = (): Event[] => numbered("t", started("c"), text("hi"), finished());

/** A turn with all kinds of events: data between text, notes, a tool's result, a handover. */
export const long = (): Event[] =>
  numbered(
    "t",
    ...[started("c"), text("Let "), note(""), text("me "), data("d"), text("see."), call("1"), result("1")],
    ...[next("a"), text("It is "), data("e"), text("größer"), text(" als ..."), next("b"), text("Done")],
    ...[text("."), finished()],
  );
