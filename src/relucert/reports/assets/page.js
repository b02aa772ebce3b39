// What the page shows: a group of subjects, a radius and a theme; and the dialog of one point.

const stored = JSON.parse(document.getElementById("document").textContent);
const find = (id) => document.getElementById(id);
const groups = new Map();
Object.values(stored.data).forEach((set, i) => {
  set.number = i;
  // One rule for all thumbnails: a variable would copy the address of the sheet into each of them.
  if (set.kind === "image") document.head.append(element("style", {}, `.sheet-${i} { background-image: url("${set.sheet.png}"); }`));
});
for (const one of stored.subjects) {
  const subject = new Subject(one, stored.data);
  const free = one.box === null ? ", no box" : "";
  const name = `${one.data}, ${normName(one.p)}${free}`;
  if (!groups.has(name)) groups.set(name, []);
  groups.get(name).push(subject);
}

const state = { group: [...groups.keys()][0], eps: 0, largest: 1, sorting: { column: -1, down: false } };
const explorer = new Explorer((place) => openPoint(place));

const subjectsShown = () => groups.get(state.group);

function chooseGroup(name) {
  state.group = name;
  const subjects = subjectsShown();
  state.judged = Math.max(...subjects.map((subject) => subject.eps));
  const ends = subjects.flatMap((subject) => subject.rows.filter((row) => row.correct)
    .flatMap((row) => [row.lower, row.upper])).filter(Number.isFinite).sort((a, b) => a - b);
  const most = ends.length ? ends[Math.floor(0.98 * (ends.length - 1))] : 0;
  state.largest = Math.max(1.5 * state.judged, 1.02 * most) || 1;
  setRadius(state.judged);
}

function setRadius(eps) {
  state.eps = Math.max(0, eps);
  find("eps").value = Math.round((1000 * Math.min(state.eps, state.largest)) / state.largest);
  find("eps").setAttribute("aria-valuetext", number(state.eps));
  if (document.activeElement !== find("eps-number")) find("eps-number").value = Number(state.eps.toPrecision(4));
  find("eps-reset").disabled = state.eps === state.judged;
  draw();
}

function draw() {
  const subjects = subjectsShown();
  find("sentence").textContent = sentence(subjects, state.eps);
  drawTable();
  find("cards").replaceChildren(...subjects.map((subject) => card(subject, state.eps, state.largest)));
  find("cards").classList.toggle("single", subjects.length < 2);
  find("cards-title").textContent = subjects.length < 2 ? "Curves" : "Side by side";
  explorer.show(subjects, state.eps);
}

function drawTable() {
  find("models").replaceChildren(...modelTable(subjectsShown(), state.eps, state.sorting, (column) => {
    const { sorting } = state;
    state.sorting = { column, down: sorting.column === column ? !sorting.down : false };
    drawTable();
    find("models").querySelectorAll("th button")[column].focus();
  }));
}

function openPoint(place) {
  const row = explorer.rows[place];
  if (!row) return;
  explorer.move(place, false);
  const name = explorer.subject.set.classes[row.label] ?? row.label;
  find("detail-title").textContent = `Test point ${row.index}: ${name}, ${verdictOf(row, state.eps)}`;
  find("detail-body").replaceChildren(...pointBody(subjectsShown(), explorer.subject, row, state.eps, state.largest));
  find("previous").disabled = place === 0;
  find("next").disabled = place >= explorer.grid.children.length - 1;
  if (!find("detail").open) {
    find("detail").showModal();
    find("close").focus();
  }
  find("detail").scrollTop = 0;
}

const step = (by) => {
  const place = explorer.current + by;
  if (place >= 0 && place < explorer.grid.children.length) openPoint(place);
};
find("previous").addEventListener("click", () => step(-1));
find("next").addEventListener("click", () => step(1));
find("close").addEventListener("click", () => find("detail").close());
find("detail").addEventListener("close", () => explorer.move(explorer.current));
find("detail").addEventListener("click", (event) => { if (event.target === find("detail")) find("detail").close(); });
find("detail").addEventListener("keydown", (event) => {
  if (event.key === "ArrowLeft") step(-1);
  else if (event.key === "ArrowRight") step(1);
});

// Drawing again for every pixel of the slider would be slow with many networks: once a frame is enough.
let waiting = null;
find("eps").addEventListener("input", () => {
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(() => setRadius((Number(find("eps").value) / 1000) * state.largest));
});
find("eps-number").addEventListener("change", () => {
  const value = Number(find("eps-number").value);
  if (find("eps-number").value !== "" && Number.isFinite(value)) setRadius(value);
});
find("eps-reset").addEventListener("click", () => setRadius(state.judged));

const THEMES = { auto: "system", light: "light", dark: "dark" };
function setTheme(name) {
  document.documentElement.dataset.theme = name;
  find("theme").textContent = `Theme: ${THEMES[name]}`;
  try { localStorage.setItem("relucert-theme", name); } catch { /* some browsers store nothing for files */ }
}
find("theme").addEventListener("click", () => {
  const names = Object.keys(THEMES);
  setTheme(names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length]);
});
let kept = null;
try { kept = localStorage.getItem("relucert-theme"); } catch { /* as above */ }
if (kept in THEMES) setTheme(kept);

const models = new Set(stored.subjects.map((subject) => subject.model)).size;
const sets = Object.values(stored.data).map((set) => set.title);
find("lead").textContent = `${models} network${models > 1 ? "s" : ""} on ${sets.join(" and ")}. For every test point the distance to the nearest `
  + "change of decision lies in an interval: the lower end is proved, the upper end is shown by an adversarial example.";
find("legend").replaceChildren(...VERDICTS.map((verdict) => element("li", {}, element("i", { class: `${verdict}-bg` }), verdict)));
for (const name of groups.keys()) {
  find("groups").append(element("label", {},
    element("input", { type: "radio", name: "group", value: name, checked: name === state.group, onchange: () => chooseGroup(name) }), name));
}
find("groups").hidden = groups.size < 2;
const remarks = Object.values(stored.data).filter((set) => set.why).map((set) => element("p", {}, set.why));
const hashes = [...new Map(stored.subjects.map((subject) => [subject.model, subject.name]))];
find("remarks").append(...remarks, element("p", { class: "small" }, "Networks, by the hash of their function: ",
  ...hashes.flatMap(([hash, name], i) => [i ? ", " : "", `${name} `, element("code", {}, hash.slice(0, 16))])));
chooseGroup(state.group);
document.documentElement.dataset.ready = "yes";
