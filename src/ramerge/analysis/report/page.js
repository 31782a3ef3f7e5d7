const { tensors, agents } = read("data");

const percent = (share) => (share === null ? "–" : share ? `${(100 * share).toPrecision(3)}%` : "0%");
const count = new Intl.NumberFormat("en").format;

function table(DataTable) {
  const chosen = document.getElementById("measure");
  const share = (part, whole) => (whole ? part / whole : null);
  const measures = {
    density: (row, t) => share(tensors.active[t][row], tensors.elements[row]),
    unique: (row, t) => share(tensors.unique[t][row], tensors.active[t][row]),
  };
  const text = DataTable.render.text();
  // layer 2 before layer 10
  const name = (value, type) =>
    type === "sort" ? value.replace(/\d{1,9}/g, (digits) => digits.padStart(9, "0")) : type in text ? text[type](value) : value;
  const shown = (form) => (value, type) => (type === "display" ? form(value) : type === "sort" ? (value ?? -1) : value);
  const columns = [
    { data: (row) => tensors.name[row], render: name, className: "name" },
    { data: (row) => tensors.layer[row], render: shown((layer) => layer ?? "–"), type: "num" },
    { data: (row) => tensors.roles[tensors.role[row]], render: text },
    { data: (row) => tensors.shape[row].join(" × ") || "scalar", render: text, orderable: false },
    { data: (row) => tensors.elements[row], render: shown(count), type: "num" },
    ...agents.map((_, t) => ({
      data: (row) => measures[chosen.value](row, t),
      render: shown(percent),
      type: "num",
      searchable: false,
    })),
  ];
  const titles = [...document.querySelectorAll("#tensor-table thead th")].map((cell) => cell.textContent);
  const made = new DataTable("#tensor-table", {
    data: tensors.name.map((_, row) => row),
    // on a phone each figure stands next to the heading of its column
    createdRow: (line) => [...line.cells].slice(1).forEach((cell, t) => (cell.dataset.label = titles[t + 1])),
    columns,
    order: [],
    pageLength: 25,
    deferRender: true,
    autoWidth: false,
    layout: { topStart: "search", topEnd: "pageLength", bottomStart: "info", bottomEnd: "paging" },
    language: { search: "Search tensors and roles" },
  });
  const box = document.getElementById("tensor-table").parentElement;
  box.classList.add("scroll");
  Object.assign(box, { tabIndex: 0, role: "region", ariaLabel: "Table of tensors" });
  chosen.addEventListener("change", () => made.rows().invalidate("data").draw(false));
  return made;
}

// DataTables takes its dark colors from a class.
const dark = matchMedia("screen and (prefers-color-scheme: dark)");
const dress = () => document.documentElement.classList.toggle("dark", dark.matches);
dark.addEventListener("change", dress);
dress();

const { jQuery } = await load("tables");
window.report.table = table(jQuery.fn.dataTable);
document.documentElement.dataset.ready = "";
