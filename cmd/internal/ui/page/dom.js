// Elements from data. Texts become text nodes only, never markup.

const svgNamespace = "http://www.w3.org/2000/svg";

function build(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

/** html makes an HTML element. */
export const html = (tag, attributes, ...children) => build(document.createElement(tag), attributes, children);

/** svg makes an SVG element. */
export const svg = (tag, attributes, ...children) => build(document.createElementNS(svgNamespace, tag), attributes, children);

export const byID = (id) => document.getElementById(id);

/** count returns "1 network" or "2 networks". */
export const count = (n, noun) => `${n.toLocaleString("en")} ${noun}${n === 1 ? "" : "s"}`;

/** duration returns seconds as a text with three digits at most. */
export function duration(seconds) {
  const digits = (n) => (n >= 100 ? n.toFixed(0) : n >= 10 ? n.toFixed(1) : n.toFixed(2)).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${digits(seconds * 1e3)} ms`;
  if (seconds < 60) return `${digits(seconds)} s`;
  return `${digits(seconds / 60)} min`;
}

/** clock returns the time of day. */
export const clock = (time) => new Date(time).toLocaleTimeString("en-GB");

/** moment returns date and time. */
export const moment = (time) => `${new Date(time).toLocaleDateString("en-CA")} ${clock(time)}`;

/** shorten replaces the middle of a text that has more than the given number of characters. */
export function shorten(text, characters) {
  if (text.length <= characters) return text;
  const tail = Math.floor((characters - 1) / 3);
  return `${text.slice(0, characters - 1 - tail)}…${tail > 0 ? text.slice(-tail) : ""}`;
}

const collator = new Intl.Collator("en", { numeric: true });

/** naturally compares texts, with numbers in them as numbers. */
export const naturally = (a, b) => collator.compare(a, b);

/** table makes a table with a header and rows of cells: texts or nodes. */
export function table(caption, header, rows) {
  return html("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": caption },
    html("table", {},
      html("caption", { class: "unseen" }, caption),
      html("thead", {}, html("tr", {}, header.map((name) => html("th", { scope: "col" }, name)))),
      html("tbody", {}, rows.map((cells) => html("tr", {}, cells.map((cell, i) =>
        i === 0 ? html("th", { scope: "row" }, cell) : html("td", {}, cell)))))));
}

/** replace replaces the content of an element, but keeps the focus on the same item. */
export function replace(element, ...content) {
  const active = element.contains(document.activeElement) && document.activeElement;
  const item = active && active.dataset.item;
  const scroll = [...element.querySelectorAll(".scroll")].map((box) => box.scrollLeft);
  element.replaceChildren(...content.flat().filter(Boolean));
  element.querySelectorAll(".scroll").forEach((box, i) => { box.scrollLeft = scroll[i] ?? 0; });
  if (!item) return; // nothing had the focus, or something without a name
  const again = [...element.querySelectorAll("[data-item]")].find((one) => one.dataset.item === item);
  again?.focus({ preventScroll: true });
}
