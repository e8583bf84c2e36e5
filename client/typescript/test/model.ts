import { Buffer } from "node:buffer";

import { type TurnEvent as Event, TurnEvent } from "@parleyhq/client";

// The events of turns, as a server sends them.

type Cases = NonNullable<Event["event"]>;
type Step = Parameters<typeof TurnEvent.fromPartial>[0];

/** Returns the single events of a turn, with its id, indexes and offsets. */
export function numbered(turnId: string, ...steps: Step[]): Event[] {
  let offset = 0;
  return steps.map((step, i) => {
    const event = TurnEvent.fromPartial({ ...step, turnId, index: i + 1 });
    if (beginsMessage(event)) {
      offset = 0;
    } else if (event.event?.$case === "textDelta") {
      event.event.value.offset = offset;
      offset += Buffer.byteLength(event.event.value.text);
    }
    return event;
  });
}

/** Reports whether an event begins another answer message. */
function beginsMessage({ event }: Event): boolean {
  return event?.$case === "answerStarted" || event?.$case === "toolResult";
}

/** Returns events as the server has them after the turn: texts are merged, notes are left out. */
export function merged(events: Event[]): Event[] {
  const kept: Event[] = [];
  let text: { event: Event; delta: { text: string } } | undefined; // Of the current answer message.
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
        text = beginsMessage(event) ? undefined : text;
    }
    kept.push(event);
  }
  return kept.sort((a, b) => a.index - b.index);
}

/**
 * Describes events in lines that do not depend on how the text was split: one line for the text of a
 * message, one for each other event. Notes are left out.
 */
export function describe(events: Event[]): string[] {
  const lines: string[] = [];
  let text = "";
  let message = 0;
  for (const event of events) {
    const step = event.event;
    if (step?.$case === "textDelta") {
      text += step.value.text;
    } else if (step && step.$case !== "progress" && step.$case !== "queued") {
      if (beginsMessage(event) || step.$case === "finished") {
        lines.push(...(text ? [`text ${message}: ${text}`] : []));
        text = "";
        message = event.index; // The same in every description.
      }
      lines.push(`${event.index} ${step.$case}`);
    }
  }
  return text ? [...lines, `text ${message}: ${text}`] : lines;
}

/** Returns the text of all messages. */
export function textOf(events: Event[]): string {
  return events.map(({ event }) => (event?.$case === "textDelta" ? event.value.text : "")).join("");
}

// Events of a turn, without their index.

function step<C extends Cases["$case"]>($case: C, value: object): Step {
  return { event: { $case, value } as NonNullable<Step["event"]> };
}

export const started = (id: string, replayed = false): Step =>
  step("started", { conversation: { id }, replayed });
export const text = (content: string): Step => step("textDelta", { text: content });
export const data = (type: string): Step => step("structuredData", { type });
export const call = (id: string): Step => step("toolCall", { id });
export const result = (callId: string): Step => step("toolResult", { callId });
export const next = (agent: string): Step => step("answerStarted", { agent });
export const note = (content: string): Step => step("progress", { text: content });
export const queued = (position: number): Step => step("queued", { position });
export const finished = (): Step => step("finished", { turn: { state: "TURN_STATE_COMPLETED" } });

/** Returns a turn with few events. */
export const short = (): Event[] => numbered("t", started("c"), text("hi"), finished());

/** Returns a turn with all kinds of events: data between text, notes, a tool result, a handover. */
export const long = (): Event[] =>
  numbered(
    "t",
    ...[started("c"), text("Let "), note(""), text("me "), data("d"), text("see."), call("1"), result("1")],
    ...[next("a"), text("It is "), data("e"), text("größer"), text(" als ..."), next("b"), text("Done")],
    ...[text("."), finished()],
  );
