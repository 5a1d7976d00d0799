"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 560px)");

/** Create an element: el("p.hint", {title: "..."}, "text", child, ...). */
function el(kind, attributes = {}, ...children) {
  const [tag, ...classes] = kind.split(".");
  const node = document.createElement(tag);
  node.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
function svg(tag, attributes = {}, text = "") {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.textContent = text;
  return node;
}
const number = (v, digits = 3) => (v === null || v === undefined ? "–" : v.toFixed(digits));
const short = (v) => {
  const size = Math.abs(v);
  if (size !== 0 && (size < 0.001 || size >= 1e6)) return v.toExponential(2);
  return size >= 1000 ? Math.round(v).toLocaleString("en") : String(+v.toPrecision(4));
};

const colours = el("style");
document.head.append(colours);
function paint() {
  const variant = dark.matches ? 1 : 0;
  colours.textContent = data.groups.map((g, i) => `.g${i}{--c:${g.color[variant]};--d:${g.dash}}`).join("");
}
dark.addEventListener("change", paint);
paint();

// Learning curves.

const view = { axis: "iteration", split: "train", window: data.window, shown: [] };

/** Trailing mean over up to `window` points; [x, y] pairs in and out. */
function smooth(points, window) {
  let sum = 0;
  return points.map(([x, y], i) => {
    sum += y - (i >= window ? points[i - window][1] : 0);
    return [x, sum / Math.min(i + 1, window)];
  });
}
function at(points, x) {
  let low = 0, high = points.length - 1;
  if (x <= points[0][0]) return points[0][1];
  if (x >= points[high][0]) return points[high][1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (points[middle][0] <= x) low = middle; else high = middle;
  }
  const [x0, y0] = points[low], [x1, y1] = points[high];
  return y0 + ((x - x0) / (x1 - x0)) * (y1 - y0);
}
/** As `gem_bench.stats.is_rate` and `rate_over_runs`. */
const isRate = (metric) => metric.endsWith("_rate") && !metric.startsWith("info/");
function ofRate(m, half) {
  if (!(m > 0 && m < 1)) return [m - half, m + half];
  const angle = Math.asin(Math.sqrt(m)), room = half / (2 * Math.sqrt(m * (1 - m)));
  return [Math.max(0, angle - room), Math.min(Math.PI / 2, angle + room)].map((a) => Math.sin(a) ** 2);
}
/** What to draw for a group: thin runs, thick mean, and a band as far as two runs reach. */
function drawing(group, metric) {
  const raw = [], windows = [];
  // An evaluation is a measurement of its own; neighbours say little about it.
  const window = view.split.startsWith("eval:") ? 1 : view.window;
  for (const run of group.runs) {
    const curve = run.splits[view.split];
    const column = curve && curve.columns[metric];
    if (!column) continue;
    const points = curve[view.axis].map((x, i) => [x, column[i]]).filter(([, y]) => y !== null);
    if (!points.length) continue;
    raw.push(points);
    windows.push(Math.max(1, Math.round(window / curve.of_each)));
  }
  if (!raw.length) return null;
  const runs = raw.map((points, i) => smooth(points, windows[i]));
  if (runs.length === 1) return { runs: window > 1 ? raw : [], mean: runs[0], band: null };
  const ends = runs.map((r) => r.at(-1)[0]);
  const begin = Math.max(...runs.map((r) => r[0][0])), end = Math.max(...ends);
  const grid = view.axis === "iteration"
    ? [...new Set(runs.flatMap((r) => r.map(([x]) => x)))].filter((x) => x >= begin).sort((a, b) => a - b)
    : Array.from({ length: 160 }, (_, i) => Math.min(begin + ((end - begin) * i) / 159, end));
  const mean = [], band = [];
  for (const x of grid) {
    const ys = runs.filter((_, i) => ends[i] >= x).map((r) => at(r, x)), n = ys.length;
    const m = ys.reduce((a, b) => a + b) / n;
    mean.push([x, m]);
    if (n === 1) continue;
    const deviation = Math.sqrt(ys.reduce((a, y) => a + (y - m) ** 2, 0) / (n - 1));
    const half = (data.t[n] * deviation) / Math.sqrt(n);
    band.push([x, ...(isRate(metric) ? ofRate(m, half) : [m - half, m + half])]);
  }
  return { runs, mean, band, uneven: new Set(ends).size > 1 };
}
function ticks(low, high, most) {
  // What varies by less than a thousandth is as good as constant.
  const size = Math.max(Math.abs(low), Math.abs(high));
  if (high - low <= 1e-3 * size) { const room = Math.abs(low) / 2 || 1; low -= room; high += room; }
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough * (1 - 1e-9));
  const out = [];
  for (let i = Math.floor(low / step + 1e-9); i <= Math.ceil(high / step - 1e-9); i++) out.push(+(i * step).toPrecision(12));
  return out;
}
function tickLabel(v) {
  if (Math.abs(v) >= 1e6) return `${+(v / 1e6).toPrecision(4)}M`;
  if (Math.abs(v) >= 1e4) return `${+(v / 1e3).toPrecision(4)}k`;
  return v !== 0 && Math.abs(v) < 0.001 ? v.toExponential(0) : String(v);
}

class Panel {
  // A narrow page gets a narrow picture, not a small one: its texts keep their size.
  static get width() { return narrow.matches ? 360 : 560; }
  static height = 300; static left = 46; static right = 10; static top = 8; static bottom = 44;

  constructor(metric, choices) {
    this.metric = metric;
    this.title = el("h3");
    this.root = el("div.panel", {}, this.title);
    if (choices) {
      this.select = el("select", { "aria-label": "Metric of this panel" });
      for (const name of choices) this.select.append(new Option(data.metrics[name] || name, name));
      this.select.value = metric;
      this.select.addEventListener("change", () => { this.metric = this.select.value; this.draw(); });
      this.title.append(this.select);
    } else this.title.textContent = data.metrics[metric] || metric;
    this.svg = svg("svg", { tabindex: 0, role: "img" });
    this.root.append(this.svg);
    this.svg.addEventListener("pointermove", (e) => pointAt(this.fromPixel(e), this));
    this.svg.addEventListener("pointerleave", () => pointAt(null));
    this.svg.addEventListener("blur", () => pointAt(null));
    this.svg.addEventListener("keydown", (e) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[e.key];
      if (!step || !this.first) return;
      e.preventDefault();
      const xs = this.first.mean.map(([x]) => x);
      const now = pointed === null ? (step > 0 ? -1 : xs.length) : xs.findIndex((x) => x >= pointed);
      pointAt(xs[Math.min(Math.max(now + step, 0), xs.length - 1)], this);
    });
  }
  fromPixel(event) {
    const box = this.svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * Panel.width;
    const share = (x - Panel.left) / (Panel.width - Panel.left - Panel.right);
    return Math.min(Math.max(share, 0), 1) * this.end;
  }
  px(x) { return Panel.left + (x / this.end) * (Panel.width - Panel.left - Panel.right); }
  py(y) {
    const [low, high] = [this.ys[0], this.ys.at(-1)];
    return Panel.height - Panel.bottom - ((y - low) / (high - low)) * (Panel.height - Panel.bottom - Panel.top);
  }
  path(points) { return points.map(([x, y]) => `${this.px(x).toFixed(1)},${this.py(y).toFixed(1)}`).join(" "); }

  draw() {
    this.drawings = data.groups.map((g, i) => (view.shown[i] ? drawing(g, this.metric) : null));
    const known = this.drawings.filter(Boolean);
    this.first = known[0];
    this.svg.replaceChildren();
    this.svg.setAttribute("viewBox", `0 0 ${Panel.width} ${Panel.height}`);
    this.root.hidden = !known.length && !this.select;
    this.svg.setAttribute("aria-label", this.describe());
    if (!known.length) { this.end = null; return; }
    const values = known.flatMap((d) => [d.mean, ...d.runs].flatMap((p) => p.map(([, y]) => y)).concat((d.band || []).flatMap(([, a, b]) => [a, b])));
    if (isRate(this.metric)) values.push(0, 1);
    // Of the training's tasks, before a schedule changes them.
    const landmarks = this.metric === "success_rate" && view.split === "train" ? data.landmarks : [];
    this.ys = ticks(values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b)), 6);
    this.end = Math.max(...known.map((d) => d.mean.at(-1)[0])) || 1;
    const { width, height, left, right, bottom } = Panel;
    for (const y of this.ys) {
      this.svg.append(svg("line", { class: "grid", x1: left, x2: width - right, y1: this.py(y), y2: this.py(y) }));
      this.svg.append(svg("text", { x: left - 8, y: this.py(y) + 4, "text-anchor": "end" }, tickLabel(y)));
    }
    for (const x of ticks(0, this.end, narrow.matches ? 5 : 7)) {
      if (x > this.end * 1.001) continue;
      this.svg.append(svg("text", { x: this.px(x), y: height - bottom + 18, "text-anchor": "middle" }, tickLabel(x)));
    }
    this.svg.append(svg("text", { x: (left + width) / 2, y: height - 6, "text-anchor": "middle" }, data.axes[view.axis]));
    const each = (draw) => this.drawings.forEach((d, i) => d && draw(d, i));
    each((d, i) => {
      if (!d.band) return;
      const outline = [...d.band.map(([x, , high]) => [x, high]), ...d.band.map(([x, low]) => [x, low]).reverse()];
      this.svg.append(svg("polygon", { class: `band g${i}`, points: this.path(outline) }));
    });
    each((d, i) => d.runs.forEach((r) => this.svg.append(svg("polyline", { class: `run g${i}`, points: this.path(r) }))));
    each((d, i) => this.svg.append(svg("polyline", { class: `mean g${i}`, points: this.path(d.mean) })));
    for (const [name, value] of landmarks) {
      this.svg.append(svg("line", { class: "landmark", x1: left, x2: width - right, y1: this.py(value), y2: this.py(value) }));
      this.svg.append(svg("text", { class: "landmark", x: width - right - 2, y: Math.max(this.py(value) - 4, 10), "text-anchor": "end" }, `${name} ${short(value)}`));
    }
    this.cross = svg("g");
    this.svg.append(this.cross);
  }
  describe() {
    const lines = this.drawings.map((d, i) => d && `${data.groups[i].label}: ${short(d.mean[0][1])} to ${short(d.mean.at(-1)[1])}`);
    if (this.metric === "success_rate" && view.split === "train") lines.push(...data.landmarks.map(([name, value]) => `${name}: ${short(value)}`));
    return `${data.metrics[this.metric] || this.metric} over ${data.axes[view.axis]}. ${lines.filter(Boolean).join("; ")}`;
  }
  /** The nearest drawn point of each group at x. */
  values(x) {
    return this.drawings.map((d) => {
      if (!d) return null;
      const index = d.mean.reduce((best, [px], i) => (Math.abs(px - x) < Math.abs(d.mean[best][0] - x) ? i : best), 0);
      return { x: d.mean[index][0], y: d.mean[index][1], band: d.band && d.band[index] };
    });
  }
  mark(x) {
    if (!this.cross) return;
    this.cross.replaceChildren();
    if (x === null || !this.end || x > this.end) return;
    this.cross.append(svg("line", { class: "cross", x1: this.px(x), x2: this.px(x), y1: Panel.top, y2: Panel.height - Panel.bottom }));
    this.values(x).forEach((v, i) => v && this.cross.append(svg("circle", { class: `mark g${i}`, cx: this.px(v.x), cy: this.py(v.y), r: 4.5 })));
  }
}

let pointed = null, pointedPanel = null;
function pointAt(x, panel) {
  pointed = x;
  pointedPanel = panel;
  panels.forEach((p) => p.mark(x));
  const tip = $("tooltip");
  tip.hidden = x === null || !panel || !panel.end;
  if (tip.hidden) return;
  tip.replaceChildren(el("b", {}, `${data.axes[view.axis]} ${short(view.axis === "iteration" ? Math.round(x) : x)}`));
  panel.values(x).forEach((v, i) => {
    if (!v) return;
    const interval = v.band ? `  [${short(v.band[1])}, ${short(v.band[2])}]` : "";
    tip.append(el(`div.g${i}`, {}, el("i.dot"), `${data.groups[i].label}  ${short(v.y)}${interval}`));
  });
  const box = panel.svg.getBoundingClientRect();
  const left = box.left + scrollX + (panel.px(x) / Panel.width) * box.width;
  const room = document.documentElement.clientWidth + scrollX - tip.offsetWidth - 12;
  tip.style.left = `${left + 16 > room ? Math.max(left - tip.offsetWidth - 16, 8) : left + 16}px`;
  tip.style.top = `${box.top + scrollY + 16}px`;
}

const curves = () => data.groups.flatMap((g) => g.runs.flatMap((r) => Object.entries(r.splits)));
const lengths = el("span");
$("curve-hint").append(lengths);
const redraw = () => {
  panels.forEach((p) => p.draw());
  pointAt(pointed, panels.find((p) => p === pointedPanel));
  const uneven = panels.some((p) => p.drawings.some((d) => d && d.uneven));
  lengths.textContent = uneven ? " Runs differ in length: mean and band are of the runs that reach a point." : "";
};
let panels = [];
let built = null;
/** Make controls and panels for what is recorded, and keep what was chosen. */
function build() {
  const splits = [...new Set(curves().map(([name]) => name))];
  const recorded = [...new Set(curves().flatMap(([, curve]) => Object.keys(curve.columns)))];
  const key = JSON.stringify([splits, recorded, data.groups.map((g) => [g.label, g.runs.length])]);
  if (key === built) { redraw(); return; }
  built = key;
  if (!splits.includes(view.split)) view.split = splits.includes("train") ? "train" : splits[0];
  view.shown = data.groups.map((_, i) => view.shown[i] ?? true);
  const leading = ["success_rate", "return_mean", "turns_mean"].filter((m) => recorded.includes(m));
  const others = recorded.filter((m) => !leading.includes(m));
  const chosen = panels.find((p) => p.select);
  panels = leading.map((m) => new Panel(m));
  if (others.length) {
    const first = chosen && others.includes(chosen.metric) ? chosen.metric : ["entropy", "grad_norm", "loss"].find((m) => others.includes(m)) || others[0];
    panels.push(new Panel(first, others));
  }
  $("panels").replaceChildren(...panels.map((p) => p.root));
  $("split").replaceChildren(...splits.map((split) => new Option(split === "train" ? "training" : split.replace(/^eval:/, "evaluation: ").replace(/^env:/, "training: "), split)));
  $("split").value = view.split;
  $("split-label").hidden = splits.length < 2;
  $("legend").replaceChildren(...data.groups.map((group, i) => {
    const seeds = group.runs.length > 1 ? ` (${group.runs.length} seeds)` : "";
    const button = el(`button.g${i}`, { type: "button", "aria-pressed": view.shown[i] }, el("i.dot"), group.label + seeds);
    button.addEventListener("click", () => {
      view.shown[i] = !view.shown[i];
      button.setAttribute("aria-pressed", view.shown[i]);
      redraw();
    });
    return button;
  }));
  redraw();
}

for (const [axis, name] of [["iteration", "Iteration"], ["tokens", "Tokens"], ["time", "Time"]]) {
  const button = el("button", { type: "button", "aria-pressed": axis === view.axis, title: data.axes[axis] }, name);
  button.addEventListener("click", () => {
    view.axis = axis;
    for (const b of $("axis").children) b.setAttribute("aria-pressed", b === button);
    redraw();
  });
  $("axis").append(button);
}
$("split").addEventListener("change", () => { view.split = $("split").value; redraw(); });
const slider = $("smoothing");
slider.value = view.window;
narrow.addEventListener("change", redraw);
const showWindow = () => { $("smoothing-value").textContent = view.window === 1 ? "off" : `${view.window} iterations`; };
slider.addEventListener("input", () => { view.window = +slider.value; showWindow(); redraw(); });
view.window = +slider.value;
showWindow();
build();

// Episodes.

const newest = (a, b) => b.iteration - a.iteration || a.group - b.group || a.run - b.run || b.number - a.number;
let episodes = data.live ? data.episodes.sort(newest) : data.episodes;
let current = null;
const runName = (e) => {
  const group = data.groups[e.group];
  return group.runs.length > 1 ? `${group.label}, ${group.runs[e.run].name}` : group.label;
};
const flags = (e) => e.turns.flatMap((t) => t.flags.filter((f) => f !== "success"));
/** Fill a select with all and the values that occur; without a choice it is not shown. */
function filter(id, entries) {
  const select = $(id), chosen = select.value;
  select.replaceChildren(...[["", "all"], ...entries].map(([value, name]) => new Option(name, value)));
  select.value = entries.some(([value]) => String(value) === chosen) ? chosen : "";
  select.parentElement.hidden = entries.length < 2;
}
let trained, coloured, advantageScale;
/** Learn what occurs in the episodes, and offer it in the filters. */
function survey() {
  // An evaluation of its own has one iteration, and environments for that.
  trained = episodes.some((e) => e.split === "train" || e.iteration);
  coloured = episodes.some((e) => e.advantages || e.turns.some((t) => t.logprobs));
  advantageScale = Math.max(0, ...episodes.flatMap((e) => (e.advantages || []).map(Math.abs))) || 1;
  filter("episode-run", [...new Map(episodes.map((e) => [`${e.group}.${e.run}`, runName(e)]))]);
  filter("episode-iteration", !trained ? [] : [...new Map(episodes.map((e) => [`${e.split} ${e.iteration}`, e]))]
    .sort(([, a], [, b]) => (a.split === b.split ? a.iteration - b.iteration : a.split === "train" ? -1 : 1))
    .map(([key, e]) => [key, e.split === "train" ? e.iteration : `${e.split.replace("eval:", "")} ${e.iteration}`]));
  filter("episode-env", trained ? [] : [...new Set(episodes.map((e) => e.env))].map((env) => [env, env]));
  filter("episode-end", [...new Set(episodes.map((e) => e.end))].map((end) => [end, end.replaceAll("_", " ")]));
  $("episode-colour").parentElement.hidden = !coloured;
}
const place = (e) => (e.split === "train" ? `iteration ${e.iteration}` : trained ? `${e.split} ${e.iteration}`
  : `${e.env}, seed ${e.seed}${e.sample ? `, sample ${e.sample}` : ""}`);
const outcome = (e) => (!e.valid ? "failed" : e.success ? "success" : "no success");

function wanted(e) {
  const run = $("episode-run").value, iteration = $("episode-iteration").value, which = $("episode-outcome").value;
  const env = $("episode-env").value, end = $("episode-end").value;
  return (!run || run === `${e.group}.${e.run}`)
    && (!iteration || iteration === `${e.split} ${e.iteration}`)
    && (!env || env === e.env) && (!end || end === e.end)
    && (which !== "success" || e.success) && (which !== "failure" || (e.valid && !e.success))
    && (which !== "void" || !e.valid) && (which !== "flagged" || flags(e).length > 0 || !e.valid);
}
function list() {
  const shown = episodes.filter(wanted);
  const box = $("episode-list");
  const seen = $(`episode-${current?.index}`);
  const height = box.scrollTop && seen ? seen.offsetTop - box.scrollTop : null;
  episodes.forEach((e, index) => { e.index = index; });
  box.replaceChildren(...shown.map((e) => {
    const index = e.index;
    const option = el(`div.g${e.group}`, { role: "option", id: `episode-${index}`, "aria-selected": false },
      el("span", {}, place(e)),
      el(e.success ? "span.won" : "span.lost", {}, outcome(e)),
      el("small", {}, `${runName(e)} · ${e.turns.length} turns · return ${number(e.return, 2)}`));
    option.addEventListener("click", () => select(e));
    return option;
  }));
  if (!shown.length) box.append(el("p", {}, episodes.length ? "No episode matches." : "No episodes are recorded."));
  const next = shown.includes(current) ? current : shown[0];
  // What is read stays as it is when others appear.
  if (next && next === current && $("episode").hasChildNodes()) {
    mark(next);
    if (data.live) box.scrollTop = height === null ? 0 : $(`episode-${next.index}`).offsetTop - height;
  } else select(next);
}
function select(e) {
  current = e;
  mark(e);
  show(e);
}
function mark(e) {
  for (const option of $("episode-list").querySelectorAll("[role=option]")) {
    const chosen = e && option.id === `episode-${e.index}`;
    option.setAttribute("aria-selected", chosen);
    if (chosen) {
      $("episode-list").setAttribute("aria-activedescendant", option.id);
      // Scrolls the list alone; scrollIntoView would move the page too.
      const box = $("episode-list"), top = option.offsetTop - box.offsetTop;
      if (top < box.scrollTop || top + option.offsetHeight > box.scrollTop + box.clientHeight) box.scrollTop = top - box.clientHeight / 2;
    }
  }
}
$("episode-list").addEventListener("keydown", (event) => {
  const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  if (!step) return;
  event.preventDefault();
  const shown = episodes.filter(wanted);
  const next = shown[shown.indexOf(current) + step];
  if (next) select(next);
});

/** Join tokens until they are whole characters: [{text, ids, from}]. */
function pieces(ids, vocabulary) {
  const strict = new TextDecoder("utf-8", { fatal: true }), loose = new TextDecoder();
  const out = [];
  let bytes = [], from = 0;
  ids.forEach((id, i) => {
    const token = vocabulary[id];
    for (let k = 0; k < token.length; k++) bytes.push(token.charCodeAt(k));
    const block = new Uint8Array(bytes);
    let text = null;
    try { text = strict.decode(block); } catch { if (i === ids.length - 1 || i - from >= 3) text = loose.decode(block); }
    if (text === null) return;
    out.push({ text, ids: ids.slice(from, i + 1), from });
    bytes = []; from = i + 1;
  });
  return out;
}
/** Tokens that stand for one image are the same special token again and again. */
function once(all) {
  const out = [];
  for (const p of all) {
    const last = out.at(-1);
    if (last && p.text === last.text && /^<\|.*\|>$/.test(p.text)) last.times += 1;
    else out.push({ ...p, times: 1 });
  }
  return out;
}
const tint = (v) => `--tint:var(${v >= 0 ? "--plus" : "--minus"});--a:${(0.08 + 0.72 * Math.min(1, Math.abs(v))).toFixed(3)}`;
function colour(mode, advantage, logprob) {
  if (mode === "advantage" && advantage !== null) return tint(advantage / advantageScale);
  // -5 nats is a probability below 1 %.
  if (mode === "logprob" && logprob !== null) return tint(Math.max(logprob, -5) / 5);
  return "";
}
function scale() {
  const mode = $("episode-colour").value, box = $("scale");
  box.hidden = mode === "mask" || !coloured;
  const stops = mode === "advantage" ? [-1, -0.5, 0, 0.5, 1] : [-1, -0.5, 0];
  const [low, high] = mode === "advantage" ? [`−${short(advantageScale)}`, `+${short(advantageScale)}`] : ["−5 nats", "0"];
  const blocks = stops.map((v) => `rgb(var(${v >= 0 ? "--plus" : "--minus"}) / ${v === 0 ? 0.08 : 0.08 + 0.72 * Math.abs(v)})`);
  box.replaceChildren(low, el("i", { style: `background:linear-gradient(90deg,${blocks.join(",")})` }), high);
}
function show(e) {
  const box = $("episode");
  scale();
  if (!e) { box.replaceChildren(); return; }
  const group = data.groups[e.group];
  box.replaceChildren(
    el("h3", {}, `${runName(e)}: ${place(e)}, `, el(e.success ? "span.won" : "span.lost", {}, outcome(e))),
    el("p", {}, `${e.task} · group ${e.member} · return ${number(e.return)} · ended: ${e.end}${e.message && `: ${e.message}`}${e.drift ? ` · re-rendering would differ in places: ${e.drift}` : ""}`));
  const mode = $("episode-colour").value;
  let toGo = 0;
  const returns = e.turns.map((t) => t.reward).reverse().map((r) => (toGo = r + group.gamma * toGo)).reverse();
  e.turns.forEach((t, k) => {
    const advantage = e.advantages ? e.advantages[k] : null;
    const meta = el("div.meta", {}, el("span", {}, "reward ", el("strong", {}, number(t.reward))),
      el("span", {}, "return to go ", el("strong", {}, number(returns[k]))));
    if (advantage !== null) meta.append(el("span", {}, "advantage ", el("strong", {}, (advantage > 0 ? "+" : "") + number(advantage))));
    if (t.stop === "length") meta.append(el("span.flag", {}, "cut by the token limit"));
    for (const flag of t.flags) if (flag !== "success") meta.append(el("span.flag", {}, flag.replaceAll("_", " ")));
    if (t.fresh && k > 0) meta.append(el("span", {}, "new prompt"));
    const text = el("div.tokens");
    const thought = t.thought ? el("details", {}, el("summary", {}, "reasoning"), el("div.tokens", {}, t.thought)) : "";
    if (e.vocabulary === null) {
      text.append(el("span.env", {}, t.observation + "\n"), el("span.act", { style: colour(mode, advantage, null) }, t.text));
    } else {
      const vocabulary = data.vocabularies[e.vocabulary];
      const special = (s) => (/^<\|.*\|>$/.test(s) ? ".special" : "");
      for (const p of once(pieces(t.context, vocabulary))) text.append(el(`span.env${special(p.text)}`, { title: `token ${p.ids.join(" ")}, mask 0` }, p.text + (p.times > 1 ? ` ×${p.times} ` : "")));
      for (const p of pieces(t.response, vocabulary)) {
        const logprob = t.logprobs ? t.logprobs[p.from] : null;
        const title = `token ${p.ids.join(" ")}, mask 1${logprob === null ? "" : `, log-probability ${number(logprob)}`}${advantage === null ? "" : `, advantage ${number(advantage)}`}`;
        text.append(el(`span.act${special(p.text)}`, { title, style: colour(mode, advantage, logprob) }, p.text));
      }
    }
    const images = el("div.images", {}, ...t.images.map((src) => el("img", { src, alt: "image of this turn" })));
    box.append(el("div.turn", {}, el("b", {}, String(k + 1)), el("div", {}, meta, t.images.length ? images : "", text, thought)));
  });
  if (e.last) box.append(el("div.turn", {}, el("b", {}, "end"), el("div.tokens", {}, el("span.env", {}, e.last))));
}
for (const id of ["episode-run", "episode-iteration", "episode-env", "episode-outcome", "episode-end"]) $(id).addEventListener("change", list);
$("episode-colour").addEventListener("change", () => show(current));
survey();
list();

// A page that follows runs asks for what is new.

if (data.live) {
  const { every } = data.live;
  const say = (text, state = "") => { $("live").textContent = text; $("live").className = `live ${state}`; };
  /** Take in what changed: all of it after a change of the runs, else what is new. */
  const take = (update) => {
    const whole = update.layout !== data.live.layout;
    if (whole) {
      current = null;
      episodes = [];
      view.shown = [];
      data.groups = update.groups;
      data.t = update.t;
      data.landmarks = update.landmarks;
      data.vocabularies = [];
      paint();
    }
    for (const { group, run, splits } of update.runs) data.groups[group].runs[run].splits = splits;
    update.vocabularies.forEach((tokens, i) => { data.vocabularies[i] = Object.assign(data.vocabularies[i] || {}, tokens); });
    const kept = episodes.filter((e) => e === current || e.number >= (update.first[`${e.group}.${e.run}`] ?? 0));
    const changed = whole || update.episodes.length > 0;
    episodes = [...update.episodes, ...kept].sort(newest);
    for (const [id, html] of Object.entries(update.parts)) $(id).innerHTML = html;
    data.live.layout = update.layout;
    data.live.revision = update.revision;
    if (whole || update.runs.length) build();
    if (changed) { survey(); list(); }
  };
  const ask = async () => {
    try {
      const answer = await fetch(`data?layout=${data.live.layout}&since=${data.live.revision}`, { cache: "no-store" });
      if (!answer.ok) throw new Error(`the server answers ${answer.status}`);
      const update = await answer.json();
      take(update);
      say(`${update.going ? "Live" : "All runs have ended"} · read at ${new Date().toLocaleTimeString("en-GB")}`, update.going ? "" : "ended");
    } catch (error) {
      say(`No new data: ${error.message}. Trying again.`, "lost");
    }
  };
  const follow = async () => {
    if (!document.hidden) await ask();
    setTimeout(follow, every);
  };
  say("Live");
  setTimeout(follow, every);
}
