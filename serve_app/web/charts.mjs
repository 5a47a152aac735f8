// The live view's charts: one axis system, curves and marks.

import { colourOf, el, svg } from "./dom.mjs";
import { ticks } from "./run.mjs";

const PAD = { left: 40, right: 12, top: 22, bottom: 34 };

/** Axes over [0, xMost] and [0, yMost]; returns the elements and both scales. */
function axes(canvas, height, xMost, yMost, xName, yName, yWords) {
  const width = Math.max(280, canvas.clientWidth || 640);
  const x = (value) => PAD.left + (Math.min(value, xMost) / xMost) * (width - PAD.left - PAD.right);
  const y = (value) => height - PAD.bottom - (Math.min(value, yMost) / yMost) * (height - PAD.top - PAD.bottom);
  canvas.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const parts = [
    ...ticks(xMost, width < 480 ? 4 : 8).map((at) => svg("text", { class: "small faint", x: x(at), y: height - PAD.bottom + 14, "text-anchor": "middle" }, String(at))),
    ...ticks(yMost, 4).flatMap((at) => [
      svg("line", { class: "rule", x1: PAD.left, x2: width - PAD.right, y1: y(at), y2: y(at) }),
      svg("text", { class: "small faint", x: PAD.left - 6, y: y(at) + 4, "text-anchor": "end" }, yWords(at)),
    ]),
    svg("text", { class: "small faint", x: width - PAD.right, y: height - 4, "text-anchor": "end" }, xName),
    svg("text", { class: "small faint", x: 0, y: 11 }, yName),
  ];
  return { parts, x, y, width };
}

const corners = (points) => points.map(([x, y]) => `${x.toFixed(1)},${y.toFixed(1)}`).join(" L");

/** F of each endpoint's TTFT, and the waits after which another side joins: [{endpoint, points}], [{endpoint, wait, words}]. */
export function drawDistributions(canvas, endpoints, waits) {
  const longest = endpoints.map(({ points }) => points[Math.max(0, Math.ceil(points.length * 0.97) - 1)] ?? 0);
  const most = Math.max(0.1, ...longest, ...waits.map(({ wait }) => wait * 1.05));
  const { parts, x, y } = axes(canvas, 240, most, 1, "seconds", "answered by then", (share) => `${Math.round(100 * share)} %`);
  for (const { endpoint, points } of endpoints) {
    const steps = [[x(0), y(0)]];
    points.forEach((at, rank) => steps.push([x(at), y(rank / points.length)], [x(at), y((rank + 1) / points.length)]));
    parts.push(svg("path", { class: `curve ${colourOf(endpoint)}`, d: `M${corners(steps)}` }));
  }
  waits.forEach(({ endpoint, wait, words }, rank) => {
    parts.push(
      svg("line", { class: `wait ${colourOf(endpoint)}`, x1: x(wait), x2: x(wait), y1: y(1) - 4, y2: y(0) }),
      svg("text", { class: "small", x: x(wait) + 4, y: y(0) - 8 - 14 * (rank % 3) }, words),
    );
  });
  canvas.replaceChildren(...parts);
}

/** When a side starts, by prompt length: [{endpoint, starts: [[tokens, seconds or null]]}]. */
export function drawPlans(canvas, sides) {
  const known = sides.flatMap(({ starts }) => starts.filter(([, wait]) => wait !== null));
  const longest = Math.max(10, ...sides.flatMap(({ starts }) => starts.map(([tokens]) => tokens)));
  const most = Math.max(0.5, ...known.map(([, wait]) => wait)) * 1.2;
  const { parts, x, y } = axes(canvas, 200, longest, most, "tokens of the prompt", "starts after, s", String);
  for (const { endpoint, starts } of sides) {
    // A length between two waits like the longer one.
    let line = [];
    let left = 0;
    const flush = () => {
      if (line.length) parts.push(svg("path", { class: `curve ${colourOf(endpoint)}`, d: `M${corners(line)}` }));
      line = [];
    };
    for (const [tokens, wait] of starts) {
      if (wait === null) flush();
      else line.push([x(left), y(wait)], [x(tokens), y(wait)]);
      left = tokens;
    }
    flush();
  }
  canvas.replaceChildren(...parts);
}

/** A share against what is allowed, both from 0 to 1. */
export function gauge(share, allowed, words) {
  const mark = el("span", { class: "mark" });
  mark.style.left = percent(allowed);
  const meter = { class: "track", role: "meter", "aria-valuemin": 0, "aria-valuemax": 1, "aria-valuenow": share.toFixed(3), "aria-label": words };
  return el("div", meter, filled(share), mark);
}

/** Horizontal bars of [name, amount, its words]. */
export function bars(rows) {
  const most = Math.max(Number.MIN_VALUE, ...rows.map(([, amount]) => amount));
  const lines = rows.map(([name, amount, words]) =>
    el("li", {}, el("span", { class: "row spread" }, el("span", {}, name), el("span", {}, words)), el("div", { class: "track thin" }, filled(amount / most))),
  );
  return el("ul", { class: "bars" }, ...lines);
}

function filled(share) {
  const bar = el("span", { class: "filled" });
  bar.style.width = percent(Math.min(1, share));
  return bar;
}

const percent = (share) => `${(100 * share).toFixed(2)}%`;
