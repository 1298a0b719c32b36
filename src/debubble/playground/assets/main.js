// Every change of the form is sent to the server; what comes back is shown, and the state goes into the address.

import { $, download, make, showTab, size } from "./dom.js";
import { clearProblems, showProblems, showTable } from "./answer.js";
import { showCards } from "./cards.js";
import { followNeeds, makeControls } from "./controls.js";
import { clearNote, find } from "./faster.js";
import { listenForDrops, open, showCosts } from "./files.js";
import { MOST } from "./link.js";
import { Picker } from "./picker.js";
import { showPlot } from "./plot.js";
import { post } from "./server.js";
import { address, alike, bring, choose, defaults, form, offered, repack, request, restore, snapshot } from "./state.js";
import { showTiles } from "./tiles.js";
import { Undo } from "./undo.js";

const timeline = $("timeline");
const BUSY = 400; // milliseconds after which a page says that it computes

// ---- talking to the server

let asking = false, again = false, turn = 0;

/** One request at a time, always for the newest state; undo knows every state, also those nobody asked for. */
function ask() {
  undo.record(snapshot(), editing());
  if (asking) { again = true; return; }
  asking = true;
  send().finally(() => { asking = false; if (again) { again = false; ask(); } });
}

async function send() {
  const mine = ++turn, begin = performance.now();
  const late = setTimeout(() => say("Computing…", "busy"), BUSY);
  try {
    const state = request();
    remember();
    if (!state.schedules.length) { clearProblems(); empty(); return; }
    const data = await post("/api/simulate", state);
    if (mine !== turn || again) return;
    clearProblems();
    await show(state, data);
    document.documentElement.dataset.milliseconds = (performance.now() - begin).toFixed(1);
  } catch (problem) {
    if (!problem.message) throw problem;
    clearProblems();
    showProblems([problem], use);
    stale(problem.message);
  } finally {
    clearTimeout(late);
    if (form.lost) $("problems").append(make("p", { class: "problem" }, form.lost));
  }
}

async function show(state, data) {
  showCosts(data.costs, () => { form.costs = null; showCosts([]); changedFiles(); });
  // After the costs: a file hides their fields, and what is wrong then stands above the timelines.
  showProblems(data.problems, use);
  showTable(data);
  showTiles(data);
  showPlot(data);
  showCards(state, data, save);
  if (!data.timelines) { hide(true); say(data.headline, "stale"); return; }
  hide(false);
  $("mode-note").textContent = offered.modes[state.mode] ?? "";
  await timeline.load(data.timelines, true);
  say(data.headline, "");
  remember();
}

// ---- what is shown is either what was asked for, or says that it is not

function say(text, how) {
  $("headline").textContent = text;
  document.body.dataset.shown = how;
}

function hide(nothing) { for (const part of document.querySelectorAll(".result")) part.hidden = nothing; }

function empty() {
  hide(true);
  showCosts([], () => { form.costs = null; showCosts([]); changedFiles(); });
  say("Choose at least one schedule.", "stale");
}

/** The picture stays, greyed, so that one can see what was changed; nothing about it is claimed. */
function stale(message) {
  const there = Boolean(timeline.view) && !timeline.hidden;
  say(`Not computed: ${message.replaceAll("`", "")}${there ? ". Below, greyed: the settings before." : ""}`, "stale");
}

const use = (field, value) => { $(field).value = value; follow(); ask(); };

// ---- undo

const undo = new Undo(async (state) => {
  await bring(state);
  clearNote();
  follow();
  picker.show();
  ask();
}, alike);

/** The field that is being edited: its changes are one, until it rests. */
function editing() {
  const { activeElement: field } = document;
  return field?.matches(".field input, .options input") ? field.id || field.dataset.for || field.getAttribute("aria-label") : null;
}

/** The changes of the page that is shown. */
const changes = () => ({ schedules: undo, plan: plan?.undo, trace: trace?.undo })[document.body.dataset.tab];

function followUndo() { $("undo").disabled = !changes()?.canUndo; }

function listenForUndo() {
  undo.told = followUndo;
  $("undo").addEventListener("click", () => changes()?.undo());
  document.addEventListener("keydown", (event) => {
    if (!(event.ctrlKey || event.metaKey) || event.altKey || !["z", "y"].includes(event.key.toLowerCase())) return;
    // A text field has an undo of its own.
    const target = event.composedPath()[0];
    if (target instanceof Element && target.matches("textarea, input:not([type=range], [type=checkbox], [type=radio], [type=file])")) return;
    event.preventDefault();
    if (event.shiftKey || event.key.toLowerCase() === "y") changes()?.redo(); else changes()?.undo();
  });
}

// ---- the address

function remember() { if (document.body.dataset.tab === "schedules") history.replaceState(null, "", address(timeline.state)); }

async function changedFiles() {
  undo.record(snapshot());
  picker.show();
  await repack();
  ask();
}

async function copy() {
  remember();
  const lost = form.missing.length ? `, without ${form.missing.join(" and ")}: a link holds ${size(MOST)} of files` : "";
  let text = `Copied${lost}`;
  try { await navigator.clipboard.writeText(location.href); } catch { text = `See the address${lost}`; }
  $("copy").textContent = text;
  setTimeout(() => { $("copy").textContent = "Copy link"; }, lost ? 8000 : 1500);
}

async function save(wanted) {
  try {
    const response = await post("/api/export", wanted, true);
    const name = /filename="([^"]+)"/.exec(response.headers.get("content-disposition"))?.[1] ?? "schedule";
    download(name, await response.blob());
  } catch (problem) {
    showProblems([problem], use);
    $("problems").scrollIntoView({ block: "nearest" });
  }
}

async function take(picked) {
  clearProblems();
  form.lost = "";
  const wrong = [];
  for (const file of picked) {
    try {
      const { problems, schedule } = await open(file, post);
      wrong.push(...problems.map((message) => ({ message: `${schedule.name}: ${message}` })));
    } catch ({ message }) { wrong.push({ message: message.includes(file.name) ? message : `${file.name}: ${message}` }); }
  }
  follow();
  if (wrong.length) showProblems(wrong, use);
  if (wrong.length < picked.length || !wrong.length) await changedFiles();
  $("problems").scrollIntoView({ block: "nearest" });
}

// ---- controls

const picker = new Picker(ask);

/** Sliders and what depends on other fields follow the fields. */
function follow() {
  for (const slider of document.querySelectorAll("[data-for]")) {
    const field = $(slider.dataset.for), value = Number(field.value), most = Number(field.max || slider.dataset.most || slider.max);
    slider.disabled = field.value !== "" && !Number.isFinite(value);
    // A slider that is too short for a value becomes long enough for it and as much again.
    while (value > Number(slider.max) && Number(slider.max) < most) slider.max = Math.min(most, 2 * Number(slider.max));
    slider.value = field.value === "" ? (slider.min || 0) : value;
  }
  followNeeds();
  $("mode-note").textContent = offered.modes[$("mode").value] ?? "";
}

function listen() {
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  for (const slider of document.querySelectorAll("[data-for]")) {
    slider.addEventListener("input", () => {
      // A placeholder says what an empty field means.
      const field = $(slider.dataset.for), empty = slider.value === slider.min && field.placeholder;
      field.value = empty ? "" : slider.value;
      ask();
    });
    slider.addEventListener("change", () => {
      const most = Number($(slider.dataset.for).max || 0);
      if (slider.value === slider.max && Number(slider.max) < most) slider.max = Math.min(most, 2 * Number(slider.max));
      follow();
    });
  }
  for (const id of Object.keys(defaults())) $(id).addEventListener("input", () => { follow(); ask(); });
  document.querySelectorAll('input[name="basis"]').forEach((box) => box.addEventListener("change", ask));
  $("upload").addEventListener("change", async () => { const picked = [...$("upload").files]; if (picked.length) await take(picked); $("upload").value = ""; });
  listenForDrops(drop);
  $("schedules-tab").addEventListener("click", async () => { if (document.body.dataset.tab === "schedules") return; showSchedules(); if (!timeline.view) await back(""); else remember(); });
  $("plan-tab").addEventListener("click", () => showPlan());
  $("trace-tab").addEventListener("click", () => showTrace());
  $("faster").addEventListener("click", () => find(request, changedFiles));
  $("copy").addEventListener("click", copy);
  listenForUndo();
  timeline.addEventListener("timeline-view", remember);
  addEventListener("hashchange", () => back());
}

async function back(hash = location.hash) {
  if (hash.startsWith("#plan")) { await showPlan(hash); return; }
  if (hash.startsWith("#trace")) { await showTrace(); return; }
  showSchedules();
  const view = await restore(hash);
  follow();
  picker.show();
  if (view) timeline.state = view;
  ask();
}

// ---- the other pages, which are loaded when they are first looked at

let plan = null, trace = null;

function showSchedules() {
  plan?.show(false);
  showTab("schedules");
  followUndo();
}

/** Give dropped files to the page that is shown; a folder has traces. */
async function drop(picked, folder) {
  if (folder || document.body.dataset.tab === "trace") await (await showTrace(false)).take(picked);
  else if (plan?.shown) await plan.take(picked.map(({ file }) => file));
  else await take(picked.map(({ file }) => file));
}

/** Without traces that were opened before there is an example, unless some are about to come. */
async function showTrace(example = true) {
  plan?.show(false);
  trace ??= (await import("./trace.js")).makeTrace(followUndo);
  showTab("trace");
  followUndo();
  if (example) trace.begin();
  history.replaceState(null, "", "#trace");
  applyTheme();
  return trace;
}

async function showPlan(hash) {
  plan ??= await (await import("./plan.js")).makePlan(compare, followUndo);
  plan.show(true, hash);
  followUndo();
  applyTheme();
}

/** A plan's schedule, by name or as a file, with its sizes and costs. */
async function compare({ name, file, costs, fields }) {
  showSchedules();
  await restore("#s=");
  form.costs = costs;
  if (file) form.files = [{ file }];
  else choose(name);
  for (const [id, value] of Object.entries(fields)) if ($(id)) $(id).value = [value].flat().join("/");
  follow();
  await changedFiles();
  scrollTo(0, 0);
}

const THEMES = ["auto", "light", "dark"];

function applyTheme() {
  let name = "auto";
  try { name = localStorage.getItem("debubble-theme") ?? "auto"; } catch { /* storage may be off */ }
  const dark = name === "dark" || (name === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("theme").textContent = `Theme: ${name}`;
  for (const part of document.querySelectorAll("debubble-timeline")) { part.dataset.theme = dark ? "dark" : "light"; part.repaint?.(); }
  return name;
}

async function begin() {
  applyTheme();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", applyTheme);
  $("theme").addEventListener("click", () => {
    const next = THEMES[(THEMES.indexOf(applyTheme()) + 1) % 3];
    try { localStorage.setItem("debubble-theme", next); } catch { /* as above */ }
    applyTheme();
  });
  const lists = await (await fetch("/api/schedules")).json();
  form.catalogue = lists.schedules;
  makeControls(lists);
  listen();
  await back();
}

begin();
