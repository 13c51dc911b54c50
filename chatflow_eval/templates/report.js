"use strict";
(() => {
  const form = document.getElementById("filter");
  if (!form) return;
  const words = form.querySelector("input");
  const boxes = [...form.querySelectorAll("input[type=checkbox]")];
  const count = form.querySelector("output");
  const trials = [...document.querySelectorAll("details.trial")].map((element) => ({
    element,
    status: element.dataset.s,
    text: element.querySelector("summary").textContent.toLowerCase(),
  }));
  const apply = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    const statuses = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
    let shown = 0;
    for (const { element, status, text } of trials) {
      element.hidden = !(statuses.has(status) && wanted.every((word) => text.includes(word)));
      shown += element.hidden ? 0 : 1;
    }
    count.textContent = `${shown} of ${trials.length} shown`;
  };
  form.addEventListener("input", apply);
  form.addEventListener("submit", (event) => event.preventDefault());
  const open = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (target && target.tagName === "DETAILS") {
      target.open = true;
      target.scrollIntoView();
    }
  };
  addEventListener("hashchange", open);
  addEventListener("beforeprint", () => trials.forEach(({ element }) => (element.open ||= element.dataset.s !== "passed")));
  form.hidden = false;
  apply();
  open();
})();
