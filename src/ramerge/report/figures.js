const read = (id) => JSON.parse(document.getElementById(id).textContent);
const { figures } = read("data");
const libraries = read("libraries");

// The libraries lie in the page as text, so that nothing in them can end a script element.
async function load(name) {
  const url = URL.createObjectURL(new Blob([libraries[name]], { type: "text/javascript" }));
  try {
    return await import(url);
  } finally {
    URL.revokeObjectURL(url);
  }
}

async function draw(figure) {
  const name = figure.dataset.figure;
  const { view } = await window.vegaEmbed(figure.querySelector(".chart"), figures[name], {
    mode: "vega-lite",
    renderer: "svg",
    actions: false,
    bind: `#controls-${name}`,
    tooltip: { theme: "report" },
  });
  for (const button of figure.querySelectorAll("[data-save]")) {
    button.addEventListener("click", () => save(view, name, button.dataset.save));
  }
  return [name, view];
}

async function save(view, name, format) {
  // Outside of the page the ink is black, so the paper is white.
  const background = view.background();
  view.background("white");
  const link = document.createElement("a");
  link.href = await view.toImageURL(format, format === "png" ? 3 : 1);
  link.download = `${name}.${format}`;
  link.click();
  view.background(background).run();
}

await load("charts");
const drawn = await Promise.all([...document.querySelectorAll("[data-figure]")].map(draw));
window.report = { views: Object.fromEntries(drawn) };
