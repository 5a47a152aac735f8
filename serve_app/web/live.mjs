// The live view: a snapshot of one router replica, once a second while somebody looks.

import { call, keepKey, keyOf, Refused } from "./api.mjs";
import { bars, drawDistributions, drawPlans, gauge } from "./charts.mjs";
import { byId, colourOf, el, pairs, table } from "./dom.mjs";
import { percent, seconds, usd } from "./words.mjs";

const PERIOD = 1000;

export class Live {
  #timer = 0;
  #looking = false;
  #edited = false;
  #alert;

  constructor(alert) {
    this.#alert = alert;
    byId("operator").addEventListener("submit", (event) => {
      event.preventDefault();
      keepKey("operator", byId("operator-key").value.trim());
      this.#look();
    });
    byId("policy").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#apply();
    });
    byId("policy").addEventListener("input", () => {
      this.#edited = true;
      byId("policy-budget-shown").value = byId("policy-budget").value;
    });
    document.addEventListener("visibilitychange", () => this.#looking && !document.hidden && this.#look());
  }

  show() {
    this.#looking = true;
    this.#look();
  }

  hide() {
    this.#looking = false;
    clearTimeout(this.#timer);
  }

  async #look() {
    clearTimeout(this.#timer);
    if (!this.#looking || document.hidden) return;
    try {
      const snapshot = await (await call("disco/live", { key: keyOf("operator") })).json();
      if (!this.#looking) return;
      this.#draw(snapshot);
      this.#alert(null);
    } catch (error) {
      this.#complain(error);
      if (error.status) return;
    }
    this.#timer = setTimeout(() => this.#look(), PERIOD);
  }

  #complain(error) {
    if (!(error instanceof Refused)) throw error;
    const wantsKey = error.status === 401 || error.code === "access_denied";
    byId("operator").hidden = !wantsKey;
    if (error.status) byId("live-cards").hidden = true;
    if (error.status !== 401 || keyOf("operator")) this.#alert(error.message);
  }

  #draw(snapshot) {
    byId("operator").hidden = true;
    byId("live-cards").hidden = false;
    const others = snapshot.replicas > 1 ? `; ${snapshot.replicas} replicas run, and each look may show another` : "";
    byId("live-note").textContent = `Router replica ${snapshot.replica.slice(0, 6)}${others}`;
    this.#budget(snapshot);
    this.#cost(snapshot);
    this.#distributions(snapshot);
    this.#tables(snapshot);
    if (!this.#edited) this.#policy(snapshot);
  }

  #budget({ budget, policy, streams_over: over, moves }) {
    const what = budget.counts_decode ? "tokens" : "prompt tokens";
    const side = budget.constrained === "cloud" ? "the cloud" : "devices";
    const entries = [
      ["spent", `${budget.spent_tokens} of ${budget.admitted_tokens} ${what}`],
      ["allowed, b", percent(budget.share)],
      ["balance", `${budget.balance_tokens.toFixed(0)} tokens`],
      ["policy", policy.policy.name],
      ["answers so far", String(over)],
      ["moves so far", String(moves)],
    ];
    byId("budget").replaceChildren(
      el("p", { class: "big" }, budget.constrained ? percent(budget.spent_share) : "–"),
      el("p", { class: "hint" }, budget.constrained ? `of all ${what} went to ${side}, the constrained side` : "One kind of endpoint only: there is nothing to budget."),
      gauge(budget.spent_share, budget.share, "Share spent"),
      el("dl", { class: "facts" }, ...pairs(entries)),
    );
  }

  #cost({ cost, notional }) {
    const { compared } = cost;
    const money = notional ? "USD, notional: nobody is billed" : "USD";
    const sides = [
      ["devices only", compared.device_only_usd],
      ["the cloud only", compared.cloud_only_usd],
    ].sort(([, one], [, other]) => other - one);
    byId("cost").replaceChildren(
      ...sides.map(([side, alone], rank) => el("p", { class: rank ? "hint" : "big" }, against(compared.spent_usd, alone, side))),
      el("p", { class: "hint" }, `over ${compared.answers} answers that either side could have given`),
      bars([["DiSCo", compared.spent_usd], ...sides].map(([name, amount]) => [name, amount, `${usd(amount)} USD`])),
      el("p", { class: "hint" }, `One side alone: the sum of c_p·l + c_d·n over these answers, at the cheapest endpoint of that kind; l prompt and n answer tokens. DiSCo: all legs, lost and cut ones included. ${money}. All streams so far: ${usd(cost.spent_usd)} USD.`),
    );
  }

  #distributions({ endpoints, plans }) {
    const waits = plans.slice(0, 1).flatMap((plan) => hedges(plan));
    drawDistributions(byId("ttft"), endpoints.map((one) => ({ endpoint: one.endpoint, points: one.ttft_s })), waits);
    const guess = endpoints.filter((one) => one.ttfts_seen < 30).map((one) => `${one.endpoint} ${one.ttfts_seen}`);
    byId("ttft-caption").replaceChildren(
      ...endpoints.map((one) => el("span", { class: `dot ${colourOf(one.endpoint)}` }, `${one.endpoint} `)),
      `Share of first tokens that came within so many seconds of a leg's start. `,
      waits.length ? "Dashed: the wait w(l) after which the other side joins, for the shortest, the middle and the longest prompts. " : "",
      guess.length ? `Fewer than 30 seen, the rest is a prior: ${guess.join(", ")}.` : "",
    );
    const [plan] = plans;
    byId("plans-title").parentElement.hidden = !plan;
    if (!plan) return;
    drawPlans(byId("plans"), sides(plan));
    byId("plans-caption").replaceChildren(
      ...sides(plan).map((side) => el("span", { class: `dot ${colourOf(side.endpoint)}` }, `${side.endpoint} `)),
      `When each side starts under ${plan.policy}, by ${plan.rule}; no line: not at all. ${races(plan)}`,
    );
  }

  #tables({ endpoints, streams, streams_running: running }) {
    table(
      byId("endpoints"),
      [["endpoint"], ["kind"], ["state"], ["legs / slots", true], ["queue", true], ["first tokens", true], ["TTFT p50", true], ["TTFT p95", true], ["tokens/s", true], ["cost, USD", true]],
      endpoints.map((one) => [
        el("span", { class: `dot ${colourOf(one.endpoint)}` }, one.endpoint),
        one.kind,
        one.ready ? (one.breaker === "closed" ? "ready" : `breaker ${one.breaker.replace("_", " ")}`) : "not ready",
        `${one.legs_running} / ${one.slots}`,
        seconds(one.queue_s),
        String(one.wins),
        seconds(quantile(one.ttft_s, 0.5)),
        seconds(quantile(one.ttft_s, 0.95)),
        one.decode_rate.toFixed(1),
        usd(one.cost_usd),
      ]),
    );
    const rows = streams.map((one) => [
      one.model,
      `${one.age_s.toFixed(1)} s`,
      one.phase,
      one.owner ? el("span", { class: `dot ${colourOf(one.owner)}` }, one.owner) : "–",
      String(one.accepted),
      String(one.lead),
      String(one.legs),
      String(one.moves),
    ]);
    table(byId("streams"), [["model"], ["age", true], ["phase"], ["owner"], ["tokens", true], ["lead", true], ["legs", true], ["moves", true]], rows);
    byId("streams-title").textContent = running > streams.length ? `Running streams: the newest ${streams.length} of ${running}` : `Running streams: ${running}`;
  }

  #policy({ policy, policy_names: names, replicas }) {
    byId("policy-note").textContent =
      replicas > 1
        ? "With several router replicas the policy is changed for all of them by deploying a changed user_config."
        : "Holds for requests that come from now on, until the service restarts or a changed user_config is deployed.";
    byId("policy-apply").disabled = replicas > 1;
    byId("policy-name").replaceChildren(...names.map((name) => el("option", { selected: name === policy.policy.name }, name)));
    byId("policy-budget").value = byId("policy-budget-shown").value = policy.policy.budget;
    byId("policy-migration").value = policy.migration.mode;
    byId("policy-rate").value = policy.reader.consumption_rate ?? "";
    byId("policy-delivery").value = policy.reader.delivery;
  }

  async #apply() {
    const rate = byId("policy-rate").value;
    const body = {
      policy: { name: byId("policy-name").value, budget: Number(byId("policy-budget").value) },
      migration: { mode: byId("policy-migration").value },
      reader: { consumption_rate: rate === "" ? null : Number(rate), delivery: byId("policy-delivery").value },
    };
    try {
      await call("disco/policy", { key: keyOf("operator"), method: "PATCH", body });
      this.#edited = false;
      byId("policy-state").textContent = "In force for new requests.";
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      byId("policy-state").textContent = `Not applied: ${error.message}`;
    }
  }
}

function against(spent, alone, side) {
  if (!(alone > 0)) return `nothing to compare with ${side} yet`;
  const share = spent / alone - 1;
  return `${percent(Math.abs(share))} ${share <= 0 ? "less" : "more"} than ${side}`;
}

const quantile = (points, share) => points[Math.min(points.length - 1, Math.floor(share * points.length))] ?? null;

const sides = (plan) => [
  { endpoint: plan.cloud, starts: plan.starts.map((one) => [one.prompt_tokens, one.cloud_s]) },
  { endpoint: plan.device, starts: plan.starts.map((one) => [one.prompt_tokens, one.device_s]) },
];

function races(plan) {
  const last = plan.starts.findLast((one) => one.cloud_s === 0 && one.device_s === 0);
  return last ? `Both start at once for prompts of up to ${last.prompt_tokens} tokens, at most.` : "";
}

/** The side that joins later, with its wait for the shortest, the middle and the longest prompts; each wait once. */
function hedges(plan) {
  const { starts } = plan;
  const chosen = [starts[0], starts[Math.floor(starts.length / 2)], starts.at(-1)];
  const found = new Map();
  for (const one of chosen) {
    const late = one.device_s > 0 ? [plan.device, one.device_s] : one.cloud_s > 0 ? [plan.cloud, one.cloud_s] : null;
    if (late && !found.has(late[1])) found.set(late[1], { endpoint: late[0], wait: late[1], words: `${late[0]}, l ≤ ${one.prompt_tokens}: ${seconds(late[1])}` });
  }
  return [...found.values()];
}
