// The page: reads the server, and redraws what has changed.

import * as details from "./details.js";
import { byID, count } from "./dom.js";
import { arrange, filterOf } from "./model.js";
import * as operations from "./operations.js";
import { draw } from "./picture.js";
import * as sections from "./sections.js";
import { failing, fault, follow, get, Source } from "./server.js";

const known = { state: null, status: null, leases: null, report: null, drawn: "" };
let since = Infinity; // the time from which on the page gets events
let allocations = [], selected = "", opener = null, history = null, following = false;

const allocationTable = sections.allocationTable(select), leaseTable = sections.leaseTable();

const sources = {
  state: new Source("state", (state) => {
    const ids = (s) => s?.allocations.map((a) => a.id + a.created + a.phase).join();
    if (known.state && ids(known.state) !== ids(state)) [sources.status, sources.leases].forEach((source) => source.request());
    known.state = state;
    begin(state);
    update();
  }, { pause: 400, every: 10e3 }),
  status: new Source("status", (status) => {
    const found = JSON.stringify(status.doctor?.findings);
    if (known.status && found !== JSON.stringify(known.status.doctor?.findings)) sources.doctor.request();
    known.status = { ...status, unhealthySet: new Set(status.unhealthy), uncheckedSet: new Set(status.unchecked), noCheckSet: new Set(status.noCheck) };
    update();
  }, { pause: 2e3, every: 30e3, lost: update }),
  leases: new Source("leases", (leases) => {
    known.leases = leases;
    fault("problems of leases", leases.problems[0]);
    update();
  }, { pause: 2e3, every: 30e3 }),
  latencies: new Source("latencies", (latencies) => sections.latency(latencies, known.state?.live), { pause: 2e3, every: 30e3 }),
  doctor: new Source("doctor", (report) => {
    known.report = report;
    sections.doctor(report);
    update();
  }, { pause: 2e3 }),
  history: new Source("history?limit=30", (entries) => { // what ended later is among the events
    operations.add(entries.filter((e) => Date.parse(e.time) <= since).map(operations.ofHistory), false);
  }, { pause: 2e3 }),
};

/** begin follows the events, or reads the history if there are none. */
function begin(state) {
  if (following) {
    if (!state.live) sources.history.request();
    return;
  }
  following = true;
  if (state.live) {
    follow(received, (last, time) => {
      if (last === 0) since = Date.parse(time);
      Object.values(sources).forEach((source) => source === sources.doctor || source.request());
    });
    return;
  }
  sources.history.request();
  byID("connection").textContent = "without the daemon";
  sources.state.every = 3e3;
}

function received(event) {
  const entry = operations.ofEvent(event);
  if (entry) operations.add([entry], true);
  if (entry?.id === selected && selected) readHistory();
  sources.state.request();
  sources.latencies.request();
  if (event.type === "heal") sources.status.request();
}

/** update redraws what depends on the state, if it has changed. */
function update() {
  if (!known.state) return;
  const status = failing("status") ? null : known.status; // what was known before is not known any more
  allocations = arrange(known.state, status);
  byID("host").textContent = known.state.host ? `on ${known.state.host}` : "";
  document.title = known.state.host ? `allocnet on ${known.state.host}` : "allocnet";
  showTiles(sections.configuration(known.state, status), status);
  const query = byID("filter").value, matches = filterOf(query);
  const leases = known.leases?.leases ?? [];
  leaseTable.show(leases.filter((l) => matches(`${l.address} ${l.network} ${l.id}`.toLowerCase())), leases.length, "No network has leases.");
  const drawn = JSON.stringify([known.state.uplinks, known.state.networks, allocations, query, selected, byID("picture").clientWidth]);
  if (drawn === known.drawn) return;
  known.drawn = drawn;
  const shown = allocations.filter((a) => matches(a.text));
  allocationTable.show(shown, allocations.length, "No allocation is set up. allocnet setup ID makes one.");
  draw(byID("picture"), { state: known.state, allocations, filtered: (a) => matches(a.text), selected, select });
  if (selected) showDetails();
}

function showTiles(faults, status) {
  const of = (kind) => allocations.filter((a) => a.health.kind === kind).length;
  const bad = of("unhealthy") + of("gone"), unchecked = of("unchecked"), report = known.report;
  const errors = report?.findings.filter((f) => f.severity === "error").length ?? 0;
  sections.tiles([
    {
      to: "allocations", number: count(allocations.length, "allocation"), kind: bad > 0 ? "unhealthy" : unchecked > 0 ? "unchecked" : "healthy",
      words: allocations.length === 0 ? "none is set up" : [[of("healthy"), "healthy"], [of("unhealthy"), "unhealthy"], [of("gone"), "without namespace"], [of("busy"), "changing"], [unchecked, "not checked"]]
        .filter(([n]) => n > 0).map(([n, word]) => `${n.toLocaleString("en")} ${word}`).join(", "),
    },
    { to: "leases", number: count(known.leases?.leases.length ?? 0, "lease"), words: `in ${count(known.state.networks.length, "network")}`, kind: "plain" },
    {
      to: "configuration", number: faults === 0 ? "Configuration" : count(faults, "fault"), kind: faults > 0 ? "unhealthy" : status?.ready ? "healthy" : "unchecked",
      words: faults > 0 ? "in the configuration" : status?.ready ? "no errors, ready" : "readiness not known",
    },
    {
      to: "doctor", number: report?.findings.length > 0 ? count(report.findings.length, "finding") : "Doctor", kind: !report ? "unchecked" : errors > 0 ? "unhealthy" : report.findings.length > 0 ? "busy" : "healthy",
      words: !report ? "examines the host" : report.findings.length > 0 ? `of doctor, ${count(errors, "error")}` : "nothing found",
    },
    daemonTile(status),
  ]);
}

/** daemonTile says whether the daemon runs; without an overview, that is not known. */
function daemonTile(status) {
  if (!status) return { to: "operations", number: "Daemon", words: failing("status") ? "no answer" : "not read yet", kind: "unchecked" };
  if (!status.daemon) return { to: "operations", number: "No daemon", words: "read by this program", kind: "plain" };
  return { to: "operations", number: "Daemon", words: `version ${status.daemon.version}`, kind: "healthy" };
}

function showDetails() {
  const drift = known.status?.drift.find((d) => d.id === selected)?.error;
  details.show(selected, allocations.find((a) => a.id === selected), drift, history, close);
}

async function readHistory() {
  const id = selected;
  try {
    const entries = await get(`history?id=${encodeURIComponent(id)}`);
    if (id !== selected) return;
    history = entries;
    showDetails();
  } catch (error) {
    fault("history", error);
  }
}

/** select opens the details of an allocation, and moves the focus there. */
function select(id) {
  if (!byID("details").contains(document.activeElement)) opener = document.activeElement?.dataset.item ?? null;
  if (selected !== id) history = null;
  selected = id;
  showDetails();
  update();
  readHistory();
  byID("details-title").focus();
}

/** close closes the details, and moves the focus back. */
function close() {
  selected = "";
  details.hide();
  update();
  const back = opener && [...document.querySelectorAll("[data-item]")].find((one) => one.dataset.item === opener);
  (back ?? byID("main")).focus();
}

document.addEventListener("keydown", (event) => {
  const typing = event.target instanceof HTMLInputElement;
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    byID("filter").focus();
    byID("filter").select();
  } else if (event.key === "Escape" && typing) {
    byID("filter").value = "";
    update();
  } else if (event.key === "Escape" && selected) {
    close();
  }
});
let typing = 0;
byID("filter").addEventListener("input", () => { // several keys become one change of the page
  clearTimeout(typing);
  typing = setTimeout(update, 60);
});
byID("examine").addEventListener("click", () => sources.doctor.request());
new ResizeObserver(update).observe(byID("picture"));
sections.legend((query) => {
  byID("filter").value = query;
  byID("filter").focus();
  update();
});
operations.start(select);
for (const name of ["state", "status", "leases", "latencies", "doctor"]) sources[name].request();
