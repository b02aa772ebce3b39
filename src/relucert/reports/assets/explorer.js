// The grid of test points with filters, sorting and keys.

const PAGE = 1000;
const SORTS = {
  index: ["number in the test set", (row) => row.index],
  lower: ["proved radius", (row) => (row.correct ? row.lower : -1)],
  upper: ["adversarial distance", (row) => (row.correct ? row.upper : -1)],
  gap: ["width of the interval", (row) => (row.correct ? row.upper - row.lower || 0 : -1)],
  margin: ["proved margin", (row) => row.margin ?? -Infinity],
  seconds: ["time", (row) => row.seconds],
  label: ["class", (row) => row.label],
};

/** How many pixels of the screen a pixel of a picture has in the grid. */
function scaleOf(sheet) {
  return Math.max(1, Math.round(56 / sheet.width));
}

class Explorer {
  constructor(open) {
    this.open = open;
    this.grid = document.getElementById("grid");
    this.form = document.getElementById("filters");
    this.count = document.getElementById("count");
    this.more = document.getElementById("more");
    this.all = document.getElementById("all");
    this.all.addEventListener("click", () => { this.choose(this.subject); this.form.querySelector("input, select").focus(); });
    this.limit = PAGE;
    this.rows = [];
    this.current = 0;
    this.more.addEventListener("click", () => { this.limit += PAGE; this.draw(); });
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("input", (event) => this.changed(event.target));
    this.grid.addEventListener("click", (event) => this.clicked(event));
    this.grid.addEventListener("keydown", (event) => this.pressed(event));
  }

  /** Show the points of one of the subjects at a radius. */
  show(subjects, eps, chosen) {
    const another = this.subjects !== subjects;
    this.subjects = subjects;
    this.eps = eps;
    if (another) this.choose(subjects[chosen ?? 0]);
    else { this.labels(); this.draw(); }
  }

  choose(subject) {
    this.subject = subject;
    this.limit = PAGE;
    this.thumbs = new Map();
    this.controls();
    this.draw();
  }

  controls() {
    const subject = this.subject;
    const option = (value, text, selected = false) => element("option", { value, selected }, text);
    const labels = [...new Set(subject.rows.map((row) => row.label))].filter((label) => label !== null).sort((a, b) => a - b);
    const names = (label) => subject.set.classes[label] ?? String(label);
    const margins = subject.rows.some((row) => row.margin !== null);
    const several = this.subjects.length > 1;
    this.form.replaceChildren(...[
      several ? element("label", {}, "Network", element("select", { name: "subject" },
        ...this.subjects.map((one, i) => option(i, one.name, one === subject)))) : null,
      element("fieldset", {}, element("legend", {}, "Verdict"), ...VERDICTS.map((verdict) => element("label", {},
        element("input", { type: "checkbox", name: "verdict", value: verdict, checked: true }), element("span", { "data-count": verdict }, verdict)))),
      element("label", {}, "Class", element("select", { name: "label" }, option("", "all"), ...labels.map((label) => option(label, names(label))))),
      element("label", {}, "Method", element("select", { name: "method" }, option("", "all"))),
      margins ? element("div", { class: "pair" }, `Proved margin at eps ${number(subject.eps)}`, element("span", {},
        element("input", { type: "number", name: "least", step: "any", "aria-label": "Least margin", placeholder: "from" }),
        element("input", { type: "number", name: "most", step: "any", "aria-label": "Largest margin", placeholder: "to" }))) : null,
      element("label", {}, "Sort by", element("select", { name: "sort" }, ...Object.entries(SORTS).map(([key, [text]]) => option(key, text)))),
      element("label", {}, "Order", element("select", { name: "order" }, option("up", "smallest first"), option("down", "largest first"))),
    ].filter(Boolean));
    this.labels();
  }

  /** The counts beside verdicts and the methods to choose, which depend on the radius. */
  labels() {
    const { counts } = this.subject.figures(this.eps);
    for (const span of this.form.querySelectorAll("[data-count]")) span.textContent = `${span.dataset.count} ${counts[span.dataset.count]}`;
    const select = this.form.elements.method;
    const before = select.value;
    const methods = [...new Set(this.subject.rows.map((row) => decider(row, this.eps)))].sort();
    select.replaceChildren(element("option", { value: "" }, "all"), ...methods.map((name) => element("option", { value: name }, name)));
    select.value = methods.includes(before) ? before : "";
  }

  changed(target) {
    if (target.name === "subject") {
      this.choose(this.subjects[Number(target.value)]);
      this.form.elements.subject.focus();
    } else this.draw();
  }

  filtered() {
    const form = this.form.elements;
    const verdicts = new Set([...this.form.querySelectorAll("input[name=verdict]:checked")].map((box) => box.value));
    const label = form.label.value;
    const method = form.method.value;
    const least = form.least && form.least.value !== "" ? Number(form.least.value) : null;
    const most = form.most && form.most.value !== "" ? Number(form.most.value) : null;
    const key = SORTS[form.sort.value][1];
    const sign = form.order.value === "down" ? -1 : 1;
    return this.subject.rows
      .filter((row) => verdicts.has(verdictOf(row, this.eps))
        && (label === "" || String(row.label) === label)
        && (method === "" || decider(row, this.eps) === method)
        && (least === null || (row.margin !== null && row.margin >= least))
        && (most === null || (row.margin !== null && row.margin <= most)))
      .sort((a, b) => { const [x, y] = [key(a), key(b)]; return (x < y ? -1 : x > y ? 1 : 0) * sign || a.index - b.index; });
  }

  draw() {
    this.rows = this.filtered();
    this.all.hidden = this.rows.length === this.subject.rows.length;
    this.current = 0;
    const shown = this.rows.slice(0, this.limit);
    this.count.textContent = (this.rows.length ? "" : "No point fits these filters: ")
      + `${this.rows.length} of ${this.subject.rows.length} points`
      + (shown.length < this.rows.length ? `, the first ${shown.length} are shown` : "");
    this.grid.style.setProperty("--thumb", shown.length ? this.width() : "0px");
    this.grid.replaceChildren(...shown.map((row, i) => this.thumb(row, i)));
    this.more.hidden = shown.length === this.rows.length;
  }

  /** The width of a thumbnail with its frame. */
  width() {
    const { set } = this.subject;
    return set.kind === "image" ? `${set.sheet.width * scaleOf(set.sheet) + 6}px` : "84px";
  }

  thumb(row, place) {
    const verdict = verdictOf(row, this.eps);
    const set = this.subject.set;
    const names = (label) => (label === null ? "unknown" : set.classes[label] ?? String(label));
    let node = this.thumbs.get(row.index);
    if (!node) {
      node = element("button", { type: "button", "data-index": row.index });
      const tile = set.kind === "image" ? set.tiles[row.index] : undefined;
      node.classList.add(tile === undefined ? "text" : "image");
      if (tile === undefined) node.append(`#${row.index}`, element("br"), names(row.prediction));
      else {
        const { sheet } = set;
        const scale = scaleOf(sheet);
        node.style.width = `${sheet.width * scale + 6}px`;
        node.style.height = `${sheet.height * scale + 6}px`;
        node.style.backgroundSize = `${sheet.width * sheet.columns * scale}px auto`;
        node.style.backgroundPosition = `-${(tile % sheet.columns) * sheet.width * scale}px -${Math.floor(tile / sheet.columns) * sheet.height * scale}px`;
      }
      this.thumbs.set(row.index, node);
    }
    node.className = `thumb ${node.classList.contains("text") ? "text" : `image sheet-${set.number}`} ${verdict}`;
    node.tabIndex = place === this.current ? 0 : -1;
    const ends = row.correct ? `, radius ${number(row.lower)} to ${number(row.upper)}` : `, predicted ${names(row.prediction)}`;
    node.setAttribute("aria-label", `Point ${row.index}, ${names(row.label)}, ${verdict}${ends}`);
    node.title = `${row.index}: ${names(row.label)}, ${verdict}${ends}`;
    return node;
  }

  clicked(event) {
    const node = event.target.closest(".thumb");
    if (!node) return;
    this.move([...this.grid.children].indexOf(node), false);
    this.open(this.current);
  }

  /** Make one thumbnail the only one that Tab reaches. */
  move(place, focus = true) {
    const nodes = this.grid.children;
    if (!nodes.length) return;
    const at = Math.max(0, Math.min(nodes.length - 1, place));
    if (nodes[this.current]) nodes[this.current].tabIndex = -1;
    this.current = at;
    nodes[at].tabIndex = 0;
    if (focus) nodes[at].focus();
  }

  pressed(event) {
    const nodes = this.grid.children;
    const top = nodes[0] ? nodes[0].offsetTop : 0;
    let across = 0;
    while (across < nodes.length && nodes[across].offsetTop === top) across += 1;
    const jumps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across };
    if (event.key in jumps) {
      const to = this.current + jumps[event.key];
      if (to >= 0 && to < nodes.length) this.move(to);
    } else if (event.key === "Home") this.move(0);
    else if (event.key === "End") this.move(nodes.length - 1);
    else return;
    event.preventDefault();
  }
}
