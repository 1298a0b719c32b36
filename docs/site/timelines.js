// The timeline of a schedule's page: takes the place of the figure when that is in view, at sizes to choose.

(() => {
  const figure = document.querySelector(".timelines"), here = document.currentScript.src;
  const BASE = "1f1b", DIMENSIONS = ["ranks", "microbatches", "chunks"];
  const found = {};
  globalThis.debubbleTimelines = (data) => { found[data.name] = data; };

  const make = (tag, attributes, ...children) => {
    const element = Object.assign(document.createElement(tag), attributes);
    element.append(...children);
    return element;
  };
  const load = (path) => new Promise((resolve, reject) => {
    document.head.append(make("script", { src: new URL(path, here), onload: resolve, onerror: reject }));
  });
  const timelinesOf = async (name) => {
    if (!found[name]) await load(`../schedules/${name}.js`);
    return found[name];
  };

  /** The sizes of a case that was computed, the nearest to those wanted that has `kept` as it is. */
  function nearest(cases, wanted, kept) {
    const away = (sizes) => sizes.reduce((sum, size, at) => sum + Math.abs(Math.log2(size / wanted[at])) * (at === kept ? 100 : 1), 0);
    return Object.keys(cases).map((key) => key.split(" ").map(Number)).reduce((a, b) => (away(b) < away(a) ? b : a));
  }

  function switches(data, sizes, change) {
    const all = Object.keys(data.cases).map((key) => key.split(" "));
    return DIMENSIONS.flatMap((dimension, at) => {
      const values = [...new Set(all.map((key) => key[at]))];
      if (values.length < 2) return [];
      const radios = values.map((value) => make("label", {},
        make("input", { type: "radio", name: dimension, value, checked: Number(value) === sizes[at], onchange: () => change(at, Number(value)) }),
        make("span", {}, value)));
      return [make("fieldset", {}, make("legend", {}, dimension), ...radios)];
    });
  }

  async function start() {
    const [data] = await Promise.all([timelinesOf(figure.dataset.schedule), load("../timeline.js")]);
    const timeline = make("debubble-timeline", {}), form = make("form", { className: "sizes" });
    timeline.setAttribute("layers", "bubbles,memory");
    const beside = make("input", { type: "checkbox", name: "base", onchange: () => show() });
    let sizes = figure.dataset.sizes.split(" ").map(Number);
    if (!data.cases[sizes.join(" ")]) sizes = nearest(data.cases, sizes);

    async function show() {
      const shown = [data.cases[sizes.join(" ")]];
      if (beside.checked) {
        const { cases } = await timelinesOf(BASE);
        shown.push(cases[nearest(cases, [sizes[0], sizes[1], 1], 0).join(" ")]);
      }
      await timeline.load({ ...data.shared, timelines: shown });
    }
    const fill = () => form.replaceChildren(...switches(data, sizes, (at, value) => {
      const wanted = sizes.with(at, value);
      sizes = data.cases[wanted.join(" ")] ? wanted : nearest(data.cases, wanted, at);
      for (const box of form.querySelectorAll("input[type=radio]")) box.checked = Number(box.value) === sizes[DIMENSIONS.indexOf(box.name)];
      show();
    }), ...(data.name === BASE ? [] : [make("label", { className: "base" }, beside, `compare with ${BASE}`)]));

    const follow = () => {
      timeline.dataset.theme = document.body.dataset.mdColorScheme === "slate" ? "dark" : "light";
      timeline.layout?.();
    };
    new MutationObserver(follow).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
    follow();
    fill();
    // Out of sight until it is drawn: the figure stays as long.
    timeline.addEventListener("timeline-ready", () => figure.classList.add("ready"), { once: true });
    figure.prepend(form, timeline);
    await show();
  }

  new IntersectionObserver(([seen], observer) => {
    if (!seen.isIntersecting) return;
    observer.disconnect();
    // Without its files the figure stays.
    start().catch((problem) => console.warn("The timeline could not be loaded.", problem));
  }, { rootMargin: "200px" }).observe(figure);
})();
