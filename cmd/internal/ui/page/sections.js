// The sections below the picture, and the tiles that lead to them.

import { byID, count, duration, html, replace, svg, table } from "./dom.js";
import { kinds, symbol } from "./health.js";
import { addressesOf } from "./model.js";

const pageSize = 25;

/** paged makes a table of which further rows are shown on demand. */
class Paged {
  constructor(id, caption, header, row) {
    Object.assign(this, { element: byID(id), caption, header, row, size: pageSize, items: [] });
  }

  show(items, total, empty) {
    Object.assign(this, { items, total, empty });
    const rest = items.length - this.size;
    const words = items.length === total ? count(total, this.caption) : `${items.length.toLocaleString("en")} of ${count(total, this.caption)} match the filter`;
    replace(this.element,
      total === 0 ? html("p", { class: "none" }, empty) : html("p", { class: "fact" }, words),
      items.length > 0 && table(`${this.caption}s`.replace(/^./, (c) => c.toUpperCase()), this.header, items.slice(0, this.size).map(this.row)),
      rest > 0 && html("button", { type: "button", "data-item": "more", onclick: () => this.more() }, `Show ${Math.min(rest, pageSize)} more of ${rest.toLocaleString("en")}`));
  }

  more() {
    this.size += pageSize;
    this.show(this.items, this.total, this.empty);
  }
}

/** allocationTable returns the table of the allocations. */
export const allocationTable = (select) => new Paged("allocations-table", "allocation", ["ID", "Health", "Addresses", "Networks", "Published ports", "Scope"], (a) => [
  html("button", { type: "button", class: "link id", "data-item": `row ${a.id}`, onclick: () => select(a.id) }, a.id),
  html("span", { class: `word ${a.health.kind}` }, symbol(a.health.kind, 14), ` ${a.health.word}`),
  addressesOf(a).map((one) => html("div", {}, one)),
  a.networks.join(", "),
  a.portTexts.map((p) => html("div", {}, `${p.from} → ${p.into}`, p.label ? ` (${p.label})` : "")),
  a.scope ?? "",
]);

/** leaseTable returns the table of the leases. */
export const leaseTable = () => new Paged("leases-table", "lease", ["Address", "Network", "Container", "Interface"], (l) =>
  [l.address, l.network, l.id || "none: its writer has crashed", l.interface ?? ""]);

/** legend shows the kinds of health with their shapes; each one can become the filter. */
export function legend(filter) {
  replace(byID("legend"), Object.entries(kinds).toReversed().map(([kind, { word, query }]) => html("li", {},
    html("button", { type: "button", class: "link", title: "Filter by it", onclick: () => filter(query ?? word) }, symbol(kind, 14), ` ${word}`))));
}

/** tiles shows the numbers of each section. */
export function tiles(list) {
  replace(byID("tiles"), list.map(({ to, number, words, kind }) => html("a", { href: `#${to}`, class: `tile ${kind}`, "data-item": to },
    html("span", { class: "number" }, kind !== "plain" && symbol(kind, 18), html("span", {}, number)),
    html("span", { class: "words" }, words))));
}

/** configuration shows files that are skipped, networks without a file, what is not ready or not served, and what
 * could not be read. */
export function configuration(state, status) {
  const missing = state.networks.filter((n) => n.missing);
  const problems = [...state.problems, ...(status?.problems ?? [])];
  const item = (kind, name, words) => html("li", { class: kind }, symbol(kind, 14), html("div", {}, html("strong", {}, name), html("p", {}, words)));
  const list = [
    ...state.skipped.map((s) => item("unhealthy", s.file, s.reason)),
    ...missing.map((n) => item("unhealthy", n.name, "allocations are attached to this network, and no valid file has it any more")),
    ...(status?.notReady ?? []).map((p) => item("unhealthy", "not ready", p)),
    ...(status?.daemon?.problems ?? []).map((p) => item("unhealthy", "not served", `${p} (the daemon tries again)`)),
    ...problems.map((p) => item("unchecked", "not read", p)),
  ];
  const rows = state.networks.map((n) => [n.name, n.missing ? "none" : n.file || "embedded", n.engine ?? "", (n.plugins ?? []).join(", "), (n.subnets ?? []).map((one) => html("div", {}, one))]);
  replace(byID("configuration-list"),
    list.length > 0 ? html("ul", { class: "findings" }, list) : html("p", { class: "none" }, symbol(status?.ready ? "healthy" : "unchecked", 14), status?.ready ? " All files are valid, and the networks are ready." : " All files are valid. Whether the networks are ready is not known."),
    rows.length > 0 && table("Networks", ["Network", "File", "Engine", "Plugins", "Subnets"], rows));
  return list.length;
}

/** doctor shows the findings of doctor. */
export function doctor(report) {
  const list = report.findings.map((f) => {
    const kind = f.severity === "error" ? "unhealthy" : "busy";
    return html("li", { class: kind }, symbol(kind, 14), html("div", {},
      html("strong", {}, `${f.severity}: ${f.id}`), html("p", {}, f.what), html("p", { class: "fact" }, f.why),
      html("p", {}, "Repair: ", html("code", {}, f.repair)),
      f.safe && html("p", { class: "fact" }, html("code", {}, "allocnet doctor --fix"), " makes this repair.")));
  });
  replace(byID("doctor-list"), list.length > 0
    ? html("ul", { class: "findings" }, list)
    : html("p", { class: "none" }, symbol("healthy", 14), ` ${count(report.checks.length, "check")}, nothing found.`));
}

/** quantile returns the limit below which a part of all durations are. */
function quantile(histogram, part) {
  let seen = 0, below = 0;
  for (const { limit, count: n } of histogram.buckets) {
    seen += n;
    if (seen >= histogram.count * part) return limit === null ? `above ${duration(below)}` : `≤ ${duration(limit)}`;
    below = limit;
  }
  return "";
}

const summary = (h) => `half ${quantile(h, 0.5)}, 95 % ${quantile(h, 0.95)}`;

/** latency shows the durations of operations as histograms, those of steps as a table. */
export function latency({ operations, steps }, live) {
  const charts = operations.filter((h) => h.count > 0).map(chart);
  const rows = steps.filter((h) => h.count > 0).map((h) => [h.operation, h.part, h.count.toLocaleString("en"), quantile(h, 0.5), quantile(h, 0.95), duration(h.sum / h.count)]);
  const element = byID("latency-charts"), open = element.querySelector("details")?.open ?? false;
  replace(element,
    charts.length > 0 ? html("div", { class: "charts" }, charts)
      : html("p", { class: "none" }, live ? "No operation has ended since the start of the daemon." : "The daemon does not run: only it measures durations."),
    charts.length > 0 && html("p", { class: "fact" }, "Since the start of the daemon. Each bar is the number of operations up to the duration below it."),
    rows.length > 0 && html("details", { open }, html("summary", { "data-item": "steps" }, "Steps of the operations"),
      table("Durations of steps", ["Operation", "Step", "Number", "Half", "95 %", "Mean"], rows)));
}

const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 0 });

/** fitting returns a number as a text that is not wider than a bar, or "". */
const fitting = (n, width) => [n.toLocaleString("en"), compact.format(n)].find((text) => text.length * 7.2 < width) ?? "";

function chart(h) {
  const first = h.buckets.findIndex((b) => b.count > 0), last = h.buckets.findLastIndex((b) => b.count > 0);
  const from = Math.max(0, Math.min(first - 1, last - 5)), shown = h.buckets.slice(from, Math.max(last + 2, from + 6));
  const width = 300, height = 96, most = Math.max(...shown.map((b) => b.count)), step = width / shown.length;
  const every = Math.ceil(44 / step), least = 20; // of the durations below: so they neither overlap nor leave the chart
  const name = `${h.operation}${h.part ? `, ${h.part}` : ""}`, words = summary(h);
  return html("figure", {},
    html("figcaption", {}, html("span", {}, html("strong", {}, name), html("span", { class: "fact" }, ` ${count(h.count, "operation")}`)), html("span", { class: "fact" }, words)),
    svg("svg", { viewBox: `0 0 ${width} ${height + 20}`, role: "img", "aria-label": `${name}, ${count(h.count, "operation")}: ${words}` },
      svg("line", { x1: 0, x2: width, y1: height + 0.5, y2: height + 0.5, class: "axis" }),
      shown.map((b, i) => {
        const tall = b.count === 0 ? 0 : Math.max(2, (height - 18) * b.count / most);
        const limit = b.limit === null ? "more" : duration(b.limit), middle = (i + 0.5) * step;
        return svg("g", {},
          svg("title", {}, `${b.limit === null ? "" : "≤ "}${limit}: ${count(b.count, "operation")}`),
          svg("rect", { class: "column", x: i * step + 2, y: height - tall, width: step - 4, height: tall, rx: 2 }),
          b.count > 0 && svg("text", { x: middle, y: height - tall - 5, class: "value" }, fitting(b.count, step)),
          i % every === 0 && svg("text", { x: Math.min(Math.max(middle, least), width - least), y: height + 15, class: "tick" }, limit.replace(" ", "")));
      })));
}
