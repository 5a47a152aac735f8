// What is said in words: numbers, events, verdicts and pieces of an answer for those who listen. No DOM.

export const seconds = (value) => (value === null || value === undefined ? "–" : `${value.toFixed(2)} s`);

export const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;

/** USD with three digits that count, never in exponents. */
export function usd(value) {
  if (value === null || value === undefined) return "–";
  if (value === 0) return "0";
  const digits = Math.min(12, Math.max(2, 2 - Math.floor(Math.log10(Math.abs(value)))));
  return value.toFixed(digits);
}

const STAYED = {
  off: "planned moves are off",
  reader_unknown: "nobody said how fast the text is read",
  cannot_continue: "it cannot continue a text that another endpoint began",
  context: "prompt and answer do not fit its context",
  not_cheaper: "its tokens are not cheaper",
  saving: "the rest of the answer would save less than the move costs",
  open_character: "the text ends inside a character",
  buffer: "too few unread tokens to hide the move",
  busy: "all its slots are taken",
  limit: "the stream has moved as often as it may",
  unhealthy: "it failed recently",
  go: "a move pays off and can be hidden",
};

export const verdictWords = (verdict) => STAYED[verdict] ?? verdict;

const BECAUSE = {
  dispatch: "the plan starts it at once",
  hedge: "no token came within the wait",
  retry: "another start after a failure or silence",
  migration: "to go on for less money",
  rescue: "the owner failed or is silent",
  resume: "the reader has caught up",
};

const ENDED = {
  completed: "wrote the end of the answer",
  handed_over: "another leg carried on from its tokens",
  lost: "another was first",
  parked: "another was first; its prefill is kept",
  paused: "paused: the reader is too far behind",
  abandoned: "abandoned: the other side went on",
  cancelled: "stopped with the stream",
  empty: "ended without a token",
  failed: "failed",
};

/** One line on an event; null for samples, and for verdicts that changed nothing. ``run``: before the event. */
export function eventWords(event, run) {
  const endpoint = run.legs.find((leg) => leg.attempt === event.attempt)?.endpoint;
  switch (event.type) {
    case "plan":
      return `Plan of ${event.policy}: ${event.reason}`;
    case "leg":
      return `${event.endpoint} is called: ${BECAUSE[event.reason] ?? event.reason}`;
    case "admitted":
      return event.queued_s > 0.01 ? `${endpoint} gives it a slot after ${seconds(event.queued_s)} in its queue` : null;
    case "first_token":
      return `${endpoint}: first token${event.won ? ", and it wins" : ""}`;
    case "leg_over":
      return `${endpoint}: ${ENDED[event.outcome] ?? event.outcome}${event.error ? ` (${event.error})` : ""}`;
    case "handoff":
      return `Handoff from ${event.source} to ${event.target} at token ${event.at_token} (${event.reason}, ${event.mode})`;
    case "handoff_over":
      return `Handoff to ${event.target}: ${event.outcome}${event.gap_s === null ? "" : `, gap ${seconds(event.gap_s)}`}`;
    case "verdict": {
      if (run.verdicts.get(event.target)?.verdict === event.verdict) return null;
      const needed = event.buffer_needed === null ? "" : ` (lead ${event.lead}, B ${event.buffer_needed.toFixed(1)})`;
      return `Move to ${event.target}? ${verdictWords(event.verdict)}${needed}`;
    }
    default:
      return null;
  }
}

/** What a listener hears of an event: the turns of the story alone. */
export function spoken(event, run) {
  if (event.type === "first_token" && event.won) return eventWords(event, run);
  if (event.type === "handoff_over" && event.outcome === "completed") return `${event.target} carries on.`;
  return null;
}

const SHORTEST = 60;

/** Cuts a text at its last end of a sentence, or of a line: [to be said now, to be kept]. */
export function sentences(text, shortest = SHORTEST) {
  let cut = -1;
  for (const found of text.matchAll(/[.!?…。！？][)"'”»]*(?=\s)|\n/g)) cut = found.index + found[0].length;
  if (cut < shortest && text.length > 6 * shortest) cut = text.lastIndexOf(" ");
  return cut < shortest ? ["", text] : [text.slice(0, cut).trim(), text.slice(cut)];
}
