// The explorer in the browser. The server is asked for numbers; moving through time happens here, frame by frame.
const root = element.querySelector(".xp");
const find = (selector, within = root) => within.querySelector(selector);
const all = (selector, within = root) => [...within.querySelectorAll(selector)];
const KEYS = ["picture", "model", "solver", "steps", "horizon", "other", "other_solver", "other_steps", "other_horizon",
  "t", "head", "mass", "row", "column", "kind"];
const USUAL = { picture: "frog", t: 1, head: "mean", mass: 0.6, kind: "token" };
const SECONDS = 6; // that playing takes from the start to the end
const MOST_BYTES = 64 * 2 ** 20; // as the server has it: no use in sending what it refuses
const INFERNO = [[0, 0, 4], [31, 12, 72], [85, 15, 109], [136, 34, 106], [186, 54, 85], [227, 89, 51], [249, 140, 10],
  [249, 201, 50], [252, 255, 164]];

const state = { ...USUAL };
let known = { models: [], solvers: [], drawings: {} };
let own = null; // the data: address of the visitor's own picture
let playing = null;
const sides = ["", "other_"].map((prefix) => ({ prefix, data: null, stability: null, parting: null, turn: 0, parts: null }));

// ---------------------------------------------------------------- asking

const isThere = (side) => side.prefix === "" || Boolean(state.other);
const modelOf = (side) => (side.prefix ? state.other : state.model);

function questionOf(side) {
  const question = { model: modelOf(side), picture: own || state.picture, mass: state.mass, kind: state.kind };
  for (const key of ["solver", "steps", "horizon"]) {
    if (state[side.prefix + key] !== undefined) question[key] = state[side.prefix + key];
  }
  if (state.row !== undefined) Object.assign(question, { row: state.row, column: state.column });
  return question;
}

async function asked(name, question) {
  try {
    return await server[name](question);
  } catch (error) {
    return { problem: "The server did not answer; look at the terminal in which it runs." };
  }
}

function notice(text) {
  const place = find(".xp-notice");
  place.textContent = text || "";
  place.hidden = !text;
}

// While an answer is on its way, further changes wait and are asked once: dragging a slider never builds a queue.
async function refresh(side) {
  if (!isThere(side)) {
    Object.assign(side, { data: null, stability: null, parting: null, turn: side.turn + 1 });
    return layOut();
  }
  if (side.asking) { side.again = true; return; }
  side.asking = true;
  const turn = ++side.turn;
  if (side.parts) side.parts.article.setAttribute("aria-busy", "true");
  const began = performance.now();
  const data = await asked("look", questionOf(side));
  side.asking = false;
  if (side.again) { side.again = false; return refresh(side); }
  if (turn !== side.turn) return;
  if (data.problem) {
    notice(data.problem);
    if (side.parts) side.parts.article.setAttribute("aria-busy", "false");
    root.setAttribute("aria-busy", "false");
    return;
  }
  notice("");
  Object.assign(side, { data, stability: null, parting: null });
  keepInRange(side);
  layOut();
  side.parts.article.dataset.roundTrip = Math.round(performance.now() - began);
  root.setAttribute("aria-busy", "false");
  await measure(side, turn);
}

async function measure(side, turn) {
  const disturbed = state.row !== undefined;
  if (disturbed) await disturb(side, turn);
  const stability = await asked("stability", questionOf(side));
  if (turn !== side.turn) return;
  side.stability = stability.problem ? { words: [stability.problem], rates: [] } : stability;
  drawSide(side);
}

async function disturb(side, turn = side.turn) {
  if (!side.data) return;
  if (state.row === undefined) { side.parting = null; return drawSide(side); }
  const parting = await asked("perturb", questionOf(side));
  if (turn !== side.turn) return;
  side.parting = parting.problem ? { words: [parting.problem], times: [] } : parting;
  drawSide(side);
}

function keepInRange(side) {
  if (side.prefix === "" && !(state.head in side.data.attention)) state.head = "mean";
  const [rows, columns] = side.data.grid;
  if (side.prefix === "" && (state.row >= rows || state.column >= columns)) { delete state.row; delete state.column; }
}

// ---------------------------------------------------------------- the address

function writeAddress() {
  const words = new URLSearchParams();
  for (const [key, value] of new URLSearchParams(location.search)) if (!KEYS.includes(key)) words.set(key, value);
  for (const key of KEYS) {
    const value = state[key];
    if (value === undefined || value === "" || value === USUAL[key]) continue;
    if (key === "model" && value === known.models[0]) continue;
    words.set(key, value);
  }
  const query = words.toString();
  history.replaceState(null, "", location.pathname + (query ? "?" + query : ""));
}

// ---------------------------------------------------------------- controls

function fill(select, options) {
  select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
}

function showControls() {
  for (const side of sides) {
    const box = find(`details[data-side="${side.prefix}"]`);
    find(".xp-way", box).hidden = !isThere(side) || (side.data !== null && side.data.way === null);
    const way = side.data ? side.data.way : null;
    for (const key of ["solver", "steps", "horizon"]) {
      const control = find(`[data-key="${side.prefix + key}"]`, box);
      const value = state[side.prefix + key] ?? (way ? way[key] : undefined);
      if (value === undefined || document.activeElement === control && control.type === "range") { /* being moved */ }
      else {
        if (control.type === "range" && Number(value) > Number(control.max)) control.max = value;
        control.value = value;
      }
      const output = control.parentElement.querySelector(".xp-value");
      if (output && value !== undefined) output.textContent = value;
    }
  }
  find('[data-key="model"]').value = state.model;
  find('[data-key="other"]').value = state.other || "";
  const heads = sides[0].data ? Object.keys(sides[0].data.attention).filter((name) => /^\d+$/.test(name)) : [];
  const select = find('[data-key="head"]');
  const names = [["mean", "all heads (mean)"], ["rollout", "rollout"], ...heads.map((name) => [name, "head " + name])];
  if (select.options.length !== names.length) fill(select, names);
  select.value = state.head;
  find('[data-key="t"]').value = state.t;
  find('[data-key="mass"]').value = state.mass;
  find('[data-key="mass"]').parentElement.querySelector(".xp-value").textContent = Math.round(100 * state.mass) + "%";
  for (const button of all(".xp-drawings button")) {
    button.setAttribute("aria-pressed", String(!own && button.dataset.name === state.picture));
  }
  find(".xp-thumb").src = own || known.drawings[state.picture] || "";
}

function onControl(event) {
  const key = event.target.dataset.key;
  if (!key) return;
  const number = event.target.type === "range";
  const value = number ? Number(event.target.value) : event.target.value;
  if (value === "") delete state[key]; else state[key] = value;
  const output = event.target.parentElement.querySelector(".xp-value");
  if (number && output && key !== "t") output.textContent = key === "mass" ? Math.round(100 * value) + "%" : value;
  if (key === "t") { stop(); return moveTo(state.t); }
  if (key === "mass" || key === "head") { writeAddress(); return drawNow(); }
  if (key === "model" || key === "other") {
    const prefix = key === "other" ? "other_" : "";
    for (const name of ["solver", "steps", "horizon"]) delete state[prefix + name];
  }
  writeAddress();
  refresh(sides[key.startsWith("other") ? 1 : 0]);
}

root.addEventListener("input", onControl);
for (const button of all(".xp-own")) {
  button.addEventListener("click", () => {
    const side = sides[button.closest("details").dataset.side ? 1 : 0];
    for (const name of ["solver", "steps", "horizon"]) delete state[side.prefix + name];
    writeAddress();
    refresh(side);
  });
}

// ---------------------------------------------------------------- pictures from outside

function read(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

async function take(file) {
  if (!file) return;
  if (file.size > MOST_BYTES) return notice(`${file.name} has ${Math.round(file.size / 2 ** 20)} MiB; expected at most 64`);
  let data = await read(file);
  // An empty file, or one without a type, has a data: address that says neither.
  if (!data.includes(";base64,")) data = "data:application/octet-stream;base64,";
  const answer = await asked("receive", { name: file.name, data });
  if (answer.problem) return notice(answer.problem);
  own = answer.picture;
  delete state.row; delete state.column;
  writeAddress();
  notice("");
  sides.forEach(refresh);
  showControls();
}

find("#xp-file").addEventListener("change", (event) => { take(event.target.files[0]); event.target.value = ""; });
root.addEventListener("dragover", (event) => { event.preventDefault(); find(".xp-drop").classList.add("over"); });
root.addEventListener("dragleave", () => find(".xp-drop").classList.remove("over"));
root.addEventListener("drop", (event) => {
  event.preventDefault();
  find(".xp-drop").classList.remove("over");
  take(event.dataTransfer.files[0]);
});
document.addEventListener("paste", (event) => {
  const file = [...event.clipboardData.files][0];
  if (file) { event.preventDefault(); take(file); }
});

// ---------------------------------------------------------------- time

function moveTo(t, writing = true) {
  state.t = Math.round(100 * t) / 100;
  find('[data-key="t"]').value = t;
  drawNow(t);
  if (writing) writeAddress();
}

function stop() {
  if (playing === null) return;
  cancelAnimationFrame(playing);
  playing = null;
  showPlay();
  moveTo(state.t); // the moment in the address is the one that is shown
}

function showPlay() {
  const button = find(".xp-play");
  button.setAttribute("aria-pressed", String(playing !== null));
  find("b", button).textContent = playing === null ? "Play" : "Pause";
  find("span", button).textContent = playing === null ? "▶" : "❚❚";
}

find(".xp-play").addEventListener("click", () => {
  if (playing !== null) return stop();
  const end = Number(find('[data-key="t"]').max);
  const from = state.t >= end - 0.005 ? 0 : state.t;
  const began = performance.now();
  const step = (now) => {
    const t = from + Math.max(0, now - began) / 1000 / SECONDS * end;
    moveTo(Math.min(t, end), false);
    if (t >= end) return stop();
    playing = requestAnimationFrame(step);
  };
  playing = requestAnimationFrame(step);
  showPlay();
});

// ---------------------------------------------------------------- drawing

const SVG = "http://www.w3.org/2000/svg";
function svg(name, attributes = {}, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}
function html(name, attributes = {}, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}
const percent = (share) => (100 * share).toFixed(share < 0.0995 ? 1 : 0) + "%";
// A class has the same colour on both sides, so that they can be compared.
function colour(name) {
  const names = [...new Set(sides.flatMap((side) => (side.data ? side.data.classes : [])))];
  return `var(--c${Math.max(0, names.indexOf(name)) % 6})`;
}

// The value at t, linear between its neighbours, constant outside: as odevit.film.story.between has it.
function place(times, t) {
  if (t <= times[0]) return [0, 0, 0];
  const last = times.length - 1;
  if (t >= times[last]) return [last, last, 0];
  let n = 0;
  while (times[n + 1] < t) n++;
  return [n, n + 1, (t - times[n]) / (times[n + 1] - times[n])];
}
const between = (values, [a, b, share]) => values[a] + share * (values[b] - values[a]);
const mixed = (rows, [a, b, share]) => rows[a].map((value, k) => value + share * (rows[b][k] - value));

// The smallest set of patches that holds a share of the attention: as odevit.analysis.mass_threshold has it.
function holders(values, mass) {
  const total = values.reduce((sum, value) => sum + value, 0);
  const chosen = new Array(values.length).fill(mass >= 1);
  if (mass >= 1) return chosen;
  const order = values.map((_, k) => k).sort((a, b) => values[b] - values[a]);
  let before = 0;
  for (const k of order) {
    if (before >= mass * total) break;
    chosen[k] = true;
    before += values[k];
  }
  return chosen;
}

function inferno(share) {
  const position = Math.max(0, Math.min(1, share)) * (INFERNO.length - 1);
  const n = Math.min(INFERNO.length - 2, Math.floor(position));
  return INFERNO[n].map((from, k) => Math.round(from + (position - n) * (INFERNO[n + 1][k] - from)));
}

function makeSide(side) {
  const article = html("article", { class: "xp-side", "aria-busy": "false", "data-side": side.prefix || "first" });
  const title = html("h2"), facts = html("p", { class: "xp-facts", "aria-live": "polite" });
  const map = html("canvas", { class: "xp-map", width: 480, height: 480, tabindex: 0, role: "application",
    "aria-label": "Attention over the picture. Arrow keys choose a patch, Enter disturbs it, Escape lets go." });
  const scale = html("div", { class: "xp-scale" }, html("span", {}, "0"), html("i"), html("span"));
  find("i", scale).style.background =
    `linear-gradient(90deg, ${INFERNO.map((rgb) => `rgb(${rgb})`).join(", ")})`;
  const legend = html("ul", { class: "xp-legend" });
  const curves = svg("svg", { viewBox: "0 0 400 230", role: "img", "aria-label": "Probabilities over time" });
  const path = svg("svg", { viewBox: "0 0 400 270", role: "img", "aria-label": "The path in its plane" });
  const gap = svg("svg", { viewBox: "0 0 400 190", role: "img", "aria-label": "Distance between the two paths over time" });
  const empty = html("p", { class: "xp-empty" }, "Click a patch of the picture, or choose one with the arrow keys and press Enter.");
  const kinds = html("div", { class: "xp-kinds", role: "group", "aria-label": "What is changed" });
  for (const [kind, text] of [["token", "Nudge its token"], ["picture", "Cover it in the picture"], ["", "Let go"]]) {
    const button = html("button", { type: "button", class: "xp-button", "data-kind": kind }, text);
    button.addEventListener("click", () => {
      if (kind) state.kind = kind; else { delete state.row; delete state.column; }
      writeAddress();
      sides.forEach((each) => disturb(each));
    });
    kinds.append(button);
  }
  const told = { map: html("p"), path: html("p", { class: "told", "aria-live": "polite" }), gap: html("p", { class: "told", "aria-live": "polite" }) };
  const whose = [];
  const card = (name, heading, content, ...captions) =>
    html("figure", { class: "xp-card", "data-card": name },
      html("h3", {}, heading, whose[whose.push(html("span", { class: "xp-whose" })) - 1]), ...content, html("figcaption", {}, ...captions));
  const pathNote = html("p");
  article.append(title, facts, html("div", { class: "xp-cards" },
    card("attention", "What it looks at", [map, scale], told.map),
    card("probabilities", "What the head would say", [legend, curves],
      html("p", {}, "The probabilities that the head would give if the equation stopped at that moment; the dotted line is the horizon, where it does.")),
    card("path", "Where it goes", [path], pathNote, told.path),
    card("parting", "Disturb one patch", [kinds, empty, gap],
      html("p", {}, "How far apart two paths are that begin apart in one patch, as a share of the state's length (logarithmic)."), told.gap)));
  side.parts = { article, title, facts, map, scale, legend, curves, path, pathNote, gap, empty, kinds, told, whose, cursor: null };
  map.addEventListener("click", (event) => {
    const box = map.getBoundingClientRect(), [rows, columns] = side.data.grid;
    choose(Math.floor((event.clientY - box.top) / box.height * rows), Math.floor((event.clientX - box.left) / box.width * columns));
  });
  map.addEventListener("keydown", (event) => onMapKey(side, event));
  map.addEventListener("blur", () => { side.parts.cursor = null; drawMoment(side, state.t); });
}

function onMapKey(side, event) {
  const [rows, columns] = side.data.grid;
  const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  let cursor = side.parts.cursor || (state.row !== undefined ? [state.row, state.column] : [rows >> 1, columns >> 1]);
  if (event.key in moves) {
    const [down, right] = moves[event.key];
    if (side.parts.cursor) cursor = [(cursor[0] + down + rows) % rows, (cursor[1] + right + columns) % columns];
    side.parts.cursor = cursor;
    drawMoment(side, state.t);
  } else if (event.key === "Enter" || event.key === " ") {
    choose(...cursor);
  } else if (event.key === "Escape") {
    delete state.row; delete state.column;
    side.parts.cursor = null;
    writeAddress();
    sides.forEach((each) => disturb(each));
  } else return;
  event.preventDefault();
}

function choose(row, column) {
  state.row = row;
  state.column = column;
  writeAddress();
  sides.forEach((each) => disturb(each));
}

function layOut() {
  const box = find(".xp-sides"), shown = sides.filter((side) => isThere(side) && side.data);
  for (const side of sides) if (!side.parts) makeSide(side);
  const wanted = shown.map((side) => side.parts.article);
  if (wanted.length !== box.children.length || wanted.some((article, k) => box.children[k] !== article)) {
    box.replaceChildren(...wanted);
  }
  box.classList.toggle("two", shown.length > 1);
  showControls();
  shown.forEach(drawSide);
}

function drawSide(side) {
  if (!side.data || !side.parts) return;
  const { parts, data } = side;
  parts.article.setAttribute("aria-busy", "false");
  parts.title.textContent = modelOf(side);
  drawFacts(side);
  prepareMap(side);
  drawCurves(side);
  drawPath(side);
  drawGap(side);
  parts.told.map.textContent = `Which patches the answer is made from: attention of the ${data.query === "CLS" ? "CLS token" : data.query} ` +
    `at this moment; the outline holds the chosen share of it. Click a patch to disturb it.`;
  drawMoment(side, state.t);
}

function drawFacts(side) {
  const { data, parts } = side, answer = data.answer;
  const way = data.way ? `${data.way.solver.replaceAll("_", " ")}, ${data.way.steps} steps, T = ${data.way.horizon}` : `${data.times.length - 1} layers`;
  for (const name of parts.whose) name.textContent = `${modelOf(side)}: ${way}`;
  const changed = data.changed
    ? html("span", { class: "changed" }, `answer changed: its own way says ${data.usual.label} (${percent(data.usual.share)})`)
    : html("span", {}, data.way ? "same answer as in its own way" : "a stack of layers: no way to choose");
  parts.facts.replaceChildren(html("strong", { class: "xp-answer" }, answer.label), html("b", {}, percent(answer.share)), html("span", {}, way),
    html("span", {}, html("b", { class: "xp-nfe" }, String(answer.nfe)), " NFE"),
    html("span", {}, html("b", {}, answer.milliseconds.toFixed(answer.milliseconds < 10 ? 1 : 0)), " ms"), changed);
}

function prepareMap(side) {
  const { data, parts } = side;
  if (parts.pictured === data.picture) return;
  parts.pictured = data.picture;
  parts.grey = null;
  const image = new Image();
  image.onload = () => {
    const canvas = html("canvas", { width: 480, height: 480 }), pen = canvas.getContext("2d");
    pen.imageSmoothingEnabled = image.width > 240;
    pen.drawImage(image, 0, 0, 480, 480);
    const pixels = pen.getImageData(0, 0, 480, 480), values = pixels.data;
    for (let k = 0; k < values.length; k += 4) {
      // Grey levels closer together than they are: the picture must not outshine what is shown over it.
      const grey = 56 + 0.56 * (0.299 * values[k] + 0.587 * values[k + 1] + 0.114 * values[k + 2]);
      values[k] = values[k + 1] = values[k + 2] = grey;
    }
    pen.putImageData(pixels, 0, 0);
    parts.grey = canvas;
    drawMoment(side, state.t);
  };
  image.src = data.picture;
}

const timeOf = (side, t) => Math.min(t * side.data.horizon, side.data.times[side.data.times.length - 1]);

function drawNow(t = state.t) { for (const side of sides) if (side.data && side.parts) drawMoment(side, t); }

// What depends on the moment, and nothing else: this runs for every frame.
function drawMoment(side, t) {
  const { data, parts } = side, at = place(data.times, timeOf(side, t));
  if (side.prefix === "") {
    const time = timeOf(side, t);
    find(".xp-now").textContent = data.way ? `t = ${time.toFixed(2)}, ${t.toFixed(2)} horizons` : `layer ${time.toFixed(1)}`;
    find('[data-key="t"]').setAttribute("aria-valuetext", find(".xp-now").textContent);
  }
  const name = state.head in data.attention ? state.head : "mean";
  const rows = data.attention[name], values = mixed(rows, at), [down, across] = data.grid;
  if (parts.mapOf !== rows) {
    parts.mapOf = rows;
    parts.range = [Math.min(...rows.map((row) => Math.min(...row))), Math.max(...rows.map((row) => Math.max(...row)))];
    parts.scale.children[0].textContent = percent(parts.range[0]);
    parts.scale.children[2].textContent = percent(parts.range[1]) + " of the attention per patch";
  }
  drawMap(parts, values, down, across);
  if (parts.dots) {
    const x = parts.scaleX(timeOf(side, t));
    parts.now.setAttribute("x1", x);
    parts.now.setAttribute("x2", x);
    parts.dots.forEach((dot, k) => {
      const share = between(data.probabilities[k], at);
      dot.setAttribute("cx", x);
      dot.setAttribute("cy", parts.scaleY(share));
      parts.shares[k].textContent = percent(share);
    });
  }
  if (parts.walker) parts.walker.forEach(([node, points]) => {
    const [px, py] = mixed(points, at);
    node.setAttribute("cx", px);
    node.setAttribute("cy", py);
  });
  if (parts.gapNow) {
    parts.gapNow.setAttribute("x1", parts.gapX(timeOf(side, t)));
    parts.gapNow.setAttribute("x2", parts.gapX(timeOf(side, t)));
  }
}

function drawMap(parts, values, rows, columns) {
  const pen = parts.map.getContext("2d"), size = 480, [low, high] = parts.range;
  pen.clearRect(0, 0, size, size);
  if (parts.grey) pen.drawImage(parts.grey, 0, 0);
  const small = parts.small && parts.small.width === columns && parts.small.height === rows
    ? parts.small : (parts.small = html("canvas", { width: columns, height: rows }));
  const tiny = small.getContext("2d"), pixels = tiny.createImageData(columns, rows);
  values.forEach((value, k) => {
    const [r, g, b] = inferno((value - low) / Math.max(high - low, 1e-12));
    pixels.data.set([r, g, b, 178], 4 * k);
  });
  tiny.putImageData(pixels, 0, 0);
  pen.imageSmoothingEnabled = true;
  pen.drawImage(small, 0, 0, size, size);
  const chosen = holders(values, state.mass), inside = (row, column) =>
    row >= 0 && column >= 0 && row < rows && column < columns && chosen[row * columns + column];
  parts.map.dataset.outlined = chosen.filter(Boolean).length;
  const width = size / columns, height = size / rows;
  pen.beginPath();
  for (let row = 0; row <= rows; row++) for (let column = 0; column <= columns; column++) {
    if (inside(row, column) !== inside(row - 1, column)) { pen.moveTo(column * width, row * height); pen.lineTo((column + 1) * width, row * height); }
    if (inside(row, column) !== inside(row, column - 1)) { pen.moveTo(column * width, row * height); pen.lineTo(column * width, (row + 1) * height); }
  }
  for (const [style, thickness] of [["rgba(0,0,0,0.55)", 5], ["#ffffff", 2.2]]) { pen.strokeStyle = style; pen.lineWidth = thickness; pen.stroke(); }
  const frame = (row, column, style) => {
    pen.lineWidth = 4;
    pen.strokeStyle = style;
    pen.strokeRect(column * width + 2, row * height + 2, width - 4, height - 4);
  };
  if (state.row !== undefined) frame(state.row, state.column, "#29e0ff");
  if (parts.cursor) frame(...parts.cursor, "#ffe14d");
}

function ticks(end) {
  const rough = end / 5, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  return Array.from({ length: Math.floor(end / step + 1e-6) + 1 }, (_, k) => Number((k * step).toPrecision(6)));
}

function timeAxis(node, data, left, right, bottom, top) {
  const end = data.times[data.times.length - 1], x = (t) => left + (right - left) * t / end;
  node.append(svg("line", { class: "axis", x1: left, x2: right, y1: bottom, y2: bottom }));
  for (const t of ticks(end)) node.append(svg("text", { x: x(t), y: bottom + 15, "text-anchor": "middle" }, t));
  node.append(svg("text", { x: right, y: bottom + 29, "text-anchor": "end" }, data.way ? "integration time t" : "layer"));
  node.append(svg("line", { class: "horizon", x1: x(data.horizon), x2: x(data.horizon), y1: top, y2: bottom }));
  return x;
}

const line = (points) => points.map(([x, y], k) => (k ? "L" : "M") + x.toFixed(1) + " " + y.toFixed(1)).join("");

function drawCurves(side) {
  const { data, parts } = side, node = parts.curves;
  node.replaceChildren();
  const x = timeAxis(node, data, 36, 394, 192, 8), y = (share) => 192 - 180 * share;
  for (const share of [0, 0.5, 1]) {
    node.append(svg("line", { class: "axis", x1: 36, x2: 394, y1: y(share), y2: y(share), opacity: share ? 0.6 : 1 }));
    node.append(svg("text", { x: 30, y: y(share) + 4, "text-anchor": "end" }, 100 * share + "%"));
  }
  data.probabilities.forEach((curve, k) => node.append(
    svg("path", { class: "curve", d: line(curve.map((share, n) => [x(data.times[n]), y(share)])), stroke: colour(data.classes[k]) })));
  parts.now = svg("line", { class: "now", y1: 8, y2: 192 });
  parts.dots = data.probabilities.map((_, k) => svg("circle", { r: 4, fill: colour(data.classes[k]) }));
  node.append(parts.now, ...parts.dots);
  Object.assign(parts, { scaleX: x, scaleY: y });
  parts.shares = data.classes.map(() => html("b"));
  parts.legend.replaceChildren(...data.classes.map((name, k) => {
    const chip = html("i");
    chip.style.background = colour(name);
    return html("li", {}, chip, name + " ", parts.shares[k]);
  }));
  const best = data.answer;
  node.setAttribute("aria-label", `Probabilities over time: ${best.label} ${percent(best.share)} at the horizon, of ${data.classes.join(", ")}`);
}

function drawPath(side) {
  const { data, parts, stability, parting } = side, node = parts.path;
  node.replaceChildren();
  const both = parting && parting.times.length ? parting : null;
  const path = both ? both.path : data.path, layers = both ? null : data.layers, explained = both ? both.explained : data.explained;
  const every = [...path, ...(both ? both.other : []), ...(layers || [])];
  const xs = every.map((point) => point[0]), ys = every.map((point) => point[1]);
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  // One scale for both axes: a distance in the picture is a distance in the plane.
  const unit = Math.min(340 / Math.max(right - left, 1e-9), 200 / Math.max(high - low, 1e-9));
  const to = ([x, y]) => [205 + unit * (x - (left + right) / 2), 112 - unit * (y - (low + high) / 2)];
  const points = path.map(to), rates = stability && stability.rates ? stability.rates : [];
  const limit = Math.max(1e-9, ...rates.filter((rate) => rate !== null).map(Math.abs));
  if (layers) {
    node.append(svg("path", { class: "curve", d: line(layers.map(to)), stroke: "var(--quiet)", "stroke-dasharray": "2 4" }));
    layers.map(to).forEach(([x, y], k) => {
      const dot = svg("rect", { class: "layer", x: x - 3.5, y: y - 3.5, width: 7, height: 7, fill: "var(--card)", stroke: "var(--quiet)" });
      dot.append(svg("title", {}, `teacher, layer ${k}`));
      node.append(dot);
    });
  }
  for (let n = 0; n + 1 < points.length; n++) {
    const rate = rates[n], known = rate !== undefined && rate !== null;
    const share = known ? Math.round(100 * Math.min(1, Math.abs(rate) / limit)) : 0;
    const stroke = known ? `color-mix(in srgb, ${rate < 0 ? "var(--meet)" : "var(--part)"} ${share}%, var(--still))` : "var(--still)";
    node.append(svg("path", { d: line(points.slice(n, n + 2)), style: `stroke: ${stroke}`, class: known ? "curve measured" : "curve" }));
  }
  points.forEach(([x, y]) => node.append(svg("circle", { cx: x, cy: y, r: 1.6, fill: "var(--quiet)" })));
  parts.walker = [[svg("circle", { r: 6, fill: "var(--ink)", stroke: "var(--card)", "stroke-width": 2 }), points]];
  if (both) {
    const other = both.other.map(to);
    node.append(svg("path", { class: "curve other", d: line(other), stroke: "var(--c3)", "stroke-dasharray": "5 4" }));
    parts.walker.push([svg("circle", { r: 5, fill: "var(--c3)", stroke: "var(--card)", "stroke-width": 2 }), other]);
  }
  const [startX, startY] = points[0];
  node.append(svg("circle", { cx: startX, cy: startY, r: 5, fill: "var(--card)", stroke: "var(--ink)", "stroke-width": 1.5 }));
  node.append(svg("text", { class: "bold", x: startX, y: startY - 10, "text-anchor": "middle" }, "start"));
  parts.walker.forEach(([dot]) => node.append(dot));
  node.append(svg("text", { x: 6, y: 262 }, `axes: ${percent(explained[0])} and ${percent(explained[1])} of the variance`));
  if (rates.length) {
    const share = (sign) => sign < 0 ? "var(--meet)" : "var(--part)";
    [[-1, "neighbours meet", 220], [1, "part", 336]].forEach(([sign, text, x]) => {
      node.append(svg("rect", { x, y: 253, width: 12, height: 10, rx: 2, style: `fill: ${share(sign)}` }));
      node.append(svg("text", { x: x + 17, y: 262 }, text));
    });
  }
  const who = data.query === "CLS" ? "CLS token" : data.query;
  parts.pathNote.textContent = `The ${who} in the plane in which it moves most` +
    (layers ? ", with the teacher's layers as squares" : "") + (both ? "; dashed, the disturbed path" : "") +
    "; thick and coloured up to the horizon, by whether a small change dies out or grows there.";
  parts.told.path.textContent = stability ? stability.words.join(" ") : "Measuring how stable it is …";
  node.setAttribute("aria-label", "The path in its plane. " + (stability ? stability.words.join(" ") : ""));
}

function drawGap(side) {
  const { data, parts, parting } = side, node = parts.gap;
  node.replaceChildren();
  parts.gapNow = null;
  const there = Boolean(parting && parting.times.length);
  parts.empty.hidden = state.row !== undefined;
  node.toggleAttribute("hidden", !there);
  node.style.display = there ? "" : "none";
  for (const button of all("button", parts.kinds)) {
    button.setAttribute("aria-pressed", String(button.dataset.kind === state.kind && state.row !== undefined));
    if (!button.dataset.kind) button.hidden = state.row === undefined;
  }
  parts.told.gap.textContent = parting ? parting.words.join(" ") : state.row !== undefined ? "Integrating the second path …" : "";
  if (!there) return;
  const x = timeAxis(node, data, 44, 394, 152, 8);
  const values = parting.distance.map((value) => Math.log10(Math.max(value, 1e-8)));
  const low = Math.floor(Math.min(...values)), high = Math.max(low + 1, Math.ceil(Math.max(...values)));
  const y = (value) => 152 - 140 * (value - low) / (high - low);
  for (let power = low; power <= high; power++) {
    node.append(svg("line", { class: "axis", x1: 44, x2: 394, y1: y(power), y2: y(power), opacity: 0.6 }));
    node.append(svg("text", { x: 38, y: y(power) + 4, "text-anchor": "end" }, power >= -3 ? Number((100 * 10 ** power).toPrecision(2)) + "%" : "1e" + power));
  }
  node.append(svg("path", { class: "curve", d: line(values.map((value, n) => [x(parting.times[n]), y(value)])), stroke: "var(--c3)" }));
  parts.gapNow = svg("line", { class: "now", y1: 8, y2: 152 });
  parts.gapX = x;
  node.append(parts.gapNow);
}

// ---------------------------------------------------------------- files

function hand(name, blob) {
  const link = html("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

function shown() {
  return { view: Object.fromEntries(Object.entries(state).filter(([, value]) => value !== undefined && value !== "")),
    sides: sides.filter((side) => side.data).map((side) => ({ model: modelOf(side), ...side.data, stability: side.stability, parting: side.parting })) };
}

for (const button of all("[data-save]")) {
  button.addEventListener("click", async () => {
    const told = find(".xp-saved"), what = button.dataset.save;
    if (what === "numbers") {
      hand("odevit-explorer.json", new Blob([JSON.stringify(shown(), null, 1)], { type: "application/json" }));
      told.textContent = "Saved: odevit-explorer.json";
    } else if (what === "address") {
      writeAddress();
      try {
        await navigator.clipboard.writeText(location.href);
        told.textContent = own ? "Copied, without your own picture, which is in no address." : "Copied.";
      } catch (error) {
        told.textContent = "The browser did not allow it: copy the address from its bar.";
      }
    } else {
      button.disabled = true;
      told.textContent = what === "film" ? "Drawing the film …" : "Drawing the figures …";
      for (const side of sides.filter((each) => each.data)) {
        const file = await asked(what, questionOf(side));
        if (file.problem) { told.textContent = file.problem; break; }
        const bytes = Uint8Array.from(atob(file.data), (letter) => letter.charCodeAt(0));
        hand(side.prefix ? "second-" + file.name : file.name, new Blob([bytes], { type: file.type }));
        told.textContent = "Saved: " + file.name;
      }
      button.disabled = false;
    }
  });
}

// ---------------------------------------------------------------- begin

async function begin() {
  const answer = await asked("open", location.search);
  if (answer.problem) return notice(answer.problem);
  known = answer;
  Object.assign(state, answer.view);
  const solvers = answer.solvers.map((name) => [name, name.replaceAll("_", " ")]);
  for (const prefix of ["", "other_"]) fill(find(`[data-key="${prefix}solver"]`), solvers);
  fill(find('[data-key="model"]'), answer.models.map((name) => [name, name]));
  fill(find('[data-key="other"]'), [["", "none"], ...answer.models.map((name) => [name, name])]);
  find(".xp-drawings").replaceChildren(...Object.entries(answer.drawings).map(([name, url]) => {
    const button = html("button", { type: "button", class: "xp-button", "data-name": name, "aria-label": `Drawing: ${name}`, title: name },
      html("img", { src: url, alt: "" }));
    button.addEventListener("click", () => {
      own = null;
      state.picture = name;
      writeAddress();
      showControls();
      sides.forEach(refresh);
    });
    return button;
  }));
  if (window.innerWidth <= 760) for (const box of all("details.xp-box")) box.open = false; // what happens comes first
  showControls();
  await Promise.all(sides.filter(isThere).map(refresh));
  if (answer.problems.length) notice("The address was read in part: " + answer.problems.join("; "));
}
begin();
