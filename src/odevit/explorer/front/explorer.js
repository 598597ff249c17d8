// The explorer in the browser. The server sends all numbers of an image at once; moving through time is drawn here.
const root = element.querySelector(".xp");
const find = (selector, within = root) => within.querySelector(selector);
const all = (selector, within = root) => [...within.querySelectorAll(selector)];
const KEYS = ["picture", "model", "solver", "steps", "horizon", "other", "other_solver", "other_steps", "other_horizon",
  "t", "head", "mass", "row", "column", "kind"];
const DEFAULTS = { picture: "frog", t: 1, head: "mean", mass: 0.6, kind: "token" };
const SECONDS = 6; // playing time from the start to the end
const MAX_BYTES = 64 * 2 ** 20; // the server's limit
const INFERNO = [[0, 0, 4], [31, 12, 72], [85, 15, 109], [136, 34, 106], [186, 54, 85], [227, 89, 51], [249, 140, 10],
  [249, 201, 50], [252, 255, 164]];

const state = { ...DEFAULTS };
let choices = { models: [], solvers: [], drawings: {} };
let uploaded = null; // the data: URL of the visitor's image
let playing = null;
const sides = ["", "other_"].map((prefix) => ({ prefix, data: null, stability: null, divergence: null, version: 0, nodes: null }));

// ---------------------------------------------------------------- requests

const isVisible = (side) => side.prefix === "" || Boolean(state.other);
const modelOf = (side) => (side.prefix ? state.other : state.model);

function requestOf(side) {
  const body = { model: modelOf(side), picture: uploaded || state.picture, mass: state.mass, kind: state.kind };
  for (const key of ["solver", "steps", "horizon"]) {
    if (state[side.prefix + key] !== undefined) body[key] = state[side.prefix + key];
  }
  if (state.row !== undefined) Object.assign(body, { row: state.row, column: state.column });
  return body;
}

async function send(name, body) {
  try {
    return await server[name](body);
  } catch (error) {
    return { problem: "No response from the server. See the terminal in which odevit serve runs." };
  }
}

function notice(text) {
  const place = find(".xp-notice");
  place.textContent = text || "";
  place.hidden = !text;
}

// One request at a time: changes made meanwhile are sent together afterwards, so that dragging a slider builds no queue.
async function refresh(side) {
  if (!isVisible(side)) {
    Object.assign(side, { data: null, stability: null, divergence: null, version: side.version + 1 });
    return layout();
  }
  if (side.loading) { side.stale = true; return; }
  side.loading = true;
  const version = ++side.version;
  if (side.nodes) side.nodes.article.setAttribute("aria-busy", "true");
  const began = performance.now();
  const data = await send("trace", requestOf(side));
  side.loading = false;
  if (side.stale) { side.stale = false; return refresh(side); }
  if (version !== side.version) return;
  if (data.problem) {
    notice(data.problem);
    if (side.nodes) side.nodes.article.setAttribute("aria-busy", "false");
    root.setAttribute("aria-busy", "false");
    return;
  }
  notice("");
  Object.assign(side, { data, stability: null, divergence: null });
  dropInvalidChoices(side);
  layout();
  side.nodes.article.dataset.roundTrip = Math.round(performance.now() - began);
  root.setAttribute("aria-busy", "false");
  await loadStability(side, version);
}

async function loadStability(side, version) {
  if (state.row !== undefined) await loadDivergence(side, version);
  const stability = await send("stability", requestOf(side));
  if (version !== side.version) return;
  side.stability = stability.problem ? { text: stability.problem, rates: [] } : stability;
  drawSide(side);
}

async function loadDivergence(side, version = side.version) {
  if (!side.data) return;
  if (state.row === undefined) { side.divergence = null; return drawSide(side); }
  const divergence = await send("perturb", requestOf(side));
  if (version !== side.version) return;
  side.divergence = divergence.problem ? { text: divergence.problem, times: [] } : divergence;
  drawSide(side);
}

function dropInvalidChoices(side) {
  if (side.prefix === "" && !(state.head in side.data.attention)) state.head = "mean";
  const [rows, columns] = side.data.grid;
  if (side.prefix === "" && (state.row >= rows || state.column >= columns)) { delete state.row; delete state.column; }
}

// ---------------------------------------------------------------- the URL

function writeUrl() {
  const query = new URLSearchParams();
  for (const [key, value] of new URLSearchParams(location.search)) if (!KEYS.includes(key)) query.set(key, value);
  for (const key of KEYS) {
    const value = state[key];
    if (value === undefined || value === "" || value === DEFAULTS[key]) continue;
    if (key === "model" && value === choices.models[0]) continue;
    query.set(key, value);
  }
  const search = query.toString();
  history.replaceState(null, "", location.pathname + (search ? "?" + search : ""));
}

// ---------------------------------------------------------------- controls

function fill(select, options) {
  select.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
}

function showControls() {
  for (const side of sides) {
    const box = find(`details[data-side="${side.prefix}"]`);
    find(".xp-solver", box).hidden = !isVisible(side) || (side.data !== null && side.data.solver_config === null);
    const solver = side.data ? side.data.solver_config : null;
    for (const key of ["solver", "steps", "horizon"]) {
      const control = find(`[data-key="${side.prefix + key}"]`, box);
      const value = state[side.prefix + key] ?? (solver ? solver[key] : undefined);
      if (value === undefined || document.activeElement === control && control.type === "range") { /* being dragged */ }
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
    button.setAttribute("aria-pressed", String(!uploaded && button.dataset.name === state.picture));
  }
  find(".xp-thumb").src = uploaded || choices.drawings[state.picture] || "";
}

function onControl(event) {
  const key = event.target.dataset.key;
  if (!key) return;
  const number = event.target.type === "range";
  const value = number ? Number(event.target.value) : event.target.value;
  if (value === "") delete state[key]; else state[key] = value;
  const output = event.target.parentElement.querySelector(".xp-value");
  if (number && output && key !== "t") output.textContent = key === "mass" ? Math.round(100 * value) + "%" : value;
  if (key === "t") { pause(); return showTime(state.t); }
  if (key === "mass" || key === "head") { writeUrl(); return redraw(); }
  if (key === "model" || key === "other") {
    const prefix = key === "other" ? "other_" : "";
    for (const name of ["solver", "steps", "horizon"]) delete state[prefix + name];
  }
  writeUrl();
  refresh(sides[key.startsWith("other") ? 1 : 0]);
}

root.addEventListener("input", onControl);
for (const button of all(".xp-reset")) {
  button.addEventListener("click", () => {
    const side = sides[button.closest("details").dataset.side ? 1 : 0];
    for (const name of ["solver", "steps", "horizon"]) delete state[side.prefix + name];
    writeUrl();
    refresh(side);
  });
}

// ---------------------------------------------------------------- uploads

function read(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

async function upload(file) {
  if (!file) return;
  if (file.size > MAX_BYTES) return notice(`${file.name} has ${Math.round(file.size / 2 ** 20)} MiB; expected at most 64`);
  let data = await read(file);
  // The data: URL of an empty file, or of one without a type, has no base64 part.
  if (!data.includes(";base64,")) data = "data:application/octet-stream;base64,";
  const answer = await send("upload", { name: file.name, data });
  if (answer.problem) return notice(answer.problem);
  uploaded = answer.image;
  delete state.row; delete state.column;
  writeUrl();
  notice("");
  sides.forEach(refresh);
  showControls();
}

find("#xp-file").addEventListener("change", (event) => { upload(event.target.files[0]); event.target.value = ""; });
root.addEventListener("dragover", (event) => { event.preventDefault(); find(".xp-drop").classList.add("over"); });
root.addEventListener("dragleave", () => find(".xp-drop").classList.remove("over"));
root.addEventListener("drop", (event) => {
  event.preventDefault();
  find(".xp-drop").classList.remove("over");
  upload(event.dataTransfer.files[0]);
});
document.addEventListener("paste", (event) => {
  const file = [...event.clipboardData.files][0];
  if (file) { event.preventDefault(); upload(file); }
});

// ---------------------------------------------------------------- time

function showTime(t, writing = true) {
  state.t = Math.round(100 * t) / 100;
  find('[data-key="t"]').value = t;
  redraw(t);
  if (writing) writeUrl();
}

function pause() {
  if (playing === null) return;
  cancelAnimationFrame(playing);
  playing = null;
  showPlay();
  showTime(state.t); // writes the displayed time into the URL
}

function showPlay() {
  const button = find(".xp-play");
  button.setAttribute("aria-pressed", String(playing !== null));
  find("b", button).textContent = playing === null ? "Play" : "Pause";
  find("span", button).textContent = playing === null ? "▶" : "❚❚";
}

find(".xp-play").addEventListener("click", () => {
  if (playing !== null) return pause();
  const end = Number(find('[data-key="t"]').max);
  const from = state.t >= end - 0.005 ? 0 : state.t;
  const began = performance.now();
  const step = (now) => {
    const t = from + Math.max(0, now - began) / 1000 / SECONDS * end;
    showTime(Math.min(t, end), false);
    if (t >= end) return pause();
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
// A class has the same colour on both sides.
function colourOf(name) {
  const names = [...new Set(sides.flatMap((side) => (side.data ? side.data.classes : [])))];
  return `var(--c${Math.max(0, names.indexOf(name)) % 6})`;
}

// The two indices around t and the position between them; see interpolate in traces.py.
function locate(times, t) {
  if (t <= times[0]) return [0, 0, 0];
  const last = times.length - 1;
  if (t >= times[last]) return [last, last, 0];
  let n = 0;
  while (times[n + 1] < t) n++;
  return [n, n + 1, (t - times[n]) / (times[n + 1] - times[n])];
}
const valueAt = (values, [a, b, share]) => values[a] + share * (values[b] - values[a]);
const rowAt = (rows, [a, b, share]) => rows[a].map((value, k) => value + share * (rows[b][k] - value));

// The smallest set of patches that holds a share of the attention; see mass_threshold in objectives/attention_matching.py.
function patchesInside(values, mass) {
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
  const title = html("h2"), summary = html("p", { class: "xp-summary", "aria-live": "polite" });
  const map = html("canvas", { class: "xp-map", width: 480, height: 480, tabindex: 0, role: "application",
    "aria-label": "Attention over the image. Arrow keys select a patch, Enter perturbs it, Escape clears the perturbation." });
  const scale = html("div", { class: "xp-scale" }, html("span", {}, "0"), html("i"), html("span"));
  find("i", scale).style.background =
    `linear-gradient(90deg, ${INFERNO.map((rgb) => `rgb(${rgb})`).join(", ")})`;
  const legend = html("ul", { class: "xp-legend" });
  const curves = svg("svg", { viewBox: "0 0 400 230", role: "img", "aria-label": "Class probabilities over time" });
  const path = svg("svg", { viewBox: "0 0 400 270", role: "img", "aria-label": "Trajectory" });
  const distance = svg("svg", { viewBox: "0 0 400 190", role: "img", "aria-label": "Distance of the two paths over time" });
  const empty = html("p", { class: "xp-empty" }, "Click a patch of the image, or select one with the arrow keys and press Enter.");
  const kinds = html("div", { class: "xp-kinds", role: "group", "aria-label": "Kind of perturbation" });
  for (const [kind, text] of [["token", "Add noise to its token"], ["picture", "Mask it in the image"], ["", "Clear"]]) {
    const button = html("button", { type: "button", class: "xp-button", "data-kind": kind }, text);
    button.addEventListener("click", () => {
      if (kind) state.kind = kind; else { delete state.row; delete state.column; }
      writeUrl();
      sides.forEach((each) => loadDivergence(each));
    });
    kinds.append(button);
  }
  const notes = { map: html("p"), path: html("p", { class: "xp-text", "aria-live": "polite" }), distance: html("p", { class: "xp-text", "aria-live": "polite" }) };
  const modelNames = [];
  const card = (name, heading, content, ...captions) =>
    html("figure", { class: "xp-card", "data-card": name },
      html("h3", {}, heading, modelNames[modelNames.push(html("span", { class: "xp-model-name" })) - 1]), ...content, html("figcaption", {}, ...captions));
  const pathNote = html("p");
  article.append(title, summary, html("div", { class: "xp-cards" },
    card("attention", "Attention", [map, scale], notes.map),
    card("probabilities", "Class probabilities", [legend, curves],
      html("p", {}, "Class probabilities if the integration stopped at that time. The dotted line is the horizon, where the prediction is made.")),
    card("path", "Trajectory", [path], pathNote, notes.path),
    card("divergence", "Perturb one patch", [kinds, empty, distance],
      html("p", {}, "Distance of two paths that differ in one patch at the start, relative to the norm of the state (logarithmic)."), notes.distance)));
  side.nodes = { article, title, summary, map, scale, legend, curves, path, pathNote, distance, empty, kinds, notes, modelNames, cursor: null };
  map.addEventListener("click", (event) => {
    const box = map.getBoundingClientRect(), [rows, columns] = side.data.grid;
    choose(Math.floor((event.clientY - box.top) / box.height * rows), Math.floor((event.clientX - box.left) / box.width * columns));
  });
  map.addEventListener("keydown", (event) => onMapKey(side, event));
  map.addEventListener("blur", () => { side.nodes.cursor = null; drawTime(side, state.t); });
}

function onMapKey(side, event) {
  const [rows, columns] = side.data.grid;
  const moves = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  let cursor = side.nodes.cursor || (state.row !== undefined ? [state.row, state.column] : [rows >> 1, columns >> 1]);
  if (event.key in moves) {
    const [down, right] = moves[event.key];
    if (side.nodes.cursor) cursor = [(cursor[0] + down + rows) % rows, (cursor[1] + right + columns) % columns];
    side.nodes.cursor = cursor;
    drawTime(side, state.t);
  } else if (event.key === "Enter" || event.key === " ") {
    choose(...cursor);
  } else if (event.key === "Escape") {
    delete state.row; delete state.column;
    side.nodes.cursor = null;
    writeUrl();
    sides.forEach((each) => loadDivergence(each));
  } else return;
  event.preventDefault();
}

function choose(row, column) {
  state.row = row;
  state.column = column;
  writeUrl();
  sides.forEach((each) => loadDivergence(each));
}

function layout() {
  const box = find(".xp-sides"), visible = sides.filter((side) => isVisible(side) && side.data);
  for (const side of sides) if (!side.nodes) makeSide(side);
  const wanted = visible.map((side) => side.nodes.article);
  if (wanted.length !== box.children.length || wanted.some((article, k) => box.children[k] !== article)) {
    box.replaceChildren(...wanted);
  }
  box.classList.toggle("two", visible.length > 1);
  showControls();
  visible.forEach(drawSide);
}

function drawSide(side) {
  if (!side.data || !side.nodes) return;
  const { nodes, data } = side;
  nodes.article.setAttribute("aria-busy", "false");
  nodes.title.textContent = modelOf(side);
  drawSummary(side);
  prepareMap(side);
  drawCurves(side);
  drawPath(side);
  drawDistance(side);
  const query = data.query === "CLS" ? "CLS token" : data.query;
  nodes.notes.map.textContent = `Attention of the ${query} at this time. The outline holds the chosen share of it. Click a patch to perturb it.`;
  drawTime(side, state.t);
}

function drawSummary(side) {
  const { data, nodes } = side, best = data.prediction, solver = data.solver_config;
  const settings = solver ? `${solver.solver.replaceAll("_", " ")}, ${solver.steps} steps, T = ${solver.horizon}` : `${data.times.length - 1} layers`;
  for (const name of nodes.modelNames) name.textContent = `${modelOf(side)}: ${settings}`;
  const changed = data.prediction_changed
    ? html("span", { class: "changed" }, `prediction changed: ${data.default_prediction.label} (${percent(data.default_prediction.probability)}) with the model's own settings`)
    : html("span", {}, solver ? "same prediction as with the model's own settings" : "a ViT has no solver settings");
  nodes.summary.replaceChildren(html("strong", { class: "xp-answer" }, best.label), html("b", {}, percent(best.probability)), html("span", {}, settings),
    html("span", {}, html("b", { class: "xp-nfe" }, String(best.nfe)), " NFE"),
    html("span", {}, html("b", {}, best.milliseconds.toFixed(best.milliseconds < 10 ? 1 : 0)), " ms"), changed);
}

function prepareMap(side) {
  const { data, nodes } = side;
  if (nodes.loadedImage === data.image) return;
  nodes.loadedImage = data.image;
  nodes.grey = null;
  const image = new Image();
  image.onload = () => {
    const canvas = html("canvas", { width: 480, height: 480 }), pen = canvas.getContext("2d");
    pen.imageSmoothingEnabled = image.width > 240;
    pen.drawImage(image, 0, 0, 480, 480);
    const pixels = pen.getImageData(0, 0, 480, 480), values = pixels.data;
    for (let k = 0; k < values.length; k += 4) {
      // Reduced contrast, so that the attention over it is seen better than the image.
      const grey = 56 + 0.56 * (0.299 * values[k] + 0.587 * values[k + 1] + 0.114 * values[k + 2]);
      values[k] = values[k + 1] = values[k + 2] = grey;
    }
    pen.putImageData(pixels, 0, 0);
    nodes.grey = canvas;
    drawTime(side, state.t);
  };
  image.src = data.image;
}

const timeOf = (side, t) => Math.min(t * side.data.horizon, side.data.times[side.data.times.length - 1]);

function redraw(t = state.t) { for (const side of sides) if (side.data && side.nodes) drawTime(side, t); }

// Everything that depends on the time, and nothing else: this runs for every frame.
function drawTime(side, t) {
  const { data, nodes } = side, at = locate(data.times, timeOf(side, t));
  if (side.prefix === "") {
    const time = timeOf(side, t);
    find(".xp-now").textContent = data.solver_config ? `t = ${time.toFixed(2)}, ${t.toFixed(2)} horizons` : `layer ${time.toFixed(1)}`;
    find('[data-key="t"]').setAttribute("aria-valuetext", find(".xp-now").textContent);
  }
  const name = state.head in data.attention ? state.head : "mean";
  const rows = data.attention[name], values = rowAt(rows, at), [down, across] = data.grid;
  if (nodes.mapOf !== rows) {
    nodes.mapOf = rows;
    nodes.range = [Math.min(...rows.map((row) => Math.min(...row))), Math.max(...rows.map((row) => Math.max(...row)))];
    nodes.scale.children[0].textContent = percent(nodes.range[0]);
    nodes.scale.children[2].textContent = percent(nodes.range[1]) + " of the attention per patch";
  }
  drawMap(nodes, values, down, across);
  if (nodes.dots) {
    const x = nodes.scaleX(timeOf(side, t));
    nodes.now.setAttribute("x1", x);
    nodes.now.setAttribute("x2", x);
    nodes.dots.forEach((dot, k) => {
      const share = valueAt(data.probabilities[k], at);
      dot.setAttribute("cx", x);
      dot.setAttribute("cy", nodes.scaleY(share));
      nodes.shares[k].textContent = percent(share);
    });
  }
  if (nodes.markers) nodes.markers.forEach(([node, points]) => {
    const [px, py] = rowAt(points, at);
    node.setAttribute("cx", px);
    node.setAttribute("cy", py);
  });
  if (nodes.distanceNow) {
    nodes.distanceNow.setAttribute("x1", nodes.distanceX(timeOf(side, t)));
    nodes.distanceNow.setAttribute("x2", nodes.distanceX(timeOf(side, t)));
  }
}

function drawMap(nodes, values, rows, columns) {
  const pen = nodes.map.getContext("2d"), size = 480, [low, high] = nodes.range;
  pen.clearRect(0, 0, size, size);
  if (nodes.grey) pen.drawImage(nodes.grey, 0, 0);
  const small = nodes.small && nodes.small.width === columns && nodes.small.height === rows
    ? nodes.small : (nodes.small = html("canvas", { width: columns, height: rows }));
  const tiny = small.getContext("2d"), pixels = tiny.createImageData(columns, rows);
  values.forEach((value, k) => {
    const [r, g, b] = inferno((value - low) / Math.max(high - low, 1e-12));
    pixels.data.set([r, g, b, 178], 4 * k);
  });
  tiny.putImageData(pixels, 0, 0);
  pen.imageSmoothingEnabled = true;
  pen.drawImage(small, 0, 0, size, size);
  const chosen = patchesInside(values, state.mass), inside = (row, column) =>
    row >= 0 && column >= 0 && row < rows && column < columns && chosen[row * columns + column];
  nodes.map.dataset.outlined = chosen.filter(Boolean).length;
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
  if (nodes.cursor) frame(...nodes.cursor, "#ffe14d");
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
  node.append(svg("text", { x: right, y: bottom + 29, "text-anchor": "end" }, data.solver_config ? "integration time t" : "layer"));
  node.append(svg("line", { class: "horizon", x1: x(data.horizon), x2: x(data.horizon), y1: top, y2: bottom }));
  return x;
}

const line = (points) => points.map(([x, y], k) => (k ? "L" : "M") + x.toFixed(1) + " " + y.toFixed(1)).join("");

function drawCurves(side) {
  const { data, nodes } = side, node = nodes.curves;
  node.replaceChildren();
  const x = timeAxis(node, data, 36, 394, 192, 8), y = (share) => 192 - 180 * share;
  for (const share of [0, 0.5, 1]) {
    node.append(svg("line", { class: "axis", x1: 36, x2: 394, y1: y(share), y2: y(share), opacity: share ? 0.6 : 1 }));
    node.append(svg("text", { x: 30, y: y(share) + 4, "text-anchor": "end" }, 100 * share + "%"));
  }
  data.probabilities.forEach((curve, k) => node.append(
    svg("path", { class: "curve", d: line(curve.map((share, n) => [x(data.times[n]), y(share)])), stroke: colourOf(data.classes[k]) })));
  nodes.now = svg("line", { class: "now", y1: 8, y2: 192 });
  nodes.dots = data.probabilities.map((_, k) => svg("circle", { r: 4, fill: colourOf(data.classes[k]) }));
  node.append(nodes.now, ...nodes.dots);
  Object.assign(nodes, { scaleX: x, scaleY: y });
  nodes.shares = data.classes.map(() => html("b"));
  nodes.legend.replaceChildren(...data.classes.map((name, k) => {
    const chip = html("i");
    chip.style.background = colourOf(name);
    return html("li", {}, chip, name + " ", nodes.shares[k]);
  }));
  const best = data.prediction;
  node.setAttribute("aria-label", `Class probabilities over time: ${best.label} ${percent(best.probability)} at the horizon; classes: ${data.classes.join(", ")}`);
}

function drawPath(side) {
  const { data, nodes, stability, divergence } = side, node = nodes.path;
  node.replaceChildren();
  const both = divergence && divergence.times.length ? divergence : null;
  const path = both ? both.path : data.path, layers = both ? null : data.teacher_path;
  const explained = (both || data).explained_variance;
  const every = [...path, ...(both ? both.other_path : []), ...(layers || [])];
  const xs = every.map((point) => point[0]), ys = every.map((point) => point[1]);
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  // One scale for both axes, so that distances on the page are proportional to distances in the plane.
  const unit = Math.min(340 / Math.max(right - left, 1e-9), 200 / Math.max(high - low, 1e-9));
  const to = ([x, y]) => [205 + unit * (x - (left + right) / 2), 112 - unit * (y - (low + high) / 2)];
  const points = path.map(to), rates = stability && stability.rates ? stability.rates : [];
  const limit = Math.max(1e-9, ...rates.filter((rate) => rate !== null).map(Math.abs));
  if (layers) {
    node.append(svg("path", { class: "curve", d: line(layers.map(to)), stroke: "var(--muted)", "stroke-dasharray": "2 4" }));
    layers.map(to).forEach(([x, y], k) => {
      const dot = svg("rect", { class: "layer", x: x - 3.5, y: y - 3.5, width: 7, height: 7, fill: "var(--card)", stroke: "var(--muted)" });
      dot.append(svg("title", {}, `teacher, layer ${k}`));
      node.append(dot);
    });
  }
  for (let n = 0; n + 1 < points.length; n++) {
    const rate = rates[n], measured = rate !== undefined && rate !== null;
    const share = measured ? Math.round(100 * Math.min(1, Math.abs(rate) / limit)) : 0;
    const stroke = measured ? `color-mix(in srgb, ${rate < 0 ? "var(--shrink)" : "var(--grow)"} ${share}%, var(--still))` : "var(--still)";
    node.append(svg("path", { d: line(points.slice(n, n + 2)), style: `stroke: ${stroke}`, class: measured ? "curve measured" : "curve" }));
  }
  points.forEach(([x, y]) => node.append(svg("circle", { cx: x, cy: y, r: 1.6, fill: "var(--muted)" })));
  nodes.markers = [[svg("circle", { r: 6, fill: "var(--ink)", stroke: "var(--card)", "stroke-width": 2 }), points]];
  if (both) {
    const other = both.other_path.map(to);
    node.append(svg("path", { class: "curve other", d: line(other), stroke: "var(--c3)", "stroke-dasharray": "5 4" }));
    nodes.markers.push([svg("circle", { r: 5, fill: "var(--c3)", stroke: "var(--card)", "stroke-width": 2 }), other]);
  }
  const [startX, startY] = points[0];
  node.append(svg("circle", { cx: startX, cy: startY, r: 5, fill: "var(--card)", stroke: "var(--ink)", "stroke-width": 1.5 }));
  node.append(svg("text", { class: "bold", x: startX, y: startY - 10, "text-anchor": "middle" }, "start"));
  nodes.markers.forEach(([dot]) => node.append(dot));
  node.append(svg("text", { x: 6, y: 262 }, `axes: ${percent(explained[0])} and ${percent(explained[1])} of the variance`));
  if (rates.length) {
    const share = (sign) => sign < 0 ? "var(--shrink)" : "var(--grow)";
    [[-1, "changes shrink", 230], [1, "grow", 336]].forEach(([sign, text, x]) => {
      node.append(svg("rect", { x, y: 253, width: 12, height: 10, rx: 2, style: `fill: ${share(sign)}` }));
      node.append(svg("text", { x: x + 17, y: 262 }, text));
    });
  }
  const who = data.query === "CLS" ? "CLS token" : data.query;
  nodes.pathNote.textContent = `The ${who} in the plane of its two principal components. ` +
    (layers ? "Squares: the teacher's layers. " : "") + (both ? "Dashed: the perturbed path. " : "") +
    "Colours, up to the horizon: whether a small change of the state shrinks or grows there.";
  nodes.notes.path.textContent = stability ? stability.text : "Measuring stability …";
  node.setAttribute("aria-label", "Trajectory. " + (stability ? stability.text : ""));
}

function drawDistance(side) {
  const { data, nodes, divergence } = side, node = nodes.distance;
  node.replaceChildren();
  nodes.distanceNow = null;
  const there = Boolean(divergence && divergence.times.length);
  nodes.empty.hidden = state.row !== undefined;
  node.toggleAttribute("hidden", !there);
  node.style.display = there ? "" : "none";
  for (const button of all("button", nodes.kinds)) {
    button.setAttribute("aria-pressed", String(button.dataset.kind === state.kind && state.row !== undefined));
    if (!button.dataset.kind) button.hidden = state.row === undefined;
  }
  nodes.notes.distance.textContent = divergence ? divergence.text : state.row !== undefined ? "Integrating the second path …" : "";
  if (!there) return;
  const x = timeAxis(node, data, 44, 394, 152, 8);
  const values = divergence.distance.map((value) => Math.log10(Math.max(value, 1e-8)));
  const low = Math.floor(Math.min(...values)), high = Math.max(low + 1, Math.ceil(Math.max(...values)));
  const y = (value) => 152 - 140 * (value - low) / (high - low);
  for (let power = low; power <= high; power++) {
    node.append(svg("line", { class: "axis", x1: 44, x2: 394, y1: y(power), y2: y(power), opacity: 0.6 }));
    node.append(svg("text", { x: 38, y: y(power) + 4, "text-anchor": "end" }, power >= -3 ? Number((100 * 10 ** power).toPrecision(2)) + "%" : "1e" + power));
  }
  node.append(svg("path", { class: "curve", d: line(values.map((value, n) => [x(divergence.times[n]), y(value)])), stroke: "var(--c3)" }));
  nodes.distanceNow = svg("line", { class: "now", y1: 8, y2: 152 });
  nodes.distanceX = x;
  node.append(nodes.distanceNow);
}

// ---------------------------------------------------------------- files

function download(name, blob) {
  const link = html("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

function snapshot() {
  return { state: Object.fromEntries(Object.entries(state).filter(([, value]) => value !== undefined && value !== "")),
    sides: sides.filter((side) => side.data).map((side) => ({ model: modelOf(side), ...side.data, stability: side.stability, divergence: side.divergence })) };
}

for (const button of all("[data-save]")) {
  button.addEventListener("click", async () => {
    const status = find(".xp-saved"), what = button.dataset.save;
    if (what === "numbers") {
      download("odevit-explorer.json", new Blob([JSON.stringify(snapshot(), null, 1)], { type: "application/json" }));
      status.textContent = "Saved: odevit-explorer.json";
    } else if (what === "url") {
      writeUrl();
      try {
        await navigator.clipboard.writeText(location.href);
        status.textContent = uploaded ? "Copied. Your image is not part of the URL." : "Copied.";
      } catch (error) {
        status.textContent = "The browser refused; copy the URL from the address bar.";
      }
    } else {
      button.disabled = true;
      status.textContent = what === "film" ? "Drawing the film …" : "Drawing the figures …";
      for (const side of sides.filter((each) => each.data)) {
        const file = await send(what, requestOf(side));
        if (file.problem) { status.textContent = file.problem; break; }
        const bytes = Uint8Array.from(atob(file.data), (letter) => letter.charCodeAt(0));
        download(side.prefix ? "second-" + file.name : file.name, new Blob([bytes], { type: file.type }));
        status.textContent = "Saved: " + file.name;
      }
      button.disabled = false;
    }
  });
}

// ---------------------------------------------------------------- begin

async function begin() {
  const answer = await send("options", location.search);
  if (answer.problem) return notice(answer.problem);
  choices = answer;
  Object.assign(state, answer.state);
  const solvers = answer.solvers.map((name) => [name, name.replaceAll("_", " ")]);
  for (const prefix of ["", "other_"]) fill(find(`[data-key="${prefix}solver"]`), solvers);
  fill(find('[data-key="model"]'), answer.models.map((name) => [name, name]));
  fill(find('[data-key="other"]'), [["", "none"], ...answer.models.map((name) => [name, name])]);
  find(".xp-drawings").replaceChildren(...Object.entries(answer.drawings).map(([name, url]) => {
    const button = html("button", { type: "button", class: "xp-button", "data-name": name, "aria-label": `Drawing: ${name}`, title: name },
      html("img", { src: url, alt: "" }));
    button.addEventListener("click", () => {
      uploaded = null;
      state.picture = name;
      writeUrl();
      showControls();
      sides.forEach(refresh);
    });
    return button;
  }));
  if (window.innerWidth <= 760) for (const box of all("details.xp-box")) box.open = false; // on small screens, results come first
  showControls();
  await Promise.all(sides.filter(isVisible).map(refresh));
  if (answer.problems.length) notice("Parts of the URL were ignored: " + answer.problems.join("; "));
}
begin();
