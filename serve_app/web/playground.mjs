// The playground: one prompt to the service, and what becomes of it.

import { Answer } from "./answer.mjs";
import { call, keepKey, keyOf, Refused } from "./api.mjs";
import { byId, colourOf, el } from "./dom.mjs";
import { figures, reportView } from "./report.mjs";
import { newRun, tell } from "./run.mjs";
import { eventsOf } from "./sse.mjs";
import { drawTimeline, drawWhole } from "./timeline.mjs";
import { eventWords, seconds, sentences, spoken } from "./words.mjs";

const FRAME = 80;
const STILL_FRAME = 500;
const CUT = "The connection broke before the answer was complete.";
const calm = matchMedia("(prefers-reduced-motion: reduce)");

export class Playground {
  #answer = new Answer(byId("answer"));
  #run = newRun();
  #report = null;
  #shown = 0;
  #pending = "";
  #began = 0;
  #stop = null;
  #alert;

  constructor(alert) {
    this.#alert = alert;
    byId("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      if (!this.#stop) this.#ask();
    });
    byId("wishes").addEventListener("submit", (event) => event.preventDefault());
    byId("prompt").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      byId("ask").requestSubmit();
    });
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.#stop?.abort());
    byId("stop").addEventListener("click", () => this.#stop?.abort());
    byId("reader").addEventListener("change", () => (byId("rate-field").hidden = byId("reader").value !== "chosen"));
    byId("rate").addEventListener("input", () => (byId("rate-shown").value = byId("rate").value));
    byId("key").value = keyOf("key");
    byId("key").addEventListener("change", () => {
      keepKey("key", byId("key").value.trim());
      this.models();
    });
    byId("copy").addEventListener("click", () => this.#copy());
    new ResizeObserver(() => this.#stop || drawWhole(byId("timeline"), this.#run)).observe(byId("timeline").parentElement);
    this.#figures(0);
  }

  /** Fills the list of models; says so where that needs a key. */
  async models() {
    try {
      const { data } = await (await call("v1/models", { key: keyOf("key") })).json();
      byId("model").replaceChildren(...data.map(({ id }) => el("option", {}, id)));
      this.#alert(null);
    } catch (error) {
      this.#complain(error);
    }
  }

  #wishes() {
    const disco = { report: true, events: true, migrate: byId("migrate").checked };
    const reader = byId("reader").value;
    if (reader !== "default") disco.consumption_rate = reader === "chosen" ? Number(byId("rate").value) : null;
    for (const name of ["delivery", "pin"]) if (byId(name).value) disco[name] = byId(name).value;
    return {
      model: byId("model").value,
      messages: [{ role: "user", content: byId("prompt").value }],
      max_tokens: Number(byId("max-tokens").value) || undefined,
      temperature: byId("temperature").value === "" ? undefined : Number(byId("temperature").value),
      stream: true,
      disco,
    };
  }

  async #ask() {
    this.#begin();
    let complaint = "";
    try {
      const response = await call("v1/chat/completions", { key: keyOf("key"), method: "POST", body: this.#wishes(), signal: this.#stop.signal });
      complaint = await this.#read(response);
    } catch (error) {
      complaint = error.name === "AbortError" ? "stopped" : this.#complain(broken(error));
    }
    this.#finish(complaint);
  }

  #begin() {
    this.#alert(null);
    this.#stop = new AbortController();
    this.#run = newRun();
    this.#report = null;
    this.#shown = 0;
    this.#pending = "";
    this.#began = performance.now();
    this.#answer.clear();
    byId("log").replaceChildren();
    byId("legend").replaceChildren();
    byId("said").replaceChildren();
    byId("report").replaceChildren(el("p", { class: "hint" }, "What became of the request stands here when its answer is over."));
    byId("copy").hidden = true;
    this.#busy(true);
    this.#tick(0);
  }

  #busy(busy) {
    byId("send").disabled = busy;
    byId("stop").disabled = !busy;
  }

  #now() {
    return (performance.now() - this.#began) / 1000;
  }

  /** Draws while the request runs. */
  #tick(drawn) {
    requestAnimationFrame((at) => {
      if (!this.#stop) return;
      const due = at - drawn >= (calm.matches ? STILL_FRAME : FRAME);
      if (due) {
        drawTimeline(byId("timeline"), this.#run, this.#now());
        this.#figures(this.#now());
      }
      this.#tick(due ? at : drawn);
    });
  }

  #figures(until) {
    byId("figures").replaceChildren(...grouped(figures(this.#run, this.#shown, until, this.#report, Boolean(this.#stop))));
  }

  /** Reads the stream to its end; the complaint of the service's own, if it broke. */
  async #read(response) {
    for await (const { id, data } of eventsOf(response)) {
      if (data === "[DONE]") return "";
      const chunk = JSON.parse(data);
      if (chunk.error) {
        this.#alert(`The answer could not be completed: ${chunk.error.message}`);
        return chunk.error.code;
      }
      const disco = chunk.disco ?? {};
      for (const event of disco.events ?? []) this.#tell(event);
      if ("policy" in disco) this.#report = disco;
      const text = chunk.choices?.[0]?.delta?.content;
      if (text) this.#write(text, disco.endpoint ?? "");
      this.#shown = Number(id) || this.#shown;
    }
    throw new Refused(CUT, 0, "cut", null);
  }

  #tell(event) {
    const words = eventWords(event, this.#run);
    if (event.type === "plan") {
      this.#began = performance.now() - 1000 * event.at_s;
      byId("legend").replaceChildren(...event.eligible.map(({ endpoint }) => el("li", { class: `dot ${colourOf(endpoint)}` }, endpoint)));
    }
    const said = spoken(event, this.#run);
    tell(this.#run, event);
    if (words) byId("log").append(el("li", {}, el("time", {}, seconds(event.at_s)), words));
    if (said) this.#say(said);
  }

  #write(text, endpoint) {
    this.#answer.write(text, endpoint);
    const [now, later] = sentences(this.#pending + text);
    this.#pending = later;
    if (now) this.#say(now);
  }

  /** For those who listen: whole sentences, never tokens. */
  #say(text) {
    byId("said").append(el("p", {}, text));
    while (byId("said").children.length > 20) byId("said").firstChild.remove();
  }

  #finish(complaint) {
    this.#stop = null;
    this.#answer.end(complaint);
    this.#busy(false);
    drawWhole(byId("timeline"), this.#run);
    this.#figures(this.#now());
    if (this.#pending.trim()) this.#say(this.#pending.trim());
    this.#say(complaint ? `The answer is not complete: ${complaint}.` : `The answer is complete: ${this.#shown} tokens.`);
    if (this.#report) {
      byId("report").replaceChildren(...reportView(this.#report));
      byId("copy").hidden = !navigator.clipboard;
    }
  }

  /** Shows what was refused; opens the field that helps. */
  #complain(error) {
    if (!(error instanceof Refused)) throw error;
    this.#alert(error.message);
    if (error.status === 401) {
      byId("key-box").open = true;
      byId("key").focus();
    }
    return error.code || "refused";
  }

  async #copy() {
    await navigator.clipboard.writeText(JSON.stringify(this.#report, null, 2));
    byId("copy").textContent = "Copied";
    setTimeout(() => (byId("copy").textContent = "Copy as JSON"), 1500);
  }
}

/** What a browser throws while a body comes says little. */
const broken = (error) => (error instanceof Refused ? error : new Refused(CUT, 0, "cut", null));

/** A definition list in groups of a term and its description. */
function grouped(elements) {
  const groups = [];
  for (let rank = 0; rank < elements.length; rank += 2) groups.push(el("div", {}, elements[rank], elements[rank + 1]));
  return groups;
}
