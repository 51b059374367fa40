// What moves on the page: theme, figures, sliders, tables, copying. Without it the page still says everything.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("scripted");
  const data = (id) => {
    const found = document.getElementById(id);
    return found ? JSON.parse(found.textContent) : null;
  };

  // ---------- theme

  const themes = ["system", "light", "dark"];
  const button = document.getElementById("theme");
  const stored = () => {
    try {
      return localStorage.getItem("prifedsync-theme");
    } catch {
      return null; // a browser may refuse storage to files
    }
  };
  const paint = (theme) => {
    if (theme === "system") delete root.dataset.theme;
    else root.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
  };
  let theme = themes.includes(stored()) ? stored() : "system";
  paint(theme);
  button.addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    paint(theme);
    try {
      localStorage.setItem("prifedsync-theme", theme);
    } catch {
      // the theme is kept for this visit alone
    }
  });

  // ---------- figures

  const narrow = () => window.innerWidth < 640;
  const draw = (chart) => {
    const { data: traces, layout } = data(`chart-${chart.dataset.chart}`);
    if (narrow()) {
      layout.font.size = 11;
      traces.filter(({ mode }) => mode === "markers+text").forEach((trace) => (trace.mode = "markers")); // no room for names
    }
    Plotly.newPlot(chart, traces, layout, { displayModeBar: false, responsive: false, scrollZoom: false });
  };
  const fitted = new ResizeObserver((entries) => {
    entries.forEach(({ target, contentRect }) => {
      const width = Math.floor(contentRect.width);
      if (width > 0 && target._fullLayout && target._fullLayout.width !== width) Plotly.relayout(target, { width });
    });
  });
  const charts = [...document.querySelectorAll("[data-chart]")];
  if (window.Plotly) {
    charts.forEach(draw);
    charts.forEach((chart) => fitted.observe(chart));
  }

  // ---------- the trade-off curve: two views, and a slider that reads it

  const curve = document.querySelector('[data-chart="curve"]');
  const certified = () => curve.layout.meta.certified;
  const view = (kind) => {
    const { data: traces, layout } = data("chart-curve");
    const heights = traces.map((trace) => (kind === "log" ? trace.meta : trace.y));
    Plotly.update(curve, { y: heights }, layout.meta.views[kind]);
    document.querySelectorAll("[data-view]").forEach((words) => {
      words.hidden = words.dataset.view !== kind;
    });
  };
  document.querySelectorAll('input[name="axes"]').forEach((input) => {
    input.addEventListener("change", () => curve && window.Plotly && view(input.value));
  });

  const reader = document.getElementById("reader");
  if (reader && curve && window.Plotly) {
    const said = document.getElementById("reader-says");
    const says = data("chart-curve").data[certified()].text.map((each) => {
      const text = new DOMParser().parseFromString(each.replaceAll("<br>", " "), "text/html").body.textContent;
      return `${text[0].toUpperCase()}${text.slice(1)}.`;
    });
    const read = () => {
      const at = Number(reader.value);
      said.textContent = says[at];
      reader.setAttribute("aria-valuetext", says[at]);
      Plotly.Fx.hover(curve, [{ curveNumber: certified(), pointNumber: at }]);
    };
    reader.addEventListener("input", read);
    reader.addEventListener("blur", () => Plotly.Fx.unhover(curve));
  }

  // ---------- δ: ε at the next smaller δ that was computed, which is the larger ε

  const deltas = data("deltas");
  const slider = document.getElementById("delta");
  if (deltas && slider) {
    const said = document.getElementById("delta-says");
    const short = (value) => value.toExponential().replace(".0e", "e");
    const show = () => {
      const delta = Number((10 ** Number(slider.value)).toPrecision(2));
      const safe = deltas.rows.filter(([each]) => each <= delta * (1 + 1e-9));
      if (!safe.length) {
        const text = `ε is not computed for so small a δ: ${short(delta)}.`;
        said.textContent = text;
        slider.setAttribute("aria-valuetext", text);
        return;
      }
      const [computed, epsilon] = safe[0]; // rows fall: the largest δ that is not above the asked one
      const exact = Math.abs(computed / delta - 1) < 1e-9;
      const where = exact ? "" : ` This was computed at δ = ${short(computed)}, and so it holds here too.`;
      const large = deltas.mostUnits !== null && delta * deltas.mostUnits >= 1;
      const warning = large ? ` Warning: δ is not below 1/${deltas.mostUnits}, so ε says little here.` : "";
      const text = `ε ≤ ${epsilon} at δ = ${short(delta)}.${where}${warning}`;
      said.textContent = text;
      slider.setAttribute("aria-valuetext", text);
    };
    slider.addEventListener("input", show);
    show();
  }

  // ---------- tables that are sorted, and shown in pages

  const key = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.k ?? cell.textContent;
    const number = Number(text);
    return text === "" || text === "–" ? null : Number.isNaN(number) ? text : number;
  };
  const compare = (a, b) => {
    if (a === null || b === null) return (a === null) - (b === null); // what is missing comes last
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), "en", { numeric: true });
  };

  const paged = (table, place) => {
    const size = Number(place.dataset.size);
    const rows = () => [...table.tBodies[0].rows];
    const count = rows().length;
    if (count <= size) return () => {};
    let page = 0;
    let all = false;
    const pages = Math.ceil(count / size);
    const make = (text, act) => {
      const made = document.createElement("button");
      made.type = "button";
      made.textContent = text;
      made.addEventListener("click", act);
      place.append(made);
      return made;
    };
    const show = () => {
      rows().forEach((row, at) => {
        row.hidden = !all && Math.floor(at / size) !== page;
      });
      table.classList.toggle("whole", all);
      before.disabled = all || page === 0;
      after.disabled = all || page === pages - 1;
      whole.textContent = all ? `Show ${size} at a time` : `Show all ${count.toLocaleString("en")}`;
      const first = page * size + 1;
      const end = Math.min(count, first + size - 1);
      said.textContent = all ? `All ${count.toLocaleString("en")} rows` : `Rows ${first}–${end} of ${count.toLocaleString("en")}`;
    };
    const turn = (step) => () => {
      page = Math.min(pages - 1, Math.max(0, page + step));
      show();
      table.closest(".scroll").scrollTop = 0;
    };
    const before = make("Previous", turn(-1));
    const after = make("Next", turn(1));
    const whole = make("", () => {
      all = !all;
      page = 0;
      show();
    });
    const said = document.createElement("span");
    said.setAttribute("role", "status");
    place.append(said);
    show();
    return () => {
      page = 0;
      show();
    };
  };

  document.querySelectorAll("table.sortable").forEach((table) => {
    const place = document.getElementById(`${table.id.replace("-table", "")}-pages`);
    const again = place ? paged(table, place) : () => {};
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      head.querySelector("button").addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        const rows = [...table.tBodies[0].rows].map((row) => [key(row, column), row]);
        rows.sort(([a], [b]) => (down && a !== null && b !== null ? compare(b, a) : compare(a, b)));
        table.tBodies[0].append(...rows.map(([, row]) => row));
        heads.forEach((each) => each.setAttribute("aria-sort", "none"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        again();
      });
    });
  });

  // ---------- tables that are wider than the page say so

  const scrolls = new ResizeObserver((entries) => {
    entries.forEach(({ target }) => {
      const box = target.closest(".scroll");
      box.classList.toggle("wider", box.scrollWidth > box.clientWidth + 1);
    });
  });
  document.querySelectorAll(".scroll, .scroll > table").forEach((each) => scrolls.observe(each));

  // ---------- copying: a file may not be allowed to write to the clipboard, so the text is selected first

  document.querySelectorAll("[data-copy]").forEach((each) => {
    each.addEventListener("click", async () => {
      const area = document.getElementById(each.dataset.copy);
      const said = area.parentElement.querySelector(".copied");
      area.focus();
      area.select();
      try {
        await navigator.clipboard.writeText(area.value);
        said.textContent = "Copied.";
      } catch {
        said.textContent = document.execCommand("copy") ? "Copied." : "Selected: copy it with Ctrl+C or ⌘C.";
      }
    });
  });

  // ---------- the table of contents marks the section that is read

  const READ = 140; // a section is read once its head is so far from the top of the window
  const links = new Map([...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]));
  const names = [...links.keys()];
  const box = (name) => document.getElementById(name).getBoundingClientRect();
  const asked = () => {
    const name = window.location.hash.slice(1);
    return links.has(name) && box(name).top >= 0 && box(name).top < window.innerHeight ? name : null;
  };
  const here = () => {
    const ended = window.scrollY + window.innerHeight >= root.scrollHeight - 2;
    if (ended) return asked() ?? names.at(-1); // the last sections are too short to reach the top
    return names.filter((name) => box(name).top <= READ).at(-1) ?? names[0];
  };
  const follow = () => {
    const now = here();
    links.forEach((link, name) => (name === now ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current")));
  };
  let waits = false;
  const later = () => {
    if (waits) return;
    waits = true;
    requestAnimationFrame(() => {
      waits = false;
      follow();
    });
  };
  for (const event of ["scroll", "resize", "hashchange"]) window.addEventListener(event, later, { passive: true });
  follow();
  if (window.innerWidth < 992) document.querySelector(".contents details").open = false;
})();
