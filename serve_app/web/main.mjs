// Puts the page together: views, theme, and whether the service is ready.

import { call } from "./api.mjs";
import { byId, colourOf, el } from "./dom.mjs";
import { Live } from "./live.mjs";
import { Playground } from "./playground.mjs";

const STATE_PERIOD = 5000;
const THEMES = ["system", "light", "dark"];

function alertUser(message) {
  byId("alert").hidden = message === null;
  byId("alert").textContent = message ?? "";
}

const playground = new Playground(alertUser);
const live = new Live(alertUser);

function route() {
  const view = location.hash === "#live" ? "live" : "playground";
  for (const name of ["playground", "live"]) {
    byId(name).hidden = name !== view;
    if (name === view) byId(`to-${name}`).setAttribute("aria-current", "page");
    else byId(`to-${name}`).removeAttribute("aria-current");
  }
  document.title = view === "live" ? "Live – DiSCo-Serve" : "DiSCo-Serve";
  alertUser(null);
  if (view === "live") live.show();
  else live.hide();
}

function theme() {
  return document.documentElement.dataset.theme ?? "system";
}

function paint(chosen) {
  if (chosen === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = chosen;
  byId("theme").textContent = `Theme: ${chosen}`;
}

byId("theme").addEventListener("click", () => {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length];
  paint(next);
  try {
    localStorage.setItem("disco-theme", next);
  } catch {
    // It holds until the page is left.
  }
});

/** Which endpoints are ready; anyone may ask. */
async function state() {
  if (!document.hidden) await showState();
  setTimeout(state, STATE_PERIOD);
}

async function showState() {
  let parts;
  try {
    const { endpoints } = await (await fetch("ready", { cache: "no-store" })).json();
    parts = Object.entries(endpoints).map(([name, { ready, reason }]) =>
      el("span", { class: ready ? `dot ${colourOf(name)}` : "down", title: reason }, ready ? name : `${name}: not ready`),
    );
  } catch {
    parts = [el("span", { class: "down" }, "no service")];
  }
  const words = parts.map((part) => part.textContent).join();
  if (byId("state").dataset.words !== words) byId("state").replaceChildren(...parts);
  byId("state").dataset.words = words;
}

addEventListener("hashchange", route);
document.addEventListener("visibilitychange", () => !document.hidden && showState());
paint(theme());
route();
playground.models();
state();
