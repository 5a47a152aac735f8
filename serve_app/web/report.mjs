// The report of one answer, as elements.

import { colourOf, el, pairs } from "./dom.mjs";
import { seconds, usd, verdictWords } from "./words.mjs";

export function reportView(report) {
  const money = report.cost_notional ? "USD, notional" : "USD";
  return [
    el("dl", { class: "facts" }, ...pairs([
      ["policy", report.policy],
      ["plan", report.reason],
      ["winner", report.winner ?? "nobody"],
      ["TTFT", seconds(report.ttft_s)],
      ["TBT, p99", seconds(report.tbt_p99_s)],
      ["late tokens", `${report.delay_num} after a move`],
      ["QoE", report.qoe === null ? "– (reader unknown)" : report.qoe.toFixed(3)],
      ["cost", `${report.cost_exact ? "" : "≥ "}${usd(report.cost_usd)} ${money}`],
      ["tokens", `${report.prompt_tokens} prompt (${report.prompt_tokens_estimated} estimated), ${report.completion_tokens} answer`],
      report.key ? ["key", report.key] : null,
    ])),
    el("h3", { class: "unseen" }, "Legs"),
    el("ul", { class: "legs" }, ...report.legs.map(leg)),
    ...moves(report),
    ...verdicts(report),
  ];
}

function leg(one) {
  const facts = [
    `from ${seconds(one.start_s)}`,
    one.ttft_s === null ? "no token" : `first token after ${seconds(one.ttft_s)}`,
    one.tokens === 1 ? "1 token" : `${one.tokens} tokens`,
    `${one.cost_exact ? "" : "≥ "}${usd(one.cost_usd)} USD`,
  ];
  const late = one.imitation_late_s > 0.05 ? `, ${seconds(one.imitation_late_s)} behind what it imitates` : "";
  return el(
    "li",
    { class: `leg ${colourOf(one.endpoint)}` },
    el("span", {}, el("strong", {}, one.endpoint), ` ${one.reason}, ${one.outcome}${one.error ? ` (${one.error})` : ""}`),
    el("span", { class: "hint" }, facts.join(" · ")),
    one.imitates ? el("span", { class: "hint" }, `imitates ${one.imitates}${late}`) : null,
  );
}

function moves(report) {
  if (!report.migrations.length) return [];
  const lines = report.migrations.map((move) => {
    const gap = move.gap_s === null ? "" : `, gap ${seconds(move.gap_s)}`;
    return el("li", {}, `${move.from} → ${move.to} at token ${move.at_token} (${move.reason}, ${move.mode}): ${move.outcome}${gap}`);
  });
  return [el("h3", { class: "hint" }, "Handoffs"), el("ul", { class: "legs hint" }, ...lines)];
}

function verdicts(report) {
  if (!report.verdicts.length) return [];
  const lines = report.verdicts.map((one) => {
    const weighed = one.saving_usd === null ? "" : `: would save ${usd(one.saving_usd)} for ${usd(one.overhead_usd)} USD`;
    return el("li", {}, `to ${one.target}: ${verdictWords(one.verdict)}${weighed}`);
  });
  return [el("h3", { class: "hint" }, "Last judgement on each move"), el("ul", { class: "legs hint" }, ...lines)];
}

/** The figures over the answer, while it comes and after. */
export function figures(run, shown, until, report, running) {
  const moved = run.handoffs.filter((one) => one.outcome === "completed" && one.reason !== "resume");
  const speed = run.firstToken && until > run.firstToken.at ? (shown - 1) / (until - run.firstToken.at) : null;
  return pairs([
    ["first token", run.firstToken ? seconds(run.firstToken.at) : running ? `${until.toFixed(1)} s …` : "–"],
    ["winner", run.firstToken?.endpoint ?? "–"],
    ["moves", moved.length ? `${moved.length}, at ${moved.map((one) => one.atToken).join(", ")}` : "0"],
    ["tokens", String(shown)],
    ["tokens/s", speed && speed > 0 ? speed.toFixed(1) : "–"],
    [report?.cost_notional === false ? "USD" : "USD, notional", report ? usd(report.cost_usd) : "–"],
  ]);
}
