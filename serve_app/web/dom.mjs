// Elements without a template: text is only ever text.

const SVG = "http://www.w3.org/2000/svg";

export const byId = (id) => document.getElementById(id);

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** ``el("td", {class: "number"}, "12")`` */
export const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);

export const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

/** A definition list's entries from [term, description] pairs; what is null is left out. */
export const pairs = (entries) =>
  entries.filter((entry) => entry !== null).flatMap(([term, text]) => [el("dt", {}, term), el("dd", {}, text)]);

/** Rows of a table: ``columns`` are [heading, is a number]. */
export function table(element, columns, rows) {
  const head = columns.map(([heading, number]) => el("th", { scope: "col", class: number && "number" }, heading));
  const body = rows.map((cells) =>
    el("tr", {}, ...cells.map((cell, rank) => el("td", { class: columns[rank][1] && "number" }, cell))),
  );
  element.replaceChildren(el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body));
}

const COLOURS = 6;
const known = [];

/** The class with an endpoint's colour: the same wherever it is shown. */
export function colourOf(endpoint) {
  if (!known.includes(endpoint)) known.push(endpoint);
  return `e${known.indexOf(endpoint) % COLOURS}`;
}
