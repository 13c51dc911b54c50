"use strict";
(() => {
  const link = document.getElementById("link");
  const main = document.querySelector("main");
  const known = (node) => (node.name ? `${node.name}=${node.value}` : node.getAttribute("href"));
  const controls = () => [...main.querySelectorAll("[data-part] :is(a, input)")];
  let source;

  function show(html) {
    const inputs = [...main.querySelectorAll("[data-part] input")];
    const chosen = inputs.some((input) => input.checked !== input.defaultChecked)
      ? inputs.filter((input) => input.checked).map(known)
      : [];
    const focus = document.activeElement?.closest("[data-part]") && known(document.activeElement);
    // Escaped by the server, and the page's policy runs no script but this one.
    for (const part of [...new DOMParser().parseFromString(html, "text/html").body.children]) {
      main.querySelector(`[data-part="${part.dataset.part}"]`).replaceWith(part);
    }
    for (const control of controls()) {
      if (chosen.includes(known(control))) control.checked = true;
      if (focus && known(control) === focus) control.focus({ preventScroll: true });
    }
  }

  function follow() {
    source?.close();
    if (document.hidden) return; // a browser keeps few connections to one server, and others wait for them
    const asked = new URLSearchParams(location.search);
    asked.set("seen", main.dataset.seen);
    source = new EventSource(`/events?${asked}`);
    source.addEventListener("open", () => (link.textContent = ""));
    source.addEventListener("error", () => (link.textContent = "The server does not answer; asking again."));
    source.addEventListener("parts", ({ data, lastEventId }) => {
      main.dataset.seen = lastEventId;
      show(data);
    });
    source.addEventListener("over", ({ data }) => {
      source.close();
      link.textContent = data;
    });
  }

  document.addEventListener("visibilitychange", follow);
  follow();
})();
