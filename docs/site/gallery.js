// The gallery of schedules: filter and sort its cards; the address keeps what was chosen.

(() => {
  const form = document.querySelector(".gallery-filter"), list = document.querySelector(".gallery");
  const cards = [...list.children], count = form.querySelector("output"), reset = form.querySelector("button");
  const ORDER = {
    newest: (a, b) => b.year - a.year, bubble: (a, b) => a.bubble - b.bubble, memory: (a, b) => a.memory - b.memory,
    name: (a, b) => a.name.localeCompare(b.name, "en", { numeric: true }),
  };

  function apply() {
    const wanted = Object.fromEntries(new FormData(form));
    const words = wanted.text.toLowerCase().split(/\s+/);
    for (const card of cards) {
      const { text, family, backward, memory } = card.dataset;
      card.hidden = !(words.every((word) => text.includes(word)) && family.includes(wanted.family)
        && backward.includes(wanted.backward) && (!wanted.memory || Number(memory) <= Number(wanted.memory)));
    }
    const order = ORDER[wanted.sort];
    list.append(...(order ? cards.toSorted((a, b) => order(a.dataset, b.dataset)) : cards));
    const shown = cards.filter((card) => !card.hidden).length;
    count.textContent = shown === cards.length ? `${shown} schedules` : `${shown} of ${cards.length} schedules`;
    const chosen = new URLSearchParams(Object.entries(wanted).filter(([, value]) => value));
    reset.disabled = !chosen.size;
    history.replaceState(null, "", `${location.pathname}${chosen.size ? `?${chosen}` : ""}${location.hash}`);
  }

  for (const [name, value] of new URLSearchParams(location.search)) if (form.elements[name]) form.elements[name].value = value;
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(apply));
  form.hidden = false;
  apply();
})();
