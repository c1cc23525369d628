// The host as a picture: uplinks, networks, allocations and their ports.
//
// A network with few visible allocations shows each one as a card, one with many as a cell.
// A network's allocations are one stop of the Tab key; arrow keys move between them.

import { count, html, replace, shorten, svg } from "./dom.js";
import { kinds, shapeAt } from "./health.js";
import { large, usage } from "./model.js";

const mostCards = 24;
const card = { least: 214, most: 330, gap: 12, head: 52, line: 17, ports: 3 };
const manyCells = 400; // cells are smaller from here on
const box = { line: 18, pad: 12, radius: 8 };

/** draw draws the picture for a width. */
export function draw(target, { state, allocations, filtered, selected, select }) {
  const width = Math.max(280, Math.floor(target.clientWidth));
  const wide = width >= 760;
  const layout = wide
    ? { width, uplinkWidth: 176, networkX: 222, networkWidth: 214, areaX: 480, areaWidth: width - 483, wide }
    : { width, uplinkWidth: width - 3, networkX: 26, networkWidth: width - 29, areaX: 50, areaWidth: width - 53, wide };
  const view = { layout, selected, select, filtered, parts: [], wires: [] };
  const networks = state.networks.map((network) => ({ network, members: allocations.filter((a) => a.networks.includes(network.name)) }));
  const uplinks = drawUplinks(view, state);
  let y = wide ? 1 : uplinks.bottom + 18;
  const joints = [];
  for (const { network, members } of networks) {
    const drawn = drawNetwork(view, network, members, y);
    joints.push(drawn.joint);
    y = drawn.bottom + (wide ? 22 : 18);
  }
  const height = Math.max(y - 16, uplinks.bottom + 2);
  wireUplinks(view, uplinks, joints);
  replace(target, svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Uplinks, networks and allocations of this host" },
    svg("g", { class: "wires", "aria-hidden": "true" }, view.wires), view.parts),
  networks.length === 0 && html("p", { class: "none" }, "No network is configured."));
}

const text = (x, y, content, name) => svg("text", { x, y, class: name }, content);
const wire = (d) => svg("path", { d });
const round = (x, y, w, h, name) => svg("rect", { x: x + 0.5, y: y + 0.5, width: w, height: h, rx: box.radius, class: name });

function drawUplinks(view, state) {
  const width = view.layout.uplinkWidth, joints = [];
  const list = state.uplinks.length > 0 ? state.uplinks : [{ name: "no uplink", addresses: [], gateways: [], none: true }];
  let y = 1;
  for (const uplink of list) {
    const lines = uplink.none ? ["the host has no", "default route"] : [...uplink.addresses.slice(0, 3), ...uplink.gateways.slice(0, 2).map((g) => `via ${g}`)];
    const height = box.pad * 2 + box.line * (lines.length + 1) - 2;
    const label = uplink.none ? "No uplink: the host has no default route" : `Uplink ${uplink.name}: ${lines.join(", ")}`;
    view.parts.push(svg("g", { role: "group", "aria-label": label }, round(0, y, width, height, "uplink"),
      text(box.pad, y + box.pad + 12, shorten(uplink.name, 19), "name"),
      lines.map((line, i) => text(box.pad, y + box.pad + 12 + box.line * (i + 1), shorten(line, 22), "fact"))));
    joints.push({ x: view.layout.wide ? width : 12, y: view.layout.wide ? y + 27 : y + height });
    y += height + 12;
  }
  return { joints, bottom: y - 12 };
}

/** wireUplinks connects the uplinks with the networks. */
function wireUplinks(view, uplinks, joints) {
  if (!view.layout.wide) {
    const from = uplinks.joints.at(-1);
    for (const to of joints) view.wires.push(wire(`M${from.x} ${from.y}V${to.y}H${to.x}`));
    return;
  }
  for (const from of uplinks.joints) {
    for (const to of joints) {
      const middle = (from.x + to.x) / 2;
      view.wires.push(wire(`M${from.x} ${from.y}C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}`));
    }
  }
}

function networkLines(network, members) {
  const facts = [...(network.subnets ?? [])];
  for (const u of usage(network)) facts.push(`${u.family}: ${large(u.used)} used, ${large(u.free)} free`);
  if (network.missing) facts.push("its file is gone");
  if (facts.length === 0) facts.push((network.plugins ?? []).join(", "));
  return [...facts, count(members.length, "allocation")];
}

function drawNetwork(view, network, members, y) {
  const { networkX: x, networkWidth: width, wide, areaX } = view.layout;
  const lines = networkLines(network, members), full = usage(network).some((u) => u.free <= 0);
  const fullest = usage(network).reduce((most, u) => Math.max(most, u.part), 0);
  const height = box.pad * 2 + box.line * (lines.length + 1) + 8;
  const shown = members.filter(view.filtered);
  const label = `Network ${network.name}${network.default ? ", the default" : ""}: ${lines.join(", ")}${full ? ", an address range is full" : ""}`;
  const bar = width - 2 * box.pad;
  view.boxHeight = height;
  const group = svg("g", { role: "group", "aria-label": label }, round(x, y, width, height, `network${network.missing ? " missing" : ""}`),
    text(x + box.pad, y + box.pad + 12, shorten(network.name, network.default ? 16 : 24), "name"),
    network.default && svg("text", { x: x + width - box.pad, y: y + box.pad + 12, class: "tag" }, "default"),
    lines.map((line, i) => text(x + box.pad, y + box.pad + 12 + box.line * (i + 1), shorten(line, 31), "fact")),
    svg("rect", { x: x + box.pad, y: y + height - 14, width: bar, height: 5, rx: 2.5, class: "track" }),
    fullest > 0 && svg("rect", { x: x + box.pad, y: y + height - 14, width: Math.max(3, bar * fullest), height: 5, rx: 2.5, class: full ? "level full" : "level" }));
  view.parts.push(group);
  const joint = { x, y: y + 27 };
  const top = wide ? y : y + height + 12;
  const drawArea = shown.length > mostCards ? drawCells : drawCards;
  const area = drawArea(view, network, shown, members.length, top);
  const from = wide ? { x: x + width, y: joint.y } : { x: x + 12, y: y + height };
  wireArea(view, from, area.entries, areaX);
  return { joint, bottom: Math.max(y + height, area.bottom) };
}

/** wireArea draws a bus from a network to the rows of its allocations. */
function wireArea(view, from, entries, areaX) {
  if (entries.length === 0) return;
  const bus = view.layout.wide ? from.x + (areaX - from.x) / 2 : from.x;
  if (view.layout.wide) view.wires.push(wire(`M${from.x} ${from.y}H${bus}`));
  view.wires.push(wire(`M${bus} ${Math.min(from.y, entries[0].y)}V${Math.max(from.y, entries.at(-1).y)}`));
  for (const { y, until } of entries) view.wires.push(wire(`M${bus} ${y}H${until}`));
}

/** items makes allocations one stop of the Tab key. */
function items(view, network, elements, columns) {
  const group = svg("g", { role: "group", "aria-label": `Allocations of network ${network.name}` }, elements);
  if (elements.length === 0) return group;
  const reset = (to) => elements.forEach((one) => one.setAttribute("tabindex", one === to ? "0" : "-1"));
  const focused = document.activeElement?.dataset.item;
  reset(elements.find((one) => one.dataset.item === focused) ?? elements.find((one) => one.dataset.id === view.selected) ?? elements[0]);
  group.addEventListener("click", (event) => {
    const id = event.target.closest(".item")?.dataset.id;
    if (id) view.select(id);
  });
  group.addEventListener("keydown", (event) => {
    const at = elements.indexOf(document.activeElement);
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns, Home: -at, End: elements.length - 1 - at };
    if (event.key === "Enter" || event.key === " ") view.select(elements[at].dataset.id);
    else if (event.key in steps) {
      const next = elements[Math.min(elements.length - 1, Math.max(0, at + steps[event.key]))];
      reset(next);
      next.focus();
    } else return;
    event.preventDefault();
  });
  return group;
}

/** asItem makes an element that of an allocation, which opens its details. */
function asItem(view, network, allocation, element) {
  const ports = allocation.portTexts.map((p) => `port ${p.from} to ${p.into}`);
  const label = [allocation.id, allocation.health.word, allocation.address, ...ports].filter(Boolean).join(", ");
  element.classList.add("item");
  element.classList.toggle("selected", allocation.id === view.selected);
  element.setAttribute("role", "button");
  element.setAttribute("aria-label", label);
  element.setAttribute("aria-pressed", allocation.id === view.selected);
  element.dataset.id = allocation.id;
  element.dataset.item = `${network.name}/${allocation.id}`;
  element.prepend(svg("title", {}, label));
  return element;
}

/** none says why a network has no visible allocation. */
function none(view, total, y) {
  const words = total > 0 ? `no match among ${count(total, "allocation")}` : "no allocation";
  view.parts.push(text(view.layout.areaX, y + 34, words, "fact"));
  return { entries: [], bottom: y + 44 };
}

function drawCards(view, network, shown, total, y) {
  if (shown.length === 0) return none(view, total, y);
  const { areaX, areaWidth } = view.layout;
  const columns = Math.max(1, Math.min(shown.length, Math.floor((areaWidth + card.gap) / (card.least + card.gap))));
  const width = Math.min(card.most, Math.floor((areaWidth - (columns - 1) * card.gap) / columns));
  const elements = [], entries = [];
  for (let i = 0; i < shown.length; i += columns) {
    const row = shown.slice(i, i + columns);
    const lines = Math.max(...row.map((a) => Math.min(a.portTexts.length, card.ports)));
    const height = card.head + lines * card.line + (lines > 0 ? 6 : 0) + 4;
    row.forEach((a, column) => elements.push(drawCard(view, network, a, areaX + column * (width + card.gap), y, width, height)));
    entries.push({ y: y + 27, until: areaX + (row.length - 1) * (width + card.gap) });
    y += height + card.gap;
  }
  view.parts.push(items(view, network, elements, columns));
  return { entries, bottom: y - card.gap };
}

function drawCard(view, network, a, x, y, width, height) {
  const characters = Math.floor((width - 44) / 7.5);
  const own = (a.interfaces ?? []).find((i) => i.network === network.name && i.sandbox && i.addresses?.length);
  const address = own ? own.addresses[0].address.split("/")[0] : a.address || a.addressIPv6 || "no address";
  const hidden = a.portTexts.length - card.ports;
  const ports = a.portTexts.slice(0, hidden > 0 ? card.ports - 1 : card.ports).map((p) => p.waits ? `${p.from} waits for ${p.waits}` : `${p.from} → :${p.to}`);
  if (hidden > 0) ports.push(`and ${count(hidden + 1, "more port")}`);
  return asItem(view, network, a, svg("g", { class: a.health.kind }, round(x, y, width, height, "card"), shapeAt(a.health.kind, x + 11, y + 11, 15),
    text(x + 34, y + 24, shorten(a.id, characters), "name id"),
    text(x + 34, y + 43, shorten(`${address} · ${a.health.word}`, characters + 4), "fact"),
    ports.map((line, i) => text(x + 34, y + card.head + 12 + i * card.line, shorten(line, characters + 2), "port"))));
}

/** drawCells draws one cell per allocation, below the network, and counts them beside it. */
function drawCells(view, network, shown, total, y) {
  const { networkX, networkWidth, width, wide } = view.layout, pad = 14;
  const x = wide ? networkX : networkX + 24, room = width - x - 2, size = shown.length > manyCells ? 12 : 15, step = size + (shown.length > manyCells ? 5 : 7);
  const top = wide ? y + view.boxHeight + 16 : y;
  if (wide) drawCounts(view, shown, total, networkX + networkWidth + 44, y);
  const columns = Math.max(1, Math.floor((room - 2 * pad + step - size) / step));
  const height = pad * 2 + Math.ceil(shown.length / columns) * step - (step - size);
  view.parts.push(round(x, top, room, height, "area"));
  const elements = shown.map((a, i) => {
    const left = x + pad + (i % columns) * step, above = top + pad + Math.floor(i / columns) * step;
    const part = a.health.kind === "healthy" ? 0.8 : 1, inset = size * (1 - part) / 2;
    return asItem(view, network, a, svg("path", {
      class: `cell ${a.health.kind}`, d: kinds[a.health.kind].shape,
      transform: `translate(${left + inset} ${above + inset}) scale(${size * part / 16})`,
    }));
  });
  view.parts.push(svg("g", { class: "cells" }, items(view, network, elements, columns)));
  if (wide) view.wires.push(wire(`M${x + 24} ${y + view.boxHeight}V${top}`));
  return { entries: wide ? [] : [{ y: top + 27, until: x }], bottom: top + height };
}

/** drawCounts lists how many of the allocations are in which health. */
function drawCounts(view, shown, total, x, y) {
  const lines = Object.entries(kinds).map(([kind, { word }]) => ({ kind, word, n: shown.filter((a) => a.health.kind === kind).length })).filter(({ n }) => n > 0);
  const words = shown.length === total ? count(total, "allocation") : `${shown.length.toLocaleString("en")} of ${count(total, "allocation")}`;
  view.parts.push(svg("g", { role: "group", "aria-label": "Health" }, text(x, y + 24, words, "name"),
    lines.map(({ kind, word, n }, i) => [shapeAt(kind, x, y + 35 + i * box.line, 14), text(x + 22, y + 47 + i * box.line, `${n.toLocaleString("en")} ${word}`, "fact")])));
}
