// Draws a run: a lane for each endpoint, the handoffs between them, and the reader's lead against the buffer B.

import { colourOf, svg } from "./dom.mjs";
import { lanes, lastMoment, leadLine, needLines, ticks, timeScale } from "./run.mjs";
import { seconds } from "./words.mjs";

const LANE = 50;
const BAR = 18;
const LABEL = 20;
const LEAD = 92;
const AXIS = 22;
const PAD = { left: 34, right: 14 };
const SHORTEST_SPAN = 3;
const ROOM = 56;
const ASIDE = 120;

export function drawTimeline(canvas, run, until) {
  const rows = lanes(run);
  const width = Math.max(280, canvas.clientWidth || 640);
  const hasLead = Boolean(run.plan?.consumption_rate);
  const lanesEnd = Math.max(1, rows.length) * LANE;
  const leadTop = lanesEnd + 24;
  const bottom = hasLead ? leadTop + LEAD : lanesEnd + 6;
  const waits = (run.plan?.launches ?? []).map((launch) => launch.delay_s);
  const span = Math.max(SHORTEST_SPAN, until * 1.04, ...(run.firstToken ? [] : waits.map((wait) => wait * 1.1)));
  const scale = timeScale(run, span);
  const x = (at) => PAD.left + scale.at(at) * (width - PAD.left - PAD.right);

  canvas.setAttribute("viewBox", `0 0 ${width} ${bottom + AXIS}`);
  const place = new Map(rows.map((row, rank) => [row.endpoint, rank * LANE + LABEL]));
  canvas.replaceChildren(
    ...axis(x, scale.bend, span, bottom, width),
    ...windows(run, x, bottom, until),
    ...rows.map((row, rank) => lane(row, rank, x, until, run)),
    ...handoffs(run, x, place, width, bottom),
    ...(hasLead ? lead(run, x, leadTop, width, until) : []),
  );
}

function axis(x, bend, span, bottom, width) {
  const many = width < 480 ? 4 : 8;
  const near = ticks(bend ?? span, bend ? many - 2 : many).filter((at) => !bend || x(at) < x(bend) - 30);
  const far = bend ? ticks(span, 3).filter((at) => x(at) > x(bend) + 24) : [];
  const marks = [...near, ...far].map((at) => [
    svg("line", { class: "rule", x1: x(at), x2: x(at), y1: LABEL - 4, y2: bottom }),
    svg("text", { class: "small faint", x: x(at), y: bottom + 14, "text-anchor": "middle" }, `${at} s`),
  ]);
  const fold = bend ? [svg("text", { class: "small faint", x: x(bend), y: bottom + 14, "text-anchor": "middle" }, "//")] : [];
  return [...marks.flat(), ...fold, svg("line", { class: "base", x1: PAD.left, x2: width - PAD.right, y1: bottom, y2: bottom })];
}

/** While a handoff is undecided. */
function windows(run, x, bottom, until) {
  return run.handoffs.map((handoff) => {
    const from = x(handoff.start);
    const end = x(handoff.end ?? until);
    return svg("rect", { class: "window", x: from, y: LABEL - 4, width: Math.max(0, end - from), height: bottom - LABEL + 4 });
  });
}

function lane(row, rank, x, until, run) {
  const top = rank * LANE + LABEL;
  const group = svg("g", { class: colourOf(row.endpoint) });
  const kind = row.kind === row.endpoint ? "" : ` ${row.kind}`;
  const note = row.imitates ? ` imitates ${row.imitates}` : kind;
  group.append(
    svg("text", { x: 0, y: top - 7 }, svg("tspan", { class: "own", "font-weight": 600 }, row.endpoint), svg("tspan", { class: "small faint" }, note)),
    svg("rect", { class: "track", x: x(0), y: top, width: x(Infinity) - x(0), height: BAR, rx: 3 }),
  );
  for (const launch of row.due) group.append(...planned(launch, x, top, run));
  for (const leg of row.legs) group.append(...bars(leg, x, top, until, run));
  return group;
}

/** A launch that has not begun: it joins then, unless a token comes before. */
function planned(launch, x, top, run) {
  if (run.firstToken && run.firstToken.at < launch.delay_s) {
    return [svg("text", { class: "small faint", x: x(0) + 6, y: top + 13 }, `not needed: would have joined at ${seconds(launch.delay_s)}`)];
  }
  const at = x(launch.delay_s);
  return [
    svg("line", { class: "planned", x1: at, x2: at, y1: top - 3, y2: top + BAR + 3 }),
    svg("text", { class: "small faint", x: at - 6, y: top + 13, "text-anchor": "end" }, `joins at ${seconds(launch.delay_s)}`),
  ];
}

function bars(leg, x, top, until, run) {
  const end = leg.end ?? until;
  const admitted = Math.min(leg.admitted ?? end, end);
  const first = Math.min(leg.first ?? end, end);
  const parts = [];
  const block = (kind, from, to) =>
    to > from && parts.push(svg("rect", { class: kind, x: x(from), y: top, width: Math.max(1.5, x(to) - x(from)), height: BAR, rx: 3 }));
  if (admitted > leg.start) {
    parts.push(svg("line", { class: "queue", x1: x(leg.start), x2: x(admitted), y1: top + BAR / 2, y2: top + BAR / 2 }));
  }
  block("prefill", admitted, first);
  if (leg.first !== null) {
    // What a source writes while it stands by is shown only if the move is given up.
    const standby = run.handoffs.findLast((one) => one.source === leg.endpoint && one.start >= leg.first && one.start < end);
    const until_ = standby && standby.mode === "overlap" ? Math.min(end, standby.start) : end;
    block("decode", first, until_);
    if (until_ < end) block(standby.outcome === "completed" || standby.outcome === "pending" ? "standby" : "decode", until_, end);
    if (leg.won) parts.push(svg("circle", { class: "end", cx: x(leg.first), cy: top + BAR / 2, r: 5 }));
  }
  parts.push(svg("title", {}, `${leg.endpoint}: ${leg.reason}, ${leg.outcome}`));
  const word = SIGNS[leg.outcome];
  if (word && x(end) - x(leg.start) > ROOM) {
    parts.push(svg("text", { class: "small", x: x(end) - 6, y: top + 13, "text-anchor": "end" }, word));
  }
  return parts;
}

const SIGNS = { lost: "lost", failed: "failed", parked: "parked", paused: "paused", abandoned: "gave up", empty: "empty" };

function handoffs(run, x, place, width, bottom) {
  return run.handoffs.flatMap((handoff) => {
    const from = place.get(handoff.source);
    const to = place.get(handoff.target);
    if (from === undefined || to === undefined || from === to) return [];
    const begin = x(handoff.start);
    const parts = [svg("line", { class: "trigger", x1: begin, x2: begin, y1: LABEL - 4, y2: bottom })];
    if (handoff.outcome === "completed") {
      const at = x(handoff.end);
      const down = to > from;
      const [y1, y2] = down ? [from + BAR, to - 1] : [from, to + BAR + 1];
      const tip = down ? -7 : 7;
      parts.push(
        svg("path", { class: "move", d: `M${at},${y1} L${at},${y2} m-4,${tip} l4,${-tip} l4,${tip}` }),
        aside(at, from, width, `→ ${handoff.target}, token ${handoff.atToken}`),
      );
    }
    return parts;
  });
}

/** Beside an arrow: where its source has ended, or over the lane where there is no room. */
function aside(at, top, width, words) {
  if (at + ASIDE < width) return svg("text", { class: "small", x: at + 7, y: top + 13 }, words);
  return svg("text", { class: "small", x: at - 7, y: top - 7, "text-anchor": "end" }, words);
}

function lead(run, x, top, width, until) {
  const line = leadLine(run, until);
  const needs = needLines(run, until);
  const most = ceiling(line, needs);
  const y = (tokens) => top + LEAD - (Math.min(tokens, most) / most) * LEAD;
  const marks = ticks(most, 3).filter((tokens) => tokens <= most);
  const parts = marks.map((tokens) => svg("text", { class: "small faint", x: PAD.left - 6, y: y(tokens) + 4, "text-anchor": "end" }, String(tokens)));
  parts.push(svg("text", { class: "small faint", x: 0, y: top - 9 }, "unread tokens (lead)"));
  if (line.length) {
    const corners = line.map(([at, tokens]) => `${x(at).toFixed(1)},${y(tokens).toFixed(1)}`);
    const [first, last] = [x(line[0][0]), x(line.at(-1)[0])];
    parts.push(
      svg("path", { class: "lead", d: `M${first.toFixed(1)},${y(0)} L${corners.join(" L")} L${last.toFixed(1)},${y(0)} Z` }),
      svg("text", { class: "small", x: Math.min(width - PAD.right, last) - 5, y: top + LEAD - 6, "text-anchor": "end" }, `lead ${Math.round(line.at(-1)[1])}`),
    );
  }
  for (const need of needs) {
    const steps = need.map(([at, tokens]) => `${x(at).toFixed(1)},${y(tokens).toFixed(1)}`);
    const [at, tokens] = need.at(-1);
    parts.push(
      svg("path", { class: "need", d: `M${steps.join(" L")}` }),
      svg("text", { class: "small", x: Math.min(width - PAD.right - 8, x(at) + 4), y: y(tokens) + 4 }, "B"),
    );
  }
  for (const handoff of run.handoffs.filter((one) => one.reason === "migration")) {
    const judged = run.needs.findLast((need) => need.at <= handoff.start && need.tokens !== null);
    const told = run.samples.findLast((sample) => sample.at <= handoff.start);
    if (!judged || !told) continue;
    const words = `lead ${told.lead} ≥ B ${judged.tokens.toFixed(1)}: move`;
    const left = x(handoff.start) > 170;
    parts.push(
      svg("circle", { class: "spot", cx: x(handoff.start), cy: y(told.lead), r: 4 }),
      svg("text", { class: "small", x: x(handoff.start) + (left ? -9 : 9), y: y(told.lead) - 7, "text-anchor": left ? "end" : "start" }, words),
    );
  }
  return parts;
}

/** Tokens at the chart's top: high enough for B, and not so high that B could not be seen. */
function ceiling(line, needs) {
  const needed = Math.max(0, ...needs.flat().map(([, tokens]) => tokens));
  const highest = Math.max(4, needed, ...line.map(([, tokens]) => tokens)) * 1.15;
  return needed ? Math.min(highest, Math.max(12, 4 * needed)) : highest;
}

/** The whole of a run that is over. */
export const drawWhole = (canvas, run) => drawTimeline(canvas, run, lastMoment(run));
